/* test_check_tuned.c: every choice of the tuner is proved, on one node and over several; and requests with a
 * tune file, protocols by name, excluded algorithms, several operations. */
/* sanitizers: address */
/* runner: asan 13 s */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "base/os.h"
#include "check/request.h"
#include "core/plan/tune_file.h"
#include "kernels/kernels.h"
#include "machine.h"
#include "tune_visit.h"

#define BYTES_MOST ((size_t)1 << 24)

static struct check_engine *engine;
static struct check_report report;
static struct graph graph;
static struct plan_request request;
static struct plan_op ops[3];

static int setup_all(void **state) {
  (void)state;
  engine = check_engine_new();
  return engine == NULL;
}

static int teardown_all(void **state) {
  (void)state;
  check_engine_free(engine);
  graph_free(&graph);
  return os_alloc_live() != 0;
}

static void assert_request_proved(const struct plan_request *asked) {
  const struct plan_op *op = &asked->ops[0];
  if (!check_plan_of_request(engine, asked, &report))
    fail_msg("func %u, algorithms %x, protocols %x, %zu elements: %s: %s", op->func,
             asked->settings.algo_mask[op->func], asked->settings.proto_mask[op->func], op->count,
             check_rule_name(report.rule), report.text);
}

/* ---- the whole choice table ---- */

struct visited {
  uint32_t proved, algos; /* visits; set of enum work_algo */
};

static bool visit(void *argument, const struct plan_request *asked, const struct tune_choice *choice) {
  struct visited *visited = (struct visited *)argument;
  assert_request_proved(asked);
  visited->proved += 1;
  visited->algos |= 1u << choice->algo;
  return true;
}

/* Visits all choices on one machine; the algorithms of `wanted` must be among them. */
static void visit_machine(const char *name, uint32_t nodes, uint32_t gpus, uint32_t wanted) {
  struct visited visited = {0, 0};
  struct plan_limits limits;
  graph_free(&graph);
  assert_int_equal(machine_graph(name, nodes, gpus, &graph), ncclSuccess);
  plan_limits_default(&limits);
  const uint32_t visits = tune_visit_all(&graph, &limits, BYTES_MOST, visit, &visited);
  assert_int_equal(visits, visited.proved);
  assert_true(visited.proved > 500);
  assert_int_equal(visited.algos & wanted, wanted);
}

#define ALGO(name) (1u << ALGO_##name)

static void choices_on_one_node_are_proved(void **state) {
  (void)state;
  visit_machine(NULL, 1, 8, ALGO(RING) | ALGO(TREE) | ALGO(DIRECT) | ALGO(TWO_SHOT) | ALGO(PAT) | ALGO(NVLS));
  visit_machine(NULL, 1, 3, ALGO(RING));
  visit_machine("pcie-box", 1, 4, ALGO(RING));
}

static void choices_over_nodes_are_proved(void **state) {
  (void)state;
  visit_machine(
      NULL, 2, 4,
      ALGO(RING) | ALGO(TREE) | ALGO(PAT) | ALGO(NVLS_TREE) | ALGO(COLLNET_DIRECT) | ALGO(COLLNET_CHAIN));
  visit_machine("dgx-a100", 5, 1, ALGO(RING) | ALGO(TREE) | ALGO(PAT) | ALGO(COLLNET_CHAIN));
  visit_machine("hgx-b200", 3, 2, ALGO(RING) | ALGO(NVLS_TREE));
}

/* ---- requests ---- */

static uint8_t in[64], out[64];

/* One all-reduce of 100000 floats on 6 ranks, without restrictions. */
static void request_begin(void) {
  graph_free(&graph);
  assert_int_equal(machine_graph(NULL, 1, 6, &graph), ncclSuccess);
  plan_request_begin(&request, 6, &graph);
  memset(ops, 0, sizeof ops);
  request.rank = 4;
  for (uint32_t i = 0; i < 3; i++) {
    ops[i].func = FUNC_ALL_REDUCE;
    ops[i].dtype = ncclFloat32;
    ops[i].count = 100000;
    ops[i].in = in;
    ops[i].out = out;
    ops[i].sequence = 7 + i;
  }
  request.ops = ops;
  request.op_count = 1;
}

