/* tree.h: all-reduce over a tree: chunks go up to the root, which completes them, and come down again. A rank
 * below the root has two works side by side, one per direction; the root has one. The work's links tell
 * children from the parent: the children come first, in the tree's order, and the parent is the only link of
 * its side. */
#ifndef TUTTI_SCHEDULE_TREE_H
#define TUTTI_SCHEDULE_TREE_H

#include "schedule/chunk.h"
#include "schedule/work.h"

struct tree_iter {
  size_t done;          /* elements of the part before the next step */
  uint32_t chunk_index; /* of the next step */
};

PRIM_FN void tree_begin(struct tree_iter *it) {
  it->done = 0;
  it->chunk_index = 0;
}

PRIM_FN uint32_t tree_links(uint32_t count) { return (1u << count) - 1; }

/* Up: send, or recvReduceSend from up to three children. Down: recvCopySend, or recv. Root:
 * recvReduceCopySend. */
PRIM_FN uint32_t tree_flags(const struct work *work) {
  const uint32_t sends = work->send_count > 0 ? STEP_SEND : 0;
  const uint32_t receives = work->recv_count > 0 ? STEP_RECV : 0;
  const uint32_t adds = STEP_COPY_IN | receives | (receives != 0 ? STEP_REDUCE : 0);
  switch (work->role) {
    case ROLE_UP: return adds | sends;
    case ROLE_DOWN:
      return receives | STEP_RECV_FINAL | STEP_KEEP | sends | (sends != 0 ? STEP_SEND_FINAL : 0);
    default: return adds | STEP_KEEP | STEP_POST_OP | sends | (sends != 0 ? STEP_SEND_FINAL : 0);
  }
}

PRIM_FN bool tree_next(struct tree_iter *it, const struct work *work, struct step *step) {
  if (it->done >= work->part_count) return false;
  step->flags = tree_flags(work);
  step->recv_links = tree_links(work->recv_count);
  step->send_links = tree_links(work->send_count);
  step->own_index = 0;
  step->chunk_index = it->chunk_index;
  step->in_offset = step->out_offset = work->part_offset + it->done;
  step->count = size_min(work->chunk_count, work->part_count - it->done);
  it->done += step->count;
  it->chunk_index += 1;
  return true;
}

#endif
