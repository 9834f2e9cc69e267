/* rank_state.h: one rank of one communicator, as its records tell: what it has called, launched and ended,
 * and what it waits for. */
#ifndef TUTTI_EXPLAIN_RANK_STATE_H
#define TUTTI_EXPLAIN_RANK_STATE_H

#include <stdbool.h>

#include "schedule/work.h"
#include "trace/record_read.h"

struct rank_state {
  const struct record_file *file;
  const struct record_view *view;
  uint64_t called, launched, done; /* operations: sequence numbers, each the end of what is */
  uint32_t collectives;            /* called */
  const struct record_call *first; /* the first collective that has not ended; NULL: there is none */
  const struct record_error *refused;
  uint32_t pending_messages;
  bool graph;        /* a kernel of a graph is under way */
  bool graph_queued; /* one has yet to start, before all else */
};

static inline uint32_t rank_number(const struct rank_state *state) { return state->view->comm->rank; }
static inline bool rank_knows_ends(const struct rank_state *state) { return state->view->comm->counts != 0; }
static inline bool rank_has_waits(const struct rank_state *state) { return state->view->lane_rows > 0; }
static inline bool rank_pends(const struct rank_state *state) {
  return state->first != NULL || state->pending_messages > 0 || state->graph || state->graph_queued;
}
/* A kernel of it is under way. */
static inline bool rank_runs(const struct rank_state *state) {
  return rank_pends(state) && state->view->comm->started > state->view->comm->ended;
}
static inline bool rank_has_called(const struct rank_state *state, uint32_t collective) {
  return (int32_t)(state->collectives - collective) > 0;
}
static inline bool is_message(uint8_t func) { return func == FUNC_SEND || func == FUNC_RECV; }

/* A number's low bits, and one that is a little above it. */
static inline uint64_t widen(uint64_t near, uint32_t low) { return near - (uint32_t)((uint32_t)near - low); }

/* The records of a rank, the newest first, without calls that a group's failure has taken back. */
struct record_iter {
  const struct record_view *view;
  uint64_t number; /* records before this one are still to be seen */
  uint64_t limit;  /* operations from here on have been dropped */
};
struct record_iter record_iter_begin(const struct rank_state *state);
const union record *record_iter_back(struct record_iter *iter); /* NULL: there are no more */

/* The same of collectives alone. */
const struct record_call *record_iter_collective(struct record_iter *iter);
/* All ranks of all communicators, each once, ordered by communicator, then by rank; os_free() them. NULL:
 * memory is out. (diagnose.c) */
struct rank_state *rank_states_gather(const struct record_file *files, uint32_t file_count,
                                      uint32_t *state_count);
/* They are of one communicator. */
static inline bool rank_states_same_comm(const struct rank_state *a, const struct rank_state *b) {
  return a->view->comm->comm_id == b->view->comm->comm_id &&
         a->view->comm->rank_count == b->view->comm->rank_count;
}

/* Fills what follows from file and view. */
void rank_state_read(struct rank_state *state);
/* The collective of this number; NULL where its record is gone, or it was not called. */
const struct record_call *rank_find_collective(const struct rank_state *state, uint32_t collective);
/* The operation of this number (low bits); NULL where its record is gone. */
const struct record_call *rank_find_call(const struct rank_state *state, uint32_t sequence);
/* They are of one process, and its device: the same rank's, where it has several communicators. */
static inline bool rank_states_same_device(const struct rank_state *a, const struct rank_state *b) {
  return a->file == b->file && a->view->comm->device == b->view->comm->device;
}
/* Of these ranks the one whose kernel runs on the device of another, whose own has not started: what holds
 * it. NULL: nothing that was recorded. */
const struct rank_state *rank_holder(const struct rank_state *states, uint32_t count,
                                     const struct rank_state *held);
/* A collective has ended here. */
bool rank_has_ended(const struct rank_state *state, uint32_t collective);
/* Rows of lanes that tell of now, waiting or not, from *row on; NULL behind the last. */
const struct record_lane *rank_next_lane(const struct rank_state *state, uint32_t *row);
/* The same of those that wait. */
const struct record_lane *rank_next_wait(const struct rank_state *state, uint32_t *row);
/* What the rank waits for in the earliest operation that has not ended; NULL: it waits for nobody. */
const struct record_lane *rank_first_wait(const struct rank_state *state);

#endif
