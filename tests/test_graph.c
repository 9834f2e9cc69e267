/* test_graph.c: graphs over nodes: golden values of binary trees; for many machines, numbers of nodes and
 * placements, closed rings and connected trees; the search's results on known machines; and its behaviour if
 * it finds nothing, or memory runs out. */
/* sanitizers: address */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "base/log.h"
#include "base/os.h"
#include "core/topology/graph_build.h"

#define RANKS_MAX 8192
#define NONE GRAPH_NONE

static struct graph_place places[RANKS_MAX];
static uint32_t seen[RANKS_MAX];

/* A cluster with `used` ranks on each node, numbered node by node or round-robin over the nodes. */
struct cluster {
  const char *machine;
  uint32_t nodes, gpus, nics, used;
  bool dealt;
};

static void cluster_open(const struct cluster *cluster, struct topology *topology,
                         struct graph_request *request) {
  const struct topology_spec spec = {cluster->machine, cluster->nodes, cluster->gpus, cluster->nics};
  assert_int_equal(topology_make(&spec, topology), ncclSuccess);
  const struct paths_rules rules = PATHS_RULES_DEFAULT;
  const uint32_t used = cluster->used ? cluster->used : topology->gpu_count;
  memset(request, 0, sizeof *request);
  request->topology = topology;
  request->places = places;
  request->rank_count = used * cluster->nodes;
  request->channels_min = 1;
  request->channels_max = PLAN_CHANNELS_MAX;
  request->cross_nic = 2;
  request->rules = rules;
  for (uint32_t rank = 0; rank < request->rank_count; rank++) {
    places[rank].node = cluster->dealt ? rank % cluster->nodes : rank / used;
    places[rank].gpu = cluster->dealt ? rank / cluster->nodes : rank % used;
  }
}

static void check_ring(const struct graph *graph, uint32_t channel) {
  const uint32_t *ring = graph->ring[channel];
  memset(seen, 0, sizeof seen);
  assert_int_equal(ring[0], 0);
  for (uint32_t i = 0; i < graph->rank_count; i++) {
    assert_true(ring[i] < graph->rank_count);
    assert_int_equal(seen[ring[i]]++, 0);
  }
  /* A ring enters each node once: as many edges cross nodes as there are nodes. */
  uint32_t crossings = 0;
  for (uint32_t i = 0; i < graph->rank_count; i++)
    crossings += graph->node[ring[i]] != graph->node[ring[(i + 1) % graph->rank_count]];
  assert_int_equal(crossings, graph->node_count > 1 ? graph->node_count : 0);
}

static uint32_t tree_depth(const struct graph_tree *tree, uint32_t rank, uint32_t bound) {
  uint32_t depth = 0;
  for (; tree[rank].up != NONE; rank = tree[rank].up) assert_true(++depth < bound);
  return depth;
}

static void check_tree(const struct graph *graph, uint32_t channel) {
  const struct graph_tree *tree = graph->tree[channel];
  uint32_t roots = 0, edges = 0;
  for (uint32_t rank = 0; rank < graph->rank_count; rank++) {
    roots += tree[rank].up == NONE;
    tree_depth(tree, rank, graph->rank_count); /* no cycle: every path to the root ends */
    for (uint32_t i = 0; i < GRAPH_CHILDREN_MAX && tree[rank].down[i] != NONE; i++) {
      assert_int_equal(tree[tree[rank].down[i]].up, rank);
      edges += 1;
    }
    for (uint32_t i = 1; i < GRAPH_CHILDREN_MAX; i++)
      assert_true(tree[rank].down[i] == NONE || tree[rank].down[i - 1] != NONE);
  }
  assert_int_equal(roots, 1);
  assert_int_equal(edges, graph->rank_count - 1);
}

static void check_graph(const struct graph *graph) {
  assert_in_range(graph->channel_count, 1, PLAN_CHANNELS_MAX);
  for (uint32_t channel = 0; channel < PLAN_CHANNELS_MAX; channel++) {
    check_ring(graph, channel);
    check_tree(graph, channel);
    for (uint32_t node = 0; graph->node_count > 1 && node < graph->node_count; node++)
      assert_int_equal(graph->node[graph->head[channel][node]], node);
  }
}

static void cluster_check(const struct cluster *cluster) {
  struct topology topology;
  struct graph_request request;
  struct graph graph;
  cluster_open(cluster, &topology, &request);
  assert_int_equal(graph_build(&request, &graph), ncclSuccess);
  assert_int_equal(graph.node_count, cluster->nodes);
  assert_true(graph.nodes_even);
  check_graph(&graph);
  graph_free(&graph);
  topology_free(&topology);
}

