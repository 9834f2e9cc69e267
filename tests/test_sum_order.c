/* test_sum_order.c: TUTTI_SUM_ORDER=rank. Worlds are drawn by seed: mode, hosts, sizes of slots and chunks,
 * channels, depth, NCCL_ALGO, NCCL_PROTO, 1 to 17 ranks, sometimes 64; in each, calls of every type and
 * operator with counts from one element on, in place and apart, at any place in memory. Inputs are such that
 * nearly every other order gives other bits. Each result must have the bits of a plain loop over the ranks,
 * from rank 0 on. The same worlds without the setting must differ somewhere, so that the comparison can fail.
 * A third of the seeds runs, another one each day (part.h);
 * TUTTI_TEST_SEED=N runs only the world of that seed. Last, the bytes that plans send over each link. */
/* sanitizers: address thread */
/* runner: 15 s, tsan 11 s */
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
#include "kernels/kernels.h"
#include "machine.h"
#include "part.h"
#include "random.h"
#include "steps/link_load.h"
#include "tutti.h"

/* ThreadSanitizer is slow, and looks for orders of accesses, which few worlds have all. */
#if defined(__SANITIZE_THREAD__)
enum { WORLDS = 40, WORLDS_ANY = 6, PARTS = 4, RESULTS = 10000, WRONG = 300, BYTES_COUNTS = 3 };
#elif defined(__SANITIZE_ADDRESS__)
enum { WORLDS = 40, WORLDS_ANY = 20, PARTS = 1, RESULTS = 100000, WRONG = 1000, BYTES_COUNTS = 5 };
#else
enum { WORLDS = 300, WORLDS_ANY = 20, PARTS = 3, RESULTS = 100000, WRONG = 1000, BYTES_COUNTS = 5 };
#endif
enum { RANKS_MAX = 64, RANKS_USUAL = 17, CALLS = 12, GUARD_BYTES = 64, GUARD = 0xb7, SHIFT_MAX = 5 };

struct call {
  const struct collective *collective;
  uint8_t type;
  enum oracle_op op;
  size_t count;
  uint32_t root, shift; /* shift: elements of memory before the buffers */
  bool in_place;
  unsigned char *memory[RANKS_MAX][2], *send[RANKS_MAX], *receive[RANKS_MAX];
  ncclRedOp_t made[RANKS_MAX];
};

static struct {
  uint64_t seed, random;
  char environment[200], algo[40], proto[16];
  const char *order;
  uint32_t rank_count;
  uint64_t results, wrong;
  ncclComm_t comms[RANKS_MAX];
  cudaStream_t streams[RANKS_MAX];
  struct call calls[CALLS];
} world;

static uint32_t draw(uint32_t bound) { return random_below(&world.random, bound); }

static void complain(const struct call *call, const char *what) {
  fail_msg(
      "TUTTI_TEST_SEED=%llu: TUTTI_SUM_ORDER=%s NCCL_ALGO=%s NCCL_PROTO=%s TUTTI_EMU=%s, %u ranks: %s of %zu "
      "elements of %s, operator %d, root %u, %s: %s",
      (unsigned long long)world.seed, world.order, world.algo, world.proto, world.environment,
      world.rank_count, call ? call->collective->name : "set-up", call ? call->count : 0,
      call ? kernel_type_name(call->type) : "", call ? (int)call->op : 0, call ? call->root : 0,
      call && call->in_place ? "in place" : "apart", what);
}

static void good(const struct call *call, ncclResult_t result) {
  if (result != ncclSuccess) complain(call, ncclGetLastError(NULL));
}
static void good_cuda(const struct call *call, cudaError_t error) {
  if (error != cudaSuccess) complain(call, ncclGetLastError(NULL)[0] ? ncclGetLastError(NULL) : "CUDA fails");
}

/* ---- the world ---- */

/* Devices divide evenly into nodes; ranks are the first devices. */
static void draw_environment(bool threads) {
  static const char *const rules[] = {"random", "priority", "round_robin"};
  static const uint32_t chunks[] = {16, 40, 480, 4096};
  const uint32_t nodes = 1 + draw(3), net = nodes > 1 ? draw(2) : 0;
  const uint32_t devices = (world.rank_count + nodes - 1) / nodes * nodes;
  int used = snprintf(
      world.environment, sizeof world.environment,
      "devices=%u,nodes=%u,net=%u,slots=%u,chunk=%u,channels=%u,depth=%u,span=%u,direct=%u,inputs=%u",
      devices, nodes, net, 2 + draw(7), chunks[draw(4)], 1 + draw(3), 1 + draw(4), 1 + draw(8), draw(2),
      draw(3));
  if (threads) return;
  snprintf(world.environment + used, sizeof world.environment - (size_t)used, ",lag=%u,rule=%s,flag_bits=%u",
           draw(3) * 40, rules[draw(3)], 5 + draw(4));
}

