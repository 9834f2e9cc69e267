/* slice.c: one slice of one step, as the executors of lib/protocol process it: what they read, in which order
 * they add it, where they write it, what they post. Differences between Simple and LL are marked. */
#include <inttypes.h>
#include <string.h>

#include "check/engine.h"

/* The state of a slice. */
struct slice {
  uint64_t offset, count; /* elements; from the step's begin */
  uint64_t row;           /* with STEP_EACH: elements from block 0 to the one that is moved; else 0 */
  uint64_t units, scale;  /* count in units of memory; units of an element */
  bool has_value;         /* engine->sum holds something */
  bool in_output;         /* the result is one received value that is in the output already */
};

static uint64_t lane_address(const struct lane *lane, const void *base, uint64_t elements) {
  return (uint64_t)(uintptr_t)base + elements * lane->work->element_bytes;
}

static void value_move(struct value *to, struct value *from) {
  const struct value kept = *to;
  *to = *from;
  *from = kept;
}

/* The addresses of the step's own source and destination. */
static uint64_t own_address(const struct lane *lane, const struct slice *slice) {
  const uint32_t flags = lane->step.flags;
  const void *base = (flags & STEP_FROM_OUTPUT) != 0 ? lane->buffers->out : lane->buffers->in;
  if ((flags & STEP_FROM_SCRATCH) != 0) base = (const void *)(uintptr_t)lane->scratch;
  return lane_address(lane, base, lane->step.in_offset + slice->row + slice->offset);
}

static uint64_t kept_address(const struct lane *lane, const struct slice *slice) {
  const uint32_t flags = lane->step.flags;
  const void *base = (flags & STEP_TO_INPUT) != 0 ? lane->buffers->in : lane->buffers->out;
  if ((flags & STEP_TO_SCRATCH) != 0) base = (const void *)(uintptr_t)lane->scratch;
  return lane_address(lane, base, lane->step.out_offset + slice->row + slice->offset);
}

/* A rank's own contribution, after the operator's first stage if it comes from the input. An operator without
 * stages takes any input as a contribution. */
static bool own_read(struct check_engine *engine, struct lane *lane, const struct slice *slice,
                     uint64_t address) {
  const bool from_output = (lane->step.flags & (STEP_FROM_OUTPUT | STEP_FROM_SCRATCH)) != 0;
  if (!access_read(engine, lane, address, slice->units, LANE_NONE, 0, &engine->own)) return false;
  for (uint32_t i = 0; i < engine->own.count; i++) {
    struct piece *piece = &engine->own.pieces[i];
    if (piece->expr == EXPR_OLD)
      return engine_fail(engine, CHECK_COMBINE, lane, UINT32_MAX, "takes what is no input and no value yet");
    if (lane->unstaged) piece->expr += expr_is_raw(&engine->exprs, piece->expr);
    if (lane->unstaged || from_output || !lane->reduces ||
        engine_fault(engine, FAULT_NO_FIRST_STAGE, lane->rank))
      continue;
    if (!expr_is_raw(&engine->exprs, piece->expr))
      return engine_fail(engine, CHECK_COMBINE, lane, UINT32_MAX,
                         "takes as its input what is no input any more: element %" PRId64, piece->origin);
    piece->expr += 1;
  }
  return true;
}

static bool may_combine(const struct check_engine *engine, const struct lane *lane, expr_id expr) {
  return !lane->reduces ||
         (expr != EXPR_OLD && !expr_is_raw(&engine->exprs, expr) && !expr_is_final(&engine->exprs, expr));
}

