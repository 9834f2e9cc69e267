/* thread_per_rank.c: one host thread per rank, as frameworks do it. Thread 0 gets the id, every thread makes
 * its own communicator with it and runs several collectives on its own stream, without other communication
 * between the threads. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include <cuda_runtime.h>
#include <nccl.h>

#define CUDACHECK(call)                                                                          \
  do {                                                                                           \
    cudaError_t error_ = (call);                                                                 \
    if (error_ != cudaSuccess) {                                                                 \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(error_)); \
      exit(1);                                                                                   \
    }                                                                                            \
  } while (0)
#define NCCLCHECK(call)                                                                               \
  do {                                                                                                \
    ncclResult_t result_ = (call);                                                                    \
    if (result_ != ncclSuccess) {                                                                     \
      fprintf(stderr, "%s:%d: %s: %s (%s)\n", __FILE__, __LINE__, #call, ncclGetErrorString(result_), \
              ncclGetLastError(NULL));                                                                \
      exit(1);                                                                                        \
    }                                                                                                 \
  } while (0)

enum { RANKS_MAX = 4, COUNT = 4096 };

struct rank {
  int rank, ranks, wrong;
  ncclUniqueId id;
  ncclComm_t comm;
  cudaStream_t stream;
  long long *block;  /* COUNT values of this rank */
  long long *blocks; /* COUNT values of each rank */
  long long *result; /* COUNT values */
};

static long long value_of(int rank, int index) { return 10000LL * (rank + 1) + index % 1000; }

static long long sum_of(int ranks, int index) {
  long long sum = 0;
  for (int rank = 0; rank < ranks; rank++) sum += value_of(rank, index);
  return sum;
}

static void prepare(struct rank *me) {
  static __thread long long host[COUNT];
  CUDACHECK(cudaSetDevice(me->rank));
  NCCLCHECK(ncclCommInitRank(&me->comm, me->ranks, me->id, me->rank));
  CUDACHECK(cudaStreamCreate(&me->stream));
  CUDACHECK(cudaMalloc((void **)&me->block, COUNT * sizeof(long long)));
  CUDACHECK(cudaMalloc((void **)&me->blocks, me->ranks * COUNT * sizeof(long long)));
  CUDACHECK(cudaMalloc((void **)&me->result, COUNT * sizeof(long long)));
  for (int i = 0; i < COUNT; i++) host[i] = value_of(me->rank, i);
  CUDACHECK(cudaMemcpy(me->block, host, sizeof host, cudaMemcpyHostToDevice));
}

/* Waits for the stream, and counts elements of `data` that are not `factor` times value_of or, if from < 0,
 * sum_of. */
static void expect(struct rank *me, const char *what, const long long *data, int from, long long factor) {
  static __thread long long host[COUNT];
  int wrong = 0;
  CUDACHECK(cudaMemcpyAsync(host, data, sizeof host, cudaMemcpyDeviceToHost, me->stream));
  CUDACHECK(cudaStreamSynchronize(me->stream));
  for (int i = 0; i < COUNT; i++)
    wrong += host[i] != factor * (from < 0 ? sum_of(me->ranks, i) : value_of(from, i));
  if (wrong > 0) fprintf(stderr, "rank %d: %s: %d wrong values\n", me->rank, what, wrong);
  me->wrong += wrong;
}

static void *run_rank(void *argument) {
  struct rank *me = (struct rank *)argument;
  const int root = me->ranks - 1;
  prepare(me);
  NCCLCHECK(ncclAllReduce(me->block, me->result, COUNT, ncclInt64, ncclSum, me->comm, me->stream));
  expect(me, "all-reduce", me->result, -1, 1);
  NCCLCHECK(ncclBroadcast(me->block, me->result, COUNT, ncclInt64, root, me->comm, me->stream));
  expect(me, "broadcast", me->result, root, 1);
  NCCLCHECK(ncclAllGather(me->block, me->blocks, COUNT, ncclInt64, me->comm, me->stream));
  for (int rank = 0; rank < me->ranks; rank++) expect(me, "all-gather", me->blocks + rank * COUNT, rank, 1);
  /* All ranks now hold the same blocks: block r summed over the ranks is `ranks` times what rank r has. */
  NCCLCHECK(ncclReduceScatter(me->blocks, me->result, COUNT, ncclInt64, ncclSum, me->comm, me->stream));
  expect(me, "reduce-scatter", me->result, me->rank, me->ranks);
  NCCLCHECK(ncclReduce(me->block, me->result, COUNT, ncclInt64, ncclSum, root, me->comm, me->stream));
  if (me->rank == root) expect(me, "reduce", me->result, -1, 1);
  CUDACHECK(cudaStreamSynchronize(me->stream));
  CUDACHECK(cudaFree(me->block));
  CUDACHECK(cudaFree(me->blocks));
  CUDACHECK(cudaFree(me->result));
  CUDACHECK(cudaStreamDestroy(me->stream));
  NCCLCHECK(ncclCommDestroy(me->comm));
  return NULL;
}

int main(void) {
  static struct rank all[RANKS_MAX];
  pthread_t threads[RANKS_MAX];
  ncclUniqueId id;
  int ranks, wrong = 0;
  CUDACHECK(cudaGetDeviceCount(&ranks));
  if (ranks > RANKS_MAX) ranks = RANKS_MAX;
  NCCLCHECK(ncclGetUniqueId(&id));
  for (int rank = 0; rank < ranks; rank++) {
    all[rank].rank = rank;
    all[rank].ranks = ranks;
    all[rank].id = id;
    if (pthread_create(&threads[rank], NULL, run_rank, &all[rank]) != 0) {
      fprintf(stderr, "no thread for rank %d\n", rank);
      return 1;
    }
  }
  for (int rank = 0; rank < ranks; rank++) {
    pthread_join(threads[rank], NULL);
    wrong += all[rank].wrong;
  }
  printf("%d threads, one a rank, ran five collectives over %d 64-bit integers: %d wrong\n", ranks, COUNT,
         wrong);
  puts(wrong == 0 ? "ok" : "FAILED");
  return wrong != 0;
}
