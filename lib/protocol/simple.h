/* simple.h: the Simple protocol. A chunk is cut into slices; each slice waits for filled slots from its
 * senders and free slots at its receivers, moves, and posts, in that order. Up to `depth` slices are between
 * begin and post. Every slice of every step waits and posts, even if it is empty: the count of steps never
 * depends on data. Steps that share a slot (step.h) wait in the same way, and post after the last of them. */
#ifndef TUTTI_PROTOCOL_SIMPLE_H
#define TUTTI_PROTOCOL_SIMPLE_H

#include "protocol/lane.h"

/* Makes the next slice current; false when the work has no more. */
PRIM_FN bool simple_next_slice(struct lane *lane) {
  if (lane->slice_index < lane->slice_count) return true;
  if (!lane_next_step(lane)) return false;
  lane->slice_index = 0;
  lane->slice_count = slice_count_of(lane->work);
  lane->slice_elements = chunk_slice_count(lane->step.count, lane->slice_count, lane->slice_capacity);
  return true;
}

/* Tests flags that rings and messages never have: false at compile time if nothing else is compiled. */
PRIM_FN bool simple_has_flag(const struct step *step, uint32_t flags) {
  return PRIM_ALGOS > 1 && (step->flags & flags) != 0;
}

/* Whether the receiver reads what the current step sends over the link in our input. */
PRIM_FN bool simple_is_shown(const struct step *step, const struct link *link) {
#if PRIM_ALGOS > 0
  return (step->flags & STEP_SEND_SHOWN) != 0 && link->shows;
#else
  (void)step, (void)link;
  return false;
#endif
}

/* Whether the current step reads what arrives over the link in the sender's input. */
PRIM_FN bool simple_reads_shown(const struct step *step, const struct link *link) {
  return PRIM_ALGOS > 0 && (step->flags & STEP_RECV_SHOWN) != 0 && link->direct != 0;
}

/* Whether the current slice may begin. */
PRIM_FN bool simple_ready(struct lane *lane, struct prim *prim) {
  const struct step *step = &lane->step;
  const uint32_t steps = lane->work->slice_steps;
  if (!lane_may_follow(lane)) return false;
  if (simple_has_flag(step, STEP_SEND_ADD | STEP_FROM_OUTPUT | STEP_IN_ORDER) &&
      lane->begun != lane->finished)
    return false;
  FIFO_EACH_LINK(i, lane->work->recv_count, step->recv_links) {
    struct link *link = &lane->recv[i];
    if (!lane_poll_size(lane, link, prim)) return false;
    if (!simple_reads_shown(step, link) && !link_has_data(link, steps)) return false;
  }
  FIFO_EACH_LINK(i, lane->work->send_count, step->send_links) {
    if (!link_has_slots(&lane->send[i], steps)) return false;
  }
  return true;
}

PRIM_FN uint32_t simple_enabled(struct lane *lane, struct prim *prim) {
  uint32_t actions = 0;
  if (lane->finished > lane->posted) actions |= LANE_POST;
  if (lane->begun > lane->finished) actions |= LANE_FINISH;
  if (lane->begun - lane->posted < lane->depth) {
    if (lane->slice_index < lane->slice_count || lane->has_step) {
      if (simple_next_slice(lane) && simple_ready(lane, prim)) actions |= LANE_BEGIN;
    }
    if (!lane->has_step && lane->begun == lane->posted && lane_input_is_read(lane)) actions |= LANE_END;
  }
  return actions;
}

/* Constant indexes if there are only two, so that the compiler can keep the array in registers. */
PRIM_FN void simple_add_source(struct move *move, const void *source) {
  if (MOVE_SPANS_MAX > 2) move->source[move->source_count] = source;
  else if (move->source_count == 0) move->source[0] = source;
  else move->source[1] = source;
  move->source_count += 1;
}

PRIM_FN void simple_add_destination(struct move *move, void *destination) {
  if (MOVE_SPANS_MAX > 2) move->destination[move->destination_count] = destination;
  else if (move->destination_count == 0) move->destination[0] = destination;
  else move->destination[1] = destination;
  move->destination_count += 1;
}

PRIM_FN void simple_add_own(struct lane *lane, struct move *move, size_t offset) {
  if ((lane->step.flags & (STEP_FROM_OUTPUT | STEP_FROM_SCRATCH)) == 0)
    move->pre_op_sources = link_bit(move->source_count);
  simple_add_source(move, lane_own(lane, offset));
}

/* Address of the current step's data in the link's slot. */
PRIM_FN uint8_t *simple_slot(const struct lane *lane, const struct link *link, size_t place) {
  return link_slot(link) + (PRIM_ALGOS > 1 ? lane_bytes(lane, place) : 0);
}

