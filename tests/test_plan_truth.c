/* test_plan_truth.c: what `explain plan` and `sim` plan is what a communicator of the job runs. Communicators
 * of many machines, modes and settings capture each operation at each size (so nothing needs to run), and the
 * plans in their records are compared with those that the tools make without a communicator: algorithm,
 * protocol, channels, works, chunks, slots, and the digest of all that ranks must agree on. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>
#include <nccl.h>

#include "base/log.h"
#include "base/os.h"
#include "base/param.h"
#include "check/request.h"
#include "collective.h"
#include "core/comm/comm.h"
#include "core/plan/names.h"
#include "core/plan/plan.h"
#include "must.h"
#include "planning.h"
#include "simulate/call.h"
#include "simulate/cluster.h"

#define RANKS_MAX 32
#define NODES_MAX 4

struct machine {
  uint32_t nodes, devices, gpus[NODES_MAX]; /* devices: of the emulator, divided evenly */
};

static const struct machine machines[] = {
    {1, 2, {2}}, {1, 8, {8}}, {2, 8, {4, 4}}, {4, 32, {8, 8, 8, 8}}, {2, 8, {4, 2}}, {3, 3, {1, 1, 1}},
};

/* Of the job's environment. */
static const struct setting {
  enum planning_as as;
  const char *emu, *name, *value; /* keys of TUTTI_EMU; a variable, or NULL */
} settings[] = {
    {PLANNING_EMU, "net=1", NULL, NULL},
    {PLANNING_THREADS, "net=1", NULL, NULL},
    {PLANNING_EMU, "channels=16,net=1", NULL, NULL},
    {PLANNING_EMU, "channels=4", NULL, NULL}, /* nodes share memory */
    {PLANNING_EMU, "net=1,chunk=4096,slots=4", NULL, NULL},
    {PLANNING_EMU, "net=1,direct=0,tear=1", NULL, NULL},
    {PLANNING_EMU, "net=1,channels=8", "NCCL_PROTO", "LL128,Simple"},
    {PLANNING_EMU, "net=1,channels=8", "NCCL_ALGO", "^tree"},
    {PLANNING_EMU, "net=1", "NCCL_BUFFSIZE", "1048576"},
    {PLANNING_EMU, "net=1,channels=8", "NCCL_MAX_NCHANNELS", "3"},
};

static const size_t sizes[] = {8, 1024, 12340, 65536, 1 << 20, 16 << 20, 64 << 20};

struct job {
  const struct machine *machine;
  const struct setting *setting;
  uint32_t rank_count;
  struct planning planning;
  struct graph graph;
  struct plan_request request;
  struct cluster cluster; /* of the simulator; only where nodes are alike */
  bool simulated;
  ncclComm_t comms[RANKS_MAX];
  cudaStream_t streams[RANKS_MAX];
  uint64_t compared;
};

/* ---- the tools ---- */

static void environment_set(const struct job *job) {
  char emu[160];
  snprintf(emu, sizeof emu, "devices=%u,nodes=%u,%s", job->machine->devices, job->machine->nodes,
           job->setting->emu);
  setenv("TUTTI_EMU", emu, 1);
  setenv("NCCL_CHECK_POINTERS", "0", 1); /* no buffer is read or written */
  for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++)
    if (settings[i].name) unsetenv(settings[i].name);
  if (job->setting->name) setenv(job->setting->name, job->setting->value, 1);
  param_reset();
}

static void job_open(struct job *job, const struct machine *machine, const struct setting *setting) {
  const struct planning_ask ask = {.verb = "explain", .usual = setting->as};
  struct cluster_spec spec;
  memset(job, 0, sizeof *job);
  job->machine = machine;
  job->setting = setting;
  environment_set(job);
  assert_int_equal(planning_open(&ask, &job->planning), EXIT_GOOD);
  assert_int_equal(planning_graph(&job->planning, NULL, machine->gpus, machine->nodes, &job->graph),
                   ncclSuccess);
  job->rank_count = job->graph.rank_count;
  planning_request(&job->planning, &job->graph, &job->request);
  job->simulated = job->rank_count == machine->devices;
  cluster_spec_begin(&spec);
  spec.nodes = machine->nodes;
  spec.gpus = machine->gpus[0];
  spec.channels = job->planning.settings.plan.limits.channel_count;
  assert_int_equal(cluster_make(&spec, &job->cluster), ncclSuccess);
  MUST(ncclCommInitAll(job->comms, (int)job->rank_count, NULL));
  for (uint32_t rank = 0; rank < job->rank_count; rank++) {
    MUST(cudaSetDevice((int)rank));
    MUST(cudaStreamCreate(&job->streams[rank]));
  }
}

