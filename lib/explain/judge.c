/* judge.c: the communicators of all files, one by one: the first operation that did not end everywhere, what
 * each rank did about it, and whom that leaves. */
#include "explain/judge.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/os.h"
#include "explain/circle.h"
#include "explain/crew.h"
#include "explain/stray.h"

static void show_missing(const struct crew *crew) {
  struct rank_list list = {"", 0, 0, 0, 0};
  char name[64];
  const uint32_t missing = crew_missing(crew, &list);
  if (missing == 0) return;
  show(crew->verdict, "of comm %s %u of %u ranks left no file: %s%s", crew_name(crew, name),
       crew->rank_count - crew->count, crew->rank_count, list.text, missing == 64 ? ", ..." : "");
}

/* ---- a communicator's verdict ---- */

static bool crew_pends(const struct crew *crew) {
  for (uint32_t i = 0; i < crew->count; i++)
    if (seat_pends(&crew->seats[i])) return true;
  return false;
}

static uint32_t crew_last(const struct crew *crew) {
  uint32_t last = 0;
  for (uint32_t i = 0; i < crew->count; i++)
    if (crew->seats[i].collectives > last) last = crew->seats[i].collectives;
  return last;
}

/* Collectives that have ended are looked at too: of these so many. */
#define PAST_MOST 16u

#define COMPARED_MOST (UINT32_C(1) << 20) /* collectives; a ring that holds more is a stranger's */

/* The earliest collective of [begin, end) that ranks called differently; `end`: none. `calls`: by number from
 * begin on, what somebody called, for all others to be compared with. */
static uint32_t crew_difference(const struct crew *crew, const struct record_call **calls, uint32_t begin,
                                uint32_t end) {
  uint32_t found = end;
  for (uint32_t i = 0; i < crew->count; i++) {
    struct walk walk = walk_begin(&crew->seats[i]);
    uint32_t above = end; /* the last record of a number counts: those before it were no operation */
    for (const struct record_call *call = walk_collective(&walk); call != NULL;
         call = walk_collective(&walk)) {
      if (call->collective < begin) break;
      if (call->collective >= above) continue;
      above = call->collective;
      const struct record_call **place = &calls[above - begin];
      if (*place == NULL) *place = call;
      else if (above < found && calls_differ(*place, call) != NULL) found = above;
    }
  }
  return found;
}

/* Differences are looked for in all that has not ended, and in some that has: its result is wrong. */
static bool judge_difference(struct crew *crew, const struct record_call *first) {
  const uint32_t end = crew_last(crew), live = first != NULL ? first->collective : end;
  const uint32_t least = end < COMPARED_MOST ? 0 : end - COMPARED_MOST;
  const uint32_t begin = live > least + PAST_MOST ? live - PAST_MOST : least;
  if (begin >= end) return false;
  const struct record_call **calls = (const struct record_call **)os_alloc((end - begin) * sizeof *calls);
  const uint32_t found = calls != NULL ? crew_difference(crew, calls, begin, end) : end;
  os_free(calls);
  return found != end && judge_mismatch(crew, found);
}

static bool judge_calls(struct crew *crew, const struct record_call *first) {
  return judge_refused(crew, first->collective, first) || judge_died(crew) || judge_absent(crew) ||
         judge_messages(crew, false) || judge_not_arrived(crew, first->collective, first);
}

static void judge_rest(struct crew *crew) {
  struct verdict *verdict = crew->verdict;
  char name[64];
  bool knows = true, waits = false;
  for (uint32_t i = 0; i < crew->count; i++) {
    knows = knows && seat_knows_ends(&crew->seats[i]);
    waits = waits || seat_tells_waits(&crew->seats[i]);
  }
  crew_name(crew, name);
  if (!knows) {
    verdict->kind = VERDICT_UNKNOWN;
    say(verdict->sentence,
        "all ranks of comm %s that left a file called the same; their device does not tell what "
        "of it has ended",
        name);
    say(verdict->next, "compare with the program's own log");
  } else if (crew_pends(crew)) {
    verdict->kind = VERDICT_RUNNING;
    say(verdict->sentence, "operations of comm %s were under way when these files were taken, and %s", name,
        waits ? "no rank waited for long" : "they do not tell whether a rank waits");
    say(verdict->next, "take the files again; if nothing has moved between both, keep them for a report");
  } else {
    verdict->kind = VERDICT_FINE;
    say(verdict->sentence, "nothing is wrong in comm %s: all that its %u rank%s called has ended", name,
        crew->count, crew->count == 1 ? "" : "s");
    say(verdict->next,
        "if the job stands, it stands outside of collective communication: look at its stacks");
  }
}

