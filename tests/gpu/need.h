/* need.h: shared by the programs of this folder: a call that must succeed, and an all-reduce that proves that
 * communicators work. They use only CUDA and NCCL, so that they build for the emulator and for GPUs. */
#ifndef TUTTI_TESTS_GPU_NEED_H
#define TUTTI_TESTS_GPU_NEED_H

#include <cuda_runtime.h>
#include <nccl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef RANKS_MAX
#define RANKS_MAX 8
#endif

#define NEED(call)                                                                                         \
  do {                                                                                                     \
    const int status_ = (int)(call);                                                                       \
    if (status_ != 0) {                                                                                    \
      fprintf(stderr, "%s:%d: %s: %d (%s)\n", __FILE__, __LINE__, #call, status_, ncclGetLastError(NULL)); \
      exit(1);                                                                                             \
    }                                                                                                      \
  } while (0)

static inline int need_device_count(void) {
  int count = 0;
  NEED(cudaGetDeviceCount(&count));
  return count;
}

/* As many ranks as GPUs, or NEED_RANKS=N; if there are fewer GPUs, ranks share them, which takes
 * NCCL_MULTI_RANK_GPU_ENABLE=1. */
static inline int need_ranks(void) {
  const char *asked = getenv("NEED_RANKS");
  const int count = asked != NULL ? atoi(asked) : need_device_count();
  return count < RANKS_MAX ? count : RANKS_MAX;
}

static inline int need_shares(int rank_count) { return need_device_count() < rank_count; }

/* For programs that need `rank_count` ranks, before the first communicator. */
static inline void need_shared_devices(int rank_count) {
  if (need_shares(rank_count)) setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
}

/* Selects the rank's device. */
static inline void need_device(int rank) { NEED(cudaSetDevice(rank % need_device_count())); }

static inline void need_comms(ncclComm_t *comms, int rank_count) {
  int devices[RANKS_MAX] = {0};
  for (int rank = 0; rank < rank_count; rank++) devices[rank] = rank % need_device_count();
  NEED(ncclCommInitAll(comms, rank_count, devices));
}

/* New communicators of all ranks, one all-reduce, a check of its values, and their destruction. */
static inline void need_fresh_start(int rank_count) {
  enum { COUNT = 5000 };
  static int host[COUNT];
  ncclComm_t comms[RANKS_MAX];
  cudaStream_t streams[RANKS_MAX];
  int *data[RANKS_MAX];
  need_comms(comms, rank_count);
  for (int rank = 0; rank < rank_count; rank++) {
    for (int i = 0; i < COUNT; i++) host[i] = i + rank;
    need_device(rank);
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
    need_device(rank);
    NEED(cudaMemcpyAsync(host, data[rank], sizeof host, cudaMemcpyDeviceToHost, streams[rank]));
    NEED(cudaStreamSynchronize(streams[rank]));
    for (int i = 0; i < COUNT; i++) NEED(host[i] != i * rank_count + rank_count * (rank_count - 1) / 2);
    NEED(cudaFree(data[rank]));
    NEED(cudaStreamDestroy(streams[rank]));
  }
  for (int rank = 0; rank < rank_count; rank++) NEED(ncclCommDestroy(comms[rank]));
}

/* Over fibres: how much memory of devices this process has mapped, of others as of its own. */
static inline int mapped(void) {
  char line[512];
  int count = 0;
  FILE *maps = fopen("/proc/self/maps", "r");
  NEED(maps == NULL);
  while (fgets(line, sizeof line, maps) != NULL) count += strstr(line, "memfd:simt") != NULL;
  fclose(maps);
  return count;
}

#endif
