/* stray.c: a rank made on one communicator the call that the others of another one made there. */
#include "explain/stray.h"

#include <string.h>

static uint32_t crew_end(const struct seat *seats, uint32_t count, uint32_t from) {
  uint32_t end = from + 1;
  while (end < count && seats_meet(&seats[from], &seats[end])) end++;
  return end;
}

/* The one rank that has called more than all others, and the first of those calls; NULL: there is none. */
static const struct record_call *lone_call(const struct seat *seats, uint32_t count,
                                           const struct seat **lone) {
  uint32_t others = 0;
  *lone = &seats[0];
  for (uint32_t i = 1; i < count; i++)
    if (seat_has_called(&seats[i], (*lone)->collectives)) *lone = &seats[i];
  for (uint32_t i = 0; i < count; i++)
    if (&seats[i] != *lone && seat_has_called(&seats[i], others)) others = seats[i].collectives;
  return seat_has_called(*lone, others) ? seat_find(*lone, others) : NULL;
}

/* What most others called as this collective, if that is the stray call; *same: it is what the rank itself
 * did. */
static const struct record_call *others_call(const struct crew *crew, const struct seat *self,
                                             uint32_t collective, const struct record_call *stray,
                                             bool *same) {
  const struct record_call *own = seat_find(self, collective), *found = NULL;
  uint32_t called = 0, strays = 0, alike = 0;
  for (uint32_t i = 0; i < crew->count; i++) {
    const struct record_call *call = &crew->seats[i] != self ? seat_find(&crew->seats[i], collective) : NULL;
    if (call == NULL) continue;
    const bool is_stray = calls_differ(call, stray) == NULL;
    called += 1;
    strays += is_stray;
    alike += own != NULL && calls_differ(call, own) == NULL;
    if (is_stray) found = call;
  }
  *same = alike * 2 > called;
  return strays * 2 > called ? found : NULL;
}

/* The collective of this crew that the stray rank should have made: the first that it did not make as the
 * others did. Some of those that have ended are looked at, too: not all wait for all. */
static const struct record_call *missed_call(const struct crew *crew, const struct seat *self,
                                             const struct record_call *stray) {
  const struct record_call *first = crew_first(crew);
  const uint32_t end = first != NULL ? first->collective : self->collectives;
  uint32_t collective = end - (end < STRAY_CALLS ? end : STRAY_CALLS);
  for (bool same = true; same && collective < end + STRAY_CALLS; collective++) {
    const struct record_call *right = others_call(crew, self, collective, stray, &same);
    if (!same) return right;
  }
  return NULL;
}

static bool tell_stray(struct crew *crew, const struct seat *self, const struct seat *lone,
                       const struct record_call *call) {
  const struct record_call *right = missed_call(crew, self, call);
  char place[160], text[160], name[64];
  if (right == NULL) return false;
  crew->verdict->evidence_count = 0;
  seat_place(self, place);
  call_text(call, text);
  blame(crew, VERDICT_MISMATCH, "communicator", self);
  crew->verdict->comm_id = self->view->comm->comm_id;
  say(crew->verdict->sentence,
      "%s called %s on comm '%.40s', as operation #%u, where the others call it on comm %s, as operation "
      "#%u: "
      "another communicator",
      place, text, lone->view->comm->name, call->sequence, crew_name(crew, name), right->sequence);
  show(crew->verdict, "on comm '%.40s' rank %u alone called it; on comm %s it is missing",
       lone->view->comm->name, seat_rank(lone), name);
  say(crew->verdict->next, "look at which communicator rank %u takes for this call", seat_rank(self));
  return true;
}

bool judge_stray(struct seat *seats, uint32_t count, struct verdict *verdict) {
  for (uint32_t from = 0; from < count; from = crew_end(seats, count, from)) {
    const uint32_t end = crew_end(seats, count, from);
    const struct seat *lone = NULL;
    const struct record_call *call = end - from > 1 ? lone_call(seats + from, end - from, &lone) : NULL;
    for (uint32_t i = 0, last = 0; call != NULL && i < count; i = last) {
      last = crew_end(seats, count, i);
      if (i == from || last - i < 2) continue;
      struct crew crew = {seats + i, last - i, seats[i].view->comm->rank_count, seats, count, verdict};
      for (uint32_t k = i; k < last; k++)
        if (seats_share_device(&seats[k], lone) && tell_stray(&crew, &seats[k], lone, call)) return true;
    }
  }
  return false;
}