static void world_open(uint64_t seed, const char *order) {
  static const char *const algos[] = {"", "Ring", "Tree,Ring", "Direct,Ring", "TwoShot,Ring", "^Direct"};
  static const char *const protos[] = {"", "LL", "LL128", "Simple"};
  world.seed = seed;
  world.random = seed * UINT64_C(0x9e3779b97f4a7c15);
  world.order = order;
  world.rank_count = seed % 50 == 0 ? 1 + draw(RANKS_MAX) : 1 + draw(RANKS_USUAL);
  snprintf(world.algo, sizeof world.algo, "%s", algos[draw(6)]);
  snprintf(world.proto, sizeof world.proto, "%s", protos[draw(4)]);
  const tutti_emu_config_t config = {.size = sizeof config, .seed = seed, .threads = draw(4) == 0};
  draw_environment(config.threads);
  setenv("TUTTI_EMU", world.environment, 1);
  setenv("NCCL_PROTO", world.proto, 1);
  setenv("NCCL_ALGO", world.algo, 1);
  setenv("TUTTI_SUM_ORDER", order, 1);
  param_reset();
  good(NULL, tutti_emu_configure(&config));
  good(NULL, ncclCommInitAll(world.comms, (int)world.rank_count, NULL));
  for (uint32_t rank = 0; rank < world.rank_count; rank++) {
    good_cuda(NULL, cudaSetDevice((int)rank));
    good_cuda(NULL, cudaStreamCreateWithFlags(&world.streams[rank], cudaStreamNonBlocking));
  }
}

/* ---- inputs and results ---- */

static uint64_t mixed(uint64_t a, uint64_t b, uint64_t c) {
  uint64_t z = a * UINT64_C(0x9e3779b97f4a7c15) + b * UINT64_C(0xbf58476d1ce4e5b9) + c;
  z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
  return z ^ (z >> 31);
}

/* The bits of an input: of a float, numbers of many magnitudes and both signs, such that great ones cancel
 * and small ones survive or not. */
static uint64_t input_bits(const struct call *call, uint32_t rank, size_t index) {
  static const double parts[] = {1e8, 1, -1e8, 3.14159e-3, -1, 448, -447, 0.3333, 1024, -1024, 65504, -65504};
  const uint64_t bits = mixed(world.seed, rank, index + (uint64_t)call->count);
  const bool product = call->op == ORACLE_PROD;
  if (call->type < ncclFloat16) return bits;
  if (product) return kernel_from_double(call->type, 1 + (double)(bits % 1000) / 1000);
  return kernel_from_double(call->type, parts[bits % 12] * (1 + (double)(bits >> 40) / (1 << 26)));
}

static uint64_t factor_bits(const struct call *call, uint32_t rank) {
  return kernel_from_double(call->type, call->type < ncclFloat16 ? 1 + rank : 1 / (1.5 + rank));
}

/* An operator of the API as the kernel's: averages of floats are scaled before the sum, others after it. */
static uint8_t kernel_op(const struct call *call) {
  static const uint8_t ops[] = {OP_SUM, OP_PROD, OP_MAX, OP_MIN, OP_SUM_POST_DIV, OP_PRE_MUL_SUM};
  if (call->op == ORACLE_AVG && call->type >= ncclFloat16) return OP_PRE_MUL_SUM;
  return ops[call->op];
}

/* The element that every rank's contribution at `index` must add up to, from rank 0 on. */
static uint64_t folded(const struct call *call, size_t index) {
  const uint8_t type = call->type, op = kernel_op(call);
  const double share = 1.0 / world.rank_count;
  uint64_t sum = 0;
  for (uint32_t rank = 0; rank < world.rank_count; rank++) {
    uint64_t factor = call->op == ORACLE_AVG ? kernel_from_double(type, share) : factor_bits(call, rank);
    uint64_t operand = input_bits(call, rank, index);
    if (op == OP_PRE_MUL_SUM) kernel_pre_op(type, op, factor, &operand, &operand, 1);
    if (rank == 0) sum = operand;
    else kernel_reduce(type, op, &sum, &sum, &operand, 1);
  }
  const uint64_t divisor = (uint64_t)world.rank_count << 1;
  if (op == OP_SUM_POST_DIV) kernel_post_op(type, op, divisor, &sum, &sum, 1);
  return sum;
}

/* ---- calls ---- */

static bool scatters(const struct call *call) { return call->collective->id == COLLECTIVE_REDUCE_SCATTER; }

static size_t input_count(const struct call *call) {
  return call->count * (scatters(call) ? world.rank_count : 1);
}

