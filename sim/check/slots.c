/* slots.c: messages. The sender's move leaves a record of what it put into a slot, into the receiver's
 * output, or into neither because its input is read in place; the receiver's move must find what its own step
 * expects. Slots are queues: the k-th message is for the k-th receive. */
#include <inttypes.h>
#include <string.h>

#include "check/executor.h"

static struct piece *pieces_of(struct message *message) {
  return message->piece_count == 1 ? &message->one : message->more;
}

static bool message_copy(struct prim *prim, struct message *message, struct value *out) {
  const struct piece *pieces = pieces_of(message);
  out->count = 0;
  for (uint32_t i = 0; i < message->piece_count; i++)
    if (!value_add(out, pieces[i].count, pieces[i].origin, pieces[i].expr))
      return engine_out_of_memory(prim->engine);
  return true;
}

static struct message *message_at(struct message *message, uint64_t place) {
  while (message && message->place != place) message = message->next;
  return message;
}

struct conn *seam_conn_back(const struct prim *prim, const struct conn *conn) {
  const struct check_lane *lane = prim->lane;
  const bool sends = conn->sender == lane->rank;
  const struct work *work = lane->work;
  const uint32_t first = sends ? 0 : work->recv_count, count = sends ? work->recv_count : work->send_count;
  for (uint32_t i = first; lane_shows_input(prim->run) && i < first + count; i++) {
    struct conn *back = &prim->engine->conns[lane->conns[i]];
    if (sends ? back->sender == conn->receiver : back->receiver == conn->sender) return back;
  }
  return NULL;
}

/* ---- receiving ---- */

static bool works_fit(const struct work *a, const struct work *b) {
  if (a->conn_index != b->conn_index || work_slots(a) != work_slots(b)) return false;
  if (a->part_count * a->element_bytes != b->part_count * b->element_bytes || a->proto != b->proto)
    return false;
  if (a->chunk_steps != b->chunk_steps || a->slice_steps != b->slice_steps) return false;
  if (a->conn_index == CONN_MESSAGE) return true;
  const bool same_root = a->root == b->root || a->conn_index == CONN_SWITCH; /* there, of each node or tree */
  return a->func == b->func && a->algo == b->algo && a->op == b->op && a->dtype == b->dtype && same_root &&
         a->op_sequence == b->op_sequence && a->count == b->count && a->part_offset == b->part_offset;
}

/* Both ends have the same work, and are at the same step. */
bool slots_meet(struct prim *prim, uint32_t link, const struct message *message) {
  struct check_engine *engine = prim->engine;
  struct check_lane *lane = prim->lane;
  const struct conn *conn = seam_recv_conn(prim, link);
  const uint64_t at = prim->run->recv[link].posted;
  if (!works_fit(message->work, lane->part) || message->begins != ((prim->run->step.flags & STEP_PART) != 0))
    return engine_fail(engine, CHECK_PARTS, lane, conn->sender,
                       "receives from rank %u, which has another operation, part or chunking there",
                       conn->sender);
  if (message->step == at && message->steps == seam_steps(prim)) return true;
  return engine_fail(engine, CHECK_MATCH, lane, conn->sender,
                     "takes steps %" PRIu64 " to %" PRIu64
                     " of the connection from rank %u, which filled %" PRIu64 " to %" PRIu64,
                     at, at + seam_steps(prim), conn->sender, message->step, message->step + message->steps);
}

bool slots_meet_address(struct prim *prim, const struct conn *conn, bool sends) {
  const uint32_t other = sends ? conn->recv_lane : conn->send_lane;
  const uint32_t peer = sends ? conn->receiver : conn->sender;
  const struct link *link = sends ? &prim->run->send[conn->send_link] : &prim->run->recv[conn->recv_link];
  if (!(sends ? conn->offer_made : conn->source_made)) return true;
  if (other != LANE_NONE && !works_fit(prim->engine->lanes[other].work, prim->lane->work))
    return engine_fail(prim->engine, CHECK_PARTS, prim->lane, peer,
                       "takes an address from rank %u, which has another operation, part or chunking there",
                       peer);
  return engine_fail(prim->engine, CHECK_MATCH, prim->lane, peer,
                     "takes the address that belongs to step %" PRIu64
                     " of the connection, where rank %u has"
                     " given that of another step",
                     link->step, peer);
}