static void job_close(struct job *job) {
  for (uint32_t rank = 0; rank < job->rank_count; rank++) MUST(cudaStreamDestroy(job->streams[rank]));
  for (uint32_t rank = 0; rank < job->rank_count; rank++) MUST(ncclCommDestroy(job->comms[rank]));
  planning_close(&job->planning);
  graph_free(&job->graph);
  cluster_free(&job->cluster);
}

/* ---- the library ---- */

/* Only the address counts. */
static void *address(uint64_t value) { return (void *)(uintptr_t)value; }

static ncclResult_t called(const struct job *job, uint8_t func, size_t count, uint32_t rank) {
  void *in = address(UINT64_C(0x100000000000)), *out = address(UINT64_C(0x200000000000));
  ncclComm_t comm = job->comms[rank];
  cudaStream_t stream = job->streams[rank];
  const int next = (int)((rank + 1) % job->rank_count);
  const int last = (int)((rank + job->rank_count - 1) % job->rank_count);
  switch (func) {
    case FUNC_ALL_REDUCE: return ncclAllReduce(in, out, count, ncclFloat, ncclSum, comm, stream);
    case FUNC_REDUCE: return ncclReduce(in, out, count, ncclFloat, ncclSum, 0, comm, stream);
    case FUNC_BROADCAST: return ncclBroadcast(in, out, count, ncclFloat, 0, comm, stream);
    case FUNC_ALL_GATHER: return ncclAllGather(in, out, count, ncclFloat, comm, stream);
    case FUNC_REDUCE_SCATTER: return ncclReduceScatter(in, out, count, ncclFloat, ncclSum, comm, stream);
    case FUNC_ALL_TO_ALL: return ncclAlltoAll(in, out, count, ncclFloat, comm, stream);
    case FUNC_GATHER: return ncclGather(in, out, count, ncclFloat, 0, comm, stream);
    case FUNC_SCATTER: return ncclScatter(in, out, count, ncclFloat, 0, comm, stream);
    default:
      MUST(ncclSend(in, count, ncclFloat, next, comm, stream));
      return ncclRecv(out, count, ncclFloat, last, comm, stream);
  }
}

/* The plan of the rank's last launch, as its record says. */
static const struct record_plan *plan_newest(const struct job *job, uint32_t rank) {
  const struct recorder *recorder = &job->comms[rank]->recorder;
  for (uint64_t i = recorder->tail; recorder->comm && i-- > 0;) {
    const struct record_launch *launch = &recorder->ring[i & recorder->mask].launch;
    if (launch->kind == RECORD_LAUNCH) return &recorder->plans[launch->plan % RECORD_PLANS];
  }
  return NULL;
}

static void captured(struct job *job, uint8_t func, size_t count) {
  for (uint32_t rank = 0; rank < job->rank_count; rank++)
    MUST(cudaStreamBeginCapture(job->streams[rank], cudaStreamCaptureModeThreadLocal));
  MUST(ncclGroupStart());
  for (uint32_t rank = 0; rank < job->rank_count; rank++) MUST(called(job, func, count, rank));
  MUST(ncclGroupEnd());
  for (uint32_t rank = 0; rank < job->rank_count; rank++) {
    cudaGraph_t graph;
    MUST(cudaStreamEndCapture(job->streams[rank], &graph));
    MUST(cudaGraphDestroy(graph));
  }
}

/* ---- comparing ---- */

