/* run.h: the moves that a lane of any protocol can make now, how to make one, and the loop that makes them
 * all. A block (one rank on one channel) runs the batches of its channel in order; the works of a batch are
 * lanes that run concurrently, with each half of a send-receive pair on its own, because either may wait for
 * the other rank. */
#ifndef TUTTI_PROTOCOL_RUN_H
#define TUTTI_PROTOCOL_RUN_H

#include "protocol/ll.h"
#include "protocol/simple.h"

/* Set of enum lane_action that are possible now; 0 while the lane waits. May advance the iterator; has no
 * other effect. */
PRIM_FN uint32_t lane_enabled(struct lane *lane, struct prim *prim) {
  switch (lane->phase) {
    case LANE_OPEN: return lane_open_enabled(lane);
    case LANE_RUN:
      return lane_proto(lane->work) == PROTO_SIMPLE ? simple_enabled(lane, prim) : ll_enabled(lane, prim);
    default: return 0;
  }
}

/* Makes one move from lane_enabled()'s set. Never waits. */
PRIM_FN void lane_move(struct lane *lane, struct prim *prim, uint32_t action) {
  if (lane->phase == LANE_OPEN) lane_open_move(lane, prim);
  else if (lane_proto(lane->work) == PROTO_SIMPLE) simple_move(lane, prim, action);
  else ll_move(lane, prim, action);
}

/* The priority of moves if the lane has a thread of its own: begin early, end late. */
PRIM_FN uint32_t lane_first_action(uint32_t actions) {
  if (actions & (LANE_OFFER | LANE_TAKE | LANE_LL)) return actions & (LANE_OFFER | LANE_TAKE | LANE_LL);
  if (actions & LANE_BEGIN) return LANE_BEGIN;
  if (actions & LANE_FINISH) return LANE_FINISH;
  return actions & LANE_POST ? LANE_POST : LANE_END;
}

#define LANE_ALL_SLICES UINT64_MAX

/* Makes moves until none is possible or `slices` more slices are posted; true when the lane has ended. A
 * mismatch ends the lane at once, an abort when it would have to wait. */
PRIM_FN bool lane_make_moves(struct lane *lane, struct prim *prim, uint64_t slices) {
  const uint64_t enough = lane->posted + slices;
  while (lane->phase != LANE_DONE) {
    if (slices != LANE_ALL_SLICES && lane->posted >= enough) return false;
    const uint32_t actions = lane_enabled(lane, prim);
    if (lane->error != LANE_OK) return true;
    if (actions == 0) return prim_aborted(prim);
    lane_move(lane, prim, lane_first_action(actions));
  }
  return true;
}

PRIM_FN bool lane_has_ll(const struct lane *lane) {
  return lane_proto(lane->work) != PROTO_SIMPLE && lane->phase == LANE_RUN;
}

/* The same for a worker that may have other lanes. */
PRIM_FN bool lane_advance(struct lane *lane, struct prim *prim, uint64_t slices) {
  if (!lane_has_ll(lane)) return lane_make_moves(lane, prim, slices);
  return ll_go(lane, prim, false) || lane->error != LANE_OK || prim_aborted(prim);
}

/* Runs a lane to its end, or to an error, on a worker that has no other lane. */
PRIM_FN void lane_run(struct lane *lane, struct prim *prim) {
  if (lane_has_ll(lane)) {
    ll_go(lane, prim, true);
    return;
  }
  while (!lane_make_moves(lane, prim, LANE_ALL_SLICES)) prim_pause(prim);
}

/* What a waiting lane waits for: the first unmet predicate, for reports. */
enum lane_wait_kind {
  WAIT_NOTHING,
  WAIT_OFFER,
  WAIT_DATA,
  WAIT_SLOT,
  WAIT_LL,
  WAIT_LIST,
  WAIT_INPUT, /* the sender shows the address of its input */
  WAIT_READ   /* at the end: the receiver has read our input */
};

struct lane_wait {
  uint8_t kind;        /* enum lane_wait_kind */
  uint32_t peer;       /* rank; WAIT_LIST: number of the list on this rank */
  uint64_t have, need; /* counter and the value it must reach; WAIT_LL: line index and line count of the
                          step; WAIT_LIST: steps that it has completed and must complete */
};

PRIM_FN bool lane_wait_of_link(struct lane *lane, struct prim *prim, uint32_t index, bool sends,
                               struct lane_wait *wait) {
  struct link *link = sends ? &lane->send[index] : &lane->recv[index];
  const bool slots = lane->work->proto == PROTO_SIMPLE;
  const uint32_t steps = slots ? lane->work->slice_steps : 1;
  wait->peer = link->peer;
  wait->need = link->step + steps;
  if (sends) {
    if ((!slots && lane->step_open) || link_has_slots(link, steps)) return false;
    wait->kind = WAIT_SLOT;
    wait->have = link->cached + link->slots;
    return true;
  }
  if (slots ? lane_poll_size(lane, link, prim) &&
                  (simple_reads_shown(&lane->step, link) || link_has_data(link, steps))
            : ll_arrived(lane, index, prim))
    return false;
  wait->kind = slots ? WAIT_DATA : WAIT_LL;
  wait->have = slots ? link->cached : lane->line_index;
  if (!slots) wait->need = ll_link_lines(lane, index);
  return true;
}

/* A lane without further steps that is not enabled waits for the readers of its input. */
PRIM_FN bool lane_wait_for_readers(const struct lane *lane, struct lane_wait *wait) {
#if PRIM_ALGOS > 0
  if (lane_proto(lane->work) != PROTO_SIMPLE || lane->has_step || !lane_shows_input(lane)) return false;
  FIFO_EACH_LINK(i, lane->work->send_count, FIFO_ALL_LINKS) {
    const struct link *link = &lane->send[i];
    if (link->cached >= link->step) continue;
    wait->kind = WAIT_READ;
    wait->peer = link->peer;
    wait->have = link->cached + link->slots;
    wait->need = link->step + link->slots;
    return true;
  }
#else
  (void)lane, (void)wait;
#endif
  return false;
}

/* The first unmet predicate of a lane that is not enabled; WAIT_NOTHING if it is. */
PRIM_FN struct lane_wait lane_wait_first(struct lane *lane, struct prim *prim) {
  struct lane_wait wait = {WAIT_NOTHING, 0, 0, 0};
  if (lane->phase == LANE_DONE || lane_enabled(lane, prim) != 0) return wait;
  if (lane->phase == LANE_OPEN) {
    wait.kind = lane_takes_shown(lane) ? WAIT_INPUT : WAIT_OFFER;
    wait.peer = lane_take_link(lane)->peer;
    return wait;
  }
  if (lane_wait_for_readers(lane, &wait)) return wait;
#if PRIM_ALGOS > 1
  if (!lane_may_follow(lane)) {
    wait.kind = WAIT_LIST;
    wait.peer = lane->step.wait_lane;
    wait.have = lane_list_progress(lane, wait.peer);
    wait.need = lane->step.wait_count;
    return wait;
  }
#endif
  FIFO_EACH_LINK(i, lane->work->recv_count, lane->step.recv_links) {
    if (lane_wait_of_link(lane, prim, i, false, &wait)) return wait;
  }
  FIFO_EACH_LINK(i, lane->work->send_count, lane->step.send_links) {
    if (lane_wait_of_link(lane, prim, i, true, &wait)) return wait;
  }
  return wait;
}

#endif
