/* again.c: calls that repeat, whose launches the library keeps: each rank is a thread. Inputs change between
 * the calls, streams and sizes take turns, memory is freed and allocated again, and the same call is
 * captured, and groups repeat: every result is right. `again messages` repeats groups of messages of very
 * different sizes. `again differs` is a wrong program: a rank repeats a call where another one makes a
 * different call, and the error has the number of the operation that differs. */
#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#include "need.h"

enum {
  COUNT = 256,
  LONG_COUNT = 60000,
  SHARE = LONG_COUNT / RANKS_MAX, /* of an output: a peer's message */
  REPEATS = 12,
  SIZES = 14,
  SHAPES = 3, /* of a group of messages */
  DIFFERS_AT = 9
};

static int rank_count;
static ncclComm_t comms[RANKS_MAX];
static pthread_barrier_t all_idle;

struct rank {
  pthread_t thread;
  int index;
  cudaStream_t stream, other;
  float *in, *out;
  float *host; /* page-locked: a copy of other memory keeps the launches of ranks on this device back */
};

static void memory_take(struct rank *rank) {
  NEED(cudaMalloc((void **)&rank->in, LONG_COUNT * sizeof *rank->in));
  NEED(cudaMalloc((void **)&rank->out, LONG_COUNT * sizeof *rank->out));
}

/* cudaFree waits for all kernels of its device, also for those of another rank that wait for this one. */
static void all_wait(void) {
  if (need_shares(rank_count)) pthread_barrier_wait(&all_idle);
}

static void memory_give(struct rank *rank) {
  NEED(cudaStreamSynchronize(rank->stream));
  NEED(cudaStreamSynchronize(rank->other));
  all_wait();
  NEED(cudaFree(rank->in));
  NEED(cudaFree(rank->out));
  all_wait();
}

/* Rank r has r + round + i % 7 in element i. */
static void input_set(struct rank *rank, cudaStream_t stream, int count, int round) {
  NEED(cudaStreamSynchronize(stream));
  for (int i = 0; i < count; i++) rank->host[i] = (float)(rank->index + round + i % 7);
  NEED(cudaMemcpyAsync(rank->in, rank->host, (size_t)count * sizeof *rank->host, cudaMemcpyHostToDevice,
                       stream));
}

static void sum(struct rank *rank, cudaStream_t stream, int count) {
  NEED(ncclAllReduce(rank->in, rank->out, (size_t)count, ncclFloat, ncclSum, comms[rank->index], stream));
}

/* Of element i: base + step * (i % 7). */
static void values_check(struct rank *rank, cudaStream_t stream, const float *out, int count, int base,
                         int step) {
  float *const host = rank->host;
  NEED(cudaMemcpyAsync(host, out, (size_t)count * sizeof *host, cudaMemcpyDeviceToHost, stream));
  NEED(cudaStreamSynchronize(stream));
  for (int i = 0; i < count; i++) {
    const float right = (float)(base + step * (i % 7));
    if (host[i] == right) continue;
    fprintf(stderr, "again: rank %d, %d elements: element %d is %g instead of %g\n", rank->index, count, i,
            (double)host[i], (double)right);
    exit(1);
  }
}

static void output_check(struct rank *rank, cudaStream_t stream, int count, int round) {
  const int ranks = rank_count * (rank_count - 1) / 2;
  values_check(rank, stream, rank->out, count, ranks + rank_count * round, rank_count);
}

/* The same plan, but not the same launch. */
static void once_elsewhere(struct rank *rank, int round) {
  float *const out = rank->out;
  input_set(rank, rank->stream, COUNT, round);
  rank->out += LONG_COUNT / 2;
  sum(rank, rank->stream, COUNT);
  output_check(rank, rank->stream, COUNT, round);
  rank->out = out;
}

static void once(struct rank *rank, cudaStream_t stream, int count, int round) {
  input_set(rank, stream, count, round);
  sum(rank, stream, count);
  output_check(rank, stream, count, round);
}

/* Two sums in a group: of either half of the input, each to the same half of the output or to the other
 * one. The inputs of both halves differ by 50 rounds. */
