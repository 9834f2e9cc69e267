/* test_tune.c: the cost model and its choices: choices for rings on one node do not change by accident,
 * formulas agree with times computed by hand, forbidden options have a reason, and the reader of tuning files
 * accepts valid rules and names invalid ones. Nothing runs here; only plans and times are computed. */
/* sanitizers: address */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/os.h"
#include "base/param.h"
#include "core/settings/config.h"
#include "core/plan/plan.h"
#include "core/plan/rules.h"
#include "core/plan/tune.h"
#include "core/plan/tune_file.h"
#include "core/settings/settings.h"
#include "tune_visit.h"

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define GIB ((size_t)1 << 30)

/* ---- rings on one node ---- */

static struct plan_op the_op;

/* A request of rank 0 for one collective of floats of `bytes` as the model counts them. */
static void request_begin(struct plan_request *request, const struct graph *graph, uint8_t func,
                          size_t bytes) {
  const bool all = func == FUNC_ALL_GATHER || func == FUNC_REDUCE_SCATTER;
  plan_request_begin(request, graph->rank_count, graph);
  memset(&the_op, 0, sizeof the_op);
  the_op.func = func;
  the_op.dtype = ncclFloat32;
  the_op.count = bytes / 4 / (all ? graph->rank_count : 1);
  the_op.in = "in";
  the_op.out = (void *)&the_op;
  request->settings.p2p_ll_threshold = 16384;
  request->ops = &the_op;
  request->op_count = 1;
}

/* GPUs of one node that reach each other. */
static void request_of_gpus(struct plan_request *request, struct graph *graph, uint32_t rank_count,
                            uint8_t func, size_t bytes) {
  assert_int_equal(graph_flat(rank_count, graph), ncclSuccess);
  request_begin(request, graph, func, bytes);
  request->settings.limits.algos_last = PLAN_ALGOS_LAST;
  request->settings.limits.quick_protos = 1u << PROTO_LL | 1u << PROTO_SIMPLE;
  request->settings.limits.channel_count = 32;
}

static void ring_request(struct plan_request *request, const struct graph *graph, uint8_t func,
                         size_t bytes) {
  request_begin(request, graph, func, bytes);
  request->settings.limits.algos = 0;
  request->settings.limits.links = 1;
}

static uint64_t hash_add(uint64_t hash, uint64_t value) {
  for (int byte = 0; byte < 8; byte++) hash = (hash ^ (value >> (8 * byte) & 0xff)) * 0x100000001b3u;
  return hash;
}

static uint64_t plan_hash(uint64_t hash, const struct plan_request *request) {
  struct plan plan;
  assert_int_equal(plan_build(request, &plan), ncclSuccess);
  for (uint32_t i = 0; i < plan.work_count; i++) {
    const struct work *work = &plan.works[i];
    const uint64_t values[] = {work->func,        work->algo,        work->proto,       work->flags,
                               work->chunk_steps, work->slice_steps, work->part_offset, work->part_count,
                               work->chunk_count, work->recv_count,  work->send_count,  work->channel_index};
    for (uint32_t value = 0; value < sizeof values / sizeof *values; value++)
      hash = hash_add(hash, values[value]);
  }
  plan_free(&plan);
  return hash_add(hash, (uint64_t)(plan_time_us(request) * 1e6));
}

/* Every plan and predicted time of rings over protocols, channels and sizes, hashed to one number per rank
 * count. */
static uint64_t rings_hash(uint32_t rank_count) {
  static const uint32_t channels[] = {2, 16, 32};
  uint64_t hash = 0xcbf29ce484222325u;
  struct graph graph;
  assert_int_equal(graph_flat(rank_count, &graph), ncclSuccess);
  for (uint8_t func = 0; func <= FUNC_ALL_REDUCE; func++) {
    for (uint32_t i = 0; i < 3 * 7 * 54; i++) {
      struct plan_request request;
      const size_t bytes = (size_t)(i % 2 ? 3 : 2) << (2 + i / 2 % 27);
      ring_request(&request, &graph, func, bytes);
      request.settings.limits.channel_count = channels[i / 54 % 3];
      request.settings.proto_mask[func] = 1 + i / 162;
      hash = plan_hash(hash, &request);
    }
  }
  graph_free(&graph);
  return hash;
}

static void test_ring_plans_stay(void **state) {
  static const struct {
    uint32_t rank_count;
    uint64_t hash;
  } golden[] = {
      {2, 0x7d931dbd1ed98488u}, {4, 0xab91d8dddb3a4373u}, {5, 0x8db5aac4c7d8a505u}, {8, 0x800d2fd26ad2841u}};
  (void)state;
  for (uint32_t i = 0; i < sizeof golden / sizeof *golden; i++) {
    const uint64_t hash = rings_hash(golden[i].rank_count);
    if (hash != golden[i].hash)
      print_message("%u ranks: 0x%llx\n", golden[i].rank_count, (unsigned long long)hash);
    assert_true(hash == golden[i].hash);
  }
}

static uint8_t ring_proto(const struct graph *graph, uint8_t func, size_t bytes) {
  struct plan_request request;
  struct plan plan;
  ring_request(&request, graph, func, bytes);
  assert_int_equal(plan_build(&request, &plan), ncclSuccess);
  const uint8_t proto = plan.works[0].proto;
  assert_int_equal(plan.works[0].algo, ALGO_RING);
  plan_free(&plan);
  return proto;
}

/* Smallest size, in steps of 4 KiB, at which a ring no longer uses the protocols up to `proto`. */
static size_t ring_border(const struct graph *graph, uint8_t func, uint8_t proto) {
  size_t low = 0, high = 1 << 16;
  while (high - low > 1) {
    const size_t middle = (low + high) / 2;
    if (ring_proto(graph, func, middle * 4096) <= proto) low = middle;
    else high = middle;
  }
  return high * 4096;
}

/* The same as readable numbers: where LL ends and where Simple begins, on 32 channels. */
static void test_ring_borders_stay(void **state) {
  static const struct {
    uint32_t rank_count;
    uint8_t func;
    size_t ll_end, simple_begin;
  } golden[] = {
      {4, FUNC_ALL_REDUCE, 786432, 15220736},  {8, FUNC_ALL_REDUCE, 839680, 29933568},
      {8, FUNC_ALL_GATHER, 1388544, 30314496}, {8, FUNC_REDUCE_SCATTER, 1388544, 30314496},
      {8, FUNC_BROADCAST, 1253376, 30220288},  {4, FUNC_REDUCE, 1110016, 15446016},
  };
  (void)state;
  for (uint32_t i = 0; i < sizeof golden / sizeof *golden; i++) {
    struct graph graph;
    assert_int_equal(graph_flat(golden[i].rank_count, &graph), ncclSuccess);
    const size_t ll_end = ring_border(&graph, golden[i].func, PROTO_LL);
    const size_t simple_begin = ring_border(&graph, golden[i].func, PROTO_LL128);
    graph_free(&graph);
    assert_int_equal(ll_end, golden[i].ll_end);
    assert_int_equal(simple_begin, golden[i].simple_begin);
  }
}

/* ---- formulas ---- */

/* The flat graph with a search's typical results: `nodes` nodes of ranks / nodes, Hopper GPUs. */
static void graph_of_nodes(struct graph *graph, uint32_t rank_count, uint32_t nodes) {
  assert_int_equal(graph_flat(rank_count, graph), ncclSuccess);
  graph->node_count = nodes;
  graph->node_ranks_max = rank_count / nodes;
  graph->ring_speed = (struct graph_speed){8, 45, 50, GRAPH_NVL, GRAPH_PXB, true, 4};
  graph->tree_speed = graph->ring_speed;
}

static void assert_time(const struct graph *graph, uint8_t func, uint8_t algo, uint8_t proto, size_t bytes,
                        double expected_us) {
  struct plan_request request;
  request_begin(&request, graph, func, bytes);
  const double time_us = tune_time_us(&request, func, algo, proto, bytes, 32);
  if (time_us < expected_us * 0.999 || time_us > expected_us * 1.001)
    print_message("func %u algo %u proto %u: %f us, expected %f\n", func, algo, proto, time_us, expected_us);
  assert_true(time_us >= expected_us * 0.999 && time_us <= expected_us * 1.001);
}

