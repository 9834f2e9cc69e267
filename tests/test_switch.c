/* test_switch.c: collectives over a switch that reduces (NVLS, CollNet): their steps against the symbolic
 * oracle (switch_oracle.h), over one node and several, with ranks numbered node by node and round-robin; runs
 * in the emulator; refused calls and the reasons; the switch's name in reports. */
/* sanitizers: address thread */
/* runner: tsan 15 s */
#include "switch_oracle.h"

#include <stdlib.h>

#include "backends/emu/block.h"
#include "base/log.h"
#include "base/param.h"
#include "core/plan/rules.h"
#include "core/settings/settings.h"
#include "core/topology/links.h"
#include "ranks.h"
#include "tutti.h"

#define ALGO_BIT(algo) (1u << (algo))
#define LENGTH(array) (sizeof(array) / sizeof(array)[0])

/* Nodes with these numbers of ranks, by hand. Numbered round-robin: rank 0 is the first of node 0, rank 1 the
 * first of node 1, and so on. */
struct places {
  struct graph graph;
  uint32_t node[ORACLE_RANKS_MAX], local[ORACLE_RANKS_MAX], head[PLAN_CHANNELS_MAX][ORACLE_RANKS_MAX];
};

static uint32_t places_find(const struct places *p, uint32_t node, uint32_t local) {
  uint32_t rank = 0;
  while (p->node[rank] != node || p->local[rank] != local) rank += 1;
  return rank;
}

static void places_number(struct places *p, const uint32_t *sizes, uint32_t node_count, bool across) {
  uint32_t rank = 0, most = 0;
  for (uint32_t i = 0; i < node_count; i++) most = sizes[i] > most ? sizes[i] : most;
  for (uint32_t outer = 0; outer < (across ? most : node_count); outer++)
    for (uint32_t inner = 0; inner < (across ? node_count : most); inner++) {
      const uint32_t node = across ? inner : outer, local = across ? outer : inner;
      if (local >= sizes[node]) continue;
      p->node[rank] = node;
      p->local[rank++] = local;
    }
  p->graph.rank_count = rank;
  p->graph.node_ranks_max = most;
}

static void places_set(struct places *p, const uint32_t *sizes, uint32_t node_count, bool across) {
  memset(p, 0, sizeof *p);
  p->graph.node = p->node;
  p->graph.local = p->local;
  p->graph.node_count = node_count;
  p->graph.channel_count = PLAN_CHANNELS_MAX;
  places_number(p, sizes, node_count, across);
  p->graph.nodes_even = true;
  for (uint32_t i = 1; i < node_count; i++) p->graph.nodes_even &= sizes[i] == sizes[0];
  for (uint32_t channel = 0; channel < PLAN_CHANNELS_MAX; channel++) {
    for (uint32_t i = 0; i < node_count; i++)
      p->head[channel][i] = places_find(p, i, (channel + i) % sizes[i]);
    p->graph.head[channel] = p->head[channel];
  }
}

static void places_even(struct places *p, uint32_t node_count, uint32_t size, bool across) {
  uint32_t sizes[ORACLE_RANKS_MAX];
  for (uint32_t i = 0; i < node_count; i++) sizes[i] = size;
  places_set(p, sizes, node_count, across);
}

/* ---- the oracle ---- */

static struct oracle oracle;

/* Counts around one loop and two, each with one slot or two, in place or not, on one of three channels. */
static void oracle_counts(uint8_t algo, uint8_t func, const struct places *p) {
  const uint32_t shards = func == FUNC_ALL_REDUCE ? p->graph.node_ranks_max : 1;
  struct oracle_case test = {.func = func, .algo = algo, .graph = &p->graph};
  for (test.chunk = 1; test.chunk <= 7; test.chunk += 3) {
    const size_t loop = test.chunk * shards;
    const size_t counts[] = {0, 1, 3, loop - 1, loop, loop + 1, 2 * loop + 2};
    for (uint32_t i = 0; i < LENGTH(counts); i++) {
      test.count = counts[i] * p->graph.rank_count <= ORACLE_ELEMENTS_MAX
                       ? counts[i]
                       : ORACLE_ELEMENTS_MAX / p->graph.rank_count;
      test.slots = 1 + (i + test.chunk) % 2;
      test.channel = (i + test.chunk) % ORACLE_CHANNELS_MAX;
      test.in_place = i % 3 == 0 ? ~0u : i % 3 == 1 ? 0 : 0x5a5a5a5a;
      oracle_run(&oracle, &test);
    }
  }
}

