/* lists.h: the lists that a one-sided plan becomes, while they are built: move.c adds steps to them, lists.c
 * keeps and finishes them. */
#ifndef TUTTI_SIM_SCHEDULES_LISTS_H
#define TUTTI_SIM_SCHEDULES_LISTS_H

#include "schedules/onesided.h"

struct listed_step {
  struct list_step step;
  uint32_t line;
};

/* The number of steps of a list when this many operations of its block were done. */
struct list_mark {
  uint32_t op_count, step_count;
};

struct one_list {
  uint32_t block, rank; /* the block's own rank, or the remote rank if this is its helper there */
  uint32_t next_helper; /* of the same block; 0: none */
  uint32_t channel;
  uint32_t recv_peer[LIST_LINKS_MAX], send_peer[LIST_LINKS_MAX], recv_count, send_count;
  struct listed_step *steps;
  struct list_mark *marks;
  uint32_t step_count, step_capacity, mark_count, mark_capacity;
  uint32_t version;        /* version of its block's knowledge up to which it has waited */
  uint32_t *awaited;       /* by the rank's lists: steps that it has waited for */
  struct list_step before; /* a wait that is attached to the next step */
};

/* The lists of one rank, in the order of their numbers there. */
struct rank_lists {
  uint32_t *lists;
  uint32_t count, capacity;
};

struct lists {
  const struct onesided_plan *plan;
  struct one_list *lists; /* of each block, by its number; then helpers */
  uint32_t count, capacity;
  struct rank_lists *ranks;
  uint32_t *spare; /* by block: the chunk of scratch for sums without a local target, from 1 on */
};

/* The helper of a block at another rank, by its number. */
uint32_t lists_helper(const struct lists *lists, uint32_t block, uint32_t rank);
/* Adds a step, which waits for everything that the list was told to wait for since its previous step. */
ncclResult_t lists_push(struct lists *lists, struct one_list *list, const struct list_step *step,
                        uint32_t line);

/* One chunk of a move: steps of the block's list and of its helpers (move.c). */
ncclResult_t lists_move_chunk(struct lists *lists, uint32_t block, const struct onesided_op *op,
                              uint32_t chunk);

#endif
