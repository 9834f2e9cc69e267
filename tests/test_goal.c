/* test_goal.c: compares the LogGOPS engine with a slow one that repeatedly scans all events, on random
 * schedules; and tests out-of-memory at each place. test_goal.sh tests the command, its files and its
 * messages. */
/* sanitizers: address */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/log.h"
#include "base/os.h"
#include "goal/loggops.h"

enum { RANKS = 4, ROUNDS_MOST = 40, EVENTS_MOST = 4096, SCHEDULES = 400 };

static uint32_t draw(uint64_t *seed, uint32_t below) { return (uint32_t)(hash_draw(seed) % below); }

/* ---- the slow engine: a list of events; the earliest is tried, and postponed if it cannot run ---- */

struct slow_event {
  uint64_t time_ns, number;
  uint32_t rank, op;
  bool message, done;
};

struct slow {
  const struct goal *goal;
  struct loggops_costs costs;
  struct slow_event events[EVENTS_MOST];
  uint32_t count;
  uint64_t cpu_ns[RANKS], send_ns[RANKS], recv_ns[RANKS];
  uint32_t waits[RANKS][2 * ROUNDS_MOST];
  uint32_t posted[RANKS][2 * ROUNDS_MOST], posted_count[RANKS]; /* receives without a message */
  struct slow_event unexpected[RANKS][2 * ROUNDS_MOST];         /* messages without a receive */
  uint32_t unexpected_count[RANKS];
};

static uint64_t latest(uint64_t one, uint64_t two) { return one > two ? one : two; }
static const struct goal_op *slow_op(const struct slow *slow, uint32_t rank, uint32_t op) {
  return &slow->goal->programs[rank]->ops[op];
}

static void slow_add(struct slow *slow, uint64_t time_ns, uint32_t rank, uint32_t op, bool message) {
  assert_true(slow->count < EVENTS_MOST);
  const struct slow_event event = {time_ns, slow->count, rank, op, message, false};
  slow->events[slow->count++] = event;
}

/* The operations that depended only on this one: sends, then receives, then computations. */
static void slow_free(struct slow *slow, uint32_t rank, uint32_t op, bool begun, bool ended) {
  const struct goal_op *row = slow_op(slow, rank, op);
  uint32_t freed[2 * ROUNDS_MOST], count = 0;
  for (uint32_t i = row->first; i < row[1].first; i++) {
    const bool begin = i < row->first + row->begun;
    const uint32_t next = slow->goal->programs[rank]->nexts[i];
    if ((begin ? begun : ended) && --slow->waits[rank][next] == 0) freed[count++] = next;
  }
  for (uint8_t kind = GOAL_SEND; kind <= GOAL_CALC; kind++) {
    for (uint32_t i = 0; i < count; i++) {
      if (slow_op(slow, rank, freed[i])->kind != kind) continue;
      const uint64_t nic_ns = kind == GOAL_SEND ? slow->send_ns[rank] : 0;
      slow_add(slow, latest(slow->cpu_ns[rank], nic_ns), rank, freed[i], false);
    }
  }
}

/* A send larger than S ends; successors of lower ranks come first. */
static void slow_meet(struct slow *slow, uint32_t source, uint32_t send, uint32_t rank, uint32_t recv,
                      uint64_t now_ns) {
  const bool rendezvous = slow_op(slow, source, send)->size > slow->costs.eager_bytes;
  if (rendezvous) slow->cpu_ns[source] = latest(slow->cpu_ns[source], now_ns);
  if (rendezvous && source < rank) slow_free(slow, source, send, false, true);
  slow_free(slow, rank, recv, false, true);
  if (rendezvous && source > rank) slow_free(slow, source, send, false, true);
}

static bool slow_fits(const struct slow *slow, uint32_t source, uint32_t send, uint32_t rank, uint32_t recv) {
  const struct goal_op *one = slow_op(slow, source, send), *two = slow_op(slow, rank, recv);
  return (two->peer == GOAL_ANY || goal_peer(slow->goal, rank, two) == source) &&
         (two->tag == GOAL_ANY || two->tag == one->tag);
}

static void slow_send(struct slow *slow, const struct slow_event *event, const struct goal_op *op) {
  const struct loggops_costs *costs = &slow->costs;
  const uint32_t rank = event->rank;
  slow->cpu_ns[rank] = event->time_ns + costs->overhead_ns + (op->size - 1) * costs->overhead_byte_ns;
  slow->send_ns[rank] = event->time_ns + costs->gap_ns + (op->size - 1) * costs->gap_byte_ns;
  slow_add(slow, event->time_ns + costs->overhead_ns + costs->latency_ns, rank, event->op, true);
  slow_free(slow, rank, event->op, true, op->size <= costs->eager_bytes);
}