/* Four nodes of eight: times computed from the formulas by hand. */
static void test_formulas_of_nodes(void **state) {
  struct graph graph;
  (void)state;
  graph_of_nodes(&graph, 32, 4);
  /* bus 8 * 50; (8.4 + 56 * 3.4 + 6 * 14) * 1.4, for 64 bytes or more per rank and channel */
  assert_time(&graph, FUNC_ALL_REDUCE, ALGO_RING, PROTO_SIMPLE, GIB, 395.92 + GIB / (400e3 * 32 / 62));
  /* 6.6 + 28 * max(0.6, 1) + 3 * 2.7; bus 20.4, the maximum of LL over three nodes */
  assert_time(&graph, FUNC_ALL_GATHER, ALGO_RING, PROTO_LL, 64 * KIB, 42.7 + 65536 / (20.4e3 * 32 / 31));
  /* 14 + 28 * 1.9 + 3 * 4; bus min(0.92 * 400, 8 * 36.7) */
  assert_time(&graph, FUNC_REDUCE_SCATTER, ALGO_RING, PROTO_LL128, 4 * MIB,
              79.2 + 4194304 / (293.6e3 * 32 / 31));
  /* one pattern for all channels: one hop over the network; 8.4 + 14 */
  assert_time(&graph, FUNC_BROADCAST, ALGO_RING, PROTO_SIMPLE, MIB, 22.4 + 1048576 / 400e3);
  /* 6.8 + 2 * (7 * 0.6 + 2 * 5); min(min(0.92 * 400, 8 * 36) / 3.8, 20.4) / 2 * 0.6 at 64 KiB */
  assert_time(&graph, FUNC_ALL_REDUCE, ALGO_TREE, PROTO_LL, 64 * KIB, 35.2 + 65536 / 6.12e3);
  /* 8.4 + 2 * (7 * 4 + 2 * 14); 288 / 2 beyond the table's end */
  assert_time(&graph, FUNC_ALL_REDUCE, ALGO_TREE, PROTO_SIMPLE, GIB, 120.4 + GIB / 144e3);
  graph.capability_min = 75;
  assert_time(&graph, FUNC_ALL_REDUCE, ALGO_RING, PROTO_SIMPLE, GIB, 537.32 + GIB / (400e3 * 32 / 62));
  graph_free(&graph);
}

static void test_formulas_of_switches(void **state) {
  struct graph graph;
  (void)state;
  graph_of_nodes(&graph, 16, 16);
  /* 8 + 4 * 14 / 3.5 + 2.8 * 16; 0.75 * 400 */
  assert_time(&graph, FUNC_ALL_GATHER, ALGO_PAT, PROTO_SIMPLE, MIB, 68.8 + 1048576 / 300e3);
  graph_free(&graph);
  graph_of_nodes(&graph, 8, 1);
  graph.switch_speed = (struct graph_speed){16, 24, 0, GRAPH_NVL, 0, true, 5};
  /* 24 * 0.85 * 15 / 16 * 2 a channel, 16 of them, 8 / 14 */
  assert_time(&graph, FUNC_ALL_REDUCE, ALGO_NVLS, PROTO_SIMPLE, 64 * MIB,
              25 + 67108864 / (38.25e3 * 16 * 8 / 14));
  graph_free(&graph);
  graph_of_nodes(&graph, 16, 2);
  graph.network_speed = (struct graph_speed){8, 40, 45, GRAPH_NVL, GRAPH_PXB, true, 6};
  /* 2 * (3.7 + 7 * 0.4) + 31; 8 * 40 / (1 - 0) * 0.85 / 2, with as many channels as GPUs per node */
  assert_time(&graph, FUNC_ALL_REDUCE, ALGO_COLLNET_DIRECT, PROTO_SIMPLE, MIB, 44 + 1048576 / 136e3);
  /* 2 * 7 * 2.8 + 30; 320 / 2 */
  assert_time(&graph, FUNC_ALL_REDUCE, ALGO_COLLNET_CHAIN, PROTO_SIMPLE, MIB, 69.2 + 1048576 / 160e3);
  graph_free(&graph);
}

/* Direct collectives among four GPUs are within a seventh of the measurements. */
static void test_direct_as_measured(void **state) {
  static const struct {
    uint8_t algo, proto;
    size_t bytes;
    double measured_us;
  } rows[] = {
      {ALGO_DIRECT, PROTO_LL, 8, 5.13},
      {ALGO_DIRECT, PROTO_LL, 8 * KIB, 5.34},
      {ALGO_DIRECT, PROTO_LL, 32 * KIB, 5.55},
      {ALGO_DIRECT, PROTO_LL, 128 * KIB, 8.01},
      {ALGO_TWO_SHOT, PROTO_LL, 16 * KIB, 6.77},
      {ALGO_TWO_SHOT, PROTO_LL, 128 * KIB, 7.69},
      {ALGO_TWO_SHOT, PROTO_LL, 512 * KIB, 12.4},
      {ALGO_TWO_SHOT, PROTO_SIMPLE, MIB, 14.6},
      {ALGO_TWO_SHOT, PROTO_SIMPLE, 2 * MIB, 19.7},
      {ALGO_TWO_SHOT, PROTO_SIMPLE, 16 * MIB, 92},
      {ALGO_TWO_SHOT, PROTO_SIMPLE, 128 * MIB, 658},
  };
  struct graph graph;
  (void)state;
  assert_int_equal(graph_flat(4, &graph), ncclSuccess);
  for (uint32_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct plan_request request;
    request_begin(&request, &graph, FUNC_ALL_REDUCE, rows[i].bytes);
    const double time_us =
        tune_time_us(&request, FUNC_ALL_REDUCE, rows[i].algo, rows[i].proto, rows[i].bytes, 32);
    assert_true(time_us > rows[i].measured_us * 6 / 7 && time_us < rows[i].measured_us * 8 / 7);
  }
  graph_free(&graph);
}

/* ---- choices ---- */

/* By time only: no option is reserved for when no other is left. */
static void assert_choice(const struct graph *graph, uint8_t func, size_t bytes, uint8_t algo,
                          uint8_t proto) {
  struct plan_request request;
  struct tune_choice choice;
  request_begin(&request, graph, func, bytes);
  request.settings.limits.algos_last = 0;
  assert_int_equal(tune_choose(&request, func, bytes, &choice), ncclSuccess);
  assert_int_equal(choice.algo, algo);
  assert_int_equal(choice.proto, proto);
  assert_true(choice.time_us > 0 && choice.channel_count >= 1 && choice.file_line == 0);
}

static void test_choices(void **state) {
  struct graph graph;
  (void)state;
  assert_int_equal(graph_flat(4, &graph), ncclSuccess);
  assert_choice(&graph, FUNC_ALL_REDUCE, 8, ALGO_DIRECT, PROTO_LL);
  assert_choice(&graph, FUNC_ALL_REDUCE, MIB, ALGO_TWO_SHOT, PROTO_SIMPLE);
  assert_choice(&graph, FUNC_ALL_REDUCE, 16 * MIB, ALGO_TWO_SHOT, PROTO_SIMPLE);
  assert_choice(&graph, FUNC_ALL_REDUCE, GIB, ALGO_RING, PROTO_SIMPLE);
  assert_choice(&graph, FUNC_REDUCE, 8, ALGO_DIRECT, PROTO_LL);
  graph_free(&graph);
  graph_of_nodes(&graph, 32, 4);
  assert_choice(&graph, FUNC_ALL_REDUCE, 8, ALGO_TREE, PROTO_LL);
  assert_choice(&graph, FUNC_ALL_REDUCE, 4 * GIB, ALGO_RING, PROTO_SIMPLE);
  assert_choice(&graph, FUNC_BROADCAST, 8, ALGO_RING, PROTO_LL);
  graph_free(&graph);
}

/* On GPUs direct collectives over LL are fast while a channel has little of them; the other algorithms of
 * algos_last stay last. */
