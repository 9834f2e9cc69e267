/* diagnose.c: diagnoses the communicators in all files one by one: finds the first operation that did not end
 * on every rank, compares what each rank did about it, and keeps the most specific diagnosis. */
#include "explain/diagnose.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/os.h"
#include "explain/call_site.h"
#include "explain/comm_ranks.h"
#include "explain/wait_cycle.h"
#include "explain/wrong_comm.h"

static void show_missing(const struct comm_ranks *ranks) {
  struct rank_list list = {"", 0, 0, 0, 0};
  char name[64];
  const uint32_t missing = ranks_missing(ranks, &list);
  if (missing == 0) return;
  show(ranks->diagnosis, "of comm %s %u of %u ranks left no file: %s%s", ranks_comm_name(ranks, name),
       ranks->rank_count - ranks->count, ranks->rank_count, list.text, missing == 64 ? ", ..." : "");
}

/* ---- a communicator's diagnosis ---- */

static bool ranks_pend(const struct comm_ranks *ranks) {
  for (uint32_t i = 0; i < ranks->count; i++)
    if (rank_pends(&ranks->states[i])) return true;
  return false;
}

/* One past the rank's last collective, also if that was refused because it differs. */
static uint32_t rank_end(const struct rank_state *state) {
  const struct record_call *refused = rank_refused_collective(state);
  return state->collectives + (refused != NULL && refused->collective == state->collectives);
}

static uint32_t ranks_last_collective(const struct comm_ranks *ranks) {
  uint32_t last = 0;
  for (uint32_t i = 0; i < ranks->count; i++)
    if (rank_end(&ranks->states[i]) > last) last = rank_end(&ranks->states[i]);
  return last;
}

/* How many collectives that have ended are compared, too. */
#define PAST_MOST 16u

/* At most this many collectives are compared: no recorder writes a ring that holds more. */
#define COMPARED_MOST (UINT32_C(1) << 20)

/* Compares with the call at *first, which becomes this one if there is none; *found is the earliest
 * collective that differs. */
static void call_compare(const struct record_call **first, const struct record_call *call, uint32_t *found) {
  if (*first == NULL) *first = call;
  else if (call->collective < *found && calls_differ(*first, call) != NULL) *found = call->collective;
}

/* The earliest collective in [begin, end) that ranks called differently; `end` if there is none. `calls` is
 * scratch space: for each collective from begin on, one rank's call, with which the others are compared. */
static uint32_t ranks_difference(const struct comm_ranks *ranks, const struct record_call **calls,
                                 uint32_t begin, uint32_t end) {
  uint32_t found = end;
  for (uint32_t i = 0; i < ranks->count; i++) {
    struct record_iter iter = record_iter_begin(&ranks->states[i]);
    const struct record_call *refused = rank_refused_collective(&ranks->states[i]);
    if (refused != NULL && refused->collective >= begin && refused->collective < end)
      call_compare(&calls[refused->collective - begin], refused, &found);
    uint32_t above = end; /* only the newest record of a number counts: the older calls were refused */
    for (const struct record_call *call = record_iter_collective(&iter); call != NULL;
         call = record_iter_collective(&iter)) {
      if (call->collective < begin) break;
      if (call->collective >= above) continue;
      above = call->collective;
      call_compare(&calls[above - begin], call, &found);
    }
  }
  return found;
}

/* Looks for differences in the collectives that have not ended, and in the last ones that have: a mismatched
 * collective may end with a wrong result. */
static bool diagnose_difference(struct comm_ranks *ranks, const struct record_call *first) {
  const uint32_t end = ranks_last_collective(ranks), live = first != NULL ? first->collective : end;
  const uint32_t least = end < COMPARED_MOST ? 0 : end - COMPARED_MOST;
  const uint32_t begin = live > least + PAST_MOST ? live - PAST_MOST : least;
  if (begin >= end) return false;
  const struct record_call **calls = (const struct record_call **)os_alloc((end - begin) * sizeof *calls);
  const uint32_t found = calls != NULL ? ranks_difference(ranks, calls, begin, end) : end;
  os_free(calls);
  return found != end && diagnose_mismatch(ranks, found);
}

