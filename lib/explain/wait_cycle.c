/* wait_cycle.c: follows waits across communicators. A rank's kernel waits for a peer. If the peer's kernel of
 * that communicator has not started because another communicator's kernel runs on its device, the search goes
 * on with that kernel, until it meets a rank again. */
#include "explain/wait_cycle.h"

#include <inttypes.h>
#include <string.h>

#include "base/os.h"
#include "explain/call_site.h"

struct cycle {
  const struct rank_state *states;
  uint32_t count;
  uint32_t *path; /* by state: the order in which the search met it, from 1; 0: not met */
};

static int name_compare(const struct record_comm *a, uint64_t comm_id, uint32_t rank_count, uint32_t rank) {
  if (a->comm_id != comm_id) return a->comm_id < comm_id ? -1 : 1;
  if (a->rank_count != rank_count) return a->rank_count < rank_count ? -1 : 1;
  return a->rank < rank ? -1 : a->rank > rank;
}

static const struct rank_state *peer_find(const struct cycle *cycle, const struct rank_state *state,
                                          uint32_t rank) {
  const struct record_comm *comm = state->view->comm;
  uint32_t low = 0, high = cycle->count;
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    const int side = name_compare(cycle->states[middle].view->comm, comm->comm_id, comm->rank_count, rank);
    if (side == 0) return &cycle->states[middle];
    if (side < 0) low = middle + 1;
    else high = middle;
  }
  return NULL;
}

/* The next rank on the path: the peer that is waited for, or what keeps the peer's kernel from starting. */
static const struct rank_state *rank_waits_for(const struct cycle *cycle, const struct rank_state *state) {
  const struct record_lane *lane = rank_first_wait(state);
  const struct rank_state *peer = lane != NULL ? peer_find(cycle, state, lane->peer) : NULL;
  if (peer == NULL || rank_runs(peer)) return peer;
  return rank_holder(cycle->states, cycle->count, peer);
}

static void cycle_report(const struct cycle *cycle, const struct rank_state *begin,
                         struct diagnosis *diagnosis) {
  const struct rank_state *state = begin;
  size_t used = (size_t)snprintf(diagnosis->sentence, DIAGNOSIS_TEXT_BYTES,
                                 "communicators wait for one another in a cycle:");
  diagnosis->kind = DIAGNOSIS_CYCLE;
  diagnosis->evidence_count = diagnosis->cited_count = 0;
  do {
    const struct record_lane *lane = rank_first_wait(state);
    const struct rank_state *next = rank_waits_for(cycle, state);
    const bool holds = next->view->comm->comm_id != state->view->comm->comm_id;
    if (used + 160 < DIAGNOSIS_TEXT_BYTES)
      used += (size_t)snprintf(diagnosis->sentence + used, 160,
                               "%s rank %u of comm '%.20s' waits in #%u for rank %u%s",
                               state == begin ? "" : ";", rank_number(state), state->view->comm->name,
                               lane->sequence, lane->peer, holds ? ", whose device another one holds" : "");
    if (diagnosis->evidence_count < DIAGNOSIS_EVIDENCE_MOST)
      snprintf(diagnosis->evidence[diagnosis->evidence_count++], DIAGNOSIS_TEXT_BYTES,
               "process %u on %.64s, device %u: comm '%.48s' runs #%u, channel %u, step %u",
               state->file->header.process, state->file->header.host, state->view->comm->device,
               state->view->comm->name, lane->sequence, lane->channel, lane->step);
    cite(diagnosis, state, rank_find_call(state, lane->sequence));
    state = next;
  } while (state != begin && used + 160 < DIAGNOSIS_TEXT_BYTES);
  snprintf(diagnosis->next, DIAGNOSIS_TEXT_BYTES,
           "launch the communicators' operations in the same order on all ranks, or on "
           "streams that do not wait for each other");
}

static bool cycle_crosses(const struct cycle *cycle, const struct rank_state *begin) {
  for (const struct rank_state *state = rank_waits_for(cycle, begin); state != begin;
       state = rank_waits_for(cycle, state))
    if (state->view->comm->comm_id != begin->view->comm->comm_id) return true;
  return false;
}

bool diagnose_cycle(const struct rank_state *states, uint32_t count, struct diagnosis *diagnosis) {
  struct cycle cycle = {states, count, (uint32_t *)os_alloc((count + 1) * sizeof *cycle.path)};
  bool found = false;
  uint32_t met = 0;
  if (cycle.path == NULL) return false;
  for (uint32_t i = 0; i < count && !found; i++) {
    const uint32_t first = met + 1;
    const struct rank_state *state = &states[i];
    while (state != NULL && cycle.path[state - states] == 0) {
      cycle.path[state - states] = ++met;
      state = rank_waits_for(&cycle, state);
    }
    if (state == NULL || cycle.path[state - states] < first) continue;
    found = cycle_crosses(&cycle, state);
    if (found) cycle_report(&cycle, state, diagnosis);
  }
  os_free(cycle.path);
  return found;
}
