/* pxn_program.c: four ranks of a launcher's, by the public calls alone, two hosts of two: rank 0 sends a
 * train of messages to rank 2, through rank 1 where the settings say so, while rank 1 takes no part in
 * them:
 *
 *   pxn_program MODE  stay     waits until the last message has come, outside of any call
 *                       destroy  destroys its communicator behind the first message, and stays
 *                       exit     the same, and returns from main at once
 *                       quit     the same, and ends without a word
 *                       idle     as stay; all ranks wait for six seconds behind the last message, and rank 1
 *                                tells the time that its process has computed meanwhile
 *
 * Every rank prints `rank R ok`, or `rank R error SENTENCE`. Status: 0 ok, 1 wrong data, 3 an error. */
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

enum { MESSAGES = 12, COUNT = 60000, PAUSE_US = 20000, IDLE_SECONDS = 6 };

static struct {
  tutti_launch_t launch;
  ncclComm_t comm;
  cudaStream_t stream;
  uint32_t *data, host[COUNT];
  const char *mode;
} job;

static int tell(ncclResult_t result) {
  if (result == ncclSuccess) return 0;
  printf("rank %d error %s\n", job.launch.rank, ncclGetLastError(NULL));
  fflush(stdout);
  return 3;
}

/* The result of what was launched last, as the stream and the communicator tell it. */
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

static ncclResult_t send_all(void) {
  for (uint32_t message = 0; message < MESSAGES; message++) {
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
  for (uint32_t message = 0; message < MESSAGES; message++) {
    const ncclResult_t result = pass(0, false);
    if (result != ncclSuccess) return tell(result);
    cudaMemcpy(job.host, job.data, sizeof job.host, cudaMemcpyDeviceToHost);
    for (uint32_t i = 0; i < COUNT; i++)
      if (job.host[i] != message * 1000003u + i) return 1;
  }
  return 0;
}

static bool mode_is(const char *mode) { return strcmp(job.mode, mode) == 0; }

static double computed_seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* All messages take a third of this. */
static void stand_by(void) {
  sleep(1);
  if (!mode_is("idle")) return;
  const double before = computed_seconds();
  sleep(IDLE_SECONDS - 1);
  printf("rank 1 idle %.4f\n", (computed_seconds() - before) / (IDLE_SECONDS - 1));
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
      if (mode_is("idle")) sleep(IDLE_SECONDS);
      return status;
    }
    case 1: return beside();
    case 2: return receive_all();
    default: return 0;
  }
}

int main(int count, char **arguments) {
  if (count != 2) return 2;
  job.mode = arguments[1];
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
