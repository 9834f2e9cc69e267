/* circle.c: a rank's kernel waits for another rank, whose kernel of that communicator has not started,
 * because its device, or its program, is held by another communicator: and so on, until that leads back. */
#include "explain/circle.h"

#include <inttypes.h>
#include <string.h>

#include "base/os.h"

struct circle {
  const struct seat *seats;
  uint32_t count;
  uint32_t *path; /* by seat: when it was met, from 1; 0: never */
};

static int name_compare(const struct record_comm *a, uint64_t comm_id, uint32_t rank_count, uint32_t rank) {
  if (a->comm_id != comm_id) return a->comm_id < comm_id ? -1 : 1;
  if (a->rank_count != rank_count) return a->rank_count < rank_count ? -1 : 1;
  return a->rank < rank ? -1 : a->rank > rank;
}

static const struct seat *peer_find(const struct circle *circle, const struct seat *seat, uint32_t rank) {
  const struct record_comm *comm = seat->view->comm;
  uint32_t low = 0, high = circle->count;
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    const int side = name_compare(circle->seats[middle].view->comm, comm->comm_id, comm->rank_count, rank);
    if (side == 0) return &circle->seats[middle];
    if (side < 0) low = middle + 1;
    else high = middle;
  }
  return NULL;
}

/* Whom the seat's wait leads to. */
static const struct seat *seat_next(const struct circle *circle, const struct seat *seat) {
  const struct record_lane *lane = seat_first_wait(seat);
  const struct seat *peer = lane != NULL ? peer_find(circle, seat, lane->peer) : NULL;
  if (peer == NULL || seat_runs(peer)) return peer;
  return seat_holder(circle->seats, circle->count, peer);
}

static void circle_tell(const struct circle *circle, const struct seat *begin, struct verdict *verdict) {
  const struct seat *seat = begin;
  size_t used = (size_t)snprintf(verdict->sentence, JUDGE_TEXT_BYTES,
                                 "communicators wait for one another in a circle:");
  verdict->kind = VERDICT_CIRCLE;
  verdict->evidence_count = 0;
  do {
    const struct record_lane *lane = seat_first_wait(seat);
    const struct seat *next = seat_next(circle, seat);
    const bool holds = next->view->comm->comm_id != seat->view->comm->comm_id;
    if (used + 160 < JUDGE_TEXT_BYTES)
      used += (size_t)snprintf(verdict->sentence + used, 160,
                               "%s rank %u of comm '%.20s' waits in #%u for rank %u%s",
                               seat == begin ? "" : ";", seat_rank(seat), seat->view->comm->name,
                               lane->sequence, lane->peer, holds ? ", whose device another one holds" : "");
    if (verdict->evidence_count < JUDGE_EVIDENCE_MOST)
      snprintf(verdict->evidence[verdict->evidence_count++], JUDGE_TEXT_BYTES,
               "process %u on %.64s, device %u: comm '%.48s' runs #%u, channel %u, step %u",
               seat->file->header.process, seat->file->header.host, seat->view->comm->device,
               seat->view->comm->name, lane->sequence, lane->channel, lane->step);
    seat = next;
  } while (seat != begin && used + 160 < JUDGE_TEXT_BYTES);
  snprintf(verdict->next, JUDGE_TEXT_BYTES,
           "launch the communicators' operations in the same order on all ranks, or on "
           "streams that do not wait for each other");
}

static bool circle_crosses(const struct circle *circle, const struct seat *begin) {
  for (const struct seat *seat = seat_next(circle, begin); seat != begin; seat = seat_next(circle, seat))
    if (seat->view->comm->comm_id != begin->view->comm->comm_id) return true;
  return false;
}

bool judge_circle(const struct seat *seats, uint32_t count, struct verdict *verdict) {
  struct circle circle = {seats, count, (uint32_t *)os_alloc((count + 1) * sizeof *circle.path)};
  bool found = false;
  uint32_t met = 0;
  if (circle.path == NULL) return false;
  for (uint32_t i = 0; i < count && !found; i++) {
    const uint32_t first = met + 1;
    const struct seat *seat = &seats[i];
    while (seat != NULL && circle.path[seat - seats] == 0) {
      circle.path[seat - seats] = ++met;
      seat = seat_next(&circle, seat);
    }
    if (seat == NULL || circle.path[seat - seats] < first) continue;
    found = circle_crosses(&circle, seat);
    if (found) circle_tell(&circle, seat, verdict);
  }
  os_free(circle.path);
  return found;
}
