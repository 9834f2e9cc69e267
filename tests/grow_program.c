/* grow_program.c: ranks whose communicators grow, or are suspended and resumed, for test_grow_jobs.sh and
 * test_suspend_jobs.sh, which start several such processes.
 *
 *   grow_program DEVICE ACTION... [-- DEVICE ACTION...]      a thread for each DEVICE
 *
 *   init:C:RANK:SIZE:FILE   ncclCommInitRank of communicator C (a digit); rank 0 writes the id to FILE, the
 *                           others wait for it
 *   id:C:FILE               ncclCommGetUniqueId, into FILE
 *   grow:C:NEW:SIZE[:FILE]  ncclCommGrow by a rank of C, with the id of FILE or without one
 *   join:NEW:RANK:SIZE:FILE ncclCommGrow by a rank that joins
 *   enter:NEW:RANK:SIZE:FILE   ncclCommInitRank with the id of FILE
 *   sum:C                   an all-reduce, whose sum is compared
 *   suspend:C resume:C      ncclCommSuspend, ncclCommResume
 *   split:C:NEW             ncclCommSplit of all ranks
 *   end:C                   ncclCommDestroy
 *   abort:C                 ncclCommAbort
 *   later                   from now on `grow` and `join` do not block; `settle:C` polls
 *   touch:FILE wait:FILE    one thread or process waits for another
 *   die                     the process kills itself
 *   count[:N]               the first one notes how many blocks the library has, the others wait until it has
 *                           at most N more (default 0)
 *
 * Prints a line for each action, `ACTION ok` or `ACTION error CODE: SENTENCE`. Ends itself with SIGALRM after
 * 60 seconds. */
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cuda_runtime.h>
#include <nccl.h>

#include "base/os.h"
#include "must.h"

#define COUNT 5000
#define COMMS 10
#define FIELDS 5

struct rank {
  pthread_t thread;
  int device, action_count;
  char **actions;
  ncclComm_t comms[COMMS];
  cudaStream_t stream;
  float *data, *host;
  bool later;
};

static void id_write(const char *path, const ncclUniqueId *id) {
  char draft[512];
  snprintf(draft, sizeof draft, "%s.draft", path);
  must(os_file_write(draft, (const char *)id, sizeof *id) && rename(draft, path) == 0, "writing an id");
}

static void id_wait(const char *path, ncclUniqueId *id) {
  for (;; os_sleep_ms(10)) {
    size_t bytes = 0;
    char *content = os_file_read(path, &bytes);
    const bool whole = content && bytes == sizeof *id;
    if (whole) memcpy(id, content, sizeof *id);
    os_free(content);
    if (whole) return;
  }
}

static ncclResult_t settle(ncclComm_t comm) {
  ncclResult_t state = ncclInProgress;
  while (state == ncclInProgress) {
    const ncclResult_t asked = ncclCommGetAsyncError(comm, &state);
    if (asked != ncclSuccess) return asked;
    if (state == ncclInProgress) os_sleep_ms(1);
  }
  return state;
}

/* Rank r has 2^r. */
static ncclResult_t sum(struct rank *rank, ncclComm_t comm) {
  int own = 0, size = 0;
  ncclResult_t result = ncclCommUserRank(comm, &own);
  if (result == ncclSuccess) result = ncclCommCount(comm, &size);
  for (int i = 0; i < COUNT; i++) rank->host[i] = (float)(1 << own);
  MUST(cudaMemcpy(rank->data, rank->host, COUNT * sizeof(float), cudaMemcpyHostToDevice));
  if (result == ncclSuccess)
    result = ncclAllReduce(rank->data, rank->data, COUNT, ncclFloat, ncclSum, comm, rank->stream);
  if (result != ncclSuccess && result != ncclInProgress) return result;
  if (cudaStreamSynchronize(rank->stream) != cudaSuccess) return ncclUnhandledCudaError;
  MUST(cudaMemcpy(rank->host, rank->data, COUNT * sizeof(float), cudaMemcpyDeviceToHost));
  for (int i = 0; i < COUNT; i++)
    if (rank->host[i] != (float)((1 << size) - 1)) return ncclInternalError;
  return settle(comm);
}

static ncclResult_t init(struct rank *rank, char **field) {
  ncclUniqueId id;
  if (atoi(field[2]) == 0) {
    MUST(ncclGetUniqueId(&id));
    id_write(field[4], &id);
  } else {
    id_wait(field[4], &id);
  }
  return ncclCommInitRank(&rank->comms[atoi(field[1])], atoi(field[3]), id, atoi(field[2]));
}

static ncclResult_t grow(struct rank *rank, char **field) {
  const bool joins = strcmp(field[0], "join") == 0;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclConfig_t *chosen = rank->later ? &config : NULL;
  ncclUniqueId id;
  config.blocking = 0;
  if (field[4]) id_wait(field[4], &id);
  const ncclResult_t result =
      joins ? ncclCommGrow(NULL, atoi(field[3]), &id, atoi(field[2]), &rank->comms[atoi(field[1])], chosen)
            : ncclCommGrow(rank->comms[atoi(field[1])], atoi(field[3]), field[4] ? &id : NULL, -1,
                           &rank->comms[atoi(field[2])], chosen);
  return rank->later && result == ncclInProgress ? ncclSuccess : result;
}

