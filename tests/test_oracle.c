/* test_oracle.c: the oracle compared with C's own arithmetic: it accepts what the compiler computes from its
 * inputs and detects a single wrong bit, a missing rank and a swapped block. */
/* sanitizers: address */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "oracle.h"

enum { RANKS = 5, COUNT = 600 };

static float float_inputs[RANKS][COUNT], float_output[COUNT];
static int32_t int_inputs[RANKS][COUNT], int_output[COUNT];
static uint8_t byte_inputs[RANKS][RANKS * COUNT], byte_output[RANKS * COUNT];

static struct oracle_case case_make(enum collective_id collective, ncclDataType_t type, enum oracle_op op) {
  struct oracle_case c = {collective, type, op, RANKS, 2, COUNT, 77};
  return c;
}

static uint64_t wrong_count(const struct oracle_case *c, uint32_t rank, const void *output) {
  struct oracle_mismatch first;
  return oracle_check(c, &rank, &output, 1, &first);
}

static void sum_floats(uint32_t first_rank) {
  memset(float_output, 0, sizeof float_output);
  for (uint32_t rank = first_rank; rank < RANKS; rank++) {
    for (int index = 0; index < COUNT; index++) float_output[index] += float_inputs[rank][index];
  }
}

static void float_sum_is_accepted(void **state) {
  (void)state;
  struct oracle_case c = case_make(COLLECTIVE_ALL_REDUCE, ncclFloat32, ORACLE_SUM);
  for (uint32_t rank = 0; rank < RANKS; rank++) oracle_input(&c, rank, 0, COUNT, float_inputs[rank]);
  sum_floats(0);
  assert_int_equal(wrong_count(&c, 0, float_output), 0);
  for (int index = 0; index < COUNT; index++) float_output[index] /= RANKS;
  c.op = ORACLE_AVG;
  assert_int_equal(wrong_count(&c, 0, float_output), 0);
}

static void float_faults_are_noticed(void **state) {
  (void)state;
  struct oracle_case c = case_make(COLLECTIVE_ALL_REDUCE, ncclFloat32, ORACLE_SUM);
  for (uint32_t rank = 0; rank < RANKS; rank++) oracle_input(&c, rank, 0, COUNT, float_inputs[rank]);
  sum_floats(1);
  assert_true(wrong_count(&c, 0, float_output) > COUNT * 9 / 10);
  sum_floats(0);
  uint64_t noticed = 0;
  for (int index = 0; index < COUNT; index++) {
    float kept = float_output[index];
    uint32_t bits;
    memcpy(&bits, &float_output[index], sizeof bits);
    bits ^= 1;
    memcpy(&float_output[index], &bits, sizeof bits);
    noticed += wrong_count(&c, 0, float_output);
    float_output[index] = kept;
  }
  assert_true(noticed > COUNT * 2 / 3); /* three in four elements are exact */
}

static void integers_wrap(void **state) {
  (void)state;
  struct oracle_case c = case_make(COLLECTIVE_ALL_REDUCE, ncclInt32, ORACLE_PROD);
  for (uint32_t rank = 0; rank < RANKS; rank++) oracle_input(&c, rank, 0, COUNT, int_inputs[rank]);
  for (int index = 0; index < COUNT; index++) {
    uint32_t product = 1;
    for (int rank = 0; rank < RANKS; rank++) product *= (uint32_t)int_inputs[rank][index];
    int_output[index] = (int32_t)product;
  }
  assert_int_equal(wrong_count(&c, 0, int_output), 0);
  int_output[COUNT - 1] ^= 1 << 30;
  assert_int_equal(wrong_count(&c, 0, int_output), 1);
}

/* An output is compared in parts: a fault is found in any of them, at its place. */
static void every_part_is_compared(void **state) {
  enum { LONG = 3 * ORACLE_PART + 5 };
  static float inputs[LONG], output[LONG];
  static const size_t places[] = {0, ORACLE_PART - 1, ORACLE_PART, 3 * ORACLE_PART - 1, LONG - 1};
  struct oracle_case c = case_make(COLLECTIVE_ALL_REDUCE, ncclFloat32, ORACLE_SUM);
  (void)state;
  c.count = LONG;
  for (uint32_t rank = 0; rank < RANKS; rank++) {
    oracle_input(&c, rank, 0, LONG, inputs);
    for (size_t index = 0; index < LONG; index++) output[index] += inputs[index];
  }
  assert_int_equal(wrong_count(&c, 1, output), 0);
  for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
    const void *const outputs[2] = {output, output};
    const uint32_t ranks[2] = {3, 4};
    const float kept = output[places[i]];
    struct oracle_mismatch first;
    output[places[i]] = kept + 1000;
    assert_int_equal(oracle_check(&c, ranks, outputs, 2, &first), 2);
    assert_int_equal(first.rank, 3);
    assert_int_equal(first.index, places[i]);
    output[places[i]] = kept;
  }
}

static void integer_average_truncates(void **state) {
  (void)state;
  struct oracle_case c = case_make(COLLECTIVE_ALL_REDUCE, ncclInt32, ORACLE_AVG);
  for (uint32_t rank = 0; rank < RANKS; rank++) oracle_input(&c, rank, 0, COUNT, int_inputs[rank]);
  for (int index = 0; index < COUNT; index++) {
    uint32_t sum = 0;
    for (int rank = 0; rank < RANKS; rank++) sum += (uint32_t)int_inputs[rank][index];
    int_output[index] = (int32_t)sum / RANKS;
  }
  assert_int_equal(wrong_count(&c, 0, int_output), 0);
}

static void moves_land_in_their_place(void **state) {
  (void)state;
  struct oracle_case c = case_make(COLLECTIVE_ALLTOALL, ncclUint8, ORACLE_SUM);
  for (uint32_t rank = 0; rank < RANKS; rank++) oracle_input(&c, rank, 0, RANKS * COUNT, byte_inputs[rank]);
  for (int source = 0; source < RANKS; source++) {
    memcpy(byte_output + source * COUNT, byte_inputs[source] + 3 * COUNT, COUNT);
  }
  assert_int_equal(wrong_count(&c, 3, byte_output), 0);
  memcpy(byte_output, byte_inputs[1] + 3 * COUNT, COUNT); /* block 0 from the wrong rank */
  assert_true(wrong_count(&c, 3, byte_output) > COUNT * 9 / 10);
}

static void counts_follow_the_collective(void **state) {
  (void)state;
  struct oracle_case c = case_make(COLLECTIVE_GATHER, ncclUint8, ORACLE_SUM);
  assert_int_equal(oracle_send_count(&c, 0), COUNT);
  assert_int_equal(oracle_receive_count(&c, 0), 0);
  assert_int_equal(oracle_receive_count(&c, c.root), RANKS * COUNT);
  c.collective = COLLECTIVE_REDUCE_SCATTER;
  assert_int_equal(oracle_send_count(&c, 0), RANKS * COUNT);
  assert_int_equal(oracle_receive_count(&c, 0), COUNT);
  c.collective = COLLECTIVE_SCATTER;
  assert_int_equal(oracle_send_count(&c, 0), 0);
  assert_int_equal(oracle_send_count(&c, c.root), RANKS * COUNT);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(float_sum_is_accepted),        cmocka_unit_test(float_faults_are_noticed),
      cmocka_unit_test(every_part_is_compared),       cmocka_unit_test(integers_wrap),
      cmocka_unit_test(integer_average_truncates),    cmocka_unit_test(moves_land_in_their_place),
      cmocka_unit_test(counts_follow_the_collective),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