static void test_quick_direct(void **state) {
  static const struct {
    uint32_t channel_count;
    size_t bytes;
    bool direct;
  } rows[] = {{32, 8, true},    {32, 128 * KIB, true}, {32, 768 * KIB, true}, {32, MIB, false},
              {32, GIB, false}, {8, 128 * KIB, true},  {8, 512 * KIB, false}, {8, GIB, false}};
  struct graph graph;
  (void)state;
  assert_int_equal(graph_flat(4, &graph), ncclSuccess);
  for (uint32_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct plan_request request;
    struct tune_choice choice;
    request_begin(&request, &graph, FUNC_ALL_REDUCE, rows[i].bytes);
    request.settings.limits.algos_last = PLAN_ALGOS_LAST;
    request.settings.limits.quick_protos = 1u << PROTO_LL;
    request.settings.limits.channel_count = rows[i].channel_count;
    assert_int_equal(tune_choose(&request, FUNC_ALL_REDUCE, rows[i].bytes, &choice), ncclSuccess);
    assert_int_equal(choice.algo != ALGO_RING, rows[i].direct);
    if (rows[i].direct) assert_true(choice.proto == PROTO_LL && choice.channel_count <= 16);
  }
  graph_free(&graph);
}

/* One-shot as long as a block's lines fit into one pass, then two-shot. */
static void test_one_shot_or_two(void **state) {
  static const struct {
    uint32_t rank_count;
    size_t bytes;
    uint8_t algo;
    double least_us, most_us;
  } rows[] = {{4, 8, ALGO_DIRECT, 2.2, 2.6},           {4, 32 * KIB, ALGO_DIRECT, 3.0, 3.6},
              {4, 64 * KIB, ALGO_DIRECT, 3.6, 4.4},    {4, 66 * KIB, ALGO_TWO_SHOT, 3.8, 4.6},
              {4, 128 * KIB, ALGO_TWO_SHOT, 4.3, 5.2}, {4, 256 * KIB, ALGO_TWO_SHOT, 5.3, 6.4},
              {4, 512 * KIB, ALGO_TWO_SHOT, 11, 14},   {8, 8 * KIB, ALGO_DIRECT, 2, 4},
              {8, 64 * KIB, ALGO_TWO_SHOT, 4, 6}};
  (void)state;
  for (uint32_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct graph graph;
    struct plan_request request;
    struct tune_choice choice;
    assert_int_equal(graph_flat(rows[i].rank_count, &graph), ncclSuccess);
    request_begin(&request, &graph, FUNC_ALL_REDUCE, rows[i].bytes);
    request.settings.limits.algos_last = PLAN_ALGOS_LAST;
    request.settings.limits.quick_protos = 1u << PROTO_LL;
    assert_int_equal(tune_choose(&request, FUNC_ALL_REDUCE, rows[i].bytes, &choice), ncclSuccess);
    assert_int_equal(choice.algo, rows[i].algo);
    assert_int_equal(choice.proto, PROTO_LL);
    assert_true(choice.time_us > rows[i].least_us && choice.time_us < rows[i].most_us);
    graph_free(&graph);
  }
}

/* GPUs of a node reduce few bytes to a root in one hop over LL, as fast as a one-shot all-reduce, and more by
 * a chain. One hop over Simple is used between two ranks; among more only if nothing else is left. */
static void test_one_hop_reduce(void **state) {
  static const struct {
    uint32_t rank_count;
    size_t bytes;
    bool direct;
    double most_us;
  } rows[] = {{2, 8, true, 2.6},          {2, 32 * KIB, true, 3},   {2, 64 * KIB, true, 4},
              {2, 128 * KIB, true, 4},    {2, MIB, true, 15},       {2, 32 * MIB, true, 110},
              {2, 256 * MIB, false, 760}, {4, 32 * KIB, true, 3.6}, {4, 512 * KIB, false, 15},
              {4, 64 * MIB, false, 300},  {8, 8, true, 4},          {8, 8 * KIB, true, 4}};
  (void)state;
  for (uint32_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct graph graph;
    struct plan_request request;
    struct tune_choice choice;
    request_of_gpus(&request, &graph, rows[i].rank_count, FUNC_REDUCE, rows[i].bytes);
    assert_int_equal(tune_choose(&request, FUNC_REDUCE, rows[i].bytes, &choice), ncclSuccess);
    assert_int_equal(choice.algo, rows[i].direct ? ALGO_DIRECT : ALGO_RING);
    assert_true(choice.time_us < rows[i].most_us);
    request.settings.algo_mask[FUNC_REDUCE] = 1u << ALGO_DIRECT;
    request.settings.proto_mask[FUNC_REDUCE] = 1u << PROTO_SIMPLE;
    assert_int_equal(tune_choose(&request, FUNC_REDUCE, rows[i].bytes, &choice), ncclSuccess);
    assert_true(choice.algo == ALGO_DIRECT && choice.proto == PROTO_SIMPLE);
    graph_free(&graph);
  }
}

/* Beyond one pass of LL lines come direct collectives over Simple, and rings for large sizes; also with few
 * channels. Two ranks have only one link, and limits of their own for sums over it. */
static void test_direct_over_simple(void **state) {
  static const struct {
    uint32_t rank_count;
    uint8_t func;
    uint32_t channel_count;
    size_t bytes;
    uint8_t algo, proto;
  } rows[] = {{4, FUNC_ALL_REDUCE, 32, 256 * KIB, ALGO_TWO_SHOT, PROTO_LL},
              {4, FUNC_ALL_REDUCE, 32, 512 * KIB, ALGO_TWO_SHOT, PROTO_LL},
              {4, FUNC_ALL_REDUCE, 32, 16 * MIB, ALGO_TWO_SHOT, PROTO_SIMPLE},
              {4, FUNC_ALL_REDUCE, 32, 96 * MIB, ALGO_RING, PROTO_SIMPLE},
              {4, FUNC_ALL_REDUCE, 8, 128 * MIB, ALGO_RING, PROTO_SIMPLE},
              {4, FUNC_ALL_GATHER, 32, 4 * MIB, ALGO_DIRECT, PROTO_SIMPLE},
              {4, FUNC_ALL_GATHER, 32, 128 * MIB, ALGO_RING, PROTO_SIMPLE},
              {4, FUNC_REDUCE_SCATTER, 32, 8 * MIB, ALGO_DIRECT, PROTO_SIMPLE},
              {4, FUNC_REDUCE_SCATTER, 32, 128 * MIB, ALGO_RING, PROTO_SIMPLE},
              {2, FUNC_ALL_REDUCE, 32, 256 * KIB, ALGO_DIRECT, PROTO_LL},
              {2, FUNC_ALL_REDUCE, 32, 512 * KIB, ALGO_RING, PROTO_LL},
              {2, FUNC_ALL_REDUCE, 32, MIB, ALGO_TWO_SHOT, PROTO_SIMPLE},
              {2, FUNC_ALL_GATHER, 32, 64 * MIB, ALGO_DIRECT, PROTO_SIMPLE},
              {2, FUNC_ALL_GATHER, 32, 128 * MIB, ALGO_RING, PROTO_SIMPLE},
              {2, FUNC_REDUCE_SCATTER, 32, 2 * MIB, ALGO_DIRECT, PROTO_SIMPLE},
              {2, FUNC_REDUCE_SCATTER, 32, 256 * MIB, ALGO_DIRECT, PROTO_SIMPLE},
              {2, FUNC_REDUCE_SCATTER, 8, 16 * MIB, ALGO_RING, PROTO_SIMPLE},
              {2, FUNC_ALL_REDUCE, 8, 4 * MIB, ALGO_TWO_SHOT, PROTO_SIMPLE},
              {2, FUNC_ALL_REDUCE, 8, 16 * MIB, ALGO_RING, PROTO_SIMPLE}};
  (void)state;
  for (uint32_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct graph graph;
    struct plan_request request;
    struct tune_choice choice;
    assert_int_equal(graph_flat(rows[i].rank_count, &graph), ncclSuccess);
    request_begin(&request, &graph, rows[i].func, rows[i].bytes);
    request.settings.limits.algos_last = PLAN_ALGOS_LAST;
    request.settings.limits.quick_protos = 1u << PROTO_LL | 1u << PROTO_SIMPLE;
    request.settings.limits.channel_count = rows[i].channel_count;
    assert_int_equal(tune_choose(&request, rows[i].func, rows[i].bytes, &choice), ncclSuccess);
    assert_int_equal(choice.algo, rows[i].algo);
    assert_int_equal(choice.proto, rows[i].proto);
    if (choice.proto == PROTO_SIMPLE && choice.algo != ALGO_RING)
      assert_true(choice.channel_count <= (rows[i].rank_count == 2 ? 32 : 24));
    graph_free(&graph);
  }
}