/* What both ends must agree on besides the data's place. */
static bool message_meet(struct prim *prim, uint32_t link, const struct message *message, uint64_t units) {
  struct check_engine *engine = prim->engine;
  struct check_lane *lane = prim->lane;
  const struct conn *conn = seam_recv_conn(prim, link);
  const bool final = (prim->run->step.flags & STEP_RECV_FINAL) != 0;
  if (!slots_meet(prim, link, message)) return false;
  if (message->count != units)
    return engine_fail(engine, CHECK_MATCH, lane, conn->sender,
                       "expects %" PRIu64 " elements from rank %u, which sends %" PRIu64, units, conn->sender,
                       message->count);
  if (message->final == final) return true;
  return engine_fail(engine, CHECK_MATCH, lane, conn->sender, "takes as %s what rank %u sends as %s",
                     final ? "final" : "partial", conn->sender, final ? "partial" : "final");
}

/* The contents at a place of the slot that the receiver is at, which its step expects; NULL if the place was
 * read already, holds nothing or something else. `waits`: the lane must have waited for it. */
static struct message *message_find(struct prim *prim, uint32_t link, uint64_t place, uint64_t units,
                                    bool waits) {
  struct conn *conn = seam_recv_conn(prim, link);
  const uint64_t at = prim->run->recv[link].posted;
  if (conn->held == 0 || (waits && conn->tail_seen < at + seam_steps(prim))) {
    engine_fail(prim->engine, CHECK_SLOT, prim->lane, conn->sender,
                "reads step %" PRIu64 " from rank %u without having waited for it", at, conn->sender);
    return NULL;
  }
  struct message *message = message_at(&conn->messages[conn->got], place);
  if (message && !message->taken) return message_meet(prim, link, message, units) ? message : NULL;
  engine_fail(prim->engine, CHECK_MATCH, prim->lane, conn->sender,
              "reads %s place %" PRIu64 " of a slot from rank %u", message ? "a second time" : "unwritten",
              place, conn->sender);
  return NULL;
}

static bool direct_meet(struct prim *prim, const struct conn *conn, const struct message *message,
                        bool direct) {
  if (message->direct == direct) return true;
  return engine_fail(prim->engine, CHECK_MATCH, prim->lane, conn->sender,
                     "looks for data in its %s, which rank %u did not put there", direct ? "output" : "slot",
                     conn->sender);
}

/* Both ends must agree where the data is. */
static bool shown_meet(struct prim *prim, const struct conn *conn, const struct message *message,
                       bool in_place) {
  if (message->shown == in_place) return true;
  return engine_fail(prim->engine, CHECK_MATCH, prim->lane, conn->sender,
                     message->shown ? "looks in a slot for what rank %u does not send, but shows in its input"
                                    : "reads in the input of rank %u what that sends in a slot",
                     conn->sender);
}

/* What the message shows of this rank's own data at its sender. */
static void message_take(struct prim *prim, uint32_t link, struct message *message) {
  const struct conn *conn = seam_recv_conn(prim, link);
  prim->took |= link_bit(link);
  message->taken = true;
  if (message->shown) return;
  struct conn *back = seam_conn_back(prim, conn);
  if (back && back->reads_seen < message->reads) back->reads_seen = message->reads;
}

/* Where the slots that the link's end uses next begin. */
static uint64_t slot_begin(const struct prim *prim, const struct link *link) {
  if (!seam_is_simple(prim))
    return (uint64_t)(uintptr_t)line_address(link, line_kind_of(prim->lane->work), 0);
  return (uint64_t)(uintptr_t)link->buffer + (uint64_t)link_slot_of(link, link->posted) * link->step_bytes;
}

/* The place of an address in such a slot, in units; false if it is before the slot, or between two. */
static bool place_of(struct prim *prim, const struct link *link, uint64_t address, uint64_t *place) {
  const uint32_t shift = prim->engine->memory.unit_shift;
  const uint64_t begin = slot_begin(prim, link);
  *place = (address - begin) >> shift;
  if (address >= begin && *place << shift == address - begin) return true;
  return engine_fail(prim->engine, CHECK_SLOT, prim->lane, link->peer,
                     "looks for step %" PRIu64 " of the connection with rank %u in another step's slot",
                     link->posted, link->peer);
}

bool slots_read(struct prim *prim, uint32_t link, uint64_t address, uint64_t units, struct value *out) {
  const struct conn *conn = seam_recv_conn(prim, link);
  const uint64_t begin = slot_begin(prim, &prim->run->recv[link]);
  uint64_t place;
  if (!place_of(prim, &prim->run->recv[link], address, &place)) return false;
  struct message *message = message_find(prim, link, place, units, true);
  if (!message || !direct_meet(prim, conn, message, false) || !shown_meet(prim, conn, message, false))
    return false;
  if (message->slot != begin)
    return engine_fail(prim->engine, CHECK_MATCH, prim->lane, conn->sender,
                       "looks for step %" PRIu64 " in another slot than that in which rank %u put it",
                       message->step, conn->sender);
  message_take(prim, link, message);
  return message_copy(prim, message, out);
}

