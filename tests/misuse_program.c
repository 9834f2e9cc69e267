/* misuse_program.c: one wrong or right program for each word, for tests/test_misuse.sh: what shows when a
 * process ends, is forked, or is one of several. Exits with status 2 where the library gives an error. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cuda_runtime.h>

#include "tutti.h"

enum { RANKS_MAX = 4, COUNT = 16 };

static int ranks, own; /* own: this process's rank under a launcher, else -1 */
static ncclComm_t comms[RANKS_MAX];
static cudaStream_t streams[RANKS_MAX];
static float *buffers[RANKS_MAX];

#define CHECK(call)                                                             \
  do {                                                                          \
    if ((call) != ncclSuccess) {                                                \
      fprintf(stderr, "rank %d: %s: %s\n", own, #call, ncclGetLastError(NULL)); \
      exit(2);                                                                  \
    }                                                                           \
  } while (0)

#define EACH(rank) for (int rank = own < 0 ? 0 : own; rank < (own < 0 ? ranks : own + 1); rank++)

static void world_open(void) {
  tutti_launch_t launch = {.size = sizeof launch};
  ncclUniqueId id;
  CHECK(tutti_launch_read(&launch));
  own = launch.rank_count > 1 ? launch.rank : -1;
  ranks = launch.rank_count > 1 ? launch.rank_count : 2;
  CHECK(tutti_launch_id(&launch, &id));
  CHECK(ncclGroupStart());
  EACH(rank) {
    cudaSetDevice(rank);
    CHECK(ncclCommInitRank(&comms[rank], ranks, id, rank));
    cudaStreamCreate(&streams[rank]);
    cudaMalloc((void **)&buffers[rank], COUNT * sizeof(float));
  }
  CHECK(ncclGroupEnd());
}

static void all_reduce(void) {
  CHECK(ncclGroupStart());
  EACH(rank) {
    CHECK(ncclAllReduce(buffers[rank], buffers[rank], COUNT, ncclFloat, ncclSum, comms[rank], streams[rank]));
  }
  CHECK(ncclGroupEnd());
}

/* Each rank but 1 has made its call: their files in the folder MISUSE_CALLED say so. */
static void called_path(int rank, char path[4096]) {
  snprintf(path, 4096, "%s/called.%d", getenv("MISUSE_CALLED"), rank);
}

static void called_note(void) {
  char path[4096];
  called_path(own, path);
  FILE *file = fopen(path, "w");
  if (file == NULL || fclose(file) != 0) exit(4);
}

static void others_await(void) {
  char path[4096];
  for (int rank = 0; rank < ranks; rank++) {
    called_path(rank, path);
    while (rank != 1 && access(path, F_OK) != 0) usleep(1000);
  }
}

static void wait_all(void) {
  EACH(rank) {
    cudaSetDevice(rank);
    if (cudaStreamSynchronize(streams[rank]) != cudaSuccess) exit(3);
  }
}

static void world_close(void) { EACH(rank) CHECK(ncclCommDestroy(comms[rank])); }

/* Runs in both processes; the child's status is the parent's. */
static int forked(void) {
  int status = 0;
  const pid_t child = fork();
  if (child == 0) {
    ncclUniqueId id;
    ncclComm_t comm;
    alarm(30);
    const ncclResult_t used =
        ncclAllReduce(buffers[0], buffers[0], COUNT, ncclFloat, ncclSum, comms[0], NULL);
    const int theirs = used == ncclInvalidUsage && ncclCommDestroy(comms[0]) == ncclInvalidUsage;
    const int made = ncclGetUniqueId(&id) == ncclSuccess && ncclCommInitRank(&comm, 1, id, 0) == ncclSuccess;
    exit(theirs && !made ? 0 : 4);
  }
  if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status)) return 5;
  return WEXITSTATUS(status);
}

int main(int count, char **words) {
  const char *word = count > 1 ? words[1] : "right";
  void *handle;
  void *memory;
  ncclRedOp_t op;
  float factor = 2;
  int status = 0;
  world_open();
  const bool early = strcmp(word, "exits_early") == 0;
  if (early && own == 1) others_await();
  if (early && own == 1) exit(0);
  if (strcmp(word, "sends") == 0 && own <= 0)
    CHECK(ncclSend(buffers[0], COUNT, ncclFloat, 1, comms[0], streams[0]));
  all_reduce();
  if (early) called_note();
  wait_all();
  if (strcmp(word, "forks") == 0) {
    status = forked();
    all_reduce();
    wait_all();
  }
  if (strcmp(word, "registers") == 0) CHECK(ncclCommRegister(comms[0], buffers[0], COUNT, &handle));
  if (strcmp(word, "operator") == 0)
    CHECK(ncclRedOpCreatePreMulSum(&op, &factor, ncclFloat, ncclScalarHostImmediate, comms[0]));
  if (strcmp(word, "memory") == 0) CHECK(ncclMemAlloc(&memory, 4096));
  if (strcmp(word, "finalizes") == 0) EACH(rank) CHECK(ncclCommFinalize(comms[rank]));
  if (strcmp(word, "group") == 0) {
    CHECK(ncclGroupStart());
    return 0;
  }
  if (strcmp(word, "fails") == 0) return 7;
  if (strcmp(word, "aborts") == 0) {
    CHECK(ncclCommAbort(comms[0]));
    return 0;
  }
  if (strcmp(word, "leaks") != 0 && strcmp(word, "finalizes") != 0) world_close();
  puts("end");
  return status;
}
