/* test_schedule.c: every ring iterator against the symbolic oracle (schedule_oracle.h), exhaustively within
 * small bounds: all rank counts up to 17, all ranks and roots, counts around multiples of chunks and loops,
 * several channels, in place and out of place, with and without direct stores. Does not test slots and
 * waiting. */
/* sanitizers: address */
/* runner: asan 14 s */
#include "schedule_oracle.h"

static struct oracle oracle;

/* Variants of one case, besides its sizes. */
struct variant {
  uint32_t channel_count, in_place;
  bool direct, stride;
};

static const struct variant variants[] = {{1, 0, false, false},
                                          {1, ~0u, false, true},
                                          {3, 0x15555, true, false},
                                          {2, ~0u, true, false},
                                          {2, 0, true, true}};

static uint32_t common_divisor(uint32_t a, uint32_t b) { return b == 0 ? a : common_divisor(b, a % b); }

/* A ring in another order than the ranks': the smallest stride above half that visits every rank. */
static uint32_t stride_of(uint32_t rank_count) {
  uint32_t stride = rank_count / 2 + 1;
  while (common_divisor(stride, rank_count) != 1) stride++;
  return stride;
}

/* Every variant from `first` on, `step` apart. */
static void run_variants(struct oracle_case *test, size_t first, size_t step) {
  for (size_t i = first; i < sizeof variants / sizeof variants[0]; i += step) {
    test->channel_count = variants[i].channel_count;
    test->in_place = variants[i].in_place & ((1u << test->rank_count) - 1);
    test->direct = variants[i].direct;
    test->ring_stride = variants[i].stride ? stride_of(test->rank_count) : 1;
    oracle_run(&oracle, test);
  }
}

/* All counts up to slightly more than two full loops. */
static void run_counts(struct oracle_case *test, size_t first, size_t step) {
  const size_t loop = test->chunk_count * (test->func == FUNC_ALL_REDUCE ? test->rank_count : 1);
  const size_t bound = 2 * loop + test->chunk_count + 1;
  for (test->count = 0; test->count <= bound; test->count++) run_variants(test, first, step);
}

/* Only all-reduce depends on the size of an element; the others get one size or the other. With many ranks
 * each size gets a part of the variants, otherwise all, and some chunk sizes are left out. */
static void run_func(uint8_t func, bool rooted) {
  static const uint32_t sizes[] = {1, 4, 8};
  const size_t size_count = func == FUNC_ALL_REDUCE ? 3 : 1;
  struct oracle_case test = {.func = func, .lazy = ORACLE_NOBODY};
  for (test.rank_count = 2; test.rank_count <= ORACLE_RANKS_MAX; test.rank_count++)
    for (test.chunk_count = 1; test.chunk_count <= 5; test.chunk_count++)
      for (size_t i = 0; i < size_count; i++) {
        const bool many = test.rank_count > 6;
        if (many && (test.chunk_count == 3 || test.chunk_count == 4)) continue;
        test.element_bytes = sizes[(i + test.chunk_count) % 3];
        for (test.root = 0; test.root < (rooted ? test.rank_count : 1); test.root++)
          run_counts(&test, many ? i : 0, many ? size_count : 1);
      }
}

static void test_all_reduce(void **state) {
  (void)state;
  run_func(FUNC_ALL_REDUCE, false);
}

static void test_all_gather(void **state) {
  (void)state;
  run_func(FUNC_ALL_GATHER, false);
}

static void test_reduce_scatter(void **state) {
  (void)state;
  run_func(FUNC_REDUCE_SCATTER, false);
}

static void test_broadcast(void **state) {
  (void)state;
  run_func(FUNC_BROADCAST, true);
}

static void test_reduce(void **state) {
  (void)state;
  run_func(FUNC_REDUCE, true);
}

/* Chunks longer than the sixteen bytes to which a short loop is rounded, for each element size; every second
 * variant. */