static void group_once(struct rank *rank, bool crossed, int round) {
  float *const in = rank->in, *const out = rank->out;
  enum { HALF = LONG_COUNT / 2 };
  for (int half = 0; half < 2; half++) {
    rank->in = in + half * HALF;
    input_set(rank, rank->stream, COUNT, round + 50 * half);
  }
  NEED(cudaStreamSynchronize(rank->stream));
  NEED(ncclGroupStart());
  for (int half = 0; half < 2; half++) {
    rank->in = in + half * HALF;
    rank->out = out + (half != crossed) * HALF;
    sum(rank, rank->stream, COUNT);
  }
  NEED(ncclGroupEnd());
  for (int half = 0; half < 2; half++) {
    rank->out = out + (half != crossed) * HALF;
    output_check(rank, rank->stream, COUNT, round + 50 * half);
  }
  rank->in = in;
  rank->out = out;
}

static void groups(struct rank *rank) {
  for (int round = 0; round < REPEATS; round++) group_once(rank, false, round);
  for (int round = 0; round < 2 * REPEATS; round++) group_once(rank, round / 2 % 2, round);
  for (int round = 0; round < 3; round++) once(rank, rank->stream, COUNT, round);
  for (int time = 0; time < 3; time++) {
    memory_give(rank);
    memory_take(rank);
    for (int round = 0; round < 3; round++) group_once(rank, time % 2, round);
  }
}

/* Elements of a message: each rank has long ones and short ones at a time. */
static int message_count(int from, int to, int shape) {
  return (from + to + shape) % 2 != 0 ? SHARE - from : 1 + 40 * shape + to;
}

static void messages(struct rank *rank, int shape) {
  NEED(ncclGroupStart());
  for (int peer = 0; peer < rank_count; peer++) {
    const size_t sent = (size_t)message_count(rank->index, peer, shape);
    const size_t received = (size_t)message_count(peer, rank->index, shape);
    NEED(ncclSend(rank->in, sent, ncclFloat, peer, comms[rank->index], rank->stream));
    NEED(ncclRecv(rank->out + peer * SHARE, received, ncclFloat, peer, comms[rank->index], rank->stream));
  }
  NEED(ncclGroupEnd());
}

static void messages_check(struct rank *rank, int shape, int round) {
  for (int peer = 0; peer < rank_count; peer++)
    values_check(rank, rank->stream, rank->out + peer * SHARE, message_count(peer, rank->index, shape),
                 peer + round, 1);
}

/* With the same memory; a shape is captured, and replayed between the others. */
static void messages_repeat(struct rank *rank) {
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  NEED(cudaStreamBeginCapture(rank->stream, cudaStreamCaptureModeThreadLocal));
  messages(rank, 0);
  NEED(cudaStreamEndCapture(rank->stream, &graph));
  NEED(cudaGraphInstantiate(&exec, graph, 0));
  for (int round = 0; round < REPEATS; round++) {
    const int shape = round / 2 % SHAPES;
    input_set(rank, rank->stream, LONG_COUNT, round);
    messages(rank, shape);
    messages_check(rank, shape, round);
    if (round % 4 != 3) continue;
    NEED(cudaGraphLaunch(exec, rank->stream));
    messages_check(rank, 0, round);
  }
  NEED(cudaGraphExecDestroy(exec));
  NEED(cudaGraphDestroy(graph));
}

/* Captured between two repetitions: replayed, or never launched. */
static void capture(struct rank *rank, int replays) {
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  NEED(cudaStreamBeginCapture(rank->stream, cudaStreamCaptureModeThreadLocal));
  sum(rank, rank->stream, COUNT);
  NEED(cudaStreamEndCapture(rank->stream, &graph));
  NEED(cudaGraphInstantiate(&exec, graph, 0));
  for (int round = 0; round < replays; round++) {
    input_set(rank, rank->stream, COUNT, round);
    NEED(cudaGraphLaunch(exec, rank->stream));
    output_check(rank, rank->stream, COUNT, round);
    once(rank, rank->stream, COUNT, 100 + round);
  }
  once(rank, rank->other, COUNT, 200);
  NEED(cudaGraphExecDestroy(exec));
  NEED(cudaGraphDestroy(graph));
}