static void test_golden_trees(void **state) {
  (void)state;
  /* parent, first child, second child */
  static const uint32_t five[2][5][3] = {
      {{NONE, NONE, 4}, {2, NONE, NONE}, {4, 1, 3}, {2, NONE, NONE}, {0, 2, NONE}},
      {{1, 3, NONE}, {NONE, NONE, 0}, {3, NONE, NONE}, {0, 2, 4}, {3, NONE, NONE}}};
  static const uint32_t eight[2][8][3] = {{{NONE, NONE, 4},
                                           {2, NONE, NONE},
                                           {4, 1, 3},
                                           {2, NONE, NONE},
                                           {0, 2, 6},
                                           {6, NONE, NONE},
                                           {4, 5, 7},
                                           {6, NONE, NONE}},
                                          {{1, NONE, NONE},
                                           {3, 2, 0},
                                           {1, NONE, NONE},
                                           {7, 5, 1},
                                           {5, NONE, NONE},
                                           {3, 6, 4},
                                           {5, NONE, NONE},
                                           {NONE, NONE, 3}}};
  static const uint32_t four[4][3] = {{1, NONE, NONE}, {3, 2, 0}, {1, NONE, NONE}, {NONE, NONE, 1}};
  for (uint32_t i = 0; i < 16; i++) {
    const uint32_t second = i / 8, place = i % 8;
    const struct graph_places found = graph_double_tree(8, place, second != 0);
    assert_int_equal(found.up, eight[second][place][0]);
    assert_int_equal(found.down[0], eight[second][place][1]);
    assert_int_equal(found.down[1], eight[second][place][2]);
  }
  for (uint32_t i = 0; i < 10; i++) {
    const uint32_t second = i / 5, place = i % 5;
    const struct graph_places found = graph_double_tree(5, place, second != 0);
    assert_int_equal(found.up, five[second][place][0]);
    assert_int_equal(found.down[0], five[second][place][1]);
    assert_int_equal(found.down[1], five[second][place][2]);
  }
  for (uint32_t place = 0; place < 4; place++) {
    const struct graph_places found = graph_double_tree(4, place, true);
    assert_int_equal(found.up, four[place][0]);
    assert_int_equal(found.down[0], four[place][1]);
    assert_int_equal(found.down[1], four[place][2]);
  }
}

static void test_clusters_hold_together(void **state) {
  (void)state;
  static const char *const machines[] = {"dgx-h100", "dgx-a100", "hgx-b200", "pcie-box"};
  static const uint32_t nodes[] = {1, 2, 3, 5};
  static const uint32_t used[] = {1, 2, 3, 8};
  for (uint32_t i = 0; i < 4 * 4 * 4; i++) {
    const struct cluster cluster = {machines[i % 4], nodes[i / 4 % 4], 0, 0, used[i / 16], i % 3 == 0};
    cluster_check(&cluster);
  }
}

static void test_many_nodes(void **state) {
  (void)state;
  const struct cluster cluster = {"dgx-h100", 1024, 0, 0, 0, false};
  const uint64_t begin = os_alloc_count();
  cluster_check(&cluster);
  assert_true(os_alloc_count() - begin < 64); /* one search for all nodes */
}

/* NCCL's values on these machines. */
static void test_known_machines(void **state) {
  (void)state;
  static const struct {
    struct cluster cluster;
    uint32_t channels, found;
    double gbps;
    uint32_t intra, inter;
  } rows[] = {
      {{"dgx-a100", 1, 0, 0, 0, false}, 24, 12, 20, GRAPH_NVL, GRAPH_LOC},
      {{"dgx-h100", 1, 0, 0, 0, false}, 24, 12, 30, GRAPH_NVL, GRAPH_LOC},
      {{"hgx-b200", 1, 0, 0, 0, false}, 32, 16, 45, GRAPH_NVL, GRAPH_LOC},
      {{"dgx-a100", 4, 0, 0, 0, false}, 16, 8, 24, GRAPH_NVL, GRAPH_PIX},
      {{"dgx-h100", 4, 0, 0, 0, false}, 16, 8, 48, GRAPH_NVL, GRAPH_PIX},
      {{"dgx-h100", 3, 0, 0, 0, false}, 16, 8, 45, GRAPH_NVL, GRAPH_PXN},
      {{"dgx-h100", 2, 8, 1, 0, false}, 4, 2, 24, GRAPH_NVL, GRAPH_PXN},
  };
  for (uint32_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    struct topology topology;
    struct graph_request request;
    struct graph graph;
    cluster_open(&rows[i].cluster, &topology, &request);
    assert_int_equal(graph_build(&request, &graph), ncclSuccess);
    assert_int_equal(graph.channel_count, rows[i].channels);
    assert_int_equal(graph.ring_speed.channel_count, rows[i].found);
    assert_true(graph.ring_speed.intra_gbps == rows[i].gbps);
    assert_int_equal(graph.ring_speed.intra_path, rows[i].intra);
    assert_int_equal(graph.ring_speed.inter_path, rows[i].inter);
    assert_true(graph.tree_speed.intra_gbps >= graph.ring_speed.intra_gbps);
    assert_int_equal(graph.switch_speed.channel_count, graph.capability_min >= 90 ? 8 : 0);
    assert_int_equal(graph.network_speed.channel_count, 0);
    graph_free(&graph);
    topology_free(&topology);
  }
}