/* What ranks that broke have said, where it was not the same. */
static void show_reasons(const struct crew *crew) {
  const char *said[4] = {"", "", "", ""};
  uint32_t count = 0;
  for (uint32_t i = 0; i < crew->count && count < 4; i++) {
    const struct record_comm *comm = crew->seats[i].view->comm;
    if (memchr(comm->reason, 0, sizeof comm->reason) == NULL) continue; /* no recorder wrote it */
    uint32_t k = 0;
    if (comm->error == 0 || comm->reason[0] == '\0') continue;
    while (k < count && strncmp(said[k], comm->reason, sizeof comm->reason) != 0) k++;
    if (k < count) continue;
    said[count++] = comm->reason;
    show(crew->verdict, "rank %u failed: %.*s", comm->rank, (int)strcspn(comm->reason, "\n"), comm->reason);
  }
}

static void judge_crew(struct crew *crew) {
  const struct record_call *first = crew_first(crew);
  show_missing(crew);
  show_reasons(crew);
  show_graphs(crew);
  if (judge_not_met(crew) || judge_difference(crew, first)) return;
  if (judge_graph(crew) || (first != NULL && judge_calls(crew, first))) return;
  if (judge_died(crew) || judge_absent(crew) || judge_messages(crew, true)) return;
  if (judge_failed(crew) || judge_not_launched(crew) || judge_not_started(crew)) return;
  if (judge_slow_link(crew) || judge_links(crew) || judge_channel(crew) || judge_frozen(crew)) return;
  if (judge_slow(crew)) return;
  judge_rest(crew);
}

/* ---- all communicators ---- */

static int seat_compare(const void *left, const void *right) {
  const struct record_comm *a = ((const struct seat *)left)->view->comm;
  const struct record_comm *b = ((const struct seat *)right)->view->comm;
  if (a->comm_id != b->comm_id) return a->comm_id < b->comm_id ? -1 : 1;
  if (a->rank_count != b->rank_count) return a->rank_count < b->rank_count ? -1 : 1;
  if (a->rank != b->rank) return a->rank < b->rank ? -1 : 1;
  /* one that lives before one that has ended, a later one before an earlier one */
  if ((a->state == RECORD_OPEN) != (b->state == RECORD_OPEN)) return a->state == RECORD_OPEN ? -1 : 1;
  return a->born > b->born ? -1 : a->born < b->born;
}

static bool crew_lives(const struct crew *crew) {
  for (uint32_t i = 0; i < crew->count; i++)
    if (crew->seats[i].view->comm->state == RECORD_OPEN || crew->seats[i].view->comm->error != 0) return true;
  return crew_pends(crew);
}

/* Of ranks whose device does not tell what has ended: all that every rank has called and launched, it is
 * taken for ended. */
static void crew_assume(struct crew *crew) {
  uint32_t common = UINT32_MAX;
  for (uint32_t i = 0; i < crew->count; i++)
    if (crew->seats[i].collectives < common) common = crew->seats[i].collectives;
  for (uint32_t i = 0; i < crew->count; i++) {
    struct seat *seat = &crew->seats[i];
    if (seat_knows_ends(seat)) continue;
    seat->pending_messages = 0;
    seat->first = seat_has_called(seat, common) ? seat_find(seat, common) : NULL;
    if (seat->first == NULL && seat->launched < seat->called && seat->collectives > 0)
      seat->first = seat_find(seat, seat->collectives - 1);
    seat->done = seat->first != NULL ? widen(seat->view->comm->calls, seat->first->sequence) : seat->called;
  }
}

/* The seats of one communicator; the most telling verdict stays. */
static void judge_one(const struct crew *crew_of, struct verdict *verdict) {
  struct crew crew = *crew_of;
  struct verdict own;
  memset(&own, 0, sizeof own);
  own.rank = VERDICT_NOBODY;
  own.comm_id = crew.seats[0].view->comm->comm_id;
  crew.verdict = &own;
  if (!crew_lives(&crew)) return;
  judge_crew(&crew);
  if (own.kind >= verdict->kind || verdict->sentence[0] == '\0') *verdict = own;
}