/* Two GPUs that do not reach each other: what 2 x H200 chose best, and its times within a quarter. */
static void test_over_memory_of_the_host(void **state) {
  static const struct {
    uint8_t func;
    size_t bytes;
    uint8_t algo, proto;
    double measured_us;
  } rows[] = {{FUNC_ALL_REDUCE, 256, ALGO_DIRECT, PROTO_LL, 7.5},
              {FUNC_ALL_REDUCE, 4 * KIB, ALGO_RING, PROTO_LL, 11.5},
              {FUNC_ALL_REDUCE, 64 * KIB, ALGO_RING, PROTO_LL, 14.5},
              {FUNC_ALL_REDUCE, 256 * KIB, ALGO_DIRECT, PROTO_SIMPLE, 23.5},
              {FUNC_ALL_REDUCE, 16 * MIB, ALGO_RING, PROTO_SIMPLE, 539},
              {FUNC_ALL_GATHER, 1 * KIB, ALGO_DIRECT, PROTO_LL, 9.3},
              {FUNC_ALL_GATHER, 16 * KIB, ALGO_RING, PROTO_LL, 10.6},
              {FUNC_ALL_GATHER, 1 * MIB, ALGO_DIRECT, PROTO_SIMPLE, 32.3}};
  (void)state;
  for (uint32_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct graph graph;
    struct plan_request request;
    struct tune_choice choice;
    request_of_gpus(&request, &graph, 2, rows[i].func, rows[i].bytes);
    request.settings.limits.on_host = true;
    request.settings.proto_mask[rows[i].func] &= ~(1u << PROTO_LL128);
    assert_int_equal(tune_choose(&request, rows[i].func, rows[i].bytes, &choice), ncclSuccess);
    if (choice.algo != rows[i].algo || choice.proto != rows[i].proto ||
        fabs(choice.time_us / rows[i].measured_us - 1) > 0.25)
      fail_msg("row %u: algorithm %u, protocol %u, %.1f us", i, choice.algo, choice.proto, choice.time_us);
    graph_free(&graph);
  }
}

/* Broadcasts and reductions to a root on GPUs that reach each other, as measured on two and four H200. */
static void test_rooted(void **state) {
  static const struct {
    uint8_t func, algo;
    uint32_t rank_count;
    size_t bytes;
  } rows[] = {{FUNC_BROADCAST, ALGO_RING, 4, 8 * MIB},       {FUNC_BROADCAST, ALGO_TWO_SHOT, 4, 16 * MIB},
              {FUNC_BROADCAST, ALGO_TWO_SHOT, 3, 128 * MIB}, {FUNC_BROADCAST, ALGO_RING, 4, 256 * MIB},
              {FUNC_BROADCAST, ALGO_RING, 2, MIB},           {FUNC_BROADCAST, ALGO_RING, 2, 4 * MIB},
              {FUNC_BROADCAST, ALGO_DIRECT, 2, 16 * MIB},    {FUNC_BROADCAST, ALGO_RING, 2, 256 * MIB},
              {FUNC_REDUCE, ALGO_RING, 4, 64 * MIB}};
  (void)state;
  for (uint32_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct graph graph;
    struct plan_request request;
    struct tune_choice choice;
    request_of_gpus(&request, &graph, rows[i].rank_count, rows[i].func, rows[i].bytes);
    assert_int_equal(tune_choose(&request, rows[i].func, rows[i].bytes, &choice), ncclSuccess);
    if (choice.algo != rows[i].algo) fail_msg("row %u: algorithm %u", i, choice.algo);
    if (choice.algo == ALGO_TWO_SHOT) assert_int_equal(choice.channel_count, 20);
    request.settings.rank_order = true; /* its root has a shard, and none of these figures */
    assert_int_equal(tune_channels(&request, FUNC_REDUCE, ALGO_TWO_SHOT, PROTO_SIMPLE, 64 * MIB), 24);
    graph_free(&graph);
  }
}

/* Ranks of one host that share memory or, over a network, one rank per node. */
static void assert_core_choice(uint32_t rank_count, bool network, uint8_t func, size_t bytes, uint8_t algo) {
  struct graph graph;
  struct plan_request request;
  struct tune_choice choice;
  if (network) graph_of_nodes(&graph, rank_count, rank_count);
  else assert_int_equal(graph_flat(rank_count, &graph), ncclSuccess);
  request_begin(&request, &graph, func, bytes);
  request.settings.limits.algos_last = 0;
  request.settings.limits.cores = true;
  request.settings.limits.reserved_bytes = network ? 256 : 0;
  assert_int_equal(tune_choose(&request, func, bytes, &choice), ncclSuccess);
  assert_int_equal(choice.algo, algo);
  graph_free(&graph);
}

/* CPU cores use direct collectives while executors have the links, and trees for small sizes beyond that. */
static void test_choices_of_cores(void **state) {
  (void)state;
  for (int network = 0; network <= 1; network++) {
    assert_core_choice(17, network, FUNC_ALL_REDUCE, 8, ALGO_DIRECT);
    assert_core_choice(18, network, FUNC_ALL_REDUCE, 8, ALGO_TREE);
    assert_core_choice(256, network, FUNC_ALL_REDUCE, 4 * KIB, ALGO_TREE);
    assert_core_choice(4, network, FUNC_REDUCE, 8, ALGO_DIRECT);
    assert_core_choice(4, network, FUNC_REDUCE, 16 * MIB, ALGO_RING);
    assert_core_choice(64, network, FUNC_REDUCE, 8, ALGO_RING);
    assert_core_choice(64, network, FUNC_BROADCAST, 8, ALGO_RING);
    assert_core_choice(64, network, FUNC_ALL_REDUCE, 256 * MIB, ALGO_RING);
  }
  assert_core_choice(64, true, FUNC_ALL_GATHER, 4 * KIB, ALGO_PAT);
  assert_core_choice(64, true, FUNC_REDUCE_SCATTER, 4 * KIB, ALGO_PAT);
  assert_core_choice(64, false, FUNC_ALL_GATHER, 4 * KIB, ALGO_RING); /* PAT is for one rank per node */
}

/* Between hosts GPUs use LL while a message is short: proxies copy its lines. CPU cores never do: a tail
 * costs them nothing. */
static void test_ll_between_hosts(void **state) {
  static const struct {
    uint8_t func;
    size_t bytes;
    uint8_t proto;
  } rows[] = {
      {FUNC_ALL_REDUCE, 8, PROTO_LL},
      {FUNC_ALL_REDUCE, 4 * KIB, PROTO_LL},
      {FUNC_ALL_REDUCE, 128 * KIB, PROTO_SIMPLE},
      {FUNC_ALL_GATHER, 4 * KIB, PROTO_LL},
      {FUNC_ALL_GATHER, 128 * KIB, PROTO_SIMPLE},
      {FUNC_BROADCAST, KIB, PROTO_LL},
      {FUNC_REDUCE_SCATTER, 4 * KIB, PROTO_LL},
      {FUNC_REDUCE_SCATTER, 128 * KIB, PROTO_SIMPLE},
  };
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    struct graph graph;
    struct plan_request request;
    struct tune_choice choice;
    graph_of_nodes(&graph, 2, 2);
    request_begin(&request, &graph, rows[i].func, rows[i].bytes);
    request.settings.limits.reserved_bytes = 256;
    request.settings.proto_mask[rows[i].func] = 1u << PROTO_LL | 1u << PROTO_SIMPLE;
    assert_int_equal(tune_choose(&request, rows[i].func, rows[i].bytes, &choice), ncclSuccess);
    assert_int_equal(choice.proto, rows[i].proto);
    if (rows[i].bytes <= 16 * KIB) assert_int_equal(choice.channel_count, 1);
    request.settings.limits.cores = true;
    assert_int_equal(tune_choose(&request, rows[i].func, rows[i].bytes, &choice), ncclSuccess);
    assert_int_equal(choice.proto, PROTO_SIMPLE);
    graph_free(&graph);
  }
}

/* A few GPUs, each on its own host, use direct collectives over LL for few bytes: one hop over the network.
 */