/* With one NIC per GPU, a ring enters the next node by the same NIC by which it left the last. */
static void test_rings_stay_on_rails(void **state) {
  (void)state;
  const struct cluster cluster = {"dgx-h100", 4, 0, 0, 0, false};
  struct topology topology;
  struct graph_request request;
  struct graph graph;
  cluster_open(&cluster, &topology, &request);
  assert_int_equal(graph_build(&request, &graph), ncclSuccess);
  for (uint32_t channel = 0; channel < graph.channel_count; channel++) {
    for (uint32_t i = 0; i < graph.rank_count; i++) {
      const uint32_t rank = graph.ring[channel][i], next = graph.ring[channel][(i + 1) % graph.rank_count];
      if (graph.node[rank] != graph.node[next]) assert_int_equal(graph.local[rank], graph.local[next]);
    }
  }
  graph_free(&graph);
  topology_free(&topology);
}

static void test_second_copy_has_second_tree(void **state) {
  (void)state;
  const struct cluster cluster = {"dgx-h100", 4, 0, 0, 0, false};
  struct topology topology;
  struct graph_request request;
  struct graph graph;
  cluster_open(&cluster, &topology, &request);
  assert_int_equal(graph_build(&request, &graph), ncclSuccess);
  for (uint32_t channel = 0; channel < 8; channel++) {
    assert_ptr_equal(graph.ring[channel], graph.ring[channel + 8]);
    for (uint32_t node = 0; node < 4; node++) {
      for (uint32_t copy = 0; copy < 2; copy++) {
        const struct graph_places wanted = graph_double_tree(4, node, copy == 1);
        const uint32_t up = graph.tree[channel + 8 * copy][graph.head[channel][node]].up;
        assert_int_equal(up == NONE ? NONE : graph.node[up], wanted.up);
      }
    }
  }
  graph_free(&graph);
  topology_free(&topology);
}

/* In a balanced tree a node's first child is connected to the second rank of its chain, its second child to
 * the first. */
static void test_children_hang_balanced(void **state) {
  (void)state;
  const struct cluster cluster = {"dgx-h100", 4, 0, 0, 0, false};
  struct topology topology;
  struct graph_request request;
  struct graph graph;
  cluster_open(&cluster, &topology, &request);
  assert_int_equal(graph_build(&request, &graph), ncclSuccess);
  assert_int_equal(graph.tree_speed.pattern, SEARCH_BALANCED_TREE);
  const struct graph_tree *tree = graph.tree[0];
  const uint32_t *head = graph.head[0];
  assert_int_equal(tree[head[3]].up, head[2]);
  assert_int_equal(tree[tree[head[1]].up].up, head[2]);
  assert_int_equal(graph.node[tree[head[1]].up], 2);
  graph_free(&graph);
  topology_free(&topology);
}

static void test_channel_bounds(void **state) {
  (void)state;
  const struct cluster cluster = {"dgx-h100", 1, 0, 0, 0, false};
  struct topology topology;
  struct graph_request request;
  struct graph graph;
  cluster_open(&cluster, &topology, &request);
  request.channels_max = 5;
  assert_int_equal(graph_build(&request, &graph), ncclSuccess);
  assert_int_equal(graph.channel_count, 5);
  graph_free(&graph);
  request.channels_min = request.channels_max = 64;
  assert_int_equal(graph_build(&request, &graph), ncclSuccess);
  assert_int_equal(graph.channel_count, 64);
  check_graph(&graph);
  graph_free(&graph);
  topology_free(&topology);
}