static void call_place(struct call *call, uint32_t rank) {
  const size_t type_bytes = kernel_type_bytes(call->type);
  const size_t bytes = (input_count(call) + call->shift) * type_bytes + GUARD_BYTES;
  good_cuda(call, cudaSetDevice((int)rank));
  for (uint32_t i = 0; i < 2; i++) {
    good_cuda(call, cudaMalloc((void **)&call->memory[rank][i], bytes));
    memset(call->memory[rank][i], GUARD, bytes);
  }
  call->send[rank] = call->memory[rank][0] + call->shift * type_bytes;
  call->receive[rank] = call->memory[rank][call->in_place ? 0 : 1] + call->shift * type_bytes;
  if (call->in_place && scatters(call)) call->receive[rank] += rank * call->count * type_bytes;
  for (size_t i = 0; i < input_count(call); i++) {
    const uint64_t bits = input_bits(call, rank, i);
    memcpy(call->send[rank] + i * type_bytes, &bits, type_bytes);
  }
}

static void call_draw(struct call *call, uint32_t turn) {
  static const char *const names[] = {"all_reduce", "reduce_scatter", "reduce"};
  static const size_t counts[] = {1, 2, 3, 7, 33, 65, 301, 2048};
  memset(call, 0, sizeof *call);
  call->collective = collective_find(names[turn % 3]);
  call->type = (uint8_t)((world.seed + turn * 5) % ncclNumTypes);
  call->op = turn < 3 ? ORACLE_SUM : (enum oracle_op)draw(ORACLE_OP_COUNT);
  call->root = draw(world.rank_count);
  call->count = counts[draw(8)];
  call->shift = draw(SHIFT_MAX);
  call->in_place = draw(2) != 0;
  for (uint32_t rank = 0; rank < world.rank_count; rank++) call_place(call, rank);
}

static ncclRedOp_t call_operator(struct call *call, uint32_t rank) {
  static const ncclRedOp_t ops[] = {ncclSum, ncclProd, ncclMax, ncclMin, ncclAvg};
  uint64_t factor = factor_bits(call, rank);
  if (call->op != ORACLE_MUL_SUM) return ops[call->op];
  good(call, ncclRedOpCreatePreMulSum(&call->made[rank], &factor, (ncclDataType_t)call->type,
                                      ncclScalarHostImmediate, world.comms[rank]));
  return call->made[rank];
}

static void call_launch(struct call *call) {
  good(call, ncclGroupStart());
  for (uint32_t rank = 0; rank < world.rank_count; rank++) {
    const struct collective_call one = {
        call->send[rank],          call->receive[rank], call->count, (ncclDataType_t)call->type,
        call_operator(call, rank), (int)call->root,     (int)rank,   (int)world.rank_count,
        world.comms[rank],         world.streams[rank]};
    good(call, collective_launch(call->collective, &one));
  }
  good(call, ncclGroupEnd());
}

/* Counts the elements of the rank's result, and those that are not the fold in rank order. */
static void call_compare(const struct call *call, uint32_t rank) {
  const size_t type_bytes = kernel_type_bytes(call->type);
  const size_t first = scatters(call) ? rank * call->count : 0;
  for (size_t i = 0; i < call->count; i++) {
    const uint64_t wanted = folded(call, first + i);
    world.results += 1;
    if (memcmp(call->receive[rank] + i * type_bytes, &wanted, type_bytes) != 0) world.wrong += 1;
  }
}

static void call_check(const struct call *call) {
  const size_t end = (input_count(call) + call->shift) * kernel_type_bytes(call->type);
  for (uint32_t rank = 0; rank < world.rank_count; rank++) {
    for (uint32_t i = 0; i < 2; i++)
      for (size_t k = 0; k < GUARD_BYTES; k++)
        if (call->memory[rank][i][end + k] != GUARD) complain(call, "a guard byte changed");
    if (call->collective->id != COLLECTIVE_REDUCE || rank == call->root) call_compare(call, rank);
  }
}

static void world_close(void) {
  for (uint32_t rank = 0; rank < world.rank_count; rank++) {
    for (uint32_t i = 0; i < CALLS; i++) {
      const struct call *call = &world.calls[i];
      if (call->op == ORACLE_MUL_SUM) good(call, ncclRedOpDestroy(call->made[rank], world.comms[rank]));
      for (uint32_t k = 0; k < 2; k++) good_cuda(call, cudaFree(call->memory[rank][k]));
    }
    good(NULL, ncclCommDestroy(world.comms[rank]));
    good_cuda(NULL, cudaStreamDestroy(world.streams[rank]));
  }
}

