/* judge_launch.c: calls that have not come to the device, and kernels that have not begun. */
#include <inttypes.h>
#include <string.h>

#include "explain/crew.h"

bool judge_not_launched(struct crew *crew) {
  char place[160], name[64];
  for (uint32_t i = 0; i < crew->count; i++) {
    const struct seat *seat = &crew->seats[i];
    const struct record_comm *comm = seat->view->comm;
    if (!seat_pends(seat) || seat->launched > seat->done) continue;
    if (seat->launched >= seat->called) continue;
    seat_place(seat, place);
    blame(crew, VERDICT_NOT_LAUNCHED, comm->open_group != 0 ? "group" : "call", seat);
    say(crew->verdict->sentence, "%s of comm %s has called operation #%" PRIu64 " and not launched it: %s",
        place, crew_name(crew, name), seat->launched,
        comm->open_group != 0 ? "it is in a group that it has not ended"
                              : "it is still inside the call, perhaps making connections");
    if (comm->open_group != 0)
      say(crew->verdict->next,
          "end the group: look for the ncclGroupEnd, or for what "
          "rank %u waits for before it",
          seat_rank(seat));
    else
      say(crew->verdict->next, "look at the stack of rank %u's process (gdb -p), and at its log",
          seat_rank(seat));
    return true;
  }
  return false;
}

/* Launched, and not started. */
static bool seat_queues(const struct seat *seat) {
  const struct record_comm *comm = seat->view->comm;
  if (!seat_pends(seat) || !seat_knows_ends(seat) || comm->started > comm->ended) return false;
  return comm->launched > comm->started;
}

/* The first whose device nothing that was recorded holds, if there is one; *holder is what does. */
static const struct seat *crew_queued(const struct crew *crew, const struct seat **holder) {
  const struct seat *first = NULL;
  for (uint32_t i = 0; i < crew->count; i++) {
    if (!seat_queues(&crew->seats[i])) continue;
    const struct seat *held_by = seat_holder(crew->all, crew->all_count, &crew->seats[i]);
    if (first != NULL && held_by != NULL) continue;
    first = &crew->seats[i];
    *holder = held_by;
    if (held_by == NULL) break;
  }
  return first;
}

bool judge_not_started(struct crew *crew) {
  char place[160], name[64], what[64] = "a graph", front[96] = "other work on its stream or device";
  const struct seat *holder = NULL, *seat = crew_queued(crew, &holder);
  if (seat == NULL) return false;
  if (!seat->graph_queued) snprintf(what, sizeof what, "operation #%" PRIu64, seat->done);
  if (holder != NULL)
    snprintf(front, sizeof front, "a kernel of comm '%.40s' on its device", holder->view->comm->name);
  seat_place(seat, place);
  blame(crew, holder != NULL ? VERDICT_BEHIND : VERDICT_NOT_STARTED, NULL, seat);
  say(crew->verdict->sentence,
      "%s of comm %s has launched %s, and its kernel has not started: it waits behind %s", place,
      crew_name(crew, name), what, front);
  say(crew->verdict->next,
      "look at what is in front of it on rank %u's stream: another communicator's kernel, "
      "an event, a kernel of the program",
      seat_rank(seat));
  return true;
}
