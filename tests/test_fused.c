/* test_fused.c: broadcasts of one group with different roots, fused: their plan, that every rank sends what
 * the next one expects in the same order, results through the API with small buffers, and that ranks with
 * different sizes get an error, part by part. */
/* sanitizers: address thread */
/* runner: tsan 14 s */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime.h>

#include "base/param.h"
#include "core/plan/plan.h"
#include "nccl.h"
#include "schedule/algo.h"
#include "tutti.h"

enum { RANKS = 7, OPS_MAX = 24, CHANNELS = 3 };

/* ---- plans ---- */

static struct {
  uint32_t ring[RANKS];
  struct graph graph;
  struct plan_op ops[OPS_MAX];
  uint32_t op_count;
  struct plan plans[RANKS];
} world;

static void ops_add(uint32_t root, size_t count) {
  struct plan_op *op = &world.ops[world.op_count];
  memset(op, 0, sizeof *op);
  op->func = FUNC_BROADCAST;
  op->dtype = ncclInt8;
  op->peer = root;
  op->count = count;
  op->sequence = world.op_count++;
  op->in = (const char *)(uintptr_t)(op->sequence + 1);
  op->out = (char *)(uintptr_t)(op->sequence + 101);
}

static void request_begin(struct plan_request *request, uint32_t rank) {
  memset(&world.graph, 0, sizeof world.graph);
  memset(request, 0, sizeof *request);
  world.graph.rank_count = RANKS;
  world.graph.node_count = 1;
  world.graph.channel_count = PLAN_CHANNELS_MAX;
  for (uint32_t i = 0; i < RANKS; i++) world.ring[i] = i * 3 % RANKS;
  for (uint32_t i = 0; i < PLAN_CHANNELS_MAX; i++) world.graph.ring[i] = world.ring;
  request->rank = rank;
  request->rank_count = RANKS;
  request->graph = &world.graph;
  request->settings.limits = (struct plan_limits){.slots = 4,
                                                  .step_bytes = {4096, 4096, 4096},
                                                  .p2p_chunk_bytes = 4096,
                                                  .channel_count = CHANNELS,
                                                  .p2p_channel_count = 1,
                                                  .p2p_channels_per_peer = 1,
                                                  .flag_bits = 32,
                                                  .direct = true,
                                                  .algos = PLAN_FUSES,
                                                  .links = 1};
  request->ops = world.ops;
  request->op_count = world.op_count;
  for (uint32_t func = 0; func < FUNC_COUNT; func++) {
    request->settings.algo_mask[func] = (1u << ALGO_COUNT) - 1;
    request->settings.proto_mask[func] = 7;
  }
}

static void plans_build(void) {
  for (uint32_t rank = 0; rank < RANKS; rank++) {
    struct plan_request request;
    request_begin(&request, rank);
    assert_int_equal(plan_build(&request, &world.plans[rank]), ncclSuccess);
  }
}

static void plans_free(void) {
  for (uint32_t rank = 0; rank < RANKS; rank++) plan_free(&world.plans[rank]);
}

/* The bytes that pass a link, in order. */
struct passed {
  uint64_t sequence;
  size_t offset, count;
};
enum { PASSED_MAX = 400 };

/* What a rank sends, or receives, on a channel: the steps of every lane, batch after batch. */
static uint32_t passed_on(uint32_t rank, uint32_t channel, uint32_t flag, struct passed *passed) {
  const struct plan *plan = &world.plans[rank];
  uint32_t count = 0;
  for (uint32_t b = 0; b < plan->batch_count; b++) {
    const struct work *work = &plan->works[plan->batches[b].first_work];
    struct algo_iter iter;
    struct step step;
    if (plan->batches[b].channel_index != channel) continue;
    assert_int_equal(plan->batches[b].work_count, 1);
    memset(&iter, 0, sizeof iter);
    algo_begin(&iter, work);
    while (algo_next(&iter, work, &step)) {
      const struct work *part = work + step.part;
      assert_true(step.count > 0 && step.out_offset + step.count <= part->part_offset + part->part_count);
      if ((step.flags & flag) == 0) continue;
      assert_true(count < PASSED_MAX);
      passed[count].sequence = part->op_sequence;
      passed[count].offset = step.out_offset;
      passed[count++].count = step.count;
    }
  }
  return count;
}