#if defined(__SANITIZE_THREAD__)
enum { NODES_MOST = 2 }; /* this single thread is slow in sanitizer builds: other builds run the rest */
#else
enum { NODES_MOST = 16 };
#endif

/* One node to sixteen; a third of the larger ones is left out. */
static void oracle_nodes(uint8_t algo, uint8_t func, uint32_t least_nodes, uint32_t least_size) {
  static struct places places;
  for (uint32_t nodes = least_nodes; nodes <= NODES_MOST; nodes++)
    for (uint32_t size = least_size; size <= 16 && nodes * size <= ORACLE_RANKS_MAX; size++) {
      if ((algo == ALGO_NVLS && nodes > 1) || (nodes * size > 8 && (nodes + size) % 3 == 1)) continue;
      places_even(&places, nodes, size, false);
      oracle_counts(algo, func, &places);
      if (nodes == 1 || func != FUNC_ALL_REDUCE) continue;
      places_even(&places, nodes, size, true);
      oracle_counts(algo, func, &places);
    }
}

static void test_nvls(void **state) {
  (void)state;
  oracle_nodes(ALGO_NVLS, FUNC_ALL_REDUCE, 1, 2);
  oracle_nodes(ALGO_NVLS, FUNC_ALL_GATHER, 1, 2);
  oracle_nodes(ALGO_NVLS, FUNC_REDUCE_SCATTER, 1, 2);
}

static void test_nvls_tree(void **state) {
  (void)state;
  oracle_nodes(ALGO_NVLS_TREE, FUNC_ALL_REDUCE, 2, 2);
}

static void test_collnet_direct(void **state) {
  (void)state;
  oracle_nodes(ALGO_COLLNET_DIRECT, FUNC_ALL_REDUCE, 2, 1);
  oracle_nodes(ALGO_COLLNET_DIRECT, FUNC_ALL_GATHER, 2, 1);
  oracle_nodes(ALGO_COLLNET_DIRECT, FUNC_REDUCE_SCATTER, 2, 1);
}

/* A chain also supports nodes of different sizes. */
static void test_collnet_chain(void **state) {
  static const uint32_t sizes[][4] = {{1, 3, 2, 5}, {4, 1, 1, 7}, {2, 9, 3, 1}};
  static struct places places;
  (void)state;
  oracle_nodes(ALGO_COLLNET_CHAIN, FUNC_ALL_REDUCE, 2, 1);
  for (uint32_t i = 0; i < LENGTH(sizes); i++)
    for (uint32_t nodes = 2; nodes <= 4; nodes++)
      for (uint32_t across = 0; across < 2; across++) {
        places_set(&places, sizes[i], nodes, across != 0);
        oracle_counts(ALGO_COLLNET_CHAIN, FUNC_ALL_REDUCE, &places);
      }
}

