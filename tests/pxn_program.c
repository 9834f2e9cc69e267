/* pxn_program.c: four ranks of a launcher, using only the public API, two hosts of two: rank 0 sends a series
 * of messages to rank 2, through rank 1 if the settings say so, while rank 1 does not take part in them:
 *
 *   pxn_program MODE FOLDER
 *               stay     rank 1 waits until rank 2 has received everything, outside of any call
 *               destroy  rank 1 destroys its communicator after the first message, and stays
 *               exit     the same, and returns from main at once
 *               quit     the same, and is killed; the series does not end
 *               idle     as stay; then rank 1 prints how much of five seconds its process has used the CPU,
 * and rank 0 stays until then
 *
 * In FOLDER, which must be empty, the ranks signal their progress outside of any call. Every rank prints
 * `rank R ok`, or `rank R error SENTENCE`. Status: 0 ok, 1 wrong data, 3 an error. */
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cuda_runtime.h>
#include <nccl.h>
#include <tutti.h>

enum { MESSAGES = 12, COUNT = 60000, PAUSE_US = 20000, IDLE_SECONDS = 5 };

static struct {
  tutti_launch_t launch;
  ncclComm_t comm;
  cudaStream_t stream;
  uint32_t *data, host[COUNT];
  const char *mode, *folder;
} job;

/* A mark is a file; waiting ranks poll for it every ten milliseconds. */
static void mark_path(const char *name, char path[4096]) { snprintf(path, 4096, "%s/%s", job.folder, name); }

static void mark_set(const char *name) {
  char path[4096];
  mark_path(name, path);
  FILE *file = fopen(path, "w");
  if (file != NULL) fclose(file);
}

static void mark_await(const char *name) {
  char path[4096];
  mark_path(name, path);
  while (access(path, F_OK) != 0) usleep(10000);
}

static bool mode_is(const char *mode) { return strcmp(job.mode, mode) == 0; }

static int tell(ncclResult_t result) {
  if (result == ncclSuccess) return 0;
  printf("rank %d error %s\n", job.launch.rank, ncclGetLastError(NULL));
  fflush(stdout);
  return 3;
}

/* The result of the last launch, from the stream and the communicator. */
static ncclResult_t settle(ncclResult_t launched) {
  ncclResult_t state = ncclSuccess;
  if (launched != ncclSuccess) return launched;
  if (cudaStreamSynchronize(job.stream) == cudaSuccess) return ncclSuccess;
  ncclCommGetAsyncError(job.comm, &state);
  return state != ncclSuccess ? state : ncclSystemError;
}

static ncclResult_t pass(int peer, bool sends) {
  return settle(sends ? ncclSend(job.data, COUNT, ncclUint32, peer, job.comm, job.stream)
                      : ncclRecv(job.data, COUNT, ncclUint32, peer, job.comm, job.stream));
}

static bool sends_continue(uint32_t message) { return message < MESSAGES || mode_is("quit"); }

static ncclResult_t send_all(void) {
  for (uint32_t message = 0; sends_continue(message); message++) {
    for (uint32_t i = 0; i < COUNT; i++) job.host[i] = message * 1000003u + i;
    cudaMemcpy(job.data, job.host, sizeof job.host, cudaMemcpyHostToDevice);
    ncclResult_t result = pass(2, true);
    if (result == ncclSuccess && message == 0) result = pass(1, true);
    if (result != ncclSuccess) return result;
    usleep(PAUSE_US);
  }
  return ncclSuccess;
}

static int receive_all(void) {
  for (uint32_t message = 0; sends_continue(message); message++) {
    const ncclResult_t result = pass(0, false);
    if (result != ncclSuccess) return tell(result);
    cudaMemcpy(job.host, job.data, sizeof job.host, cudaMemcpyDeviceToHost);
    for (uint32_t i = 0; i < COUNT; i++)
      if (job.host[i] != message * 1000003u + i) return 1;
  }
  return 0;
}

static double computed_seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void stand_by(void) {
  mark_await("received");
  if (!mode_is("idle")) return;
  const double before = computed_seconds();
  sleep(IDLE_SECONDS);
  printf("rank 1 idle %.4f\n", (computed_seconds() - before) / IDLE_SECONDS);
  mark_set("idled");
}

static int beside(void) {
  const ncclResult_t result = pass(0, false);
  if (result != ncclSuccess) return tell(result);
  if (!mode_is("stay") && !mode_is("idle")) {
    ncclCommDestroy(job.comm);
    job.comm = NULL;
  }
  if (mode_is("quit")) kill(getpid(), SIGKILL);
  if (!mode_is("exit")) stand_by();
  return 0;
}

static int run(void) {
  switch (job.launch.rank) {
    case 0: {
      const int status = tell(send_all());
      if (mode_is("idle")) mark_await("idled");
      return status;
    }
    case 1: return beside();
    case 2: {
      const int status = receive_all();
      mark_set("received");
      return status;
    }
    default: return 0;
  }
}

int main(int count, char **arguments) {
  if (count != 3) return 2;
  job.mode = arguments[1];
  job.folder = arguments[2];
  job.launch.size = sizeof job.launch;
  ncclUniqueId id;
  if (tutti_launch_read(&job.launch) != ncclSuccess || job.launch.rank_count != 4) return 2;
  cudaSetDevice(job.launch.local_rank);
  cudaStreamCreate(&job.stream);
  cudaMalloc((void **)&job.data, sizeof job.host);
  if (tell(tutti_launch_id(&job.launch, &id)) != 0) return 3;
  if (tell(ncclCommInitRank(&job.comm, job.launch.rank_count, id, job.launch.rank)) != 0) return 3;
  const int status = run();
  if (status != 0) ncclCommAbort(job.comm);
  else if (job.comm != NULL) ncclCommDestroy(job.comm);
  if (status != 3) printf("rank %d %s\n", job.launch.rank, status == 0 ? "ok" : "wrong");
  return status;
}
