/* ring.h: what each rank does at each step of the ring algorithms. Each collective has an iterator over one
 * struct: begin, then next until false. It knows the work's counts and the rank's position in the ring, and
 * nothing of memory or waiting.
 *
 * A loop moves one chunk per rank (broadcast and reduce: one chunk in total). Chunk and block numbers count
 * along the ring; at step i of a loop a rank handles what its owner sent i hops ago, so each value travels
 * around the ring once. */
#ifndef TUTTI_SCHEDULE_RING_H
#define TUTTI_SCHEDULE_RING_H

#include "schedule/chunk.h"
#include "schedule/work.h"

struct ring_iter {
  uint32_t step_index, step_count; /* within the loop */
  size_t done, chunk_count;        /* elements of the part before this loop; chunk of this loop */
};

/* Steps that one loop of a collective takes on every rank. */
PRIM_FN uint32_t ring_loop_steps(const struct work *work) {
  switch (work->func) {
    case FUNC_ALL_REDUCE: return 2 * work->rank_count - 1;
    case FUNC_ALL_GATHER:
    case FUNC_REDUCE_SCATTER: return work->rank_count;
    default: return 1;
  }
}

/* Chunks that one loop of a collective moves along the part. */
PRIM_FN uint32_t ring_loop_chunks(const struct work *work) {
  return work->func == FUNC_ALL_REDUCE ? work->rank_count : 1;
}

/* Sets last_chunk_count from the other counts. The planner calls it, because division is slow on a GPU. */
PRIM_FN void ring_cut(struct work *work) {
  work->last_chunk_count =
      chunk_last_count(work->part_count, work->chunk_count, ring_loop_chunks(work), work->element_bytes);
}

PRIM_FN void ring_loop_begin(struct ring_iter *it, const struct work *work) {
  it->step_index = 0;
  it->chunk_count = chunk_of_loop(work->part_count - it->done, work->chunk_count, ring_loop_chunks(work),
                                  work->last_chunk_count);
}

PRIM_FN void ring_begin(struct ring_iter *it, const struct work *work) {
  it->done = 0;
  it->step_count = ring_loop_steps(work);
  ring_loop_begin(it, work);
}

/* The rank that is `distance` hops ahead of this one along the ring. */
PRIM_FN uint32_t ring_rank_at(const struct work *work, uint32_t distance) {
  uint32_t index = work->ring_index + distance;
  if (index >= work->rank_count) index -= work->rank_count;
  return work->ring_ranks[index];
}

/* send, n-2 x recvReduceSend, recvReduceCopySend, n-2 x recvCopySend, recv. */
PRIM_FN void ring_all_reduce_step(const struct ring_iter *it, const struct work *work, struct step *step) {
  const uint32_t n = work->rank_count, i = it->step_index;
  uint32_t chunk = work->ring_index + 2 * n - 1 - i; /* mod n, below 3n */
  if (chunk >= n) chunk -= n;
  if (chunk >= n) chunk -= n;
  const size_t begin = it->done + chunk * it->chunk_count;
  const size_t rest = work->part_count > begin ? work->part_count - begin : 0;
  step->chunk_index = chunk;
  step->flags = (i > 0 ? (uint32_t)STEP_RECV : 0) | (i < 2 * n - 2 ? (uint32_t)STEP_SEND : 0) |
                (i < n ? (uint32_t)STEP_COPY_IN : 0) | (i > 0 && i < n ? (uint32_t)STEP_REDUCE : 0) |
                (i >= n - 1 ? (uint32_t)STEP_KEEP : 0) |
                (i >= n - 1 && i < 2 * n - 2 ? (uint32_t)STEP_SEND_FINAL : 0) |
                (i == n - 1 ? (uint32_t)STEP_POST_OP : 0) | (i >= n ? (uint32_t)STEP_RECV_FINAL : 0);
  step->in_offset = step->out_offset = work->part_offset + begin;
  step->count = size_min(rest, it->chunk_count);
}

