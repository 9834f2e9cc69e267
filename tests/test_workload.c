/* test_workload.c: workloads (sim/simulate/workload.h, run.h) where memory runs out at every place in turn,
 * and kernels on streams at times that can be told by hand. */
/* sanitizers: address */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "base/os.h"
#include "simulate/run.h"

static struct cluster cluster;
static uint32_t algos[FUNC_COUNT], protos[FUNC_COUNT];

static int setup(void **state) {
  (void)state;
  struct cluster_spec spec;
  cluster_spec_begin(&spec);
  spec.nodes = spec.gpus = 2;
  for (uint32_t func = 0; func < FUNC_COUNT; func++) {
    algos[func] = (1u << ALGO_COUNT) - 1;
    protos[func] = (1u << PROTO_COUNT) - 1;
  }
  return cluster_make(&spec, &cluster) == ncclSuccess ? 0 : -1;
}

static int teardown(void **state) {
  (void)state;
  cluster_free(&cluster);
  return 0;
}

static const char text[] =
    "comm odd 1,3\n"
    "repeat 2\n"
    "all_reduce 4K after 1us\n"
    "group stream side wait main\n"
    "message 1K from 0 to 1 comm odd\n"
    "broadcast 64 root 1 comm odd\n"
    "end\n"
    "end\n"
    "alltoall 1K at 50us wait side\n";

static void tell(void *context, const char *wrong) {
  (void)wrong;
  *(bool *)context = true;
}

static ncclResult_t all(struct run_report *report) {
  struct workload workload;
  char copy[sizeof text];
  bool told = false;
  uint64_t wrong = 0;
  memset(report, 0, sizeof *report);
  memcpy(copy, text, sizeof text);
  const struct run_request request = {
      .cluster = &cluster, .workload = &workload, .algo_mask = algos, .proto_mask = protos, .channels = 4};
  ncclResult_t result = workload_parse("job", copy, 4, &workload);
  if (result == ncclSuccess) result = workload_match(&workload, tell, &told, &wrong);
  assert_false(told || wrong > 0);
  if (result == ncclSuccess) result = run_workload(&request, report);
  workload_free(&workload);
  return result;
}

static void memory_runs_out_cleanly(void **state) {
  (void)state;
  const uint64_t live = os_alloc_live();
  for (uint64_t k = 1;; k++) {
    struct run_report report;
    os_alloc_fail_at(k);
    const uint64_t before = os_alloc_count();
    const ncclResult_t result = all(&report);
    os_alloc_fail_at(0);
    run_report_free(&report);
    assert_int_equal(os_alloc_live(), live);
    if (os_alloc_count() - before < k) break;
    assert_int_equal(result, ncclSystemError);
  }
}

struct times {
  uint64_t begin_ps[2][3], end_ps[2][3]; /* of rank 1: by stream, then by number */
  uint32_t count[2];
};

static void hear(void *context, const struct run_kernel *kernel) {
  struct times *times = (struct times *)context;
  if (kernel->rank != 1) return;
  const uint32_t number = times->count[kernel->stream]++;
  times->begin_ps[kernel->stream][number] = kernel->begin_ps;
  times->end_ps[kernel->stream][number] = kernel->end_ps;
}

static void streams_keep_their_order(void **state) {
  (void)state;
  struct workload workload;
  struct run_report report;
  struct times times = {{{0}}, {{0}}, {0}};
  char copy[sizeof text];
  memcpy(copy, text, sizeof text);
  assert_int_equal(workload_parse("job", copy, 4, &workload), ncclSuccess);
  const struct run_watch watch = {.context = &times, .kernel = hear};
  const struct run_request request = {.cluster = &cluster,
                                      .workload = &workload,
                                      .algo_mask = algos,
                                      .proto_mask = protos,
                                      .channels = 4,
                                      .watch = &watch};
  assert_int_equal(run_workload(&request, &report), ncclSuccess);
  assert_false(report.stalled);
  assert_int_equal(times.count[0], 3);
  assert_int_equal(times.count[1], 2);
  assert_int_equal(times.begin_ps[0][0], 1000000);
  assert_int_equal(times.begin_ps[0][1], times.end_ps[0][0] + 1000000);
  assert_int_equal(times.begin_ps[1][0], times.end_ps[0][0]);
  assert_true(times.begin_ps[1][1] >= times.end_ps[0][1] && times.begin_ps[1][1] >= times.end_ps[1][0]);
  assert_true(times.begin_ps[0][2] >= times.end_ps[1][1] && times.begin_ps[0][2] >= 50000000);
  assert_int_equal(report.compute_ps[0], 2000000);
  assert_true(report.end_ps >= times.end_ps[0][2]);
  uint64_t sum_ps[2] = {0, 0};
  for (uint32_t stream = 0; stream < 2; stream++)
    for (uint32_t i = 0; i < times.count[stream]; i++)
      sum_ps[stream] += times.end_ps[stream][i] - times.begin_ps[stream][i];
  assert_true(report.busy_ps[1] > sum_ps[0] && report.busy_ps[1] < sum_ps[0] + sum_ps[1]);
  assert_true(report.busy_ps[1] <= report.end_ps - 1000000);
  run_report_free(&report);
  workload_free(&workload);
}

/* Who waits is told of as many slices as are then simulated. */
static void progress_knows_all_slices(void **state) {
  (void)state;
  struct workload workload;
  struct run_report report;
  struct progress progress;
  char copy[sizeof text];
  memcpy(copy, text, sizeof text);
  assert_int_equal(workload_parse("job", copy, 4, &workload), ncclSuccess);
  progress_open(&progress, stderr, true, os_time_ns());
  const struct run_request request = {.cluster = &cluster,
                                      .workload = &workload,
                                      .algo_mask = algos,
                                      .proto_mask = protos,
                                      .channels = 4,
                                      .progress = &progress};
  assert_int_equal(run_workload(&request, &report), ncclSuccess);
  assert_true(report.slice_count > 0);
  assert_int_equal(progress.slice_count, report.slice_count);
  run_report_free(&report);
  workload_free(&workload);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(memory_runs_out_cleanly, setup, teardown),
      cmocka_unit_test_setup_teardown(streams_keep_their_order, setup, teardown),
      cmocka_unit_test_setup_teardown(progress_knows_all_slices, setup, teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
