/* test_tuner_answers.c: what becomes of a tuner plugin's answers: which are taken, limited, remembered and
 * numbered. The plugin is tests/plugins/tuner.c; test_tuner.sh runs whole programs with it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <libgen.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/param.h"
#include "core/plan/tune.h"
#include "core/plugins/tuner.h"

#define RANKS 4
#define BYTES 4096

static struct graph graph;
static struct plan_request request;

/* The plugin answers `told` from now on, for a new communicator. */
static void begin(const char *told) {
  const struct tuner_comm comm = {"test", 7, 0, RANKS, 1, RANKS, RANKS};
  setenv("TUTTI_TEST_TUNER", told, 1);
  tuner_close(request.settings.tuner);
  plan_request_begin(&request, RANKS, &graph);
  request.settings.tuner = tuner_open(&comm);
  assert_non_null(request.settings.tuner);
}

static struct tune_choice choose(size_t bytes) {
  struct tune_choice choice;
  assert_int_equal(tune_choose(&request, FUNC_ALL_REDUCE, bytes, &choice), ncclSuccess);
  return choice;
}

static void assert_own(struct tune_choice choice) {
  struct tuner *tuner = request.settings.tuner;
  request.settings.tuner = NULL;
  const struct tune_choice own = choose(BYTES);
  request.settings.tuner = tuner;
  assert_int_equal(choice.algo, own.algo);
  assert_int_equal(choice.proto, own.proto);
  assert_int_equal(choice.channel_count, own.channel_count);
}

static void test_taken(void **state) {
  (void)state;
  begin("0 2 1 0");
  const struct tune_choice choice = choose(BYTES);
  assert_int_equal(choice.algo, ALGO_TREE);
  assert_int_equal(choice.proto, PROTO_SIMPLE);
  assert_int_equal(choice.channel_count, 1);
  begin("1 0 10000 0");
  assert_int_equal(choose(BYTES).channel_count, request.settings.limits.channel_count);
}

static void test_left(void **state) {
  static const char *const told[] = {"", "fail", "negative", "nothing", "nan", "6 2 1 0", "init"};
  (void)state;
  for (size_t i = 0; i < sizeof told / sizeof told[0]; i++) {
    begin(told[i]);
    assert_own(choose(BYTES));
    assert_false(tuner_answer_at(request.settings.tuner, 0)->changed);
  }
}

static void test_remembered(void **state) {
  (void)state;
  begin("0 2 1 0");
  choose(BYTES);
  setenv("TUTTI_TEST_TUNER", "1 0 1 0", 1);
  assert_int_equal(choose(BYTES).algo, ALGO_TREE);
  assert_int_equal(choose(2 * BYTES).algo, ALGO_RING);
  assert_int_equal(tuner_answer_new(request.settings.tuner), 0);
  assert_int_equal(tuner_answer_new(request.settings.tuner), 1);
  assert_int_equal(tuner_answer_new(request.settings.tuner), UINT32_MAX);
  assert_int_equal(tuner_answer_at(request.settings.tuner, 1)->bytes, 2 * BYTES);
  for (size_t i = 0; i < 1000; i++) choose(i);
  for (size_t i = 0; i < 1000; i++) choose(i);
  assert_non_null(tuner_answer_at(request.settings.tuner, 1001));
  assert_null(tuner_answer_at(request.settings.tuner, 1002));
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_taken), cmocka_unit_test(test_left),
                                     cmocka_unit_test(test_remembered)};
  char self[2048] = "", path[4096];
  if (readlink("/proc/self/exe", self, sizeof self - 1) < 0) return 2;
  snprintf(path, sizeof path, "%s/plugins/libnccl-tuner-test4.so", dirname(self));
  setenv("NCCL_TUNER_PLUGIN", path, 1);
  param_reset();
  if (graph_flat(RANKS, &graph) != ncclSuccess) return 3;
  const int failed = cmocka_run_group_tests(tests, NULL, NULL);
  tuner_close(request.settings.tuner);
  graph_free(&graph);
  return failed;
}
