/* failing_program.c: ranks that are threads of one process, and a bug: the run deadlocks, and every thread
 * gets an error and goes on to clean up, as a program does. test_repeat.sh compares what such runs leave
 * behind.
 *
 *   failing_program absent | cycle | late
 *
 * Prints each rank's result; status 1 if a rank got an error, 2 for an unknown scenario. */
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cuda_runtime.h>
#include <nccl.h>

#include "must.h"

#define RANKS 4
#define ELEMENTS 30000

struct rank {
  int rank;
  ncclComm_t comm, other;
  cudaStream_t stream;
  float *in, *out;
  cudaError_t waited;
  ncclResult_t error;
};

static const char *scenario;
static ncclUniqueId ids[2];

static void sum(struct rank *self, ncclComm_t comm, size_t count) {
  const ncclResult_t result =
      ncclAllReduce(self->in, self->out, count, ncclFloat, ncclSum, comm, self->stream);
  if (result != ncclSuccess) self->error = result;
}

static void calls(struct rank *self) {
  const bool odd = self->rank % 2 != 0;
  sum(self, self->comm, 1000);
  if (strcmp(scenario, "absent") == 0 && self->rank == 2) return;
  if (strcmp(scenario, "cycle") == 0) {
    sum(self, odd ? self->other : self->comm, 500);
    sum(self, odd ? self->comm : self->other, 500);
    return;
  }
  if (strcmp(scenario, "late") == 0 && self->rank == 1) MUST(cudaStreamSynchronize(self->stream));
  if (strcmp(scenario, "late") == 0 && self->rank == 1) return;
  sum(self, self->comm, ELEMENTS);
}

static void *rank_thread(void *argument) {
  struct rank *self = (struct rank *)argument;
  ncclResult_t error = ncclSuccess;
  MUST(cudaSetDevice(self->rank));
  MUST(ncclCommInitRank(&self->comm, RANKS, ids[0], self->rank));
  MUST(ncclCommInitRank(&self->other, RANKS, ids[1], self->rank));
  MUST(cudaStreamCreate(&self->stream));
  MUST(cudaMalloc((void **)&self->in, ELEMENTS * sizeof(float)));
  MUST(cudaMalloc((void **)&self->out, ELEMENTS * sizeof(float)));
  calls(self);
  self->waited = cudaStreamSynchronize(self->stream);
  ncclCommGetAsyncError(self->comm, &error);
  if (self->error == ncclSuccess) self->error = error;
  ncclCommAbort(self->comm);
  ncclCommAbort(self->other);
  cudaStreamDestroy(self->stream);
  return NULL;
}

int main(int argc, char **argv) {
  static const char *const scenarios[] = {"absent", "cycle", "late"};
  static struct rank ranks[RANKS];
  pthread_t threads[RANKS];
  bool known = false, failed = false;
  for (int i = 0; i < 3; i++) known = known || (argc == 2 && strcmp(argv[1], scenarios[i]) == 0);
  if (!known) return 2;
  scenario = argv[1];
  MUST(ncclGetUniqueId(&ids[0]));
  MUST(ncclGetUniqueId(&ids[1]));
  for (int i = 0; i < RANKS; i++) {
    ranks[i].rank = i;
    if (i > 0) must(pthread_create(&threads[i], NULL, rank_thread, &ranks[i]) == 0, "a thread");
  }
  rank_thread(&ranks[0]);
  for (int i = 1; i < RANKS; i++) pthread_join(threads[i], NULL);
  for (int i = 0; i < RANKS; i++) {
    printf("rank %d: %s, %s\n", i, cudaGetErrorString(ranks[i].waited), ncclGetErrorString(ranks[i].error));
    failed = failed || ranks[i].waited != cudaSuccess || ranks[i].error != ncclSuccess;
  }
  return failed;
}