/* One loop over a switch of three, written out: the switch, and the rank that hosts it. */
static void test_by_hand(void **state) {
  static const struct {
    uint32_t flags, recv_links, send_links;
  } lane[6] = {{STEP_RECV | STEP_REDUCE | STEP_SEND, 7, 1},
               {STEP_RECV | STEP_REDUCE | STEP_SEND, 7, 2},
               {STEP_RECV | STEP_REDUCE | STEP_SEND, 7, 4},
               {STEP_RECV | STEP_SEND, 1, 7},
               {STEP_RECV | STEP_SEND, 2, 7},
               {STEP_RECV | STEP_SEND, 4, 7}};
  static const uint32_t rank_flags[7] = {
      STEP_COPY_IN | STEP_SEND, STEP_COPY_IN | STEP_SEND,
      STEP_COPY_IN | STEP_SEND, STEP_RECV | STEP_REDUCE | STEP_SEND | STEP_POST_OP,
      STEP_RECV | STEP_KEEP,    STEP_RECV | STEP_KEEP,
      STEP_RECV | STEP_KEEP};
  static const uint32_t rank_shards[7] = {0, 1, 2, 1, 0, 1, 2};
  static struct places places;
  struct work work = {.func = FUNC_ALL_REDUCE,
                      .algo = ALGO_NVLS,
                      .rank = 1,
                      .rank_count = 3,
                      .channel_index = 1,
                      .element_bytes = 4,
                      .part_count = 10,
                      .chunk_count = 100};
  struct switch_iter iter;
  struct step step;
  (void)state;
  places_even(&places, 1, 3, false);
  for (uint32_t role = ROLE_WHOLE; role <= ROLE_SWITCH; role += ROLE_SWITCH) {
    work.role = (uint16_t)role;
    links_set(&places.graph, &work);
    algo_cut(&work);
    assert_int_equal(work.recv_count, role == ROLE_SWITCH ? 3 : 1);
    assert_int_equal(work.recv_peer[0], role == ROLE_SWITCH ? 0 : 1);
    switch_begin(&iter, &work);
    for (uint32_t i = 0; i < (role == ROLE_SWITCH ? 6 : 7); i++) {
      const uint32_t shard = role == ROLE_SWITCH ? i % 3 : rank_shards[i];
      assert_true(switch_next(&iter, &work, &step));
      assert_int_equal(step.flags, role == ROLE_SWITCH ? lane[i].flags : rank_flags[i]);
      if (role == ROLE_SWITCH) assert_int_equal(step.recv_links, lane[i].recv_links);
      if (role == ROLE_SWITCH) assert_int_equal(step.send_links, lane[i].send_links);
      assert_int_equal(step.in_offset, 4 * shard);
      assert_int_equal(step.count, shard == 2 ? 2 : 4);
    }
    assert_false(switch_next(&iter, &work, &step));
  }
  assert_int_equal(work_link_conn(&work, 1, false), CONN_SWITCH);
  assert_int_equal(work_link_conn(&work, 1, true), CONN_FROM_SWITCH);
  assert_int_equal(work_link_conn(&work, 2, true), CONN_SWITCH);
}

/* ---- the emulator ---- */

static struct ranks ranks; /* of the running test */

static int ranks_drop(void **state) {
  (void)state;
  for (uint32_t rank = 0; rank < ranks.count; rank++) ranks.ops->device->comm_abort(ranks.comms[rank]);
  ranks_close(&ranks);
  return 0;
}

static void world_begin(const char *emu, uint64_t seed, bool threads) {
  const tutti_emu_config_t config = {.size = sizeof config, .seed = seed, .threads = threads};
  setenv("TUTTI_EMU", emu, 1);
  param_reset();
  if (ranks_configure(&config) != ncclSuccess) fail_msg("%s: %s", emu, log_last_error());
}

/* Ranks on nodes by hand: the graph must outlive them. */
static void world_open(const struct places *p, uint8_t algo) {
  assert_int_equal(ranks_open(&ranks, p->graph.rank_count), ncclSuccess);
  graph_free(&ranks.graph);
  ranks.graph = p->graph;
  ranks.algo_mask = ALGO_BIT(algo);
}

/* Calls in sequence: of zero elements, one, a few, several loops, several channels. */
static void world_run(const char *emu, uint64_t seed, bool threads, const struct places *p, uint8_t algo,
                      uint8_t func) {
  static const size_t counts[] = {0, 1, 37, 300, 9000};
  static const uint8_t types[] = {ncclFloat32, ncclInt64, ncclUint8, ncclFloat16, ncclFloat32};
  struct call calls[LENGTH(counts)];
  char text[RANKS_TEXT_BYTES];
  const uint32_t call_count = (uint32_t)(strstr(emu, "chunk=4096") != NULL ? 5 : 4);
  world_begin(emu, seed, threads);
  world_open(p, algo);
  for (uint32_t i = 0; i < call_count; i++) {
    calls[i] = (struct call){.func = func,
                             .proto = PROTO_SIMPLE,
                             .dtype = types[i],
                             .count = counts[i],
                             .in_place = (i + seed) % 2 == 0};
    assert_true(call_prepare(&ranks, &calls[i]));
    if (call_launch_all(&ranks, &calls[i]) != ncclSuccess) fail_msg("%s", log_last_error());
  }
  if (ranks_wait(&ranks) != ncclSuccess) fail_msg("%s seed %u: %s", emu, (unsigned)seed, log_last_error());
  for (uint32_t i = 0; i < call_count; i++) {
    if (!call_check(&ranks, &calls[i], text))
      fail_msg("algorithm %u on %u nodes, %s, seed %u: %s", algo, p->graph.node_count, emu, (unsigned)seed,
               text);
    call_free(&calls[i]);
  }
  ranks_close(&ranks);
}

