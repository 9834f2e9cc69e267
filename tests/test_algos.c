/* test_algos.c: the algorithms other than rings, through the API: each on every collective, type and operator
 * that it supports, at 2 to 9 ranks and settings drawn by seed (slots, chunks, channels, depth, lag, rule,
 * direct stores), in place and out of place, one launch per call or all calls in one. Results are compared
 * with sim/oracle.h; if all ranks get the same values they must get the same bits, and memory after an output
 * must not change. A quarter of the seeds runs, another one each day (part.h); TUTTI_TEST_SEED=N runs only
 * the case of that seed. */
/* sanitizers: address thread */
/* runner: 5 s */
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
#include "collective.h"
#include "part.h"
#include "random.h"
#include "tutti.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
enum { WORLDS = 60, PARTS = 1 };
#else
enum { WORLDS = 600, PARTS = 4 }; /* seeds choose one of five algorithms */
#endif
enum { RANKS_MAX = 9, CALLS_MAX = 16, GUARD_BYTES = 64, GUARD = 0xb7 };

/* An algorithm, and the cases that it supports. */
struct algo {
  const char *name;
  uint32_t collectives; /* set of enum collective_id */
  uint32_t scatter_ops; /* operators of reduce-scatter: set of enum oracle_op */
  bool simple;          /* only Simple */
};
#define BIT(id) (1u << (id))
static const struct algo algos[] = {
    {"PAT", BIT(COLLECTIVE_ALL_GATHER) | BIT(COLLECTIVE_REDUCE_SCATTER),
     BIT(ORACLE_SUM) | BIT(ORACLE_PROD) | BIT(ORACLE_MAX) | BIT(ORACLE_MIN), true},
    {"Tree", BIT(COLLECTIVE_ALL_REDUCE), 0, false},
    {"NVLS", BIT(COLLECTIVE_ALL_REDUCE) | BIT(COLLECTIVE_ALL_GATHER) | BIT(COLLECTIVE_REDUCE_SCATTER),
     BIT(ORACLE_OP_COUNT) - 1, true},
    {"TwoShot", BIT(COLLECTIVE_ALL_REDUCE), 0, false},
    {"Direct",
     BIT(COLLECTIVE_ALL_REDUCE) | BIT(COLLECTIVE_ALL_GATHER) | BIT(COLLECTIVE_REDUCE_SCATTER) |
         BIT(COLLECTIVE_BROADCAST) | BIT(COLLECTIVE_ALLTOALL),
     BIT(ORACLE_OP_COUNT) - 1, false},
};
enum { ALGOS = sizeof algos / sizeof algos[0] };

struct call {
  struct oracle_case c;
  const struct collective *collective;
  bool in_place;
  unsigned char *send[RANKS_MAX], *receive[RANKS_MAX]; /* as passed to the call */
  unsigned char *memory[RANKS_MAX][2];
};

static struct {
  uint64_t seed, random;
  const struct algo *algo;
  char environment[160];
  const char *protocol;
  uint32_t rank_count, call_count;
  bool fused;
  ncclComm_t comms[RANKS_MAX];
  cudaStream_t streams[RANKS_MAX];
  ncclRedOp_t operators[CALLS_MAX][RANKS_MAX];
  struct call calls[CALLS_MAX];
} world;

static uint32_t draw(uint32_t bound) { return random_below(&world.random, bound); }

static void complain(const struct call *call, const char *what) {
  fail_msg(
      "TUTTI_TEST_SEED=%llu: %s, %s, %u ranks, TUTTI_EMU=%s, %s: %s of %zu elements of type %d, "
      "operator %d, root %u, %s: %s",
      (unsigned long long)world.seed, world.algo->name, world.protocol, world.rank_count, world.environment,
      world.fused ? "one group" : "one launch a call", call ? call->collective->name : "set-up",
      call ? call->c.count : 0, call ? (int)call->c.type : 0, call ? (int)call->c.op : 0,
      call ? call->c.root : 0, call && call->in_place ? "in place" : "apart", what);
}

static void good(const struct call *call, ncclResult_t result) {
  if (result != ncclSuccess) complain(call, ncclGetLastError(NULL));
}
static void good_cuda(const struct call *call, cudaError_t error) {
  if (error != cudaSuccess) complain(call, ncclGetLastError(NULL)[0] ? ncclGetLastError(NULL) : "CUDA fails");
}

/* ---- the world ---- */

