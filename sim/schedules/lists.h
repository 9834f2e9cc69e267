/* lists.h: the lists that a one-sided plan becomes, while they grow: who adds steps to them
 * (move.c) and who keeps and ends them (lists.c). */
#ifndef TUTTI_SIM_SCHEDULES_LISTS_H
#define TUTTI_SIM_SCHEDULES_LISTS_H

#include "schedules/onesided.h"

struct listed_step {
  struct list_step step;
  uint32_t line;
};

/* So many steps a list had when so many operations of its block were behind. */
struct list_mark {
  uint32_t op_count, step_count;
};

struct one_list {
  uint32_t block, rank; /* the block's own rank, or the one where this is its hand */
  uint32_t next_hand;   /* of the same block; 0: none */
  uint32_t channel;
  uint32_t recv_peer[STEP_LINKS_MAX], send_peer[STEP_LINKS_MAX], recv_count, send_count;
  struct listed_step *steps;
  struct list_mark *marks;
  uint32_t step_count, step_capacity, mark_count, mark_capacity;
  uint32_t version;        /* of its block's knowledge, for which it has waited */
  uint32_t *awaited;       /* by the rank's lists: steps that it has waited for */
  struct list_step before; /* a wait that the next step takes along */
};

/* The lists of one rank, in the order of their numbers there. */
struct rank_lists {
  uint32_t *lists;
  uint32_t count, capacity;
};

struct lists {
  const struct onesided_plan *plan;
  struct one_list *lists; /* of each block, by its number; then hands */
  uint32_t count, capacity;
  struct rank_lists *ranks;
  uint32_t *spare; /* by block: the chunk of scratch for sums that have no place of the rank's, from 1 on */
};

/* The hand of a block at another rank, by its number. */
uint32_t lists_hand(const struct lists *lists, uint32_t block, uint32_t rank);
/* One step more; it waits for what the list was told to wait for since its last. */
ncclResult_t lists_push(struct lists *lists, struct one_list *list, const struct list_step *step,
                        uint32_t line);

/* One chunk of a move: steps of the block's list and of its hands (move.c). */
ncclResult_t lists_move_chunk(struct lists *lists, uint32_t block, const struct onesided_op *op,
                              uint32_t chunk);

#endif
