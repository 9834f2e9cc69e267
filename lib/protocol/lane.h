/* lane.h: a lane: one work in progress on one channel, with its iterator, its ends of connections and its
 * slices in flight. NCCL calls it a work element of a channel. A lane is a state machine: every wait is a
 * predicate (lane_enabled), and every move ends without waiting (lane_move). run.h has a loop that spins on
 * it; the emulator's scheduler chooses the moves one by one.
 *
 *   OPEN: offer our output to senders, show our input to receivers; take what the others offer and show
 *   -> RUN: slices or LL lines -> DONE */
#ifndef TUTTI_PROTOCOL_LANE_H
#define TUTTI_PROTOCOL_LANE_H

#include "protocol/fifo.h"
#include "schedule/algo.h"
#include "schedule/plan.h"

enum lane_phase { LANE_OPEN, LANE_RUN, LANE_DONE };

/* Moves of a lane, as bits. */
enum lane_action {
  LANE_OFFER = 1,  /* offer the address of our output to a sender, or show that of our input to a receiver */
  LANE_TAKE = 2,   /* take the address that a receiver offered, or that a sender showed */
  LANE_BEGIN = 4,  /* slots are available: start moving the next slice */
  LANE_FINISH = 8, /* finish the oldest slice that was begun */
  LANE_POST = 16,  /* post the oldest finished slice to both ends; LL: free the step's slot */
  LANE_LL = 32,    /* move the next group of LL lines; the first group of a step opens it */
  LANE_END = 64    /* nothing is left: save the counters */
};

enum lane_error { LANE_OK = 0, LANE_SIZE_MISMATCH = 1 };

/* A slice between begin and post. */
struct flight {
  struct move move;
  link_set recv_links, send_links; /* links whose slots its post passes on */
};

struct lane {
  const struct work *work;
  const uint8_t *in;
  uint8_t *out;
#if PRIM_ALGOS > 1
  const struct plan_buffers *parts; /* of a fused work: the memory of its parts; set by the backend */
#endif
  uint8_t phase;          /* enum lane_phase */
  uint8_t error;          /* enum lane_error */
  uint8_t depth;          /* slices in flight, 1..PRIM_DEPTH */
  uint8_t flag_bits;      /* width of a line's flag */
  bool zero_copy_receive; /* senders store final values in our output */
  uint32_t offer_index;   /* moves made in LANE_OPEN: see lane_told() */
  uint32_t group_lines;   /* most lines per move */
  struct algo_iter iter;
  struct step step; /* the current step */
#if PRIM_ALGOS > 1
  bool remote;             /* the operation's output is longer than caches; set by the backend */
  uint8_t *scratch;        /* of the operation, for lists */
  uint64_t *progress;      /* progress of each list of the rank, over all operations; 0: no list waits */
  uint64_t progress_begin; /* their common value when this operation began */
#endif
  bool has_step;
  uint64_t steps_done; /* schedule steps completed, for reports */
  /* Simple */
  uint32_t slice_index, slice_count;
  size_t slice_elements;
  size_t slice_capacity; /* capacity of a slice's slots, in elements */
  uint64_t begun, finished, posted;
  /* LL and LL128 */
  bool step_held; /* `step` is current and not posted yet; needed because an empty step has no lines */
  uint32_t line_index, line_count, line_bytes; /* of the step; line_bytes: bytes of its data */
  bool step_open;                              /* the step owns the receivers' slots; its lines are moving */
  /* a mismatch, when error is set */
  uint64_t expected_bytes, found_bytes;
  uint32_t mismatch_peer;
#ifdef PRIM_COMPACT
  struct link *recv, *send; /* as many as the work has; set by the backend, as is `flights` */
  struct flight *flights;
#else
  struct link recv[PRIM_LINKS], send[PRIM_LINKS];
  struct flight flights[PRIM_DEPTH];
#endif
};

/* The record of slice number `slice` while it is in flight. Uses no more records than the depth needs. */
PRIM_FN struct flight *lane_flight(struct lane *lane, uint64_t slice) {
  return &lane->flights[lane->depth > 2 ? slice % PRIM_DEPTH : (slice & (lane->depth - 1u)) % PRIM_DEPTH];
}

