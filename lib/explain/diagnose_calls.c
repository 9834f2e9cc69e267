/* diagnose_calls.c: compares the calls of the ranks: mismatched collectives or arguments, refused and missing
 * calls, ranks that died, failed or never joined. */
#include <inttypes.h>
#include <string.h>

#include "explain/comm_ranks.h"
#include "trace/record_text.h"

#include <stdlib.h>

const char *calls_differ(const struct record_call *left, const struct record_call *right) {
  const bool reduces = func_reduces(left->func), rooted = func_has_root(left->func);
  if (left->func != right->func) return "collective";
  if (left->dtype != right->dtype) return "type";
  if (left->count != right->count) return "count";
  if (reduces && left->op != right->op) return "operator";
  if (rooted && left->peer != right->peer) return "root";
  return NULL;
}

/* ---- different calls ---- */

/* The call that most ranks made; NULL if no ring holds a record of this collective. */
static const struct record_call *ranks_majority(const struct comm_ranks *ranks, uint32_t collective,
                                                uint32_t *agree_count, uint32_t *seen_count) {
  const struct record_call *best = NULL;
  *agree_count = *seen_count = 0;
  const struct record_call *tried[8];
  uint32_t votes[8] = {0}, tried_count = 0;
  for (uint32_t i = 0; i < ranks->count; i++) {
    const struct record_call *call = rank_find_attempt(&ranks->states[i], collective);
    uint32_t k = 0;
    if (call == NULL) continue;
    *seen_count += 1;
    while (k < tried_count && calls_differ(tried[k], call) != NULL) k++;
    if (k == tried_count && tried_count < 8) tried[tried_count++] = call;
    if (k < tried_count) votes[k] += 1;
  }
  for (uint32_t k = 0; k < tried_count; k++) {
    if (votes[k] <= *agree_count) continue;
    *agree_count = votes[k];
    best = tried[k];
  }
  return best;
}

static bool same_call(const struct record_call *left, const struct record_call *right) {
  return left != NULL && right != NULL && calls_differ(left, right) == NULL;
}

/* The rank made two calls in the opposite order of the others: its call N is their call N + 1, and the
 * reverse. If either side has not made call N + 1 yet, the other half is enough. Also true if the rank left a
 * call out: its calls N and N + 1 are the others' N + 1 and N + 2. */
static bool rank_swaps(const struct comm_ranks *ranks, const struct rank_state *state, uint32_t collective,
                       const struct record_call *right) {
  uint32_t agree, seen;
  const struct record_call *own = rank_find_attempt(state, collective),
                           *next = rank_find_attempt(state, collective + 1);
  const struct record_call *theirs = ranks_majority(ranks, collective + 1, &agree, &seen);
  if (theirs == next) theirs = NULL; /* no other rank has made that call yet */
  if (theirs == NULL) return same_call(next, right);
  if (!same_call(theirs, own)) return false;
  if (next == NULL || same_call(next, right)) return true;
  return same_call(next, ranks_majority(ranks, collective + 2, &agree, &seen));
}

/* Adds a line of evidence for each distinct call. */
static void show_calls(const struct comm_ranks *ranks, uint32_t collective) {
  for (uint32_t i = 0; i < ranks->count; i++) {
    const struct record_call *call = rank_find_attempt(&ranks->states[i], collective);
    struct rank_list list = {"", 0, 0, 0, 0};
    char text[160];
    bool explained = call == NULL;
    for (uint32_t k = 0; k < i && !explained; k++) {
      const struct record_call *before = rank_find_attempt(&ranks->states[k], collective);
      explained = before != NULL && calls_differ(before, call) == NULL;
    }
    if (explained) continue;
    for (uint32_t k = i; k < ranks->count; k++) {
      const struct record_call *same = rank_find_attempt(&ranks->states[k], collective);
      if (same != NULL && calls_differ(same, call) == NULL) list_add(&list, rank_number(&ranks->states[k]));
    }
    call_text(call, text);
    const char *who = list_end(&list);
    show(ranks->diagnosis, "%s %s called %s", strchr(who, ',') || strchr(who, '-') ? "ranks" : "rank", who,
         text);
  }
}