/* The data that the one receiver's open slot holds so far. */
PRIM_FN void simple_add_sent(const struct lane *lane, struct move *move) {
  FIFO_EACH_LINK(i, lane->work->send_count, lane->step.send_links)
  simple_add_source(move, simple_slot(lane, &lane->send[i], step_send_place(&lane->step)));
}

/* Sources: earlier data of the shared slot, received data in link order, and the rank's own after own_index
 * of it. */
PRIM_FN void simple_sources(struct lane *lane, struct flight *flight, size_t offset) {
  const struct step *step = &lane->step;
  struct move *move = &flight->move;
  const uint32_t own_index = PRIM_LINKS == 1 ? 0 : step->own_index;
  const bool own = (step->flags & STEP_COPY_IN) != 0;
  if (simple_has_flag(step, STEP_SEND_ADD)) simple_add_sent(lane, move);
  if (own && own_index == 0) simple_add_own(lane, move, offset);
  FIFO_EACH_LINK(i, lane->work->recv_count, step->recv_links) {
    if ((step->flags & STEP_RECV_FINAL) && lane->zero_copy_receive)
      simple_add_source(move, lane->out + lane_bytes(lane, step->out_offset + offset));
    else if (simple_reads_shown(step, &lane->recv[i]))
      simple_add_source(move, lane->recv[i].direct + lane_bytes(lane, step->in_offset + offset));
    else simple_add_source(move, simple_slot(lane, &lane->recv[i], step_recv_place(step)));
    if (!simple_has_flag(step, STEP_RECV_MORE)) link_advance(&lane->recv[i], lane->work->slice_steps);
    if (own && own_index != 0 && own_index == move->source_count) simple_add_own(lane, move, offset);
  }
  if (PRIM_ALGOS > 1 && (step->flags & STEP_FOLD)) simple_add_source(move, lane_kept(lane, offset));
}

/* The next destination is final: no step but a list's reads it before the operation ends. */
PRIM_FN void simple_mark_remote(const struct lane *lane, struct move *move) {
#if PRIM_ALGOS > 1
  if (lane->remote) move->remote_destinations |= link_bit(move->destination_count);
#else
  (void)lane, (void)move;
#endif
}

/* Where the slice at `offset` goes on send link `index`: to the receiver's output if it is final there and
 * can be stored, else to the slot. */
PRIM_FN uint8_t *simple_target(const struct lane *lane, struct move *move, uint32_t index, size_t offset) {
  const struct step *step = &lane->step;
  const struct link *link = &lane->send[index];
  if ((step->flags & STEP_SEND_FINAL) == 0 || link->direct == 0)
    return simple_slot(lane, link, step_send_place(step));
  simple_mark_remote(lane, move);
  return link->direct + lane_bytes(lane, step_link_out(step, index, true) + offset);
}

/* Destinations: own output first, then each receiver's slot, or its output if the value is final. */
PRIM_FN void simple_destinations(struct lane *lane, struct prim *prim, struct flight *flight, size_t offset) {
  const struct step *step = &lane->step;
  struct move *move = &flight->move;
  if (step->flags & STEP_KEEP) {
    uint8_t *own = lane_kept(lane, offset);
    if (move->source_count != 1 || move->source[0] != own || move->pre_op_sources != 0 || move->post_op) {
      if (step->flags & STEP_RECV_FINAL || step->flags & STEP_POST_OP || (step->flags & STEP_SEND_FINAL))
        simple_mark_remote(lane, move);
      simple_add_destination(move, own);
    }
  }
  FIFO_EACH_LINK(i, lane->work->send_count, step->send_links) {
    struct link *link = &lane->send[i];
    lane_announce(lane, link, prim);
    if (!simple_is_shown(step, link)) simple_add_destination(move, simple_target(lane, move, i, offset));
    if (!simple_has_flag(step, STEP_SEND_MORE)) link_advance(link, lane->work->slice_steps);
  }
}

#if PRIM_ALGOS > 0
/* Elements of block `block` that lie in the slice at `offset`. */
PRIM_FN size_t simple_block_count(const struct lane *lane, uint32_t block, size_t offset) {
  const size_t count = step_block_count(&lane->step, block);
  return count > offset ? slice_length(count, offset, lane->slice_elements) : 0;
}

PRIM_FN void simple_add_copy(struct move *move, const void *source, void *destination, size_t count) {
  move->counts[move->source_count] = count;
  move->source[move->source_count++] = source;
  move->destination[move->destination_count++] = destination;
}

