/* one_seed.c: the median time of an all-reduce of 1 MiB of 4 ranks, from the call to the end of the stream,
 * in us: of one process that drives all (an argument is given), or of four, started by `tutti launch`. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cuda_runtime.h>
#include <nccl.h>
#include <tutti.h>

enum { RANKS = 4, ROUNDS = 100, COUNT = 1 << 18 };

struct rank {
  ncclComm_t comm;
  cudaStream_t stream;
  float *in, *out;
};

static void must(int error, const char *what) {
  if (error == 0) return;
  fprintf(stderr, "%s: error %d: %s\n", what, error, ncclGetLastError(NULL));
  exit(1);
}

static double now_us(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

static int compare(const void *left, const void *right) {
  const double a = *(const double *)left, b = *(const double *)right;
  return (a > b) - (a < b);
}

static void rank_open(struct rank *rank, int device) {
  must(cudaSetDevice(device), "cudaSetDevice");
  must(cudaStreamCreate(&rank->stream), "cudaStreamCreate");
  must(cudaMalloc((void **)&rank->in, COUNT * sizeof(float)), "cudaMalloc");
  must(cudaMalloc((void **)&rank->out, COUNT * sizeof(float)), "cudaMalloc");
}

static double one_round(struct rank *ranks, int own) {
  const double begin = now_us();
  must(ncclGroupStart(), "ncclGroupStart");
  for (int i = 0; i < own; i++)
    must(ncclAllReduce(ranks[i].in, ranks[i].out, COUNT, ncclFloat, ncclSum, ranks[i].comm, ranks[i].stream),
         "ncclAllReduce");
  must(ncclGroupEnd(), "ncclGroupEnd");
  for (int i = 0; i < own; i++) must(cudaStreamSynchronize(ranks[i].stream), "cudaStreamSynchronize");
  return now_us() - begin;
}

int main(int argc, char **argv) {
  (void)argv;
  struct rank ranks[RANKS];
  ncclComm_t comms[RANKS];
  double times[ROUNDS];
  ncclUniqueId id;
  tutti_launch_t launch = {.size = sizeof launch};
  const int own = argc > 1 ? RANKS : 1;
  must(tutti_launch_read(&launch), "tutti_launch_read");
  for (int i = 0; i < own; i++) rank_open(&ranks[i], own > 1 ? i : launch.local_rank);
  if (own > 1) must(ncclCommInitAll(comms, RANKS, NULL), "ncclCommInitAll");
  if (own == 1) must(tutti_launch_id(&launch, &id), "tutti_launch_id");
  if (own == 1) must(ncclCommInitRank(&comms[0], RANKS, id, launch.rank), "ncclCommInitRank");
  for (int i = 0; i < own; i++) ranks[i].comm = comms[i];
  for (int round = 0; round < ROUNDS; round++) times[round] = one_round(ranks, own);
  qsort(times, ROUNDS, sizeof times[0], compare);
  if (launch.rank == 0) printf("%.0f\n", times[ROUNDS / 2]);
  for (int i = 0; i < own; i++) must(ncclCommDestroy(comms[i]), "ncclCommDestroy");
  return 0;
}