static bool diagnose_calls(struct comm_ranks *ranks, const struct record_call *first) {
  return diagnose_refused(ranks, first->collective, first) || diagnose_died(ranks) ||
         diagnose_exited(ranks) || diagnose_absent(ranks) || diagnose_away_after(ranks, first->collective) ||
         diagnose_messages(ranks, false) || diagnose_not_arrived(ranks, first->collective, first);
}

static void diagnose_rest(struct comm_ranks *ranks) {
  struct diagnosis *diagnosis = ranks->diagnosis;
  char name[64];
  bool knows = true, waits = false;
  for (uint32_t i = 0; i < ranks->count; i++) {
    knows = knows && rank_knows_ends(&ranks->states[i]);
    waits = waits || rank_has_waits(&ranks->states[i]);
  }
  ranks_comm_name(ranks, name);
  if (!knows) {
    diagnosis->kind = DIAGNOSIS_UNKNOWN;
    say(diagnosis->sentence,
        "all ranks of comm %s that left a file called the same; their device does not tell what "
        "of it has ended",
        name);
    say(diagnosis->next, "compare with the program's own log");
  } else if (ranks_pend(ranks)) {
    diagnosis->kind = DIAGNOSIS_RUNNING;
    say(diagnosis->sentence, "operations of comm %s were under way when these files were taken, and %s", name,
        waits ? "no rank waited for long" : "they do not tell whether a rank waits");
    say(diagnosis->next, "take the files again; if nothing has moved between both, keep them for a report");
  } else {
    diagnosis->kind = DIAGNOSIS_FINE;
    say(diagnosis->sentence, "nothing is wrong in comm %s: all that its %u rank%s called has ended", name,
        ranks->count, ranks->count == 1 ? "" : "s");
    say(diagnosis->next,
        "if the job hangs, it hangs outside of collective communication: look at its stacks");
  }
}

/* Adds the error messages of the ranks that failed: the first four that differ. */
static void show_reasons(const struct comm_ranks *ranks) {
  const char *said[4] = {"", "", "", ""};
  uint32_t count = 0;
  for (uint32_t i = 0; i < ranks->count && count < 4; i++) {
    const struct record_comm *comm = ranks->states[i].view->comm;
    if (memchr(comm->reason, 0, sizeof comm->reason) == NULL) continue; /* no recorder wrote it */
    uint32_t k = 0;
    if (comm->error == 0 || comm->reason[0] == '\0') continue;
    while (k < count && strncmp(said[k], comm->reason, sizeof comm->reason) != 0) k++;
    if (k < count) continue;
    said[count++] = comm->reason;
    show(ranks->diagnosis, "rank %u failed: %.*s", comm->rank, (int)strcspn(comm->reason, "\n"),
         comm->reason);
  }
}

static void diagnose_ranks(struct comm_ranks *ranks) {
  const struct record_call *first = ranks_first_pending(ranks);
  show_missing(ranks);
  show_reasons(ranks);
  show_graphs(ranks);
  if (diagnose_not_met(ranks) || diagnose_difference(ranks, first) || diagnose_refused_message(ranks)) return;
  if (diagnose_graph(ranks) || (first != NULL && diagnose_calls(ranks, first))) return;
  if (diagnose_died(ranks) || diagnose_exited(ranks) || diagnose_absent(ranks) ||
      diagnose_messages(ranks, true))
    return;
  if (diagnose_failed(ranks) || diagnose_not_launched(ranks) || diagnose_away(ranks)) return;
  if (diagnose_not_started(ranks) || diagnose_left(ranks)) return;
  if (diagnose_slow_link(ranks) || diagnose_links(ranks) || diagnose_channel(ranks) || diagnose_frozen(ranks))
    return;
  if (diagnose_gone(ranks) || diagnose_slow(ranks)) return;
  diagnose_rest(ranks);
}

/* ---- all communicators ---- */