static void check_links(void) {
  static struct passed sent[PASSED_MAX], received[PASSED_MAX];
  for (uint32_t i = 0; i < RANKS; i++)
    for (uint32_t channel = 0; channel < CHANNELS; channel++) {
      memset(sent, 0, sizeof sent);
      memset(received, 0, sizeof received);
      const uint32_t sends = passed_on(world.ring[i], channel, STEP_SEND, sent);
      const uint32_t receives = passed_on(world.ring[(i + 1) % RANKS], channel, STEP_RECV, received);
      assert_int_equal(sends, receives);
      assert_memory_equal(sent, received, sends * sizeof *sent);
    }
}

/* Every rank stores each byte of each broadcast once. */
static void check_kept(void) {
  static struct passed kept[PASSED_MAX];
  for (uint32_t rank = 0; rank < RANKS; rank++) {
    size_t bytes[OPS_MAX] = {0};
    for (uint32_t channel = 0; channel < CHANNELS; channel++) {
      const uint32_t count = passed_on(rank, channel, STEP_KEEP, kept);
      for (uint32_t k = 0; k < count; k++) bytes[kept[k].sequence] += kept[k].count;
    }
    for (uint32_t i = 0; i < world.op_count; i++) assert_int_equal(bytes[i], world.ops[i].count);
  }
}

static void test_links_agree(void **state) {
  (void)state;
  for (uint32_t turn = 0; turn < 60; turn++) {
    world.op_count = 0;
    for (uint32_t i = 0; i < 2 + turn % 17; i++)
      ops_add((i * (1 + turn % 3) + turn) % RANKS, (i * 37 + turn) % 5 * (turn % 2 ? 9000 : 41));
    plans_build();
    check_links();
    check_kept();
    plans_free();
  }
}

/* Parts are in the order of their roots' distance, the rank's own first; second broadcasts of a root are in a
 * later batch, and a broadcast alone in its batch is not fused. */
static void test_order(void **state) {
  static const uint64_t expected[] = {3, 1, 0, 4, 2};
  (void)state;
  world.op_count = 0;
  ops_add(3, 100); /* ring: 0 3 6 2 5 1 4; two hops before rank 2 */
  ops_add(6, 100);
  ops_add(6, 100);
  ops_add(2, 100);
  ops_add(5, 100);
  ops_add(2, 0); /* no operation */
  plans_build();
  const struct plan *plan = &world.plans[2];
  assert_int_equal(plan->work_count, 5);
  assert_int_equal(plan->batch_count, 2);
  assert_int_equal(plan->batches[0].first_work, 0); /* works that are not fused come first */
  assert_int_equal(plan->works[0].op_sequence, expected[4]);
  assert_int_equal(plan->works[0].flags & (WORK_FUSED | WORK_PART), 0);
  for (uint32_t i = 0; i < 4; i++) {
    const struct work *work = &plan->works[1 + i];
    assert_int_equal(work->op_sequence, expected[i]);
    assert_int_equal(work->flags & (WORK_FUSED | WORK_PART), i == 0 ? WORK_FUSED : WORK_PART);
  }
  assert_int_equal(plan->works[1].fused_count, 4);
  assert_true(plan->works[1].recv_count == 1 && plan->works[1].send_count == 1);
  plans_free();
}

