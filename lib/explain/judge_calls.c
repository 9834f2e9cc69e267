/* judge_calls.c: what ranks called, and did not: other collectives or arguments, ranks that did not come, or
 * are no more. */
#include <inttypes.h>
#include <string.h>

#include "explain/crew.h"
#include "trace/record_text.h"

#include <stdlib.h>

const char *calls_differ(const struct record_call *left, const struct record_call *right) {
  const bool reduces =
      left->func == FUNC_REDUCE || left->func == FUNC_ALL_REDUCE || left->func == FUNC_REDUCE_SCATTER;
  const bool rooted = left->func == FUNC_REDUCE || left->func == FUNC_BROADCAST ||
                      left->func == FUNC_GATHER || left->func == FUNC_SCATTER;
  if (left->func != right->func) return "collective";
  if (left->dtype != right->dtype) return "type";
  if (left->count != right->count) return "count";
  if (reduces && left->op != right->op) return "operator";
  if (rooted && left->peer != right->peer) return "root";
  return NULL;
}

/* ---- different calls ---- */

const struct record_call *crew_majority(const struct crew *crew, uint32_t collective, uint32_t *agree_count,
                                        uint32_t *seen_count) {
  const struct record_call *best = NULL;
  *agree_count = *seen_count = 0;
  const struct record_call *tried[8];
  uint32_t votes[8] = {0}, tried_count = 0;
  for (uint32_t i = 0; i < crew->count; i++) {
    const struct record_call *call = seat_find(&crew->seats[i], collective);
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

/* What the rank called as this one the others call next, and what it called next they call as this one; where
 * it has called nothing behind it, or they have not, the other half is enough. Or it left one out: its calls
 * are theirs, one earlier. */
static bool seat_swaps(const struct crew *crew, const struct seat *seat, uint32_t collective,
                       const struct record_call *right) {
  uint32_t agree, seen;
  const struct record_call *own = seat_find(seat, collective), *next = seat_find(seat, collective + 1);
  const struct record_call *theirs = crew_majority(crew, collective + 1, &agree, &seen);
  if (theirs == next) theirs = NULL; /* nobody else has come so far */
  if (theirs == NULL) return same_call(next, right);
  if (!same_call(theirs, own)) return false;
  if (next == NULL || same_call(next, right)) return true;
  return same_call(next, crew_majority(crew, collective + 2, &agree, &seen));
}

/* One line for each of the calls that were made. */
static void show_calls(const struct crew *crew, uint32_t collective) {
  for (uint32_t i = 0; i < crew->count; i++) {
    const struct record_call *call = seat_find(&crew->seats[i], collective);
    struct rank_list list = {"", 0, 0, 0, 0};
    char text[160];
    bool told = call == NULL;
    for (uint32_t k = 0; k < i && !told; k++) {
      const struct record_call *before = seat_find(&crew->seats[k], collective);
      told = before != NULL && calls_differ(before, call) == NULL;
    }
    if (told) continue;
    for (uint32_t k = i; k < crew->count; k++) {
      const struct record_call *same = seat_find(&crew->seats[k], collective);
      if (same != NULL && calls_differ(same, call) == NULL) list_add(&list, seat_rank(&crew->seats[k]));
    }
    call_text(call, text);
    const char *ranks = list_end(&list);
    show(crew->verdict, "%s %s called %s", strchr(ranks, ',') || strchr(ranks, '-') ? "ranks" : "rank", ranks,
         text);
  }
}

static void tell_mismatch(struct crew *crew, const struct seat *culprit, struct rank_list *list,
                          const struct record_call *right, uint32_t agree) {
  const struct record_call *wrong = seat_find(culprit, right->collective);
  const char *what = calls_differ(wrong, right);
  const bool tie = agree == list->count;
  char text[160], own[160], name[64], why[80];
  if (seat_swaps(crew, culprit, right->collective, right)) what = "order";
  snprintf(why, sizeof why, "another %s", what);
  if (strcmp(what, "order") == 0) snprintf(why, sizeof why, "the calls come in another order");
  else if (tie) snprintf(why, sizeof why, "neither is in the majority, and they differ in the %s", what);
  call_text(right, text);
  call_text(wrong, own);
  blame(crew, VERDICT_MISMATCH, what, culprit);
  say(crew->verdict->sentence, "%s %s of comm %s called %s as operation #%u, where %u other%s called %s: %s",
      ranks_word(list), list_end(list), crew_name(crew, name), own, wrong->sequence, agree,
      agree == 1 ? "" : "s", text, why);
  show_calls(crew, right->collective);
  say(crew->verdict->next,
      "make every rank call the same collectives with the same arguments in the same "
      "order; look at what leads rank %u to this call",
      seat_rank(culprit));
}

bool judge_mismatch(struct crew *crew, uint32_t collective) {
  uint32_t agree, seen;
  const struct record_call *right = crew_majority(crew, collective, &agree, &seen);
  if (right == NULL || agree == seen) return false;
  const struct seat *culprit = NULL;
  struct rank_list list = {"", 0, 0, 0, 0};
  for (uint32_t i = 0; i < crew->count; i++) {
    const struct record_call *call = seat_find(&crew->seats[i], collective);
    if (call == NULL || same_call(call, right)) continue;
    if (culprit == NULL) culprit = &crew->seats[i];
    list_add(&list, seat_rank(&crew->seats[i]));
  }
  tell_mismatch(crew, culprit, &list, right, agree);
  return true;
}

/* ---- who is not there ---- */

static const char *refusal_text(const struct record_error *error) {
  static const char *const texts[] = {"success",           "a CUDA error",     "a system error",
                                      "an internal error", "invalid argument", "invalid usage",
                                      "a remote error"};
  return error->result < sizeof texts / sizeof texts[0] ? texts[error->result] : "another result";
}

/* `wanted`: a call of the collective by somebody. */
bool judge_refused(struct crew *crew, uint32_t collective, const struct record_call *wanted) {
  char place[160], text[160], name[64];
  for (uint32_t i = 0; i < crew->count; i++) {
    const struct seat *seat = &crew->seats[i];
    if (seat->refused == NULL || seat_has_called(seat, collective)) continue;
    blame(crew, VERDICT_REFUSED, NULL, seat);
    seat_place(seat, place);
    call_text(wanted, text);
    say(crew->verdict->sentence,
        "%s of comm %s had a call refused (%s) and so is not in operation #%u, %s, for which the others wait",
        place, crew_name(crew, name), refusal_text(seat->refused), wanted->sequence, text);
    say(crew->verdict->next,
        "check what that call returns on rank %u, and look for its sentence in the log "
        "(NCCL_DEBUG=WARN)",
        seat_rank(seat));
    return true;
  }
  return false;
}

/* What else holds the rank: an operation of another communicator on its device. NULL: nothing. */
static const struct seat *seat_elsewhere(const struct crew *crew, const struct seat *seat) {
  for (uint32_t i = 0; i < crew->all_count; i++) {
    const struct seat *other = &crew->all[i];
    if (other != seat && seats_share_device(other, seat) && seat_pends(other)) return other;
  }
  return NULL;
}

bool judge_not_arrived(struct crew *crew, uint32_t collective, const struct record_call *wanted) {
  struct rank_list missing = {"", 0, 0, 0, 0}, there = {"", 0, 0, 0, 0};
  const struct seat *culprit = NULL;
  bool held = false;
  char text[160], name[64], place[160], why[160];
  for (uint32_t i = 0; i < crew->count; i++) {
    const bool called = seat_has_called(&crew->seats[i], collective);
    list_add(called ? &there : &missing, seat_rank(&crew->seats[i]));
    if (called) continue;
    if (culprit == NULL || (held && seat_elsewhere(crew, &crew->seats[i]) == NULL)) culprit = &crew->seats[i];
    held = seat_elsewhere(crew, culprit) != NULL;
  }
  if (culprit == NULL) return false;
  const uint32_t missing_count = missing.count > 1 ? missing.count : 1, there_count = there.count;
  call_text(wanted, text);
  seat_place(culprit, place);
  absent_text(culprit, why, sizeof why);
  if (held) {
    const struct seat *elsewhere = seat_elsewhere(crew, culprit);
    snprintf(why, sizeof why, "it stands in #%" PRIu64 " of comm '%.40s'", elsewhere->done,
             elsewhere->view->comm->name);
  }
  list_end(&missing);
  blame(crew, held ? VERDICT_BEHIND : VERDICT_NOT_ARRIVED, NULL, culprit);
  if (missing_count == 1)
    say(crew->verdict->sentence,
        "%s has not called operation #%u of comm %s, %s, for which %u other%s wait%s: %s", place,
        wanted->sequence, crew_name(crew, name), text, there_count, there_count == 1 ? "" : "s",
        there_count == 1 ? "s" : "", why);
  else
    say(crew->verdict->sentence,
        "ranks %s have not called operation #%u of comm %s, %s, for which %u other%s "
        "wait%s; of rank %u: %s",
        missing.text, wanted->sequence, crew_name(crew, name), text, there_count, there_count == 1 ? "" : "s",
        there_count == 1 ? "s" : "", seat_rank(culprit), why);
  show(crew->verdict, "ranks %s called it", list_end(&there));
  say(crew->verdict->next,
      "look at what rank %u's program does now (py-spy dump, gdb -p), and why it did not "
      "come here",
      seat_rank(culprit));
  return true;
}

/* Others have failed, and so have heard of something that the file would tell. */
bool judge_absent(struct crew *crew) {
  struct rank_list list = {"", 0, 0, 0, 0};
  char name[64];
  uint32_t failed = 0;
  for (uint32_t i = 0; i < crew->count; i++) failed += crew->seats[i].view->comm->error != 0;
  if (failed == 0 || crew_missing(crew, &list) == 0) return false;
  blame(crew, VERDICT_ABSENT, NULL, NULL);
  crew->verdict->rank = (uint32_t)strtoul(list.text, NULL, 10);
  say(crew->verdict->sentence,
      "rank%s %s of comm %s left no file, and %u other%s failed: see what %s said of it",
      crew->rank_count - crew->count == 1 ? "" : "s", list.text, crew_name(crew, name), failed,
      failed == 1 ? "" : "s", failed == 1 ? "that one" : "they");
  say(crew->verdict->next, "find out what became of rank %u, and add its file if there is one",
      (uint32_t)strtoul(list.text, NULL, 10));
  return true;
}

/* Ranks of its process have not failed either. */
static bool has_died(const struct seat *seat) {
  const struct record_file *file = seat->file;
  for (uint32_t i = 0; i < file->view_count; i++)
    if (file->views[i].comm->error != 0) return false;
  return seat->view->comm->state == RECORD_OPEN && file->header.state == RECORD_OPEN;
}

/* Ranks whose reason names this one first. */
static uint32_t votes_against(const struct crew *crew, uint32_t rank) {
  uint32_t votes = 0;
  for (uint32_t i = 0; i < crew->count; i++) {
    const struct record_comm *comm = crew->seats[i].view->comm;
    if (comm->error == 0 || memchr(comm->reason, 0, sizeof comm->reason) == NULL) continue;
    const char *named = strstr(comm->reason, "rank ");
    votes += named != NULL && strtoul(named + 5, NULL, 10) == rank;
  }
  return votes;
}

/* Some ranks have failed, others have not: those died before, or have not heard of it; most are right about
 * whom. */
bool judge_died(struct crew *crew) {
  const struct seat *dead = NULL;
  uint32_t told = 0, votes = 0, gone = 0;
  char place[160], name[64];
  for (uint32_t i = 0; i < crew->count; i++) {
    const struct seat *seat = &crew->seats[i];
    told += seat->view->comm->error != 0;
    if (!has_died(seat)) continue;
    gone += 1;
    const uint32_t against = votes_against(crew, seat_rank(seat));
    if (dead != NULL && against <= votes) continue;
    dead = seat;
    votes = against;
  }
  if (dead == NULL || told == 0) return false;
  seat_place(dead, place);
  blame(crew, VERDICT_DIED, NULL, dead);
  say(crew->verdict->sentence,
      "%s of comm %s died after %" PRIu64 " operations; %u other%s noticed, and failed", place,
      crew_name(crew, name), dead->called, told, told == 1 ? "" : "s");
  if (gone > 1) show(crew->verdict, "%u ranks have not said how they ended", gone);
  say(crew->verdict->next,
      "look for what ended process %u on %.64s: its own log, dmesg (out of memory), the "
      "scheduler",
      dead->file->header.process, dead->file->header.host);
  return true;
}

/* What others have told is not the begin of it. */
static bool is_hearsay(const char *reason) { return strncmp(reason, "its kernels have failed: ", 25) == 0; }

/* That nothing moves any more is said of what else is to be explained. */
static bool is_standstill(const char *reason) { return strncmp(reason, "deadlock: ", 10) == 0; }

bool crew_has_failed(const struct crew *crew) {
  for (uint32_t i = 0; i < crew->count; i++)
    if (crew->seats[i].view->comm->error != 0 && !is_standstill(crew->seats[i].view->comm->reason))
      return true;
  return false;
}

bool judge_failed(struct crew *crew) {
  const struct record_comm *first = NULL;
  uint32_t failed = 0;
  char name[64];
  for (uint32_t i = 0; i < crew->count; i++) {
    const struct record_comm *comm = crew->seats[i].view->comm;
    if (comm->error == 0 || memchr(comm->reason, 0, sizeof comm->reason) == NULL) continue;
    if (first == NULL || (is_hearsay(first->reason) && !is_hearsay(comm->reason))) first = comm;
    failed += 1;
  }
  if (first == NULL || is_standstill(first->reason)) return false;
  blame(crew, VERDICT_FAILED, NULL, NULL);
  say(crew->verdict->sentence, "%u of %u ranks of comm %s failed; rank %u says: %.*s", failed,
      crew->rank_count, crew_name(crew, name), first->rank, (int)strcspn(first->reason, "\n"), first->reason);
  say(crew->verdict->next, "read that sentence to its end in the log of rank %u (NCCL_DEBUG=WARN)",
      first->rank);
  return true;
}

/* The communicator was never made: `topology_digest` is what ranks know of it when all have met. */
bool judge_not_met(struct crew *crew) {
  struct rank_list missing = {"", 0, 0, 0, 0};
  char name[64];
  for (uint32_t i = 0; i < crew->count; i++) {
    const struct record_comm *comm = crew->seats[i].view->comm;
    if (comm->topology_digest != 0 || comm->calls != 0) return false;
  }
  if (crew_missing(crew, &missing) == 0) return false;
  blame(crew, VERDICT_NOT_ARRIVED, "meeting", NULL);
  crew->verdict->rank = (uint32_t)strtoul(missing.text, NULL, 10);
  say(crew->verdict->sentence,
      "rank%s %s of comm %s never came to make it: %u of %u ranks still wait in ncclCommInitRank, or have "
      "called "
      "nothing since",
      crew->rank_count - crew->count == 1 ? "" : "s", missing.text, crew_name(crew, name), crew->count,
      crew->rank_count);
  say(crew->verdict->next,
      "look at what rank %u's program does now, whether it was started, and whether it was given the same "
      "unique "
      "id and number of ranks",
      crew->verdict->rank);
  return true;
}
