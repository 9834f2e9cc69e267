/* pat.h: parallel aggregated trees (PAT): all-gather and reduce-scatter in hops of powers of two, for any
 * number of ranks. Every rank is the root of its own tree, all trees have the same shape, and blocks that
 * take the same hop at the same time share a slot of the link.
 *
 * A block's offset on a rank is the distance from the block's owner to this rank, 1..n-1. The lowest set bit
 * of the offset determines the hop: with d the lowest set bit of s, all-gather brings a block to offset s
 * from the rank at distance 2^d, where its offset is s - 2^d (the parent of s); reduce-scatter sends sums in
 * the reverse direction. Link d of either side is the peer at distance 2^d. Offsets form `work->pack` rows,
 * `span` apart: a pass handles one column, and its blocks share a slot; passes over the rows' first offsets
 * (far) go by their lowest bit. Offsets at or above the number of ranks are left out. */
#ifndef TUTTI_SCHEDULE_PAT_H
#define TUTTI_SCHEDULE_PAT_H

#include "schedule/chunk.h"
#include "schedule/work.h"

enum pat_phase { PAT_FAR, PAT_NEAR, PAT_LAST, PAT_END };

struct pat_iter {
  size_t done, chunk_count; /* elements of the part before this chunk; this chunk */
  uint32_t span;            /* offsets per row: a power of two, at least 2 */
  uint8_t phase;            /* enum pat_phase */
  uint8_t pass;             /* 0 or 1: a column, or a scale, has up to two passes */
  uint32_t at;              /* far: scale; near: column */
  uint32_t index;           /* within the pass */
};

PRIM_FN uint32_t pat_low_bit(uint32_t offset) { return offset & (0 - offset); }

PRIM_FN uint32_t pat_bit_index(uint32_t bit) {
  uint32_t index = 0;
  for (; bit > 1; bit /= 2) index += 1;
  return index;
}

PRIM_FN uint32_t pat_power_up(uint32_t rank_count) {
  uint32_t power = 1;
  while (power < rank_count) power *= 2;
  return power;
}

/* Links per side. */
PRIM_FN uint32_t pat_dims(uint32_t rank_count) { return pat_bit_index(pat_power_up(rank_count)); }

/* Blocks per slot of step_bytes: as many as fit, a power of two below the number of ranks. */
PRIM_FN uint32_t pat_pack(uint32_t rank_count, size_t block_bytes, size_t step_bytes) {
  uint32_t pack = 1;
  while (pack < rank_count / 2 && 2 * pack * block_bytes <= step_bytes) pack *= 2;
  return pack;
}

/* The block's index among those that share its slot; and, below, the offset of the next one. */
PRIM_FN uint32_t pat_place(const struct pat_iter *it, uint32_t offset) {
  return offset % it->span != 0 ? offset / it->span : offset / (2 * pat_low_bit(offset));
}
PRIM_FN uint32_t pat_next_in_slot(const struct pat_iter *it, uint32_t offset) {
  return offset + (offset % it->span != 0 ? it->span : 2 * pat_low_bit(offset));
}

/* ---- the order of passes ---- */

/* All-gather visits the columns in a traversal order of the binomial tree: each parent before its children,
 * the farther child first. Returns 0 after the last column. */
PRIM_FN uint32_t pat_column_down(uint32_t column) {
  if (column % 2 == 0) return column + pat_low_bit(column) / 2;
  column -= 1;
  return column - pat_low_bit(column) / 2;
}

PRIM_FN void pat_enter(struct pat_iter *it, uint8_t phase, uint32_t at, uint8_t pass) {
  it->phase = phase;
  it->at = at;
  it->pass = pass;
  it->index = 0;
}

PRIM_FN void pat_begin_chunk(struct pat_iter *it, const struct work *work) {
  it->chunk_count = size_min(work->chunk_count, work->part_count - it->done);
  it->span = pat_power_up(work->rank_count) / work->pack;
  if (work->func == FUNC_REDUCE_SCATTER) pat_enter(it, PAT_NEAR, it->span - 1, 0);
  else if (work->pack > 1) pat_enter(it, PAT_FAR, work->pack / 2, 0);
  else pat_enter(it, PAT_NEAR, it->span / 2, 0);
}