static bool value_equals(const struct value *value, const struct piece *pieces, uint32_t count) {
  if (value->count != count) return false;
  for (uint32_t i = 0; i < count; i++) {
    const struct piece *a = &value->pieces[i], *b = &pieces[i];
    if (a->count != b->count || a->origin != b->origin || a->expr != b->expr) return false;
  }
  return true;
}

bool slots_read_output(struct prim *prim, uint32_t link, uint64_t address, uint64_t units,
                       struct value *out) {
  const struct conn *conn = seam_recv_conn(prim, link);
  const uint64_t place = (uint64_t)step_recv_place(&prim->run->step) * prim->lane->scale;
  struct message *message = message_find(prim, link, place, units, true);
  if (!message || !direct_meet(prim, conn, message, true) || !shown_meet(prim, conn, message, false))
    return false;
  message_take(prim, link, message);
  if (address != message->address && units > 0)
    return engine_fail(prim->engine, CHECK_MATCH, prim->lane, conn->sender,
                       "expects final data at another place of its output than where rank %u stores it",
                       conn->sender);
  if (!access_read(prim->engine, prim->lane, address, units, message->lane, message->stamp, out))
    return false;
  if (value_equals(out, pieces_of(message), message->piece_count)) return true;
  return engine_fail(prim->engine, CHECK_MEMORY, prim->lane, conn->sender,
                     "finds in its output something else than rank %u has stored there", conn->sender);
}

/* A contribution like the own one. */
bool slots_read_shown(struct prim *prim, uint32_t link, uint64_t address, uint64_t units, struct value *out) {
  const struct conn *conn = seam_recv_conn(prim, link);
  const struct check_lane *lane = prim->lane;
  struct message *message = message_find(prim, link, 0, units, false);
  if (!message || !direct_meet(prim, conn, message, false) || !shown_meet(prim, conn, message, true))
    return false;
  message_take(prim, link, message);
  if (address != message->address && units > 0)
    return engine_fail(prim->engine, CHECK_MATCH, lane, conn->sender,
                       "reads another part of rank %u's input than that which is for it", conn->sender);
  if (!access_read_of(prim->engine, prim->lane, conn->sender, address, units, LANE_NONE, 0, out))
    return false;
  for (uint32_t i = 0; i < out->count; i++) {
    struct piece *piece = &out->pieces[i];
    if (piece->expr != EXPR_OLD && (lane->unstaged || lane->reduces))
      piece->expr += expr_is_raw(&prim->engine->exprs, piece->expr);
  }
  return true;
}

/* The receiver is done with a slot, which must have been read completely. */
static bool slot_leave(struct prim *prim, struct conn *conn) {
  struct message *first = &conn->messages[conn->got], *message = first;
  for (; message; message = message->next)
    if (!message->taken)
      return engine_fail(prim->engine, CHECK_MATCH, prim->lane, conn->sender,
                         "gives a slot back to rank %u of which it has not read place %" PRIu64, conn->sender,
                         message->place);
  while ((message = first->next) != NULL) {
    first->next = message->next;
    message->next = prim->engine->spares;
    prim->engine->spares = message;
  }
  conn->got = conn->got + 1 == conn->capacity ? 0 : conn->got + 1;
  conn->held -= 1;
  return true;
}

/* A message that the move did not read: one whose data is in its place already, or an LL step without
 * lines. */
static bool recv_settle(struct prim *prim, uint32_t link) {
  const struct lane *run = prim->run;
  const struct step *step = &run->step;
  struct conn *conn = seam_recv_conn(prim, link);
  if ((prim->took >> link & 1) == 0) {
    const bool each = step_is_each(step);
    const uint32_t block = step_block(step, link);
    const uint64_t count = seam_slice_count(prim, step_link_count(step, link));
    const uint64_t units = count * prim->lane->scale;
    if (each && (step->flags & STEP_RECV_FINAL) != 0 && run->zero_copy_receive) {
      const uint64_t address = (uint64_t)(uintptr_t)lane_kept_block(run, block, prim->offset);
      if (!slots_read_output(prim, link, address, units, &prim->engine->arrived)) return false;
    } else {
      const bool simple = seam_is_simple(prim);
      struct message *message =
          message_find(prim, link, (uint64_t)step_recv_place(step) * prim->lane->scale, units, simple);
      if (!message) return false;
      if (simple || units > 0)
        return engine_fail(prim->engine, CHECK_MATCH, prim->lane, conn->sender,
                           "does not read what it receives from rank %u", conn->sender);
      message_take(prim, link, message);
    }
  }
  conn->half_read = (step->flags & STEP_RECV_MORE) != 0;
  if (conn->half_read) return true;
  conn->read = run->recv[link].posted + seam_steps(prim);
  conn->recv_step = conn->read;
  proxies_pass(prim, link, false, &conn->messages[conn->got]);
  return slot_leave(prim, conn);
}