/* The work's protocol; a constant if the backend compiles each protocol separately. */
PRIM_FN uint8_t lane_proto(const struct work *work) {
#ifdef PRIM_PROTO
  (void)work;
  return PRIM_PROTO;
#else
  return work->proto;
#endif
}

/* The work (or the fused work's part) that the current step belongs to. */
PRIM_FN const struct work *lane_part(const struct lane *lane) {
  const bool fused = PRIM_ALGOS > 1 && (lane->work->flags & WORK_FUSED) != 0;
  return fused ? lane->work + step_part(&lane->step) : lane->work;
}

/* A step of a fused work uses its part's memory; when a part begins, its size must be agreed on. */
PRIM_FN void lane_enter_part(struct lane *lane) {
#if PRIM_ALGOS > 1
  if (!lane->has_step || (lane->work->flags & WORK_FUSED) == 0) return;
  lane->in = (const uint8_t *)lane->parts[lane->step.part].in;
  lane->out = (uint8_t *)lane->parts[lane->step.part].out;
  if ((lane->step.flags & STEP_PART) == 0) return;
  FIFO_EACH_LINK(i, lane->work->recv_count, lane->step.recv_links) lane->recv[i].agreed = false;
  FIFO_EACH_LINK(i, lane->work->send_count, lane->step.send_links) lane->send[i].agreed = false;
#else
  (void)lane;
#endif
}

#ifndef PRIM_NEXT_STEP
#define PRIM_NEXT_STEP algo_next
#endif

PRIM_FN bool lane_next_step(struct lane *lane) {
  const struct work *work = lane->work;
  const bool only_rings = PRIM_ALGOS == 0 && lane_proto(work) == PROTO_LL128; /* messages do not use LL128 */
  lane->has_step = only_rings ? ring_next(&lane->iter.ring, work, &lane->step)
                              : PRIM_NEXT_STEP(&lane->iter, work, &lane->step);
  lane_enter_part(lane);
  return lane->has_step;
}

/* Address of the rank's own operand of the current step, plus `offset` elements. */
PRIM_FN const uint8_t *lane_own(const struct lane *lane, size_t offset) {
  const uint8_t *base = (lane->step.flags & STEP_FROM_OUTPUT) != 0 ? lane->out : lane->in;
#if PRIM_ALGOS > 1
  if (lane->step.flags & STEP_FROM_SCRATCH) base = lane->scratch;
#endif
  return base + (lane->step.in_offset + offset) * lane->work->element_bytes;
}

PRIM_FN size_t lane_bytes(const struct lane *lane, size_t elements) {
  return elements * lane->work->element_bytes;
}

/* Address at which the rank keeps the current step's result, plus `offset` elements. */
PRIM_FN uint8_t *lane_kept(const struct lane *lane, size_t offset) {
  uint8_t *base = lane->out;
#if PRIM_ALGOS > 1
  if (lane->step.flags & STEP_TO_SCRATCH) base = lane->scratch;
  if (lane->step.flags & STEP_TO_INPUT) base = (uint8_t *)(uintptr_t)lane->in;
#endif
  return base + lane_bytes(lane, lane->step.out_offset + offset);
}

/* The same addresses in a step with a block for each link, of block `block`. */
PRIM_FN const uint8_t *lane_own_block(const struct lane *lane, uint32_t block, size_t offset) {
  return lane_own(lane, step_block_offset(&lane->step, block) + offset);
}

PRIM_FN uint8_t *lane_kept_block(const struct lane *lane, uint32_t block, size_t offset) {
  return lane_kept(lane, step_block_offset(&lane->step, block) + offset);
}

/* Whether the current step, with a block for each link, copies the own block to the output: not if it lies
 * there already. */
PRIM_FN bool lane_copies_block(const struct lane *lane) {
  const struct step *step = &lane->step;
  return (step->flags & STEP_KEEP) != 0 && (step->flags & STEP_COPY_IN) != 0 &&
         lane_own_block(lane, step->own_index, 0) != lane_kept_block(lane, step->own_index, 0);
}

/* ---- lists that wait for each other ---- */