static const struct {
  uint8_t algo, func;
  uint32_t nodes, size;
  bool across;
} runs[] = {
    {ALGO_NVLS, FUNC_ALL_REDUCE, 1, 2, false},
    {ALGO_NVLS, FUNC_ALL_REDUCE, 1, 7, false},
    {ALGO_NVLS, FUNC_ALL_GATHER, 1, 5, false},
    {ALGO_NVLS, FUNC_REDUCE_SCATTER, 1, 5, false},
    {ALGO_NVLS_TREE, FUNC_ALL_REDUCE, 2, 4, false},
    {ALGO_NVLS_TREE, FUNC_ALL_REDUCE, 4, 2, true},
    {ALGO_NVLS_TREE, FUNC_ALL_REDUCE, 3, 2, false},
    {ALGO_COLLNET_DIRECT, FUNC_ALL_REDUCE, 2, 3, true},
    {ALGO_COLLNET_DIRECT, FUNC_ALL_REDUCE, 4, 2, false},
    {ALGO_COLLNET_DIRECT, FUNC_ALL_GATHER, 2, 3, false},
    {ALGO_COLLNET_DIRECT, FUNC_REDUCE_SCATTER, 3, 2, false},
    {ALGO_COLLNET_CHAIN, FUNC_ALL_REDUCE, 2, 4, true},
    {ALGO_COLLNET_CHAIN, FUNC_ALL_REDUCE, 5, 1, false},
};

static void runs_with(const char *emu, uint32_t seeds, bool threads) {
  static struct places places;
  for (uint32_t i = 0; i < LENGTH(runs); i++) {
    places_even(&places, runs[i].nodes, runs[i].size, runs[i].across);
    for (uint64_t seed = 1; seed <= seeds; seed++)
      world_run(emu, seed, threads, &places, runs[i].algo, runs[i].func);
  }
}

static void test_guarded(void **state) {
  (void)state;
  runs_with("slots=1,chunk=16,channels=3", 2, false);
  runs_with("slots=2,chunk=40,channels=1,depth=4,lag=60", 3, false);
  runs_with("slots=3,chunk=64,channels=2,depth=2,lag=30,rule=priority", 3, false);
  runs_with("slots=8,chunk=4096,channels=3,depth=3,lag=40", 2, false);
}

static void test_threads(void **state) {
  (void)state;
  runs_with("slots=2,chunk=64,channels=2,depth=2", 1, true);
  runs_with("slots=4,chunk=4096,channels=3", 1, true);
}

/* ---- reports ---- */

static void assert_says(const char *text) {
  if (strstr(log_last_error(), text) == NULL) fail_msg("no '%s' in: %s", text, log_last_error());
}

static void test_absent_rank(void **state) {
  static struct places places;
  struct call call = {.func = FUNC_ALL_REDUCE, .proto = PROTO_SIMPLE, .dtype = ncclFloat32, .count = 96};
  (void)state;
  places_even(&places, 1, 4, false);
  world_begin("slots=1,chunk=16,channels=1", 1, false);
  world_open(&places, ALGO_NVLS);
  assert_true(call_prepare(&ranks, &call));
  for (uint32_t rank = 0; rank < 3; rank++)
    assert_int_equal(call_launch(&ranks, rank, &call, call.count), ncclSuccess);
  assert_int_equal(ranks_wait(&ranks), ncclRemoteError);
  assert_says("the switch of channel 0 at rank 0 all_reduce #0 step 0 waits for data from rank 3");
  assert_says("rank 3 has launched 0 of 1 kernels");
  assert_says(
      "rank 1 channel 0 all_reduce #0 step 1 waits for a free slot towards the switch of channel 0 at "
      "rank 0");
  call_free(&call);
  ranks_close(&ranks);
}

static void test_mismatch(void **state) {
  static struct places places;
  (void)state;
  for (uint32_t odd = 0; odd < 3; odd++) {
    struct call call = {.func = FUNC_ALL_REDUCE, .proto = PROTO_SIMPLE, .dtype = ncclFloat32, .count = 96};
    places_even(&places, 1, 3, false);
    world_begin("slots=2,chunk=64,channels=1", 1 + odd, false);
    world_open(&places, ALGO_NVLS);
    assert_true(call_prepare(&ranks, &call));
    for (uint32_t rank = 0; rank < 3; rank++)
      assert_int_equal(call_launch(&ranks, rank, &call, rank == odd ? 32 : 96), ncclSuccess);
    assert_int_equal(ranks_wait(&ranks), ncclInvalidUsage);
    assert_says("do not agree on operation 0 (all_reduce)");
    call_free(&call);
    ranks_close(&ranks);
  }
}

