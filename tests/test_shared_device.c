/* test_shared_device.c: how many blocks of a GPU's kernels each of its ranks gets
 * (NCCL_MULTI_RANK_GPU_ENABLE). test_simt.sh tests the whole. */
/* sanitizers: address */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "base/log.h"
#include "core/settings/settings.h"

/* Of a GPU with `blocks` multiprocessors; 0: any number, and UINT32_MAX: the communicator is refused. */
static uint32_t share(uint32_t rank_count, uint32_t sharers, uint32_t blocks, struct device_use use) {
  struct settings_ranks ranks = {.rank_count = rank_count};
  const struct settings_device device = {rank_count, rank_count, sharers, blocks, use};
  settings_add_device(&ranks, &device);
  return settings_check_devices(&ranks) == ncclSuccess ? ranks.blocks : UINT32_MAX;
}

static const struct device_use none = {0, 0, 0};

/* Half of what is free, so that as much is left for later communicators. */
static void test_ranks_that_share(void **state) {
  (void)state;
  assert_int_equal(share(2, 0, 132, none), 33);
  assert_int_equal(share(8, 0, 132, none), 8);
  assert_int_equal(share(2, 0, 132, (struct device_use){2, 66, 0}), 16);
  assert_int_equal(share(2, 0, 132, (struct device_use){2, 66, 32}), 8);
  assert_int_equal(share(8, 0, 14, none), 1); /* a slice of a GPU */
}

/* The communicators of one split divide the same half. */
static void test_splits(void **state) {
  (void)state;
  assert_int_equal(share(2, 4, 132, none), 16);
  assert_int_equal(share(2, 4, 4, none), 1);
  assert_int_equal(share(2, 4, 3, none), UINT32_MAX);
}

/* Its kernels are ordered with those of others like it, but need blocks beside those that are set aside. */
static void test_a_rank_alone(void **state) {
  (void)state;
  assert_int_equal(share(1, 0, 132, none), 0);
  assert_int_equal(share(1, 2, 132, (struct device_use){9, 0, 132}), 0);
  assert_int_equal(share(1, 0, 132, (struct device_use){2, 100, 32}), 32);
  assert_int_equal(share(1, 0, 132, (struct device_use){2, 132, 0}), UINT32_MAX);
}

/* Devices without number of blocks (the emulator's) refuse nobody. */
static void test_no_limit(void **state) {
  (void)state;
  assert_int_equal(share(8, 0, 0, none), 0);
}

static void refused_with(uint32_t rank_count, uint32_t blocks, struct device_use use, const char *cure) {
  assert_int_equal(share(rank_count, 0, blocks, use), UINT32_MAX);
  assert_non_null(strstr(log_own_error(), "multiprocessors"));
  assert_non_null(strstr(log_own_error(), cure));
}

static void test_refusals_name_the_cure(void **state) {
  (void)state;
  refused_with(2, 11, (struct device_use){6, 10, 0}, "NCCL_MAX_CTAS=1 ");
  refused_with(2, 132, (struct device_use){4, 128, 16}, "NCCL_MAX_CTAS=22 ");
  refused_with(8, 7, none, "fewer ranks");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_ranks_that_share),       cmocka_unit_test(test_splits),
      cmocka_unit_test(test_a_rank_alone),           cmocka_unit_test(test_no_limit),
      cmocka_unit_test(test_refusals_name_the_cure),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
