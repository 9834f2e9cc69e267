/* judge_messages.c: sends and receives, each with its other end: between two ranks the k-th send belongs to
 * the k-th receive. */
#include <inttypes.h>
#include <string.h>

#include "explain/crew.h"
#include "trace/record_text.h"

/* Messages of a rank in one direction with one peer, counted from the end of its records. */
struct row {
  const struct seat *seat;
  uint8_t func;
  uint32_t peer;
};

static bool row_has(const struct row *row, const union record *record) {
  return record->kind == RECORD_CALL && record->call.func == row->func && record->call.peer == row->peer;
}

/* How many there are that have not ended, or of all records. */
static uint32_t row_count(const struct row *row, bool pending) {
  struct walk walk = walk_begin(row->seat);
  uint32_t count = 0;
  for (const union record *record = walk_back(&walk); record != NULL; record = walk_back(&walk)) {
    if (record->kind != RECORD_CALL) continue;
    if (pending && widen(row->seat->view->comm->calls, record->call.sequence) < row->seat->done) break;
    count += row_has(row, record);
  }
  return count;
}

/* The one with so many behind it. */
static const struct record_call *row_at(const struct row *row, uint32_t behind) {
  struct walk walk = walk_begin(row->seat);
  for (const union record *record = walk_back(&walk); record != NULL; record = walk_back(&walk))
    if (row_has(row, record) && behind-- == 0) return &record->call;
  return NULL;
}

static uint32_t row_behind(const struct row *row, const struct record_call *call) {
  struct walk walk = walk_begin(row->seat);
  uint32_t behind = 0;
  for (const union record *record = walk_back(&walk); record != NULL && &record->call != call;
       record = walk_back(&walk))
    behind += row_has(row, record);
  return behind;
}

/* The other end of a message that has not ended. Where records are gone, those that have not ended are
 * compared: as many have ended on both sides. */
static const struct record_call *partner_find(const struct row *row, const struct row *theirs,
                                              const struct record_call *call) {
  const bool whole = row->seat->view->first == 0 && theirs->seat->view->first == 0;
  const uint32_t number = row_count(row, !whole) - row_behind(row, call); /* from 1 */
  const uint32_t count = row_count(theirs, !whole);
  return number <= count ? row_at(theirs, count - number) : NULL;
}

static uint64_t call_bytes(const struct record_call *call) {
  static const uint8_t type_bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1}; /* by ncclDataType_t */
  return call->count * (call->dtype < sizeof type_bytes ? type_bytes[call->dtype] : 1);
}

static const char *place_word(bool sends) { return sends ? "to" : "from"; }
static const char *does_word(bool sends) { return sends ? "sends" : "receives"; }

static void tell_differs(struct crew *crew, const struct seat *seat, const struct record_call *call,
                         const struct record_call *partner) {
  const bool sends = call->func == FUNC_SEND, counts = call->count != partner->count;
  char name[64];
  blame(crew, VERDICT_MISMATCH, counts ? "count" : "type", seat);
  say(crew->verdict->sentence,
      "rank %u of comm %s %s %" PRIu64 " %s %s rank %u (#%u), which %s %" PRIu64 " %s (#%u): another %s",
      seat_rank(seat), crew_name(crew, name), does_word(sends), call->count, record_type_name(call->dtype),
      place_word(sends), call->peer, call->sequence, does_word(!sends), partner->count,
      record_type_name(partner->dtype), partner->sequence, crew->verdict->detail);
  say(crew->verdict->next, "give both ends of the message the same count and type");
}

static void tell_alone(struct crew *crew, const struct seat *seat, const struct record_call *call,
                       const struct seat *other) {
  const bool sends = call->func == FUNC_SEND;
  char place[160], name[64], why[160];
  seat_place(other, place);
  absent_text(other, why, sizeof why);
  blame(crew, VERDICT_ALONE, sends ? "send" : "recv", other);
  say(crew->verdict->sentence,
      "%s of comm %s has no %s for operation #%u of rank %u, which %s %" PRIu64 " %s %s it: %s", place,
      crew_name(crew, name), sends ? "ncclRecv" : "ncclSend", call->sequence, seat_rank(seat),
      sends ? "sends" : "waits for", call->count, record_type_name(call->dtype), place_word(sends), why);
  show(crew->verdict, "rank %u has called %" PRIu64 " operations, rank %u %" PRIu64, seat_rank(seat),
       seat->called, seat_rank(other), other->called);
  say(crew->verdict->next,
      "make rank %u call %s with rank %u, or look at why its program does not come to it", seat_rank(other),
      sends ? "ncclRecv" : "ncclSend", seat_rank(seat));
}

const struct record_call *message_partner(const struct seat *seat, const struct seat *other,
                                          const struct record_call *call) {
  const struct row row = {seat, call->func, call->peer};
  const struct row theirs = {other, call->func == FUNC_SEND ? FUNC_RECV : FUNC_SEND, seat_rank(seat)};
  return partner_find(&row, &theirs, call);
}

/* `behind`: also where the other rank has not come so far. */
static bool judge_message(struct crew *crew, const struct seat *seat, const struct record_call *call,
                          bool behind) {
  const struct seat *other = crew_seat(crew, call->peer);
  if (other == NULL || other == seat) return false;
  const struct record_call *partner = message_partner(seat, other, call);
  const bool comes = call->collective > 0 && !seat_has_called(other, call->collective - 1);
  if (partner == NULL && comes && !behind) return false;
  if (partner == NULL) tell_alone(crew, seat, call, other);
  else if (call_bytes(partner) != call_bytes(call)) tell_differs(crew, seat, call, partner);
  else return false;
  return true;
}

/* The first message of the seat that has not ended, and that something is wrong with. */
static bool judge_seat(struct crew *crew, const struct seat *seat, bool behind) {
  const uint32_t told = crew->verdict->evidence_count;
  struct walk walk = walk_begin(seat);
  bool found = false;
  for (const union record *record = walk_back(&walk); record != NULL; record = walk_back(&walk)) {
    if (record->kind != RECORD_CALL) continue;
    if (widen(seat->view->comm->calls, record->call.sequence) < seat->done) break;
    if (!is_message(record->call.func)) continue;
    if (seat->first != NULL && (int32_t)(record->call.sequence - seat->first->sequence) > 0) continue;
    if (found) crew->verdict->evidence_count = told; /* of a later one */
    found = judge_message(crew, seat, &record->call, behind) || found;
  }
  return found;
}

/* Messages that a collective stands before are looked at when that has ended. */
bool judge_messages(struct crew *crew, bool behind) {
  for (uint32_t i = 0; i < crew->count; i++)
    if (crew->seats[i].pending_messages > 0 && judge_seat(crew, &crew->seats[i], behind)) return true;
  return false;
}
