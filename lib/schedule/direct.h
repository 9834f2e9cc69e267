/* direct.h: collectives among ranks that all reach each other: every rank has a link to and from every other
 * rank. Link k of a side is the k-th other rank, counted from rank 0, on both sides; so sums are added in
 * rank order and all ranks get the same bits; only where the root has no shard the count begins after it
 * (direct_is_apart). A loop has at most three steps, each over all links at once:
 * the first sends input, the second adds it up, the last collects. */
#ifndef TUTTI_SCHEDULE_DIRECT_H
#define TUTTI_SCHEDULE_DIRECT_H

#include "schedule/chunk.h"
#include "schedule/work.h"

/* The steps of a loop, in their order. */
enum direct_kind { DIRECT_FIRST, DIRECT_SUM, DIRECT_LAST, DIRECT_KINDS };

struct direct_iter {
  uint32_t kind;   /* of the next step, an enum direct_kind */
  uint32_t copies; /* that this kind has made in this turn: direct_copy_next() */
  size_t turn;     /* elements of the part before the loop whose first step is made in this turn */
};

/* Whether the root has no shard (WORK_ROOT_APART): each link then carries as many bytes as the operation has,
 * the root's too. Ranks, and so links and shards, are counted from the one after the root, which is the last.
 * A reduction adds in this order, as a ring does. Each link that is used has one step in a loop. */
PRIM_FN bool direct_is_apart(const struct work *work) { return (work->flags & WORK_ROOT_APART) != 0; }

/* The rank's number in the order of links and shards. */
PRIM_FN uint32_t direct_place(const struct work *work) {
  if (!direct_is_apart(work)) return work->rank;
  return work->rank > work->root ? work->rank - work->root - 1
                                 : work->rank + work->rank_count - work->root - 1;
}

/* Consecutive chunks of a part in one loop: one shard per rank in two shots. */
PRIM_FN uint32_t direct_loop_chunks(const struct work *work) {
  if (work->algo != ALGO_TWO_SHOT) return 1;
  return work->rank_count - (direct_is_apart(work) ? 1 : 0);
}

/* Elements of the part in a loop, except for the last one. */
PRIM_FN size_t direct_loop_elements(const struct work *work) {
  return work->chunk_count * direct_loop_chunks(work);
}

PRIM_FN size_t direct_loops(const struct work *work) {
  return size_div_up(work->part_count, direct_loop_elements(work));
}

/* Steps of a loop on each link of a side. */
PRIM_FN uint32_t direct_link_steps(const struct work *work) {
  return work->algo == ALGO_TWO_SHOT && !direct_is_apart(work) ? 2 : 1;
}

/* A root that is apart scatters, or collects the sums; out of place a broadcast's root also copies. */
PRIM_FN bool direct_apart_has(const struct work *work, uint32_t kind) {
  const bool root = work->rank == work->root, reduces = work->func == FUNC_REDUCE;
  if (kind == DIRECT_FIRST) return reduces || root;
  if (kind == DIRECT_SUM) return !root || (!reduces && (work->flags & WORK_IN_PLACE) == 0);
  return reduces == root;
}

/* A reduction in one hop, the mirror of a broadcast: the root receives all inputs and adds them to its own.
 */
PRIM_FN bool direct_is_one_hop_reduce(const struct work *work) {
  return work->func == FUNC_REDUCE && work->algo == ALGO_DIRECT;
}

/* Whether the loops of this rank have such a step. */
PRIM_FN bool direct_has(const struct work *work, uint32_t kind) {
  const uint8_t func = work->func;
  const bool root = work->rank == work->root;
  if (direct_is_apart(work)) return direct_apart_has(work, kind);
  if (kind == DIRECT_FIRST) return work->send_count > 0;
  if (kind == DIRECT_SUM)
    return work->recv_count > 0 &&
           (func == FUNC_ALL_REDUCE || func == FUNC_REDUCE_SCATTER || func == FUNC_REDUCE);
  if (func == FUNC_REDUCE) return root && work->algo == ALGO_TWO_SHOT;
  return work->algo == ALGO_TWO_SHOT || func == FUNC_ALL_GATHER || func == FUNC_ALL_TO_ALL ||
         (func == FUNC_BROADCAST && !root);
}

