/* test_warps.c: how a block's warps are divided among the works of a batch: each work has what it needs to
 * move, none has more than it can use, and the rest follows the works' data and the sides of a tree. Does not
 * test the kernels, which read the result (tests/test_kernel_plans.sh). */
/* sanitizers: address */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "kernels/warps.h"
#include "random.h"

enum { WORKS = PLAN_BATCH_WORKS_MAX };

static struct work message(size_t bytes) {
  return (struct work){.func = FUNC_SEND,
                       .algo = ALGO_RING,
                       .proto = PROTO_SIMPLE,
                       .element_bytes = 1,
                       .count = bytes,
                       .part_count = bytes,
                       .chunk_count = 1 << 19};
}

/* With `children` links to them. */
static struct work side_of_tree(uint8_t role, uint8_t children) {
  return (struct work){.func = FUNC_ALL_REDUCE,
                       .algo = ALGO_TREE,
                       .proto = PROTO_SIMPLE,
                       .role = role,
                       .recv_count = role == ROLE_UP ? children : 1,
                       .send_count = role == ROLE_UP ? 1 : children,
                       .element_bytes = 4,
                       .part_count = 1 << 20,
                       .chunk_count = 1 << 17};
}

static struct work offered(void) {
  struct work work = message(1 << 30);
  work.func = FUNC_RECV;
  work.flags = WORK_DIRECT_RECV;
  return work;
}

static uint32_t divide(const struct work *works, uint32_t count, uint32_t warps, uint8_t counts[WORKS]) {
  const struct work *members[WORKS];
  uint32_t sum = 0;
  for (uint32_t i = 0; i < count; i++) members[i] = &works[i];
  assert_true(warps >= warps_needed(members, count, WARPS_LEAST));
  warps_divide(members, count, warps, counts);
  for (uint32_t i = 0; i < count; i++) sum += counts[i];
  assert_true(sum <= warps);
  return sum;
}

static void test_tree(void **state) {
  (void)state;
  uint8_t counts[WORKS];
  for (uint8_t children = 1; children <= 3; children++) {
    const struct work works[2] = {side_of_tree(ROLE_UP, children), side_of_tree(ROLE_DOWN, children)};
    for (uint32_t warps = 7; warps <= LAUNCH_WARPS_MAX; warps++) {
      assert_int_equal(divide(works, 2, warps, counts), warps);
      assert_true(counts[0] > counts[1] && counts[1] >= WARPS_LEAST_USUAL);
    }
    assert_int_equal(counts[0], 11); /* 70 % of 16 */
    divide(works, 2, 4, counts);
    assert_int_equal(counts[0], 2);
    assert_int_equal(counts[1], 2);
  }
  const struct work leaf[2] = {side_of_tree(ROLE_UP, 0), side_of_tree(ROLE_DOWN, 0)};
  divide(leaf, 2, 16, counts);
  assert_int_equal(counts[0], 8);
  assert_int_equal(counts[1], 8);
}

static void test_messages(void **state) {
  (void)state;
  struct work works[WORKS] = {message((size_t)1 << 30), message(1 << 10)};
  uint8_t counts[WORKS];
  divide(works, 2, 16, counts);
  assert_int_equal(counts[0], 13);
  assert_int_equal(counts[1], 3);
  works[1] = message((size_t)1 << 30);
  divide(works, 2, 16, counts);
  assert_int_equal(counts[0], 8);
  works[2] = message((size_t)2 << 30);
  divide(works, 3, 16, counts);
  assert_int_equal(counts[0], 4);
  assert_int_equal(counts[2], 8);
  for (uint32_t i = 0; i < WORKS; i++) works[i] = message((size_t)1 << (8 * i % 63));
  divide(works, WORKS, 16, counts);
  for (uint32_t i = 0; i < WORKS; i++) assert_int_equal(counts[i], 2);
}