static void report_mismatch(struct comm_ranks *ranks, const struct rank_state *root_cause,
                            struct rank_list *list, const struct record_call *right, uint32_t agree) {
  const struct record_call *wrong = rank_find_attempt(root_cause, right->collective);
  const char *what = calls_differ(wrong, right);
  const bool tie = agree == list->count;
  char text[160], own[160], name[64], why[80];
  if (rank_swaps(ranks, root_cause, right->collective, right)) what = "order";
  snprintf(why, sizeof why, "another %s", what);
  if (strcmp(what, "order") == 0) snprintf(why, sizeof why, "the calls come in another order");
  else if (tie) snprintf(why, sizeof why, "neither is in the majority, and they differ in the %s", what);
  call_text(right, text);
  call_text(wrong, own);
  blame(ranks, DIAGNOSIS_MISMATCH, what, root_cause);
  cite_of(ranks, wrong);
  cite_of(ranks, right);
  say(ranks->diagnosis->sentence,
      "%s %s of comm %s called %s as operation #%u, where %u other%s called %s: %s", ranks_word(list),
      list_end(list), ranks_comm_name(ranks, name), own, wrong->sequence, agree, agree == 1 ? "" : "s", text,
      why);
  show_calls(ranks, right->collective);
  say(ranks->diagnosis->next,
      "make every rank call the same collectives with the same arguments in the same "
      "order; look at what leads rank %u to this call",
      rank_number(root_cause));
}

bool diagnose_mismatch(struct comm_ranks *ranks, uint32_t collective) {
  uint32_t agree, seen;
  const struct record_call *right = ranks_majority(ranks, collective, &agree, &seen);
  if (right == NULL || agree == seen) return false;
  const struct rank_state *root_cause = NULL;
  struct rank_list list = {"", 0, 0, 0, 0};
  for (uint32_t i = 0; i < ranks->count; i++) {
    const struct record_call *call = rank_find_attempt(&ranks->states[i], collective);
    if (call == NULL || same_call(call, right)) continue;
    if (root_cause == NULL) root_cause = &ranks->states[i];
    list_add(&list, rank_number(&ranks->states[i]));
  }
  report_mismatch(ranks, root_cause, &list, right, agree);
  return true;
}

/* ---- missing ranks and calls ---- */

static const char *refusal_text(const struct record_error *error) {
  static const char *const texts[] = {"success",           "a CUDA error",     "a system error",
                                      "an internal error", "invalid argument", "invalid usage",
                                      "a remote error"};
  return error->result < sizeof texts / sizeof texts[0] ? texts[error->result] : "another result";
}

/* `wanted`: the call as some other rank made it. */
bool diagnose_refused(struct comm_ranks *ranks, uint32_t collective, const struct record_call *wanted) {
  char place[160], text[160], name[64];
  for (uint32_t i = 0; i < ranks->count; i++) {
    const struct rank_state *state = &ranks->states[i];
    if (state->refused == NULL || rank_has_called(state, collective)) continue;
    blame(ranks, DIAGNOSIS_REFUSED, NULL, state);
    cite_of(ranks, wanted);
    rank_place(state, place);
    call_text(wanted, text);
    say(ranks->diagnosis->sentence,
        "%s of comm %s had a call refused (%s) and so is not in operation #%u, %s, for which the others wait",
        place, ranks_comm_name(ranks, name), refusal_text(state->refused), wanted->sequence, text);
    say(ranks->diagnosis->next,
        "check what that call returns on rank %u, and look for its sentence in the log "
        "(NCCL_DEBUG=WARN)",
        rank_number(state));
    return true;
  }
  return false;
}

/* The state of the same device in another communicator whose operation hangs and keeps this rank from making
 * its call; NULL if there is none. */
static const struct rank_state *rank_elsewhere(const struct comm_ranks *ranks,
                                               const struct rank_state *state) {
  for (uint32_t i = 0; i < ranks->all_count; i++) {
    const struct rank_state *other = &ranks->all[i];
    if (other != state && rank_states_same_device(other, state) && rank_pends(other)) return other;
  }
  return NULL;
}