/* The sends of a step with a block for each link, then the own block. */
PRIM_FN void simple_send_each(struct lane *lane, struct prim *prim, struct move *move, size_t offset) {
  const struct step *step = &lane->step;
  const uint32_t own = step->own_index;
  FIFO_EACH_LINK(i, lane->work->send_count, step->send_links) {
    struct link *link = &lane->send[i];
    const uint32_t block = step_block(step, i);
    lane_announce(lane, link, prim);
    if (!simple_is_shown(step, link)) {
      if ((step->flags & (STEP_FROM_OUTPUT | STEP_FROM_SCRATCH)) == 0)
        move->pre_op_sources |= link_bit(move->source_count);
      simple_add_copy(move, lane_own_block(lane, block, offset), simple_target(lane, move, i, offset),
                      simple_block_count(lane, block, offset));
    }
    link_advance(link, lane->work->slice_steps);
  }
  if (lane_copies_block(lane))
    simple_add_copy(move, lane_own_block(lane, own, offset), lane_kept_block(lane, own, offset),
                    simple_block_count(lane, own, offset));
}

/* Its receives; what senders stored in the output is there already. */
PRIM_FN void simple_recv_each(struct lane *lane, struct move *move, size_t offset) {
  const struct step *step = &lane->step;
  FIFO_EACH_LINK(i, lane->work->recv_count, step->recv_links) {
    const uint32_t block = step_block(step, i);
    if (!(step->flags & STEP_RECV_FINAL) || !lane->zero_copy_receive) {
      simple_mark_remote(lane, move);
      simple_add_copy(move, link_slot(&lane->recv[i]), lane_kept_block(lane, block, offset),
                      simple_block_count(lane, block, offset));
    }
    link_advance(&lane->recv[i], lane->work->slice_steps);
  }
}
#endif

/* Sources and destinations of the slice at `offset`. */
PRIM_FN void simple_spans(struct lane *lane, struct prim *prim, struct flight *flight, size_t offset) {
#if PRIM_ALGOS > 0
  flight->move.each = step_is_each(&lane->step);
  if (flight->move.each) {
    simple_send_each(lane, prim, &flight->move, offset);
    simple_recv_each(lane, &flight->move, offset);
    return;
  }
#endif
  simple_sources(lane, flight, offset);
  simple_destinations(lane, prim, flight, offset);
}

PRIM_FN void simple_begin(struct lane *lane, struct prim *prim) {
  const struct work *work = lane->work;
  struct flight *flight = lane_flight(lane, lane->begun);
  struct move *move = &flight->move;
  const size_t offset = slice_offset(lane->step.count, lane->slice_index, lane->slice_elements);
  move->count = slice_length(lane->step.count, offset, lane->slice_elements);
  move->dtype = work->dtype;
  move->op = work->op;
  move->op_arg = work->op_arg;
  move->source_count = move->destination_count = 0;
  move->pre_op_sources = 0;
#if PRIM_ALGOS > 1
  move->remote_destinations = 0;
#endif
  move->post_op = (lane->step.flags & STEP_POST_OP) != 0;
  flight->recv_links = simple_has_flag(&lane->step, STEP_RECV_MORE) ? 0 : lane->step.recv_links;
  flight->send_links = simple_has_flag(&lane->step, STEP_SEND_MORE) ? 0 : lane->step.send_links;
  simple_spans(lane, prim, flight, offset);
  prim_move_begin(prim, move);
  lane->begun += 1;
  lane->slice_index += 1;
  if (lane->slice_index == lane->slice_count) lane->steps_done += 1;
}

/* Frees what was read and announces what was written, after the data itself. */
PRIM_FN void simple_post(struct lane *lane, struct prim *prim) {
  const struct flight *flight = lane_flight(lane, lane->posted);
  const uint32_t steps = lane->work->slice_steps;
  FIFO_EACH_LINK(i, lane->work->recv_count, flight->recv_links) {
    lane->recv[i].posted += steps;
    prim_store_head(prim, &lane->recv[i].sender->head, lane->recv[i].posted);
  }
  FIFO_EACH_LINK(i, lane->work->send_count, flight->send_links) {
    lane->send[i].posted += steps;
    prim_store_tail(prim, &lane->send[i].receiver->tail, lane->send[i].posted);
  }
  lane->posted += 1;
  lane_signal_lists(lane, prim, lane->posted); /* a list's step is one slice */
}

PRIM_FN void simple_move(struct lane *lane, struct prim *prim, uint32_t action) {
  switch (action) {
    case LANE_BEGIN: simple_begin(lane, prim); break;
    case LANE_FINISH:
      prim_move_finish(prim, &lane_flight(lane, lane->finished)->move);
      lane->finished += 1;
      break;
    case LANE_POST: simple_post(lane, prim); break;
    default: lane_close(lane, prim); break;
  }
}

#endif
