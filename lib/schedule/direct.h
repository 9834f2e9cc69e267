/* direct.h: collectives among ranks that all reach each other: every rank has a link to and from every other
 * rank. Link k of a side is the k-th other rank, counted from rank 0, on both sides; so sums are added in
 * rank order and all ranks get the same bits. A loop has at most three steps, each over all links at once:
 * the first sends input, the second adds it up, the last collects. GPUs execute these steps by kernels of
 * their own (kernels/direct.h, direct_once.h, direct_simple.h), which must change with them. */
#ifndef TUTTI_SCHEDULE_DIRECT_H
#define TUTTI_SCHEDULE_DIRECT_H

#include "schedule/chunk.h"
#include "schedule/work.h"

struct direct_iter {
  uint32_t step_index, step_count; /* within the loop */
  size_t done, chunk_count;        /* elements of the part before this loop; chunk of this loop */
};

/* Consecutive chunks of a part in one loop: one shard per rank in a two-shot all-reduce. */
PRIM_FN uint32_t direct_loop_chunks(const struct work *work) {
  return work->algo == ALGO_TWO_SHOT ? work->rank_count : 1;
}

/* Steps of one loop on this rank. */
PRIM_FN uint32_t direct_loop_steps(const struct work *work) {
  if (work->func == FUNC_BROADCAST) return 1;
  if (work->func == FUNC_REDUCE) return work->rank == work->root ? 3 : 2;
  return work->algo == ALGO_TWO_SHOT ? 3 : 2;
}

PRIM_FN void direct_loop_begin(struct direct_iter *it, const struct work *work) {
  it->step_index = 0;
  it->chunk_count = chunk_of_loop(work->part_count - it->done, work->chunk_count, direct_loop_chunks(work),
                                  work->last_chunk_count);
}

PRIM_FN void direct_begin(struct direct_iter *it, const struct work *work) {
  it->done = 0;
  it->step_count = direct_loop_steps(work);
  direct_loop_begin(it, work);
}

PRIM_FN link_set direct_all_links(const struct work *work) { return link_first(work->rank_count - 1); }

/* Makes the step one with a block for each link (STEP_EACH). */
PRIM_FN void direct_step_each(const struct work *work, size_t stride, size_t end, struct step *step) {
  step->flags |= STEP_EACH;
  step->own_index = work->rank;
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

/* Adds own and received values in rank order; those of others may be read in place. */
PRIM_FN void direct_step_reduce(const struct work *work, struct step *step) {
  step->flags = STEP_RECV | STEP_COPY_IN | STEP_REDUCE | STEP_KEEP | STEP_POST_OP;
  if (direct_shows_input(work)) step->flags |= STEP_RECV_SHOWN;
  step->recv_links = direct_all_links(work);
  step->own_index = work->rank;
}

PRIM_FN void direct_step_send(const struct work *work, uint32_t final, struct step *step) {
  step->flags = STEP_COPY_IN | STEP_SEND | final;
  if (final == 0 && direct_shows_input(work)) step->flags |= STEP_SEND_SHOWN;
  step->send_links = direct_all_links(work);
}

PRIM_FN void direct_step_collect(const struct work *work, struct step *step) {
  step->flags = STEP_RECV | STEP_KEEP | STEP_RECV_FINAL;
  step->recv_links = direct_all_links(work);
}

/* One shot: send the whole input to every rank; add what every rank sent. In place, the sum overwrites values
 * that may still be moving to other ranks, and no reply says that they have left, so the sum waits
 * (STEP_IN_ORDER). */
PRIM_FN void direct_one_shot_step(const struct direct_iter *it, const struct work *work, struct step *step) {
  if (it->step_index == 0) direct_step_send(work, 0, step);
  else direct_step_reduce(work, step);
  if (it->step_index != 0 && (work->flags & WORK_IN_PLACE) != 0) step->flags |= STEP_IN_ORDER;
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
 * other shard from its rank. A reduction to a root sends the sums to the root alone. */
PRIM_FN void direct_two_shot_step(const struct direct_iter *it, const struct work *work, struct step *step) {
  const size_t chunk = it->chunk_count, rest = work->part_count - it->done;
  if (it->step_index == 1) {
    const size_t begin = work->rank * chunk;
    direct_step_sum(work, step);
    step->chunk_index = work->rank;
    step->in_offset += begin;
    step->out_offset += begin;
    step->count = rest > begin ? size_min(chunk, rest - begin) : 0;
    return;
  }
  if (it->step_index == 0) direct_step_send(work, 0, step);
  else direct_step_collect(work, step);
  direct_step_each(work, chunk, rest, step);
}

/* The own block to every rank; then every rank's block. */
PRIM_FN void direct_all_gather_step(const struct direct_iter *it, const struct work *work,
                                    struct step *step) {
  if (it->step_index == 1) {
    direct_step_collect(work, step);
    direct_step_each(work, work->count, SIZE_MAX, step);
    return;
  }
  direct_step_send(work, STEP_SEND_FINAL, step);
  if ((work->flags & WORK_IN_PLACE) == 0) step->flags |= STEP_KEEP;
  step->out_offset += work->rank * work->count;
}

PRIM_FN void direct_reduce_scatter_step(const struct direct_iter *it, const struct work *work,
                                        struct step *step) {
  if (it->step_index == 0) {
    direct_step_send(work, 0, step);
    direct_step_each(work, work->count, SIZE_MAX, step);
    return;
  }
  direct_step_reduce(work, step);
  step->in_offset += work->rank * work->count;
}

/* To every rank its block, and the own one to the output; then every rank's block. */
PRIM_FN void direct_all_to_all_step(const struct direct_iter *it, const struct work *work,
                                    struct step *step) {
  if (it->step_index == 0) direct_step_send(work, STEP_SEND_FINAL | STEP_KEEP, step);
  else direct_step_collect(work, step);
  direct_step_each(work, work->count, SIZE_MAX, step);
}

/* From the root to every other rank. The root has a link to each; any other rank has one link, from the
 * root. */
PRIM_FN void direct_broadcast_step(const struct work *work, struct step *step) {
  if (work->rank == work->root) {
    direct_step_send(work, STEP_SEND_FINAL, step);
    if ((work->flags & WORK_IN_PLACE) == 0) step->flags |= STEP_KEEP;
    return;
  }
  step->flags = STEP_RECV | STEP_KEEP | STEP_RECV_FINAL;
  step->recv_links = 1;
}

PRIM_FN bool direct_next(struct direct_iter *it, const struct work *work, struct step *step) {
  if (it->step_index == it->step_count) {
    it->done += it->chunk_count * direct_loop_chunks(work);
    if (it->done < work->part_count) direct_loop_begin(it, work);
  }
  if (it->done >= work->part_count) return false;
  step->recv_links = step->send_links = step->own_index = step->chunk_index = 0;
  step->in_offset = step->out_offset = work->part_offset + it->done;
  step->count = it->chunk_count;
  switch (work->func) {
    case FUNC_ALL_REDUCE:
      if (work->algo == ALGO_TWO_SHOT) direct_two_shot_step(it, work, step);
      else direct_one_shot_step(it, work, step);
      break;
    case FUNC_ALL_GATHER: direct_all_gather_step(it, work, step); break;
    case FUNC_REDUCE: direct_two_shot_step(it, work, step); break;
    case FUNC_REDUCE_SCATTER: direct_reduce_scatter_step(it, work, step); break;
    case FUNC_ALL_TO_ALL: direct_all_to_all_step(it, work, step); break;
    default: direct_broadcast_step(work, step); break;
  }
  it->step_index += 1;
  return true;
}

#endif