static void test_direct_between_hosts(void **state) {
  static const struct {
    uint32_t rank_count, nodes;
    size_t bytes;
    bool direct;
  } rows[] = {{2, 2, 8, true},          {2, 2, 4 * KIB, true}, {4, 4, KIB, true}, {2, 2, MIB, false},
              {4, 4, 128 * KIB, false}, {5, 5, 8, false},      {4, 2, KIB, false}};
  (void)state;
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    struct graph graph;
    struct plan_request request;
    struct tune_choice choice;
    graph_of_nodes(&graph, rows[i].rank_count, rows[i].nodes);
    request_begin(&request, &graph, FUNC_ALL_REDUCE, rows[i].bytes);
    request.settings.limits.reserved_bytes = 256;
    request.settings.limits.quick_protos = 1u << PROTO_LL | 1u << PROTO_SIMPLE;
    request.settings.proto_mask[FUNC_ALL_REDUCE] = 1u << PROTO_LL | 1u << PROTO_SIMPLE;
    assert_int_equal(tune_choose(&request, FUNC_ALL_REDUCE, rows[i].bytes, &choice), ncclSuccess);
    assert_int_equal(choice.algo == ALGO_DIRECT, rows[i].direct);
    assert_non_null(rules_forbid(&request, FUNC_ALL_REDUCE, ALGO_DIRECT, PROTO_SIMPLE));
    assert_non_null(rules_forbid(&request, FUNC_ALL_TO_ALL, ALGO_DIRECT, PROTO_LL));
    graph_free(&graph);
  }
}

/* TUTTI_SUM_ORDER=rank leaves functions that reduce one algorithm, whatever NCCL_ALGO says, and others all.
 */
static void test_rank_order(void **state) {
  static const struct {
    uint8_t func, algo;
  } rows[] = {{FUNC_ALL_REDUCE, ALGO_TWO_SHOT},
              {FUNC_REDUCE_SCATTER, ALGO_DIRECT},
              {FUNC_REDUCE, ALGO_TWO_SHOT},
              {FUNC_BROADCAST, ALGO_RING}};
  (void)state;
  for (uint32_t i = 0; i < 4 * 3; i++) {
    const uint8_t func = rows[i / 3].func;
    struct graph graph;
    struct plan_request request;
    struct tune_choice choice;
    graph_of_nodes(&graph, 64, 1 + i % 3 * 7);
    request_begin(&request, &graph, func, MIB);
    request.settings.rank_order = true;
    request.settings.algo_mask[func] = 1u << ALGO_RING;
    assert_int_equal(tune_choose(&request, func, MIB, &choice), ncclSuccess);
    assert_int_equal(choice.algo, rows[i / 3].algo);
    request.settings.proto_mask[func] = 1u << PROTO_LL;
    assert_int_equal(tune_choose(&request, func, MIB, &choice), ncclSuccess);
    assert_int_equal(choice.proto, PROTO_LL);
    request.settings.limits.links = 7; /* as GPUs have */
    if (func_reduces(func)) {
      assert_int_equal(tune_choose(&request, func, MIB, &choice), ncclInvalidUsage);
      assert_non_null(strstr(log_last_error(), "among 64 ranks, and it needs a link to every other rank"));
      assert_non_null(strstr(log_last_error(), "set TUTTI_SUM_ORDER=any"));
    }
    graph_free(&graph);
  }
}

/* Between hosts: all blocks but those within a node leave it, once for each of the two halves. */
static void test_rank_order_time(void **state) {
  struct graph graph;
  struct plan_request request;
  (void)state;
  graph_of_nodes(&graph, 16, 2);
  graph.ring_speed.channel_count = 4;
  graph.ring_speed.inter_gbps = 50;
  request_begin(&request, &graph, FUNC_ALL_REDUCE, 16 * MIB);
  request.settings.limits.reserved_bytes = 256;
  request.settings.rank_order = true;
  /* 2 halves of 8 ranks' blocks of 1 MiB to 8 others, at 0.8 of 200 GB/s; 20 us and two hops of 7.6 us. */
  const double simple_us = tune_time_us(&request, FUNC_ALL_REDUCE, ALGO_TWO_SHOT, PROTO_SIMPLE, 16 * MIB, 16);
  assert_float_equal(simple_us, 35.2 + 2 * 64 * 1048.576 / 160, 0.01);
  /* A proxy converts 2 blocks of a connection at 0.7 GB/s, on one channel. */
  const double ll_us = tune_time_us(&request, FUNC_ALL_REDUCE, ALGO_TWO_SHOT, PROTO_LL, 64 * KIB, 1);
  assert_float_equal(ll_us, 16.8 + 2 * 4.096 / 0.7, 0.01);
  graph_free(&graph);
}

/* Algorithms that are slow on GPUs are chosen on one node only if no other is left, and over several nodes by
 * time. */
static void test_last(void **state) {
  struct graph graph;
  struct plan_request request;
  struct tune_choice choice;
  (void)state;
  assert_int_equal(graph_flat(4, &graph), ncclSuccess);
  request_begin(&request, &graph, FUNC_ALL_REDUCE, 8);
  assert_int_equal(tune_choose(&request, FUNC_ALL_REDUCE, 8, &choice), ncclSuccess);
  assert_int_equal(choice.algo, ALGO_RING);
  request.settings.algo_mask[FUNC_ALL_REDUCE] = 1u << ALGO_TREE | 1u << ALGO_DIRECT;
  assert_int_equal(tune_choose(&request, FUNC_ALL_REDUCE, 8, &choice), ncclSuccess);
  assert_int_equal(choice.algo, ALGO_DIRECT);
  graph_free(&graph);
  graph_of_nodes(&graph, 32, 4);
  request_begin(&request, &graph, FUNC_ALL_REDUCE, 8);
  assert_int_equal(tune_choose(&request, FUNC_ALL_REDUCE, 8, &choice), ncclSuccess);
  assert_int_equal(choice.algo, ALGO_TREE);
  graph_free(&graph);
}

/* One channel per 32 KiB of Simple, 5 KiB of LL128, 4 KiB of LL that a rank sends, always with rings on one
 * node; variables change the threshold per thread. */
static void test_channels_by_size(void **state) {
  struct graph graph;
  struct plan_request request;
  (void)state;
  assert_int_equal(graph_flat(8, &graph), ncclSuccess);
  request_begin(&request, &graph, FUNC_ALL_REDUCE, MIB);
  const struct plan_request *r = &request;
  assert_int_equal(tune_channels(r, FUNC_ALL_REDUCE, ALGO_RING, PROTO_SIMPLE, 8), 32);
  assert_int_equal(tune_channels(r, FUNC_ALL_REDUCE, ALGO_TREE, PROTO_SIMPLE, 8), 1);
  assert_int_equal(tune_channels(r, FUNC_ALL_REDUCE, ALGO_TREE, PROTO_SIMPLE, 3 * 32768), 3);
  assert_int_equal(tune_channels(r, FUNC_ALL_REDUCE, ALGO_TREE, PROTO_SIMPLE, GIB), 32);
  assert_int_equal(tune_channels(r, FUNC_ALL_REDUCE, ALGO_TREE, PROTO_LL128, 5 * 5120 + 1), 5);
  assert_int_equal(tune_channels(r, FUNC_ALL_REDUCE, ALGO_DIRECT, PROTO_LL, 2 * 4096), 14);
  assert_int_equal(tune_channels(r, FUNC_ALL_REDUCE, ALGO_TWO_SHOT, PROTO_SIMPLE, 4 * 32768), 7);
  graph.node_count = 2;
  assert_int_equal(tune_channels(r, FUNC_ALL_REDUCE, ALGO_RING, PROTO_LL, 3 * 32768), 3);
  request.settings.max_threads[PROTO_LL] = 256;
  assert_int_equal(tune_channels(r, FUNC_ALL_REDUCE, ALGO_RING, PROTO_LL, 3 * 32768), 6);
  request.settings.thread_bytes[1][PROTO_LL] = 384;
  assert_int_equal(tune_channels(r, FUNC_ALL_REDUCE, ALGO_RING, PROTO_LL, 3 * 32768), 1);
  assert_int_equal(tune_channels(r, FUNC_ALL_REDUCE, ALGO_RING, PROTO_SIMPLE, GIB), 32);
  graph.ring_speed.inter_gbps = 1.25; /* NICs that one chain saturates */
  graph.ring_speed.channel_count = 1;
  assert_int_equal(tune_channels(r, FUNC_ALL_REDUCE, ALGO_RING, PROTO_SIMPLE, GIB), 8);
  graph_free(&graph);
}