PRIM_FN bool lane_is_list(const struct lane *lane) {
  return PRIM_ALGOS > 1 && lane->work->algo == ALGO_CUSTOM;
}

/* Steps that list `number` of the rank has completed in this operation; 0 also while it is still in the
 * operation before. */
PRIM_FN uint64_t lane_list_progress(const struct lane *lane, uint32_t number) {
#if PRIM_ALGOS > 1
  const uint64_t progress = prim_load_tail(&lane->progress[number]);
  return progress > lane->progress_begin ? progress - lane->progress_begin : 0;
#else
  (void)lane, (void)number;
  return 0;
#endif
}

/* Whether the list that the current step waits for, if any, has made enough progress. Its data is visible
 * then. */
PRIM_FN bool lane_may_follow(const struct lane *lane) {
#if PRIM_ALGOS > 1
  if (lane->step.flags & STEP_AWAIT_LIST)
    return lane_list_progress(lane, lane->step.wait_lane) >= lane->step.wait_count;
#else
  (void)lane;
#endif
  return true;
}

/* Publishes that this list has completed step_count steps to the rank's other lists. */
PRIM_FN void lane_signal_lists(const struct lane *lane, struct prim *prim, uint64_t step_count) {
#if PRIM_ALGOS > 1
  if (lane_is_list(lane) && lane->progress != 0)
    prim_store_tail(prim, &lane->progress[lane->work->role], lane->progress_begin + step_count);
#else
  (void)lane, (void)prim, (void)step_count;
#endif
}

/* A list starts from the value at which the previous operation ended; all counters of the rank are equal
 * then. Its steps may read what earlier steps wrote, so each begins after the previous one has ended. */
PRIM_FN void lane_open_list(struct lane *lane) {
#if PRIM_ALGOS > 1
  if (!lane_is_list(lane)) return;
  lane->depth = 1;
  lane->progress_begin = lane->progress != 0 ? lane->progress[lane->work->role] : 0;
#else
  (void)lane;
#endif
}

/* All lists of the rank end at the same count, whatever their lengths. */
PRIM_FN void lane_close_list(const struct lane *lane, struct prim *prim) {
#if PRIM_ALGOS > 1
  const struct work *work = lane->work;
  if (lane_is_list(lane))
    lane_signal_lists(lane, prim, size_div_up(work->last_chunk_count, work->chunk_count) * work->list->round);
#else
  (void)lane, (void)prim;
#endif
}

/* False if the sender must use the slots. An offer is made even then (address 0), because the sender waits
 * for one. */
PRIM_FN bool lane_shows_output(const struct lane *lane) {
  return lane->out != 0 && (lane->work->flags & WORK_OUTPUT_HIDDEN) == 0;
}

PRIM_FN uint8_t line_kind_of(const struct work *work) {
  return lane_proto(work) == PROTO_LL ? LINE_LL : LINE_LL128;
}

PRIM_FN void link_open_ll(struct link *link, uint64_t saved_line) {
  link->line = saved_line;
  link->line_slot = link_slot_of(link, saved_line);
}

/* The operation's bytes on this channel: both ends of a connection must agree on them before data moves. */
PRIM_FN uint64_t lane_agreed_bytes(const struct work *work) {
  return (uint64_t)work->part_count * work->element_bytes;
}

/* Unequal sizes mean that the ranks called different operations: the lane stops instead of delivering wrong
 * data. */
PRIM_FN void lane_agree(struct lane *lane, const struct link *link, uint64_t found_bytes) {
  const uint64_t expected_bytes = lane_agreed_bytes(lane_part(lane));
  if (found_bytes == expected_bytes) return;
  lane->error = LANE_SIZE_MISMATCH;
  lane->expected_bytes = expected_bytes;
  lane->found_bytes = found_bytes;
  lane->mismatch_peer = link->peer;
}

/* A receiver's first step waits until the sender has announced the operation's size; the leader compares
 * it. */
PRIM_FN bool lane_poll_size(struct lane *lane, struct link *link, struct prim *prim) {
  uint64_t bytes;
  if (link->agreed || !prim_leader(prim)) return true;
  if (!prim_tagged_load(link_announcement(link, lane_proto(lane->work)), link_tag(link), &bytes))
    return false;
  link->agreed = true;
  lane_agree(lane, link, bytes);
  return true;
}

