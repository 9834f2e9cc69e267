/* lane.h: one work in progress on one channel: where its iterator stands, its ends of connections, its slices
 * in flight. A lane is a state machine whose every wait is a predicate (lane_enabled) and whose every move
 * ends without waiting (lane_move); run.h turns it into a loop that spins, the emulator's scheduler picks the
 * moves one by one.
 *
 *   OPEN: offer our output to senders, take what receivers offer -> RUN: slices or lines -> DONE
 */
#ifndef TUTTI_PROTOCOL_LANE_H
#define TUTTI_PROTOCOL_LANE_H

#include "protocol/fifo.h"
#include "schedule/p2p.h"
#include "schedule/ring.h"

#define LANE_DEPTH_MAX 4 /* slices that may be in flight between begin and post */

enum lane_phase { LANE_OPEN, LANE_RUN, LANE_DONE };

/* Moves of a lane, as bits: what may happen next. */
enum lane_action {
  LANE_OFFER = 1,  /* hand the address of our output to the sender at recv link `exchange_index` */
  LANE_TAKE = 2,   /* take the address that the receiver at send link `exchange_index` offered */
  LANE_BEGIN = 4,  /* slots are there: start moving the next slice */
  LANE_FINISH = 8, /* end the oldest slice that was begun */
  LANE_POST = 16,  /* tell both ends about the oldest slice that was finished; lines: free the step's slot */
  LANE_LINES = 32, /* carry the next group of lines; the first group of a step opens it */
  LANE_END = 64    /* nothing is left: save the counters */
};

enum lane_error { LANE_OK = 0, LANE_SIZE_MISMATCH = 1 };

/* A slice between begin and post. */
struct flight {
  struct move move;
  uint32_t recv_links, send_links;
  uint64_t bytes; /* what goes into, and must come out of, the slots */
};

struct lane {
  const struct work *work;
  const uint8_t *in;
  uint8_t *out;
  uint8_t phase;     /* enum lane_phase */
  uint8_t error;     /* enum lane_error */
  uint8_t depth;     /* slices in flight, 1..LANE_DEPTH_MAX */
  uint8_t flag_bits; /* of a line */
  bool lands_here;   /* final values come straight into our output */
  uint32_t exchange_index;
  uint32_t group_lines; /* most lines that one move carries */
  struct ring_iter ring;
  struct p2p_iter p2p;
  struct step step; /* the one that is being begun */
  bool has_step;
  uint64_t steps_done; /* schedule steps taken so far: for reports */
  /* slot protocol */
  uint32_t slice_index, slice_count;
  size_t slice_elements;
  size_t slice_capacity; /* elements that the slots of a slice hold */
  uint64_t begun, finished, posted;
  /* line protocol */
  bool step_held; /* `step` is the current one and has not been posted: an empty step has no lines to tell */
  uint32_t line_index, line_count;
  bool step_open; /* the step's slots towards the receivers are ours; lines are moving */
  /* a mismatch, when error is set */
  uint64_t expected_bytes, found_bytes;
  uint32_t mismatch_peer;
  struct link recv[STEP_LINKS_MAX], send[STEP_LINKS_MAX];
  struct flight flights[LANE_DEPTH_MAX];
};

/* Where slice number `slice` is kept while it is in flight: no more places than the depth needs are touched.
 */
PRIM_FN struct flight *lane_flight(struct lane *lane, uint64_t slice) {
  return &lane->flights[lane->depth > 2 ? slice % LANE_DEPTH_MAX : slice & (lane->depth - 1u)];
}

PRIM_FN bool lane_next_step(struct lane *lane) {
  lane->has_step = lane->work->algo == ALGO_RING && lane->work->func <= FUNC_ALL_REDUCE
                       ? ring_next(&lane->ring, lane->work, &lane->step)
                       : p2p_next(&lane->p2p, lane->work, &lane->step);
  return lane->has_step;
}

PRIM_FN size_t lane_bytes(const struct lane *lane, size_t elements) {
  return elements * lane->work->element_bytes;
}

/* Output addresses go through cells that start at zero, so an output at address zero needs another spelling.
 */
#define LANE_NO_OUTPUT ((uint64_t)1)

/* False when the sender must use the slots: also then an offer is made, because it counts on one. */
PRIM_FN bool lane_shows_output(const struct lane *lane) {
  return lane->out != 0 && (lane->work->flags & WORK_OUTPUT_HIDDEN) == 0;
}

PRIM_FN uint8_t line_kind_of(const struct work *work) {
  return work->proto == PROTO_LL ? LINE_LL : LINE_LL128;
}

PRIM_FN void link_open_lines(struct link *link, uint64_t saved_line) {
  link->line = saved_line;
  link->line_slot = (uint32_t)(saved_line % link->slots);
}

/* What both ends of an exchange must agree on before one stores into the other's memory. */
PRIM_FN uint64_t lane_exchange_bytes(const struct work *work) {
  return (uint64_t)work->part_count * work->element_bytes;
}

/* Unequal sizes mean that the ranks called different operations: the lane stops instead of delivering wrong
 * data. */
PRIM_FN void lane_mismatch(struct lane *lane, const struct link *link, uint64_t expected_bytes,
                           uint64_t found_bytes) {
  lane->error = LANE_SIZE_MISMATCH;
  lane->expected_bytes = expected_bytes;
  lane->found_bytes = found_bytes;
  lane->mismatch_peer = link->peer;
}