static ncclResult_t enter(struct rank *rank, char **field) {
  ncclUniqueId id;
  id_wait(field[4], &id);
  return ncclCommInitRank(&rank->comms[atoi(field[1])], atoi(field[3]), id, atoi(field[2]));
}

static ncclResult_t id_get(struct rank *rank, char **field) {
  ncclUniqueId id;
  const ncclResult_t result = ncclCommGetUniqueId(rank->comms[atoi(field[1])], &id);
  if (result == ncclSuccess) id_write(field[2], &id);
  return result;
}

static ncclResult_t touch(const char *path) {
  must(os_file_write(path, "1", 1), path);
  return ncclSuccess;
}

static ncclResult_t file_wait(const char *path) {
  while (access(path, F_OK) != 0) os_sleep_ms(10);
  return ncclSuccess;
}

static ncclResult_t count(const char *more) {
  static uint64_t noted;
  os_sleep_ms(noted == 0 ? 500 : 0); /* threads end */
  if (noted == 0) noted = os_alloc_live();
  while (os_alloc_live() > noted + (more ? strtoul(more, NULL, 10) : 0)) os_sleep_ms(10);
  return ncclSuccess;
}

static ncclResult_t act(struct rank *rank, char **field) {
  const char *what = field[0];
  const ncclComm_t *comm = &rank->comms[field[1] ? atoi(field[1]) % COMMS : 0];
  if (strcmp(what, "init") == 0) return init(rank, field);
  if (strcmp(what, "grow") == 0 || strcmp(what, "join") == 0) return grow(rank, field);
  if (strcmp(what, "enter") == 0) return enter(rank, field);
  if (strcmp(what, "id") == 0) return id_get(rank, field);
  if (strcmp(what, "sum") == 0) return sum(rank, *comm);
  if (strcmp(what, "suspend") == 0) return ncclCommSuspend(*comm, NCCL_SUSPEND_MEM);
  if (strcmp(what, "resume") == 0) return ncclCommResume(*comm);
  if (strcmp(what, "split") == 0) return ncclCommSplit(*comm, 0, 0, &rank->comms[atoi(field[2])], NULL);
  if (strcmp(what, "settle") == 0) return settle(*comm);
  if (strcmp(what, "end") == 0) return ncclCommDestroy(*comm);
  if (strcmp(what, "abort") == 0) return ncclCommAbort(*comm);
  if (strcmp(what, "touch") == 0) return touch(field[1]);
  if (strcmp(what, "wait") == 0) return file_wait(field[1]);
  if (strcmp(what, "count") == 0) return count(field[1]);
  if (strcmp(what, "die") == 0) kill(getpid(), SIGKILL);
  rank->later = rank->later || strcmp(what, "later") == 0;
  return strcmp(what, "later") == 0 ? ncclSuccess : ncclInternalError;
}

static void *rank_body(void *argument) {
  struct rank *rank = (struct rank *)argument;
  MUST(cudaSetDevice(rank->device));
  MUST(cudaStreamCreate(&rank->stream));
  MUST(cudaMalloc((void **)&rank->data, COUNT * sizeof(float)));
  rank->host = (float *)malloc(COUNT * sizeof(float));
  for (int i = 0; i < rank->action_count; i++) {
    char text[1024], *field[FIELDS + 1] = {NULL}, *rest = text;
    snprintf(text, sizeof text, "%s", rank->actions[i]);
    for (int k = 0; k < FIELDS && rest; k++) field[k] = strsep(&rest, ":");
    const ncclResult_t result = act(rank, field);
    if (result == ncclSuccess) printf("%s ok\n", rank->actions[i]);
    else printf("%s error %d: %s\n", rank->actions[i], (int)result, ncclGetLastError(NULL));
  }
  MUST(cudaFree(rank->data));
  cudaStreamDestroy(rank->stream); /* it may have the error of what it ran */
  free(rank->host);
  return NULL;
}

int main(int argc, char **argv) {
  static struct rank ranks[8];
  int rank_count = 0;
  setvbuf(stdout, NULL, _IOLBF, 0);
  alarm(60);
  for (int i = 1; i < argc; i++) {
    struct rank *rank = &ranks[rank_count++];
    rank->device = atoi(argv[i++]);
    rank->actions = &argv[i];
    for (; i < argc && strcmp(argv[i], "--") != 0; i++) rank->action_count++;
  }
  for (int i = 0; i < rank_count; i++) pthread_create(&ranks[i].thread, NULL, rank_body, &ranks[i]);
  for (int i = 0; i < rank_count; i++) pthread_join(ranks[i].thread, NULL);
  return 0;
}