/* Turns by which a loop's step of this kind is made after its first one. With WORK_LOOPS_OVERLAP the links
 * carry the next loop's data while counters of this one are in flight; it takes DIRECT_OVERLAP_SLOTS slots.
 * Without sums, the order of sends and that of receives do not depend on it, so ranks may differ. */
#define DIRECT_OVERLAP_SLOTS 4u
PRIM_FN uint32_t direct_lag(const struct work *work, uint32_t kind) {
  if ((work->flags & WORK_LOOPS_OVERLAP) == 0) return 0;
  if (kind == DIRECT_LAST && !direct_has(work, DIRECT_SUM) && !direct_is_apart(work))
    return (work->flags & WORK_DIRECT_RECV) != 0 ? 3 : 1; /* it only waits where senders store into outputs */
  return kind;
}

PRIM_FN void direct_begin(struct direct_iter *it, const struct work *work) {
  (void)work;
  it->kind = DIRECT_FIRST;
  it->copies = 0;
  it->turn = 0;
}

PRIM_FN link_set direct_all_links(const struct work *work) { return link_first(work->rank_count - 1); }

/* Makes the step one with a block for each link (STEP_EACH). */
PRIM_FN void direct_step_each(const struct work *work, size_t stride, size_t end, struct step *step) {
  step->flags |= STEP_EACH;
  step->own_index = direct_place(work);
#if PRIM_ALGOS > 0
  step->stride = stride;
  step->end = end;
#else
  (void)stride, (void)end;
#endif
}

PRIM_FN bool direct_shows_input(const struct work *work) {
  return PRIM_ALGOS > 0 && (work->flags & WORK_SHOWS_INPUT) != 0;
}

/* Adds own and received values in the order of links; those of others may be read in place. */
PRIM_FN void direct_step_reduce(const struct work *work, struct step *step) {
  step->flags = STEP_RECV | STEP_COPY_IN | STEP_REDUCE | STEP_KEEP | STEP_POST_OP;
  if (direct_shows_input(work)) step->flags |= STEP_RECV_SHOWN;
  step->recv_links = direct_all_links(work);
  step->own_index = direct_place(work);
}

PRIM_FN void direct_step_send(const struct work *work, uint32_t final, struct step *step) {
  step->flags = STEP_COPY_IN | STEP_SEND | final;
  if (final == 0 && direct_shows_input(work)) step->flags |= STEP_SEND_SHOWN;
  step->send_links = link_first(work->send_count);
}

PRIM_FN void direct_step_collect(const struct work *work, struct step *step) {
  step->flags = STEP_RECV | STEP_KEEP | STEP_RECV_FINAL;
  step->recv_links = direct_all_links(work);
}

/* One shot: send the whole input to every rank; add what every rank sent. In place, the sum overwrites values
 * that may still be moving to other ranks, and no reply says that they have left, so the sum waits
 * (STEP_IN_ORDER). A reduction in one hop has half of it on each rank: the root adds, and all others send. */
PRIM_FN void direct_one_shot_step(const struct work *work, uint32_t kind, struct step *step) {
  if (kind == DIRECT_FIRST) direct_step_send(work, 0, step);
  else direct_step_reduce(work, step);
  if (kind != DIRECT_FIRST && work->send_count > 0 && (work->flags & WORK_IN_PLACE) != 0)
    step->flags |= STEP_IN_ORDER;
}

/* The ranks that need a rank's sum: all others, or, of a reduction to a root, the root. */
PRIM_FN link_set direct_sum_links(const struct work *work) {
  if (work->func != FUNC_REDUCE) return direct_all_links(work);
  if (work->rank == work->root) return 0;
  return link_bit(work->root < work->rank ? work->root : work->root - 1);
}

