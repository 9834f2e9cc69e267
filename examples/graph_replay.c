/* graph_replay.c: copy in, all-reduce and copy out are captured once on each device and replayed a hundred
 * times, each time with new input in the same host memory. */
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

enum { RANKS_MAX = 4, COUNT = 2048, REPLAYS = 100 };

struct rank {
  ncclComm_t comm;
  cudaStream_t stream;
  cudaGraphExec_t graph;
  unsigned *host_in, *host_out; /* pinned, COUNT values each: the graph reads and writes them */
  unsigned *data;
};

static unsigned value_of(int replay, int rank, int index) {
  return (unsigned)(replay * 1000 + rank * 77 + index);
}

static void rank_open(struct rank *me, int device) {
  CUDACHECK(cudaSetDevice(device));
  CUDACHECK(cudaStreamCreateWithFlags(&me->stream, cudaStreamNonBlocking));
  CUDACHECK(cudaMallocHost((void **)&me->host_in, COUNT * sizeof(unsigned)));
  CUDACHECK(cudaMallocHost((void **)&me->host_out, COUNT * sizeof(unsigned)));
  CUDACHECK(cudaMalloc((void **)&me->data, COUNT * sizeof(unsigned)));
}

static void rank_close(struct rank *me) {
  CUDACHECK(cudaGraphExecDestroy(me->graph));
  CUDACHECK(cudaStreamDestroy(me->stream));
  CUDACHECK(cudaFree(me->data));
  CUDACHECK(cudaFreeHost(me->host_in));
  CUDACHECK(cudaFreeHost(me->host_out));
  NCCLCHECK(ncclCommDestroy(me->comm));
}

/* Captures the streams of all ranks together: their all-reduces are in one group. */
static void capture(struct rank *all, int ranks) {
  cudaGraph_t graphs[RANKS_MAX];
  const size_t bytes = COUNT * sizeof(unsigned);
  for (int rank = 0; rank < ranks; rank++) {
    struct rank *me = &all[rank];
    CUDACHECK(cudaSetDevice(rank));
    CUDACHECK(cudaStreamBeginCapture(me->stream, cudaStreamCaptureModeThreadLocal));
    CUDACHECK(cudaMemcpyAsync(me->data, me->host_in, bytes, cudaMemcpyHostToDevice, me->stream));
  }
  NCCLCHECK(ncclGroupStart());
  for (int rank = 0; rank < ranks; rank++)
    NCCLCHECK(ncclAllReduce(all[rank].data, all[rank].data, COUNT, ncclUint32, ncclSum, all[rank].comm,
                            all[rank].stream));
  NCCLCHECK(ncclGroupEnd());
  for (int rank = 0; rank < ranks; rank++) {
    struct rank *me = &all[rank];
    CUDACHECK(cudaSetDevice(rank));
    CUDACHECK(cudaMemcpyAsync(me->host_out, me->data, bytes, cudaMemcpyDeviceToHost, me->stream));
    CUDACHECK(cudaStreamEndCapture(me->stream, &graphs[rank]));
  }
  /* Instantiating allocates, which CUDA refuses while this thread captures another stream. */
  for (int rank = 0; rank < ranks; rank++) {
    CUDACHECK(cudaSetDevice(rank));
    CUDACHECK(cudaGraphInstantiate(&all[rank].graph, graphs[rank], 0));
    CUDACHECK(cudaGraphDestroy(graphs[rank]));
  }
}

static int replay_once(struct rank *all, int ranks, int replay) {
  int wrong = 0;
  for (int rank = 0; rank < ranks; rank++) {
    for (int i = 0; i < COUNT; i++) all[rank].host_in[i] = value_of(replay, rank, i);
    CUDACHECK(cudaSetDevice(rank));
    CUDACHECK(cudaGraphLaunch(all[rank].graph, all[rank].stream));
  }
  for (int rank = 0; rank < ranks; rank++) {
    CUDACHECK(cudaSetDevice(rank));
    CUDACHECK(cudaStreamSynchronize(all[rank].stream));
  }
  for (int i = 0; i < COUNT; i++) {
    unsigned sum = 0;
    for (int rank = 0; rank < ranks; rank++) sum += value_of(replay, rank, i);
    for (int rank = 0; rank < ranks; rank++) wrong += all[rank].host_out[i] != sum;
  }
  return wrong;
}

int main(void) {
  static struct rank all[RANKS_MAX];
  ncclComm_t comms[RANKS_MAX];
  int ranks, wrong = 0;
  CUDACHECK(cudaGetDeviceCount(&ranks));
  if (ranks > RANKS_MAX) ranks = RANKS_MAX;
  NCCLCHECK(ncclCommInitAll(comms, ranks, NULL));
  for (int rank = 0; rank < ranks; rank++) {
    all[rank].comm = comms[rank];
    rank_open(&all[rank], rank);
  }
  capture(all, ranks);
  for (int replay = 0; replay < REPLAYS; replay++) wrong += replay_once(all, ranks, replay);
  for (int rank = 0; rank < ranks; rank++) rank_close(&all[rank]);
  printf("a graph with one all-reduce on each of %d devices, replayed %d times: %d wrong\n", ranks, REPLAYS,
         wrong);
  puts(wrong == 0 ? "ok" : "FAILED");
  return wrong != 0;
}
