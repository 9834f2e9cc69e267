/* all_gather_v.c: every rank has a block of its own length, some empty, and all ranks get all blocks in
 * order. One broadcast per block, all in one group; in the second round each rank works in place. */
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

enum { RANKS_MAX = 8, COUNT_MAX = 8 * 30000 };

/* Elements in a rank's block. */
static int count_of(int rank) { return (rank * 3 + 1) % 4 * 7919 + (rank % 4 == 1 ? 0 : rank); }

static int offset_of(int rank) {
  int offset = 0;
  for (int other = 0; other < rank; other++) offset += count_of(other);
  return offset;
}

static float value_of(int rank, int index) { return (float)(rank * 1000000 + index); }

/* A rank's own block, at `send`. */
static void fill(int rank, float *send) {
  static float host[COUNT_MAX];
  for (int i = 0; i < count_of(rank); i++) host[i] = value_of(rank, i);
  CUDACHECK(cudaMemcpy(send, host, count_of(rank) * sizeof(float), cudaMemcpyHostToDevice));
}

static int wrong_values(int ranks, const float *recv) {
  static float host[COUNT_MAX];
  int wrong = 0;
  CUDACHECK(cudaMemcpy(host, recv, offset_of(ranks) * sizeof(float), cudaMemcpyDeviceToHost));
  for (int rank = 0; rank < ranks; rank++)
    for (int i = 0; i < count_of(rank); i++) wrong += host[offset_of(rank) + i] != value_of(rank, i);
  return wrong;
}

/* Broadcasts the root's block to its place in every rank's buffer. */
static void all_gather_v(int rank, int ranks, const float *send, float *recv, ncclComm_t comm,
                         cudaStream_t stream) {
  for (int root = 0; root < ranks; root++) {
    float *block = recv + offset_of(root);
    NCCLCHECK(
        ncclBroadcast(rank == root ? send : block, block, count_of(root), ncclFloat32, root, comm, stream));
  }
}

int main(void) {
  ncclComm_t comms[RANKS_MAX];
  cudaStream_t streams[RANKS_MAX];
  float *send[RANKS_MAX], *recv[RANKS_MAX];
  int ranks, wrong = 0;
  CUDACHECK(cudaGetDeviceCount(&ranks));
  if (ranks > RANKS_MAX) ranks = RANKS_MAX;
  NCCLCHECK(ncclCommInitAll(comms, ranks, NULL));
  for (int rank = 0; rank < ranks; rank++) {
    CUDACHECK(cudaSetDevice(rank));
    CUDACHECK(cudaStreamCreate(&streams[rank]));
    CUDACHECK(cudaMalloc((void **)&send[rank], COUNT_MAX * sizeof(float)));
    CUDACHECK(cudaMalloc((void **)&recv[rank], COUNT_MAX * sizeof(float)));
  }

  for (int in_place = 0; in_place < 2; in_place++) {
    for (int rank = 0; rank < ranks; rank++) {
      CUDACHECK(cudaSetDevice(rank));
      CUDACHECK(cudaMemset(recv[rank], 0xff, COUNT_MAX * sizeof(float)));
      fill(rank, in_place ? recv[rank] + offset_of(rank) : send[rank]);
      CUDACHECK(cudaDeviceSynchronize());
    }
    NCCLCHECK(ncclGroupStart());
    for (int rank = 0; rank < ranks; rank++)
      all_gather_v(rank, ranks, in_place ? recv[rank] + offset_of(rank) : send[rank], recv[rank], comms[rank],
                   streams[rank]);
    NCCLCHECK(ncclGroupEnd());
    for (int rank = 0; rank < ranks; rank++) {
      CUDACHECK(cudaSetDevice(rank));
      CUDACHECK(cudaStreamSynchronize(streams[rank]));
      wrong += wrong_values(ranks, recv[rank]);
    }
  }

  for (int rank = 0; rank < ranks; rank++) {
    CUDACHECK(cudaFree(send[rank]));
    CUDACHECK(cudaFree(recv[rank]));
    CUDACHECK(cudaStreamDestroy(streams[rank]));
    NCCLCHECK(ncclCommDestroy(comms[rank]));
  }
  printf("%d ranks gathered %d elements in blocks of uneven length: %d wrong\n", ranks, offset_of(ranks),
         wrong);
  puts(wrong == 0 ? "ok" : "FAILED");
  return wrong != 0;
}
