/* onesided.h: plans in which a block reads and writes other ranks' memory itself and tells them so
 * with signals, as MSCCL++ has them; and the way from there to lists that send and receive.
 *
 * Each block becomes a list of its rank, and, for every other rank whose memory it touches, a list of that
 * rank, its hand there: what the block writes is sent and the hand keeps it, what the block reads is sent by
 * the hand. Signals, semaphores, barriers and packets become waits among the lists of one rank: the plan is
 * run once in thought, with what each block knows of the others at each of its operations, and whatever
 * touches a rank's memory waits there for all that its block knows to be done. So two accesses are in order
 * in the lists exactly if they were in the plan, and what the checker says of the lists holds for the plan.
 * Operations of one block are taken in order, and a packet to stand for all that its writer knew. */
#ifndef TUTTI_SIM_SCHEDULES_ONESIDED_H
#define TUTTI_SIM_SCHEDULES_ONESIDED_H

#include "core/custom/custom_build.h"

/* Blocks of all ranks together, and chunks of all their scratch: what a block knows, and who wrote what, is
 * kept by them. */
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
  bool takes_packets; /* its sources in scratch are packets, there once somebody wrote them */
  bool makes_packets; /* so are its targets in scratch */
  uint32_t line, chunk_count;
  uint32_t first_place, source_count, target_count; /* places: sources, then targets */
  uint32_t object;                                  /* a counter or a barrier, by its number */
  uint32_t ordinal, of_block; /* of a counter: the block's how manieth of this kind, and how many it has */
};

struct onesided_block {
  uint32_t rank, line, first_op, op_count;
};

/* A signal's count, or a semaphore: raised by one, lowered by whoever waits until it is above zero. */
struct onesided_counter {
  uint32_t initial, raise_count; /* raises: of the whole plan */
};

struct onesided_plan {
  struct custom_build *build; /* its schedule's head is filled in: function, ranks, places, chunks, scratch */
  struct onesided_block *blocks; /* by rank, on a rank in order */
  struct onesided_op *ops;
  struct onesided_place *places;
  struct onesided_counter *counters;
  uint32_t *barriers; /* how many blocks meet there */
  uint32_t block_count, op_count, place_count, counter_count, barrier_count;
  uint32_t block_capacity, op_capacity, place_capacity, counter_capacity, barrier_capacity;
};

void onesided_free(struct onesided_plan *plan);

/* Fills the builder with lists. Fails with file and line when a block waits for what never comes, when
 * packets are written twice, and beyond the bounds of schedules. */
ncclResult_t onesided_lower(struct onesided_plan *plan);

/* ---- between the run (onesided.c) and the lists (lists.c) ---- */

struct lists;

/* Makes a list of every block and of every hand, each with its number on its rank. */
ncclResult_t lists_begin(const struct onesided_plan *plan, struct lists **lists);
/* The steps of a move, the block's operation number `op_index`; known[b]: operations of block b that are
 * behind it, which changes with `version` alone. */
ncclResult_t lists_move(struct lists *lists, uint32_t block, uint32_t op_index, const uint32_t *known,
                        uint32_t version);
/* Gives every list a channel and all of them to the builder. */
ncclResult_t lists_build(struct lists *lists);
void lists_free(struct lists *lists); /* NULL is allowed */

#endif