/* ---- sending ---- */

/* What the waits, the slots and their sizes allow. */
static bool slot_is_free(struct prim *prim, uint32_t link, uint64_t place, uint64_t units) {
  struct check_engine *engine = prim->engine;
  struct check_lane *lane = prim->lane;
  const struct conn *conn = seam_send_conn(prim, link);
  const uint64_t at = prim->run->send[link].posted, end = at + seam_steps(prim);
  const uint64_t last = (place + units) / lane->scale;
  if (end > conn->head_seen + engine->slots || conn->held == conn->capacity)
    return engine_fail(engine, CHECK_SLOT, lane, conn->receiver,
                       "writes step %" PRIu64 " towards rank %u when only steps below %" PRIu64
                       " are known to be free",
                       at, conn->receiver, conn->head_seen + engine->slots);
  if (seam_is_simple(prim) && (uint32_t)at % engine->slots + seam_steps(prim) > engine->slots)
    return engine_fail(engine, CHECK_SLOT, lane, conn->receiver,
                       "writes a slice over the end of the slots towards rank %u", conn->receiver);
  if (last > lane->slot_capacity)
    return engine_fail(engine, CHECK_SLOT, lane, conn->receiver,
                       "writes %" PRIu64 " elements into slots towards rank %u that hold %" PRIu64, last,
                       conn->receiver, lane->slot_capacity);
  return true;
}

static bool message_fill(struct prim *prim, struct message *message) {
  const struct value *sum = &prim->engine->sum;
  message->piece_count = sum->count;
  if (sum->count == 1) {
    message->one = sum->pieces[0];
    return true;
  }
  if (sum->count > message->more_capacity) {
    message->more = (struct piece *)arena_take(&prim->engine->arena, 2 * sum->count * sizeof *message->more);
    if (!message->more) return engine_out_of_memory(prim->engine);
    message->more_capacity = 2 * sum->count;
  }
  if (sum->count > 0) memcpy(message->more, sum->pieces, sum->count * sizeof *sum->pieces);
  return true;
}

/* The message that the step writes: the first one in a slot, the next one in an open slot, or an existing one
 * that is replaced by its sum. NULL if the place is wrong or memory is out. */
static struct message *message_place(struct prim *prim, struct conn *conn, uint64_t place) {
  struct check_engine *engine = prim->engine;
  struct message *first = &conn->messages[conn->put], *message = conn->open ? engine->spares : first;
  const uint64_t end = conn->open ? conn->open->place + conn->open->count : 0;
  if ((prim->run->step.flags & STEP_SEND_ADD) != 0) return message_at(first, place);
  if (place != end) {
    engine_fail(engine, CHECK_SLOT, prim->lane, conn->receiver,
                "writes place %" PRIu64 " of a slot to rank %u that is written up to %" PRIu64, place,
                conn->receiver, end);
    return NULL;
  }
  if (conn->open && message) engine->spares = message->next;
  else if (conn->open) message = (struct message *)arena_take(&engine->arena, sizeof *message);
  if (!message) {
    engine_out_of_memory(engine);
    return NULL;
  }
  if (conn->open) conn->open->next = message;
  message->next = NULL;
  message->place = place;
  conn->open = message;
  return message;
}

