/* check.h: the invariants that are checked around every guarded event, in constant time. Each connection has
 * counters of its own for the checks, which follow what lanes do and not what they store, in steps since the
 * connection was made:
 *
 *   freed <= read <= reading <= announced <= written <= writing <= freed + slots
 *
 * Each action advances one of them and checks one of the inequalities; the counters that the ends share must
 * then agree. A receiver that reads the sender's input in place runs ahead of `announced`. If several
 * schedule steps share a slot, the first advances `writing` and `reading`, and the last one the others; a
 * write within the slot must append to its content, or add to what is there, and a read must lie within it.
 * Of an end in another process only the shared counters are known, and nothing of the content of slots. A
 * broken invariant is an error of the protocol or a misplaced store, never of the user's calls. The functions
 * return NULL, or a sentence that says what is broken. This is a header because block.c, its only user, calls
 * it at every event. */
#ifndef TUTTI_BACKENDS_EMU_CHECK_H
#define TUTTI_BACKENDS_EMU_CHECK_H

#include <inttypes.h>
#include <stdio.h>

#include "backends/emu/scheduler_gate.h"
#include "backends/emu/fault_injection.h"

static char check_text[256];

static inline const char *check_failed(const struct emu_conn *conn, uint64_t step, const char *what) {
  char sender[EMU_END_BYTES], receiver[EMU_END_BYTES];
  snprintf(check_text, sizeof check_text, "connection %s -> %s channel %" PRIu32 " step %" PRIu64 ": %s",
           emu_report_end(sender, conn, true), emu_report_end(receiver, conn, false), conn->channel_index,
           step, what);
  return check_text;
}

static inline uint64_t raise_to(uint64_t *counter, uint64_t value) {
  if (*counter < value) *counter = value;
  return *counter;
}

/* Steps that rounding skips at an operation's start are neither written nor read, so they count as free at
 * once. */
static inline void emu_check_open(struct emu_lane *emu) {
  const struct lane *lane = &emu->lane;
  for (uint32_t i = 0; i < lane->work->recv_count; i++) {
    struct emu_shadow *shadow = &emu->recv_conn[i]->shadow;
    shadow->freed = raise_to(&shadow->read, raise_to(&shadow->reading, lane->recv[i].step));
  }
  for (uint32_t i = 0; i < lane->work->send_count; i++) {
    struct emu_shadow *shadow = &emu->send_conn[i]->shadow;
    shadow->announced = raise_to(&shadow->written, raise_to(&shadow->writing, lane->send[i].step));
  }
}

/* A slot that more steps will use is counted in `writing` and `reading` already. */
static inline const char *begin_send(struct emu_conn *conn, const struct link *link, uint32_t steps) {
  struct emu_shadow *shadow = &conn->shadow;
  const uint64_t step = link->step;
  if (step != shadow->writing - (shadow->write_open ? steps : 0))
    return check_failed(conn, step, "the sender skips a step, or writes one twice");
  if (link->slot_index + steps > conn->slots)
    return check_failed(conn, step, "a slice runs over the end of the slots");
  shadow->writing = step + steps;
  if (emu_conn_is_remote(conn)) shadow->freed = prim_load_acquire(&conn->fifo->sender.head);
  if (shadow->writing > shadow->freed + conn->slots && emu_gate == NULL)
    return check_failed(conn, step, "the sender writes a slot that is not free");
  return NULL;
}

/* `in_place`: the sender's input is read, and the slot is not. */
static inline const char *begin_recv(struct emu_conn *conn, uint64_t step, uint32_t steps, bool in_place) {
  struct emu_shadow *shadow = &conn->shadow;
  if (step != shadow->reading - (shadow->read_open ? steps : 0))
    return check_failed(conn, step, "the receiver skips a step, or reads one twice");
  shadow->reading = step + steps;
  if (emu_conn_is_remote(conn)) shadow->announced = prim_load_acquire(&conn->fifo->receiver.tail);
  if (shadow->reading > shadow->announced && !in_place)
    return check_failed(conn, step, "the receiver reads a slot that was not announced");
  return NULL;
}

/* A slice must be written right after the slot's content, or added within it. */
static inline const char *begin_send_place(struct emu_conn *conn, const struct lane *lane, uint32_t index) {
  struct emu_shadow *shadow = &conn->shadow;
  const struct step *step = &lane->step;
  const uint32_t slot = lane->send[index].slot_index;
  const uint64_t end = (uint64_t)step->send_place + step_link_count(step, index),
                 held = shadow->write_open ? shadow->held[slot] : 0;
  const bool adds = (step->flags & STEP_SEND_ADD) != 0;
  shadow->write_open = (step->flags & STEP_SEND_MORE) != 0;
  if (adds ? end > held : step->send_place != held)
    return check_failed(conn, shadow->writing - 1,
                        adds ? "the sender adds to what is not there" : "the sender leaves a gap in a slot");
  if (end > lane->slice_capacity)
    return check_failed(conn, shadow->writing - 1, "the sender writes over the end of a slot");
  if (!adds) shadow->held[slot] = end;
  return NULL;
}