/* Works with fused parts in the plan if `limit` changes the request. */
static uint32_t fused_works(void (*limit)(struct plan_request *request)) {
  struct plan_request request;
  struct plan plan;
  uint32_t fused = 0;
  world.op_count = 0;
  ops_add(1, 300);
  ops_add(2, 300);
  request_begin(&request, 0);
  limit(&request);
  assert_int_equal(plan_build(&request, &plan), ncclSuccess);
  for (uint32_t i = 0; i < plan.work_count; i++) {
    fused += (plan.works[i].flags & WORK_FUSED) != 0;
    if (fused > 0) assert_int_not_equal(plan.works[i].proto, PROTO_LL128);
  }
  plan_free(&plan);
  return fused;
}

static void limit_nothing(struct plan_request *request) { (void)request; }
static void limit_backend(struct plan_request *request) { request->settings.limits.algos = 0; }
static void limit_slots(struct plan_request *request) { request->settings.limits.slots = 1; }
static void limit_ring(struct plan_request *request) {
  request->settings.algo_mask[FUNC_BROADCAST] = 1u << ALGO_DIRECT;
  request->settings.limits.algos = ~0u;
  request->settings.limits.links = RANKS;
}
static void limit_ll(struct plan_request *request) { request->settings.proto_mask[FUNC_BROADCAST] = 2; }
static void limit_most(struct plan_request *request) { request->settings.proto_mask[FUNC_BROADCAST] = 6; }

static void test_when_fused(void **state) {
  (void)state;
  assert_int_equal(fused_works(limit_nothing), 1);
  assert_int_equal(fused_works(limit_most), 1);
  assert_int_equal(fused_works(limit_backend), 0);
  assert_int_equal(fused_works(limit_slots), 0);
  assert_int_equal(fused_works(limit_ring), 0);
  assert_int_equal(fused_works(limit_ll), 0);
}

/* ---- runs ---- */

static struct {
  int ranks;
  ncclComm_t comms[8];
  cudaStream_t streams[8];
  unsigned char *in[8], *out[8];
  size_t begin[9]; /* of each root's block */
} run;

static void good(ncclResult_t result) {
  if (result != ncclSuccess) fail_msg("%s: %s", ncclGetErrorString(result), ncclGetLastError(NULL));
}
static void good_cuda(cudaError_t error) {
  if (error != cudaSuccess) fail_msg("%s: %s", cudaGetErrorString(error), ncclGetLastError(NULL));
}

static unsigned char value_of(int root, size_t index) {
  return (unsigned char)(root * 37 + index * 11 + index / 256);
}

static void run_open(int ranks, const char *environment, const char *protocol, uint64_t seed, int threads) {
  const tutti_emu_config_t config = {.size = sizeof config, .seed = seed, .threads = threads};
  setenv("TUTTI_EMU", environment, 1);
  setenv("NCCL_PROTO", protocol, 1);
  param_reset();
  good(tutti_emu_configure(&config));
  run.ranks = ranks;
  good(ncclCommInitAll(run.comms, ranks, NULL));
  for (int root = 0; root < ranks; root++)
    run.begin[root + 1] = run.begin[root] + (seed * 7 + (size_t)root * 5) % 6 * (seed % 2 ? 31 : 9001);
  for (int rank = 0; rank < ranks; rank++) {
    good_cuda(cudaSetDevice(rank));
    good_cuda(cudaStreamCreateWithFlags(&run.streams[rank], cudaStreamNonBlocking));
    good_cuda(cudaMalloc((void **)&run.in[rank], run.begin[ranks] + 1));
    good_cuda(cudaMalloc((void **)&run.out[rank], run.begin[ranks] + 1));
    memset(run.in[rank], 0xcc, run.begin[ranks] + 1);
    memset(run.out[rank], 0xee, run.begin[ranks] + 1);
    for (size_t i = run.begin[rank]; i < run.begin[rank + 1]; i++)
      run.in[rank][i] = value_of(rank, i - run.begin[rank]);
  }
}

static void run_close(void) {
  for (int rank = 0; rank < run.ranks; rank++) {
    good(ncclCommDestroy(run.comms[rank]));
    good_cuda(cudaStreamDestroy(run.streams[rank]));
    good_cuda(cudaFree(run.in[rank]));
    good_cuda(cudaFree(run.out[rank]));
  }
}