bool diagnose_not_arrived(struct comm_ranks *ranks, uint32_t collective, const struct record_call *wanted) {
  struct rank_list missing = {"", 0, 0, 0, 0}, there = {"", 0, 0, 0, 0};
  const struct rank_state *root_cause = NULL;
  bool held = false;
  char text[160], name[64], place[160], why[160], since[64];
  for (uint32_t i = 0; i < ranks->count; i++) {
    const bool called = rank_has_called(&ranks->states[i], collective);
    list_add(called ? &there : &missing, rank_number(&ranks->states[i]));
    if (called) continue;
    if (root_cause == NULL || (held && rank_elsewhere(ranks, &ranks->states[i]) == NULL))
      root_cause = &ranks->states[i];
    held = rank_elsewhere(ranks, root_cause) != NULL;
  }
  if (root_cause == NULL) return false;
  const uint32_t missing_count = missing.count > 1 ? missing.count : 1, there_count = there.count;
  call_text(wanted, text);
  waited_text(ranks, wanted, since);
  rank_place(root_cause, place);
  absent_text(root_cause, why, sizeof why);
  if (held) {
    const struct rank_state *elsewhere = rank_elsewhere(ranks, root_cause);
    snprintf(why, sizeof why, "it is stuck in #%" PRIu64 " of comm '%.40s'", elsewhere->done,
             elsewhere->view->comm->name);
  }
  list_end(&missing);
  blame(ranks, held ? DIAGNOSIS_BEHIND : DIAGNOSIS_NOT_ARRIVED, NULL, root_cause);
  if (!held) cite_last(ranks, root_cause);
  cite_of(ranks, wanted);
  if (missing_count == 1)
    say(ranks->diagnosis->sentence,
        "%s has not called operation #%u of comm %s, %s, for which %u other%s wait%s%s: %s", place,
        wanted->sequence, ranks_comm_name(ranks, name), text, there_count, there_count == 1 ? "" : "s",
        there_count == 1 ? "s" : "", since, why);
  else
    say(ranks->diagnosis->sentence,
        "ranks %s have not called operation #%u of comm %s, %s, for which %u other%s "
        "wait%s%s; of rank %u: %s",
        missing.text, wanted->sequence, ranks_comm_name(ranks, name), text, there_count,
        there_count == 1 ? "" : "s", there_count == 1 ? "s" : "", since, rank_number(root_cause), why);
  show(ranks->diagnosis, "ranks %s called it", list_end(&there));
  say(ranks->diagnosis->next,
      "look at what rank %u's program does now (py-spy dump, gdb -p), and why it did not "
      "come here",
      rank_number(root_cause));
  return true;
}

/* Only if other ranks have failed: the missing file would probably show why. */
bool diagnose_absent(struct comm_ranks *ranks) {
  struct rank_list list = {"", 0, 0, 0, 0};
  char name[64];
  uint32_t failed = 0;
  for (uint32_t i = 0; i < ranks->count; i++) failed += ranks->states[i].view->comm->error != 0;
  if (failed == 0 || ranks_missing(ranks, &list) == 0) return false;
  blame(ranks, DIAGNOSIS_ABSENT, NULL, NULL);
  ranks->diagnosis->rank = (uint32_t)strtoul(list.text, NULL, 10);
  say(ranks->diagnosis->sentence,
      "rank%s %s of comm %s left no file, and %u other%s failed: see what %s said of it",
      ranks->rank_count - ranks->count == 1 ? "" : "s", list.text, ranks_comm_name(ranks, name), failed,
      failed == 1 ? "" : "s", failed == 1 ? "that one" : "they");
  say(ranks->diagnosis->next, "find out what became of rank %u, and add its file if there is one",
      (uint32_t)strtoul(list.text, NULL, 10));
  return true;
}

/* It exited as if all were well: an error of its own says that it left. */
static bool has_left(const struct rank_state *state) {
  return state->file->header.exits != 0 && state->file->header.exit_status == 0;
}

/* Neither this rank nor another one of its process recorded an error or ended its communicator. */
static bool has_died(const struct rank_state *state) {
  const struct record_file *file = state->file;
  if (has_left(state)) return state->view->comm->state == RECORD_OPEN;
  for (uint32_t i = 0; i < file->view_count; i++)
    if (file->views[i].comm->error != 0) return false;
  return state->view->comm->state == RECORD_OPEN &&
         (file->header.state == RECORD_OPEN || file->header.exits != 0);
}

