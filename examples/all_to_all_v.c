/* all_to_all_v.c: every rank has a message of its own length for every rank, some empty, as when tokens are
 * sent to experts. All sends and receives are in one group. */
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

enum { RANKS_MAX = 6, COUNT_MAX = 9000 };

/* Elements from `from` to `to`: 0, or up to COUNT_MAX. */
static int count_of(int from, int to) { return (from * 5 + to * 3) % 7 * 1499; }

static short value_of(int from, int to, int index) { return (short)(from * 5000 + to * 700 + index % 601); }

/* Elements before the message between `rank` and `peer` in the send or the receive buffer of `rank`. */
static int offset_of(int rank, int peer, int sends) {
  int offset = 0;
  for (int other = 0; other < peer; other++) offset += sends ? count_of(rank, other) : count_of(other, rank);
  return offset;
}

static void fill(int rank, int ranks, short *send) {
  static short host[RANKS_MAX * COUNT_MAX];
  for (int peer = 0; peer < ranks; peer++)
    for (int i = 0; i < count_of(rank, peer); i++)
      host[offset_of(rank, peer, 1) + i] = value_of(rank, peer, i);
  CUDACHECK(cudaMemcpy(send, host, offset_of(rank, ranks, 1) * sizeof(short), cudaMemcpyHostToDevice));
}

static int wrong_values(int rank, int ranks, const short *recv) {
  static short host[RANKS_MAX * COUNT_MAX];
  int wrong = 0;
  CUDACHECK(cudaMemcpy(host, recv, offset_of(rank, ranks, 0) * sizeof(short), cudaMemcpyDeviceToHost));
  for (int peer = 0; peer < ranks; peer++)
    for (int i = 0; i < count_of(peer, rank); i++)
      wrong += host[offset_of(rank, peer, 0) + i] != value_of(peer, rank, i);
  return wrong;
}

/* The 16-bit values use a type of the same width: nothing is computed with them. */
static void exchange(int rank, int ranks, short *send, short *recv, ncclComm_t comm, cudaStream_t stream) {
  for (int peer = 0; peer < ranks; peer++) {
    const int send_count = count_of(rank, peer), recv_count = count_of(peer, rank);
    if (send_count > 0)
      NCCLCHECK(ncclSend(send + offset_of(rank, peer, 1), send_count, ncclFloat16, peer, comm, stream));
    if (recv_count > 0)
      NCCLCHECK(ncclRecv(recv + offset_of(rank, peer, 0), recv_count, ncclFloat16, peer, comm, stream));
  }
}

int main(void) {
  ncclComm_t comms[RANKS_MAX];
  cudaStream_t streams[RANKS_MAX];
  short *send[RANKS_MAX], *recv[RANKS_MAX];
  int ranks, wrong = 0, total = 0;
  CUDACHECK(cudaGetDeviceCount(&ranks));
  if (ranks > RANKS_MAX) ranks = RANKS_MAX;
  NCCLCHECK(ncclCommInitAll(comms, ranks, NULL));
  for (int rank = 0; rank < ranks; rank++) {
    CUDACHECK(cudaSetDevice(rank));
    CUDACHECK(cudaStreamCreate(&streams[rank]));
    CUDACHECK(cudaMalloc((void **)&send[rank], RANKS_MAX * COUNT_MAX * sizeof(short)));
    CUDACHECK(cudaMalloc((void **)&recv[rank], RANKS_MAX * COUNT_MAX * sizeof(short)));
    fill(rank, ranks, send[rank]);
    total += offset_of(rank, ranks, 1);
  }

  NCCLCHECK(ncclGroupStart());
  for (int rank = 0; rank < ranks; rank++)
    exchange(rank, ranks, send[rank], recv[rank], comms[rank], streams[rank]);
  NCCLCHECK(ncclGroupEnd());

  for (int rank = 0; rank < ranks; rank++) {
    CUDACHECK(cudaSetDevice(rank));
    CUDACHECK(cudaStreamSynchronize(streams[rank]));
    wrong += wrong_values(rank, ranks, recv[rank]);
    CUDACHECK(cudaFree(send[rank]));
    CUDACHECK(cudaFree(recv[rank]));
    CUDACHECK(cudaStreamDestroy(streams[rank]));
    NCCLCHECK(ncclCommDestroy(comms[rank]));
  }
  printf("%d ranks exchanged %d elements in messages of uneven length: %d wrong\n", ranks, total, wrong);
  puts(wrong == 0 ? "ok" : "FAILED");
  return wrong != 0;
}
