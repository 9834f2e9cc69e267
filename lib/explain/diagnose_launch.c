/* diagnose_launch.c: calls that have not been launched on the device, and kernels that have not started. */
#include <inttypes.h>
#include <string.h>

#include "explain/comm_ranks.h"

bool diagnose_not_launched(struct comm_ranks *ranks) {
  char place[160], name[64];
  for (uint32_t i = 0; i < ranks->count; i++) {
    const struct rank_state *state = &ranks->states[i];
    const struct record_comm *comm = state->view->comm;
    if (!rank_pends(state) || state->launched > state->done) continue;
    if (state->launched >= state->called) continue;
    rank_place(state, place);
    blame(ranks, DIAGNOSIS_NOT_LAUNCHED, comm->open_group != 0 ? "group" : "call", state);
    cite(ranks->diagnosis, state, rank_find_call(state, (uint32_t)state->launched));
    say(ranks->diagnosis->sentence, "%s of comm %s has called operation #%" PRIu64 " and not launched it: %s",
        place, ranks_comm_name(ranks, name), state->launched,
        comm->open_group != 0 ? "it is in a group that it has not ended"
                              : "it is still inside the call, perhaps making connections");
    if (comm->open_group != 0)
      say(ranks->diagnosis->next,
          "end the group: look for the ncclGroupEnd, or for what "
          "rank %u waits for before it",
          rank_number(state));
    else
      say(ranks->diagnosis->next, "look at the stack of rank %u's process (gdb -p), and at its log",
          rank_number(state));
    return true;
  }
  return false;
}

/* Another process of this host, with an operation that has not ended, waits for this rank's. */
static bool rank_is_awaited(const struct comm_ranks *ranks, const struct rank_state *state) {
  const struct record_header *header = &state->file->header;
  for (uint32_t i = 0; i < ranks->count; i++) {
    const struct record_header *other = &ranks->states[i].file->header;
    if (other->awaited == header->process && other->process_realm == header->process_realm &&
        other->awaited != other->process && rank_pends(&ranks->states[i]))
      return true;
  }
  return false;
}

/* The first of the ranks whose process keeps the others from going on; NULL: none. */
static const struct rank_state *ranks_away(const struct comm_ranks *ranks) {
  if (ranks_have_failed(ranks)) return NULL; /* that explains more */
  for (uint32_t i = 0; i < ranks->count; i++)
    if (ranks->states[i].file->stopped || rank_is_awaited(ranks, &ranks->states[i])) return &ranks->states[i];
  return NULL;
}

bool diagnose_away_after(struct comm_ranks *ranks, uint32_t collective) {
  const struct rank_state *away = ranks_away(ranks);
  return away != NULL && rank_has_called(away, collective) && diagnose_away(ranks);
}

bool diagnose_away(struct comm_ranks *ranks) {
  const struct rank_state *away = ranks_away(ranks);
  const struct record_call *first = ranks_first_pending(ranks);
  char place[160], name[64], text[160] = "", since[64] = "";
  uint32_t waiters = 0;
  for (uint32_t i = 0; i < ranks->count; i++)
    waiters += &ranks->states[i] != away && rank_pends(&ranks->states[i]);
  if (away == NULL || waiters == 0) return false;
  if (first != NULL) call_text(first, text), waited_text(ranks, first, since);
  rank_place(away, place);
  blame(ranks, DIAGNOSIS_AWAY, away->file->stopped ? "stopped" : "busy", away);
  cite_last(ranks, away);
  say(ranks->diagnosis->sentence, "the process of %s of comm %s %s; %u other%s wait%s for it%s%s%s", place,
      ranks_comm_name(ranks, name),
      away->file->stopped ? "is stopped, by a signal or a debugger"
                          : "was away: it computed, slept or was stopped outside of a call that waits",
      waiters, waiters == 1 ? "" : "s", waiters == 1 ? "s" : "", first != NULL ? " in " : "", text, since);
  say(ranks->diagnosis->next,
      "look at what rank %u's program does (py-spy dump, gdb -p); let it go on if it is stopped (kill -CONT)",
      rank_number(away));
  return true;
}

/* A kernel of the rank is launched and has not started. */
static bool rank_queues(const struct rank_state *state) {
  const struct record_comm *comm = state->view->comm;
  if (!rank_pends(state) || !rank_knows_ends(state) || comm->started > comm->ended) return false;
  return comm->launched > comm->started;
}

/* A rank whose kernel has not started; preferably one that no recorded kernel blocks. *holder is the kernel
 * that blocks it, or NULL. */
static const struct rank_state *ranks_queued(const struct comm_ranks *ranks,
                                             const struct rank_state **holder) {
  const struct rank_state *first = NULL;
  for (uint32_t i = 0; i < ranks->count; i++) {
    if (!rank_queues(&ranks->states[i])) continue;
    const struct rank_state *held_by = rank_holder(ranks->all, ranks->all_count, &ranks->states[i]);
    if (first != NULL && held_by != NULL) continue;
    first = &ranks->states[i];
    *holder = held_by;
    if (held_by == NULL) break;
  }
  return first;
}

bool diagnose_not_started(struct comm_ranks *ranks) {
  char place[160], name[64], what[64] = "a graph", front[96] = "other work on its stream or device";
  const struct rank_state *holder = NULL, *state = ranks_queued(ranks, &holder);
  if (state == NULL) return false;
  if (!state->graph_queued) snprintf(what, sizeof what, "operation #%" PRIu64, state->done);
  if (holder != NULL)
    snprintf(front, sizeof front, "a kernel of comm '%.40s' on its device", holder->view->comm->name);
  rank_place(state, place);
  blame(ranks, holder != NULL ? DIAGNOSIS_BEHIND : DIAGNOSIS_NOT_STARTED, NULL, state);
  if (!state->graph_queued) cite(ranks->diagnosis, state, rank_find_call(state, (uint32_t)state->done));
  say(ranks->diagnosis->sentence,
      "%s of comm %s has launched %s, and its kernel has not started: it waits behind %s", place,
      ranks_comm_name(ranks, name), what, front);
  say(ranks->diagnosis->next,
      "look at what is in front of it on rank %u's stream: another communicator's kernel, "
      "an event, a kernel of the program",
      rank_number(state));
  return true;
}