/* The number of ranks whose error message names this rank first. */
static uint32_t votes_against(const struct comm_ranks *ranks, const struct rank_state *state) {
  const uint32_t rank = rank_number(state);
  uint32_t votes = 0;
  for (uint32_t i = 0; i < ranks->count; i++) {
    const struct record_comm *comm = ranks->states[i].view->comm;
    if (comm->error == 0 || memchr(comm->reason, 0, sizeof comm->reason) == NULL) continue;
    const char *named = strstr(comm->reason, "rank ");
    votes += named != NULL && strtoul(named + 5, NULL, 10) == rank;
  }
  return votes;
}

/* Its launcher has seen it end, before it ended others. */
static bool launcher_saw(const struct rank_state *state) { return state->file->header.ended_by != 0; }

/* Some ranks have failed and others have not: those died earlier, or have not noticed the failure. The rank
 * that its launcher has seen end is taken for the one that died, else the one that most error messages
 * name. */
bool diagnose_died(struct comm_ranks *ranks) {
  const struct rank_state *dead = NULL;
  uint32_t failed = 0, votes = 0, gone = 0;
  char place[160], name[64], how[64] = "died";
  for (uint32_t i = 0; i < ranks->count; i++) {
    const struct rank_state *state = &ranks->states[i];
    failed += state->view->comm->error != 0 && !has_left(state);
    if (!has_died(state)) continue;
    gone += 1;
    const uint32_t against = votes_against(ranks, state);
    const bool seen = launcher_saw(state);
    if (against == 0 && !seen && has_left(state)) continue;
    const bool stronger = dead == NULL || (seen && !launcher_saw(dead)) ||
                          (seen == launcher_saw(dead) && against > votes);
    if (!stronger) continue;
    dead = state;
    votes = against;
  }
  if (dead == NULL || (failed == 0 && (votes == 0 || launcher_saw(dead)))) return false;
  rank_place(dead, place);
  if (rank_is_gone(dead)) gone_text(dead, how);
  blame(ranks, DIAGNOSIS_DIED, NULL, dead);
  cite_last(ranks, dead);
  say(ranks->diagnosis->sentence,
      "%s of comm %s %s after %" PRIu64 " operations%s; %u other%s noticed, and failed", place,
      ranks_comm_name(ranks, name), how, dead->called, rank_is_gone(dead) ? ", without destroying it" : "",
      failed, failed == 1 ? "" : "s");
  if (gone > 1) show(ranks->diagnosis, "%u ranks have not said how they ended", gone);
  say(ranks->diagnosis->next,
      "look for what ended process %u on %.64s: its own log, dmesg (out of memory), the "
      "scheduler",
      dead->file->header.process, dead->file->header.host);
  return true;
}

/* When the process exited, since 1970. */
static uint64_t exit_ns(const struct rank_state *state) {
  const struct record_header *header = &state->file->header;
  return header->wall_ns + (header->last_ns - header->first_ns);
}

/* "; 3 others wait for it in operation #2, AllReduce of 8 float32, sum"; "" if none waits. */
static void waiters_text(const struct comm_ranks *ranks, const struct rank_state *self, char out[320]) {
  const struct record_call *first = ranks_first_pending(ranks);
  uint32_t waiters = 0;
  char text[160];
  out[0] = '\0';
  for (uint32_t i = 0; i < ranks->count; i++)
    waiters += &ranks->states[i] != self && rank_pends(&ranks->states[i]);
  if (waiters == 0) return;
  int used = snprintf(out, 320, "; %u other%s wait%s for it", waiters, waiters == 1 ? "" : "s",
                      waiters == 1 ? "s" : "");
  if (first == NULL) return;
  call_text(first, text);
  snprintf(out + used, 320 - (size_t)used, " in operation #%u, %s", first->sequence, text);
}

static bool ranks_pend_beside(const struct comm_ranks *ranks, const struct rank_state *self) {
  for (uint32_t i = 0; i < ranks->count; i++)
    if (&ranks->states[i] != self && rank_pends(&ranks->states[i])) return true;
  return false;
}

/* Also with status 0 if its operations had not ended. */
static bool exit_counts(const struct comm_ranks *ranks, const struct rank_state *state) {
  const struct record_header *header = &state->file->header;
  if (!has_died(state)) return false;
  if (header->exits == 0) return header->ended_by != 0;
  return header->exit_status != 0 || (rank_pends(state) && ranks_pend_beside(ranks, state));
}

