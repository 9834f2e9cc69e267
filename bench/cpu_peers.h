/* cpu_peers.h: how a collective is timed on CPU cores, the same for this library and for its peers. Sizes are
 * those of nccl-tests: of the larger of a rank's two buffers. A point is 15 batches; a batch's figure is that
 * of its slowest rank, divided by its calls; the point's is the median. Every point is first checked, element
 * by element. Knows no library: a program gives two functions. */
#ifndef TUTTI_BENCH_CPU_PEERS_H
#define TUTTI_BENCH_CPU_PEERS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum peers_op {
  PEERS_ALL_REDUCE,
  PEERS_ALL_REDUCE_IN_PLACE,
  PEERS_ALL_GATHER,
  PEERS_REDUCE_SCATTER,
  PEERS_BROADCAST,
  PEERS_ALL_TO_ALL,
  PEERS_SEND_RECV,
  PEERS_OP_COUNT
};
static const char *const peers_op_names[PEERS_OP_COUNT] = {
    "all_reduce", "all_reduce_in_place", "all_gather", "reduce_scatter", "broadcast", "alltoall", "sendrecv"};

#define PEERS_BATCHES 15
#define PEERS_CALLS_MOST 20000

struct peers {
  const char *name;
  int rank, rank_count;
  void *context;      /* the program's */
  float *send, *recv; /* each of the largest size */
  /* Runs `calls` equal calls with `count` floats per rank (for all-gather and the like: per block), and waits
   * for all of them. */
  void (*run)(struct peers *peers, enum peers_op op, size_t count, int calls);
  double (*most)(struct peers *peers, double value); /* the largest of all ranks' values */
};

struct peers_range {
  size_t first_bytes, last_bytes, factor;
  double seconds;   /* a point */
  const char *only; /* names of operations, or NULL */
};

static inline bool peers_op_in_blocks(enum peers_op op) {
  return op == PEERS_ALL_GATHER || op == PEERS_REDUCE_SCATTER || op == PEERS_ALL_TO_ALL;
}

/* Small whole numbers: sums of them are exact. */
static inline float peers_value(int rank, size_t i) { return (float)((i * 7 + (size_t)rank * 13) % 101); }

static inline double peers_seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static inline void peers_fill(struct peers *peers, enum peers_op op, size_t count) {
  const size_t n = (size_t)peers->rank_count;
  const size_t filled = peers_op_in_blocks(op) && op != PEERS_ALL_GATHER ? n * count : count;
  for (size_t i = 0; i < filled; i++) peers->send[i] = peers_value(peers->rank, i);
  const size_t cleared = peers_op_in_blocks(op) ? n * count : count;
  const bool root = op == PEERS_BROADCAST && peers->rank == 0;
  for (size_t i = 0; i < cleared; i++) peers->recv[i] = root ? peers_value(0, i) : -1;
  if (op == PEERS_ALL_REDUCE_IN_PLACE)
    for (size_t i = 0; i < count; i++) peers->recv[i] = peers_value(peers->rank, i);
}

static inline float peers_sum(const struct peers *peers, size_t i) {
  float sum = 0;
  for (int rank = 0; rank < peers->rank_count; rank++) sum += peers_value(rank, i);
  return sum;
}

static inline float peers_expected(const struct peers *peers, enum peers_op op, size_t count, size_t i) {
  const size_t rank = (size_t)peers->rank;
  switch (op) {
    case PEERS_ALL_GATHER: return peers_value((int)(i / count), i % count);
    case PEERS_REDUCE_SCATTER: return peers_sum(peers, rank * count + i);
    case PEERS_BROADCAST: return peers_value(0, i);
    case PEERS_ALL_TO_ALL: return peers_value((int)(i / count), rank * count + i % count);
    case PEERS_SEND_RECV: return peers_value((peers->rank + peers->rank_count - 1) % peers->rank_count, i);
    default: return peers_sum(peers, i);
  }
}

static inline size_t peers_wrong(const struct peers *peers, enum peers_op op, size_t count) {
  const bool blocks = op == PEERS_ALL_GATHER || op == PEERS_ALL_TO_ALL;
  const size_t all = blocks ? count * (size_t)peers->rank_count : count;
  size_t wrong = 0;
  for (size_t i = 0; i < all; i++) wrong += peers->recv[i] != peers_expected(peers, op, count, i);
  return wrong;
}