/* The ends of a connection, with the lane at either end. */
static void test_names(void **state) {
  static struct emu_lane member, host;
  struct work rank_work = {.algo = ALGO_NVLS, .rank = 2, .send_count = 1, .recv_count = 1};
  const struct work switch_work = {.algo = ALGO_NVLS, .role = ROLE_SWITCH};
  struct emu_conn conn = {.sender_rank = 2, .receiver_rank = 0, .channel_index = 5};
  char text[EMU_END_BYTES];
  (void)state;
  member.lane.work = &rank_work;
  host.lane.work = &switch_work;
  assert_string_equal(emu_report_end(text, &conn, false), "0");
  conn.send_lane = &member;
  assert_string_equal(emu_report_end(text, &conn, false), "the switch of channel 5 at rank 0");
  assert_string_equal(emu_report_end(text, &conn, true), "2");
  conn.send_lane = NULL;
  conn.recv_lane = &host;
  assert_string_equal(emu_report_end(text, &conn, false), "the switch of channel 5 at rank 0");
  rank_work.algo = ALGO_RING;
  conn.send_lane = conn.recv_lane = &member;
  assert_string_equal(emu_report_end(text, &conn, false), "0");
}

/* ---- refused calls ---- */

static void expect_refusal(const struct places *p, uint8_t algo, uint8_t func, uint8_t proto,
                           const char *why) {
  const struct oracle_case test = {.func = func, .algo = algo, .graph = &p->graph};
  const struct plan_request request = oracle_request(&test, 0, NULL);
  const char *said = rules_forbid(&request, func, algo, proto);
  if (why == NULL && said != NULL) fail_msg("algorithm %u function %u: %s", algo, func, said);
  if (why != NULL && (said == NULL || strstr(said, why) == NULL))
    fail_msg("algorithm %u function %u: '%s' does not hold '%s'", algo, func, said ? said : "", why);
}

static void test_rules(void **state) {
  static const uint32_t uneven[] = {2, 3};
  static struct places p;
  (void)state;
  places_even(&p, 1, 8, false);
  expect_refusal(&p, ALGO_NVLS, FUNC_ALL_REDUCE, PROTO_SIMPLE, NULL);
  expect_refusal(&p, ALGO_NVLS, FUNC_ALL_REDUCE, PROTO_LL, "moves data by Simple alone");
  expect_refusal(&p, ALGO_NVLS, FUNC_BROADCAST, PROTO_SIMPLE, "NVLS is for all-reduce, all-gather");
  expect_refusal(&p, ALGO_NVLS_TREE, FUNC_ALL_REDUCE, PROTO_SIMPLE, "joins several nodes");
  expect_refusal(&p, ALGO_COLLNET_CHAIN, FUNC_ALL_GATHER, PROTO_SIMPLE, "CollNetChain is for all-reduce");
  places_even(&p, 1, 17, false);
  expect_refusal(&p, ALGO_NVLS, FUNC_ALL_REDUCE, PROTO_SIMPLE,
                 "more members than an executor has links (16)");
  places_even(&p, 17, 1, false);
  expect_refusal(&p, ALGO_COLLNET_CHAIN, FUNC_ALL_REDUCE, PROTO_SIMPLE, "more members");
  expect_refusal(&p, ALGO_NVLS_TREE, FUNC_ALL_REDUCE, PROTO_SIMPLE, "at least two ranks on each node");
  places_even(&p, 2, 4, true);
  expect_refusal(&p, ALGO_NVLS, FUNC_ALL_REDUCE, PROTO_SIMPLE, "NVLS is for ranks of one node");
  expect_refusal(&p, ALGO_COLLNET_DIRECT, FUNC_ALL_REDUCE, PROTO_SIMPLE, NULL);
  expect_refusal(&p, ALGO_COLLNET_DIRECT, FUNC_ALL_GATHER, PROTO_SIMPLE, "numbered one after the other");
  places_set(&p, uneven, 2, false);
  expect_refusal(&p, ALGO_COLLNET_DIRECT, FUNC_ALL_REDUCE, PROTO_SIMPLE, "as many ranks on each node");
  expect_refusal(&p, ALGO_COLLNET_CHAIN, FUNC_ALL_REDUCE, PROTO_SIMPLE, NULL);
}