static void exit_blame(struct comm_ranks *ranks, const struct rank_state *first) {
  char place[160], name[64], how[64], waiters[320];
  const bool exited = first->file->header.exits != 0;
  rank_place(first, place);
  gone_text(first, how);
  waiters_text(ranks, first, waiters);
  blame(ranks, DIAGNOSIS_DIED, exited ? "exit" : "signal", first);
  cite_last(ranks, first);
  cite_of(ranks, ranks_first_pending(ranks));
  say(ranks->diagnosis->sentence, "%s %s while comm %s was open, after %" PRIu64 " operations%s", place, how,
      ranks_comm_name(ranks, name), first->called, waiters);
  say(ranks->diagnosis->next,
      exited ? "look at the end of rank %u's log for what made it exit: an exception, a failed check"
             : "look for what ended rank %u: its own log, a core file, dmesg (out of memory)",
      rank_number(first));
}

/* Of several, the one that ended first: the others may have followed it. */
bool diagnose_exited(struct comm_ranks *ranks) {
  const struct rank_state *first = NULL;
  for (uint32_t i = 0; i < ranks->count; i++) {
    const struct rank_state *state = &ranks->states[i];
    if (exit_counts(ranks, state) && (first == NULL || exit_ns(state) < exit_ns(first))) first = state;
  }
  if (first == NULL) return false;
  exit_blame(ranks, first);
  return true;
}

/* The process was ended, nothing tells how, and its communicator had not failed. */
static bool was_ended(const struct rank_state *state) {
  return rank_is_gone(state) && !has_left(state) && state->view->comm->error == 0 &&
         state->file->header.state != RECORD_ENDED;
}

/* A process that leaves its communicator open exits with another status in the end, that of a leak, and
 * launchers then end the others. If more left than were ended, those that were ended are the exception. */
bool diagnose_left(struct comm_ranks *ranks) {
  const struct rank_state *first = NULL;
  struct rank_list list = {"", 0, 0, 0, 0};
  uint32_t left = 0, ended = 0;
  for (uint32_t i = 0; i < ranks->count; i++) {
    const struct rank_state *state = &ranks->states[i];
    if (was_ended(state)) {
      list_add(&list, rank_number(state));
      ended += 1;
    } else if (rank_pends(state)) {
      return false;
    } else if (has_left(state) && has_died(state) && state->view->comm->error == 0) {
      left += 1;
      if (first == NULL || exit_ns(state) < exit_ns(first)) first = state;
    }
  }
  if (left == 0 || left > ended) return false;
  exit_blame(ranks, first);
  if (ranks_first_pending(ranks) == NULL) ranks->diagnosis->detail = "left";
  show(ranks->diagnosis, "ended, too, as launchers do when a rank fails: rank%s %s", ended == 1 ? "" : "s",
       list_end(&list));
  say(ranks->diagnosis->next,
      "let rank %u destroy its communicators before it exits, or see why it exited early",
      rank_number(first));
  return true;
}

/* What the rank did when its process ended. */
static void show_gone(const struct comm_ranks *ranks, const struct rank_state *state) {
  char place[160], how[64], text[160] = "";
  const struct record_call *last = rank_find_call(state, (uint32_t)(state->called - 1));
  rank_place(state, place);
  gone_text(state, how);
  if (last != NULL) call_text(last, text);
  if (state->called == 0) show(ranks->diagnosis, "%s %s before its first call", place, how);
  else
    show(ranks->diagnosis, "%s %s; its last call was #%" PRIu64 "%s%s, which has %sended", place, how,
         state->called - 1, last != NULL ? ", " : "", text, rank_pends(state) ? "not " : "");
}