PRIM_FN void pat_begin(struct pat_iter *it, const struct work *work) {
  it->done = 0;
  pat_begin_chunk(it, work);
}

/* All-gather: far offsets by decreasing scale, then the columns; odd columns have a second pass that only
 * receives. */
PRIM_FN void pat_gather_advance(struct pat_iter *it) {
  if (it->phase == PAT_FAR) {
    if (it->at > 1) pat_enter(it, PAT_FAR, it->at / 2, 0);
    else pat_enter(it, PAT_NEAR, it->span / 2, 0);
    return;
  }
  const uint32_t next = pat_column_down(it->at);
  if (it->at % 2 == 1 && it->pass == 0) pat_enter(it, PAT_NEAR, it->at, 1);
  else pat_enter(it, next == 0 ? PAT_END : PAT_NEAR, next, 0);
}

/* Reduce-scatter: columns by decreasing number; odd columns have a first pass that only sends. Column 1 is
 * received with the scales of the far offsets instead, and the own block comes last. */
PRIM_FN void pat_scatter_advance(struct pat_iter *it, const struct work *work) {
  if (it->phase == PAT_LAST) {
    pat_enter(it, PAT_END, 0, 0);
  } else if (it->phase == PAT_FAR) {
    if (it->pass == 0) pat_enter(it, PAT_FAR, it->at, 1);
    else pat_enter(it, 2 * it->at < work->pack ? PAT_FAR : PAT_LAST, 2 * it->at, 0);
  } else if (it->at == 1) {
    pat_enter(it, work->pack > 1 ? PAT_FAR : PAT_LAST, 1, 0);
  } else if (it->at % 2 == 1 && it->pass == 0) {
    pat_enter(it, PAT_NEAR, it->at, 1);
  } else {
    pat_enter(it, PAT_NEAR, it->at - 1, it->at % 2 == 1 ? 1 : 0);
  }
}

/* Returns the pass's current offset and advances; false after the last. */
PRIM_FN bool pat_pass_next(struct pat_iter *it, const struct work *work, uint32_t *offset) {
  const uint32_t far = it->at * it->span, index = it->index;
  const bool first_far = it->phase == PAT_FAR && it->pass == 0 && work->func == FUNC_REDUCE_SCATTER;
  const uint32_t count = it->phase == PAT_LAST  ? 1
                         : it->phase == PAT_FAR ? work->pack / (2 * it->at)
                                                : work->pack;
  if (index == count) return false;
  it->index += 1;
  if (it->phase == PAT_LAST) *offset = 1;
  else if (it->phase == PAT_NEAR) *offset = index * it->span + it->at;
  else *offset = (2 * index + 1) * far + (first_far ? 1 : 0);
  return true;
}

/* ---- steps ---- */

PRIM_FN void pat_recv(const struct pat_iter *it, uint32_t offset, bool more, struct step *step) {
  step->flags |= STEP_RECV | (more ? (uint32_t)STEP_RECV_MORE : 0);
  step->recv_links = pat_low_bit(offset);
  step->recv_place = (uint32_t)(pat_place(it, offset) * it->chunk_count);
}

PRIM_FN void pat_send(const struct pat_iter *it, uint32_t offset, bool more, struct step *step) {
  step->flags |= STEP_SEND | (more ? (uint32_t)STEP_SEND_MORE : 0);
  step->send_links = pat_low_bit(offset);
  step->send_place = (uint32_t)(pat_place(it, offset) * it->chunk_count);
}

PRIM_FN uint32_t pat_block(const struct work *work, uint32_t offset) {
  const uint32_t block = work->rank + offset;
  return block >= work->rank_count ? block - work->rank_count : block;
}