/* The sender announces the size when the slot of its first step is free, because the tagged word is free then
 * too. */
PRIM_FN void lane_announce(struct lane *lane, struct link *link, struct prim *prim) {
  if (link->agreed) return;
  prim_tagged_store(prim, link_announcement(link, lane_proto(lane->work)), link_tag(link),
                    lane_agreed_bytes(lane_part(lane)));
  link->agreed = true;
}

/* A link's index; a constant if there is only one link, so that no memory is read for it. */
PRIM_FN uint32_t lane_link_index(uint32_t index) { return PRIM_LINKS == 1 ? 0 : index; }

/* Whether the work's input may be read in place; false at compile time if only rings are compiled. */
PRIM_FN bool lane_shows_input(const struct lane *lane) {
  return PRIM_ALGOS > 0 && lane_proto(lane->work) == PROTO_SIMPLE &&
         (lane->work->flags & WORK_SHOWS_INPUT) != 0;
}

/* In LANE_OPEN a lane makes a move for each link: it offers its output to each sender and shows its input to
 * each receiver; then it takes what each receiver offers and what each sender shows. This is the number of
 * the moves before the first take: ranks in a ring would wait for each other if any of these came later. */
PRIM_FN uint32_t lane_told(const struct lane *lane) {
  const uint32_t shows = lane_shows_input(lane) ? lane->work->send_count : 0;
  return lane->work->recv_count + shows;
}

PRIM_FN bool lane_takes(const struct lane *lane) { return lane->offer_index >= lane_told(lane); }

/* The lane takes what a sender shows; else, what a receiver offers. */
PRIM_FN bool lane_takes_shown(const struct lane *lane) {
  return lane_shows_input(lane) && lane->offer_index - lane_told(lane) >= lane->work->send_count;
}

/* The link whose other end the lane waits for. */
PRIM_FN struct link *lane_take_link(struct lane *lane) {
  const uint32_t index = lane->offer_index - lane_told(lane);
  if (lane_takes_shown(lane)) return &lane->recv[lane_link_index(index - lane->work->send_count)];
  return &lane->send[lane_link_index(index)];
}

/* The address and the bytes that the lane waits for; false until they have arrived. */
PRIM_FN bool lane_take_load(struct lane *lane, uint64_t *address, uint64_t *bytes) {
  const struct link *link = lane_take_link(lane);
  const bool shown = lane_takes_shown(lane);
  return prim_tagged_load(shown ? &link->receiver->source : &link->sender->offer, link_tag(link), address) &&
         prim_tagged_load(shown ? &link->receiver->source_bytes : &link->sender->offer_bytes, link_tag(link),
                          bytes);
}

/* Making an offer never waits: the previous operation has ended here, so what it offered was taken. */
PRIM_FN uint32_t lane_open_enabled(struct lane *lane) {
  uint64_t address, bytes;
  if (!lane_takes(lane)) return LANE_OFFER;
  return lane_take_load(lane, &address, &bytes) ? LANE_TAKE : 0;
}

/* Skips the offers that this work does not make; enters RUN after the last one. */
PRIM_FN void lane_open_settle(struct lane *lane) {
  const struct work *work = lane->work;
  const uint32_t told = lane_told(lane), taken = told + work->send_count;
  if (lane->offer_index < work->recv_count && (work->flags & WORK_DIRECT_RECV) == 0)
    lane->offer_index = work->recv_count;
  if (lane->offer_index >= told && (work->flags & WORK_DIRECT_SEND) == 0 &&
      (!lane_shows_input(lane) || lane->offer_index < taken))
    lane->offer_index = taken;
  if (lane->offer_index == taken + (lane_shows_input(lane) ? work->recv_count : 0)) lane->phase = LANE_RUN;
}

PRIM_FN void lane_offer(struct lane *lane, struct prim *prim) {
  const struct link *link = &lane->recv[lane_link_index(lane->offer_index)];
  uint64_t address = lane_shows_output(lane) ? (uint64_t)(uintptr_t)lane->out : 0;
#ifdef PRIM_OFFER_SHIFTS
  if (address != 0 && lane_proto(lane->work) == PROTO_SIMPLE) address += link->offer_shift;
#endif
  prim_tagged_store(prim, &link->sender->offer_bytes, link_tag(link), lane_agreed_bytes(lane->work));
  prim_tagged_store(prim, &link->sender->offer, link_tag(link), address);
}

