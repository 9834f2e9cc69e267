/* rank_state.h: the state of one rank of one communicator, read from its records: what it has called,
 * launched and finished, and what it waits for. */
#ifndef TUTTI_EXPLAIN_RANK_STATE_H
#define TUTTI_EXPLAIN_RANK_STATE_H

#include <stdbool.h>

#include "schedule/work.h"
#include "trace/record_read.h"

struct rank_state {
  const struct record_file *file;
  const struct record_view *view;
  uint64_t called, launched, done;    /* operations: one past the last sequence number in that state */
  uint32_t collectives;               /* number of collectives called */
  const struct record_call *first;    /* the first collective that has not ended; NULL if all have */
  const struct record_error *refused; /* the refused call, if it was the last one; else NULL */
  const struct record_call *mismatch; /* the refused call, if it differs from another rank's; else NULL */
  uint32_t pending_messages;          /* sends and receives that have not ended */
  uint32_t global;   /* rank in the job's largest communicator, if that is a larger one; else UINT32_MAX */
  bool graph;        /* a graph's kernel is running */
  bool graph_queued; /* a graph's kernel is the next to start */
};

static inline uint32_t rank_number(const struct rank_state *state) { return state->view->comm->rank; }
static inline bool rank_knows_ends(const struct rank_state *state) { return state->view->comm->counts != 0; }
static inline bool rank_has_waits(const struct rank_state *state) { return state->view->lane_rows > 0; }
static inline bool rank_pends(const struct rank_state *state) {
  return state->first != NULL || state->pending_messages > 0 || state->graph || state->graph_queued;
}
/* Its process has ended without destroying the communicator. */
static inline bool rank_is_gone(const struct rank_state *state) {
  const struct record_file *file = state->file;
  return state->view->comm->state == RECORD_OPEN && (file->header.state == RECORD_ENDED || file->gone);
}
/* A kernel of this communicator is running on the rank's device. */
static inline bool rank_runs(const struct rank_state *state) {
  return rank_pends(state) && state->view->comm->started > state->view->comm->ended;
}
static inline bool rank_has_called(const struct rank_state *state, uint32_t collective) {
  return (int32_t)(state->collectives - collective) > 0;
}
static inline bool is_message(uint8_t func) { return func == FUNC_SEND || func == FUNC_RECV; }
/* The refused call that differs from another rank's, if it is a collective. */
static inline const struct record_call *rank_refused_collective(const struct rank_state *state) {
  return state->mismatch != NULL && !is_message(state->mismatch->func) ? state->mismatch : NULL;
}

/* The largest number up to `near` whose low 32 bits are `low`. */
static inline uint64_t widen(uint64_t near, uint32_t low) { return near - (uint32_t)((uint32_t)near - low); }

/* Iterates over a rank's records from the newest to the oldest, without the calls that a failed group has
 * dropped. */
struct record_iter {
  const struct record_view *view;
  uint64_t number; /* the next record to return is the one before this */
  uint64_t limit;  /* operations from this sequence number on have been dropped */
};
struct record_iter record_iter_begin(const struct rank_state *state);
const union record *record_iter_back(struct record_iter *iter); /* NULL at the end */

/* The next older collective call; NULL at the end. */
const struct record_call *record_iter_collective(struct record_iter *iter);
/* All ranks of all communicators, each once, ordered by communicator, then by rank. The caller frees them
 * with os_free(). NULL if out of memory. (diagnose.c) */
struct rank_state *rank_states_gather(const struct record_file *files, uint32_t file_count,
                                      uint32_t *state_count);
/* Both belong to the same communicator. */
static inline bool rank_states_same_comm(const struct rank_state *a, const struct rank_state *b) {
  return a->view->comm->comm_id == b->view->comm->comm_id &&
         a->view->comm->rank_count == b->view->comm->rank_count;
}

/* Fills the other members from `file` and `view`. */
void rank_state_read(struct rank_state *state);
/* The collective with this number; NULL if the rank did not call it, or the ring no longer holds its record.
 */
const struct record_call *rank_find_collective(const struct rank_state *state, uint32_t collective);
/* The same, also if the call was refused because it differs from another rank's. */
const struct record_call *rank_find_attempt(const struct rank_state *state, uint32_t collective);
/* The operation with this sequence number (low 32 bits); NULL if the ring no longer holds its record. */
const struct record_call *rank_find_call(const struct rank_state *state, uint32_t sequence);
/* Both belong to the same process and use the same device. */
static inline bool rank_states_same_device(const struct rank_state *a, const struct rank_state *b) {
  return a->file == b->file && a->view->comm->device == b->view->comm->device;
}
/* `held` has a kernel that has not started: the one of `states` whose kernel runs on the same device and
 * blocks it. NULL if no record shows such a kernel. */
const struct rank_state *rank_holder(const struct rank_state *states, uint32_t count,
                                     const struct rank_state *held);
/* The collective has ended on this rank. */
bool rank_has_ended(const struct rank_state *state, uint32_t collective);
/* Iterates over the lane rows of operations that have not ended, from *row on; NULL at the end. */
const struct record_lane *rank_next_lane(const struct rank_state *state, uint32_t *row);
/* The same, only rows of lanes that wait. */
const struct record_lane *rank_next_wait(const struct rank_state *state, uint32_t *row);
/* A waiting lane of the rank's earliest operation that has not ended; NULL if the rank waits for no other. */
const struct record_lane *rank_first_wait(const struct rank_state *state);

#endif
