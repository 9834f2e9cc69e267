/* sendrecv_pair.c: one process, two devices. Each rank sends a block to the other and one to itself; sends
 * and receives of both ranks are in one group, so that none blocks another. */
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

enum { RANKS = 2, COUNT = 1000 };

static int value_of(int from, int to, int index) { return 1000000 * (from + 1) + 100000 * to + index; }

/* Fills the block for each peer on the device of `rank`. */
static void fill(int rank, int *send) {
  static int host[RANKS * COUNT];
  for (int peer = 0; peer < RANKS; peer++)
    for (int i = 0; i < COUNT; i++) host[peer * COUNT + i] = value_of(rank, peer, i);
  CUDACHECK(cudaMemcpy(send, host, sizeof host, cudaMemcpyHostToDevice));
}

static int wrong_values(int rank, const int *recv) {
  static int host[RANKS * COUNT];
  int wrong = 0;
  CUDACHECK(cudaMemcpy(host, recv, sizeof host, cudaMemcpyDeviceToHost));
  for (int peer = 0; peer < RANKS; peer++)
    for (int i = 0; i < COUNT; i++) wrong += host[peer * COUNT + i] != value_of(peer, rank, i);
  return wrong;
}

int main(void) {
  ncclComm_t comms[RANKS];
  cudaStream_t streams[RANKS];
  int *send[RANKS], *recv[RANKS], device_count, wrong = 0;
  CUDACHECK(cudaGetDeviceCount(&device_count));
  if (device_count < RANKS) {
    fprintf(stderr, "this program needs %d devices, there are %d\n", RANKS, device_count);
    return 1;
  }
  NCCLCHECK(ncclCommInitAll(comms, RANKS, NULL));
  for (int rank = 0; rank < RANKS; rank++) {
    CUDACHECK(cudaSetDevice(rank));
    CUDACHECK(cudaStreamCreate(&streams[rank]));
    CUDACHECK(cudaMalloc((void **)&send[rank], RANKS * COUNT * sizeof(int)));
    CUDACHECK(cudaMalloc((void **)&recv[rank], RANKS * COUNT * sizeof(int)));
    fill(rank, send[rank]);
  }

  NCCLCHECK(ncclGroupStart());
  for (int rank = 0; rank < RANKS; rank++)
    for (int peer = 0; peer < RANKS; peer++) {
      NCCLCHECK(ncclSend(send[rank] + peer * COUNT, COUNT, ncclInt, peer, comms[rank], streams[rank]));
      NCCLCHECK(ncclRecv(recv[rank] + peer * COUNT, COUNT, ncclInt, peer, comms[rank], streams[rank]));
    }
  NCCLCHECK(ncclGroupEnd());

  for (int rank = 0; rank < RANKS; rank++) {
    CUDACHECK(cudaSetDevice(rank));
    CUDACHECK(cudaStreamSynchronize(streams[rank]));
    wrong += wrong_values(rank, recv[rank]);
    CUDACHECK(cudaFree(send[rank]));
    CUDACHECK(cudaFree(recv[rank]));
    CUDACHECK(cudaStreamDestroy(streams[rank]));
    NCCLCHECK(ncclCommDestroy(comms[rank]));
  }
  printf("%d ranks sent %d integers to each other and to themselves: %d wrong\n", RANKS, COUNT, wrong);
  puts(wrong == 0 ? "ok" : "FAILED");
  return wrong != 0;
}
