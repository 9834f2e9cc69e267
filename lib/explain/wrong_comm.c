/* wrong_comm.c: a rank made a call on one communicator that the other ranks made on another one. */
#include "explain/wrong_comm.h"

#include <string.h>

static uint32_t ranks_end(const struct rank_state *states, uint32_t count, uint32_t from) {
  uint32_t end = from + 1;
  while (end < count && rank_states_same_comm(&states[from], &states[end])) end++;
  return end;
}

/* The first call that only one rank made, and *lone, that rank; NULL if there is none. */
static const struct record_call *lone_call(const struct rank_state *states, uint32_t count,
                                           const struct rank_state **lone) {
  uint32_t others = 0;
  *lone = &states[0];
  for (uint32_t i = 1; i < count; i++)
    if (rank_has_called(&states[i], (*lone)->collectives)) *lone = &states[i];
  for (uint32_t i = 0; i < count; i++)
    if (&states[i] != *lone && rank_has_called(&states[i], others)) others = states[i].collectives;
  return rank_has_called(*lone, others) ? rank_find_collective(*lone, others) : NULL;
}

/* The call that most other ranks made as this collective, if it matches the misplaced call, else NULL. *same:
 * most of them made the same call as this rank. */
static const struct record_call *others_call(const struct comm_ranks *ranks, const struct rank_state *self,
                                             uint32_t collective, const struct record_call *misplaced,
                                             bool *same) {
  const struct record_call *own = rank_find_collective(self, collective), *found = NULL;
  uint32_t called = 0, misplaced_count = 0, alike = 0;
  for (uint32_t i = 0; i < ranks->count; i++) {
    const struct record_call *call =
        &ranks->states[i] != self ? rank_find_collective(&ranks->states[i], collective) : NULL;
    if (call == NULL) continue;
    const bool is_wrong_comm = calls_differ(call, misplaced) == NULL;
    called += 1;
    misplaced_count += is_wrong_comm;
    alike += own != NULL && calls_differ(call, own) == NULL;
    if (is_wrong_comm) found = call;
  }
  *same = alike * 2 > called;
  return misplaced_count * 2 > called ? found : NULL;
}

/* The collective that the rank should have called on this communicator: the first at which it differs from
 * the others. Collectives that have ended are compared, too, because not every rank of one waits for all
 * others. */
static const struct record_call *missed_call(const struct comm_ranks *ranks, const struct rank_state *self,
                                             const struct record_call *misplaced) {
  const struct record_call *first = ranks_first_pending(ranks);
  const uint32_t end = first != NULL ? first->collective : self->collectives;
  uint32_t collective = end - (end < WRONG_COMM_CALLS ? end : WRONG_COMM_CALLS);
  for (bool same = true; same && collective < end + WRONG_COMM_CALLS; collective++) {
    const struct record_call *right = others_call(ranks, self, collective, misplaced, &same);
    if (!same) return right;
  }
  return NULL;
}

static bool report_wrong_comm(struct comm_ranks *ranks, const struct rank_state *self,
                              const struct rank_state *lone, const struct record_call *call) {
  const struct record_call *right = missed_call(ranks, self, call);
  char place[160], text[160], name[64];
  if (right == NULL) return false;
  ranks->diagnosis->evidence_count = 0;
  rank_place(self, place);
  call_text(call, text);
  blame(ranks, DIAGNOSIS_MISMATCH, "communicator", self);
  ranks->diagnosis->comm_id = self->view->comm->comm_id;
  cite(ranks->diagnosis, lone, call);
  cite_of(ranks, right);
  say(ranks->diagnosis->sentence,
      "%s called %s on comm '%.40s', as operation #%u, where the others call it on comm %s, as operation "
      "#%u: another communicator",
      place, text, lone->view->comm->name, call->sequence, ranks_comm_name(ranks, name), right->sequence);
  show(ranks->diagnosis, "on comm '%.40s' rank %u alone called it; on comm %s it is missing",
       lone->view->comm->name, rank_number(lone), name);
  say(ranks->diagnosis->next, "look at which communicator rank %u takes for this call", rank_number(self));
  return true;
}

bool diagnose_wrong_comm(struct rank_state *states, uint32_t count, struct diagnosis *diagnosis) {
  for (uint32_t from = 0; from < count; from = ranks_end(states, count, from)) {
    const uint32_t end = ranks_end(states, count, from);
    const struct rank_state *lone = NULL;
    const struct record_call *call = end - from > 1 ? lone_call(states + from, end - from, &lone) : NULL;
    for (uint32_t i = 0, last = 0; call != NULL && i < count; i = last) {
      last = ranks_end(states, count, i);
      if (i == from || last - i < 2) continue;
      struct comm_ranks ranks = {states + i, last - i, states[i].view->comm->rank_count,
                                 states,     count,    diagnosis};
      for (uint32_t k = i; k < last; k++)
        if (rank_states_same_device(&states[k], lone) && report_wrong_comm(&ranks, &states[k], lone, call))
          return true;
    }
  }
  return false;
}
