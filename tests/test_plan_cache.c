/* test_plan_cache.c: a communicator with a plan cache launches the same plans as without: for random
 * sequences of operations, with repeated memory, in place and out of place, the cached plan equals a newly
 * built one, work by work and address by address. */
/* sanitizers: address */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "base/os.h"
#include "core/plan/plan_cache.h"
#include "random.h"

#define RANKS 4
#define OPS_MOST 20 /* more than the cache accepts */
#define CALLS 4000

static uint64_t random_state;

static uint32_t draw(uint32_t bound) { return random_below(&random_state, bound); }

static void request_begin(struct plan_request *request, struct graph *graph, uint32_t rank) {
  static const uint32_t ring[RANKS] = {0, 2, 1, 3};
  memset(graph, 0, sizeof *graph);
  graph->rank_count = RANKS;
  graph->node_count = 1;
  graph->channel_count = PLAN_CHANNELS_MAX;
  for (uint32_t channel = 0; channel < PLAN_CHANNELS_MAX; channel++) graph->ring[channel] = ring;
  plan_request_begin(request, RANKS, graph);
  request->rank = rank;
  request->settings.limits.channel_count = request->settings.limits.p2p_channel_count = 4;
  request->settings.limits.p2p_channels_per_peer = 2;
  request->settings.p2p_ll_threshold = 1024;
  for (uint32_t func = 0; func < FUNC_COUNT; func++)
    request->settings.algo_mask[func] = 1u << ALGO_RING | 1u << ALGO_DIRECT;
}

/* Few sizes and few addresses, so that requests repeat. */
static void draw_collective(uint32_t rank, struct plan_op *op) {
  static const uint8_t funcs[] = {FUNC_BROADCAST,      FUNC_REDUCE,     FUNC_ALL_GATHER,
                                  FUNC_REDUCE_SCATTER, FUNC_ALL_REDUCE, FUNC_ALL_TO_ALL};
  uint8_t *place = (uint8_t *)(uintptr_t)(UINT64_C(0x7f0000000000) + 4096 * draw(100));
  op->func = funcs[draw(6)];
  op->dtype = draw(2) == 0 ? ncclFloat : ncclInt8;
  op->peer = draw(RANKS);
  op->count = (size_t)1 << 2 * draw(9);
  op->op_arg = draw(2);
  op->in = op->out = place;
  const size_t own = rank * op->count * (op->dtype == ncclFloat ? 4 : 1);
  const bool near = draw(2) == 0;
  if (near && op->func == FUNC_ALL_GATHER) op->in = place + own;
  else if (near && op->func == FUNC_REDUCE_SCATTER) op->out = place + own;
  else if (draw(2) == 0) op->out = place + 10000000;
  if (op->func == FUNC_REDUCE && op->peer != rank && !near) op->out = NULL;
}

static void draw_message(struct plan_op *op) {
  uint8_t *place = (uint8_t *)(uintptr_t)(UINT64_C(0x7f0000000000) + 4096 * draw(4));
  op->func = draw(2) == 0 ? FUNC_SEND : FUNC_RECV;
  op->dtype = ncclInt8;
  op->peer = draw(RANKS);
  op->count = (size_t)100 << draw(3);
  if (op->func == FUNC_SEND) op->in = place;
  else op->out = place;
}

static uint32_t draw_ops(uint32_t rank, uint64_t *sequence, struct plan_op ops[OPS_MOST]) {
  const uint32_t kind = draw(8);
  uint32_t count = kind < 4 ? 1 : kind < 7 ? 1 + draw(3) : 1 + draw(OPS_MOST);
  memset(ops, 0, OPS_MOST * sizeof *ops);
  for (uint32_t i = 0; i < count; i++) {
    if (kind < 4 || (kind == 7 && draw(3) == 0)) draw_collective(rank, &ops[i]);
    else draw_message(&ops[i]);
    ops[i].sequence = (*sequence)++;
  }
  return count;
}

/* Sometimes the operations of an earlier call with the same memory, in the same order or another one. */
static uint32_t draw_repeated(struct plan_op earlier[8][OPS_MOST], uint32_t counts[8], uint32_t rank,
                              uint64_t *sequence, struct plan_op ops[OPS_MOST]) {
  const uint32_t place = draw(8);
  if (counts[place] == 0 || draw(4) == 0) {
    counts[place] = draw_ops(rank, sequence, earlier[place]);
    memcpy(ops, earlier[place], sizeof earlier[place]);
    return counts[place];
  }
  memcpy(ops, earlier[place], sizeof earlier[place]);
  if (draw(4) == 0) {
    const struct plan_op first = ops[0];
    ops[0] = ops[counts[place] - 1];
    ops[counts[place] - 1] = first;
  }
  for (uint32_t i = 0; i < counts[place]; i++) ops[i].sequence = (*sequence)++;
  return counts[place];
}

/* As a communicator does. */
static ncclResult_t cached_build(struct plan_request *request, struct plan_memory *memory, uint32_t *found,
                                 struct plan *plan) {
  const struct plan_op *ops = request->ops;
  if (plan_cache_find(memory->cache, request->rank, ops, request->op_count, plan)) {
    *found += 1;
    return ncclSuccess;
  }
  bool keep;
  TRY(plan_cache_begin(&memory->cache, request, &keep));
  TRY(plan_build_within(request, memory, plan));
  return keep ? plan_cache_keep(memory->cache, request, ops, plan) : ncclSuccess;
}

