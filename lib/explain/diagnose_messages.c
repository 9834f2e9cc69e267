/* diagnose_messages.c: matches sends with receives: between two ranks the k-th send belongs to the k-th
 * receive. */
#include <inttypes.h>
#include <string.h>

#include "explain/comm_ranks.h"
#include "trace/record_text.h"

/* The messages of a rank to or from one peer, counted from the newest record. */
struct row {
  const struct rank_state *state;
  uint8_t func;
  uint32_t peer;
};

static bool row_has(const struct row *row, const union record *record) {
  return record->kind == RECORD_CALL && record->call.func == row->func && record->call.peer == row->peer;
}

/* The number of messages in the ring; with `pending` only of those that have not ended. */
static uint32_t row_count(const struct row *row, bool pending) {
  struct record_iter iter = record_iter_begin(row->state);
  uint32_t count = 0;
  for (const union record *record = record_iter_back(&iter); record != NULL;
       record = record_iter_back(&iter)) {
    if (record->kind != RECORD_CALL) continue;
    if (pending && widen(row->state->view->comm->calls, record->call.sequence) < row->state->done) break;
    count += row_has(row, record);
  }
  return count;
}

/* The message after which the ring holds `behind` others. */
static const struct record_call *row_at(const struct row *row, uint32_t behind) {
  struct record_iter iter = record_iter_begin(row->state);
  for (const union record *record = record_iter_back(&iter); record != NULL; record = record_iter_back(&iter))
    if (row_has(row, record) && behind-- == 0) return &record->call;
  return NULL;
}

static uint32_t row_behind(const struct row *row, const struct record_call *call) {
  struct record_iter iter = record_iter_begin(row->state);
  uint32_t behind = 0;
  for (const union record *record = record_iter_back(&iter); record != NULL && &record->call != call;
       record = record_iter_back(&iter))
    behind += row_has(row, record);
  return behind;
}

/* The other end of a message that has not ended. If a ring has lost records, only messages that have not
 * ended are matched: equally many have ended on both sides. */
static const struct record_call *partner_find(const struct row *row, const struct row *theirs,
                                              const struct record_call *call) {
  const bool whole = row->state->view->first == 0 && theirs->state->view->first == 0;
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

static void report_differs(struct comm_ranks *ranks, const struct rank_state *state,
                           const struct record_call *call, const struct record_call *partner) {
  const bool sends = call->func == FUNC_SEND, counts = call->count != partner->count;
  char name[64];
  blame(ranks, DIAGNOSIS_MISMATCH, counts ? "count" : "type", state);
  say(ranks->diagnosis->sentence,
      "rank %u of comm %s %s %" PRIu64 " %s %s rank %u (#%u), which %s %" PRIu64 " %s (#%u): another %s",
      rank_number(state), ranks_comm_name(ranks, name), does_word(sends), call->count,
      record_type_name(call->dtype), place_word(sends), call->peer, call->sequence, does_word(!sends),
      partner->count, record_type_name(partner->dtype), partner->sequence, ranks->diagnosis->detail);
  say(ranks->diagnosis->next, "give both ends of the message the same count and type");
}

static void report_alone(struct comm_ranks *ranks, const struct rank_state *state,
                         const struct record_call *call, const struct rank_state *other) {
  const bool sends = call->func == FUNC_SEND;
  char place[160], name[64], why[160];
  rank_place(other, place);
  absent_text(other, why, sizeof why);
  blame(ranks, DIAGNOSIS_ALONE, sends ? "send" : "recv", other);
  say(ranks->diagnosis->sentence,
      "%s of comm %s has no %s for operation #%u of rank %u, which %s %" PRIu64 " %s %s it: %s", place,
      ranks_comm_name(ranks, name), sends ? "ncclRecv" : "ncclSend", call->sequence, rank_number(state),
      sends ? "sends" : "waits for", call->count, record_type_name(call->dtype), place_word(sends), why);
  show(ranks->diagnosis, "rank %u has called %" PRIu64 " operations, rank %u %" PRIu64, rank_number(state),
       state->called, rank_number(other), other->called);
  say(ranks->diagnosis->next,
      "make rank %u call %s with rank %u, or look at why its program does not come to it", rank_number(other),
      sends ? "ncclRecv" : "ncclSend", rank_number(state));
}

const struct record_call *message_partner(const struct rank_state *state, const struct rank_state *other,
                                          const struct record_call *call) {
  const struct row row = {state, call->func, call->peer};
  const struct row theirs = {other, call->func == FUNC_SEND ? FUNC_RECV : FUNC_SEND, rank_number(state)};
  return partner_find(&row, &theirs, call);
}

/* `behind`: also if the other rank has not reached this point of its program yet. */
static bool diagnose_message(struct comm_ranks *ranks, const struct rank_state *state,
                             const struct record_call *call, bool behind) {
  const struct rank_state *other = ranks_find(ranks, call->peer);
  if (other == NULL || other == state) return false;
  const struct record_call *partner = message_partner(state, other, call);
  const bool comes = call->collective > 0 && !rank_has_called(other, call->collective - 1);
  if (partner == NULL && comes && !behind) return false;
  if (partner == NULL) report_alone(ranks, state, call, other);
  else if (call_bytes(partner) != call_bytes(call)) report_differs(ranks, state, call, partner);
  else return false;
  return true;
}

/* Diagnoses the rank's first message that has not ended and has a problem. */
static bool diagnose_rank(struct comm_ranks *ranks, const struct rank_state *state, bool behind) {
  const uint32_t shown = ranks->diagnosis->evidence_count;
  struct record_iter iter = record_iter_begin(state);
  bool found = false;
  for (const union record *record = record_iter_back(&iter); record != NULL;
       record = record_iter_back(&iter)) {
    if (record->kind != RECORD_CALL) continue;
    if (widen(state->view->comm->calls, record->call.sequence) < state->done) break;
    if (!is_message(record->call.func)) continue;
    if (state->first != NULL && (int32_t)(record->call.sequence - state->first->sequence) > 0) continue;
    if (found) ranks->diagnosis->evidence_count = shown; /* keep the evidence of the earliest */
    found = diagnose_message(ranks, state, &record->call, behind) || found;
  }
  return found;
}

/* A message that waits behind a collective is checked only once that collective has ended. */
bool diagnose_messages(struct comm_ranks *ranks, bool behind) {
  for (uint32_t i = 0; i < ranks->count; i++)
    if (ranks->states[i].pending_messages > 0 && diagnose_rank(ranks, &ranks->states[i], behind)) return true;
  return false;
}
