/* loggops_stuck.c: why a schedule does not end: unmatched receives, unmatched messages, and operations that
 * wait for each other in a cycle. It examines the state when no event is left; since no order of events could
 * go further, the findings are the schedule's own. */
#include <inttypes.h>
#include <string.h>

#include "base/log.h"
#include "base/os.h"
#include "goal/loggops_inner.h"

enum { LISTED_MOST = 8, LOOKED_AT_MOST = 1000, WORDS_BYTES = 160, CYCLE_LISTED_MOST = 16 };

struct place {
  uint32_t rank, op; /* op UINT32_MAX: nothing */
};

static const struct goal_op *op_at(const struct loggops *run, struct place place) {
  return &run->goal->programs[place.rank]->ops[place.op];
}
static bool is_waiting(const struct loggops *run, struct place place) {
  const uint32_t state = *loggops_state(run, place.rank, place.op);
  return state != 0 && state < STATE_POSTED;
}
static const char *words_of(const struct loggops *run, struct place place, char *words) {
  goal_op_describe(run->goal, place.rank, place.op, words, WORDS_BYTES);
  return words;
}

static bool fits(const struct goal *goal, uint32_t from, const struct goal_op *send, uint32_t to,
                 const struct goal_op *recv) {
  return send->kind == GOAL_SEND && recv->kind == GOAL_RECV && goal_peer(goal, from, send) == to &&
         (recv->peer == GOAL_ANY || goal_peer(goal, to, recv) == from) &&
         (recv->tag == GOAL_ANY || recv->tag == send->tag);
}

/* An operation of `rank` that has not begun and would match `one`. */
static struct place partner_on(const struct loggops *run, struct place one, uint32_t rank) {
  const struct goal_program *program = run->goal->programs[rank];
  const struct goal_op *op = op_at(run, one);
  for (uint32_t i = 0; i < program->op_count; i++) {
    const struct place other = {rank, i};
    if (is_waiting(run, other) &&
        (op->kind == GOAL_RECV ? fits(run->goal, rank, &program->ops[i], one.rank, op)
                               : fits(run->goal, one.rank, op, rank, &program->ops[i])))
      return other;
  }
  const struct place none = {rank, UINT32_MAX};
  return none;
}

static struct place partner_of(const struct loggops *run, struct place one) {
  const uint32_t peer = goal_peer(run->goal, one.rank, op_at(run, one));
  if (peer != GOAL_ANY) return partner_on(run, one, peer);
  struct place other = {0, UINT32_MAX};
  for (uint32_t rank = 0; rank < run->goal->rank_count && other.op == UINT32_MAX; rank++)
    other = partner_on(run, one, rank);
  return other;
}

/* What the operation waits for before it begins: an earlier operation of its rank. */
static struct place before_of(const struct loggops *run, struct place one) {
  const struct goal_program *program = run->goal->programs[one.rank];
  struct place before = {one.rank, 0};
  for (; before.op < program->op_count; before.op++) {
    const struct goal_op *op = &program->ops[before.op];
    const bool waits = is_waiting(run, before),
               ended = *loggops_state(run, one.rank, before.op) == STATE_ENDED;
    for (uint32_t i = op->first; i < op[1].first && !ended; i++) {
      if (program->nexts[i] == one.op && (waits || i >= op->first + op->begun)) return before;
    }
  }
  before.op = UINT32_MAX;
  return before;
}

static struct place next_of(const struct loggops *run, struct place one) {
  return is_waiting(run, one) ? before_of(run, one) : partner_of(run, one);
}

/* ---- unmatched operations ---- */

/* These two return how many they found; at most LOOKED_AT_MOST are examined. */
static uint32_t lonely_recvs(const struct loggops *run, struct text *why, uint32_t *count) {
  uint32_t looked_at = 0;
  for (uint32_t rank = 0; rank < run->goal->rank_count; rank++) {
    for (uint32_t i = 0; i < run->goal->programs[rank]->op_count && looked_at < LOOKED_AT_MOST; i++) {
      const struct place place = {rank, i};
      const uint32_t state = *loggops_state(run, rank, i);
      char words[WORDS_BYTES];
      if (state < STATE_POSTED || state >= STATE_BEGUN) continue;
      looked_at += 1;
      if (partner_of(run, place).op != UINT32_MAX || ++*count > LISTED_MOST) continue;
      text_add(why, "%s: nobody sends it\n", words_of(run, place, words));
    }
  }
  return looked_at;
}

