/* ending_program.c: a rank of a job whose processes end, or hang, as asked; `tutti explain` reads the
 * records. Started by `tutti launch`.
 *
 *   ending_program ENDING     clean, exit3, between, send_first; never: rank 2 calls nothing; busy, asleep,
 *                             stopped: rank 2 computes, sleeps or is stopped after its second call; left:
 *                             rank 1 sends to rank 0, stops it before it has received, and exits with status
 *                             0; left_idle: the same without the message
 *
 * Without a launcher two ranks, a thread each, which main joins: `crossed`: they call on two communicators in
 * opposite orders; `both_send`: each sends before it receives; `exit_inside`: rank 1 calls exit(3) while the
 * others' threads are in calls of the library: rank 0's waits for it. */
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cuda_runtime.h>
#include <nccl.h>
#include <tutti.h>

#include "must.h"

static void exchange(int rank, float *data, ncclComm_t comm, cudaStream_t stream) {
  MUST(ncclSend(data, 100000, ncclFloat, rank ^ 1, comm, stream));
  MUST(cudaStreamSynchronize(stream));
}

/* In guarded mode nothing moves while rank 1's thread is not in a waiting call. */
static void leave(bool idle, int rank, float *data, ncclComm_t comm, cudaStream_t stream) {
  int process = rank == 0 ? (int)getpid() : 0;
  MUST(cudaMemcpy(data, &process, sizeof process, cudaMemcpyHostToDevice));
  MUST(ncclBroadcast(data, data, 1, ncclInt32, 0, comm, stream));
  MUST(cudaStreamSynchronize(stream));
  MUST(cudaMemcpy(&process, data, sizeof process, cudaMemcpyDeviceToHost));
  while (idle && rank == 0) pause();
  if (rank == 0) MUST(ncclRecv(data, 100000, ncclFloat, 1, comm, stream));
  else if (!idle) MUST(ncclSend(data, 100000, ncclFloat, 0, comm, stream));
  MUST(cudaStreamSynchronize(stream));
  if (rank == 1) kill(process, SIGSTOP);
  exit(0);
}

static volatile unsigned busy;

static void steps(const char *ending, int rank, float *data, ncclComm_t comm, cudaStream_t stream) {
  for (int step = 0; step < 3; step++) {
    MUST(ncclAllReduce(data, data, 1024, ncclFloat, ncclSum, comm, stream));
    while (strcmp(ending, "busy") == 0 && rank == 2 && step == 1) busy += 1;
    while (strcmp(ending, "asleep") == 0 && rank == 2 && step == 1) pause();
    if (strcmp(ending, "stopped") == 0 && rank == 2 && step == 1) raise(SIGSTOP);
    MUST(cudaStreamSynchronize(stream));
    if (strcmp(ending, "exit3") == 0 && rank == 2 && step == 1) exit(3);
    if (strcmp(ending, "between") != 0 || step != 1) continue;
    puts("between");
    fflush(stdout);
    for (;;) pause();
  }
}

static void launched(const char *ending) {
  tutti_launch_t launch = {.size = sizeof launch};
  ncclUniqueId id;
  ncclComm_t comm;
  cudaStream_t stream;
  float *data;
  MUST(tutti_launch_read(&launch));
  MUST(cudaSetDevice(launch.local_rank));
  MUST(tutti_launch_id(&launch, &id));
  MUST(ncclCommInitRank(&comm, launch.rank_count, id, launch.rank));
  MUST(cudaStreamCreate(&stream));
  MUST(cudaMalloc((void **)&data, 1 << 20));
  while (strcmp(ending, "never") == 0 && launch.rank == 2) pause();
  if (strcmp(ending, "send_first") == 0) exchange(launch.rank, data, comm, stream);
  if (strncmp(ending, "left", 4) == 0) leave(ending[4] != '\0', launch.rank, data, comm, stream);
  steps(ending, launch.rank, data, comm, stream);
  MUST(ncclCommDestroy(comm));
}

static ncclComm_t pairs[2][2]; /* by communicator and rank */

static bool sends;

/* The rank's data on its device, and its stream. */
static float *rank_open(int rank, cudaStream_t *stream) {
  float *data;
  MUST(cudaSetDevice(rank));
  MUST(cudaStreamCreate(stream));
  MUST(cudaMalloc((void **)&data, 1 << 20));
  return data;
}

static void *thread_rank(void *argument) {
  const int rank = *(const int *)argument;
  cudaStream_t stream;
  float *data = rank_open(rank, &stream);
  if (sends) MUST(ncclSend(data, 100000, ncclFloat, rank ^ 1, pairs[0][rank], stream));
  for (int i = 0; i < 2 && !sends; i++)
    MUST(ncclAllReduce(data, data, 1024, ncclFloat, ncclSum, pairs[i ^ rank][rank], stream));
  cudaStreamSynchronize(stream); /* fails with the deadlock */
  return NULL;
}

/* Rank 0's thread waits for rank 1; rank 1's leaves after a time of its own. */
static void *thread_until_exit(void *argument) {
  const int rank = *(const int *)argument;
  cudaStream_t stream;
  float *data = rank_open(rank, &stream);
  for (int step = 0;; step++) {
    if (rank == 1 && step == 1 + getpid() % 7) exit(3);
    if (ncclAllReduce(data, data, 1024, ncclFloat, ncclSum, pairs[0][rank], stream) != ncclSuccess) pause();
    if (step % 2 == 0 && cudaStreamSynchronize(stream) != cudaSuccess) pause();
  }
}

static void threads(void *(*run)(void *)) {
  pthread_t threads[2];
  const int ranks[2] = {0, 1};
  MUST(ncclCommInitAll(pairs[0], 2, NULL));
  MUST(ncclCommInitAll(pairs[1], 2, NULL));
  for (int i = 0; i < 2; i++)
    must(pthread_create(&threads[i], NULL, run, (void *)&ranks[i]) == 0, "pthread_create");
  for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
  _exit(1);
}

int main(int argc, char **argv) {
  if (argc != 2) return 2;
  sends = strcmp(argv[1], "both_send") == 0;
  if (sends || strcmp(argv[1], "crossed") == 0) threads(thread_rank);
  if (strcmp(argv[1], "exit_inside") == 0) threads(thread_until_exit);
  launched(argv[1]);
  return 0;
}