/* engine->sum combined with the next operand, element by element. */
static bool sum_combine(struct check_engine *engine, struct lane *lane, uint32_t peer,
                        const struct value *with) {
  struct value *sum = &engine->sum, *out = &engine->scratch;
  uint32_t i = 0, j = 0;
  uint64_t left_done = 0, right_done = 0;
  out->count = 0;
  while (i < sum->count && j < with->count) {
    const struct piece *left = &sum->pieces[i], *right = &with->pieces[j];
    const uint64_t left_rest = left->count - left_done, right_rest = right->count - right_done;
    const uint64_t count = left_rest < right_rest ? left_rest : right_rest;
    const int64_t left_at = left->origin + (int64_t)left_done, right_at = right->origin + (int64_t)right_done;
    if (left_at != right_at)
      return engine_fail(engine, CHECK_COMBINE, lane, peer,
                         "combines element %" PRId64 " with element %" PRId64 " of another rank's input",
                         left_at, right_at);
    if (!may_combine(engine, lane, left->expr) || !may_combine(engine, lane, right->expr))
      return engine_fail(engine, CHECK_COMBINE, lane, peer,
                         "combines element %" PRId64
                         ", of which one side is finished already, or lacks the "
                         "operator's first stage",
                         left_at);
    const expr_id both = expr_combine(&engine->exprs, left->expr, right->expr);
    if (both == EXPR_OLD || !value_add(out, count, left_at, both)) return engine_out_of_memory(engine);
    left_done = count == left_rest ? 0 : left_done + count;
    right_done = count == right_rest ? 0 : right_done + count;
    i += left_done == 0;
    j += right_done == 0;
  }
  value_move(sum, out);
  return true;
}

/* Adds engine->own or engine->arrived to the sum. */
static bool sum_take(struct check_engine *engine, struct lane *lane, struct slice *slice, uint32_t peer,
                     struct value *from) {
  if (!slice->has_value) {
    value_move(&engine->sum, from);
    slice->has_value = true;
    return true;
  }
  slice->in_output = false;
  if ((lane->step.flags & STEP_REDUCE) == 0)
    return engine_fail(engine, CHECK_COMBINE, lane, peer,
                       "has several sources in a step that does not reduce");
  return sum_combine(engine, lane, peer, from);
}

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

/* The k-th receive's message: its step, steps, size and destination must be those that the receiver expects.
 */
static bool message_meet(struct check_engine *engine, struct lane *lane, const struct conn *conn,
                         const struct message *message, const struct slice *slice) {
  const bool final = (lane->step.flags & STEP_RECV_FINAL) != 0;
  const uint64_t bytes = lane->part->part_count * lane->part->element_bytes;
  if (message->announced_bytes != bytes)
    return engine_fail(engine, CHECK_PARTS, lane, conn->sender,
                       "has %" PRIu64 " bytes of the operation here, where rank %u announces %" PRIu64, bytes,
                       conn->sender, message->announced_bytes);
  if (!works_fit(message->work, lane->part) || message->begins != ((lane->step.flags & STEP_PART) != 0))
    return engine_fail(engine, CHECK_PARTS, lane, conn->sender,
                       "receives from rank %u, which has another operation, part or chunking there",
                       conn->sender);
  if (message->step != conn->recv_step || message->steps != lane->slice_steps)
    return engine_fail(engine, CHECK_MATCH, lane, conn->sender,
                       "takes steps %" PRIu64 " to %" PRIu64
                       " of the connection from rank %u, which filled %" PRIu64 " to %" PRIu64,
                       conn->recv_step, conn->recv_step + lane->slice_steps, conn->sender, message->step,
                       message->step + message->steps);
  if (message->count != slice->units)
    return engine_fail(engine, CHECK_MATCH, lane, conn->sender,
                       "expects %" PRIu64 " elements from rank %u, which sends %" PRIu64, slice->units,
                       conn->sender, message->count);
  if (message->final != final)
    return engine_fail(engine, CHECK_MATCH, lane, conn->sender, "takes as %s what rank %u sends as %s",
                       final ? "final" : "partial", conn->sender, final ? "partial" : "final");
  if (message->direct != (final && lane->zero_copy_receive))
    return engine_fail(engine, CHECK_MATCH, lane, conn->sender,
                       "looks for data in its %s, which rank %u did not put there",
                       message->direct ? "slot" : "output", conn->sender);
  return true;
}