/* Broadcasts each rank's block to all; even roots work in place. The last rank passes root 0's block
 * `surplus` too large and root 1's, which begins behind it, too small. */
static void launch(int surplus) {
  good(ncclGroupStart());
  for (int rank = 0; rank < run.ranks; rank++)
    for (int root = 0; root < run.ranks; root++) {
      size_t count = run.begin[root + 1] - run.begin[root];
      unsigned char *out = run.out[rank] + run.begin[root], *in = run.in[rank] + run.begin[root];
      if (rank == root && root % 2 == 0) memcpy(out, in, count);
      if (rank == root && root % 2 == 0) in = out;
      if (rank + 1 == run.ranks && root < 2) count += (size_t)(root == 0 ? surplus : -surplus);
      if (rank + 1 == run.ranks && root == 1) out += surplus;
      good(ncclBroadcast(in, out, count, ncclInt8, root, run.comms[rank], run.streams[rank]));
    }
  good(ncclGroupEnd());
}

static void run_check(void) {
  for (int rank = 0; rank < run.ranks; rank++) {
    good_cuda(cudaStreamSynchronize(run.streams[rank]));
    for (int root = 0; root < run.ranks; root++)
      for (size_t i = run.begin[root]; i < run.begin[root + 1]; i++)
        assert_int_equal(run.out[rank][i], value_of(root, i - run.begin[root]));
    assert_int_equal(run.out[rank][run.begin[run.ranks]], 0xee);
  }
}

static void test_runs(void **state) {
  static const char *const settings[] = {"slots=2,chunk=64,channels=3", "slots=8,chunk=600,depth=4,lag=60",
                                         "slots=3,chunk=40,channels=2,rule=priority,depth=2,lag=30,span=1",
                                         "slots=2,chunk=480,rule=round_robin,flag_bits=5"};
  static const char *const protocols[] = {"LL", "Simple", "LL128"};
  (void)state;
  for (uint64_t seed = 1; seed <= 36; seed++) {
    run_open(2 + (int)(seed % 7), settings[seed % 4], protocols[seed % 3], seed, seed % 9 == 0);
    for (int repeat = 0; repeat < 2; repeat++) {
      launch(0);
      run_check();
    }
    run_close();
  }
}

/* The last rank moves some bytes from one root's block to another's: the sum is equal, the parts differ. */
static void test_sizes_are_compared(void **state) {
  static const char *const protocols[] = {"LL", "Simple"};
  (void)state;
  setenv("NCCL_CHECK_MODE", "LOCAL", 1); /* the lanes are to find the difference */
  for (int i = 0; i < 2; i++) {
    run_open(4, "slots=4,channels=1", protocols[i], 3, 0);
    run.begin[1] = 40;
    run.begin[2] = 80; /* any contents */
    launch(8);
    bool refused = false;
    for (int rank = 0; rank < 4; rank++)
      refused = cudaStreamSynchronize(run.streams[rank]) != cudaSuccess || refused;
    assert_true(refused);
    assert_non_null(strstr(ncclGetLastError(NULL), "do not agree"));
    for (int rank = 0; rank < 4; rank++) {
      ncclResult_t error = ncclSuccess;
      good(ncclCommGetAsyncError(run.comms[rank], &error));
      assert_int_equal(error, ncclInvalidUsage);
      good(ncclCommAbort(run.comms[rank]));
      good_cuda(cudaStreamDestroy(run.streams[rank]));
      good_cuda(cudaFree(run.in[rank]));
      good_cuda(cudaFree(run.out[rank]));
    }
  }
  unsetenv("NCCL_CHECK_MODE");
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_links_agree), cmocka_unit_test(test_order),
                                     cmocka_unit_test(test_when_fused), cmocka_unit_test(test_runs),
                                     cmocka_unit_test(test_sizes_are_compared)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