/* Over LL and LL128 a warp without a line would only be waited for. */
static void test_lines(void **state) {
  (void)state;
  struct work works[2] = {side_of_tree(ROLE_UP, 2), side_of_tree(ROLE_DOWN, 2)};
  uint8_t counts[WORKS];
  for (uint32_t i = 0; i < 2; i++) {
    works[i].proto = PROTO_LL;
    works[i].chunk_count = works[i].part_count = 4 * WARP_LL_BYTES / 4;
  }
  assert_int_equal(divide(works, 2, 12, counts), 12);
  assert_int_equal(counts[0], 6);
  assert_int_equal(divide(works, 2, 16, counts), 12);
  assert_int_equal(counts[1], 6);
  divide(works, 2, 9, counts);
  assert_int_equal(counts[0], 6);
  works[0].proto = PROTO_LL128;
  works[0].chunk_count = works[0].part_count = 2 * WARP_LL128_BYTES / 4;
  assert_int_equal(divide(works, 2, 16, counts), 10);
  assert_int_equal(counts[0], 4);
  works[1].proto = PROTO_SIMPLE;
  assert_int_equal(divide(works, 2, 16, counts), 16);
  assert_int_equal(counts[0], 4);
}

/* A receiver that moves nothing has one warp, also beside others of its kind only. */
static void test_light(void **state) {
  (void)state;
  struct work works[3] = {offered(), message(1), offered()};
  uint8_t counts[WORKS];
  divide(works, 3, 16, counts);
  assert_int_equal(counts[0], 1);
  assert_int_equal(counts[1], 14);
  assert_int_equal(counts[2], 1);
  works[1] = offered();
  divide(works, 3, 16, counts);
  for (uint32_t i = 0; i < 3; i++) assert_int_equal(counts[i], 1);
  divide(works, 1, 16, counts);
  assert_int_equal(counts[0], 16);
  works[1].flags |= WORK_OUTPUT_HIDDEN;
  divide(works, 3, 16, counts);
  assert_int_equal(counts[1], 14);
}

static struct work any_work(uint64_t *seed) {
  const uint32_t kind = random_below(seed, 4);
  const size_t bytes = ((size_t)1 << random_below(seed, 63)) + random_below(seed, 1000);
  struct work work = kind == 0 ? offered() : message(bytes);
  if (kind == 1)
    work = side_of_tree((uint8_t)(ROLE_UP + random_below(seed, 2)), (uint8_t)random_below(seed, 3));
  if (kind != 0) work.proto = (uint8_t)random_below(seed, PROTO_COUNT);
  work.chunk_count = 1 + random_below(seed, 4000);
  return work;
}

/* The slowest work cannot have a warp of another one without making that one as slow. */
static void assert_balanced(const struct work *works, uint32_t count, const uint8_t *counts, uint32_t least) {
  for (uint32_t to = 0; to < count; to++) {
    const double slowest = (double)warps_weight(&works[to]) / counts[to];
    if (warps_light(&works[to]) || counts[to] >= warps_useful(&works[to])) continue;
    for (uint32_t from = 0; from < count; from++)
      if (from != to && !warps_light(&works[from]) && counts[from] > least)
        assert_true((double)warps_weight(&works[from]) / (counts[from] - 1) > slowest * 0.9);
  }
}

static void test_random(void **state) {
  (void)state;
  uint64_t seed = 3;
  for (uint32_t round = 0; round < 200000; round++) {
    struct work works[WORKS];
    uint8_t counts[WORKS];
    const struct work *members[WORKS];
    const uint32_t count = 2 + random_below(&seed, WORKS - 1);
    size_t most = 0;
    for (uint32_t i = 0; i < count; i++) {
      works[i] = any_work(&seed);
      members[i] = &works[i];
      most += warps_light(&works[i]) ? 1 : warps_useful(&works[i]);
    }
    const uint32_t needed = warps_needed(members, count, WARPS_LEAST);
    const uint32_t warps = needed + random_below(&seed, LAUNCH_WARPS_MAX + 1 - needed);
    const bool usual = warps >= warps_needed(members, count, WARPS_LEAST_USUAL);
    const uint32_t least = usual ? WARPS_LEAST_USUAL : WARPS_LEAST;
    assert_int_equal(divide(works, count, warps, counts), most < warps ? most : warps);
    for (uint32_t i = 0; i < count; i++) {
      assert_true(counts[i] >= (warps_light(&works[i]) ? 1 : least));
      assert_true(counts[i] <= (warps_light(&works[i]) ? 1 : warps_useful(&works[i])));
    }
    assert_balanced(works, count, counts, least);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_tree),  cmocka_unit_test(test_messages), cmocka_unit_test(test_lines),
      cmocka_unit_test(test_light), cmocka_unit_test(test_random),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
