/* test_own_copy.c: the copy that a plan leaves to a copy engine: which copy, and that the works without it
 * take the same steps towards their peers. */
/* sanitizers: address */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "backends/cuda/own_copy.h"
#include "core/plan/plan.h"
#include "core/topology/graph.h"
#include "schedule/algo.h"

#define RANKS 4
#define RANK 2u
#define ELEMENT_BYTES 4

static char *const in = (char *)((uintptr_t)1 << 40), *const out = (char *)((uintptr_t)2 << 40);

static struct graph graph; /* of all plans, whose works point to it */

static void plan_of(struct plan_op *ops, uint32_t op_count, struct plan *plan) {
  struct plan_request request;
  plan_request_begin(&request, RANKS, &graph);
  request.rank = RANK;
  for (uint32_t i = 0; i < FUNC_COUNT; i++) {
    request.settings.algo_mask[i] = 1u << ALGO_RING;
    request.settings.proto_mask[i] = 1u << PROTO_SIMPLE;
  }
  for (uint32_t i = 0; i < op_count; i++) ops[i].sequence = i;
  request.ops = ops;
  request.op_count = op_count;
  assert_int_equal(plan_build(&request, plan), ncclSuccess);
}

static struct plan_op op_of(uint8_t func, size_t count, uint32_t root) {
  const struct plan_op op = {
      .func = func, .dtype = ncclFloat32, .count = count, .peer = root, .in = in, .out = out};
  return op;
}

#define LONG_COUNT ((size_t)4 << 20)

/* The copy's index, or none. */
static void test_which(void **state) {
  const size_t long_bytes = LONG_COUNT * ELEMENT_BYTES;
  const struct {
    struct plan_op op;
    size_t bytes, from, to;
  } rows[] = {{op_of(FUNC_ALL_GATHER, LONG_COUNT, 0), long_bytes, 0, RANK * long_bytes},
              {op_of(FUNC_BROADCAST, LONG_COUNT, RANK), long_bytes, 0, 0},
              {op_of(FUNC_BROADCAST, LONG_COUNT, 0), 0, 0, 0},
              {op_of(FUNC_ALL_TO_ALL, LONG_COUNT, 0), long_bytes, RANK * long_bytes, RANK * long_bytes},
              {op_of(FUNC_ALL_GATHER, 100000, 0), 0, 0, 0},
              {op_of(FUNC_ALL_REDUCE, LONG_COUNT, 0), 0, 0, 0},
              {op_of(FUNC_REDUCE_SCATTER, LONG_COUNT, 0), 0, 0, 0}};
  (void)state;
  for (uint32_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct plan_op op = rows[i].op;
    struct plan plan;
    struct own_copy copy;
    plan_of(&op, 1, &plan);
    assert_int_equal(own_copy_find(&plan, &copy), rows[i].bytes > 0);
    assert_int_equal(copy.bytes, rows[i].bytes);
    if (copy.bytes > 0) assert_true(copy.from == in + rows[i].from && copy.to == out + rows[i].to);
    plan_free(&plan);
  }
}

/* In place there is nothing to copy; a group of two operations has two copies, which the kernel makes. */
static void test_which_not(void **state) {
  struct plan_op ops[2] = {op_of(FUNC_ALL_GATHER, LONG_COUNT, 0), op_of(FUNC_ALL_GATHER, LONG_COUNT, 0)};
  struct plan plan;
  struct own_copy copy;
  (void)state;
  plan_of(ops, 2, &plan);
  assert_false(own_copy_find(&plan, &copy));
  assert_int_equal(copy.bytes, 0);
  plan_free(&plan);
  ops[0].in = out + RANK * LONG_COUNT * ELEMENT_BYTES;
  plan_of(ops, 1, &plan);
  assert_false(own_copy_find(&plan, &copy));
  plan_free(&plan);
}

/* The number of elements that a work copies locally; a number that describes its sends and receives. */
static size_t steps_of(const struct work *work, uint64_t *links) {
  struct algo_iter iter = {0};
  struct step step;
  size_t kept = 0;
  algo_begin(&iter, work);
  while (algo_next(&iter, work, &step)) {
    if ((step.flags & STEP_KEEP) != 0 && (step.flags & STEP_RECV) == 0) kept += step.count;
    if ((step.flags & (STEP_RECV | STEP_SEND)) == 0) continue;
    *links = *links * 31 + step.recv_links + 2 * step.send_links + 4 * step.count + step.in_offset;
  }
  return kept;
}

static void test_the_rest_stays(void **state) {
  static const uint8_t funcs[] = {FUNC_ALL_GATHER, FUNC_BROADCAST, FUNC_ALL_TO_ALL};
  (void)state;
  for (uint32_t i = 0; i < 3; i++) {
    struct plan_op op = op_of(funcs[i], LONG_COUNT + 12345, RANK);
    struct plan plan;
    struct own_copy copy;
    size_t kept = 0;
    plan_of(&op, 1, &plan);
    assert_true(own_copy_find(&plan, &copy));
    for (uint32_t w = 0; w < plan.work_count; w++) {
      struct work work = plan.works[w];
      uint64_t before = 0, after = 0;
      const size_t share = steps_of(&work, &before);
      assert_int_equal(share > 0, own_copy_takes(&work));
      kept += share * work.element_bytes;
      if (own_copy_takes(&work)) own_copy_leave(&work);
      assert_int_equal(steps_of(&work, &after), 0);
      assert_true(before == after);
    }
    assert_int_equal(kept, copy.bytes);
    plan_free(&plan);
  }
}

static int graph_begin(void **state) {
  (void)state;
  return graph_flat(RANKS, &graph) == ncclSuccess ? 0 : -1;
}

static int graph_end(void **state) {
  (void)state;
  graph_free(&graph);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_which), cmocka_unit_test(test_which_not),
                                     cmocka_unit_test(test_the_rest_stays)};
  return cmocka_run_group_tests(tests, graph_begin, graph_end);
}
