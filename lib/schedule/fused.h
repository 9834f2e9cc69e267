/* fused.h: several broadcasts with different roots as one work on a channel. Their parts take turns around
 * the ring, one chunk each, so that every rank sends while it forwards. The plan holds the parts in
 * consecutive works (WORK_FUSED, WORK_PART), ordered by this rank's distance from their roots, so the
 * previous rank sends them in the order in which this rank expects them. */
#ifndef TUTTI_SCHEDULE_FUSED_H
#define TUTTI_SCHEDULE_FUSED_H

#include "schedule/chunk.h"
#include "schedule/work.h"

#define FUSED_PARTS_MAX 256

struct fused_iter {
  uint32_t round, part; /* of the next step; the part may be one past the last */
  bool any;             /* this round has had a step */
};

PRIM_FN void fused_begin(struct fused_iter *it) {
  it->round = it->part = 0;
  it->any = false;
}

/* One chunk of one part: send or copySend at its root, recv at the rank before the root, recvCopySend at
 * others. */
PRIM_FN void fused_step(const struct fused_iter *it, const struct work *work, struct step *step) {
  const struct work *part = work + it->part;
  const size_t begin = it->round * work->chunk_count;
  const bool receives = part->root != work->rank, sends = part->root != work->send_peer[0];
  step->flags = receives ? (uint32_t)(STEP_RECV | STEP_KEEP) : (uint32_t)STEP_COPY_IN;
  if (!receives && (part->flags & WORK_IN_PLACE) == 0) step->flags |= STEP_KEEP;
  if (sends) step->flags |= STEP_SEND;
  if (it->round == 0) step->flags |= STEP_PART;
  step->recv_links = receives ? 1 : 0;
  step->send_links = sends ? 1 : 0;
  step->own_index = 0;
  step->chunk_index = it->round;
  step->part = it->part;
  step->in_offset = step->out_offset = part->part_offset + begin;
  step->count = size_min(work->chunk_count, part->part_count - begin);
}

/* A round skips parts that have ended; the work ends with the first round in which no part is left. */
PRIM_FN bool fused_next(struct fused_iter *it, const struct work *work, struct step *step) {
  for (;; it->part++) {
    if (it->part == work->fused_count) {
      if (!it->any) return false;
      it->part = 0;
      it->round += 1;
      it->any = false;
    }
    if (it->round * work->chunk_count >= work[it->part].part_count) continue;
    fused_step(it, work, step);
    it->part += 1;
    it->any = true;
    return true;
  }
}

#endif