/* Nodes of different sizes, with ranks in any order. */
static void test_uneven_nodes(void **state) {
  (void)state;
  static const struct graph_place uneven[] = {{2, 3, false}, {0, 0, false}, {2, 1, false}, {1, 7, false},
                                              {0, 5, false}, {2, 0, false}, {0, 1, false}};
  struct cluster cluster = {"dgx-h100", 3, 0, 0, 0, false};
  struct topology topology;
  struct graph_request request;
  struct graph graph;
  cluster_open(&cluster, &topology, &request);
  request.places = uneven;
  request.rank_count = 7;
  assert_int_equal(graph_build(&request, &graph), ncclSuccess);
  check_graph(&graph);
  assert_false(graph.nodes_even);
  assert_int_equal(graph.node_ranks_max, 3);
  assert_int_equal(graph.node[0], 0); /* nodes are numbered by their first rank */
  assert_int_equal(graph.node[1], 1);
  assert_int_equal(graph.node[3], 2);
  assert_int_equal(graph.local[5], 2);
  graph_free(&graph);
  request.rank_count = 1;
  request.places = &(struct graph_place){3, 0, false};
  assert_int_equal(graph_build(&request, &graph), ncclInvalidUsage);
  assert_non_null(strstr(log_last_error(), "GPU 0 of node 3"));
  topology_free(&topology);
}

static const char no_nics[] =
    "<system version=\"1\"><cpu numaid=\"0\"><pci busid=\"0000:01:00.0\"><gpu dev=\"0\" sm=\"90\"/></pci>"
    "<pci busid=\"0000:02:00.0\"><gpu dev=\"1\" sm=\"90\"/></pci></cpu></system>";

static void test_no_path(void **state) {
  (void)state;
  struct cluster cluster = {"dgx-h100", 2, 2, 2, 0, false};
  struct topology topology;
  struct graph_request request;
  struct graph graph;
  cluster_open(&cluster, &topology, &request);
  topology_free(&topology);
  assert_int_equal(topology_parse("no_nics", no_nics, strlen(no_nics), 2, &topology), ncclSuccess);
  assert_int_equal(graph_build(&request, &graph), ncclSuccess);
  check_graph(&graph);
  assert_int_equal(graph.ring_speed.channel_count, 1);
  assert_true(graph.ring_speed.intra_gbps == 0.1);
  assert_int_equal(graph.ring_speed.intra_path, GRAPH_SYS);
  for (uint32_t i = 0; i < 4; i++) assert_int_equal(graph.ring[0][i], i);
  graph_free(&graph);
  topology_free(&topology);
}

static void test_description(void **state) {
  (void)state;
  const struct cluster cluster = {"dgx-h100", 2, 0, 0, 0, false};
  struct topology topology;
  struct graph_request request;
  struct text text;
  memset(&text, 0, sizeof text);
  cluster_open(&cluster, &topology, &request);
  assert_int_equal(graph_describe(&request, &text), ncclSuccess);
  assert_non_null(strstr(text.begin, "<graph id=\"0\" pattern=\"4\" crossnic=\"2\" nchannels=\"8\""));
  assert_non_null(strstr(text.begin, "typeintra=\"NVL\" typeinter=\"PIX\""));
  assert_non_null(strstr(text.begin, "<channel>\n      <net dev=\"0\"/>\n      <gpu dev=\"0\"/>\n"));
  text_free(&text);
  topology_free(&topology);
}

static void test_memory_runs_out(void **state) {
  (void)state;
  const struct cluster cluster = {"dgx-h100", 2, 4, 4, 0, false};
  struct topology topology;
  struct graph_request request;
  struct graph graph;
  cluster_open(&cluster, &topology, &request);
  const uint64_t live = os_alloc_live();
  ncclResult_t result = ncclSystemError;
  uint32_t failures = 0;
  for (uint64_t k = 1; result != ncclSuccess; k++) {
    os_alloc_fail_at(k);
    result = graph_build(&request, &graph);
    os_alloc_fail_at(0);
    failures += result == ncclSystemError;
    if (result != ncclSuccess) assert_int_equal(os_alloc_live(), live);
  }
  assert_true(failures > 5);
  graph_free(&graph);
  assert_int_equal(os_alloc_live(), live);
  topology_free(&topology);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_golden_trees),
      cmocka_unit_test(test_clusters_hold_together),
      cmocka_unit_test(test_many_nodes),
      cmocka_unit_test(test_known_machines),
      cmocka_unit_test(test_rings_stay_on_rails),
      cmocka_unit_test(test_second_copy_has_second_tree),
      cmocka_unit_test(test_children_hang_balanced),
      cmocka_unit_test(test_channel_bounds),
      cmocka_unit_test(test_uneven_nodes),
      cmocka_unit_test(test_no_path),
      cmocka_unit_test(test_description),
      cmocka_unit_test(test_memory_runs_out),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