static void world_run(uint64_t seed, const char *order) {
  const bool ordered = strcmp(order, "rank") == 0;
  world_open(seed, order);
  const bool together = draw(2) != 0;
  for (uint32_t i = 0; i < CALLS; i++) call_draw(&world.calls[i], i);
  if (together) good(NULL, ncclGroupStart());
  for (uint32_t i = 0; i < CALLS; i++) call_launch(&world.calls[i]);
  if (together) good(NULL, ncclGroupEnd());
  for (uint32_t rank = 0; rank < world.rank_count; rank++)
    good_cuda(NULL, cudaStreamSynchronize(world.streams[rank]));
  for (uint32_t i = 0; i < CALLS; i++) {
    const uint64_t wrong = world.wrong;
    call_check(&world.calls[i]);
    if (ordered && world.wrong != wrong) complain(&world.calls[i], "the bits are not those of the fold");
  }
  world_close();
}

static void test_rank_order(void **state) {
  (void)state;
  const char *only = getenv("TUTTI_TEST_SEED");
  const struct part part = part_of(PARTS);
  if (only) world_run(strtoull(only, NULL, 0), "rank");
  for (uint64_t seed = 1; seed <= WORLDS && !only; seed++)
    if (part_has(part, seed)) world_run(seed, "rank");
  assert_int_equal(world.wrong, 0);
  assert_true(only || world.results > RESULTS);
}

/* Other orders give other bits, so the comparison finds them. */
static void test_any_order_differs(void **state) {
  (void)state;
  world.results = world.wrong = 0;
  for (uint64_t seed = 1; seed <= WORLDS_ANY; seed++) world_run(seed, "any");
  assert_true(world.wrong > WRONG);
}

/* ---- bytes on links ---- */

/* The most bytes from one rank to another in one half of the operation, which each all-to-all may send too: a
 * block, in whole 16 bytes on each channel. */
static uint64_t block_bytes(const struct plan_op *op, uint32_t ranks, uint32_t channels) {
  const uint64_t bytes = op->count * kernel_type_bytes(op->dtype);
  if (op->func == FUNC_REDUCE_SCATTER) return bytes;
  return bytes / ranks + 16 * (uint64_t)channels;
}

static void bytes_check(const struct graph *graph, uint8_t func, uint8_t proto, size_t count) {
  static unsigned char memory[2];
  struct plan_request request;
  struct link_load load;
  struct plan_op op = {.func = func, .dtype = ncclFloat32, .op = OP_SUM, .peer = graph->rank_count / 2};
  plan_request_begin(&request, graph->rank_count, graph);
  if (graph->node_count > 1) plan_limits_reserve(&request.settings.limits);
  request.settings.rank_order = true;
  request.settings.proto_mask[func] = 1u << proto;
  op.count = count;
  op.in = &memory[0];
  op.out = &memory[1];
  request.ops = &op;
  request.op_count = 1;
  assert_int_equal(link_load_of_request(&request, &load), ncclSuccess);
  const uint32_t halves = func == FUNC_REDUCE_SCATTER ? 1 : 2, others = graph->rank_count - 1;
  const uint64_t most = block_bytes(&op, graph->rank_count, request.settings.limits.channel_count);
  if (load.link > halves * most || load.rank > halves * others * most || load.link == 0)
    fail_msg(
        "%u ranks on %u nodes, function %u, protocol %u, %zu elements: %llu bytes on a link, at most %llu",
        graph->rank_count, graph->node_count, func, proto, count, (unsigned long long)load.link,
        (unsigned long long)(halves * most));
}

/* Each half, the scatter before the sums and the collection after them, sends no more over any link than an
 * all-to-all. */
static void test_bytes_of_all_to_all(void **state) {
  (void)state;
  static const uint8_t funcs[] = {FUNC_ALL_REDUCE, FUNC_REDUCE_SCATTER, FUNC_REDUCE};
  static const uint8_t protos[] = {PROTO_LL, PROTO_SIMPLE};
  static const size_t counts[] = {1, 13, 1000, 1 << 20, 33333333};
  static const uint32_t shapes[][2] = {{1, 2}, {1, 7}, {1, 16}, {2, 8}, {3, 1}, {5, 4}, {8, 8}};
  for (size_t shape = 0; shape < sizeof shapes / sizeof *shapes; shape++) {
    struct graph graph;
    assert_int_equal(machine_graph(NULL, shapes[shape][0], shapes[shape][1], &graph), ncclSuccess);
    for (uint32_t i = 0; i < 3 * 2 * BYTES_COUNTS; i++)
      bytes_check(&graph, funcs[i % 3], protos[i / 3 % 2], counts[i / 6]);
    graph_free(&graph);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_rank_order),
                                     cmocka_unit_test(test_any_order_differs),
                                     cmocka_unit_test(test_bytes_of_all_to_all)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