/* A plan uses no more channels than its size needs. */
static void test_plan_channels(void **state) {
  static const uint8_t algos[] = {ALGO_TREE, ALGO_DIRECT, ALGO_TWO_SHOT};
  struct graph graph;
  (void)state;
  assert_int_equal(graph_flat(4, &graph), ncclSuccess);
  for (uint32_t i = 0; i < sizeof algos; i++) {
    for (size_t bytes = 64; bytes <= 8 * MIB; bytes *= 2) {
      struct plan_request request;
      struct plan plan;
      request_begin(&request, &graph, FUNC_ALL_REDUCE, bytes);
      request.settings.algo_mask[FUNC_ALL_REDUCE] = 1u << algos[i];
      request.settings.proto_mask[FUNC_ALL_REDUCE] = 1u << PROTO_SIMPLE;
      assert_int_equal(plan_build(&request, &plan), ncclSuccess);
      const uint32_t most = tune_channels(&request, FUNC_ALL_REDUCE, algos[i], PROTO_SIMPLE, bytes);
      const uint32_t used = (uint32_t)__builtin_popcountll(plan.channel_mask);
      assert_true(used >= 1 && used <= most);
      plan_free(&plan);
    }
  }
  graph_free(&graph);
}

static void test_chunks_by_size(void **state) {
  struct graph graph;
  struct plan_request request;
  (void)state;
  assert_int_equal(graph_flat(8, &graph), ncclSuccess);
  request_begin(&request, &graph, FUNC_ALL_REDUCE, MIB);
  const struct plan_request *r = &request;
  const uint8_t reduce = FUNC_ALL_REDUCE, gather = FUNC_ALL_GATHER, scatter = FUNC_REDUCE_SCATTER;
  /* 1.8 stages, so 14.4 chunks above 128 KiB and 3.6 above 32 KiB */
  assert_int_equal(tune_chunk_bytes(r, reduce, ALGO_TREE, PROTO_LL128, MIB, 16, 576000), 18000);
  assert_int_equal(tune_chunk_bytes(r, reduce, ALGO_TREE, PROTO_LL128, 11200000, 16, 576000), 72000);
  assert_int_equal(tune_chunk_bytes(r, reduce, ALGO_TREE, PROTO_LL128, GIB, 16, 576000), 576000);
  assert_int_equal(tune_chunk_bytes(r, reduce, ALGO_TREE, PROTO_SIMPLE, MIB, 16, 524288), 524288);
  assert_int_equal(tune_chunk_bytes(r, reduce, ALGO_RING, PROTO_SIMPLE, MIB, 16, 524288), 524288);
  assert_int_equal(tune_chunk_bytes(r, gather, ALGO_PAT, PROTO_SIMPLE, 64 * MIB, 8, 524288), 262144);
  assert_int_equal(tune_chunk_bytes(r, scatter, ALGO_PAT, PROTO_SIMPLE, 64 * MIB, 8, 524288), 524288);
  assert_int_equal(tune_chunk_bytes(r, gather, ALGO_PAT, PROTO_SIMPLE, MIB, 8, 524288), 65536);
  assert_int_equal(tune_chunk_bytes(r, reduce, ALGO_NVLS, PROTO_SIMPLE, GIB / 2, 16, 524288), 65536);
  assert_int_equal(tune_chunk_bytes(r, reduce, ALGO_NVLS, PROTO_SIMPLE, GIB, 16, 524288), 131072);
  assert_int_equal(tune_chunk_bytes(r, reduce, ALGO_NVLS, PROTO_SIMPLE, 6 * MIB, 16, 524288), 16384);
  assert_int_equal(tune_chunk_bytes(r, reduce, ALGO_NVLS, PROTO_SIMPLE, 9 * MIB, 16, 524288), 32768);
  assert_int_equal(tune_chunk_bytes(r, reduce, ALGO_NVLS_TREE, PROTO_SIMPLE, MIB, 16, 524288), 32768);
  assert_int_equal(tune_chunk_bytes(r, reduce, ALGO_COLLNET_CHAIN, PROTO_SIMPLE, MIB, 1, 524288), 65536);
  graph_free(&graph);
}

/* ---- forbidden options ---- */

static void test_candidates(void **state) {
  struct tune_candidate rows[TUNE_CANDIDATES];
  struct graph graph;
  struct plan_request request;
  (void)state;
  assert_int_equal(graph_flat(4, &graph), ncclSuccess);
  request_begin(&request, &graph, FUNC_ALL_REDUCE, MIB);
  assert_int_equal(tune_candidates(&request, FUNC_ALL_REDUCE, MIB, rows), 13);
  for (uint32_t i = 0; i < TUNE_CANDIDATES; i++) {
    assert_true(rows[i].algo == i / PROTO_COUNT && rows[i].proto == i % PROTO_COUNT);
    assert_true((rows[i].forbidden == NULL) == (rows[i].time_us > 0));
  }
  assert_int_equal(tune_candidates(&request, FUNC_REDUCE, MIB, rows), 7);
  request.settings.limits.algos = 0;
  assert_int_equal(tune_candidates(&request, FUNC_ALL_REDUCE, MIB, rows), 3);
  graph_free(&graph);
}

static void assert_rule(const struct plan_request *request, uint8_t func, uint8_t algo, uint8_t proto,
                        const char *text) {
  const char *why = rules_forbid(request, func, algo, proto);
  assert_non_null(why);
  if (!strstr(why, text)) print_message("'%s' lacks '%s'\n", why, text);
  assert_non_null(strstr(why, text));
}

static void test_rules(void **state) {
  const uint8_t reduce = FUNC_ALL_REDUCE;
  struct graph graph;
  struct plan_request request;
  (void)state;
  assert_int_equal(graph_flat(32, &graph), ncclSuccess);
  request_begin(&request, &graph, reduce, MIB);
  assert_rule(&request, FUNC_BROADCAST, ALGO_TREE, PROTO_LL, "all-reduce alone");
  assert_rule(&request, FUNC_REDUCE, ALGO_DIRECT, PROTO_LL, "a link to every other rank");
  assert_rule(&request, FUNC_ALL_GATHER, ALGO_TWO_SHOT, PROTO_LL, "all-reduce, reduce and broadcast");
  assert_rule(&request, FUNC_BROADCAST, ALGO_TWO_SHOT, PROTO_LL, "Simple alone");
  assert_rule(&request, reduce, ALGO_DIRECT, PROTO_LL, "a link to every other rank");
  assert_rule(&request, reduce, ALGO_CUSTOM, PROTO_LL, "never chosen");
  graph.node_count = 4;
  assert_rule(&request, reduce, ALGO_TWO_SHOT, PROTO_LL, "one node");
  graph.ring_speed.inter_path = GRAPH_PHB;
  assert_rule(&request, reduce, ALGO_RING, PROTO_LL128, "NICs near");
  request.settings.proto_named[reduce] = 1u << PROTO_LL128;
  assert_null(rules_forbid(&request, reduce, ALGO_RING, PROTO_LL128));
  request.settings.proto_named[reduce] = 0;
  graph.ring_speed.intra_path = GRAPH_PHB;
  assert_rule(&request, reduce, ALGO_RING, PROTO_LL128, "needs NVLink");
  request.settings.limits.algos = 0;
  assert_rule(&request, reduce, ALGO_TREE, PROTO_LL, "executors");
  request.settings.proto_mask[reduce] = 1u << PROTO_LL;
  assert_rule(&request, reduce, ALGO_RING, PROTO_SIMPLE, "NCCL_PROTO");
  request.settings.algo_mask[reduce] = 1u << ALGO_TREE;
  assert_rule(&request, reduce, ALGO_RING, PROTO_LL, "NCCL_ALGO");
  graph_free(&graph);
}

