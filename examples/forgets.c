/* forgets.c: a program with a bug: one process drives all devices, and omits rank 2 from an all-reduce. On
 * GPUs it hangs. docs/hung-job.md shows the emulator's report. */
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

enum { RANKS_MAX = 8, FORGOTTEN = 2, COUNT = 100000 };

int main(void) {
  ncclComm_t comms[RANKS_MAX];
  cudaStream_t streams[RANKS_MAX];
  float *data[RANKS_MAX];
  int ranks;
  CUDACHECK(cudaGetDeviceCount(&ranks));
  if (ranks > RANKS_MAX) ranks = RANKS_MAX;
  NCCLCHECK(ncclCommInitAll(comms, ranks, NULL));
  for (int rank = 0; rank < ranks; rank++) {
    CUDACHECK(cudaSetDevice(rank));
    CUDACHECK(cudaStreamCreate(&streams[rank]));
    CUDACHECK(cudaMalloc((void **)&data[rank], COUNT * sizeof(float)));
    CUDACHECK(cudaMemset(data[rank], 0, COUNT * sizeof(float)));
  }

  NCCLCHECK(ncclGroupStart());
  for (int rank = 0; rank < ranks; rank++) {
    if (rank == FORGOTTEN) continue; /* the bug */
    NCCLCHECK(ncclAllReduce(data[rank], data[rank], COUNT, ncclFloat, ncclSum, comms[rank], streams[rank]));
  }
  NCCLCHECK(ncclGroupEnd());

  for (int rank = 0; rank < ranks; rank++) CUDACHECK(cudaStreamSynchronize(streams[rank]));
  puts("ok");
  return 0;
}