/* Address 0: the receiver cannot read our input, and the slots are used. */
PRIM_FN void lane_offer_input(struct lane *lane, struct prim *prim) {
#if PRIM_ALGOS > 0
  const struct link *link = &lane->send[lane_link_index(lane->offer_index - lane->work->recv_count)];
  uint64_t address = link->shows ? (uint64_t)(uintptr_t)lane->in : 0;
#ifdef PRIM_OFFER_SHIFTS
  if (address != 0) address += link->offer_shift;
#endif
  prim_tagged_store(prim, &link->receiver->source_bytes, link_tag(link), lane_agreed_bytes(lane->work));
  prim_tagged_store(prim, &link->receiver->source, link_tag(link), address);
#else
  (void)lane, (void)prim;
#endif
}

/* The size is compared before anything is read or stored by the address. */
PRIM_FN void lane_take(struct lane *lane) {
  struct link *link = lane_take_link(lane);
  uint64_t address = 0, bytes = 0;
  lane_take_load(lane, &address, &bytes);
#ifdef PRIM_SHIFTS
  if (address != 0) address += link->direct_shift;
#endif
  link->direct = (uint8_t *)(uintptr_t)address;
  if (lane_takes_shown(lane)) link->agreed = true; /* needs no announcement */
  lane_agree(lane, link, bytes);
}

PRIM_FN void lane_open_move(struct lane *lane, struct prim *prim) {
  if (lane_takes(lane)) lane_take(lane);
  else if (lane->offer_index < lane->work->recv_count) lane_offer(lane, prim);
  else lane_offer_input(lane, prim);
  lane->offer_index += 1;
  lane_open_settle(lane);
}

/* Whether the lane may end: no receiver reads its input in place any more (schedule/step.h), and each has
 * taken the address, which the next operation overwrites, also if it is 0. */
PRIM_FN bool lane_input_is_read(struct lane *lane) {
#if PRIM_ALGOS > 0
  if (!lane_shows_input(lane) || work_returns_sums(lane->work)) return true;
  FIFO_EACH_LINK(i, lane->work->send_count, FIFO_ALL_LINKS) {
    if (!link_all_freed(&lane->send[i])) return false;
  }
#else
  (void)lane;
#endif
  return true;
}

/* Capacity of a slice's slots, in elements. */
PRIM_FN size_t lane_slice_capacity(const struct lane *lane) {
  const struct work *work = lane->work;
  const uint32_t step_bytes = work->recv_count > 0 ? lane->recv[0].step_bytes : lane->send[0].step_bytes;
  if (work->recv_count + work->send_count == 0 || lane_proto(work) != PROTO_SIMPLE) return work->chunk_count;
  return slice_capacity_of(work, step_bytes);
}

/* What an end of a connection keeps between operations. */
struct link_saved {
  uint64_t step, line, head;
};

/* Issues all loads before it uses the first result. */
PRIM_OUTLINE void lane_open_links(struct lane *lane, struct prim *prim) {
  const struct work *work = lane->work;
  const uint8_t kind = line_kind_of(work);
  struct link_saved recv[PRIM_LINKS], send[PRIM_LINKS];
  PRIM_UNROLL FIFO_EACH_LINK(i, work->recv_count, FIFO_ALL_LINKS) {
    recv[i].step = lane->recv[i].receiver->recv_step;
    recv[i].line = lane->recv[i].receiver->recv_line[kind];
  }
  PRIM_UNROLL FIFO_EACH_LINK(i, work->send_count, FIFO_ALL_LINKS) {
    send[i].step = lane->send[i].sender->send_step;
    send[i].line = lane->send[i].sender->send_line[kind];
#ifdef PRIM_COHERENT
    send[i].head = lane->send[i].sender->send_head;
#else
    send[i].head = prim_load_head(&lane->send[i].sender->head);
#endif
  }
  PRIM_UNROLL FIFO_EACH_LINK(i, work->recv_count, FIFO_ALL_LINKS) {
    struct link *link = &lane->recv[i];
    link_open(link, recv[i].step, work->chunk_steps);
    link_open_ll(link, recv[i].line);
    /* Return the slots of steps that rounding skipped, and those that the last operation did not free. */
#ifndef PRIM_FREES_LATE
    if (link->step != recv[i].step)
#endif
      prim_store_head(prim, &link->sender->head, link->step);
  }
  PRIM_UNROLL FIFO_EACH_LINK(i, work->send_count, FIFO_ALL_LINKS) {
    struct link *link = &lane->send[i];
    link_open(link, send[i].step, work->chunk_steps);
    link_open_ll(link, send[i].line);
    link->cached = send[i].head; /* most operations need no further load */
  }
}

