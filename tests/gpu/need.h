/* need.h: shared by the programs of this folder: a call that must succeed, and an all-reduce that proves that
 * communicators work. They use only CUDA and NCCL, so that they build for the emulator and for GPUs. */
#ifndef TUTTI_TESTS_GPU_NEED_H
#define TUTTI_TESTS_GPU_NEED_H

#include <cuda_runtime.h>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>

#define RANKS_MAX 8

#define NEED(call)                                                                                         \
  do {                                                                                                     \
    const int status_ = (int)(call);                                                                       \
    if (status_ != 0) {                                                                                    \
      fprintf(stderr, "%s:%d: %s: %d (%s)\n", __FILE__, __LINE__, #call, status_, ncclGetLastError(NULL)); \
      exit(1);                                                                                             \
    }                                                                                                      \
  } while (0)

static inline int need_ranks(void) {
  int count = 0;
  NEED(cudaGetDeviceCount(&count));
  return count < RANKS_MAX ? count : RANKS_MAX;
}

/* New communicators of all ranks, one all-reduce, a check of its values, and their destruction. */
static inline void need_fresh_start(int rank_count) {
  enum { COUNT = 5000 };
  static int host[COUNT];
  ncclComm_t comms[RANKS_MAX];
  cudaStream_t streams[RANKS_MAX];
  int *data[RANKS_MAX];
  NEED(ncclCommInitAll(comms, rank_count, NULL));
  for (int rank = 0; rank < rank_count; rank++) {
    for (int i = 0; i < COUNT; i++) host[i] = i + rank;
    NEED(cudaSetDevice(rank));
    NEED(cudaStreamCreateWithFlags(&streams[rank], cudaStreamNonBlocking));
    NEED(cudaMalloc((void **)&data[rank], sizeof host));
    NEED(cudaMemcpyAsync(data[rank], host, sizeof host, cudaMemcpyHostToDevice, streams[rank]));
    NEED(cudaStreamSynchronize(streams[rank]));
  }
  NEED(ncclGroupStart());
  for (int rank = 0; rank < rank_count; rank++)
    NEED(ncclAllReduce(data[rank], data[rank], COUNT, ncclInt32, ncclSum, comms[rank], streams[rank]));
  NEED(ncclGroupEnd());
  for (int rank = 0; rank < rank_count; rank++) {
    NEED(cudaSetDevice(rank));
    NEED(cudaMemcpyAsync(host, data[rank], sizeof host, cudaMemcpyDeviceToHost, streams[rank]));
    NEED(cudaStreamSynchronize(streams[rank]));
    for (int i = 0; i < COUNT; i++) NEED(host[i] != i * rank_count + rank_count * (rank_count - 1) / 2);
    NEED(cudaFree(data[rank]));
    NEED(cudaStreamDestroy(streams[rank]));
  }
  for (int rank = 0; rank < rank_count; rank++) NEED(ncclCommDestroy(comms[rank]));
}

#endif