/* A block arrives in the step in which its first child would leave, even if that child does not exist. */
PRIM_FN bool pat_gather_step(const struct pat_iter *it, const struct work *work, uint32_t offset,
                             struct step *step) {
  const uint32_t n = work->rank_count, low = pat_low_bit(offset);
  const bool leaf = it->phase == PAT_NEAR && it->pass == 1, sends = !leaf && offset < n;
  const uint32_t held = leaf ? offset : offset - low; /* the step's block */
  const bool arrives = leaf || (held != 0 && pat_low_bit(held) == 2 * low);
  if (held >= n || !(sends || arrives)) return false;
  const uint32_t block = pat_block(work, held);
  step->chunk_index = block;
  step->out_offset += block * work->count;
  if (arrives) {
    pat_recv(it, held, pat_next_in_slot(it, held) < n, step);
    step->flags |= STEP_KEEP | STEP_RECV_FINAL;
  } else {
    step->flags |= STEP_COPY_IN;
    if (held != 0) step->flags |= STEP_FROM_OUTPUT;
    else if (offset == pat_power_up(n) / 2 && (work->flags & WORK_IN_PLACE) == 0) step->flags |= STEP_KEEP;
    if (held != 0) step->in_offset = step->out_offset;
  }
  if (!sends) return true;
  pat_send(it, offset, pat_next_in_slot(it, offset) < n, step);
  step->flags |= STEP_SEND_FINAL;
  return true;
}

/* The first child whose sum is added to this rank's own values; parent + 1 also if the parent has no
 * child. */
PRIM_FN uint32_t pat_first_child(const struct pat_iter *it, const struct work *work, uint32_t parent) {
  const uint32_t n = work->rank_count;
  uint32_t far = it->span / 2;
  if (it->span == 2) return parent % 4 == 0 && work->pack > 1 && parent + 2 < n ? parent + 2 : parent + 1;
  if (parent % it->span != 0) far = pat_low_bit(parent) / 2;
  while (far > 1 && parent + far >= n) far /= 2;
  return parent + far;
}

/* What arrives from a child is added to what goes to the parent's own parent, in that link's slot; the sum of
 * the own block is in the output. */
PRIM_FN bool pat_scatter_step(const struct pat_iter *it, const struct work *work, uint32_t offset,
                              struct step *step) {
  const uint32_t n = work->rank_count, parent = offset - pat_low_bit(offset);
  const bool leaf = it->phase == PAT_NEAR && it->pass == 0 && it->at % 2 == 1;
  const uint32_t sum = leaf ? offset : parent; /* the step's block */
  const bool own = leaf || offset == pat_first_child(it, work, parent), last = leaf || offset == parent + 1;
  const bool arrives = !leaf && offset < n;
  if (sum >= n || !(own || arrives)) return false;
  const uint32_t block = pat_block(work, sum);
  const bool column_1 = !leaf && offset % it->span == 1; /* received in another order, row 0 last */
  step->chunk_index = block;
  if (arrives) {
    pat_recv(it, offset, column_1 ? offset != 1 : pat_next_in_slot(it, offset) < n, step);
    if (own || sum == 0) step->flags |= STEP_REDUCE;
    else step->flags |= STEP_REDUCE | STEP_SEND_ADD;
  }
  if (own) step->in_offset += block * work->count;
  else if (sum == 0) step->in_offset = step->out_offset;
  if (own || sum == 0) step->flags |= STEP_COPY_IN | (own ? 0 : (uint32_t)STEP_FROM_OUTPUT);
  if (sum == 0) step->flags |= STEP_KEEP | (last ? (uint32_t)STEP_POST_OP : 0);
  else pat_send(it, sum, !last || pat_next_in_slot(it, sum) < n, step);
  return true;
}

PRIM_FN bool pat_next(struct pat_iter *it, const struct work *work, struct step *step) {
  const bool gathers = work->func == FUNC_ALL_GATHER;
  uint32_t offset;
  while (it->done < work->part_count) {
    if (it->phase == PAT_END) {
      it->done += it->chunk_count;
      if (it->done < work->part_count) pat_begin_chunk(it, work);
    } else if (!pat_pass_next(it, work, &offset)) {
      if (gathers) pat_gather_advance(it);
      else pat_scatter_advance(it, work);
    } else {
      step->flags = step->recv_links = step->send_links = step->own_index = 0;
      step->recv_place = step->send_place = 0;
      step->in_offset = step->out_offset = work->part_offset + it->done;
      step->count = it->chunk_count;
      if (gathers ? pat_gather_step(it, work, offset, step) : pat_scatter_step(it, work, offset, step))
        return true;
    }
  }
  return false;
}

#endif