static inline int peers_compare(const void *left, const void *right) {
  const double a = *(const double *)left, b = *(const double *)right;
  return a < b ? -1 : a > b;
}

static inline double peers_batch(struct peers *peers, enum peers_op op, size_t count, int calls) {
  peers->most(peers, 0); /* all begin together */
  const double begin = peers_seconds();
  peers->run(peers, op, count, calls);
  return peers->most(peers, (peers_seconds() - begin) / calls);
}

static inline int peers_calls(struct peers *peers, double seconds, double each) {
  const double calls = seconds / PEERS_BATCHES / (each > 1e-8 ? each : 1e-8);
  return (int)peers->most(peers, calls < 1 ? 1 : calls > PEERS_CALLS_MOST ? PEERS_CALLS_MOST : calls);
}

/* Prints name, operation, bytes, calls a batch, median and least microseconds, wrong elements. */
static inline void peers_point(struct peers *peers, enum peers_op op, size_t bytes, double seconds) {
  const size_t n = (size_t)peers->rank_count;
  size_t count = bytes / sizeof(float) / (peers_op_in_blocks(op) ? n : 1);
  if (count == 0) count = 1;
  peers_fill(peers, op, count);
  peers->most(peers, 0);
  peers->run(peers, op, count, 1);
  const double wrong = peers->most(peers, (double)peers_wrong(peers, op, count));
  /* Zeros stay zeros in repeated in-place sums. */
  memset(peers->send, 0, bytes);
  memset(peers->recv, 0, bytes);
  int calls = peers_calls(peers, seconds, peers_batch(peers, op, count, 2));
  calls = peers_calls(peers, seconds, peers_batch(peers, op, count, calls));
  double each[PEERS_BATCHES];
  for (int i = 0; i < PEERS_BATCHES; i++) each[i] = peers_batch(peers, op, count, calls);
  qsort(each, PEERS_BATCHES, sizeof *each, peers_compare);
  if (peers->rank != 0) return;
  printf("%s %d %s %zu %d %.3f %.3f %.0f\n", peers->name, peers->rank_count, peers_op_names[op], bytes, calls,
         each[PEERS_BATCHES / 2] * 1e6, each[0] * 1e6, wrong);
  fflush(stdout);
}

static inline bool peers_wants(const char *only, const char *name) {
  const size_t length = strlen(name);
  for (const char *at = only; at != NULL && *at != '\0'; at += strcspn(at, ","), at += *at == ',')
    if (strcspn(at, ",") == length && strncmp(at, name, length) == 0) return true;
  return only == NULL;
}

static inline void peers_run_all(struct peers *peers, const struct peers_range *range) {
  for (int op = 0; op < PEERS_OP_COUNT; op++) {
    if (!peers_wants(range->only, peers_op_names[op])) continue;
    for (size_t bytes = range->first_bytes; bytes < range->last_bytes; bytes *= range->factor)
      peers_point(peers, (enum peers_op)op, bytes, range->seconds);
    peers_point(peers, (enum peers_op)op, range->last_bytes, range->seconds);
  }
}

/* NAME VALUE pairs: --min, --max, --factor, --seconds, --ops, --ranks. */
static inline const char *peers_option(int argc, char **argv, const char *name, const char *usual) {
  for (int i = 1; i + 1 < argc; i += 2)
    if (strcmp(argv[i], name) == 0) return argv[i + 1];
  return usual;
}

static inline struct peers_range peers_range_read(int argc, char **argv) {
  const struct peers_range range = {strtoull(peers_option(argc, argv, "--min", "8"), NULL, 0),
                                    strtoull(peers_option(argc, argv, "--max", "67108864"), NULL, 0),
                                    strtoull(peers_option(argc, argv, "--factor", "8"), NULL, 0),
                                    strtod(peers_option(argc, argv, "--seconds", "0.2"), NULL),
                                    peers_option(argc, argv, "--ops", NULL)};
  return range;
}

#endif
