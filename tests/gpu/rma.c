/* rma.c: one-sided calls: every rank puts into every rank's window, in groups and alone; signals that come
 * later than the wait; a wait that an abort ends; captures, which are refused. */
#include "need.h"

enum { COUNT = 3000, ROUNDS = 4 };

static ncclComm_t comms[RANKS_MAX];
static ncclWindow_t windows[RANKS_MAX];
static cudaStream_t streams[RANKS_MAX], others[RANKS_MAX];
static int *memory[RANKS_MAX], *local[RANKS_MAX], host[RANKS_MAX * COUNT];

static int value_of(int round, int from, int to, int i) { return ((round * 8 + from) * 8 + to) * COUNT + i; }

static void open_all(int rank_count) {
  const size_t bytes = (size_t)rank_count * COUNT * sizeof(int);
  need_comms(comms, rank_count);
  for (int rank = 0; rank < rank_count; rank++) {
    need_device(rank);
    NEED(cudaStreamCreateWithFlags(&streams[rank], cudaStreamNonBlocking));
    NEED(cudaStreamCreateWithFlags(&others[rank], cudaStreamNonBlocking));
    NEED(cudaMalloc((void **)&local[rank], bytes));
    if (rank % 2 == 0) NEED(cudaMalloc((void **)&memory[rank], bytes));
    else NEED(ncclMemAlloc((void **)&memory[rank], bytes));
    NEED(ncclCommWindowRegister(comms[rank], memory[rank], bytes, &windows[rank], NCCL_WIN_DEFAULT));
  }
}

static void close_all(int rank_count, int aborts) {
  for (int rank = 0; rank < rank_count; rank++) {
    need_device(rank);
    if (aborts) NEED(ncclCommAbort(comms[rank]));
    NEED(cudaStreamSynchronize(streams[rank]));
    NEED(cudaStreamSynchronize(others[rank]));
    if (!aborts) NEED(ncclCommWindowDeregister(comms[rank], windows[rank]));
  }
  for (int rank = 0; rank < rank_count; rank++) {
    need_device(rank);
    if (!aborts) NEED(ncclCommDestroy(comms[rank]));
    NEED(cudaFree(local[rank]));
    if (rank % 2 == 0) NEED(cudaFree(memory[rank]));
    else NEED(ncclMemFree(memory[rank]));
    NEED(cudaStreamDestroy(streams[rank]));
    NEED(cudaStreamDestroy(others[rank]));
  }
}

static void put(int from, int to, cudaStream_t stream) {
  NEED(ncclPutSignal(local[from] + to * COUNT, COUNT, ncclInt, to, windows[from],
                     (size_t)from * COUNT * sizeof(int), 0, 0, 0, comms[from], stream));
}

static void await(int rank, int peer, int count, cudaStream_t stream) {
  ncclWaitSignalDesc_t desc = {count, peer, 0, 0};
  NEED(ncclWaitSignal(1, &desc, comms[rank], stream));
}

static void round_of(int round, int rank_count, int grouped) {
  for (int rank = 0; rank < rank_count; rank++) {
    need_device(rank);
    for (int i = 0; i < rank_count * COUNT; i++) host[i] = value_of(round, rank, i / COUNT, i % COUNT);
    NEED(cudaMemcpyAsync(local[rank], host, (size_t)rank_count * COUNT * sizeof(int), cudaMemcpyHostToDevice,
                         streams[rank]));
    NEED(cudaStreamSynchronize(streams[rank]));
  }
  if (grouped) NEED(ncclGroupStart());
  for (int rank = 0; rank < rank_count; rank++)
    for (int to = 0; to < rank_count; to++) put(rank, to, streams[rank]);
  for (int rank = 0; rank < rank_count; rank++)
    for (int from = 0; from < rank_count; from++) await(rank, from, 1, streams[rank]);
  if (grouped) NEED(ncclGroupEnd());
  for (int rank = 0; rank < rank_count; rank++) {
    need_device(rank);
    NEED(cudaMemcpyAsync(host, memory[rank], (size_t)rank_count * COUNT * sizeof(int), cudaMemcpyDeviceToHost,
                         streams[rank]));
    NEED(cudaStreamSynchronize(streams[rank]));
    for (int i = 0; i < rank_count * COUNT; i++) NEED(host[i] != value_of(round, i / COUNT, rank, i % COUNT));
  }
  /* Nobody puts into memory that another rank still reads. */
  for (int rank = 0; rank < rank_count; rank++)
    for (int to = 0; to < rank_count; to++) NEED(ncclSignal(to, 0, 0, 0, comms[rank], streams[rank]));
  for (int rank = 0; rank < rank_count; rank++)
    for (int from = 0; from < rank_count; from++) await(rank, from, 1, streams[rank]);
}

/* The second signal is on a free stream, and still comes behind the first. */
static void late(int rank_count) {
  const int last = rank_count - 1;
  await(0, last, 2, others[0]);
  await(last, 0, 1, streams[last]);
  put(last, 0, streams[last]);
  NEED(ncclSignal(0, 0, 0, 0, comms[last], others[last]));
  NEED(cudaStreamQuery(others[0]) != cudaErrorNotReady);
  NEED(cudaStreamQuery(others[last]) != cudaErrorNotReady);
  NEED(ncclSignal(last, 0, 0, 0, comms[0], streams[0]));
  NEED(cudaStreamSynchronize(others[0]));
  NEED(cudaStreamSynchronize(streams[last]));
}

static void captured(void) {
  cudaGraph_t graph = NULL;
  need_device(0);
  NEED(cudaStreamBeginCapture(others[0], cudaStreamCaptureModeRelaxed));
  NEED(ncclSignal(0, 0, 0, 0, comms[0], others[0]) != ncclInvalidUsage);
  NEED(strstr(ncclGetLastError(NULL), "captured into a graph") == NULL);
  NEED(cudaStreamEndCapture(others[0], &graph));
  NEED(cudaGraphDestroy(graph));
}

int main(void) {
  const int rank_count = need_ranks();
  need_shared_devices(rank_count);
  open_all(rank_count);
  for (int round = 0; round < ROUNDS; round++) round_of(round, rank_count, round % 2);
  late(rank_count);
  captured();
  close_all(rank_count, 0);
  open_all(rank_count);
  await(0, rank_count - 1, 1, streams[0]);
  NEED(cudaStreamQuery(streams[0]) != cudaErrorNotReady);
  close_all(rank_count, 1);
  need_fresh_start(rank_count);
  printf("rma: %d ranks put into each other's windows: ok\n", rank_count);
  return 0;
}