/* The own shard's sum, kept if this rank's output has it, and sent to the ranks that need it. */
PRIM_FN void direct_step_sum(const struct work *work, struct step *step) {
  direct_step_reduce(work, step);
  step->send_links = direct_sum_links(work);
  if (step->send_links != 0) step->flags |= STEP_SEND | STEP_SEND_FINAL;
  if (work->func == FUNC_REDUCE && work->rank != work->root) step->flags &= ~(uint32_t)STEP_KEEP;
}

/* Two shots: send each shard to its rank; add the own shard and send the sum to every rank; receive each
 * other shard from its rank. A reduction to a root sends the sums to the root alone. `rest`: elements of the
 * part from this loop on. */
PRIM_FN void direct_two_shot_step(const struct work *work, uint32_t kind, size_t rest, struct step *step) {
  const size_t chunk = step->count, begin = work->rank * chunk;
  if (kind != DIRECT_SUM) {
    if (kind == DIRECT_FIRST) direct_step_send(work, 0, step);
    else direct_step_collect(work, step);
    direct_step_each(work, chunk, rest, step);
    return;
  }
  direct_step_sum(work, step);
  step->chunk_index = work->rank;
  step->in_offset += begin;
  step->out_offset += begin;
  step->count = rest > begin ? size_min(chunk, rest - begin) : 0;
}

/* The second step of a loop whose root is apart: the own shard's sum goes to the root, or the own shard from
 * the root to all others; a broadcast's root copies the loop to its output, a shard a step. The root sends
 * through slots, so that it waits for nobody's address. */
PRIM_FN void direct_apart_middle(const struct work *work, size_t loop, struct step *step) {
  const uint32_t place = direct_place(work);
  const size_t chunk = step->count, begin = place * chunk;
  const link_set root = link_bit(work->rank_count - 2);
  if (work->rank == work->root) {
    step->flags = STEP_COPY_IN | STEP_KEEP;
    step->count = size_min(chunk, loop);
    return;
  }
  if (work->func == FUNC_REDUCE) {
    direct_step_reduce(work, step);
    step->flags = (step->flags & ~(uint32_t)STEP_KEEP) | STEP_SEND | STEP_SEND_FINAL;
    step->send_links = root;
  } else {
    step->flags = STEP_RECV | STEP_KEEP | STEP_SEND | STEP_SEND_FINAL;
    step->recv_links = root;
    step->send_links = link_first(work->rank_count - 2);
  }
  step->chunk_index = place;
  step->in_offset += begin;
  step->out_offset += begin;
  step->count = loop > begin ? size_min(chunk, loop - begin) : 0;
}

/* Two shots whose root is apart. Only the root's link may be left out of the first and the last step: it is
 * the last one of a rank that is not the root. */
PRIM_FN void direct_apart_step(const struct work *work, uint32_t kind, size_t rest, struct step *step) {
  const size_t chunk = step->count, loop = size_min(rest, chunk * direct_loop_chunks(work));
  const link_set links = link_first(work->rank_count - (work->rank == work->root ? 1 : 2));
  if (kind == DIRECT_SUM) {
    direct_apart_middle(work, loop, step);
    return;
  }
  if (kind == DIRECT_FIRST) {
    step->flags = STEP_COPY_IN | STEP_SEND;
    step->send_links = links;
  } else {
    step->flags = STEP_RECV | STEP_KEEP | STEP_RECV_FINAL;
    step->recv_links = links;
  }
  direct_step_each(work, chunk, loop, step);
}

/* The own block to every rank; then every rank's block. */
PRIM_FN void direct_all_gather_step(const struct work *work, uint32_t kind, struct step *step) {
  if (kind == DIRECT_LAST) {
    direct_step_collect(work, step);
    direct_step_each(work, work->count, SIZE_MAX, step);
    return;
  }
  direct_step_send(work, STEP_SEND_FINAL, step);
  if ((work->flags & WORK_IN_PLACE) == 0) step->flags |= STEP_KEEP;
  step->out_offset += work->rank * work->count;
}

