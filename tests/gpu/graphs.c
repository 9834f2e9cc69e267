/* graphs.c: launches from the host and from graphs, mixed in every way a program may mix them, on several
 * streams that are not joined. Each slot is a buffer that is summed in place over the ranks; streams and
 * graphs have their own slots, so only the library keeps the kernels of a rank in order. After k sums over n
 * ranks a slot is its first sum times n^(k-1), modulo 2^64, so a lost, repeated or torn sum is detected.
 * First one thread drives all ranks, then each rank has a thread.
 *
 *     graphs [ROUNDS [SEED]] */
#include <pthread.h>
#include <string.h>

#include "need.h"

#define PARTS 96 /* operations of a group that is too large for a kernel's arguments */
enum { COUNT = PARTS * 11, STEPS = 24, SUMS_MAX = 20 };
enum slot { ON_A, ON_B, ON_LEGACY, ON_THREAD, LARGE, IN_FIRST, IN_SECOND_A, IN_SECOND_B, IN_LARGE, SLOTS };
enum action { PLAIN_A, PLAIN_B, LEGACY, PER_THREAD, TWO_STREAMS, PLAIN_LARGE, FIRST, SECOND, THIRD, ACTIONS };
enum { GRAPHS = 3 };

struct rank {
  int rank, first_action;
  ncclComm_t comm;
  cudaStream_t a, b, c;
  cudaEvent_t fork, join;
  cudaGraphExec_t graphs[GRAPHS]; /* NULL until captured */
  unsigned long long *slots;      /* SLOTS buffers of COUNT values */
  unsigned sums[SLOTS];           /* since the slot was filled */
};

static int rank_count, rounds = 6;
static unsigned seed = 1;
static struct rank all[RANKS_MAX];

/* The same script for all ranks, because they must make the same calls. */
static unsigned draw(unsigned *state, unsigned bound) {
  *state = *state * 1664525u + 1013904223u;
  return (*state >> 16) % bound;
}

static unsigned long long value_of(int rank, int slot, int i) {
  return (unsigned long long)(rank + 1) * 1000003u + (unsigned)(slot * 10007 + i);
}

static unsigned long long *slot_of(const struct rank *me, enum slot slot) { return me->slots + slot * COUNT; }

static void slots_fill(struct rank *me) {
  static _Thread_local unsigned long long host[SLOTS * COUNT];
  for (int i = 0; i < SLOTS * COUNT; i++) host[i] = value_of(me->rank, i / COUNT, i % COUNT);
  need_device(me->rank);
  NEED(cudaMemcpy(me->slots, host, sizeof host, cudaMemcpyHostToDevice));
  NEED(cudaDeviceSynchronize());
  memset(me->sums, 0, sizeof me->sums);
}

static void slots_check(struct rank *me, const char *when) {
  static _Thread_local unsigned long long host[SLOTS * COUNT];
  need_device(me->rank);
  NEED(cudaDeviceSynchronize());
  NEED(cudaMemcpy(host, me->slots, sizeof host, cudaMemcpyDeviceToHost));
  for (int i = 0; i < SLOTS * COUNT; i++) {
    const int slot = i / COUNT;
    unsigned long long expected = 0;
    for (int r = 0; r < rank_count; r++) expected += value_of(r, slot, i % COUNT);
    if (me->sums[slot] == 0) expected = value_of(me->rank, slot, i % COUNT);
    for (unsigned k = 1; k < me->sums[slot]; k++) expected *= (unsigned)rank_count;
    if (host[i] == expected) continue;
    fprintf(stderr, "graphs: %s: rank %d, slot %d, element %d, after %u sums: %llx instead of %llx\n", when,
            me->rank, slot, i % COUNT, me->sums[slot], host[i], expected);
    exit(1);
  }
}

static void sum(struct rank *me, enum slot slot, cudaStream_t stream) {
  unsigned long long *data = slot_of(me, slot);
  NEED(ncclAllReduce(data, data, COUNT, ncclUint64, ncclSum, me->comm, stream));
}

static void sum_in_parts(struct rank *me, enum slot slot, cudaStream_t stream) {
  const int part = COUNT / PARTS;
  NEED(ncclGroupStart());
  for (int i = 0; i < PARTS; i++) {
    unsigned long long *data = slot_of(me, slot) + i * part;
    NEED(ncclAllReduce(data, data, part, ncclUint64, ncclSum, me->comm, stream));
  }
  NEED(ncclGroupEnd());
}