/* The record of what the step sends over a link; its data is filled in by the caller. */
static struct message *message_make(struct prim *prim, uint32_t link, uint64_t place, uint64_t units) {
  struct conn *conn = seam_send_conn(prim, link);
  const struct link *end = &prim->run->send[link];
  const struct step *step = &prim->run->step;
  struct message *message;
  if ((prim->sent >> link & 1) != 0) {
    engine_fail(prim->engine, CHECK_MATCH, prim->lane, conn->receiver,
                "writes twice in a step towards rank %u", conn->receiver);
    return NULL;
  }
  if (!slot_is_free(prim, link, place, units) || !(message = message_place(prim, conn, place))) return NULL;
  prim->sent |= link_bit(link);
  message->step = end->posted;
  message->steps = seam_steps(prim);
  message->slot = slot_begin(prim, end);
  message->lane = engine_lane_id(prim->engine, prim->lane);
  message->work = prim->lane->part;
  message->count = units;
  message->begins = (step->flags & STEP_PART) != 0;
  message->final = (step->flags & STEP_SEND_FINAL) != 0;
  message->direct = message->shown = message->taken = false;
  message->address = message->flag = 0;
  message->piece_count = 0;
  if ((step->flags & STEP_SEND_SHOWN) != 0) conn->shown_step = message->step + message->steps;
  return message;
}

bool slots_read_sent(struct prim *prim, uint32_t link, uint64_t address, uint64_t units, struct value *out) {
  struct conn *conn = seam_send_conn(prim, link);
  uint64_t place;
  if (!place_of(prim, &prim->run->send[link], address, &place)) return false;
  struct message *message = conn->open ? message_at(&conn->messages[conn->put], place) : NULL;
  if (!message || message->count != units || message->direct)
    return engine_fail(prim->engine, CHECK_SLOT, prim->lane, conn->receiver,
                       "adds to place %" PRIu64 " of a slot to rank %u, where it has not written so much",
                       place, conn->receiver);
  return message_copy(prim, message, out);
}

bool slots_write(struct prim *prim, uint32_t link, uint64_t address, uint64_t flag, uint64_t units) {
  uint64_t place;
  if (!place_of(prim, &prim->run->send[link], address, &place)) return false;
  struct message *message = message_make(prim, link, place, units);
  if (!message) return false;
  message->flag = flag;
  return message_fill(prim, message);
}

bool slots_write_output(struct prim *prim, uint32_t link, uint64_t address, uint64_t units) {
  const uint64_t place = (uint64_t)step_send_place(&prim->run->step) * prim->lane->scale;
  struct message *message = message_make(prim, link, place, units);
  if (!message || !message_fill(prim, message)) return false;
  message->direct = true;
  message->address = address;
  if (!access_write(prim->engine, prim->lane, seam_send_conn(prim, link)->receiver, address,
                    &prim->engine->sum))
    return false;
  message->stamp = prim->engine->store_count;
  return true;
}

/* A message that the move did not write: of an input that is read in place, or an LL step without lines. */
static bool send_settle(struct prim *prim, uint32_t link) {
  const struct lane *run = prim->run;
  const struct step *step = &run->step;
  struct conn *conn = seam_send_conn(prim, link);
  if ((prim->sent >> link & 1) == 0) {
    const uint64_t count = seam_slice_count(prim, step_link_count(step, link));
    const bool shown = seam_is_simple(prim) && simple_is_shown(step, &run->send[link]);
    if (!shown && (seam_is_simple(prim) || count > 0))
      return engine_fail(prim->engine, CHECK_MATCH, prim->lane, conn->receiver,
                         "writes nothing of what it sends to rank %u", conn->receiver);
    struct message *message = message_make(prim, link, (uint64_t)step_send_place(step) * prim->lane->scale,
                                           count * prim->lane->scale);
    if (!message) return false;
    message->shown = shown;
    if (shown) {
      const uint8_t *own = step_is_each(step) ? lane_own_block(run, step_block(step, link), prim->offset)
                                              : lane_own(run, prim->offset);
      message->address = (uint64_t)(uintptr_t)own;
    }
  }
  const struct conn *back = seam_conn_back(prim, conn);
  if (conn->open) conn->open->reads = back ? back->read : 0; /* of the receiver's data, with this step's */
  if ((step->flags & STEP_SEND_MORE) != 0) return true;
  conn->open = NULL;
  proxies_pass(prim, link, true, &conn->messages[conn->put]);
  conn->put = conn->put + 1 == conn->capacity ? 0 : conn->put + 1;
  conn->held += 1;
  conn->written = run->send[link].posted + seam_steps(prim);
  conn->send_step = conn->written;
  if (!seam_is_simple(prim)) seam_wake(prim->engine, &conn->waiting_receiver);
  return true;
}

bool slots_settle(struct prim *prim) {
  const struct work *work = prim->lane->work;
  const struct step *step = &prim->run->step;
  FIFO_EACH_LINK(i, work->recv_count, step->recv_links) {
    if (!recv_settle(prim, i)) return false;
  }
  FIFO_EACH_LINK(i, work->send_count, step->send_links) {
    if (!send_settle(prim, i)) return false;
  }
  return true;
}