static void *rank_main(void *argument) {
  struct rank *rank = (struct rank *)argument;
  need_device(rank->index);
  NEED(cudaStreamCreateWithFlags(&rank->stream, cudaStreamNonBlocking));
  NEED(cudaStreamCreateWithFlags(&rank->other, cudaStreamNonBlocking));
  NEED(cudaMallocHost((void **)&rank->host, LONG_COUNT * sizeof *rank->host));
  memory_take(rank);
  for (int round = 0; round < REPEATS; round++) once(rank, rank->stream, COUNT, round);
  for (int round = 0; round < REPEATS; round++) {
    once(rank, rank->stream, round % 2 ? COUNT : LONG_COUNT, round);
    once(rank, rank->other, COUNT, round);
    once_elsewhere(rank, round);
  }
  for (int round = 0; round < 2 * SIZES; round++) once(rank, rank->stream, COUNT + round % SIZES, round);
  for (int round = 0; round < 3; round++) {
    memory_give(rank);
    memory_take(rank);
    once(rank, rank->stream, LONG_COUNT, round);
    once(rank, rank->stream, LONG_COUNT, round);
  }
  for (int round = 0; round < 3; round++) once(rank, rank->stream, COUNT, round);
  groups(rank);
  capture(rank, 0);
  capture(rank, 3);
  for (int round = 0; round < 3; round++) once(rank, rank->stream, COUNT, round);
  memory_give(rank);
  NEED(cudaFreeHost(rank->host));
  return NULL;
}

static void *rank_messages(void *argument) {
  struct rank *rank = (struct rank *)argument;
  need_device(rank->index);
  NEED(cudaStreamCreateWithFlags(&rank->stream, cudaStreamNonBlocking));
  NEED(cudaMallocHost((void **)&rank->host, LONG_COUNT * sizeof *rank->host));
  memory_take(rank);
  messages_repeat(rank);
  return NULL;
}

/* The last call of one rank has another count, where the others repeat theirs. */
static int differs;

static void *rank_differs(void *argument) {
  struct rank *rank = (struct rank *)argument;
  need_device(rank->index);
  NEED(cudaStreamCreateWithFlags(&rank->stream, cudaStreamNonBlocking));
  memory_take(rank);
  for (int call = 0; call < DIFFERS_AT; call++) sum(rank, rank->stream, COUNT);
  sum(rank, rank->stream, rank->index == differs ? COUNT / 2 : COUNT);
  return NULL;
}

static void threads_run(struct rank *ranks, void *(*body)(void *)) {
  for (int i = 0; i < rank_count; i++) {
    ranks[i].index = i;
    NEED(pthread_create(&ranks[i].thread, NULL, body, &ranks[i]));
  }
  for (int i = 0; i < rank_count; i++) NEED(pthread_join(ranks[i].thread, NULL));
}

/* A line of each on standard error names the operation. */
static void refuse(struct rank *ranks, int which) {
  differs = which;
  need_comms(comms, rank_count);
  threads_run(ranks, rank_differs);
  for (int i = 0; i < rank_count; i++) {
    ncclResult_t result = ncclSuccess;
    while (result == ncclSuccess || result == ncclInProgress) NEED(ncclCommGetAsyncError(comms[i], &result));
    if (result == ncclInvalidUsage) continue;
    fprintf(stderr, "again: rank %d ends with %d where ranks differ\n", i, (int)result);
    exit(1);
  }
  for (int i = 0; i < rank_count; i++) NEED(ncclCommAbort(comms[i]));
}

int main(int argc, char **argv) {
  struct rank ranks[RANKS_MAX];
  rank_count = need_ranks();
  need_shared_devices(rank_count);
  if (rank_count < 2) {
    printf("again: needs two ranks: ok\n");
    return 0;
  }
  if (argc > 1 && strcmp(argv[1], "differs") == 0) {
    refuse(ranks, 0);
    refuse(ranks, rank_count - 1);
    printf("again: a different call among repeated ones is refused: ok\n");
    return 0;
  }
  NEED(pthread_barrier_init(&all_idle, NULL, (unsigned)rank_count));
  need_comms(comms, rank_count);
  threads_run(ranks, argc > 1 && strcmp(argv[1], "messages") == 0 ? rank_messages : rank_main);
  NEED(pthread_barrier_destroy(&all_idle));
  for (int i = 0; i < rank_count; i++) NEED(ncclCommDestroy(comms[i]));
  printf("again: repeated calls of %d ranks: ok\n", rank_count);
  return 0;
}