static bool value_equals(const struct value *value, const struct piece *pieces, uint32_t count) {
  if (value->count != count) return false;
  for (uint32_t i = 0; i < count; i++) {
    const struct piece *a = &value->pieces[i], *b = &pieces[i];
    if (a->count != b->count || a->origin != b->origin || a->expr != b->expr) return false;
  }
  return true;
}

/* Final data that the sender stored in this rank's output. */
static bool zero_copy_read(struct check_engine *engine, struct lane *lane, const struct conn *conn,
                           const struct message *message, const struct slice *slice) {
  const uint64_t address =
      lane_address(lane, lane->buffers->out, lane->step.out_offset + slice->row + slice->offset);
  const struct piece *pieces = message->piece_count == 1 ? &message->one : message->more;
  if (address != message->address && slice->units > 0)
    return engine_fail(engine, CHECK_MATCH, lane, conn->sender,
                       "expects final data at another place of its output than where rank %u stores it",
                       conn->sender);
  if (!access_read(engine, lane, address, slice->units, message->lane, message->stamp, &engine->arrived))
    return false;
  if (value_equals(&engine->arrived, pieces, message->piece_count)) return true;
  return engine_fail(engine, CHECK_MEMORY, lane, conn->sender,
                     "finds in its output something else than rank %u has stored there", conn->sender);
}

static struct message *message_at(struct message *message, uint64_t place) {
  while (message && message->place != place) message = message->next;
  return message;
}

/* The contents at the step's place in the slot that the receiver is at; NULL if the place was read already,
 * or holds nothing. */
static struct message *message_find(struct check_engine *engine, struct lane *lane, struct conn *conn,
                                    const struct slice *slice) {
  const uint64_t place = lane->step.recv_place * slice->scale;
  struct message *message = message_at(&conn->messages[conn->got], place);
  if (message && !message->taken) return message;
  engine_fail(engine, CHECK_MATCH, lane, conn->sender, "reads %s place %" PRIu64 " of a slot from rank %u",
              message ? "a second time" : "unwritten", place, conn->sender);
  return NULL;
}

/* The receiver is done with a slot, which must have been read completely. */
static bool slot_leave(struct check_engine *engine, struct lane *lane, struct conn *conn) {
  struct message *first = &conn->messages[conn->got], *message = first;
  for (; message; message = message->next)
    if (!message->taken)
      return engine_fail(engine, CHECK_MATCH, lane, conn->sender,
                         "gives a slot back to rank %u of which it has not read place %" PRIu64, conn->sender,
                         message->place);
  while ((message = first->next) != NULL) {
    first->next = message->next;
    message->next = engine->spares;
    engine->spares = message;
  }
  conn->got = conn->got + 1 == conn->capacity ? 0 : conn->got + 1;
  conn->held -= 1;
  return true;
}

/* The sender's input, in place, where the sender would have read it: a contribution like the own one. */
static bool shown_read(struct check_engine *engine, struct lane *lane, const struct conn *conn,
                       const struct message *message, const struct slice *slice) {
  const uint64_t off = engine_fault(engine, FAULT_INPUT_ELSEWHERE, lane->rank);
  const uint64_t address = conn->source_address +
                           (lane->step.in_offset + slice->offset + off) * (uint64_t)lane->work->element_bytes;
  if (address != message->address && slice->units > 0)
    return engine_fail(engine, CHECK_MATCH, lane, conn->sender,
                       "reads another part of rank %u's input than that which is for it", conn->sender);
  if (!access_read_of(engine, lane, conn->sender, address, slice->units, LANE_NONE, 0, &engine->arrived))
    return false;
  for (uint32_t i = 0; i < engine->arrived.count; i++) {
    struct piece *piece = &engine->arrived.pieces[i];
    if (piece->expr != EXPR_OLD && (lane->unstaged || lane->reduces))
      piece->expr += expr_is_raw(&engine->exprs, piece->expr);
  }
  return true;
}