/* A backend whose executors do not support them has no plan, and the message says why. */
static void test_no_hardware(void **state) {
  static const uint8_t algos[] = {ALGO_NVLS, ALGO_NVLS_TREE, ALGO_COLLNET_DIRECT, ALGO_COLLNET_CHAIN};
  static struct places p;
  const struct plan_op op = {.func = FUNC_ALL_REDUCE, .dtype = ncclFloat32, .count = 8};
  (void)state;
  for (uint32_t i = 0; i < LENGTH(algos); i++) {
    places_even(&p, algos[i] == ALGO_NVLS ? 1 : 2, 2, false);
    const struct oracle_case test = {
        .func = FUNC_ALL_REDUCE, .algo = algos[i], .graph = &p.graph, .chunk = 4, .slots = 2};
    struct plan_request request = oracle_request(&test, 0, &op);
    struct plan plan;
    assert_int_equal(plan_build(&request, &plan), ncclSuccess);
    plan_free(&plan);
    request.settings.limits.algos = 0;
    assert_int_equal(plan_build(&request, &plan), ncclInvalidUsage);
    assert_says("it needs a switch that adds and multicasts, which no hardware backend offers yet");
  }
}

/* Masks of all-reduce as set by the environment: only algorithms that are named or enabled. */
static void test_settings(void **state) {
  static const uint32_t node = ALGO_BIT(ALGO_NVLS) | ALGO_BIT(ALGO_NVLS_TREE);
  static const uint32_t network = ALGO_BIT(ALGO_COLLNET_DIRECT) | ALGO_BIT(ALGO_COLLNET_CHAIN);
  static const struct {
    const char *algo, *nvls, *collnet;
    uint32_t mask; /* of node | network */
    bool none;     /* no other algorithm is left */
  } rows[] = {{"", "2", NULL, 0, false},
              {"^ring", "2", NULL, 0, false},
              {"NVLS", "2", NULL, ALGO_BIT(ALGO_NVLS), false},
              {"ring,nvlstree,collnetchain", "2", NULL,
               ALGO_BIT(ALGO_NVLS_TREE) | ALGO_BIT(ALGO_COLLNET_CHAIN), false},
              {"ring;allreduce:CollNetDirect", "2", NULL, ALGO_BIT(ALGO_COLLNET_DIRECT), false},
              {"", "1", NULL, node, false},
              {"", "2", "1", network, false},
              {"ring,nvls", "0", NULL, 0, false},
              {"nvls", "0", NULL, 0, true},
              {"CollNetChain", "2", "0", 0, true}};
  (void)state;
  for (uint32_t i = 0; i < LENGTH(rows); i++) {
    struct settings settings;
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    setenv("NCCL_ALGO", rows[i].algo, 1);
    setenv("NCCL_NVLS_ENABLE", rows[i].nvls, 1);
    if (rows[i].collnet != NULL) setenv("NCCL_COLLNET_ENABLE", rows[i].collnet, 1);
    param_reset();
    config.minCTAs = 1;
    config.maxCTAs = 4;
    const ncclResult_t result = settings_read(emu_backend(), &config, &settings);
    unsetenv("NCCL_COLLNET_ENABLE");
    assert_int_equal(result, ncclSuccess);
    const uint32_t left = settings.plan.algo_mask[FUNC_ALL_REDUCE] & ~settings.plan.algos_off;
    assert_int_equal(left & (node | network), rows[i].mask);
    assert_int_equal(left == 0, rows[i].none);
  }
  unsetenv("NCCL_ALGO");
  unsetenv("NCCL_NVLS_ENABLE");
  param_reset();
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_nvls),
      cmocka_unit_test(test_nvls_tree),
      cmocka_unit_test(test_collnet_direct),
      cmocka_unit_test(test_collnet_chain),
      cmocka_unit_test(test_by_hand),
      cmocka_unit_test_teardown(test_guarded, ranks_drop),
      cmocka_unit_test_teardown(test_absent_rank, ranks_drop),
      cmocka_unit_test_teardown(test_mismatch, ranks_drop),
      cmocka_unit_test_teardown(test_threads, ranks_drop), /* leaves threads, which would delay a report */
      cmocka_unit_test(test_names),
      cmocka_unit_test(test_rules),
      cmocka_unit_test(test_no_hardware),
      cmocka_unit_test(test_settings)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