/* ---- graphs: 0 has a chain on one stream, 1 two unjoined streams, 2 a plan in a slab ---- */

static void capture_begin(struct rank *me) {
  need_device(me->rank);
  NEED(cudaStreamBeginCapture(me->a, cudaStreamCaptureModeThreadLocal));
  NEED(cudaEventRecord(me->fork, me->a));
  NEED(cudaStreamWaitEvent(me->b, me->fork, 0));
}

/* Two groups, because operations of one group are not ordered among themselves. */
static void capture_sums(struct rank *me, int graph, int turn) {
  if (graph == 0) sum(me, IN_FIRST, me->a);
  if (graph == 1 && turn == 0) sum(me, IN_SECOND_A, me->a);
  if (graph == 1 && turn == 1) sum(me, IN_SECOND_B, me->b);
  if (graph == 2 && turn == 0) sum_in_parts(me, IN_LARGE, me->a);
}

static void capture_end(struct rank *me, cudaGraph_t *captured) {
  need_device(me->rank);
  NEED(cudaEventRecord(me->join, me->b));
  NEED(cudaStreamWaitEvent(me->a, me->join, 0));
  NEED(cudaStreamEndCapture(me->a, captured));
}

/* ---- actions: `ranks` are all ranks for one thread, or a thread's own rank ---- */

struct driver {
  struct rank *ranks;
  int count;
};

static void graph_replace(const struct driver *driver, int graph) {
  cudaGraph_t captured[RANKS_MAX];
  for (int i = 0; i < driver->count; i++) {
    struct rank *me = &driver->ranks[i];
    if (me->graphs[graph] != NULL) NEED(cudaGraphExecDestroy(me->graphs[graph]));
    me->graphs[graph] = NULL;
  }
  for (int i = 0; i < driver->count; i++) capture_begin(&driver->ranks[i]);
  for (int turn = 0; turn < 2; turn++) {
    NEED(ncclGroupStart());
    for (int i = 0; i < driver->count; i++) capture_sums(&driver->ranks[i], graph, turn);
    NEED(ncclGroupEnd());
  }
  /* Instantiating is not allowed while this thread captures another stream, so all captures end first. */
  for (int i = 0; i < driver->count; i++) capture_end(&driver->ranks[i], &captured[i]);
  for (int i = 0; i < driver->count; i++) {
    need_device(driver->ranks[i].rank);
    NEED(cudaGraphInstantiate(&driver->ranks[i].graphs[graph], captured[i], 0));
    NEED(cudaGraphDestroy(captured[i]));
  }
}

static void graph_replay(struct rank *me, int graph, unsigned step) {
  const cudaStream_t streams[] = {me->c, me->a, me->b};
  NEED(cudaGraphLaunch(me->graphs[graph], streams[step % 3]));
  if (graph == 0) me->sums[IN_FIRST] += 2;
  if (graph == 1) me->sums[IN_SECOND_A] += 1, me->sums[IN_SECOND_B] += 1;
  if (graph == 2) me->sums[IN_LARGE] += 1;
}

static void plain(struct rank *me, enum action action) {
  if (action == PLAIN_A || action == TWO_STREAMS) sum(me, ON_A, me->a), me->sums[ON_A] += 1;
  if (action == PLAIN_B || action == TWO_STREAMS) sum(me, ON_B, me->b), me->sums[ON_B] += 1;
  if (action == LEGACY) sum(me, ON_LEGACY, NULL), me->sums[ON_LEGACY] += 1;
  if (action == PER_THREAD) sum(me, ON_THREAD, cudaStreamPerThread), me->sums[ON_THREAD] += 1;
  if (action == PLAIN_LARGE) sum_in_parts(me, LARGE, me->c), me->sums[LARGE] += 1;
}

