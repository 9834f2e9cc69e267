/* test_workload.c: workloads (sim/simulate/workload.h, run.h) with memory that runs out at every place in
 * turn, and kernels on streams at times that can be computed by hand. */
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
static struct planning any, four; /* of any number of channels; of 4 */

static int setup(void **state) {
  (void)state;
  struct cluster_spec spec;
  cluster_spec_begin(&spec);
  spec.nodes = spec.gpus = 2;
  const struct planning_ask ask = {.verb = "sim", .usual = PLANNING_NCCL};
  const struct planning_ask ask4 = {.verb = "sim", .usual = PLANNING_NCCL, .channels = 4};
  if (planning_open(&ask, &any) != EXIT_GOOD || planning_open(&ask4, &four) != EXIT_GOOD) return -1;
  return cluster_make(&spec, &cluster) == ncclSuccess ? 0 : -1;
}

static int teardown(void **state) {
  (void)state;
  cluster_free(&cluster);
  planning_close(&any);
  planning_close(&four);
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

static ncclResult_t all(struct run_report *report, bool exact) {
  struct workload workload;
  char copy[sizeof text];
  bool told = false;
  uint64_t wrong = 0;
  memset(report, 0, sizeof *report);
  memcpy(copy, text, sizeof text);
  const struct run_request request = {
      .cluster = &cluster, .workload = &workload, .job = &four, .exact = exact};
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
    const ncclResult_t result = all(&report, true);
    os_alloc_fail_at(0);
    run_report_free(&report);
    assert_int_equal(os_alloc_live(), live);
    if (os_alloc_count() - before < k) break;
    assert_int_equal(result, ncclSystemError);
  }
}

/* ---- equivalent ranks ---- */

static const char step_text[] = /* of training: groups within nodes, groups across nodes beside them */
    "comm tp0 0-3\ncomm tp1 4-7\ncomm tp2 8-11\ncomm tp3 12-15\n"
    "comm dp0 0-15/4\ncomm dp1 1-15/4\ncomm dp2 2-15/4\ncomm dp3 3-15/4\n"
    "repeat 3\n"
    "all_gather 1M comm tp0 after 20us\nall_gather 1M comm tp1 after 20us\n"
    "all_gather 1M comm tp2 after 20us\nall_gather 1M comm tp3 after 20us\n"
    "group stream side wait main\nreduce_scatter 8M comm dp0\nreduce_scatter 8M comm dp1\n"
    "reduce_scatter 8M comm dp2\nreduce_scatter 8M comm dp3\nend\n"
    "end\n"
    "all_gather 8M comm dp0 wait side\nall_gather 8M comm dp1 wait side\n"
    "all_gather 8M comm dp2 wait side\nall_gather 8M comm dp3 wait side\n"
    "compute 30us wait side\n";

/* Runs on `nodes` nodes of four into `report`. `fault` may be NULL. */
static void job_run(const char *job, uint32_t nodes, const char *fault, bool exact,
                    struct run_report *report) {
  struct cluster_spec spec;
  struct cluster own;
  struct workload workload;
  char copy[2048], why[128];
  cluster_spec_begin(&spec);
  spec.nodes = nodes;
  spec.gpus = 4;
  assert_int_equal(cluster_make(&spec, &own), ncclSuccess);
  if (fault && !cluster_fault(&own, fault, why, sizeof why)) fail_msg("%s", why);
  snprintf(copy, sizeof copy, "%s", job);
  assert_int_equal(workload_parse("job", copy, own.ranks, &workload), ncclSuccess);
  const struct run_request request = {.cluster = &own, .workload = &workload, .job = &any, .exact = exact};
  assert_int_equal(run_workload(&request, report), ncclSuccess);
  workload_free(&workload);
  cluster_free(&own);
}

/* Sums of doubles in another order: a tolerance of some ps per kernel. */
static void assert_near(uint64_t one, uint64_t other, uint64_t kernels) {
  const uint64_t apart = one > other ? one - other : other - one;
  if (apart > 100 * kernels) fail_msg("%llu and %llu ps", (unsigned long long)one, (unsigned long long)other);
}

static void assert_alike(const struct run_report *one, const struct run_report *other, uint32_t ranks) {
  assert_false(one->stalled || other->stalled);
  assert_near(one->end_ps, other->end_ps, 10);
  assert_int_equal(one->kernel_count, other->kernel_count);
  assert_int_equal(one->plan_count, other->plan_count);
  assert_near(one->kernel_ps, other->kernel_ps, 10 * one->kernel_count);
  assert_near(one->late_ps, other->late_ps, 10 * one->kernel_count);
  assert_int_equal(one->kind_count, other->kind_count);
  for (uint32_t i = 0; i < one->kind_count; i++) {
    const struct run_kind *kind = &one->kinds[i], *same = NULL; /* near ones may be swapped */
    for (uint32_t k = 0; k < other->kind_count; k++)
      if (other->kinds[k].call == kind->call) same = &other->kinds[k];
    assert_non_null(same);
    assert_int_equal(kind->count, same->count);
    assert_near(kind->sum_ps, same->sum_ps, 10 * kind->count);
    assert_near(kind->least_ps, same->least_ps, 10);
    assert_near(kind->most_ps, same->most_ps, 10);
  }
  for (uint32_t rank = 0; rank < ranks; rank++) {
    assert_near(one->busy_ps[rank], other->busy_ps[rank], 100);
    assert_int_equal(one->compute_ps[rank], other->compute_ps[rank]);
  }
}