static void test_all_reduce_rounding(void **state) {
  static const uint32_t sizes[] = {1, 2, 4, 8};
  static const size_t chunks[] = {16, 17, 33, 48};
  struct oracle_case test = {.func = FUNC_ALL_REDUCE, .lazy = ORACLE_NOBODY};
  (void)state;
  for (test.rank_count = 2; test.rank_count <= 5; test.rank_count++)
    for (size_t i = 0; i < 16; i++) {
      test.element_bytes = sizes[i / 4];
      test.chunk_count = chunks[i % 4];
      run_counts(&test, i % 2, 2);
    }
}

/* Direct stores with one rank as far behind the others as possible, in place: an output stored too early
 * would overwrite input that is still needed. */
static void test_direct_lazy(void **state) {
  static const uint8_t funcs[] = {FUNC_ALL_REDUCE, FUNC_ALL_GATHER, FUNC_BROADCAST};
  struct oracle_case test = {.element_bytes = 4, .channel_count = 1, .ring_stride = 1, .direct = true};
  (void)state;
  for (size_t i = 0; i < 3; i++)
    for (test.rank_count = 2; test.rank_count <= 9; test.rank_count++)
      for (test.lazy = 0; test.lazy < test.rank_count; test.lazy++) {
        test.func = funcs[i];
        test.in_place = (1u << test.rank_count) - 1;
        test.root = (test.lazy + i) % test.rank_count;
        for (test.chunk_count = 1; test.chunk_count <= 3; test.chunk_count++)
          for (test.count = 0; test.count <= 3 * test.rank_count * test.chunk_count; test.count++)
            oracle_run(&oracle, &test);
      }
}

/* The primitives of one rank, written out. */
static void test_all_reduce_by_hand(void **state) {
  static const uint32_t ring[3] = {0, 1, 2};
  static const struct {
    uint32_t flags, chunk;
    size_t offset, count;
  } expected[5] = {
      {STEP_COPY_IN | STEP_SEND, 0, 0, 4},
      {STEP_RECV | STEP_COPY_IN | STEP_REDUCE | STEP_SEND, 2, 8, 2},
      {STEP_RECV | STEP_COPY_IN | STEP_REDUCE | STEP_KEEP | STEP_POST_OP | STEP_SEND | STEP_SEND_FINAL, 1, 4,
       4},
      {STEP_RECV | STEP_RECV_FINAL | STEP_KEEP | STEP_SEND | STEP_SEND_FINAL, 0, 0, 4},
      {STEP_RECV | STEP_RECV_FINAL | STEP_KEEP, 2, 8, 2}};
  struct work work = {.func = FUNC_ALL_REDUCE,
                      .element_bytes = 4,
                      .rank = 1,
                      .rank_count = 3,
                      .ring_index = 1,
                      .count = 10,
                      .part_count = 10,
                      .chunk_count = 100,
                      .ring_ranks = ring};
  struct ring_iter iter;
  struct step step;
  (void)state;
  ring_cut(&work);
  ring_begin(&iter, &work);
  for (uint32_t i = 0; i < 5; i++) {
    assert_true(ring_next(&iter, &work, &step));
    if ((step.flags & STEP_SEND) == 0) step.flags &= ~(uint32_t)STEP_SEND_FINAL;
    assert_int_equal(step.flags, expected[i].flags);
    assert_int_equal(step.chunk_index, expected[i].chunk);
    assert_int_equal(step.in_offset, expected[i].offset);
    assert_int_equal(step.out_offset, expected[i].offset);
    assert_int_equal(step.count, expected[i].count);
  }
  assert_false(ring_next(&iter, &work, &step));
  assert_false(ring_next(&iter, &work, &step));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_all_reduce),     cmocka_unit_test(test_all_gather),
      cmocka_unit_test(test_reduce_scatter), cmocka_unit_test(test_broadcast),
      cmocka_unit_test(test_reduce),         cmocka_unit_test(test_all_reduce_rounding),
      cmocka_unit_test(test_direct_lazy),    cmocka_unit_test(test_all_reduce_by_hand)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
