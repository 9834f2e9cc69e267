/* run.h: a lane's whole life, protocol by protocol: which moves are possible, how to make one, and the loop
 * that makes them all. A block (one rank on one channel) runs the batches of its channel in order; the works
 * of a batch are lanes that run concurrently, each half of a send-receive pair on its own, because either may
 * wait for the other rank. */
#ifndef TUTTI_PROTOCOL_RUN_H
#define TUTTI_PROTOCOL_RUN_H

#include "protocol/lines.h"
#include "protocol/simple.h"

/* Set of enum lane_action that may happen now; 0 while the lane waits. May advance the iterator, has no other
 * effect. */
PRIM_FN uint32_t lane_enabled(struct lane *lane) {
  switch (lane->phase) {
    case LANE_OPEN: return lane_open_enabled(lane);
    case LANE_RUN: return lane->work->proto == PROTO_SIMPLE ? simple_enabled(lane) : lines_enabled(lane);
    default: return 0;
  }
}

/* Makes one move out of lane_enabled()'s set. Never waits. */
PRIM_FN void lane_move(struct lane *lane, struct prim *prim, uint32_t action) {
  if (lane->phase == LANE_OPEN) lane_open_move(lane);
  else if (lane->work->proto == PROTO_SIMPLE) simple_move(lane, prim, action);
  else lines_move(lane, prim, action);
}

/* The order in which a lane with a thread of its own takes what is possible: begin early, end late. */
PRIM_FN uint32_t lane_first_action(uint32_t actions) {
  if (actions & (LANE_OFFER | LANE_TAKE | LANE_LINES)) return actions & (LANE_OFFER | LANE_TAKE | LANE_LINES);
  if (actions & LANE_BEGIN) return LANE_BEGIN;
  if (actions & LANE_FINISH) return LANE_FINISH;
  return actions & LANE_POST ? LANE_POST : LANE_END;
}

/* Makes every move that is possible now; true when the lane has ended. A mismatch or an abort ends it at
 * once. */
PRIM_FN bool lane_advance(struct lane *lane, struct prim *prim) {
  while (lane->phase != LANE_DONE) {
    const uint32_t actions = lane_enabled(lane);
    if (lane->error != LANE_OK || prim_aborted(prim)) return true;
    if (actions == 0) return false;
    lane_move(lane, prim, lane_first_action(actions));
  }
  return true;
}

/* Runs the lanes of one batch to their ends on the calling worker. */
PRIM_FN void batch_run(struct lane *lanes, uint32_t lane_count, struct prim *prim) {
  uint32_t running;
  do {
    running = 0;
    for (uint32_t i = 0; i < lane_count; i++) running += !lane_advance(&lanes[i], prim);
    if (running > 0) prim_pause(prim);
  } while (running > 0);
}

/* What a waiting lane waits for, for reports: the n-th unmet predicate. */
enum lane_wait_kind { WAIT_NOTHING, WAIT_OFFER_CLEARED, WAIT_OFFER, WAIT_DATA, WAIT_SLOT, WAIT_LINES };

struct lane_wait {
  uint8_t kind; /* enum lane_wait_kind */
  uint32_t peer;
  uint64_t have,
      need; /* counter and the value that would do; WAIT_LINES: line index and line count of the step */
};

PRIM_FN bool lane_wait_of_link(struct lane *lane, struct link *link, bool sends, struct lane_wait *wait) {
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
  if (slots ? link_has_data(link, steps) : lines_arrived(lane, link)) return false;
  wait->kind = slots ? WAIT_DATA : WAIT_LINES;
  wait->have = slots ? link->cached : lane->line_index;
  if (!slots) wait->need = lane->line_count;
  return true;
}

/* The first unmet predicate of a lane that is not enabled; WAIT_NOTHING for one that is. */
PRIM_FN struct lane_wait lane_wait_first(struct lane *lane) {
  struct lane_wait wait = {WAIT_NOTHING, 0, 0, 0};
  if (lane->phase == LANE_DONE || lane_enabled(lane) != 0) return wait;
  if (lane->phase == LANE_OPEN) {
    const bool offers = lane->exchange_index < lane->work->recv_count;
    wait.kind = offers ? WAIT_OFFER_CLEARED : WAIT_OFFER;
    wait.peer = offers ? lane->recv[lane->exchange_index].peer
                       : lane->send[lane->exchange_index - lane->work->recv_count].peer;
    return wait;
  }
  for (uint32_t i = 0; i < lane->work->recv_count; i++)
    if (((lane->step.recv_links >> i) & 1) != 0 && lane_wait_of_link(lane, &lane->recv[i], false, &wait))
      return wait;
  for (uint32_t i = 0; i < lane->work->send_count; i++)
    if (((lane->step.send_links >> i) & 1) != 0 && lane_wait_of_link(lane, &lane->send[i], true, &wait))
      return wait;
  return wait;
}

#endif