/* One rank of each kind gives the same result as all ranks. */
static void ranks_fold(void **state) {
  static const struct {
    const char *job, *fault;
    uint32_t nodes, most; /* most: ranks that are simulated */
  } rows[] = {{"repeat 4\nall_reduce 1M after 5us\nend\nreduce_scatter 4M\n", NULL, 16, 16},
              {"all_gather 8M\nall_reduce 64M\nalltoall 256K\n", NULL, 4, 8},
              {step_text, NULL, 4, 4},
              {"comm even 0-15/2\ncomm odd 1-15/2\nall_gather 1M comm even\nall_gather 1M comm odd\n"
               "group stream side\nall_reduce 2M\nend\ncompute 1ms wait side\n",
               NULL, 4, 8},
              {"comm a 0-7\ncomm b 8-15\nall_gather 4M comm a\nall_gather 4M comm b after 90us\n"
               "all_gather 4M\n",
               NULL, 4, 8},
              {"all_reduce 4M\ncompute 9us ranks 5\nall_reduce 4M\n", NULL, 4, 16},
              {"repeat 3\nall_reduce 4M\nend\n", "slow-rank:3:2", 4, 16},
              /* communicators of one rank: a net without a connection */
              {"comm a 0\ncomm b 1\ncomm c 2\ncomm d 3\nall_reduce 1M comm a\nall_reduce 1M comm b\n"
               "all_reduce 1M comm c\nall_reduce 1M comm d\n",
               NULL, 1, 1}};
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    struct run_report some, all_of_them;
    const uint32_t ranks = 4 * rows[i].nodes;
    job_run(rows[i].job, rows[i].nodes, rows[i].fault, false, &some);
    job_run(rows[i].job, rows[i].nodes, rows[i].fault, true, &all_of_them);
    if (some.run_count > rows[i].most) fail_msg("row %zu: %u ranks ran", i, some.run_count);
    assert_int_equal(all_of_them.run_count, ranks);
    assert_true(some.slice_count < all_of_them.slice_count);
    assert_alike(&some, &all_of_them, ranks);
    run_report_free(&some);
    run_report_free(&all_of_them);
  }
}

/* Two streams with one communicator, without a dependency: their order is unknown. */
static void streams_without_order_do_not_fold(void **state) {
  struct run_report report;
  (void)state;
  job_run("all_reduce 1M\nall_reduce 1M stream side\n", 2, NULL, false, &report);
  assert_int_equal(report.run_count, 8);
  run_report_free(&report);
  job_run("all_reduce 1M\nall_reduce 1M stream side wait main\n", 2, NULL, false, &report);
  assert_true(report.run_count < 8);
  run_report_free(&report);
}

/* A deadlock is reported for all ranks: the run without folding follows. */
static void stalls_are_told_of_all(void **state) {
  static const char job[] =
      "comm a 0-7\ncomm b 0-7\nall_reduce 1M comm a\nall_reduce 1M\nall_reduce 1M comm b\n";
  struct run_report some, all_of_them;
  (void)state;
  job_run(job, 2, "nic:0:0:off", false, &some);
  job_run(job, 2, "nic:0:0:off", true, &all_of_them);
  assert_int_equal(some.stalled, all_of_them.stalled);
  assert_true(some.stalled);
  assert_string_equal(some.text, all_of_them.text);
  run_report_free(&some);
  run_report_free(&all_of_them);
}

/* Without memory for a fold every rank is simulated; without memory for the rest nothing is. */
static void folds_without_memory_are_none(void **state) {
  (void)state;
  const uint64_t live = os_alloc_live();
  for (uint64_t k = 1;; k++) {
    struct run_report report;
    os_alloc_fail_at(k);
    const uint64_t before = os_alloc_count();
    const ncclResult_t result = all(&report, false);
    os_alloc_fail_at(0);
    if (result == ncclSuccess) assert_int_equal(report.kernel_count, 16);
    else assert_int_equal(result, ncclSystemError);
    run_report_free(&report);
    assert_int_equal(os_alloc_live(), live);
    if (os_alloc_count() - before < k) break;
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
  const struct run_request request = {
      .cluster = &cluster, .workload = &workload, .job = &four, .watch = &watch};
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

/* The progress output counts the slices that are then simulated. */
static void progress_knows_all_slices(void **state) {
  (void)state;
  struct workload workload;
  struct run_report report;
  struct progress progress;
  char copy[sizeof text];
  memcpy(copy, text, sizeof text);
  assert_int_equal(workload_parse("job", copy, 4, &workload), ncclSuccess);
  progress_open(&progress, "sim", "slices", stderr, true, os_time_ns());
  const struct run_request request = {
      .cluster = &cluster, .workload = &workload, .job = &four, .progress = &progress};
  assert_int_equal(run_workload(&request, &report), ncclSuccess);
  assert_true(report.slice_count > 0);
  assert_int_equal(progress.work_count, report.slice_count);
  run_report_free(&report);
  workload_free(&workload);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(memory_runs_out_cleanly, setup, teardown),
      cmocka_unit_test_setup_teardown(ranks_fold, setup, teardown),
      cmocka_unit_test_setup_teardown(streams_without_order_do_not_fold, setup, teardown),
      cmocka_unit_test_setup_teardown(stalls_are_told_of_all, setup, teardown),
      cmocka_unit_test_setup_teardown(folds_without_memory_are_none, setup, teardown),
      cmocka_unit_test_setup_teardown(streams_keep_their_order, setup, teardown),
      cmocka_unit_test_setup_teardown(progress_knows_all_slices, setup, teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
