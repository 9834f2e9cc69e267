/* onesided.h: plans in which blocks read and write other ranks' memory and notify them with signals, as in
 * MSCCL++; and their conversion to lists that send and receive.
 *
 * Each block becomes a list of its rank and, for every other rank whose memory it accesses, a list of that
 * rank, its helper there: the helper stores what the block writes, and sends what the block reads. Signals,
 * semaphores, barriers and packets become waits among the lists of one rank: the plan is simulated once,
 * which gives what each block knows of the others at each of its operations, and every access of a rank's
 * memory waits there for everything that its block knows to be done. So two accesses are ordered in the lists
 * if and only if they are ordered in the plan, and what the checker proves of the lists holds for the plan.
 * Assumptions: operations of a block run in order, and a packet carries everything that its writer knew. */
#ifndef TUTTI_SIM_SCHEDULES_ONESIDED_H
#define TUTTI_SIM_SCHEDULES_ONESIDED_H

#include "core/custom/custom_build.h"

/* Limits for blocks of all ranks together, and chunks of all their scratch: the knowledge of blocks, and the
 * writers of packets, are stored for each. */
#define ONESIDED_BLOCKS_MAX 4096
#define ONESIDED_SCRATCH_MAX (1u << 24)

enum onesided_kind { ONESIDED_MOVE, ONESIDED_RAISE, ONESIDED_AWAIT, ONESIDED_BARRIER };
enum onesided_buffer { ONESIDED_INPUT, ONESIDED_OUTPUT, ONESIDED_SCRATCH };

struct onesided_place {
  uint32_t rank, chunk;
  uint8_t buffer; /* enum onesided_buffer */
};

/* A move of chunk_count chunks writes one source, or the sum of several, to every target. */
struct onesided_op {
  uint8_t kind;       /* enum onesided_kind */
  bool relaxed;       /* a signal or wait that orders no memory */
  bool takes_packets; /* its sources in scratch are packets, valid once they are written */
  bool makes_packets; /* its targets in scratch are packets */
  uint32_t line, chunk_count;
  uint32_t first_place, source_count, target_count; /* places: sources, then targets */
  uint32_t object;                                  /* a counter or a barrier, by its number */
  uint32_t ordinal,
      of_block; /* of a counter: index among the block's operations of this kind, and their number */
};

struct onesided_block {
  uint32_t rank, line, first_op, op_count;
};

/* A signal's counter, or a semaphore: raised by one; a wait blocks until it is above zero, and lowers it. */
struct onesided_counter {
  uint32_t initial, raise_count; /* raises: of the whole plan */
};

struct onesided_plan {
  struct custom_build *build;    /* its schedule's head is set: function, ranks, places, chunks, scratch */
  struct onesided_block *blocks; /* by rank, on a rank in order */
  struct onesided_op *ops;
  struct onesided_place *places;
  struct onesided_counter *counters;
  uint32_t *barriers; /* how many blocks each has */
  uint32_t block_count, op_count, place_count, counter_count, barrier_count;
  uint32_t block_capacity, op_capacity, place_capacity, counter_capacity, barrier_capacity;
};

void onesided_free(struct onesided_plan *plan);

/* Adds the lists to the builder. Fails with file and line if a block waits for something that never happens,
 * if packets are written twice, and beyond the limits of schedules. */
ncclResult_t onesided_lower(struct onesided_plan *plan);

/* ---- between the simulation (onesided.c) and the lists (lists.c) ---- */

struct lists;

/* Makes a list for every block and every helper, each with its number on its rank. */
ncclResult_t lists_begin(const struct onesided_plan *plan, struct lists **lists);
/* The steps of a move, the block's operation number `op_index`; known[b]: operations of block b that are
 * done, which changes only with `version`. */
ncclResult_t lists_move(struct lists *lists, uint32_t block, uint32_t op_index, const uint32_t *known,
                        uint32_t version);
/* Assigns a channel to every list and adds all of them to the builder. */
ncclResult_t lists_build(struct lists *lists);
void lists_free(struct lists *lists); /* NULL is allowed */

#endif