/* Both ends must agree where the data is. */
static bool place_meet(struct check_engine *engine, struct lane *lane, const struct conn *conn,
                       const struct message *message, bool in_place) {
  if (message->shown == in_place) return true;
  return engine_fail(engine, CHECK_MATCH, lane, conn->sender,
                     message->shown ? "looks in a slot for what rank %u does not send, but shows in its input"
                                    : "reads in the input of rank %u what that sends in a slot",
                     conn->sender);
}

/* What the message shows of this rank's own data at its sender. */
static void reads_note(struct check_engine *engine, struct lane *lane, const struct conn *conn,
                       const struct message *message) {
  struct conn *back = lane_conn_back(engine, lane, conn);
  if (back && back->reads_seen < message->reads) back->reads_seen = message->reads;
}

/* Over receive link `link`. */
static bool arrived_read(struct check_engine *engine, struct lane *lane, uint32_t link,
                         const struct slice *slice) {
  struct conn *conn = &engine->conns[lane->conns[link]];
  const uint64_t end = conn->recv_step + lane->slice_steps;
  const bool in_place = lane_reads_input(lane, link);
  if (conn->held == 0 || (conn->data_seen < end && !in_place))
    return engine_fail(engine, CHECK_SLOT, lane, conn->sender,
                       "reads step %" PRIu64 " from rank %u without having waited for it", conn->recv_step,
                       conn->sender);
  struct message *message;
  if (!(message = message_find(engine, lane, conn, slice))) return false;
  if (!message_meet(engine, lane, conn, message, slice)) return false;
  if (!place_meet(engine, lane, conn, message, in_place)) return false;
  if (!in_place) reads_note(engine, lane, conn, message);
  if (in_place) {
    if (!shown_read(engine, lane, conn, message, slice)) return false;
  } else if (message->direct) {
    if (!zero_copy_read(engine, lane, conn, message, slice)) return false;
  } else {
    const struct piece *pieces = message->piece_count == 1 ? &message->one : message->more;
    engine->arrived.count = 0;
    for (uint32_t i = 0; i < message->piece_count; i++)
      if (!value_add(&engine->arrived, pieces[i].count, pieces[i].origin, pieces[i].expr))
        return engine_out_of_memory(engine);
  }
  message->taken = true;
  conn->half_read = (lane->step.flags & STEP_RECV_MORE) != 0;
  if (conn->half_read) return true;
  conn->read = end;
  return slot_leave(engine, lane, conn);
}

/* What the step's place of the open slot holds so far. */
static bool sent_read(struct check_engine *engine, struct lane *lane, struct slice *slice) {
  const uint64_t place = lane->step.send_place * slice->scale;
  const uint32_t link = (uint32_t)__builtin_ctzll(lane->step.send_links);
  struct conn *conn = &engine->conns[lane->conns[lane->work->recv_count + link]];
  const struct message *message = conn->open ? message_at(&conn->messages[conn->put], place) : NULL;
  if (!message || message->count != slice->units || message->direct)
    return engine_fail(engine, CHECK_SLOT, lane, conn->receiver,
                       "adds to place %" PRIu64 " of a slot to rank %u, where it has not written so much",
                       place, conn->receiver);
  const struct piece *pieces = message->piece_count == 1 ? &message->one : message->more;
  engine->arrived.count = 0;
  for (uint32_t i = 0; i < message->piece_count; i++)
    if (!value_add(&engine->arrived, pieces[i].count, pieces[i].origin, pieces[i].expr))
      return engine_out_of_memory(engine);
  return sum_take(engine, lane, slice, conn->receiver, &engine->arrived);
}

/* Sources in the executors' order: what was sent so far, then what arrived, link by link, with the own
 * contribution after own_index of them. */
