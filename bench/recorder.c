/* recorder.c: what recording costs, apart from everything else, and in all-reduces of the emulator's free
 * threads. bench/recorder.sh builds it and runs it.
 *
 *   recorder events                           ns of a call that is made again: three records and a time stamp
 *   recorder cost FILE RANKS BYTES CALLS PAIRS   us of an all-reduce on a communicator that records nothing,
 *                                             and on one that records into FILE, a line a pair
 *
 * `cost` makes both communicators in one process, a thread a rank, and uses the same buffers and streams with
 * both: CALLS calls on one, CALLS calls on the other, and in the next pair the other way round. So whatever
 * else the machine does meets both alike. */
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime.h>
#include <nccl.h>

#include "base/os.h"
#include "base/param.h"
#include "trace/recorder.h"

#define ROUNDS 9
#define CALLS 2000000u

static void call_record(struct recorder *recorder, uint32_t number) {
  const struct record_call call = {.kind = RECORD_CALL,
                                   .func = 4,
                                   .dtype = 7,
                                   .count = 1024,
                                   .ticks = ticks_now(),
                                   .sequence = number,
                                   .collective = number};
  const struct record_place place = {.kind = RECORD_PLACE, .stream = recorder_stream(recorder, &call)};
  const struct record_launch launch = {
      .kind = RECORD_LAUNCH, .streams = 1, .operations = 1, .sequence = number, .number = number};
  recorder_call_launched(recorder, &call, &place, &launch);
}

static int compare(const void *left, const void *right) {
  const double a = *(const double *)left, b = *(const double *)right;
  return a < b ? -1 : a > b;
}

static int events(void) {
  const struct recorder_birth birth = {.comm_id = 1, .rank_count = 1, .name = "bench"};
  struct recorder recorder;
  double ns[ROUNDS];
  recorder_open(&recorder, &birth);
  if (recorder.comm == NULL) return 3;
  for (int round = 0; round < ROUNDS; round++) {
    const uint64_t begin = os_time_ns();
    for (uint32_t i = 0; i < CALLS; i++) call_record(&recorder, i);
    ns[round] = (double)(os_time_ns() - begin) / CALLS;
  }
  recorder_close(&recorder, RECORD_ENDED);
  qsort(ns, ROUNDS, sizeof ns[0], compare);
  printf("a call made again: median %.1f ns, %.1f to %.1f, for 3 records: %.1f ns each\n", ns[ROUNDS / 2],
         ns[0], ns[ROUNDS - 1], ns[ROUNDS / 2] / 3);
  return 0;
}

/* ---- all-reduces ---- */

struct cost {
  const char *file;
  int ranks, calls, pairs;
  size_t bytes;
  ncclUniqueId ids[2]; /* of the communicator without records, and of the other */
  pthread_barrier_t all;
};

struct rank {
  struct cost *cost;
  int rank;
  ncclComm_t comms[2];
  cudaStream_t stream;
  float *in, *out;
};

static void must(bool good, const char *what) {
  if (good) return;
  fprintf(stderr, "recorder: %s: %s\n", what, ncclGetLastError(NULL));
  exit(3);
}
#define MUST(call) must((call) == 0, #call)

/* us per call, after a barrier of all ranks. */
static double calls_time(struct rank *self, int which, int calls) {
  const struct cost *cost = self->cost;
  pthread_barrier_wait(&self->cost->all);
  const uint64_t begin = os_time_ns();
  for (int i = 0; i < calls; i++)
    MUST(ncclAllReduce(self->in, self->out, cost->bytes / sizeof *self->in, ncclFloat, ncclSum,
                       self->comms[which], self->stream));
  MUST(cudaStreamSynchronize(self->stream));
  return (double)(os_time_ns() - begin) / 1000 / calls;
}

static void rank_open(struct rank *self) {
  struct cost *cost = self->cost;
  MUST(cudaSetDevice(self->rank));
  MUST(cudaStreamCreate(&self->stream));
  MUST(cudaMalloc((void **)&self->in, cost->bytes));
  MUST(cudaMalloc((void **)&self->out, cost->bytes));
  for (int which = 0; which < 2; which++) {
    if (self->rank == 0) {
      setenv("TUTTI_TRACE", which == 0 ? "off" : cost->file, 1);
      param_reset();
      recorder_reset();
    }
    pthread_barrier_wait(&cost->all);
    MUST(ncclCommInitRank(&self->comms[which], cost->ranks, cost->ids[which], self->rank));
    pthread_barrier_wait(&cost->all);
  }
}

static void *rank_body(void *argument) {
  struct rank *self = (struct rank *)argument;
  rank_open(self);
  for (int which = 0; which < 2; which++) calls_time(self, which, self->cost->calls);
  for (int pair = 0; pair < self->cost->pairs; pair++) {
    double us[2];
    for (int turn = 0; turn < 2; turn++) {
      const int which = (pair + turn) % 2;
      us[which] = calls_time(self, which, self->cost->calls);
    }
    if (self->rank == 0) printf("%.4f %.4f\n", us[0], us[1]);
  }
  for (int which = 0; which < 2; which++) MUST(ncclCommDestroy(self->comms[which]));
  return NULL;
}

static int cost_run(struct cost *cost) {
  struct rank ranks[16] = {{0}};
  pthread_t threads[16];
  if (cost->ranks < 1 || cost->ranks > 16 || cost->calls < 1) return 2;
  pthread_barrier_init(&cost->all, NULL, (unsigned)cost->ranks);
  for (int which = 0; which < 2; which++) MUST(ncclGetUniqueId(&cost->ids[which]));
  for (int rank = 0; rank < cost->ranks; rank++) {
    ranks[rank].cost = cost;
    ranks[rank].rank = rank;
    must(pthread_create(&threads[rank], NULL, rank_body, &ranks[rank]) == 0, "a thread");
  }
  for (int rank = 0; rank < cost->ranks; rank++) pthread_join(threads[rank], NULL);
  return 0;
}

int main(int argc, char **argv) {
  if (argc == 2 && strcmp(argv[1], "events") == 0) return events();
  if (argc != 7 || strcmp(argv[1], "cost") != 0) return 2;
  struct cost cost = {.file = argv[2],
                      .ranks = atoi(argv[3]),
                      .bytes = strtoul(argv[4], NULL, 10),
                      .calls = atoi(argv[5]),
                      .pairs = atoi(argv[6])};
  return cost_run(&cost);
}
