/* rank_state.c: reads a rank's ring from the newest record back to the first operation that has not ended. */
#include "explain/rank_state.h"

static bool is_operation(const struct record_call *call) {
  return !func_is_one_sided(call->func) && (call->count != 0 || is_message(call->func));
}

struct record_iter record_iter_begin(const struct rank_state *state) {
  const struct record_iter iter = {state->view, state->view->end, UINT64_MAX};
  return iter;
}

const union record *record_iter_back(struct record_iter *iter) {
  while (iter->number > iter->view->first) {
    const union record *record = record_at(iter->view, --iter->number);
    if (record->kind == RECORD_DROP) {
      if (record->life.sequence < iter->limit) iter->limit = record->life.sequence;
      continue;
    }
    if (record->kind == RECORD_CALL && iter->limit != UINT64_MAX) {
      if (widen(iter->view->comm->calls, record->call.sequence) >= iter->limit) continue;
      iter->limit = UINT64_MAX;
    }
    return record;
  }
  return NULL;
}

/* Skips `calls` records at once, to get close to a call: each call has at least one record. */
static void record_iter_skip(struct record_iter *iter, uint32_t calls) {
  const uint64_t left = iter->number - iter->view->first;
  iter->number -= calls < left ? calls : left;
}

const struct record_call *record_iter_collective(struct record_iter *iter) {
  const union record *record = record_iter_back(iter);
  while (record != NULL && (record->kind != RECORD_CALL || is_message(record->call.func) ||
                            func_is_one_sided(record->call.func)))
    record = record_iter_back(iter);
  return record != NULL ? &record->call : NULL;
}

static void rank_note_launch(struct rank_state *state, const struct record_launch *launch) {
  const struct record_comm *comm = state->view->comm;
  const uint64_t end = widen(comm->calls, launch->sequence) + launch->operations;
  /* Captured operations run when the graph is launched: as calls they have ended. */
  const bool ended = launch->captured || launch->number < comm->ended;
  if (end > state->launched) state->launched = end;
  if (ended && end > state->done) state->done = end;
}

/* The next kernel to start was not launched by a call, and some operations have been captured by graphs. */
static bool rank_queues_graph(const struct rank_state *state) {
  const struct record_comm *comm = state->view->comm;
  bool captured = comm->graph_runs != 0;
  if (!rank_knows_ends(state) || comm->launched <= comm->started || comm->started > comm->ended) return false;
  for (uint64_t number = state->view->end; number > state->view->first; number--) {
    const union record *record = record_at(state->view, number - 1);
    if (record->kind != RECORD_LAUNCH) continue;
    if (!record->launch.captured && record->launch.number == comm->started) return false;
    captured = captured || record->launch.captured != 0;
  }
  return captured;
}

/* The last records show what was called and launched; the counts of kernels show what has ended. */
void rank_state_read(struct rank_state *state) {
  const struct record_comm *comm = state->view->comm;
  state->graph = comm->graph_operation != 0 && comm->state == RECORD_OPEN;
  state->graph_queued = rank_queues_graph(state);
  struct record_iter iter = record_iter_begin(state);
  bool newest = true;
  state->called = comm->calls;
  for (const union record *record = record_iter_back(&iter); record != NULL;
       record = record_iter_back(&iter)) {
    if (record->kind == RECORD_LAUNCH) rank_note_launch(state, &record->launch);
    if (record->kind == RECORD_ERROR && newest) state->refused = &record->error;
    if (record->kind == RECORD_MISMATCH && newest) state->mismatch = &record->call;
    if (record->kind != RECORD_CALL) continue;
    const struct record_call *call = &record->call;
    if (!is_operation(call)) continue;
    if (newest) {
      state->called = widen(comm->calls, call->sequence) + 1;
      state->collectives = call->collective + !is_message(call->func);
    }
    newest = false;
    if (widen(comm->calls, call->sequence) < state->done) return;
    if (is_message(call->func)) state->pending_messages += 1;
    else state->first = call;
  }
}

/* NULL if the rank did not call it, or the ring no longer holds its record. */
const struct record_call *rank_find_collective(const struct rank_state *state, uint32_t collective) {
  struct record_iter iter = record_iter_begin(state);
  const struct record_call *call = record_iter_collective(&iter);
  while (call != NULL && (int32_t)(call->collective - collective) > 0) {
    record_iter_skip(&iter, call->collective - collective - 1);
    call = record_iter_collective(&iter);
  }
  return call != NULL && call->collective == collective ? call : NULL;
}

const struct record_call *rank_find_attempt(const struct rank_state *state, uint32_t collective) {
  const struct record_call *refused = rank_refused_collective(state);
  return refused != NULL && refused->collective == collective ? state->mismatch
                                                              : rank_find_collective(state, collective);
}

const struct record_call *rank_find_call(const struct rank_state *state, uint32_t sequence) {
  struct record_iter iter = record_iter_begin(state);
  for (const union record *record = record_iter_back(&iter); record != NULL;
       record = record_iter_back(&iter)) {
    if (record->kind != RECORD_CALL || !is_operation(&record->call)) continue;
    if (record->call.sequence == sequence) return &record->call;
    if ((int32_t)(record->call.sequence - sequence) < 0) return NULL;
    record_iter_skip(&iter, record->call.sequence - sequence - 1);
  }
  return NULL;
}

const struct rank_state *rank_holder(const struct rank_state *states, uint32_t count,
                                     const struct rank_state *held) {
  for (uint32_t i = 0; i < count; i++)
    if (&states[i] != held && rank_states_same_device(&states[i], held) && rank_runs(&states[i]))
      return &states[i];
  return NULL;
}

bool rank_has_ended(const struct rank_state *state, uint32_t collective) {
  const struct record_call *call = rank_find_collective(state, collective);
  if (call == NULL || !rank_knows_ends(state)) return false;
  return widen(state->view->comm->calls, call->sequence) < state->done;
}

/* Skips rows of operations that have ended. While a graph runs, every row counts: its operations were called
 * long ago and run again. */
const struct record_lane *rank_next_lane(const struct rank_state *state, uint32_t *row) {
  for (; *row < state->view->lane_rows; *row += 1) {
    const struct record_lane *lane = &state->view->lanes[*row];
    if (lane->used != 1 || lane->wait >= WAITS_LIST) continue;
    const uint64_t sequence = widen(state->view->comm->calls, lane->sequence);
    if ((sequence >= state->done || state->graph) && sequence < state->called) return lane;
  }
  return NULL;
}

const struct record_lane *rank_next_wait(const struct rank_state *state, uint32_t *row) {
  const struct record_lane *lane = rank_next_lane(state, row);
  while (lane != NULL && lane->wait == WAITS_NOT) {
    *row += 1;
    lane = rank_next_lane(state, row);
  }
  return lane;
}

/* A waiting lane of the earliest operation; NULL if the rank waits for no other. */
const struct record_lane *rank_first_wait(const struct rank_state *state) {
  const struct record_lane *first = NULL;
  uint32_t row = 0;
  for (const struct record_lane *lane = rank_next_wait(state, &row); lane != NULL;
       row++, lane = rank_next_wait(state, &row))
    if (first == NULL || (int32_t)(lane->sequence - first->sequence) < 0) first = lane;
  return first;
}