struct seat *seats_gather(const struct record_file *files, uint32_t file_count, uint32_t *seat_count) {
  uint32_t count = 0, filled = 0, kept = 0;
  for (uint32_t i = 0; i < file_count; i++) count += files[i].view_count;
  struct seat *seats = (struct seat *)os_alloc((count + 1) * sizeof *seats);
  if (seats == NULL) return NULL;
  for (uint32_t i = 0; i < file_count; i++)
    for (uint32_t k = 0; k < files[i].view_count; k++)
      seats[filled++] = (struct seat){.file = &files[i], .view = &files[i].views[k]};
  qsort(seats, count, sizeof *seats, seat_compare);
  for (uint32_t i = 0; i < count; i++) {
    const bool again = kept > 0 && seats_meet(&seats[kept - 1], &seats[i]) &&
                       seat_rank(&seats[kept - 1]) == seat_rank(&seats[i]);
    if (!again) seats[kept++] = seats[i];
  }
  for (uint32_t i = 0; i < kept; i++) seat_read(&seats[i]);
  *seat_count = kept;
  return seats;
}

static void judge_pace(const struct crew *crew_of, struct verdict *verdict) {
  struct crew crew = *crew_of;
  crew.verdict = verdict;
  if (verdict->kind == VERDICT_SLOW || !crew_lives(&crew)) return;
  verdict->comm_id = crew.seats[0].view->comm->comm_id;
  judge_slow_link(&crew);
}

enum pass { PASS_ASSUME, PASS_JUDGE, PASS_PACE };

static void judge_each(struct seat *seats, uint32_t count, enum pass pass, struct verdict *verdict) {
  for (uint32_t begin = 0, end; begin < count; begin = end) {
    end = begin + 1;
    while (end < count && seats_meet(&seats[begin], &seats[end])) end++;
    struct crew crew = {seats + begin, end - begin, seats[begin].view->comm->rank_count, seats, count, NULL};
    if (pass == PASS_ASSUME) crew_assume(&crew);
    else if (pass == PASS_JUDGE) judge_one(&crew, verdict);
    else judge_pace(&crew, verdict);
  }
}

/* Waits in a circle tell more than where each communicator stands, but not what is wrong with calls. */
static void judge_all(struct seat *seats, uint32_t count, struct verdict *verdict) {
  judge_each(seats, count, PASS_ASSUME, verdict); /* of one communicator: that counts for the others */
  judge_each(seats, count, PASS_JUDGE, verdict);
  if (verdict->kind <= VERDICT_SLOW || judge_stray(seats, count, verdict)) return;
  if (verdict->kind < VERDICT_CIRCLE) judge_circle(seats, count, verdict);
}

static bool files_judge(const struct record_file *files, uint32_t file_count, bool moving,
                        struct verdict *verdict) {
  uint32_t count = 0;
  memset(verdict, 0, sizeof *verdict);
  verdict->rank = VERDICT_NOBODY;
  struct seat *seats = seats_gather(files, file_count, &count);
  if (seats == NULL) return false;
  if (moving) judge_each(seats, count, PASS_PACE, verdict);
  else judge_all(seats, count, verdict);
  os_free(seats);
  return true;
}

bool judge_files(const struct record_file *files, uint32_t file_count, struct verdict *verdict) {
  if (!files_judge(files, file_count, false, verdict)) return false;
  if (verdict->sentence[0] == '\0')
    say(verdict->sentence, "nothing is wrong: every communicator in these files has ended in good order");
  return true;
}

bool judge_moving(const struct record_file *files, uint32_t file_count, struct verdict *verdict) {
  return files_judge(files, file_count, true, verdict);
}

const char *verdict_name(enum verdict_kind kind) {
  static const char *const names[] = {"fine",    "unknown",     "running",      "slow",    "failed",
                                      "behind",  "absent",      "not arrived",  "channel", "proxy",
                                      "counter", "not started", "not launched", "circle",  "alone",
                                      "refused", "died",        "mismatch"};
  return names[kind];
}