/* A slice must be read from within the slot's content. */
static inline const char *begin_recv_place(struct emu_conn *conn, const struct lane *lane, uint32_t index) {
  struct emu_shadow *shadow = &conn->shadow;
  const struct step *step = &lane->step;
  const uint32_t slot = lane->recv[index].slot_index;
  shadow->read_open = (step->flags & STEP_RECV_MORE) != 0;
  if (emu_conn_is_remote(conn)) return NULL;
  if (simple_reads_shown(step, &lane->recv[index])) return NULL;
  if (conn->net) return NULL;        /* only the proxy knows the content of its slots, and checks it */
  if (emu_gate != NULL) return NULL; /* a replay, whose ranks may have made different calls */
  if ((uint64_t)step->recv_place + step_link_count(step, index) > shadow->held[slot])
    return check_failed(conn, shadow->reading - 1, "the receiver reads more than the slot holds");
  return NULL;
}

/* Steps may share a slot only if a chunk is one slice. */
static inline const char *begin_link(struct emu_conn *conn, const struct lane *lane, uint32_t index,
                                     bool sends) {
  const struct link *link = sends ? &lane->send[index] : &lane->recv[index];
  const uint32_t steps = lane->work->slice_steps, shares = STEP_SEND_MORE | STEP_RECV_MORE | STEP_SEND_ADD;
  const char *text = sends ? begin_send(conn, link, steps)
                           : begin_recv(conn, link->step, steps, simple_reads_shown(&lane->step, link));
  if (text != NULL) return text;
  if (lane->slice_count == 1)
    return sends ? begin_send_place(conn, lane, index) : begin_recv_place(conn, lane, index);
  if ((lane->step.flags & shares) != 0)
    return check_failed(conn, link->step, "schedule steps share the slots of several slices");
  return NULL;
}

static inline const char *check_begin(struct emu_lane *emu) {
  const struct lane *lane = &emu->lane;
  const char *text = NULL;
  for (uint32_t i = 0; i < lane->work->send_count && text == NULL; i++)
    if (((lane->step.send_links >> i) & 1) != 0) text = begin_link(emu->send_conn[i], lane, i, true);
  for (uint32_t i = 0; i < lane->work->recv_count && text == NULL; i++)
    if (((lane->step.recv_links >> i) & 1) != 0) text = begin_link(emu->recv_conn[i], lane, i, false);
  return text;
}

/* Slices finish in order on each of their links. */
static inline const char *check_finish(struct emu_lane *emu) {
  struct lane *lane = &emu->lane;
  const struct flight *flight = lane_flight(lane, lane->finished);
  const uint32_t steps = lane->work->slice_steps;
  for (uint32_t i = 0; i < lane->work->send_count; i++)
    if (((flight->send_links >> i) & 1) != 0) emu->send_conn[i]->shadow.written += steps;
  for (uint32_t i = 0; i < lane->work->recv_count; i++)
    if (((flight->recv_links >> i) & 1) != 0) emu->recv_conn[i]->shadow.read += steps;
  return NULL;
}

static inline const char *check_post(struct emu_lane *emu) {
  struct lane *lane = &emu->lane;
  const struct flight *flight = lane_flight(lane, lane->posted);
  const uint32_t steps = lane->work->slice_steps;
  for (uint32_t i = 0; i < lane->work->send_count; i++) {
    struct emu_shadow *shadow = &emu->send_conn[i]->shadow;
    if (((flight->send_links >> i) & 1) == 0) continue;
    shadow->announced += steps;
    if (shadow->announced > shadow->written)
      return check_failed(emu->send_conn[i], shadow->announced, "tail moves before the data is written");
  }
  for (uint32_t i = 0; i < lane->work->recv_count; i++) {
    struct emu_shadow *shadow = &emu->recv_conn[i]->shadow;
    if (((flight->recv_links >> i) & 1) == 0) continue;
    shadow->freed += steps;
    if (shadow->freed > shadow->read)
      return check_failed(emu->recv_conn[i], shadow->freed, "head moves before the data is read");
  }
  return NULL;
}

/* LL lines carry their own flags, so only two things remain to check: a step begins only on free slots, and
 * frees each slot once. */
static inline const char *check_ll_open(struct emu_lane *emu) {
  const struct lane *lane = &emu->lane;
  if (lane->step_open) return NULL;
  for (uint32_t i = 0; i < lane->work->send_count; i++) {
    struct emu_conn *conn = emu->send_conn[i];
    if (((lane->step.send_links >> i) & 1) == 0) continue;
    const char *text = begin_send(conn, &lane->send[i], 1);
    if (text != NULL) return text;
    conn->shadow.announced = conn->shadow.written = conn->shadow.writing;
  }
  return NULL;
}