static void differ(const struct job *job, const char *tool, const char *name, size_t bytes, uint32_t rank,
                   const struct record_plan *row, const struct plan *plan) {
  const struct work *work = &plan->works[0];
  fail_msg(
      "%s of %zu bytes on %u nodes, %u ranks, %s %s: rank %u ran %s %s on %u channels, %u works, chunks "
      "of %u; %s plans %s %s on %d channels, %u works, chunks of %zu",
      name, bytes, job->machine->nodes, job->rank_count, job->setting->emu,
      job->setting->value ? job->setting->value : "", rank, names_algo[row->algo], names_proto[row->proto],
      row->channels, row->works, row->chunk_elements, tool, names_algo[work->algo], names_proto[work->proto],
      __builtin_popcountll(plan->channel_mask), plan->work_count, work->chunk_count);
}

static void compare(struct job *job, const char *tool, const char *name, size_t bytes, uint32_t rank,
                    const struct plan *plan) {
  const struct record_plan *row = plan_newest(job, rank);
  if (plan->work_count == 0) return; /* nothing was launched */
  assert_non_null(row);
  const struct work *work = &plan->works[0];
  const bool same =
      row->func == work->func && row->algo == work->algo && row->proto == work->proto &&
      row->works == plan->work_count && row->channels == __builtin_popcountll(plan->channel_mask) &&
      row->chunk_elements == work->chunk_count && row->chunk_steps == work->chunk_steps &&
      row->slice_steps == work->slice_steps && row->slots == plan->limits.slots &&
      row->step_bytes == plan->limits.step_bytes[work->proto] && row->digest == plan_digest(plan);
  if (!same) differ(job, tool, name, bytes, rank, row, plan);
  job->compared += 1;
}

/* As `explain plan` does for a rank. */
static void explained(struct job *job, const struct check_call *call, const char *name, size_t bytes,
                      uint32_t rank) {
  static struct plan_op ops[2 * RANKS_MAX + 2];
  struct plan_request request = job->request;
  struct plan plan;
  request.rank = rank;
  request.ops = ops;
  request.op_count = check_call_ops(call, rank, ops);
  memset(&plan, 0, sizeof plan);
  assert_int_equal(plan_build(&request, &plan), ncclSuccess);
  compare(job, "explain plan", name, bytes, rank, &plan);
  plan_free(&plan);
}

/* As `sim` does for all ranks. */
static void simulated(struct job *job, uint8_t func, size_t count, const char *name, size_t bytes) {
  struct check_setup setup;
  struct check_call call;
  struct plan_request request;
  memset(&setup, 0, sizeof setup);
  planning_request(&job->planning, &job->cluster.graph, &request);
  call_fill(&job->cluster.graph, func, ncclFloat, count, 0, &call);
  call.job = &request;
  assert_int_equal(check_setup_make(&setup, &call), ncclSuccess);
  for (uint32_t rank = 0; rank < job->rank_count; rank++)
    compare(job, "sim", name, bytes, rank, &setup.plans[rank]);
  check_setup_free(&setup);
}

static void one(struct job *job, const struct collective *collective, size_t bytes) {
  const uint8_t func = collective_func(collective);
  const size_t count = collective_count(collective, bytes, sizeof(float), job->rank_count);
  struct check_call call;
  if (count == 0) return;
  captured(job, func, count);
  call_fill(&job->graph, func, ncclFloat, count, 0, &call);
  call.job = &job->request;
  for (uint32_t rank = 0; rank < job->rank_count; rank++)
    explained(job, &call, collective->name, bytes, rank);
  if (job->simulated) simulated(job, func, count, collective->name, bytes);
}

/* On the largest machine a few settings are enough. */
static void plans_are_those_of_the_run(void **state) {
  (void)state;
  uint64_t compared = 0;
  for (size_t m = 0; m < sizeof machines / sizeof machines[0]; m++)
    for (size_t s = 0; s < sizeof settings / sizeof settings[0]; s++) {
      struct job job;
      if (machines[m].devices > 8 && s > 2) continue;
      job_open(&job, &machines[m], &settings[s]);
      for (size_t c = 0; collective_at(c); c++)
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) one(&job, collective_at(c), sizes[i]);
      compared += job.compared;
      job_close(&job);
    }
  print_message("%llu plans compared\n", (unsigned long long)compared);
  assert_true(compared > 20000);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(plans_are_those_of_the_run)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