static void slow_recv(struct slow *slow, const struct slow_event *event) {
  const uint32_t rank = event->rank;
  uint32_t at = 0;
  while (at < slow->unexpected_count[rank] &&
         !slow_fits(slow, slow->unexpected[rank][at].rank, slow->unexpected[rank][at].op, rank, event->op))
    at++;
  if (at == slow->unexpected_count[rank]) {
    slow->posted[rank][slow->posted_count[rank]++] = event->op;
    return;
  }
  const struct slow_event unexpected = slow->unexpected[rank][at];
  slow->unexpected_count[rank] -= 1;
  memmove(&slow->unexpected[rank][at], &slow->unexpected[rank][at + 1],
          (slow->unexpected_count[rank] - at) * sizeof unexpected);
  slow_meet(slow, unexpected.rank, unexpected.op, rank, event->op, event->time_ns);
}

static void slow_message(struct slow *slow, const struct slow_event *event, uint32_t rank,
                         const struct goal_op *op) {
  const struct loggops_costs *costs = &slow->costs;
  const uint64_t byte_ns = latest(costs->overhead_byte_ns, costs->gap_byte_ns);
  slow->cpu_ns[rank] = event->time_ns + costs->overhead_ns + (op->size - 1) * byte_ns;
  slow->recv_ns[rank] = event->time_ns + costs->gap_ns + (op->size - 1) * costs->gap_byte_ns;
  uint32_t at = 0;
  while (at < slow->posted_count[rank] &&
         !slow_fits(slow, event->rank, event->op, rank, slow->posted[rank][at]))
    at++;
  if (at == slow->posted_count[rank]) {
    slow->unexpected[rank][slow->unexpected_count[rank]++] = *event;
    return;
  }
  const uint32_t recv = slow->posted[rank][at];
  slow->posted_count[rank] -= 1;
  memmove(&slow->posted[rank][at], &slow->posted[rank][at + 1],
          (slow->posted_count[rank] - at) * sizeof slow->posted[rank][0]);
  slow_meet(slow, event->rank, event->op, rank, recv, event->time_ns);
}

/* False if it must wait: the event is then postponed. */
static bool slow_try(struct slow *slow, struct slow_event *event) {
  const struct goal_op *op = slow_op(slow, event->rank, event->op);
  const uint32_t rank = (event->rank + (event->message ? op->peer : 0)) % slow->goal->rank_count;
  uint64_t free_ns = slow->cpu_ns[rank];
  if (event->message) free_ns = latest(free_ns, slow->recv_ns[rank]);
  else if (op->kind == GOAL_SEND) free_ns = latest(free_ns, slow->send_ns[rank]);
  else if (op->kind == GOAL_RECV) free_ns = 0;
  if (free_ns > event->time_ns) {
    event->time_ns = free_ns;
    return false;
  }
  event->done = true;
  const struct slow_event now = *event; /* the list grows */
  if (now.message) {
    slow_message(slow, &now, rank, op);
  } else if (op->kind == GOAL_SEND) {
    slow_send(slow, &now, op);
  } else {
    if (op->kind == GOAL_CALC) slow->cpu_ns[rank] = now.time_ns + op->size;
    else slow_recv(slow, &now);
    slow_free(slow, rank, now.op, op->kind == GOAL_CALC, op->kind == GOAL_CALC);
  }
  return true;
}

static void slow_run(struct slow *slow) {
  for (uint32_t rank = 0; rank < slow->goal->rank_count; rank++) {
    const struct goal_program *program = slow->goal->programs[rank];
    for (uint32_t i = 0; i < program->op_count; i++) slow->waits[rank][i] = program->ops[i].waits;
    for (uint8_t kind = GOAL_SEND; kind <= GOAL_CALC; kind++) {
      for (uint32_t i = 0; i < program->op_count; i++) {
        if (program->ops[i].waits == 0 && program->ops[i].kind == kind) slow_add(slow, 0, rank, i, false);
      }
    }
  }
  for (;;) {
    struct slow_event *first = NULL;
    for (uint32_t i = 0; i < slow->count; i++) {
      struct slow_event *event = &slow->events[i];
      if (!event->done && (first == NULL || event->time_ns < first->time_ns)) first = event;
    }
    if (first == NULL) return;
    slow_try(slow, first);
  }
}

/* ---- random schedules ---- */

/* Messages and computations in rounds; an operation depends only on earlier ones of its rank, so the schedule
 * ends. Receives match by tag, or the next message of their sender if there are few tags; they never depend
 * on the start of an operation. */