static uint32_t lonely_sends(const struct loggops *run, struct text *why, uint32_t *count) {
  uint32_t looked_at = 0;
  for (uint32_t rank = 0; rank < run->goal->rank_count; rank++) {
    for (uint32_t i = run->unexpected_first[rank]; i != 0 && looked_at < LOOKED_AT_MOST;
         i = run->unexpected[i].next) {
      const struct place place = {run->unexpected[i].source, run->unexpected[i].op};
      char words[WORDS_BYTES];
      looked_at += 1;
      if (partner_of(run, place).op != UINT32_MAX || ++*count > LISTED_MOST) continue;
      text_add(why, "%s: nobody receives it\n", words_of(run, place, words));
    }
  }
  return looked_at;
}

/* ---- cycles ---- */

/* Follows waits until an operation is reached again; returns that one, or nothing if the waits end. `seen`
 * has a bit per operation. */
static struct place cycle_find(const struct loggops *run, struct place at, uint8_t *seen) {
  while (at.op != UINT32_MAX) {
    const uint64_t bit = run->op_base[at.rank] + at.op;
    if (seen[bit / 8] >> (bit % 8) & 1) return at;
    seen[bit / 8] |= (uint8_t)(1 << (bit % 8));
    at = next_of(run, at);
  }
  return at;
}

static uint32_t cycle_describe(const struct loggops *run, struct place first, struct text *why) {
  struct place at = first;
  uint32_t count = 0;
  do {
    const struct place next = next_of(run, at);
    char one[WORDS_BYTES], two[WORDS_BYTES];
    if (++count <= CYCLE_LISTED_MOST)
      text_add(why, "%s waits for %s\n", words_of(run, at, one), words_of(run, next, two));
    at = next;
  } while (at.rank != first.rank || at.op != first.op);
  if (count > CYCLE_LISTED_MOST) text_add(why, "and so on, %" PRIu32 " operations\n", count);
  return count;
}

static struct place first_left(const struct loggops *run) {
  struct place place = {0, 0};
  for (; place.rank < run->goal->rank_count; place.rank++) {
    for (place.op = 0; place.op < run->goal->programs[place.rank]->op_count; place.op++) {
      if (*loggops_state(run, place.rank, place.op) != STATE_ENDED) return place;
    }
  }
  place.op = UINT32_MAX;
  return place;
}

ncclResult_t loggops_explain(struct loggops *run, struct text *why) {
  const uint64_t left = run->goal->op_count - run->ended_count;
  uint32_t recvs = 0, sends = 0, cycle = 0;
  const bool more_recvs = lonely_recvs(run, why, &recvs) == LOOKED_AT_MOST;
  const bool more = lonely_sends(run, why, &sends) == LOOKED_AT_MOST || more_recvs;
  uint8_t *seen = (uint8_t *)os_alloc(run->goal->op_count / 8 + 1);
  if (seen == NULL) return log_no_memory("the report of a deadlock");
  const struct place first = cycle_find(run, first_left(run), seen);
  os_free(seen);
  if (first.op != UINT32_MAX) cycle = cycle_describe(run, first, why);
  if (cycle > 0)
    return log_fail(ncclInvalidUsage,
                    "%" PRIu64 " of %" PRIu64 " operations never end: %" PRIu32
                    " wait for each other in a cycle",
                    left, run->goal->op_count, cycle);
  return log_fail(ncclInvalidUsage,
                  "%" PRIu64 " of %" PRIu64 " operations never end: %s%" PRIu32
                  " receives that nobody sends to, %" PRIu32 " messages that nobody receives",
                  left, run->goal->op_count, more ? "at least " : "", recvs, sends);
}