/* Compares what the sender says it put into a slot with what this rank expects to find. */
PRIM_FN void lane_check_size(struct lane *lane, const struct link *link, uint32_t slot_index,
                             uint64_t bytes) {
  const uint64_t found = link->fifo->sizes[slot_index];
  if (found != bytes) lane_mismatch(lane, link, bytes, found);
}

/* Exchanges run over all receive links first, then over all send links, so that offers never wait for each
 * other in a ring. */
PRIM_FN uint32_t lane_open_enabled(const struct lane *lane) {
  const struct work *work = lane->work;
  if (lane->exchange_index < work->recv_count)
    return prim_load_acquire(&lane->recv[lane->exchange_index].fifo->exchange) == 0 ? LANE_OFFER : 0;
  return prim_load_acquire(&lane->send[lane->exchange_index - work->recv_count].fifo->exchange) != 0
             ? LANE_TAKE
             : 0;
}

/* Skips the exchanges that this work does not make; enters RUN behind the last. */
PRIM_FN void lane_open_settle(struct lane *lane) {
  const struct work *work = lane->work;
  if (lane->exchange_index < work->recv_count && (work->flags & WORK_DIRECT_RECV) == 0)
    lane->exchange_index = work->recv_count;
  if (lane->exchange_index >= work->recv_count && (work->flags & WORK_DIRECT_SEND) == 0)
    lane->exchange_index = (uint32_t)work->recv_count + work->send_count;
  if (lane->exchange_index == (uint32_t)work->recv_count + work->send_count) lane->phase = LANE_RUN;
}

PRIM_FN void lane_open_move(struct lane *lane) {
  const struct work *work = lane->work;
  if (lane->exchange_index < work->recv_count) {
    struct fifo *fifo = lane->recv[lane->exchange_index].fifo;
    fifo->exchange_bytes = lane_exchange_bytes(work);
    prim_store_release(&fifo->exchange,
                       lane_shows_output(lane) ? (uint64_t)(uintptr_t)lane->out : LANE_NO_OUTPUT);
  } else {
    struct link *link = &lane->send[lane->exchange_index - work->recv_count];
    const uint64_t address = prim_load_acquire(&link->fifo->exchange);
    link->direct = address == LANE_NO_OUTPUT ? 0 : (uint8_t *)(uintptr_t)address;
    if (link->fifo->exchange_bytes != lane_exchange_bytes(work))
      lane_mismatch(lane, link, lane_exchange_bytes(work), link->fifo->exchange_bytes);
    prim_store_release(&link->fifo->exchange, 0);
  }
  lane->exchange_index += 1;
  lane_open_settle(lane);
}

/* Elements that the slots of one slice hold. */
PRIM_FN size_t lane_slice_capacity(const struct lane *lane) {
  const struct work *work = lane->work;
  const struct link *link = work->recv_count > 0 ? &lane->recv[0] : &lane->send[0];
  if (work->recv_count + work->send_count == 0) return work->chunk_count;
  return (size_t)work->slice_steps * link->step_bytes / work->element_bytes;
}

/* The links' fifo, buffer, slots, step_bytes and peer, and depth, flag_bits and group_lines are the backend's
 * to set before. */
PRIM_FN void lane_open(struct lane *lane, const struct work *work, const void *in, void *out) {
  lane->work = work;
  lane->in = (const uint8_t *)in;
  lane->out = (uint8_t *)out;
  lane->phase = LANE_OPEN;
  lane->error = LANE_OK;
  lane->exchange_index = 0;
  lane->lands_here = (work->flags & WORK_DIRECT_RECV) != 0 && lane_shows_output(lane);
  lane->steps_done = 0;
  lane->slice_index = lane->slice_count = lane->line_index = lane->line_count = 0;
  lane->begun = lane->finished = lane->posted = 0;
  lane->slice_capacity = lane_slice_capacity(lane);
  lane->step_open = lane->step_held = false;
  lane->has_step = true; /* until the iterator says otherwise */
  ring_begin(&lane->ring, work);
  p2p_begin(&lane->p2p);
  for (uint32_t i = 0; i < work->recv_count; i++) {
    struct link *link = &lane->recv[i];
    link_open(link, link->fifo->recv_step, work->chunk_steps);
    link_open_lines(link, link->fifo->recv_line[line_kind_of(work)]);
    /* The steps that rounding skipped are credits that the sender must get back. */
    if (link->step != link->fifo->recv_step) prim_store_release(&link->fifo->head, link->step);
  }
  for (uint32_t i = 0; i < work->send_count; i++) {
    struct link *link = &lane->send[i];
    link_open(link, link->fifo->send_step, work->chunk_steps);
    link_open_lines(link, link->fifo->send_line[line_kind_of(work)]);
  }
  lane_open_settle(lane);
}

/* Saves the counters for the next operation on these connections. */
PRIM_FN void lane_close(struct lane *lane) {
  const uint8_t kind = line_kind_of(lane->work);
  for (uint32_t i = 0; i < lane->work->recv_count; i++) {
    lane->recv[i].fifo->recv_step = lane->recv[i].posted;
    lane->recv[i].fifo->recv_line[kind] = lane->recv[i].line; /* unchanged by the slot protocol */
  }
  for (uint32_t i = 0; i < lane->work->send_count; i++) {
    lane->send[i].fifo->send_step = lane->send[i].posted;
    lane->send[i].fifo->send_line[kind] = lane->send[i].line;
  }
  lane->phase = LANE_DONE;
}

#endif