static void test_nothing_left(void **state) {
  static const char *const parts[] = {"NCCL_ALGO (Tree, PAT)",
                                      "NCCL_PROTO (LL)",
                                      "Broadcast",
                                      "Tree: Tree is for all-reduce alone",
                                      "PAT: PAT is for all-gather",
                                      "Allowed without them: Ring, Direct"};
  struct graph graph;
  struct plan_request request;
  struct tune_choice choice;
  (void)state;
  assert_int_equal(graph_flat(4, &graph), ncclSuccess);
  request_begin(&request, &graph, FUNC_BROADCAST, MIB);
  request.settings.algo_mask[FUNC_BROADCAST] = 1u << ALGO_TREE | 1u << ALGO_PAT;
  request.settings.proto_mask[FUNC_BROADCAST] = 1u << PROTO_LL;
  assert_int_equal(tune_choose(&request, FUNC_BROADCAST, MIB, &choice), ncclInvalidUsage);
  for (uint32_t i = 0; i < sizeof parts / sizeof *parts; i++) {
    if (!strstr(log_last_error(), parts[i])) print_message("no '%s' in: %s\n", parts[i], log_last_error());
    assert_non_null(strstr(log_last_error(), parts[i]));
  }
  graph_free(&graph);
}

static void test_thresholds(void **state) {
  static const char *const bad[] = {"x", "1,2,3,4,5,6,7", "0", "-1", "8 16k", "99999999999"};
  uint32_t bytes[2][PROTO_COUNT];
  (void)state;
  assert_true(settings_parse_thresholds("", bytes) && bytes[0][0] == 0);
  assert_true(settings_parse_thresholds("16 -2, 128 32", bytes));
  assert_true(bytes[0][0] == 16 && bytes[0][1] == 0 && bytes[0][2] == 128);
  assert_true(bytes[1][0] == 32 && bytes[1][1] == 0 && bytes[1][2] == 0);
  for (uint32_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    memset(bytes, 0x5a, sizeof bytes);
    assert_false(settings_parse_thresholds(bad[i], bytes));
    assert_true(bytes[0][0] == 0 && bytes[1][2] == 0);
  }
}

static ncclResult_t limits_of_production(struct plan_limits *limits) {
  plan_limits_default(limits);
  return ncclSuccess;
}

/* Reads the settings with one variable set. */
static ncclResult_t settings_with(const char *name, const char *value, struct settings *settings) {
  static const struct device_ops device = {.size = sizeof device, .limits = limits_of_production};
  static const struct backend ops = {.size = sizeof ops, .name = "test", .device = &device};
  ncclConfig_t config;
  setenv(name, value, 1);
  param_reset();
  ncclResult_t result = config_read("test", NULL, NULL, &config);
  if (result == ncclSuccess) result = settings_read(&ops, &config, settings);
  unsetenv(name);
  return result;
}

static void test_variables(void **state) {
  const uint32_t collnet = 1u << ALGO_COLLNET_DIRECT | 1u << ALGO_COLLNET_CHAIN;
  const uint32_t nvls = 1u << ALGO_NVLS | 1u << ALGO_NVLS_TREE, pat = 1u << ALGO_PAT;
  struct settings settings;
  (void)state;
  assert_int_equal(settings_with("NCCL_PAT_ENABLE", "0", &settings), ncclSuccess);
  assert_int_equal(settings.plan.algos_off, pat | nvls | collnet);
  assert_int_equal(settings_with("NCCL_NVLS_ENABLE", "0", &settings), ncclSuccess);
  assert_int_equal(settings.plan.algos_off, nvls | collnet);
  assert_int_equal(settings_with("NCCL_COLLNET_ENABLE", "1", &settings), ncclSuccess);
  assert_int_equal(settings.plan.algos_off, nvls);
  assert_int_equal(settings_with("NCCL_NVLS_ENABLE", "1", &settings), ncclSuccess);
  assert_int_equal(settings.plan.algos_off, collnet);
  assert_int_equal(settings_with("NCCL_CHUNK_SIZE", "64K", &settings), ncclSuccess);
  assert_int_equal(settings.plan.limits.chunk_bytes, 65536);
  assert_int_equal(settings_with("NCCL_MAX_NCHANNELS", "5", &settings), ncclSuccess);
  assert_int_equal(settings.plan.limits.channel_count, 5);
  assert_int_equal(settings_with("NCCL_MIN_CTAS", "40", &settings), ncclSuccess);
  assert_int_equal(settings.plan.limits.channel_count, 40);
  assert_int_equal(settings_with("NCCL_BUFFSIZE", "1M", &settings), ncclSuccess);
  assert_int_equal(settings.plan.limits.step_bytes[PROTO_SIMPLE], 131072);
  assert_int_equal(settings_with("NCCL_NTHREADS", "256", &settings), ncclSuccess);
  assert_true(settings.plan.max_threads[PROTO_LL] == 256 && settings.plan.max_threads[PROTO_LL128] == 640);
  assert_int_equal(settings_with("NCCL_LL128_NTHREADS", "320", &settings), ncclSuccess);
  assert_true(settings.plan.max_threads[PROTO_LL] == 512 && settings.plan.max_threads[PROTO_LL128] == 320);
  assert_int_equal(settings_with("NCCL_THREAD_THRESHOLDS", "1 2 3 4", &settings), ncclSuccess);
  assert_true(settings.plan.thread_bytes[0][2] == 3 && settings.plan.thread_bytes[1][0] == 4);
  assert_int_equal(settings_with("TUTTI_TUNE_FILE", "/nowhere/at/all", &settings), ncclInvalidUsage);
  assert_int_equal(settings_with("TUTTI_TUNE_FILE", "/dev/null", &settings), ncclSuccess);
  assert_non_null(settings.plan.tune_file);
  settings_free(&settings);
  param_reset();
}

/* An algorithm's own variable that excludes it is named as the reason, if the algorithm is available. */
static void test_variables_forbid(void **state) {
  struct graph graph;
  struct plan_request request;
  (void)state;
  assert_int_equal(graph_flat(4, &graph), ncclSuccess);
  request_begin(&request, &graph, FUNC_ALL_REDUCE, MIB);
  request.settings.algos_off = 1u << ALGO_TREE;
  assert_rule(&request, FUNC_ALL_REDUCE, ALGO_TREE, PROTO_LL, "for it");
  request.settings.protos_torn = 1u << PROTO_LL128;
  request.settings.proto_mask[FUNC_ALL_REDUCE] = 1u << PROTO_LL | 1u << PROTO_SIMPLE;
  assert_rule(&request, FUNC_ALL_REDUCE, ALGO_RING, PROTO_LL128, "apart");
  graph_free(&graph);
}

/* ---- the tuning file ---- */

static struct tune_file *parse(const char *text) {
  struct tune_file *file = NULL;
  const ncclResult_t result = tune_file_parse("rules", text, strlen(text), &file);
  if (result != ncclSuccess) print_message("%s\n", log_last_error());
  assert_int_equal(result, ncclSuccess);
  return file;
}

static void test_file_good(void **state) {
  const uint64_t live = os_alloc_live();
  struct tune_file *file = parse(
      "# a comment\n\n"
      "all_reduce 8 32K ranks=4 nodes=1 algo=TwoShot proto=LL channels=8 # 4.1 us\r\n"
      "all_reduce 32K max ranks=4 algo=ring\tproto=simple\n"
      "all_reduce 8 32K ranks=8 proto=LL128 algo=Tree\n"
      "broadcast 0 1 algo=Ring proto=LL"); /* no newline */
  char text[128];
  (void)state;
  assert_int_equal(file->count, 4);
  const struct tune_rule *rule = &file->rules[0];
  assert_true(rule->func == FUNC_ALL_REDUCE && rule->from_bytes == 8 && rule->to_bytes == 32768);
  assert_true(rule->rank_count == 4 && rule->node_count == 1 && rule->channel_count == 8);
  assert_true(rule->algo == ALGO_TWO_SHOT && rule->proto == PROTO_LL && rule->line == 3);
  tune_rule_text(rule, text, sizeof text);
  assert_string_equal(text, "all_reduce 8 32768 ranks=4 nodes=1 algo=TwoShot proto=LL channels=8");
  tune_rule_text(&file->rules[1], text, sizeof text);
  assert_string_equal(text, "all_reduce 32768 max ranks=4 algo=Ring proto=Simple");
  os_free(file);
  file = parse("");
  assert_int_equal(file->count, 0);
  os_free(file);
  assert_true(os_alloc_live() == live);
}