static void requests_keep_what_they_say(void **state) {
  static const char rules[] = "all_reduce 0 max algo=Tree proto=LL channels=1\n";
  struct tune_file *file = NULL;
  (void)state;
  request_begin();
  assert_request_proved(&request);
  const uint64_t chosen = report.step_count;
  if (tune_file_parse("rules", rules, sizeof rules - 1, &file) == ncclSuccess) {
    request.settings.tune_file = file;
    assert_request_proved(&request);
    assert_int_not_equal(report.step_count, chosen);
    os_free(file);
    request.settings.tune_file = NULL;
  } else {
    fail_msg("the rules cannot be read");
  }
  request.settings.algos_off = (1u << ALGO_COUNT) - 1 - ALGO(NVLS);
  assert_request_proved(&request);
  assert_int_equal(report.work_count, report.channel_count * 7); /* six ranks and a switch */
  request.settings.algos_off = 0;
  request.settings.proto_named[FUNC_ALL_REDUCE] = 1u << PROTO_LL128;
  request.settings.max_threads[PROTO_SIMPLE] = 64;
  request.settings.thread_bytes[1][PROTO_LL] = 1;
  assert_request_proved(&request);
}

/* In place refers to the request's rank; each function defines it differently. */
static void requests_are_in_place(void **state) {
  (void)state;
  for (uint8_t func = FUNC_BROADCAST; func <= FUNC_ALL_REDUCE; func++) {
    for (uint32_t algo = 0; algo < 2; algo++) {
      request_begin();
      for (uint32_t other = 0; other < FUNC_COUNT; other++)
        request.settings.algo_mask[other] = algo == 0 ? ALGO(RING) : ~0u;
      ops[0].func = func;
      ops[0].count = 1;
      ops[0].in = ops[0].out = in;
      ops[0].peer = 2;
      if (func == FUNC_ALL_GATHER) ops[0].in = in + 4 * 4;
      if (func == FUNC_REDUCE_SCATTER) ops[0].out = in + 4 * 4;
      assert_request_proved(&request);
    }
  }
}

static void requests_have_several_operations(void **state) {
  (void)state;
  request_begin();
  request.op_count = 3;
  ops[1].func = FUNC_ALL_GATHER;
  ops[1].dtype = ncclFloat64;
  ops[1].count = 999;
  ops[2].func = FUNC_ALL_TO_ALL;
  ops[2].dtype = ncclFloat16;
  ops[2].count = 77;
  assert_request_proved(&request);
  request.settings.algo_mask[FUNC_ALL_TO_ALL] = ALGO(DIRECT);
  assert_request_proved(&request);
  /* Broadcasts from several roots are fused. */
  for (uint32_t i = 0; i < 3; i++) {
    ops[i].func = FUNC_BROADCAST;
    ops[i].peer = 5 - i;
  }
  assert_request_proved(&request);
  assert_true(report.work_count < 3 * 6 * report.channel_count);
}

static void requests_that_say_too_little_are_refused(void **state) {
  (void)state;
  request_begin();
  ops[0].func = FUNC_SEND;
  assert_false(check_plan_of_request(engine, &request, &report));
  assert_int_equal(report.rule, CHECK_RESOURCES);
  assert_non_null(strstr(report.text, "what others send"));
  request_begin();
  request.settings.algo_mask[FUNC_ALL_REDUCE] = 1u << ALGO_COLLNET_CHAIN; /* for one node only */
  assert_false(check_plan_of_request(engine, &request, &report));
  assert_int_equal(report.rule, CHECK_RESOURCES);
  assert_true(report.text[0] != '\0');
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(choices_on_one_node_are_proved),
      cmocka_unit_test(choices_over_nodes_are_proved),
      cmocka_unit_test(requests_keep_what_they_say),
      cmocka_unit_test(requests_are_in_place),
      cmocka_unit_test(requests_have_several_operations),
      cmocka_unit_test(requests_that_say_too_little_are_refused),
  };
  return cmocka_run_group_tests(tests, setup_all, teardown_all);
}