static int rank_compare(const void *left, const void *right) {
  const struct record_comm *a = ((const struct rank_state *)left)->view->comm;
  const struct record_comm *b = ((const struct rank_state *)right)->view->comm;
  if (a->comm_id != b->comm_id) return a->comm_id < b->comm_id ? -1 : 1;
  if (a->rank_count != b->rank_count) return a->rank_count < b->rank_count ? -1 : 1;
  if (a->rank != b->rank) return a->rank < b->rank ? -1 : 1;
  /* an open communicator before one that has ended, a later one before an earlier one */
  if ((a->state == RECORD_OPEN) != (b->state == RECORD_OPEN)) return a->state == RECORD_OPEN ? -1 : 1;
  return a->born > b->born ? -1 : a->born < b->born;
}

static bool ranks_live(const struct comm_ranks *ranks) {
  for (uint32_t i = 0; i < ranks->count; i++)
    if (ranks->states[i].view->comm->state == RECORD_OPEN || ranks->states[i].view->comm->error != 0)
      return true;
  return ranks_pend(ranks);
}

/* For ranks whose backend does not count ended kernels: takes an operation as ended if every rank has called
 * and launched it. */
static void ranks_assume(struct comm_ranks *ranks) {
  uint32_t common = UINT32_MAX;
  for (uint32_t i = 0; i < ranks->count; i++)
    if (ranks->states[i].collectives < common) common = ranks->states[i].collectives;
  for (uint32_t i = 0; i < ranks->count; i++) {
    struct rank_state *state = &ranks->states[i];
    if (rank_knows_ends(state)) continue;
    state->pending_messages = 0;
    state->first = rank_has_called(state, common) ? rank_find_collective(state, common) : NULL;
    if (state->first == NULL && state->launched < state->called && state->collectives > 0)
      state->first = rank_find_collective(state, state->collectives - 1);
    state->done =
        state->first != NULL ? widen(state->view->comm->calls, state->first->sequence) : state->called;
  }
}

/* That a process ended while a communicator was idle explains less than what hangs in another one. */
static enum diagnosis_kind weight(const struct diagnosis *diagnosis) {
  const char *detail = diagnosis->detail != NULL ? diagnosis->detail : "";
  const bool idle = strcmp(detail, "killed") == 0 || strcmp(detail, "left") == 0;
  return idle ? DIAGNOSIS_FAILED : diagnosis->kind;
}

/* Diagnoses one communicator and keeps the more specific of both diagnoses. */
static void diagnose_one(const struct comm_ranks *ranks_of, struct diagnosis *diagnosis) {
  struct comm_ranks ranks = *ranks_of;
  struct diagnosis own;
  memset(&own, 0, sizeof own);
  own.rank = DIAGNOSIS_NOBODY;
  own.comm_id = ranks.states[0].view->comm->comm_id;
  ranks.diagnosis = &own;
  if (ranks_live(&ranks)) diagnose_ranks(&ranks);
  else if (!diagnose_difference(&ranks, NULL)) return;
  if (weight(&own) >= weight(diagnosis) || diagnosis->sentence[0] == '\0') *diagnosis = own;
}

/* The ranks of the largest communicator number those of smaller ones, by their devices. */
static void ranks_number(struct rank_state *states, uint32_t count) {
  uint32_t largest = 0;
  for (uint32_t i = 0; i < count; i++)
    if (states[i].view->comm->rank_count > largest) largest = states[i].view->comm->rank_count;
  for (uint32_t i = 0; i < count; i++) {
    struct rank_state *state = &states[i];
    const struct record_file *file = state->file;
    state->global = UINT32_MAX;
    for (uint32_t k = 0; k < file->view_count && state->view->comm->rank_count < largest; k++) {
      const struct record_comm *other = file->views[k].comm;
      if (other->rank_count != largest || other->device != state->view->comm->device) continue;
      state->global = other->rank;
      break;
    }
  }
}