static bool sources_take(struct check_engine *engine, struct lane *lane, struct slice *slice) {
  const struct step *step = &lane->step;
  const bool own = (step->flags & STEP_COPY_IN) != 0;
  uint32_t held = 0;
  if ((step->flags & STEP_SEND_ADD) != 0 && !sent_read(engine, lane, slice)) return false;
  held += (step->flags & STEP_SEND_ADD) != 0;
  if (own && !own_read(engine, lane, slice, own_address(lane, slice))) return false;
  if (own && step->own_index == 0 && !sum_take(engine, lane, slice, UINT32_MAX, &engine->own)) return false;
  held += own && step->own_index == 0;
  for (uint32_t i = 0; i < lane->work->recv_count; i++) {
    if ((step->recv_links >> i & 1) == 0) continue;
    const struct conn *conn = &engine->conns[lane->conns[i]];
    if (!arrived_read(engine, lane, i, slice)) return false;
    slice->in_output = (step->flags & STEP_RECV_FINAL) != 0 && lane->zero_copy_receive;
    if (!sum_take(engine, lane, slice, conn->sender, &engine->arrived)) return false;
    held += 1;
    if (own && step->own_index != 0 && step->own_index == held) {
      if (!sum_take(engine, lane, slice, conn->sender, &engine->own)) return false;
      held += lane->work->proto == PROTO_SIMPLE; /* the sources' count includes the own one there */
    }
  }
  return true;
}

/* The contents of the destination are added last, if the step adds to them. */
static bool kept_fold(struct check_engine *engine, struct lane *lane, const struct slice *slice) {
  if ((lane->step.flags & STEP_FOLD) == 0 || !slice->has_value) return true;
  return own_read(engine, lane, slice, kept_address(lane, slice)) &&
         sum_combine(engine, lane, UINT32_MAX, &engine->own);
}

/* The operator's last stage. */
static bool sum_finish(struct check_engine *engine, struct lane *lane) {
  if ((lane->step.flags & STEP_POST_OP) == 0 || !lane->reduces || lane->unstaged) return true;
  for (uint32_t i = 0; i < engine->sum.count; i++) {
    struct piece *piece = &engine->sum.pieces[i];
    if (!may_combine(engine, lane, piece->expr))
      return engine_fail(engine, CHECK_COMBINE, lane, UINT32_MAX,
                         "finishes element %" PRId64 ", which is finished already or no sum", piece->origin);
    piece->expr = expr_combine(&engine->exprs, piece->expr, EXPR_POST);
    if (piece->expr == EXPR_OLD) return engine_out_of_memory(engine);
  }
  return true;
}

static bool message_fill(struct check_engine *engine, struct message *message) {
  const struct value *sum = &engine->sum;
  message->piece_count = sum->count;
  if (sum->count == 1) {
    message->one = sum->pieces[0];
    return true;
  }
  if (sum->count > message->more_capacity) {
    message->more = (struct piece *)arena_take(&engine->arena, 2 * sum->count * sizeof *message->more);
    if (!message->more) return engine_out_of_memory(engine);
    message->more_capacity = 2 * sum->count;
  }
  if (sum->count > 0) memcpy(message->more, sum->pieces, sum->count * sizeof *sum->pieces);
  return true;
}

/* The message that the step writes: the first one in a slot, the next one in an open slot, or an existing one
 * that is replaced by its sum. NULL if the place is wrong or memory is out. */
