/* init_all.c: one process drives all devices: ncclCommInitAll makes the communicators, and one grouped
 * all-reduce sums a buffer over all of them. */
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

enum { RANKS_MAX = 8, COUNT = 100000 };

static float host[COUNT];

static void fill(int rank, float *send) {
  for (int i = 0; i < COUNT; i++) host[i] = (float)(i % 1000 + rank);
  CUDACHECK(cudaMemcpy(send, host, sizeof host, cudaMemcpyHostToDevice));
}

/* Every value is a small integer, so the sum is exact in any order. */
static int wrong_values(int ranks, const float *recv) {
  int wrong = 0;
  CUDACHECK(cudaMemcpy(host, recv, sizeof host, cudaMemcpyDeviceToHost));
  for (int i = 0; i < COUNT; i++) wrong += host[i] != (float)(ranks * (i % 1000) + ranks * (ranks - 1) / 2);
  return wrong;
}

int main(void) {
  ncclComm_t comms[RANKS_MAX];
  cudaStream_t streams[RANKS_MAX];
  float *send[RANKS_MAX], *recv[RANKS_MAX];
  int ranks, version, wrong = 0;
  CUDACHECK(cudaGetDeviceCount(&ranks));
  if (ranks > RANKS_MAX) ranks = RANKS_MAX;
  NCCLCHECK(ncclGetVersion(&version));
  NCCLCHECK(ncclCommInitAll(comms, ranks, NULL));
  for (int rank = 0; rank < ranks; rank++) {
    CUDACHECK(cudaSetDevice(rank));
    CUDACHECK(cudaStreamCreate(&streams[rank]));
    CUDACHECK(cudaMalloc((void **)&send[rank], COUNT * sizeof(float)));
    CUDACHECK(cudaMalloc((void **)&recv[rank], COUNT * sizeof(float)));
    fill(rank, send[rank]);
  }

  NCCLCHECK(ncclGroupStart());
  for (int rank = 0; rank < ranks; rank++)
    NCCLCHECK(ncclAllReduce(send[rank], recv[rank], COUNT, ncclFloat, ncclSum, comms[rank], streams[rank]));
  NCCLCHECK(ncclGroupEnd());

  for (int rank = 0; rank < ranks; rank++) {
    CUDACHECK(cudaSetDevice(rank));
    CUDACHECK(cudaStreamSynchronize(streams[rank]));
    wrong += wrong_values(ranks, recv[rank]);
    CUDACHECK(cudaFree(send[rank]));
    CUDACHECK(cudaFree(recv[rank]));
    CUDACHECK(cudaStreamDestroy(streams[rank]));
    NCCLCHECK(ncclCommDestroy(comms[rank]));
  }
  printf("NCCL API %d: %d ranks summed %d floats each: %d wrong\n", version, ranks, COUNT, wrong);
  puts(wrong == 0 ? "ok" : "FAILED");
  return wrong != 0;
}
