/* diagnose_slow.c: nothing hangs, but the others wait for one rank. For each of the last collectives it
 * measures how long each rank kept the others waiting: the time between the median rank's call and its own,
 * as far as its previous call was made before. Only ranks of one host are compared, because they share a
 * clock. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/os.h"
#include "explain/comm_ranks.h"

#define CALLS_MOST 64u
#define CALLS_LEAST 8u
#define KEPT_NS_LEAST 500000.0 /* mean per call, below which no rank is called slow */

/* The times at which each rank made its last calls. */
struct pace {
  const struct comm_ranks *ranks;
  uint32_t calls;
  uint64_t *ticks;  /* by rank, then by call */
  uint64_t *sorted; /* scratch space: one call on all ranks of one host */
};

static uint64_t *ticks_of(const struct pace *pace, uint32_t index) {
  return pace->ticks + (size_t)index * CALLS_MOST;
}

/* Reads the last calls before `end`; false if the ring has lost one of them. */
static bool pace_read(const struct pace *pace, uint32_t index, uint32_t end) {
  struct record_iter iter = record_iter_begin(&pace->ranks->states[index]);
  uint32_t left = pace->calls;
  for (const union record *record = record_iter_back(&iter); record != NULL && left > 0;
       record = record_iter_back(&iter)) {
    if (record->kind != RECORD_CALL || is_message(record->call.func) || record->call.count == 0 ||
        func_is_one_sided(record->call.func))
      continue;
    if ((int32_t)(record->call.collective - end) >= 0) continue;
    ticks_of(pace, index)[--left] = record->call.ticks;
  }
  return left == 0;
}

static int ticks_compare(const void *left, const void *right) {
  const uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
  return a < b ? -1 : a > b;
}

struct middle {
  uint64_t ticks, second, last; /* when the median, the last but one and the last rank made the call */
};

/* Fills *middle for one call on the rank's host; returns the number of ranks there. */
static uint32_t middle_of(const struct pace *pace, uint32_t index, uint32_t call, struct middle *middle) {
  const char *host = pace->ranks->states[index].file->header.host;
  uint32_t count = 0;
  for (uint32_t i = 0; i < pace->ranks->count; i++)
    if (strcmp(pace->ranks->states[i].file->header.host, host) == 0)
      pace->sorted[count++] = ticks_of(pace, i)[call];
  qsort(pace->sorted, count, sizeof *pace->sorted, ticks_compare);
  middle->ticks = pace->sorted[(count - 1) / 2];
  middle->second = pace->sorted[count > 1 ? count - 2 : 0];
  middle->last = pace->sorted[count - 1];
  return count;
}

struct keeping {
  double kept, span;    /* ticks: how long the rank kept the others waiting, and the whole time measured */
  double apart, behind; /* ticks after the last but one, and after the median, summed over `last` calls */
  uint32_t last;        /* number of calls that the rank was the last to make */
};

static void keeping_add(const struct pace *pace, uint32_t index, uint32_t call, const struct middle *now,
                        const struct middle *before, struct keeping *keeping) {
  const uint64_t own = ticks_of(pace, index)[call], previous = ticks_of(pace, index)[call - 1];
  const bool ahead =
      now->ticks <= previous; /* the others make their next call without waiting for this one */
  const uint64_t free = ahead ? previous + (now->ticks - before->ticks) : now->ticks;
  if (own > free) keeping->kept += (double)(own - free);
  if (own != now->last) return;
  keeping->last += 1;
  keeping->apart += (double)(own - now->second);
  keeping->behind += (double)(own - now->ticks);
}

/* With two ranks each is the last in half of the calls by chance; with more ranks less often, so the
 * thresholds fall with the number of ranks. */
static bool keeping_is_clear(const struct keeping *keeping, uint32_t steps, uint32_t rank_count) {
  const uint32_t last = keeping->last * 20, often = rank_count == 2 ? 15 : rank_count == 3 ? 14 : 12;
  const double kept = keeping->kept / keeping->span;
  if (last >= steps * 18 && rank_count > 2) return kept >= 0.25;
  if (keeping->apart * 3 < keeping->behind) return false;
  return last >= steps * often && kept >= (rank_count == 2 ? 0.5 : 0.33);
}