bool diagnose_gone(struct comm_ranks *ranks) {
  const struct rank_state *only = NULL;
  struct rank_list list = {"", 0, 0, 0, 0};
  uint32_t gone = 0, killed = 0;
  char name[64], place[160] = "", waiters[320] = "";
  for (uint32_t i = 0; i < ranks->count; i++) {
    const struct rank_state *state = &ranks->states[i];
    if (!rank_is_gone(state) || state->view->comm->error != 0) continue;
    gone += 1;
    show_gone(ranks, state);
    if (state->file->header.exits != 0 && state->file->header.exit_status == 0) continue;
    if (state->file->header.exits == 0 && state->file->header.state == RECORD_ENDED)
      continue; /* an old file */
    list_add(&list, rank_number(state));
    only = killed++ == 0 ? state : NULL;
  }
  if (killed == 0) return false;
  list_end(&list);
  if (only != NULL) rank_place(only, place), waiters_text(ranks, only, waiters);
  blame(ranks, DIAGNOSIS_DIED, "killed", only);
  if (only != NULL) cite_last(ranks, only), cite_of(ranks, ranks_first_pending(ranks));
  say(ranks->diagnosis->sentence,
      "%s%s of comm %s %s killed, or crashed, while it was open%s; no rank's call explains it",
      only != NULL ? place : "the processes of ranks ", only != NULL ? "" : list.text,
      ranks_comm_name(ranks, name), only != NULL ? "was" : "were", waiters);
  say(ranks->diagnosis->next,
      "look for what ended them: the scheduler, a time limit, dmesg (out of memory); their own logs");
  return true;
}

/* A failure that another rank reported is not the first one. */
static bool is_hearsay(const char *reason) { return strncmp(reason, "its kernels have failed: ", 25) == 0; }

/* "deadlock" only states the hang; another diagnosis explains it. */
static bool is_hang(const char *reason) { return strncmp(reason, "deadlock: ", 10) == 0; }

bool ranks_are_deadlocked(const struct comm_ranks *ranks) {
  for (uint32_t i = 0; i < ranks->count; i++)
    if (ranks->states[i].view->comm->error != 0 && is_hang(ranks->states[i].view->comm->reason)) return true;
  return false;
}

bool ranks_have_failed(const struct comm_ranks *ranks) {
  for (uint32_t i = 0; i < ranks->count; i++)
    if (ranks->states[i].view->comm->error != 0 && !is_hang(ranks->states[i].view->comm->reason)) return true;
  return false;
}

bool diagnose_failed(struct comm_ranks *ranks) {
  const struct record_comm *first = NULL;
  uint32_t failed = 0;
  char name[64];
  for (uint32_t i = 0; i < ranks->count; i++) {
    const struct record_comm *comm = ranks->states[i].view->comm;
    if (comm->error == 0 || memchr(comm->reason, 0, sizeof comm->reason) == NULL) continue;
    if (first == NULL || (is_hearsay(first->reason) && !is_hearsay(comm->reason))) first = comm;
    failed += 1;
  }
  if (first == NULL || is_hang(first->reason)) return false;
  blame(ranks, DIAGNOSIS_FAILED, NULL, NULL);
  say(ranks->diagnosis->sentence, "%u of %u ranks of comm %s failed; rank %u says: %.*s", failed,
      ranks->rank_count, ranks_comm_name(ranks, name), first->rank, (int)strcspn(first->reason, "\n"),
      first->reason);
  say(ranks->diagnosis->next, "read that sentence to its end in the log of rank %u (NCCL_DEBUG=WARN)",
      first->rank);
  return true;
}

/* The communicator was never made: `topology_digest` is set once all ranks have joined. */
bool diagnose_not_met(struct comm_ranks *ranks) {
  struct rank_list missing = {"", 0, 0, 0, 0};
  char name[64];
  for (uint32_t i = 0; i < ranks->count; i++) {
    const struct record_comm *comm = ranks->states[i].view->comm;
    if (comm->topology_digest != 0 || comm->calls != 0) return false;
  }
  if (ranks_missing(ranks, &missing) == 0) return false;
  blame(ranks, DIAGNOSIS_NOT_ARRIVED, "rendezvous", NULL);
  ranks->diagnosis->rank = (uint32_t)strtoul(missing.text, NULL, 10);
  say(ranks->diagnosis->sentence,
      "rank%s %s of comm %s never came to make it: %u of %u ranks still wait in ncclCommInitRank, or have "
      "called nothing since",
      ranks->rank_count - ranks->count == 1 ? "" : "s", missing.text, ranks_comm_name(ranks, name),
      ranks->count, ranks->rank_count);
  say(ranks->diagnosis->next,
      "look at what rank %u's program does now, whether it was started, and whether it was given the same "
      "unique id and number of ranks",
      ranks->diagnosis->rank);
  return true;
}
