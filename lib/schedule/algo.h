/* algo.h: the only interface to the algorithms: begin, then next until false, for every family of iterators.
 * Code that runs, checks or simulates a plan includes no other header of this folder. */
#ifndef TUTTI_SCHEDULE_ALGO_H
#define TUTTI_SCHEDULE_ALGO_H

#include "schedule/p2p.h"
#include "schedule/ring.h"
#if PRIM_ALGOS > 0
#include "schedule/direct.h"
#include "schedule/tree.h"
#endif
#if PRIM_ALGOS > 1
#include "schedule/fused.h"
#include "schedule/list.h"
#include "schedule/pat.h"
#include "schedule/switch.h"
#endif

/* Only the member of the work's family is in use. */
struct algo_iter {
  struct ring_iter ring;
  struct p2p_iter p2p;
#if PRIM_ALGOS > 0
  struct tree_iter tree;
  struct direct_iter direct;
#endif
#if PRIM_ALGOS > 1
  struct list_iter list;
  struct pat_iter pat;
  struct fused_iter fused;
  struct switch_iter over_switch;
#endif
};

/* The iterator families. */
enum algo_family {
  FAMILY_RING,
  FAMILY_P2P,
  FAMILY_TREE,
  FAMILY_DIRECT,
  FAMILY_PAT,
  FAMILY_FUSED,
  FAMILY_SWITCH,
  FAMILY_LIST
};

PRIM_FN uint8_t algo_family(const struct work *work) {
  if (PRIM_ALGOS > 0) {
    switch (work->algo) {
      case ALGO_TREE: return FAMILY_TREE;
      case ALGO_DIRECT:
      case ALGO_TWO_SHOT: return FAMILY_DIRECT;
      default: break;
    }
  }
  if (PRIM_ALGOS > 1) {
    if ((work->flags & WORK_FUSED) != 0) return FAMILY_FUSED;
    switch (work->algo) {
      case ALGO_CUSTOM: return FAMILY_LIST;
      case ALGO_PAT: return FAMILY_PAT;
      case ALGO_NVLS:
      case ALGO_NVLS_TREE:
      case ALGO_COLLNET_DIRECT:
      case ALGO_COLLNET_CHAIN: return FAMILY_SWITCH;
      default: break;
    }
  }
  return work->func > FUNC_ALL_REDUCE ? FAMILY_P2P : FAMILY_RING;
}

/* Chunks of a part that one loop of a work moves, one behind the other. */
PRIM_FN uint32_t algo_loop_chunks(const struct work *work) {
  switch (algo_family(work)) {
    case FAMILY_RING: return ring_loop_chunks(work);
#if PRIM_ALGOS > 0
    case FAMILY_DIRECT: return direct_loop_chunks(work);
#endif
#if PRIM_ALGOS > 1
    case FAMILY_SWITCH: return switch_loop_chunks(work);
#endif
    default: return 1;
  }
}

/* Sets last_chunk_count from the other counts. The planner calls it, because division is slow on a GPU. */
PRIM_FN void algo_cut(struct work *work) {
  work->last_chunk_count =
      chunk_last_count(work->part_count, work->chunk_count, algo_loop_chunks(work), work->element_bytes);
}

/* Rings and messages both begin: this costs a few stores and saves a branch. */
PRIM_FN void algo_begin(struct algo_iter *it, const struct work *work) {
#if PRIM_ALGOS > 0
  switch (algo_family(work)) {
    case FAMILY_TREE: tree_begin(&it->tree); return;
    case FAMILY_DIRECT: direct_begin(&it->direct, work); return;
#if PRIM_ALGOS > 1
    case FAMILY_LIST: list_begin(&it->list); return;
    case FAMILY_PAT: pat_begin(&it->pat, work); return;
    case FAMILY_FUSED: fused_begin(&it->fused); return;
    case FAMILY_SWITCH: switch_begin(&it->over_switch, work); return;
#endif
    default: break;
  }
#endif
  ring_begin(&it->ring, work);
  p2p_begin(&it->p2p);
}

/* Most algorithms have one step per slot and one part, so they do not set these fields. */
PRIM_FN bool algo_next(struct algo_iter *it, const struct work *work, struct step *step) {
#if PRIM_ALGOS > 1
  step->recv_place = step->send_place = step->part = 0;
#endif
  switch (algo_family(work)) {
#if PRIM_ALGOS > 0
    case FAMILY_TREE: return tree_next(&it->tree, work, step);
    case FAMILY_DIRECT: return direct_next(&it->direct, work, step);
#endif
#if PRIM_ALGOS > 1
    case FAMILY_LIST: return list_next(&it->list, work, step);
    case FAMILY_PAT: return pat_next(&it->pat, work, step);
    case FAMILY_FUSED: return fused_next(&it->fused, work, step);
    case FAMILY_SWITCH: return switch_next(&it->over_switch, work, step);
#endif
    case FAMILY_P2P: return p2p_next(&it->p2p, work, step);
    default: return ring_next(&it->ring, work, step);
  }
}

#endif