static void test_file_bad(void **state) {
  static const struct {
    const char *text, *said;
  } rows[] = {
      {"all_reduce", "rules:1: expected the least size"},
      {"\n\nalltoall 1 2 algo=Ring proto=LL", "rules:3: expected a collective (broadcast, reduce"},
      {"all_reduce 8x 16 algo=Ring proto=LL", "expected the least size: bytes, with K, M or G, found '8x'"},
      {"all_reduce 16 8 algo=Ring proto=LL", "expected the size at which the rule ends"},
      {"all_reduce 8 16", "expected algo=NAME, found the end of the line"},
      {"all_reduce 8 16 algo=Ring", "expected proto=NAME"},
      {"all_reduce 8 16 algo=Rong proto=LL", "expected an algorithm (Tree, Ring"},
      {"all_reduce 8 16 algo=Ring proto=LX", "expected a protocol (LL, LL128, Simple), found 'LX'"},
      {"all_reduce 8 16 algo=Ring proto=LL channels=65", "expected a number of channels from 1 to 64"},
      {"all_reduce 8 16 algo=Ring proto=LL ranks=0", "expected a number of ranks from 1 on"},
      {"all_reduce 8 16 algo=Ring proto=LL nodes=", "found the end of the line"},
      {"all_reduce 8 16 algo=Ring proto=LL colour=3", "expected ranks=, nodes="},
      {"all_reduce 8 16 algo=Ring algo=Ring proto=LL", "each at most once"},
      {"all_reduce 8 99999999999999999999 algo=Ring proto=LL", "rule ends"},
      {"all_reduce 8 64 algo=Ring proto=LL\nall_reduce 63 max ranks=4 algo=Ring proto=LL",
       "rules:2: expected sizes that no other rule for all_reduce claims, but line 1"},
  };
  const uint64_t live = os_alloc_live();
  (void)state;
  for (uint32_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct tune_file *file = (struct tune_file *)0x5a;
    assert_int_equal(tune_file_parse("rules", rows[i].text, strlen(rows[i].text), &file), ncclInvalidUsage);
    assert_ptr_equal(file, 0x5a);
    if (!strstr(log_last_error(), rows[i].said)) print_message("%s\n", log_last_error());
    assert_non_null(strstr(log_last_error(), rows[i].said));
  }
  assert_true(os_alloc_live() == live);
}

static void test_file_bounds(void **state) {
  static char text[80 * (TUNE_RULES_MAX + 1)];
  struct tune_file *file = NULL;
  size_t used = 0;
  (void)state;
  for (uint32_t i = 0; i <= TUNE_RULES_MAX; i++)
    used += (size_t)snprintf(text + used, sizeof text - used, "reduce %u %u algo=Ring proto=LL\n", i, i + 1);
  assert_int_equal(tune_file_parse("rules", text, used, &file), ncclInvalidUsage);
  assert_non_null(strstr(log_last_error(), "at most 1024 rules, found 1025"));
  assert_int_equal(tune_file_parse("rules", text, TUNE_FILE_BYTES_MAX + 1, &file), ncclInvalidUsage);
  assert_int_equal(tune_file_read("/nowhere/at/all", &file), ncclInvalidUsage);
  assert_non_null(strstr(log_last_error(), "/nowhere/at/all: the tuning file cannot be read"));
  os_alloc_fail_at(1);
  assert_int_equal(tune_file_parse("rules", "", 0, &file), ncclSystemError);
  os_alloc_fail_at(0);
  assert_null(file);
}

/* Rules choose where they match and are allowed; elsewhere the model does. */
static void test_file_chooses(void **state) {
  struct tune_file *file = parse(
      "all_reduce 1K 2K algo=Tree proto=Simple channels=3\n"
      "all_reduce 2K 4K ranks=5 algo=Tree proto=LL\n"
      "all_reduce 4K 8K nodes=2 algo=Tree proto=LL\n"
      "all_reduce 8K 16K algo=PAT proto=Simple\n"
      "all_reduce 16K max algo=Ring proto=LL channels=64\n");
  static const struct {
    size_t bytes;
    uint32_t line, channels;
  } rows[] = {{1023, 0, 0}, {1024, 1, 3}, {2047, 1, 3},   {2048, 0, 0},
              {4096, 0, 0}, {8192, 0, 0}, {16384, 5, 32}, {GIB, 5, 32}};
  struct graph graph;
  (void)state;
  assert_int_equal(graph_flat(4, &graph), ncclSuccess);
  for (uint32_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    struct plan_request request;
    struct tune_choice choice;
    request_begin(&request, &graph, FUNC_ALL_REDUCE, rows[i].bytes);
    request.settings.tune_file = file;
    assert_int_equal(tune_choose(&request, FUNC_ALL_REDUCE, rows[i].bytes, &choice), ncclSuccess);
    assert_int_equal(choice.file_line, rows[i].line);
    if (rows[i].line != 0) assert_int_equal(choice.channel_count, rows[i].channels);
    request.settings.algo_mask[FUNC_ALL_REDUCE] =
        1u << ALGO_DIRECT; /* the variable takes precedence over the file */
    assert_int_equal(tune_choose(&request, FUNC_ALL_REDUCE, rows[i].bytes, &choice), ncclSuccess);
    assert_true(choice.file_line == 0 && choice.algo == ALGO_DIRECT);
  }
  graph_free(&graph);
  os_free(file);
}

/* ---- the iteration ---- */

static bool visit_plan(void *argument, const struct plan_request *request, const struct tune_choice *choice) {
  uint32_t *algos = (uint32_t *)argument;
  struct plan plan;
  assert_int_equal(plan_build(request, &plan), ncclSuccess);
  for (uint32_t i = 0; i < plan.work_count; i++)
    assert_true(plan.works[i].algo == choice->algo && plan.works[i].proto == choice->proto);
  plan_free(&plan);
  *algos |= 1u << choice->algo;
  return true;
}

/* Every possible choice can be planned as chosen. */
static void test_visits(void **state) {
  struct graph graph;
  struct plan_limits limits;
  uint32_t algos = 0;
  (void)state;
  plan_limits_default(&limits);
  assert_int_equal(graph_flat(4, &graph), ncclSuccess);
  assert_true(tune_visit_all(&graph, &limits, 64 * MIB, visit_plan, &algos) > 500);
  assert_int_equal(algos, 1u << ALGO_RING | 1u << ALGO_TREE | 1u << ALGO_DIRECT | 1u << ALGO_TWO_SHOT |
                              1u << ALGO_PAT | 1u << ALGO_NVLS);
  graph_free(&graph);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_ring_plans_stay),
      cmocka_unit_test(test_ring_borders_stay),
      cmocka_unit_test(test_formulas_of_nodes),
      cmocka_unit_test(test_formulas_of_switches),
      cmocka_unit_test(test_direct_as_measured),
      cmocka_unit_test(test_quick_direct),
      cmocka_unit_test(test_one_shot_or_two),
      cmocka_unit_test(test_one_hop_reduce),
      cmocka_unit_test(test_direct_over_simple),
      cmocka_unit_test(test_over_memory_of_the_host),
      cmocka_unit_test(test_choices),
      cmocka_unit_test(test_choices_of_cores),
      cmocka_unit_test(test_ll_between_hosts),
      cmocka_unit_test(test_direct_between_hosts),
      cmocka_unit_test(test_rank_order),
      cmocka_unit_test(test_rank_order_time),
      cmocka_unit_test(test_last),
      cmocka_unit_test(test_channels_by_size),
      cmocka_unit_test(test_plan_channels),
      cmocka_unit_test(test_chunks_by_size),
      cmocka_unit_test(test_candidates),
      cmocka_unit_test(test_rooted),
      cmocka_unit_test(test_rules),
      cmocka_unit_test(test_nothing_left),
      cmocka_unit_test(test_variables),
      cmocka_unit_test(test_variables_forbid),
      cmocka_unit_test(test_thresholds),
      cmocka_unit_test(test_file_good),
      cmocka_unit_test(test_file_bad),
      cmocka_unit_test(test_file_bounds),
      cmocka_unit_test(test_file_chooses),
      cmocka_unit_test(test_visits),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