static inline const char *check_ll_post(struct emu_lane *emu) {
  const struct lane *lane = &emu->lane;
  for (uint32_t i = 0; i < lane->work->recv_count; i++) {
    struct emu_shadow *shadow = &emu->recv_conn[i]->shadow;
    if (((lane->step.recv_links >> i) & 1) != 0)
      shadow->freed = shadow->read = shadow->reading = shadow->reading + 1;
  }
  return NULL;
}

/* A receiver must have taken the sender's current input. */
static inline const char *check_take_shown(struct emu_lane *emu) {
  const struct lane *lane = &emu->lane;
  for (uint32_t i = 0; lane_shows_input(lane) && i < lane->work->recv_count; i++) {
    const struct emu_lane *sender = emu->recv_conn[i]->send_lane;
    if (lane->recv[i].direct != NULL && sender != NULL && lane->recv[i].direct != sender->lane.in)
      return check_failed(emu->recv_conn[i], lane->recv[i].step,
                          "the receiver takes an input that was never shown");
  }
  return NULL;
}

/* With weak memory the reads themselves may still be to come. */
static inline bool input_read_is_due(const struct emu_lane *emu, const struct emu_lane *reader) {
  const struct work *work = emu->lane.work;
  const uint32_t blocks = work->func == FUNC_REDUCE_SCATTER ? work->rank_count : 1;
  for (uint32_t block = 0; block < blocks; block++)
    if (emu_weak_reads(reader, emu->lane.in + lane_bytes(&emu->lane, block * work->count + work->part_offset),
                       lane_bytes(&emu->lane, work->part_count)))
      return true;
  return false;
}

/* The sender's input may be overwritten from now on: of each link whose receiver reads it, the last step that
 * does must have been read. After it there are only steps that return sums, if there are any. */
static inline const char *check_end(struct emu_lane *emu) {
  const struct lane *lane = &emu->lane;
  const uint32_t sums = work_returns_sums(lane->work) ? 1 + direct_lag(lane->work, DIRECT_SUM) : 0;
  for (uint32_t i = 0; lane_shows_input(lane) && i < lane->work->send_count; i++) {
    const struct emu_conn *conn = emu->send_conn[i];
    if (emu_conn_is_remote(conn)) continue;
    if (conn->shadow.read + sums * lane->work->slice_steps < lane->send[i].posted ||
        input_read_is_due(emu, conn->recv_lane))
      return check_failed(conn, conn->shadow.read, "the sender ends before the receiver has read its input");
  }
  return NULL;
}

/* The sender must have taken the receiver's current output. Not checked for fused works, whose output
 * changes. */
static inline const char *check_take(struct emu_lane *emu) {
  const struct lane *lane = &emu->lane;
  if ((lane->work->flags & WORK_FUSED) != 0) return NULL;
  for (uint32_t i = 0; i < lane->work->send_count; i++) {
    const struct emu_lane *receiver = emu->send_conn[i]->recv_lane;
    if (lane->send[i].direct != NULL && receiver != NULL && lane->send[i].direct != receiver->lane.out)
      return check_failed(emu->send_conn[i], lane->send[i].step,
                          "the sender takes an offer that was never made");
  }
  return NULL;
}

static inline const char *emu_check_before(struct emu_lane *emu, uint32_t action) {
  const bool slots = emu->lane.work->proto == PROTO_SIMPLE;
  switch (action) {
    case LANE_BEGIN: return check_begin(emu);
    case LANE_FINISH: return check_finish(emu);
    case LANE_LL: return check_ll_open(emu);
    case LANE_POST: return slots ? check_post(emu) : check_ll_post(emu);
    case LANE_END: return slots ? check_end(emu) : NULL;
    default: return NULL;
  }
}

static inline const char *emu_check_after(struct emu_lane *emu, uint32_t action) {
  const struct lane *lane = &emu->lane;
  if (action == LANE_TAKE) {
    const char *text = check_take(emu);
    return text != NULL ? text : check_take_shown(emu);
  }
  if (action != LANE_POST) return NULL;
  for (uint32_t i = 0; i < lane->work->recv_count; i++) {
    const uint64_t head =
        emu->prim.weak != NULL ? lane->recv[i].posted : emu->recv_conn[i]->fifo->sender.head;
    if (head != emu->recv_conn[i]->shadow.freed && !emu_fault_holds(&emu->recv_conn[i]->fifo->sender.head))
      return check_failed(emu->recv_conn[i], head, "head is not the number of steps that were freed");
  }
  for (uint32_t i = 0; i < lane->work->send_count && lane->work->proto == PROTO_SIMPLE; i++)
    if (lane->send[i].posted != emu->send_conn[i]->shadow.announced ||
        (lane->posted > 0 && emu->send_conn[i]->fifo->receiver.tail > emu->send_conn[i]->shadow.announced))
      return check_failed(emu->send_conn[i], emu->send_conn[i]->fifo->receiver.tail,
                          "tail is not the number of steps that were announced");
  return NULL;
}

#endif
