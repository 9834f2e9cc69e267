/* seat.h: one rank of one communicator, as its records tell: what it has called, launched and ended, and what
 * it waits for. */
#ifndef TUTTI_EXPLAIN_SEAT_H
#define TUTTI_EXPLAIN_SEAT_H

#include <stdbool.h>

#include "schedule/work.h"
#include "trace/record_read.h"

struct seat {
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

static inline uint32_t seat_rank(const struct seat *seat) { return seat->view->comm->rank; }
static inline bool seat_knows_ends(const struct seat *seat) { return seat->view->comm->counts != 0; }
static inline bool seat_tells_waits(const struct seat *seat) { return seat->view->lane_rows > 0; }
static inline bool seat_pends(const struct seat *seat) {
  return seat->first != NULL || seat->pending_messages > 0 || seat->graph || seat->graph_queued;
}
/* A kernel of it is under way. */
static inline bool seat_runs(const struct seat *seat) {
  return seat_pends(seat) && seat->view->comm->started > seat->view->comm->ended;
}
static inline bool seat_has_called(const struct seat *seat, uint32_t collective) {
  return (int32_t)(seat->collectives - collective) > 0;
}
static inline bool is_message(uint8_t func) { return func == FUNC_SEND || func == FUNC_RECV; }

/* A number's low bits, and one that is a little above it. */
static inline uint64_t widen(uint64_t near, uint32_t low) { return near - (uint32_t)((uint32_t)near - low); }

/* The records of a seat, the newest first, without calls that a group's failure has taken back. */
struct walk {
  const struct record_view *view;
  uint64_t number; /* records before this one are still to be seen */
  uint64_t limit;  /* operations from here on have been dropped */
};
struct walk walk_begin(const struct seat *seat);
const union record *walk_back(struct walk *walk); /* NULL: there are no more */

/* The same of collectives alone. */
const struct record_call *walk_collective(struct walk *walk);
/* All ranks of all communicators, each once, ordered by communicator, then by rank; os_free() them. NULL:
 * memory is out. (judge.c) */
struct seat *seats_gather(const struct record_file *files, uint32_t file_count, uint32_t *seat_count);
/* They are of one communicator. */
static inline bool seats_meet(const struct seat *a, const struct seat *b) {
  return a->view->comm->comm_id == b->view->comm->comm_id &&
         a->view->comm->rank_count == b->view->comm->rank_count;
}

/* Fills what follows from file and view. */
void seat_read(struct seat *seat);
/* The collective of this number; NULL where its record is gone, or it was not called. */
const struct record_call *seat_find(const struct seat *seat, uint32_t collective);
/* The operation of this number (low bits); NULL where its record is gone. */
const struct record_call *seat_call(const struct seat *seat, uint32_t sequence);
/* They are of one process, and its device: the same rank's, where it has several communicators. */
static inline bool seats_share_device(const struct seat *a, const struct seat *b) {
  return a->file == b->file && a->view->comm->device == b->view->comm->device;
}
/* Of these seats the one whose kernel runs on the device of another, whose own has not started: what holds
 * it. NULL: nothing that was recorded. */
const struct seat *seat_holder(const struct seat *seats, uint32_t count, const struct seat *held);
/* A collective has ended here. */
bool seat_has_ended(const struct seat *seat, uint32_t collective);
/* Rows of lanes that tell of now, waiting or not, from *row on; NULL behind the last. */
const struct record_lane *seat_lane(const struct seat *seat, uint32_t *row);
/* The same of those that wait. */
const struct record_lane *seat_wait(const struct seat *seat, uint32_t *row);
/* What the rank waits for in the earliest operation that has not ended; NULL: it waits for nobody. */
const struct record_lane *seat_first_wait(const struct seat *seat);

#endif