PRIM_FN void direct_reduce_scatter_step(const struct work *work, uint32_t kind, struct step *step) {
  if (kind == DIRECT_FIRST) {
    direct_step_send(work, 0, step);
    direct_step_each(work, work->count, SIZE_MAX, step);
    return;
  }
  direct_step_reduce(work, step);
  step->in_offset += work->rank * work->count;
}

/* To every rank its block, and the own one to the output; then every rank's block. */
PRIM_FN void direct_all_to_all_step(const struct work *work, uint32_t kind, struct step *step) {
  if (kind == DIRECT_FIRST) direct_step_send(work, STEP_SEND_FINAL | STEP_KEEP, step);
  else direct_step_collect(work, step);
  direct_step_each(work, work->count, SIZE_MAX, step);
}

/* From the root to every other rank. The root has a link to each; any other rank has one link, from the
 * root. */
PRIM_FN void direct_broadcast_step(const struct work *work, uint32_t kind, struct step *step) {
  if (kind == DIRECT_FIRST) {
    direct_step_send(work, STEP_SEND_FINAL, step);
    if ((work->flags & WORK_IN_PLACE) == 0) step->flags |= STEP_KEEP;
    return;
  }
  step->flags = STEP_RECV | STEP_KEEP | STEP_RECV_FINAL;
  step->recv_links = 1;
}

/* A step of the loop that has `done` elements of the part before it. */
PRIM_FN void direct_step_at(const struct work *work, size_t done, uint32_t kind, struct step *step) {
  const size_t rest = work->part_count - done;
  step->recv_links = step->send_links = step->own_index = step->chunk_index = 0;
  step->in_offset = step->out_offset = work->part_offset + done;
  step->count = chunk_of_loop(rest, work->chunk_count, direct_loop_chunks(work), work->last_chunk_count);
  if (direct_is_apart(work)) {
    direct_apart_step(work, kind, rest, step);
    return;
  }
  switch (work->func) {
    case FUNC_ALL_REDUCE:
    case FUNC_REDUCE:
      if (work->algo == ALGO_TWO_SHOT) direct_two_shot_step(work, kind, rest, step);
      else direct_one_shot_step(work, kind, step);
      break;
    case FUNC_ALL_GATHER: direct_all_gather_step(work, kind, step); break;
    case FUNC_REDUCE_SCATTER: direct_reduce_scatter_step(work, kind, step); break;
    case FUNC_ALL_TO_ALL: direct_all_to_all_step(work, kind, step); break;
    default: direct_broadcast_step(work, kind, step); break;
  }
}

/* Moves a copy of a root that is apart to its shard; true if more of the loop follow. */
PRIM_FN bool direct_copy_next(struct direct_iter *it, const struct work *work, size_t rest,
                              struct step *step) {
  if (!direct_is_apart(work) || work->rank != work->root || it->kind != DIRECT_SUM) return false;
  const size_t chunk = step->count, begin = it->copies * chunk;
  const size_t loop = size_min(rest, chunk * direct_loop_chunks(work));
  step->in_offset += begin;
  step->out_offset += begin;
  step->count = size_min(chunk, loop - begin);
  it->copies = begin + chunk < loop ? it->copies + 1 : 0;
  return it->copies > 0;
}

PRIM_FN bool direct_next(struct direct_iter *it, const struct work *work, struct step *step) {
  const size_t loop = direct_loop_elements(work);
  for (;; it->kind++) {
    if (it->kind == DIRECT_KINDS) {
      it->kind = DIRECT_FIRST;
      it->turn += loop;
      if (it->turn >= work->part_count + direct_lag(work, DIRECT_LAST) * loop) return false;
    }
    const size_t before = direct_lag(work, it->kind) * loop;
    if (it->turn < before || it->turn - before >= work->part_count || !direct_has(work, it->kind)) continue;
    direct_step_at(work, it->turn - before, it->kind, step);
    if (!direct_copy_next(it, work, work->part_count - (it->turn - before), step)) it->kind += 1;
    return true;
  }
}

#endif