struct rank_state *rank_states_gather(const struct record_file *files, uint32_t file_count,
                                      uint32_t *state_count) {
  uint32_t count = 0, filled = 0, kept = 0;
  for (uint32_t i = 0; i < file_count; i++) count += files[i].view_count;
  struct rank_state *states = (struct rank_state *)os_alloc((count + 1) * sizeof *states);
  if (states == NULL) return NULL;
  for (uint32_t i = 0; i < file_count; i++)
    for (uint32_t k = 0; k < files[i].view_count; k++)
      states[filled++] = (struct rank_state){.file = &files[i], .view = &files[i].views[k]};
  qsort(states, count, sizeof *states, rank_compare);
  for (uint32_t i = 0; i < count; i++) {
    const bool again = kept > 0 && rank_states_same_comm(&states[kept - 1], &states[i]) &&
                       rank_number(&states[kept - 1]) == rank_number(&states[i]);
    if (!again) states[kept++] = states[i];
  }
  for (uint32_t i = 0; i < kept; i++) rank_state_read(&states[i]);
  ranks_number(states, kept);
  *state_count = kept;
  return states;
}

static void diagnose_pace(const struct comm_ranks *ranks_of, struct diagnosis *diagnosis) {
  struct comm_ranks ranks = *ranks_of;
  ranks.diagnosis = diagnosis;
  if (diagnosis->kind == DIAGNOSIS_SLOW || !ranks_live(&ranks)) return;
  diagnosis->comm_id = ranks.states[0].view->comm->comm_id;
  diagnose_slow_link(&ranks);
}

enum pass { PASS_ASSUME, PASS_DIAGNOSE, PASS_PACE };

static void diagnose_each(struct rank_state *states, uint32_t count, enum pass pass,
                          struct diagnosis *diagnosis) {
  for (uint32_t begin = 0, end; begin < count; begin = end) {
    end = begin + 1;
    while (end < count && rank_states_same_comm(&states[begin], &states[end])) end++;
    struct comm_ranks ranks = {states + begin, end - begin, states[begin].view->comm->rank_count,
                               states,         count,       NULL};
    if (pass == PASS_ASSUME) ranks_assume(&ranks);
    else if (pass == PASS_DIAGNOSE) diagnose_one(&ranks, diagnosis);
    else diagnose_pace(&ranks, diagnosis);
  }
}

/* A cycle of waits is more specific than where each communicator hangs, and less specific than wrong calls.
 */
static void diagnose_all(struct rank_state *states, uint32_t count, struct diagnosis *diagnosis) {
  /* first for all communicators, because the diagnosis of one reads the states of the others */
  diagnose_each(states, count, PASS_ASSUME, diagnosis);
  diagnose_each(states, count, PASS_DIAGNOSE, diagnosis);
  if (diagnosis->kind <= DIAGNOSIS_SLOW || diagnose_wrong_comm(states, count, diagnosis)) return;
  if (diagnosis->kind < DIAGNOSIS_CYCLE && diagnosis->kind != DIAGNOSIS_AWAY)
    diagnose_cycle(states, count, diagnosis);
}

static bool files_diagnose(const struct record_file *files, uint32_t file_count, bool moving,
                           struct diagnosis *diagnosis) {
  uint32_t count = 0;
  memset(diagnosis, 0, sizeof *diagnosis);
  diagnosis->rank = DIAGNOSIS_NOBODY;
  struct rank_state *states = rank_states_gather(files, file_count, &count);
  if (states == NULL) return false;
  if (moving) diagnose_each(states, count, PASS_PACE, diagnosis);
  else diagnose_all(states, count, diagnosis);
  sites_append(diagnosis);
  os_free(states);
  return true;
}

bool diagnose_files(const struct record_file *files, uint32_t file_count, struct diagnosis *diagnosis) {
  if (!files_diagnose(files, file_count, false, diagnosis)) return false;
  if (diagnosis->sentence[0] == '\0')
    say(diagnosis->sentence, "nothing is wrong: every communicator in these files has ended in good order");
  return true;
}

bool diagnose_moving(const struct record_file *files, uint32_t file_count, struct diagnosis *diagnosis) {
  return files_diagnose(files, file_count, true, diagnosis);
}

const char *diagnosis_name(enum diagnosis_kind kind) {
  static const char *const names[] = {"fine",    "unknown",     "running",     "slow",         "failed",
                                      "behind",  "absent",      "not arrived", "channel",      "proxy",
                                      "counter", "not started", "away",        "not launched", "cycle",
                                      "alone",   "refused",     "died",        "mismatch"};
  return names[kind];
}
