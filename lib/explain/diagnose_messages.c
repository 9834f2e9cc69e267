/* diagnose_messages.c: matches sends with receives: between two ranks the k-th send belongs to the k-th
 * receive. */
#include <inttypes.h>
#include <string.h>

#include "base/os.h"
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
  cite_of(ranks, call);
  cite_of(ranks, partner);
  say(ranks->diagnosis->sentence,
      "rank %u of comm %s %s %" PRIu64 " %s %s rank %u (#%u), which %s %" PRIu64 " %s (#%u): another %s",
      rank_number(state), ranks_comm_name(ranks, name), does_word(sends), call->count,
      record_type_name(call->dtype), place_word(sends), call->peer, call->sequence, does_word(!sends),
      partner->count, record_type_name(partner->dtype), partner->sequence, ranks->diagnosis->detail);
  say(ranks->diagnosis->next, "give both ends of the message the same count and type");
}

/* The other rank's call is in the error message alone. */
bool diagnose_refused_message(struct comm_ranks *ranks) {
  char place[160], text[160], name[64];
  for (uint32_t i = 0; i < ranks->count; i++) {
    const struct rank_state *state = &ranks->states[i];
    const struct record_comm *comm = state->view->comm;
    const struct record_call *call = state->mismatch;
    if (call == NULL || !is_message(call->func) || strncmp(comm->reason, "message #", 9) != 0) continue;
    rank_place(state, place);
    call_text(call, text);
    blame(ranks, DIAGNOSIS_MISMATCH, "message", state);
    cite(ranks->diagnosis, state, call);
    say(ranks->diagnosis->sentence,
        "%s of comm %s called %s, which was refused, as it differs from rank %u's %s: %.*s", place,
        ranks_comm_name(ranks, name), text, call->peer, call->func == FUNC_SEND ? "ncclRecv" : "ncclSend",
        (int)strnlen(comm->reason, sizeof comm->reason), comm->reason);
    say(ranks->diagnosis->next, "give both ends of the message the same count and type");
    return true;
  }
  return false;
}

static void report_alone(struct comm_ranks *ranks, const struct rank_state *state,
                         const struct record_call *call, const struct rank_state *other) {
  const bool sends = call->func == FUNC_SEND;
  char place[160], name[64], why[160];
  rank_place(other, place);
  absent_text(other, why, sizeof why);
  blame(ranks, DIAGNOSIS_ALONE, sends ? "send" : "recv", other);
  cite_of(ranks, call);
  cite_last(ranks, other);
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

/* ---- cycles ---- */

/* The rank's earliest message that has not ended, if the other rank has not called its counterpart. */
static const struct record_call *rank_unmatched(const struct comm_ranks *ranks,
                                                const struct rank_state *state,
                                                const struct rank_state **other) {
  const struct record_call *earliest = NULL;
  struct record_iter iter = record_iter_begin(state);
  for (const union record *record = record_iter_back(&iter); record != NULL;
       record = record_iter_back(&iter)) {
    if (record->kind != RECORD_CALL) continue;
    if (widen(state->view->comm->calls, record->call.sequence) < state->done) break;
    if (!is_message(record->call.func)) continue;
    const struct rank_state *peer = ranks_find(ranks, record->call.peer);
    if (peer == NULL || peer == state || message_partner(state, peer, &record->call) != NULL) continue;
    earliest = &record->call;
    *other = peer;
  }
  return earliest;
}

static void report_cycle(struct comm_ranks *ranks, const struct rank_state *begin) {
  const struct rank_state *state = begin, *other = NULL;
  char name[64];
  say(ranks->diagnosis->sentence,
      "ranks of comm %s wait for one another in a cycle:", ranks_comm_name(ranks, name));
  blame(ranks, DIAGNOSIS_CYCLE, "messages", begin);
  ranks->diagnosis->evidence_count = 0;
  do {
    const struct record_call *call = rank_unmatched(ranks, state, &other);
    const size_t used = strlen(ranks->diagnosis->sentence);
    char text[160], place[160];
    call_text(call, text);
    rank_place(state, place);
    if (used + 160 < DIAGNOSIS_TEXT_BYTES)
      snprintf(ranks->diagnosis->sentence + used, DIAGNOSIS_TEXT_BYTES - used,
               "%s rank %u called %s (#%u), and rank %u not yet its %s", state == begin ? "" : ";",
               rank_number(state), text, call->sequence, rank_number(other),
               call->func == FUNC_SEND ? "ncclRecv" : "ncclSend");
    show(ranks->diagnosis, "%s is in #%u, %s", place, call->sequence, text);
    cite(ranks->diagnosis, state, call);
    state = other;
  } while (state != begin);
  say(ranks->diagnosis->next,
      "put the ncclSend and the ncclRecv of each rank into one group (ncclGroupStart, ncclGroupEnd), or let "
      "rank %u receive first",
      rank_number(begin));
}

/* Every rank of a chain waits for a call that the next one makes only after its own has ended. */
static bool diagnose_message_cycle(struct comm_ranks *ranks) {
  uint32_t *path = (uint32_t *)os_alloc(ranks->count * sizeof *path), met = 0; /* by state: when it was met */
  bool found = false;
  if (path == NULL) return false;
  memset(path, 0, ranks->count * sizeof *path);
  for (uint32_t i = 0; i < ranks->count && !found; i++) {
    const struct rank_state *state = &ranks->states[i], *other = NULL;
    const uint32_t first = met + 1;
    while (state != NULL && state->pending_messages > 0 && path[state - ranks->states] == 0) {
      path[state - ranks->states] = ++met;
      state = rank_unmatched(ranks, state, &other) != NULL ? other : NULL;
    }
    found = state != NULL && path[state - ranks->states] >= first;
    if (found) report_cycle(ranks, state);
  }
  os_free(path);
  return found;
}

/* A message that waits behind a collective is checked only once that collective has ended. First those for
 * which no other message makes the other rank late. */
bool diagnose_messages(struct comm_ranks *ranks, bool behind) {
  if (diagnose_message_cycle(ranks)) return true;
  for (int late = 0; late < 2; late++)
    for (uint32_t i = 0; i < ranks->count; i++) {
      const struct rank_state *state = &ranks->states[i], *other = NULL, *last = NULL;
      if (state->pending_messages == 0) continue;
      if (late == 0 && rank_unmatched(ranks, state, &other) != NULL &&
          rank_unmatched(ranks, other, &last) != NULL)
        continue;
      if (diagnose_rank(ranks, state, behind)) return true;
    }
  return false;
}
