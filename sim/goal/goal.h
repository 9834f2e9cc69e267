/* goal.h: schedules of messages: what each rank sends, receives and computes, with dependences. This is the
 * content of GOAL files (Group Operation Assembly Language: Hoefler, Siebert, Lumsdaine, ICPP 2009), read and
 * written as text and as LogGOPSim's binary (README.md describes both). Ranks with the same operations, with
 * peers counted by distance, share one program, so a ring of thousands takes as much memory as one of its
 * ranks. Knows no cost and no clock: loggops.h does. */
#ifndef TUTTI_SIM_GOAL_GOAL_H
#define TUTTI_SIM_GOAL_GOAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/text.h"
#include "nccl.h"

/* Values of the binary format, and the order in which operations that became ready together begin. */
enum goal_kind { GOAL_SEND = 1, GOAL_RECV = 2, GOAL_CALC = 3 };

#define GOAL_ANY UINT32_MAX /* a receive from any peer, or with any tag */

/* Limits of readers. */
enum { GOAL_RANKS_MOST = 1 << 20, GOAL_OPS_MOST = 1 << 30, GOAL_CPUS_MOST = 256, GOAL_NICS_MOST = 256 };
#define GOAL_BYTES_MOST ((uint64_t)1 << 40) /* of a message; also nanoseconds of a computation */

struct goal_op {
  uint64_t size;  /* bytes; of a computation nanoseconds */
  uint32_t peer;  /* its rank minus this one's, modulo the number of ranks; GOAL_ANY */
  uint32_t tag;   /* 31 bits, or GOAL_ANY */
  uint32_t first; /* place of its followers in the program's nexts: ... */
  uint32_t begun; /* ... this many wait for its start, those up to the next operation's first for its end */
  uint32_t waits; /* number of operations that it waits for */
  uint32_t line;  /* of the file, counted from the rank's first; 0 if unknown */
  uint8_t kind, cpu, nic;
};

struct goal_program {
  uint64_t hash;
  uint32_t number; /* of the schedule, from 0 */
  uint32_t op_count, next_count;
  struct goal_op *ops; /* op_count and one more, whose first is next_count */
  uint32_t *nexts;
  struct goal_program *older; /* of the same schedule */
};

struct goal {
  uint32_t rank_count, program_count, cpu_count, nic_count;
  uint64_t op_count, message_count, byte_count; /* of all ranks; bytes that are sent */
  struct goal_program **programs;               /* by rank */
  uint32_t *lines;                              /* by rank: where it begins in the file, 0: unknown */
  struct goal_program *newest;
};

static inline uint32_t goal_peer(const struct goal *goal, uint32_t rank, const struct goal_op *op) {
  const uint64_t sum = (uint64_t)rank + op->peer;
  return op->peer == GOAL_ANY ? GOAL_ANY : (uint32_t)(sum >= goal->rank_count ? sum - goal->rank_count : sum);
}
static inline uint32_t goal_distance(const struct goal *goal, uint32_t rank, uint32_t peer) {
  return peer >= rank ? peer - rank : peer + goal->rank_count - rank;
}

/* ---- files ---- */

/* Reads either kind of file; the first bytes show which. Errors have file, line or byte, what was expected
 * and what is allowed. The file is read twice, so a pipe is possible only for text. */
ncclResult_t goal_read(const char *name, FILE *file, struct goal *goal);
ncclResult_t goal_write_text(const struct goal *goal, const char *name, FILE *file);
ncclResult_t goal_write_binary(const struct goal *goal, const char *name, FILE *file);
void goal_free(struct goal *goal);

/* "rank 3, line 17: send 8b to 4 tag 2"; without a line, its number on the rank, from 0. */
void goal_op_describe(const struct goal *goal, uint32_t rank, uint32_t op_index, char *text, size_t bytes);
/* The operation as the text format has it, without a name. */
void goal_op_print(const struct goal *goal, uint32_t rank, const struct goal_op *op, char *text,
                   size_t bytes);

/* ---- building, rank by rank ---- */

struct goal_edge {
  uint32_t before, after;
  bool begin; /* after waits for before's begin */
};

struct goal_build {
  struct goal *goal;
  struct goal_op *ops;
  struct goal_edge *edges;
  uint32_t op_count, op_capacity, edge_count, edge_capacity;
  uint32_t *nexts, next_capacity;
  struct goal_program **by_hash; /* open addressing; hash_capacity is a power of two */
  uint32_t hash_capacity;
};

/* An empty schedule with this many ranks, without programs. */
ncclResult_t goal_build_open(struct goal_build *build, struct goal *goal, uint32_t rank_count);
/* Adds an operation to the current rank, in zeroed memory: its number, or UINT32_MAX when memory is out. */
uint32_t goal_build_op(struct goal_build *build, const struct goal_op *op);
ncclResult_t goal_build_edge(struct goal_build *build, uint32_t before, uint32_t after, bool begin);
/* Ends the current rank: its program is everything added since the previous rank. */
ncclResult_t goal_build_rank(struct goal_build *build, uint32_t rank, uint32_t line);
/* Frees what building needed; the schedule stays. */
void goal_build_close(struct goal_build *build);

/* The halves of goal_read(). */
ncclResult_t goal_read_text(const char *name, FILE *file, struct goal_build *build);
ncclResult_t goal_read_binary(const char *name, FILE *file, struct goal_build *build);
#define GOAL_MAGIC 4223

#endif