/* send or copySend of the rank's own block, n-2 x recvCopySend, recv. */
PRIM_FN void ring_all_gather_step(const struct ring_iter *it, const struct work *work, struct step *step) {
  const uint32_t n = work->rank_count, i = it->step_index;
  const uint32_t block = ring_rank_at(work, i == 0 ? 0 : n - i);
  step->chunk_index = block;
  if (i == 0) {
    step->flags = STEP_COPY_IN | STEP_SEND | STEP_SEND_FINAL;
    if ((work->flags & WORK_IN_PLACE) == 0) step->flags |= STEP_KEEP;
  } else {
    step->flags = STEP_RECV | STEP_KEEP | STEP_RECV_FINAL;
    if (i < n - 1) step->flags |= STEP_SEND | STEP_SEND_FINAL;
  }
  step->in_offset = work->part_offset + it->done;
  step->out_offset = block * work->count + work->part_offset + it->done;
  step->count = it->chunk_count;
}

/* send, n-2 x recvReduceSend, recvReduceCopy of the rank's own block. */
PRIM_FN void ring_reduce_scatter_step(const struct ring_iter *it, const struct work *work,
                                      struct step *step) {
  const uint32_t n = work->rank_count, i = it->step_index;
  const uint32_t block = ring_rank_at(work, n - 1 - i);
  step->chunk_index = block;
  step->flags = STEP_COPY_IN;
  if (i > 0) step->flags |= STEP_RECV | STEP_REDUCE;
  step->flags |= i < n - 1 ? (uint32_t)STEP_SEND : (uint32_t)(STEP_KEEP | STEP_POST_OP);
  step->in_offset = block * work->count + work->part_offset + it->done;
  step->out_offset = work->part_offset + it->done;
  step->count = it->chunk_count;
}

/* A chain from the root along the ring: send or copySend, recvCopySend ..., recv. */
PRIM_FN void ring_broadcast_step(const struct ring_iter *it, const struct work *work, struct step *step) {
  const bool is_root = work->rank == work->root;
  const bool is_last = ring_rank_at(work, 1) == work->root;
  step->chunk_index = 0;
  step->flags = is_root ? (uint32_t)STEP_COPY_IN : (uint32_t)(STEP_RECV | STEP_RECV_FINAL | STEP_KEEP);
  if (is_root && (work->flags & WORK_IN_PLACE) == 0) step->flags |= STEP_KEEP;
  if (!is_last) step->flags |= STEP_SEND | STEP_SEND_FINAL;
  step->in_offset = step->out_offset = work->part_offset + it->done;
  step->count = it->chunk_count;
}

/* The chain that ends at the root: send, recvReduceSend ..., recvReduceCopy. */
PRIM_FN void ring_reduce_step(const struct ring_iter *it, const struct work *work, struct step *step) {
  const bool is_root = work->rank == work->root;
  const bool is_first = ring_rank_at(work, work->rank_count - 1) == work->root;
  step->chunk_index = 0;
  step->flags = STEP_COPY_IN;
  if (!is_first) step->flags |= STEP_RECV | STEP_REDUCE;
  step->flags |= is_root ? (uint32_t)(STEP_KEEP | STEP_POST_OP) : (uint32_t)STEP_SEND;
  step->in_offset = step->out_offset = work->part_offset + it->done;
  step->count = it->chunk_count;
}

PRIM_FN bool ring_next(struct ring_iter *it, const struct work *work, struct step *step) {
  if (it->step_index == it->step_count) {
    it->done += it->chunk_count * ring_loop_chunks(work);
    if (it->done < work->part_count) ring_loop_begin(it, work);
  }
  if (it->done >= work->part_count) return false;
  switch (work->func) {
    case FUNC_ALL_REDUCE: ring_all_reduce_step(it, work, step); break;
    case FUNC_ALL_GATHER: ring_all_gather_step(it, work, step); break;
    case FUNC_REDUCE_SCATTER: ring_reduce_scatter_step(it, work, step); break;
    case FUNC_BROADCAST: ring_broadcast_step(it, work, step); break;
    default: ring_reduce_step(it, work, step); break;
  }
  step->recv_links = (step->flags & STEP_RECV) ? 1 : 0;
  step->send_links = (step->flags & STEP_SEND) ? 1 : 0;
  step->own_index = 0;
  it->step_index += 1;
  return true;
}

#endif