/* The backend sets these fields first: the links' ends, buffer, slots, step_bytes, shifts, shows and peer;
 * and depth, flag_bits, group_lines, scratch and progress. */
PRIM_FN void lane_open(struct lane *lane, struct prim *prim, const struct work *work, const void *in,
                       void *out) {
  lane->work = work;
  lane->in = (const uint8_t *)in;
  lane->out = (uint8_t *)out;
  lane->phase = LANE_OPEN;
  lane->error = LANE_OK;
  lane->offer_index = 0;
  lane->zero_copy_receive = (work->flags & WORK_DIRECT_RECV) != 0 && lane_shows_output(lane);
  lane->steps_done = 0;
  lane->slice_index = lane->slice_count = lane->line_index = lane->line_count = 0;
  lane->begun = lane->finished = lane->posted = 0;
  lane->slice_capacity = lane_slice_capacity(lane);
  lane->step_open = lane->step_held = false;
#if PRIM_ALGOS > 1
  lane->step.part = 0;
#endif
  lane->has_step = true; /* until the iterator ends */
  algo_begin(&lane->iter, work);
  lane_open_list(lane);
  lane_open_links(lane, prim);
  lane_open_settle(lane);
}

/* True if a completed lane took one step and still holds it, so that an equal work can reuse it. */
PRIM_FN bool lane_keeps_step(const struct lane *lane) {
  const uint32_t others = WORK_FUSED | WORK_DIRECT_RECV | WORK_DIRECT_SEND;
  return lane->phase == LANE_DONE && lane->steps_done == 1 && lane->work->algo == ALGO_RING &&
         (lane->work->flags & others) == 0;
}

/* Like lane_open() with the same work, for LL and LL128; requires lane_keeps_step(). */
PRIM_FN void lane_reopen(struct lane *lane, struct prim *prim, const void *in, void *out) {
  lane->in = (const uint8_t *)in;
  lane->out = (uint8_t *)out;
  lane->phase = LANE_RUN;
  lane->error = LANE_OK;
  lane->steps_done = 0;
  lane->line_index = 0;
  lane->step_open = false;
  lane->step_held = lane->has_step = true;
  lane_open_links(lane, prim);
}

/* Saves the counters for the next operation on these connections. */
PRIM_FN void lane_close(struct lane *lane, struct prim *prim) {
  const uint8_t kind = line_kind_of(lane->work);
  lane->phase = LANE_DONE;
  lane_close_list(lane, prim);
  if (!prim_leader(prim)) return;
  prim_await_readers(prim);
  FIFO_EACH_LINK(i, lane->work->recv_count, FIFO_ALL_LINKS) {
    lane->recv[i].receiver->recv_step = lane->recv[i].posted;
    lane->recv[i].receiver->recv_line[kind] = lane->recv[i].line; /* Simple does not change it */
  }
  FIFO_EACH_LINK(i, lane->work->send_count, FIFO_ALL_LINKS) {
    lane->send[i].sender->send_step = lane->send[i].posted;
    lane->send[i].sender->send_line[kind] = lane->send[i].line;
    if ((lane->work->flags & WORK_READS_SLOTS) != 0) lane->send[i].sender->read_step = lane->send[i].posted;
#ifdef PRIM_COHERENT
    lane->send[i].sender->send_head = lane->send[i].cached;
#endif
  }
}

#endif