static void expect_same(const struct plan *cached, const struct plan *fresh) {
  assert_int_equal(cached->work_count, fresh->work_count);
  assert_int_equal(cached->batch_count, fresh->batch_count);
  assert_true(cached->channel_mask == fresh->channel_mask);
  assert_memory_equal(&cached->limits, &fresh->limits, sizeof fresh->limits);
  for (uint32_t i = 0; i < fresh->work_count; i++) {
    struct work work = cached->works[i];
    work.op_sequence += cached->first_sequence;
    assert_memory_equal(&work, &fresh->works[i], sizeof work);
    assert_ptr_equal(cached->buffers[i].in, fresh->buffers[i].in);
    assert_ptr_equal(cached->buffers[i].out, fresh->buffers[i].out);
  }
  if (fresh->batch_count > 0)
    assert_memory_equal(cached->batches, fresh->batches, fresh->batch_count * sizeof *fresh->batches);
}

static void test_random_sequences(void **state) {
  (void)state;
  struct plan_memory memory;
  memset(&memory, 0, sizeof memory);
  for (uint32_t rank = 0; rank < RANKS; rank++) {
    struct graph graph;
    struct plan_request request;
    static struct plan_op earlier[8][OPS_MOST];
    uint32_t counts[8] = {0};
    uint64_t sequence = 5;
    uint32_t found = 0;
    random_state = rank;
    for (uint32_t call = 0; call < CALLS; call++) {
      struct plan_op ops[OPS_MOST];
      struct plan cached, fresh;
      request_begin(&request, &graph, rank);
      request.op_count = draw_repeated(earlier, counts, rank, &sequence, ops);
      request.ops = ops;
      assert_int_equal(plan_build(&request, &fresh), ncclSuccess);
      assert_int_equal(cached_build(&request, &memory, &found, &cached), ncclSuccess);
      expect_same(&cached, &fresh);
      plan_free(&fresh);
    }
    assert_true(found > 20);
    plan_memory_free(&memory);
  }
  assert_int_equal(os_alloc_live(), 0);
}

/* The same request again, with memory elsewhere: found, with the number of the first. */
static void test_serial(void **state) {
  (void)state;
  static uint8_t memory_a[64], memory_b[64];
  struct plan_memory memory;
  struct plan_request request;
  struct graph graph;
  struct plan first, second, third;
  uint32_t found = 0;
  struct plan_op op;
  memset(&memory, 0, sizeof memory);
  memset(&op, 0, sizeof op);
  op.func = FUNC_ALL_REDUCE;
  op.dtype = ncclFloat;
  op.count = 4;
  op.in = memory_a;
  op.out = memory_a + 32;
  request_begin(&request, &graph, 1);
  request.ops = &op;
  request.op_count = 1;
  assert_int_equal(cached_build(&request, &memory, &found, &first), ncclSuccess);
  op.in = memory_b;
  op.sequence = 7;
  request.ops = &op;
  assert_int_equal(cached_build(&request, &memory, &found, &second), ncclSuccess);
  assert_int_equal(found, 1);
  assert_true(first.serial != 0 && first.serial == second.serial);
  assert_true(second.first_sequence == 7);
  assert_ptr_equal(second.buffers[0].in, memory_b);
  op.out = memory_b; /* in place: a different plan */
  request.ops = &op;
  assert_int_equal(cached_build(&request, &memory, &found, &third), ncclSuccess);
  assert_int_equal(found, 1);
  assert_true(third.serial != first.serial);
  plan_memory_free(&memory);
}

/* A group of collectives, with the same memory: cached at its second time, found at its third, and with other
 * memory, or in another order, it is another group. */
static void test_groups(void **state) {
  (void)state;
  static uint8_t memory_a[64], memory_b[64];
  struct plan_memory memory;
  struct plan_request request;
  struct graph graph;
  struct plan plans[4];
  struct plan_op ops[2];
  uint32_t found = 0;
  memset(&memory, 0, sizeof memory);
  memset(ops, 0, sizeof ops);
  request_begin(&request, &graph, 1);
  for (uint32_t i = 0; i < 2; i++)
    ops[i] = (struct plan_op){.func = FUNC_ALL_REDUCE, .dtype = ncclFloat, .count = 4 + i};
  for (uint32_t call = 0; call < 4; call++) {
    for (uint32_t i = 0; i < 2; i++) ops[i].sequence = 2 * call + i;
    ops[0].in = ops[0].out = memory_a;
    ops[1].in = ops[1].out = memory_b;
    request.ops = ops;
    request.op_count = 2;
    assert_int_equal(cached_build(&request, &memory, &found, &plans[call]), ncclSuccess);
    assert_int_equal(found, call < 2 ? 0 : call - 1);
  }
  assert_true(plans[1].serial != 0 && plans[1].serial == plans[3].serial);
  assert_true(plans[3].first_sequence == 6);
  for (uint32_t i = 0; i < plans[3].work_count; i++)
    assert_ptr_equal(plans[3].buffers[i].in, plans[3].works[i].count == 4 ? memory_a : memory_b);
  ops[0].out = memory_b;
  request.ops = ops;
  assert_int_equal(cached_build(&request, &memory, &found, &plans[0]), ncclSuccess);
  assert_int_equal(found, 2);
  plan_memory_free(&memory);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_random_sequences),
      cmocka_unit_test(test_serial),
      cmocka_unit_test(test_groups),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