static struct message *message_place(struct check_engine *engine, struct lane *lane, struct conn *conn,
                                     const struct slice *slice) {
  struct message *first = &conn->messages[conn->put], *message = conn->open ? engine->spares : first;
  const uint64_t place = lane->step.send_place * slice->scale;
  const uint64_t end = conn->open ? conn->open->place + conn->open->count : 0;
  if ((lane->step.flags & STEP_SEND_ADD) != 0) return message_at(first, place);
  if (place != end) {
    engine_fail(engine, CHECK_SLOT, lane, conn->receiver,
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

/* What the waits, the slots and their sizes allow. */
static bool slot_is_free(struct check_engine *engine, struct lane *lane, const struct conn *conn,
                         const struct slice *slice) {
  const uint64_t end = conn->send_step + lane->slice_steps, last = lane->step.send_place + slice->count;
  if (end > conn->free_seen + engine->slots || conn->held == conn->capacity)
    return engine_fail(engine, CHECK_SLOT, lane, conn->receiver,
                       "writes step %" PRIu64 " towards rank %u when only steps below %" PRIu64
                       " are known to be free",
                       conn->send_step, conn->receiver, conn->free_seen + engine->slots);
  if (lane->work->proto == PROTO_SIMPLE &&
      (uint32_t)conn->send_step % engine->slots + lane->slice_steps > engine->slots)
    return engine_fail(engine, CHECK_SLOT, lane, conn->receiver,
                       "writes a slice over the end of the slots towards rank %u", conn->receiver);
  if (last > lane->slot_capacity)
    return engine_fail(engine, CHECK_SLOT, lane, conn->receiver,
                       "writes %" PRIu64 " elements into slots towards rank %u that hold %" PRIu64, last,
                       conn->receiver, lane->slot_capacity);
  return true;
}

/* Whether the receiver of send link `link` reads in place what the current step sends. */
static bool link_is_shown(const struct lane *lane, uint32_t link) {
  return (lane->step.flags & STEP_SEND_SHOWN) != 0 && (lane->shown_links >> link & 1) != 0;
}

/* What the lane has read of the receiver's data so far. */
static uint64_t reads_of(struct check_engine *engine, const struct lane *lane, const struct conn *conn) {
  const struct conn *back = lane_conn_back(engine, lane, conn);
  return back ? back->read : 0;
}

/* Over send link `link`. */
static bool slice_send(struct check_engine *engine, struct lane *lane, uint32_t link,
                       const struct slice *slice) {
  struct conn *conn = &engine->conns[lane->conns[lane->work->recv_count + link]];
  const bool final = (lane->step.flags & STEP_SEND_FINAL) != 0;
  if (!slot_is_free(engine, lane, conn, slice)) return false;
  struct message *message = message_place(engine, lane, conn, slice);
  if (!message) return false;
  message->step = conn->send_step;
  message->steps = lane->slice_steps;
  message->lane = engine_lane_id(engine, lane);
  message->work = lane->part;
  message->count = slice->units;
  message->announced_bytes =
      lane->part->part_count * lane->part->element_bytes + engine_fault(engine, FAULT_WRONG_SIZE, lane->rank);
  message->begins = (lane->step.flags & STEP_PART) != 0;
  message->taken = false;
  message->final = final;
  message->direct = final && (lane->work->flags & WORK_DIRECT_SEND) != 0 && conn->offer_address != 0;
  message->address = 0;
  message->shown = link_is_shown(lane, link);
  message->reads = reads_of(engine, lane, conn);
  if ((lane->step.flags & STEP_SEND_SHOWN) != 0) conn->shown_step = conn->send_step + lane->slice_steps;
  if (message->shown) {
    message->address = own_address(lane, slice);
    message->piece_count = 0;
  } else if (!message_fill(engine, message)) {
    return false;
  }
  if (message->direct) {
    const size_t out = step_link_out(&lane->step, link, true) + slice->offset;
    message->address = conn->offer_address + out * lane->work->element_bytes;
    if (!access_write(engine, lane, conn->receiver, message->address, &engine->sum)) return false;
    message->stamp = engine->store_count;
  }
  if ((lane->step.flags & STEP_SEND_MORE) != 0) return true;
  conn->open = NULL;
  conn->put = conn->put + 1 == conn->capacity ? 0 : conn->put + 1;
  conn->held += 1;
  conn->written = conn->send_step + lane->slice_steps;
  return true;
}

static bool destinations_fill(struct check_engine *engine, struct lane *lane, const struct slice *slice) {
  const struct step *step = &lane->step;
  const bool there = slice->in_output && (step->flags & STEP_POST_OP) == 0;
  if (!slice->has_value && (step->flags & (STEP_KEEP | STEP_SEND)) != 0)
    return engine_fail(engine, CHECK_COMBINE, lane, UINT32_MAX, "hands on a value that comes from nowhere");
  if ((step->flags & STEP_KEEP) != 0 && !there) {
    if (!access_write(engine, lane, lane->rank, kept_address(lane, slice), &engine->sum)) return false;
  }
  for (uint32_t i = 0; i < lane->work->send_count; i++) {
    if ((step->send_links >> i & 1) == 0) continue;
    if (!slice_send(engine, lane, i, slice)) return false;
  }
  return true;
}

static uint64_t slice_offset(const struct lane *lane) {
  const uint64_t begin = lane->slice_index * lane->slice_elements;
  return begin < lane->step.count ? begin : lane->step.count;
}

/* Of `count` elements that the step moves, those of the current slice. */
static uint64_t slice_part(const struct lane *lane, uint64_t count) {
  const uint64_t offset = slice_offset(lane), rest = count > offset ? count - offset : 0;
  return rest < lane->slice_elements ? rest : lane->slice_elements;
}

uint64_t slice_elements(const struct lane *lane) { return slice_part(lane, lane->step.count); }

static void slice_choose(const struct lane *lane, struct slice *slice, uint32_t block) {
  slice->row = step_block_offset(&lane->step, block);
  slice->count = slice_part(lane, step_block_count(&lane->step, block));
  slice->units = slice->count * slice->scale;
  slice->in_output = false;
}

static bool each_send(struct check_engine *engine, struct lane *lane, struct slice *slice, uint32_t link) {
  slice_choose(lane, slice, step_block(&lane->step, link));
  engine->own.count = 0;
  if (!link_is_shown(lane, link) && !own_read(engine, lane, slice, own_address(lane, slice))) return false;
  value_move(&engine->sum, &engine->own);
  return slice_send(engine, lane, link, slice);
}

static bool each_keep(struct check_engine *engine, struct lane *lane, struct slice *slice) {
  slice_choose(lane, slice, lane->step.own_index);
  if (own_address(lane, slice) == kept_address(lane, slice)) return true;
  return own_read(engine, lane, slice, own_address(lane, slice)) &&
         access_write(engine, lane, lane->rank, kept_address(lane, slice), &engine->own);
}

static bool each_receive(struct check_engine *engine, struct lane *lane, struct slice *slice, uint32_t link) {
  const bool there = (lane->step.flags & STEP_RECV_FINAL) != 0 && lane->zero_copy_receive;
  slice_choose(lane, slice, step_block(&lane->step, link));
  if (!arrived_read(engine, lane, link, slice)) return false;
  return there || access_write(engine, lane, lane->rank, kept_address(lane, slice), &engine->arrived);
}

/* A step with a block for each link: reads and writes the blocks one after another. Their order does not
 * matter, because no copy reads what another one writes. */
static bool each_move(struct check_engine *engine, struct lane *lane, struct slice *slice) {
  const struct step *step = &lane->step;
  const uint32_t keeps = STEP_COPY_IN | STEP_KEEP;
  for (uint32_t i = 0; i < lane->work->send_count; i++)
    if ((step->send_links >> i & 1) != 0 && !each_send(engine, lane, slice, i)) return false;
  if ((step->flags & keeps) == keeps && !each_keep(engine, lane, slice)) return false;
  for (uint32_t i = 0; i < lane->work->recv_count; i++)
    if ((step->recv_links >> i & 1) != 0 && !each_receive(engine, lane, slice, i)) return false;
  return true;
}

bool slice_move(struct check_engine *engine, struct lane *lane) {
  struct slice slice;
  slice.offset = slice_offset(lane);
  slice.count = slice_elements(lane);
  slice.row = 0;
  slice.scale = lane->scale;
  slice.units = slice.count * slice.scale;
  slice.has_value = slice.in_output = false;
  engine->sum.count = 0;
  engine->report->slice_count += 1;
  engine->report->element_count += slice.units;
  if (step_is_each(&lane->step)) return each_move(engine, lane, &slice);
  return sources_take(engine, lane, &slice) && kept_fold(engine, lane, &slice) && sum_finish(engine, lane) &&
         destinations_fill(engine, lane, &slice);
}