static void schedule_draw(uint64_t *seed, struct goal *goal) {
  struct goal_build build;
  struct goal_op rows[RANKS][2 * ROUNDS_MOST];
  uint32_t counts[RANKS] = {0};
  const uint32_t ranks = 1 + draw(seed, RANKS), rounds = 1 + draw(seed, ROUNDS_MOST);
  const bool few_tags = draw(seed, 3) == 0;
  memset(rows, 0, sizeof rows);
  assert_int_equal(goal_build_open(&build, goal, ranks), ncclSuccess);
  for (uint32_t round = 0; round < rounds; round++) {
    const uint32_t one = draw(seed, ranks), two = draw(seed, ranks);
    struct goal_op *op = &rows[one][counts[one]++], *recv;
    op->kind = one == two ? GOAL_CALC : GOAL_SEND;
    op->size = one == two ? draw(seed, 9000) : few_tags ? 40 : 1 + draw(seed, 400);
    if (one == two) continue;
    op->tag = few_tags ? 0 : round;
    op->peer = goal_distance(goal, one, two);
    recv = &rows[two][counts[two]++];
    *recv = *op;
    recv->kind = GOAL_RECV;
    recv->peer = goal_distance(goal, two, one);
    if (few_tags && draw(seed, 4) == 0) recv->tag = GOAL_ANY;
  }
  for (uint32_t rank = 0; rank < ranks; rank++) {
    for (uint32_t i = 0; i < counts[rank]; i++) {
      assert_int_equal(goal_build_op(&build, &rows[rank][i]), i);
      for (uint32_t wait = draw(seed, 3); i > 0 && wait > 0; wait--) {
        const uint32_t before = i - 1 - draw(seed, i < 5 ? i : 5);
        const bool begin = rows[rank][before].kind != GOAL_RECV && draw(seed, 4) == 0;
        assert_int_equal(goal_build_edge(&build, before, i, begin), ncclSuccess);
      }
    }
    assert_int_equal(goal_build_rank(&build, rank, 0), ncclSuccess);
  }
  goal_build_close(&build);
}

static void engine_agrees_with_the_slow_one(void **state) {
  (void)state;
  struct slow *slow = (struct slow *)malloc(sizeof *slow);
  uint32_t compared = 0;
  for (uint64_t number = 0; number < SCHEDULES; number++) {
    uint64_t seed = number;
    struct goal goal;
    struct loggops_result result;
    struct text why = {NULL, 0, 0, false};
    const struct loggops_costs costs = {draw(&seed, 3) * 700,  100 + draw(&seed, 900),
                                        draw(&seed, 2) * 1100, draw(&seed, 3),
                                        draw(&seed, 4),        draw(&seed, 2) == 0 ? 100 : 65535};
    schedule_draw(&seed, &goal);
    memset(slow, 0, sizeof *slow);
    slow->goal = &goal;
    slow->costs = costs;
    slow_run(slow);
    const ncclResult_t code = loggops_run(&goal, &costs, NULL, &result, &why);
    uint32_t left = 0;
    for (uint32_t rank = 0; rank < goal.rank_count; rank++)
      left += slow->posted_count[rank] + slow->unexpected_count[rank];
    if ((code == ncclSuccess) != (left == 0))
      fail_msg("schedule %d: %u are left with the slow one: %s", (int)number, left, log_own_error());
    for (uint32_t rank = 0; rank < goal.rank_count && left == 0; rank++) {
      if (result.rank_ns[rank] != slow->cpu_ns[rank])
        fail_msg("schedule %d: rank %u ends at %llu, the slow one at %llu", (int)number, rank,
                 (unsigned long long)result.rank_ns[rank], (unsigned long long)slow->cpu_ns[rank]);
    }
    if (code == ncclSuccess) loggops_result_free(&result);
    compared += code == ncclSuccess;
    text_free(&why);
    goal_free(&goal);
  }
  assert_true(compared > SCHEDULES / 2); /* above S a schedule may deadlock */
  free(slow);
}

/* ---- memory ---- */

static const char schedule[] =
    "num_ranks 3\n"
    "rank 0 {\na: send 8b to 1 tag 1 cpu 1\nb: recv 8b from -1 tag -1\nb requires a\n}\n"
    "rank 1 {\na: recv 8b from 0 tag 1\nb: send 8b to 2\nb requires a\n}\n"
    "rank 2 {\na: recv 8b from 1\nb: calc 5\nb requires a\nc: send 8b to 0\n}\n";

static ncclResult_t everything(void) {
  const struct loggops_costs costs = LOGGOPS_DEFAULT;
  struct goal goal;
  struct loggops_result result;
  struct text why = {NULL, 0, 0, false};
  char *bytes = NULL;
  size_t count = 0;
  FILE *file = fmemopen((void *)(uintptr_t)schedule, sizeof schedule - 1, "rb"),
       *out = open_memstream(&bytes, &count);
  ncclResult_t code = goal_read("schedule", file, &goal);
  if (code == ncclSuccess) {
    code = loggops_run(&goal, &costs, NULL, &result, &why);
    if (code == ncclSuccess) loggops_result_free(&result);
    if (code == ncclSuccess) code = goal_write_binary(&goal, "memory", out);
    goal_free(&goal);
  }
  text_free(&why);
  fclose(file);
  fclose(out);
  free(bytes);
  return code;
}

static void memory_may_run_out_anywhere(void **state) {
  (void)state;
  const uint64_t live = os_alloc_live();
  uint64_t k = 1;
  for (;; k++) {
    os_alloc_fail_at(k);
    const ncclResult_t code = everything();
    os_alloc_fail_at(0);
    assert_int_equal(os_alloc_live(), live);
    if (code == ncclSuccess) break;
    assert_int_equal(code, ncclSystemError);
    assert_true(strlen(log_own_error()) > 0);
  }
  assert_true(k > 20);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(engine_agrees_with_the_slow_one),
                                     cmocka_unit_test(memory_may_run_out_anywhere)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
