/* seat.c: walks a rank's ring from its end, as far back as something has not ended. */
#include "explain/seat.h"

static bool is_operation(const struct record_call *call) {
  return call->count != 0 || is_message(call->func);
}

struct walk walk_begin(const struct seat *seat) {
  const struct walk walk = {seat->view, seat->view->end, UINT64_MAX};
  return walk;
}

const union record *walk_back(struct walk *walk) {
  while (walk->number > walk->view->first) {
    const union record *record = record_at(walk->view, --walk->number);
    if (record->kind == RECORD_DROP) {
      if (record->life.sequence < walk->limit) walk->limit = record->life.sequence;
      continue;
    }
    if (record->kind == RECORD_CALL && walk->limit != UINT64_MAX) {
      if (widen(walk->view->comm->calls, record->call.sequence) >= walk->limit) continue;
      walk->limit = UINT64_MAX;
    }
    return record;
  }
  return NULL;
}

/* Past so many calls, each of which has a record at least, without a look at them. */
static void walk_skip(struct walk *walk, uint32_t calls) {
  const uint64_t left = walk->number - walk->view->first;
  walk->number -= calls < left ? calls : left;
}

const struct record_call *walk_collective(struct walk *walk) {
  const union record *record = walk_back(walk);
  while (record != NULL && (record->kind != RECORD_CALL || is_message(record->call.func)))
    record = walk_back(walk);
  return record != NULL ? &record->call : NULL;
}

static void seat_add_launch(struct seat *seat, const struct record_launch *launch) {
  const struct record_comm *comm = seat->view->comm;
  const uint64_t end = widen(comm->calls, launch->sequence) + launch->operations;
  /* What a graph has captured runs when the graph does: nothing waits for it now. */
  const bool ended = launch->captured || launch->number < comm->ended;
  if (end > seat->launched) seat->launched = end;
  if (ended && end > seat->done) seat->done = end;
}

/* The kernel that is to start next is none that was launched by a call, and graphs have captured some. */
static bool seat_queues_graph(const struct seat *seat) {
  const struct record_comm *comm = seat->view->comm;
  bool captured = comm->graph_runs != 0;
  if (!seat_knows_ends(seat) || comm->launched <= comm->started || comm->started > comm->ended) return false;
  for (uint64_t number = seat->view->end; number > seat->view->first; number--) {
    const union record *record = record_at(seat->view, number - 1);
    if (record->kind != RECORD_LAUNCH) continue;
    if (!record->launch.captured && record->launch.number == comm->started) return false;
    captured = captured || record->launch.captured != 0;
  }
  return captured;
}

/* What is called and launched is known from the last records; what has ended from the count of kernels. */
void seat_read(struct seat *seat) {
  const struct record_comm *comm = seat->view->comm;
  seat->graph = comm->graph_operation != 0 && comm->state == RECORD_OPEN;
  seat->graph_queued = seat_queues_graph(seat);
  struct walk walk = walk_begin(seat);
  bool newest = true;
  seat->called = comm->calls;
  for (const union record *record = walk_back(&walk); record != NULL; record = walk_back(&walk)) {
    if (record->kind == RECORD_LAUNCH) seat_add_launch(seat, &record->launch);
    if (record->kind == RECORD_ERROR && newest) seat->refused = &record->error;
    if (record->kind != RECORD_CALL) continue;
    const struct record_call *call = &record->call;
    if (!is_operation(call)) continue;
    if (newest) {
      seat->called = widen(comm->calls, call->sequence) + 1;
      seat->collectives = call->collective + !is_message(call->func);
    }
    newest = false;
    if (widen(comm->calls, call->sequence) < seat->done) return;
    if (is_message(call->func)) seat->pending_messages += 1;
    else seat->first = call;
  }
}

/* The collective of this number; NULL where its record is gone, or it was not called. */
const struct record_call *seat_find(const struct seat *seat, uint32_t collective) {
  struct walk walk = walk_begin(seat);
  const struct record_call *call = walk_collective(&walk);
  while (call != NULL && (int32_t)(call->collective - collective) > 0) {
    walk_skip(&walk, call->collective - collective - 1);
    call = walk_collective(&walk);
  }
  return call != NULL && call->collective == collective ? call : NULL;
}

const struct record_call *seat_call(const struct seat *seat, uint32_t sequence) {
  struct walk walk = walk_begin(seat);
  for (const union record *record = walk_back(&walk); record != NULL; record = walk_back(&walk)) {
    if (record->kind != RECORD_CALL || !is_operation(&record->call)) continue;
    if (record->call.sequence == sequence) return &record->call;
    if ((int32_t)(record->call.sequence - sequence) < 0) return NULL;
    walk_skip(&walk, record->call.sequence - sequence - 1);
  }
  return NULL;
}

const struct seat *seat_holder(const struct seat *seats, uint32_t count, const struct seat *held) {
  for (uint32_t i = 0; i < count; i++)
    if (&seats[i] != held && seats_share_device(&seats[i], held) && seat_runs(&seats[i])) return &seats[i];
  return NULL;
}

bool seat_has_ended(const struct seat *seat, uint32_t collective) {
  const struct record_call *call = seat_find(seat, collective);
  if (call == NULL || !seat_knows_ends(seat)) return false;
  return widen(seat->view->comm->calls, call->sequence) < seat->done;
}

/* Of an operation that has not ended; a graph's began long ago, and begins again. */
const struct record_lane *seat_lane(const struct seat *seat, uint32_t *row) {
  for (; *row < seat->view->lane_rows; *row += 1) {
    const struct record_lane *lane = &seat->view->lanes[*row];
    if (lane->used != 1 || lane->wait >= WAITS_LIST) continue;
    const uint64_t sequence = widen(seat->view->comm->calls, lane->sequence);
    if ((sequence >= seat->done || seat->graph) && sequence < seat->called) return lane;
  }
  return NULL;
}

const struct record_lane *seat_wait(const struct seat *seat, uint32_t *row) {
  const struct record_lane *lane = seat_lane(seat, row);
  while (lane != NULL && lane->wait == WAITS_NOT) {
    *row += 1;
    lane = seat_lane(seat, row);
  }
  return lane;
}

/* Of the earliest operation; NULL: the rank waits for nobody. */
const struct record_lane *seat_first_wait(const struct seat *seat) {
  const struct record_lane *first = NULL;
  uint32_t row = 0;
  for (const struct record_lane *lane = seat_wait(seat, &row); lane != NULL;
       row++, lane = seat_wait(seat, &row))
    if (first == NULL || (int32_t)(lane->sequence - first->sequence) < 0) first = lane;
  return first;
}