static bool is_slow(const struct pace *pace, uint32_t index, struct keeping *keeping) {
  struct middle before, now;
  const uint32_t steps = pace->calls - 1;
  memset(keeping, 0, sizeof *keeping);
  if (middle_of(pace, index, 0, &before) < 2) return false;
  for (uint32_t call = 1; call < pace->calls; call++, before = now) {
    middle_of(pace, index, call, &now);
    keeping_add(pace, index, call, &now, &before, keeping);
  }
  keeping->span = (double)(ticks_of(pace, index)[steps] - ticks_of(pace, index)[0]);
  return keeping_is_clear(keeping, steps, pace->ranks->count);
}

static double ticks_ms(const struct rank_state *state, double ticks) {
  const struct record_header *header = &state->file->header;
  return (record_elapsed_ns(header, header->first_ticks + (uint64_t)ticks)) / 1e6;
}

static bool report_slow(struct comm_ranks *ranks, const struct pace *pace, uint32_t at,
                        const struct keeping *keeping) {
  const struct rank_state *state = &ranks->states[at];
  const uint32_t steps = pace->calls - 1;
  const double kept_ms = ticks_ms(state, keeping->kept), span_ms = ticks_ms(state, keeping->span);
  char place[160], name[64];
  if (kept_ms * 1e6 < KEPT_NS_LEAST * steps) return false;
  rank_place(state, place);
  blame(ranks, DIAGNOSIS_SLOW, "rank", state);
  say(ranks->diagnosis->sentence,
      "%s of comm %s is slow: it came last to %u of the last %u collectives, and kept the others of its host "
      "waiting for %.1f of %.1f ms; nothing hangs",
      place, ranks_comm_name(ranks, name), keeping->last, steps, kept_ms, span_ms);
  show(ranks->diagnosis, "on average it made its call %.2f ms after most, and %.2f ms after the last but one",
       ticks_ms(state, keeping->behind) / keeping->last, ticks_ms(state, keeping->apart) / keeping->last);
  say(ranks->diagnosis->next,
      "look at what rank %u does between its calls, and at its core's and its device's clocks and load",
      rank_number(state));
  return true;
}

static bool pace_diagnose(struct comm_ranks *ranks, struct pace *pace, uint32_t end) {
  struct keeping keeping;
  for (uint32_t i = 0; i < ranks->count; i++)
    if (!pace_read(pace, i, end)) return false;
  /* Only the rank that was last most often is a candidate. */
  uint32_t most = 0, at = 0;
  for (uint32_t i = 0; i < ranks->count; i++) {
    uint32_t last = 0;
    for (uint32_t call = 1; call < pace->calls; call++) {
      bool latest = true;
      for (uint32_t k = 0; k < ranks->count && latest; k++)
        latest = ticks_of(pace, k)[call] <= ticks_of(pace, i)[call];
      last += latest;
    }
    if (last > most) most = last, at = i;
  }
  return is_slow(pace, at, &keeping) && report_slow(ranks, pace, at, &keeping);
}

bool diagnose_slow(struct comm_ranks *ranks) {
  uint32_t end = UINT32_MAX;
  for (uint32_t i = 0; i < ranks->count; i++)
    if (ranks->states[i].collectives < end) end = ranks->states[i].collectives;
  if (ranks->count < 2 || end < CALLS_LEAST) return false;
  struct pace pace = {.ranks = ranks, .calls = end < CALLS_MOST ? end : CALLS_MOST};
  pace.ticks = (uint64_t *)os_alloc((size_t)ranks->count * CALLS_MOST * sizeof *pace.ticks);
  pace.sorted = (uint64_t *)os_alloc(ranks->count * sizeof *pace.sorted);
  const bool slow = pace.ticks != NULL && pace.sorted != NULL && pace_diagnose(ranks, &pace, end);
  os_free(pace.ticks);
  os_free(pace.sorted);
  return slow;
}