static void act(const struct driver *driver, enum action action, unsigned step) {
  const int graph = (int)action - FIRST;
  if ((action == LEGACY || action == PER_THREAD) && need_shares(rank_count))
    action = PLAIN_A; /* ranks would share the stream */
  if (graph >= 0) {
    if (driver->ranks->graphs[graph] == NULL) graph_replace(driver, graph);
    for (int i = 0; i < driver->count; i++) {
      need_device(driver->ranks[i].rank);
      graph_replay(&driver->ranks[i], graph, step);
    }
    return;
  }
  NEED(ncclGroupStart());
  for (int i = 0; i < driver->count; i++) {
    need_device(driver->ranks[i].rank);
    plain(&driver->ranks[i], action);
  }
  NEED(ncclGroupEnd());
}

static int slots_full(const struct rank *me) {
  for (int slot = 0; slot < SLOTS; slot++)
    if (me->sums[slot] >= SUMS_MAX - 2) return 1;
  return 0;
}

/* All scripts begin with launches from the host; the first replays come while those may still run. */
static void script_run(const struct driver *driver, const char *when) {
  unsigned state = seed;
  for (int round = 0; round < rounds; round++) {
    for (int i = 0; i < driver->count; i++) slots_fill(&driver->ranks[i]);
    for (unsigned step = 0; step < STEPS && !slots_full(driver->ranks); step++) {
      const unsigned drawn = draw(&state, ACTIONS);
      act(driver, round == 0 && step < ACTIONS ? (enum action)step : (enum action)drawn, step);
    }
    for (int i = 0; i < driver->count; i++) slots_check(&driver->ranks[i], when);
    graph_replace(driver, round % GRAPHS); /* replaces one graph by another */
  }
}

static void *rank_run(void *argument) {
  const struct driver driver = {(struct rank *)argument, 1};
  script_run(&driver, "one thread per rank");
  return NULL;
}

static void rank_open(struct rank *me) {
  need_device(me->rank);
  NEED(cudaStreamCreateWithFlags(&me->a, cudaStreamNonBlocking));
  NEED(cudaStreamCreateWithFlags(&me->b, cudaStreamNonBlocking));
  NEED(cudaStreamCreateWithFlags(&me->c, cudaStreamNonBlocking));
  NEED(cudaEventCreateWithFlags(&me->fork, cudaEventDisableTiming));
  NEED(cudaEventCreateWithFlags(&me->join, cudaEventDisableTiming));
  NEED(cudaMalloc((void **)&me->slots, SLOTS * COUNT * sizeof *me->slots));
}

/* Communicators first: the graphs that contain their kernels are destroyed after them. */
static void rank_close(struct rank *me) {
  need_device(me->rank);
  for (int graph = 0; graph < GRAPHS; graph++)
    if (me->graphs[graph] != NULL) NEED(cudaGraphExecDestroy(me->graphs[graph]));
  NEED(cudaEventDestroy(me->fork));
  NEED(cudaEventDestroy(me->join));
  NEED(cudaStreamDestroy(me->a));
  NEED(cudaStreamDestroy(me->b));
  NEED(cudaStreamDestroy(me->c));
  NEED(cudaFree(me->slots));
}

int main(int argument_count, char **arguments) {
  const struct driver everyone = {all, rank_count = need_ranks()};
  ncclComm_t comms[RANKS_MAX];
  pthread_t threads[RANKS_MAX];
  if (argument_count > 1) rounds = atoi(arguments[1]);
  if (argument_count > 2) seed = (unsigned)strtoul(arguments[2], NULL, 0);
  need_comms(comms, rank_count);
  for (int rank = 0; rank < rank_count; rank++) {
    all[rank].rank = rank;
    all[rank].comm = comms[rank];
    rank_open(&all[rank]);
  }
  script_run(&everyone, "one thread");
  /* While one thread captures, others may not wait for its device. */
  const int by_threads = need_shares(rank_count) ? 0 : rank_count;
  for (int rank = 0; rank < by_threads; rank++)
    NEED(pthread_create(&threads[rank], NULL, rank_run, &all[rank]));
  for (int rank = 0; rank < by_threads; rank++) NEED(pthread_join(threads[rank], NULL));
  for (int rank = 0; rank < rank_count; rank++) NEED(ncclCommDestroy(comms[rank]));
  for (int rank = 0; rank < rank_count; rank++) rank_close(&all[rank]);
  need_fresh_start(rank_count);
  printf("graphs: %d rounds on %d ranks, by one thread and by one thread per rank: ok\n", rounds, rank_count);
  return 0;
}