static void draw_environment(void) {
  static const char *const rules[] = {"random", "priority", "round_robin"};
  static const uint32_t chunks[] = {16, 40, 480, 4096};
  snprintf(world.environment, sizeof world.environment,
           "devices=%d,slots=%u,chunk=%u,channels=%u,depth=%u,lag=%u,rule=%s,span=%u,flag_bits=%u,direct=%u",
           RANKS_MAX, 2 + draw(7), chunks[draw(4)], 1 + draw(3), 1 + draw(4), draw(3) * 40, rules[draw(3)],
           1 + draw(8), 5 + draw(4), draw(2));
}

static void world_open(uint64_t seed) {
  static const char *const protocols[] = {"LL", "LL128", "Simple"};
  world.seed = seed;
  world.random = seed * UINT64_C(0x9e3779b97f4a7c15);
  world.algo = &algos[seed % ALGOS];
  world.rank_count = 2 + draw(RANKS_MAX - 1);
  world.protocol = world.algo->simple ? "Simple" : protocols[draw(3)];
  world.fused = draw(2) != 0;
  draw_environment();
  const tutti_emu_config_t config = {.size = sizeof config, .seed = seed, .threads = draw(12) == 0};
  setenv("TUTTI_EMU", world.environment, 1);
  setenv("NCCL_PROTO", world.protocol, 1);
  setenv("NCCL_ALGO", world.algo->name, 1);
  param_reset();
  good(NULL, tutti_emu_configure(&config));
  good(NULL, ncclCommInitAll(world.comms, (int)world.rank_count, NULL));
  for (uint32_t rank = 0; rank < world.rank_count; rank++) {
    good_cuda(NULL, cudaSetDevice((int)rank));
    good_cuda(NULL, cudaStreamCreateWithFlags(&world.streams[rank], cudaStreamNonBlocking));
  }
}

/* ---- calls ---- */

static size_t memory_bytes(const struct call *call) {
  return call->c.count * world.rank_count * oracle_type_bytes(call->c.type);
}

static void call_place(struct call *call, uint32_t rank) {
  const size_t bytes = memory_bytes(call), own = call->c.count * rank * oracle_type_bytes(call->c.type);
  good_cuda(call, cudaSetDevice((int)rank));
  for (uint32_t i = 0; i < 2; i++) {
    good_cuda(call, cudaMalloc((void **)&call->memory[rank][i], bytes + GUARD_BYTES));
    memset(call->memory[rank][i], GUARD, bytes + GUARD_BYTES);
  }
  call->send[rank] = call->memory[rank][0];
  call->receive[rank] = call->memory[rank][call->in_place ? 0 : 1];
  if (call->in_place && call->collective->in_place == IN_PLACE_SEND_AT_RANK) call->send[rank] += own;
  if (call->in_place && call->collective->in_place == IN_PLACE_RECEIVE_AT_RANK) call->receive[rank] += own;
  oracle_input(&call->c, rank, 0, oracle_send_count(&call->c, rank), call->send[rank]);
}

static void call_draw(struct call *call, const struct collective *collective, uint32_t turn) {
  static const uint32_t counts[] = {1, 2, 7, 33, 65, 301};
  memset(call, 0, sizeof *call);
  call->collective = collective;
  call->c.collective = collective->id;
  call->c.type = (ncclDataType_t)((world.seed / ALGOS + turn) % ncclNumTypes);
  call->c.rank_count = world.rank_count;
  call->c.root = draw(world.rank_count);
  call->c.count = counts[draw(6)];
  call->c.seed = world.seed + turn;
  call->in_place = collective->in_place != IN_PLACE_NONE && draw(2) != 0;
  const bool scatters = collective->id == COLLECTIVE_REDUCE_SCATTER;
  do {
    call->c.op = collective->has_op ? (enum oracle_op)draw(ORACLE_OP_COUNT) : ORACLE_SUM;
  } while (scatters && (world.algo->scatter_ops & BIT(call->c.op)) == 0);
  for (uint32_t rank = 0; rank < world.rank_count; rank++) call_place(call, rank);
}

static ncclRedOp_t call_operator(const struct call *call, uint32_t rank) {
  static const ncclRedOp_t ops[] = {ncclSum, ncclProd, ncclMax, ncclMin, ncclAvg};
  uint64_t scalar = 0;
  if (call->c.op != ORACLE_MUL_SUM) return ops[call->c.op];
  ncclRedOp_t *made = &world.operators[call - world.calls][rank];
  oracle_scalar(&call->c, rank, &scalar);
  good(call,
       ncclRedOpCreatePreMulSum(made, &scalar, call->c.type, ncclScalarHostImmediate, world.comms[rank]));
  return *made;
}

