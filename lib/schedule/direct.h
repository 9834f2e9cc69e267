/* direct.h: collectives among ranks that all reach each other: every rank has a link to and from every other
 * rank. Link k of a side is the k-th other rank, counted from rank 0, on both sides; so sums are added in
 * rank order and all ranks get the same bits. GPUs execute these collectives by phases (kernels/direct.h,
 * direct_once.h, direct_simple.h), which must change with these steps. */
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
  const uint32_t others = work->rank_count - 1;
  switch (work->func) {
    case FUNC_ALL_REDUCE: return work->algo == ALGO_TWO_SHOT ? 2 * others + 1 : 2;
    case FUNC_ALL_GATHER:
    case FUNC_REDUCE_SCATTER: return others + 1;
    case FUNC_ALL_TO_ALL: return 2 * others + 1;
    default: return 1; /* broadcast */
  }
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

/* The turn-th other rank, starting after this one, so that at any time each rank sends to a different
 * peer. */
PRIM_FN uint32_t direct_peer(const struct work *work, uint32_t turn) {
  const uint32_t peer = work->rank + 1 + turn;
  return peer >= work->rank_count ? peer - work->rank_count : peer;
}

/* The rank that sends to this rank in the same turn. */
PRIM_FN uint32_t direct_source(const struct work *work, uint32_t turn) {
  return work->rank > turn ? work->rank - 1 - turn : work->rank + work->rank_count - 1 - turn;
}

PRIM_FN uint32_t direct_link(const struct work *work, uint32_t peer) {
  return 1u << (peer < work->rank ? peer : peer - 1);
}

PRIM_FN uint32_t direct_all_links(const struct work *work) { return (1u << (work->rank_count - 1)) - 1; }

/* Adds own and received values in rank order. */
PRIM_FN void direct_step_reduce(const struct work *work, struct step *step) {
  step->flags = STEP_RECV | STEP_COPY_IN | STEP_REDUCE | STEP_KEEP | STEP_POST_OP;
  step->recv_links = direct_all_links(work);
  step->own_index = work->rank;
}

PRIM_FN void direct_step_send(uint32_t links, uint32_t final, struct step *step) {
  step->flags = STEP_COPY_IN | STEP_SEND | final;
  step->send_links = links;
}

PRIM_FN void direct_step_recv(const struct work *work, uint32_t peer, struct step *step) {
  step->flags = STEP_RECV | STEP_KEEP | STEP_RECV_FINAL;
  step->recv_links = direct_link(work, peer);
}

/* One shot: send the whole input to every rank; add what every rank sent. In place, the sum overwrites values
 * that may still be moving to other ranks, and no reply says that they have left, so the sum waits
 * (STEP_IN_ORDER). */
PRIM_FN void direct_one_shot_step(const struct direct_iter *it, const struct work *work, struct step *step) {
  if (it->step_index == 0) direct_step_send(direct_all_links(work), 0, step);
  else direct_step_reduce(work, step);
  if (it->step_index != 0 && (work->flags & WORK_IN_PLACE) != 0) step->flags |= STEP_IN_ORDER;
}

/* Two shots: send each shard to its rank; add the own shard and send the sum to every rank; receive each
 * other shard from its rank. */
PRIM_FN void direct_two_shot_step(const struct direct_iter *it, const struct work *work, struct step *step) {
  const uint32_t others = work->rank_count - 1, i = it->step_index;
  uint32_t shard = work->rank;
  if (i < others) {
    shard = direct_peer(work, i);
    direct_step_send(direct_link(work, shard), 0, step);
  } else if (i == others) {
    direct_step_reduce(work, step);
    step->flags |= STEP_SEND | STEP_SEND_FINAL;
    step->send_links = direct_all_links(work);
  } else {
    shard = direct_source(work, i - others - 1);
    direct_step_recv(work, shard, step);
  }
  const size_t begin = shard * it->chunk_count, rest = work->part_count - it->done;
  step->chunk_index = shard;
  step->in_offset += begin;
  step->out_offset += begin;
  step->count = rest > begin ? size_min(it->chunk_count, rest - begin) : 0;
}

PRIM_FN void direct_all_gather_step(const struct direct_iter *it, const struct work *work,
                                    struct step *step) {
  uint32_t block = work->rank;
  if (it->step_index == 0) {
    direct_step_send(direct_all_links(work), STEP_SEND_FINAL, step);
    if ((work->flags & WORK_IN_PLACE) == 0) step->flags |= STEP_KEEP;
  } else {
    block = direct_source(work, it->step_index - 1);
    direct_step_recv(work, block, step);
  }
  step->chunk_index = block;
  step->out_offset += block * work->count;
}

PRIM_FN void direct_reduce_scatter_step(const struct direct_iter *it, const struct work *work,
                                        struct step *step) {
  uint32_t block = work->rank;
  if (it->step_index == work->rank_count - 1) {
    direct_step_reduce(work, step);
  } else {
    block = direct_peer(work, it->step_index);
    direct_step_send(direct_link(work, block), 0, step);
  }
  step->chunk_index = block;
  step->in_offset += block * work->count;
}

/* The own block first; then, in each turn, a block to a later rank and a block from an earlier one. */
PRIM_FN void direct_all_to_all_step(const struct direct_iter *it, const struct work *work,
                                    struct step *step) {
  const uint32_t i = it->step_index, turn = (i - 1) / 2;
  const bool sends = i % 2 == 1;
  if (i == 0) step->flags = STEP_COPY_IN | STEP_KEEP;
  else if (sends) direct_step_send(direct_link(work, direct_peer(work, turn)), STEP_SEND_FINAL, step);
  else direct_step_recv(work, direct_source(work, turn), step);
  const uint32_t in_block = sends ? direct_peer(work, turn) : work->rank;
  const uint32_t out_block = i == 0 || sends ? work->rank : direct_source(work, turn);
  step->chunk_index = sends ? in_block : out_block;
  step->in_offset += in_block * work->count;
  step->out_offset += out_block * work->count;
}

/* From the root to every other rank. The root has a link to each; any other rank has one link, from the
 * root. */
PRIM_FN void direct_broadcast_step(const struct work *work, struct step *step) {
  if (work->rank == work->root) {
    direct_step_send(direct_all_links(work), STEP_SEND_FINAL, step);
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
    case FUNC_REDUCE_SCATTER: direct_reduce_scatter_step(it, work, step); break;
    case FUNC_ALL_TO_ALL: direct_all_to_all_step(it, work, step); break;
    default: direct_broadcast_step(work, step); break;
  }
  it->step_index += 1;
  return true;
}

#endif