static void call_launch(struct call *call) {
  ncclRedOp_t ops[RANKS_MAX];
  for (uint32_t rank = 0; rank < world.rank_count; rank++) ops[rank] = call_operator(call, rank);
  good(call, ncclGroupStart());
  for (uint32_t rank = 0; rank < world.rank_count; rank++) {
    const struct collective_call one = {
        call->send[rank],  call->receive[rank], call->c.count, call->c.type,
        ops[rank],         (int)call->c.root,   (int)rank,     (int)world.rank_count,
        world.comms[rank], world.streams[rank]};
    good(call, collective_launch(call->collective, &one));
  }
  good(call, ncclGroupEnd());
}

/* ---- comparing results ---- */

static void call_check(const struct call *call) {
  const void *outputs[RANKS_MAX];
  uint32_t ranks[RANKS_MAX];
  struct oracle_mismatch wrong;
  char text[120];
  const size_t bytes = oracle_receive_count(&call->c, 0) * oracle_type_bytes(call->c.type);
  const bool alike =
      call->c.collective != COLLECTIVE_REDUCE_SCATTER && call->c.collective != COLLECTIVE_ALLTOALL;
  for (uint32_t rank = 0; rank < world.rank_count; rank++) {
    ranks[rank] = rank;
    outputs[rank] = call->receive[rank];
    if (alike && memcmp(outputs[0], outputs[rank], bytes) != 0) complain(call, "ranks have different bits");
    for (uint32_t i = 0; i < 2; i++)
      for (size_t k = 0; k < GUARD_BYTES; k++)
        if (call->memory[rank][i][memory_bytes(call) + k] != GUARD) complain(call, "a guard byte changed");
  }
  if (oracle_check(&call->c, ranks, outputs, world.rank_count, &wrong) == 0) return;
  snprintf(text, sizeof text, "rank %u element %zu is %.17g instead of %.17g", wrong.rank, wrong.index,
           wrong.got, wrong.expected);
  complain(call, text);
}

static void world_wait(void) {
  for (uint32_t rank = 0; rank < world.rank_count; rank++)
    good_cuda(NULL, cudaStreamSynchronize(world.streams[rank]));
}

static void world_draw(void) {
  world.call_count = 0;
  for (uint32_t turn = 0; turn < 6; turn++)
    for (uint32_t i = 0; collective_at(i) != NULL && world.call_count < CALLS_MAX; i++)
      if ((world.algo->collectives & BIT(collective_at(i)->id)) != 0)
        call_draw(&world.calls[world.call_count++], collective_at(i), turn * 5 + i);
}

static void world_close(void) {
  for (uint32_t rank = 0; rank < world.rank_count; rank++) {
    for (uint32_t i = 0; i < world.call_count; i++) {
      const struct call *call = &world.calls[i];
      if (call->c.op == ORACLE_MUL_SUM)
        good(call, ncclRedOpDestroy(world.operators[i][rank], world.comms[rank]));
      for (uint32_t k = 0; k < 2; k++) good_cuda(call, cudaFree(call->memory[rank][k]));
    }
    good(NULL, ncclCommDestroy(world.comms[rank]));
    good_cuda(NULL, cudaStreamDestroy(world.streams[rank]));
  }
}

static void world_run(uint64_t seed) {
  world_open(seed);
  world_draw();
  if (world.fused) good(NULL, ncclGroupStart());
  for (uint32_t i = 0; i < world.call_count; i++) call_launch(&world.calls[i]);
  if (world.fused) good(NULL, ncclGroupEnd());
  world_wait();
  for (uint32_t i = 0; i < world.call_count; i++) call_check(&world.calls[i]);
  world_close();
}

static void test_worlds(void **state) {
  (void)state;
  const char *only = getenv("TUTTI_TEST_SEED");
  const struct part part = part_of(PARTS);
  if (only) world_run(strtoull(only, NULL, 0));
  for (uint64_t seed = 1; seed <= WORLDS && !only; seed++)
    if (part_has(part, seed)) world_run(seed);
}

/* An average is a sum with a last stage, which PAT's reduce-scatter does not support: the call fails. */
static void test_pat_refuses_stages(void **state) {
  (void)state;
  world_open(0);
  assert_string_equal(world.algo->name, "PAT");
  world.call_count = 1;
  call_draw(&world.calls[0], collective_find("reduce_scatter"), 0);
  struct call *call = &world.calls[0];
  good(NULL, ncclGroupStart());
  for (uint32_t rank = 0; rank < world.rank_count; rank++)
    good(NULL, ncclReduceScatter(call->send[rank], call->receive[rank], call->c.count, call->c.type, ncclAvg,
                                 world.comms[rank], world.streams[rank]));
  assert_int_equal(ncclGroupEnd(), ncclInvalidUsage);
  assert_non_null(strstr(ncclGetLastError(NULL), "NCCL_ALGO"));
  world_close();
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_worlds),
                                     cmocka_unit_test(test_pat_refuses_stages)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
