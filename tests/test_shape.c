/* test_shape.c: nodes in words: the graph of the words is that of the node, for every preset; machines that
 * are alike have the same words whatever their devices are called, and each number that decides a graph
 * changes them; words that describe no node are refused. */
/* sanitizers: address */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/os.h"
#include "base/param.h"
#include "core/topology/graph_build.h"
#include "core/topology/layout.h"
#include "random.h"

enum { NODES = 3 };

static void node_make(const char *machine, struct topology *topology) {
  const struct topology_spec spec = {machine, NODES, 0, 0};
  assert_int_equal(topology_make(&spec, topology), ncclSuccess);
}

static uint64_t *words_of(const struct topology *topology, struct node_shape *shape) {
  uint64_t *words = shape_write(topology, &shape->count);
  assert_non_null(words);
  shape->words = words;
  return words;
}

static void graph_of(const struct topology *topology, struct graph *graph) {
  struct graph_place places[NODES * 8];
  struct graph_request request;
  memset(places, 0, sizeof places);
  memset(&request, 0, sizeof request);
  for (uint32_t rank = 0; rank < NODES * 8; rank++) {
    places[rank].node = rank / 8;
    places[rank].gpu = rank % 8;
  }
  request.topology = topology;
  request.places = places;
  request.rank_count = NODES * 8;
  request.channels_min = 1;
  request.channels_max = PLAN_CHANNELS_MAX;
  request.cross_nic = 2;
  request.rules = (struct paths_rules)PATHS_RULES_DEFAULT;
  assert_int_equal(graph_build(&request, graph), ncclSuccess);
}

static void speeds_are_equal(const struct graph_speed *a, const struct graph_speed *b) {
  assert_int_equal(a->channel_count, b->channel_count);
  assert_true(a->intra_gbps == b->intra_gbps && a->inter_gbps == b->inter_gbps);
  assert_int_equal(a->intra_path, b->intra_path);
  assert_int_equal(a->inter_path, b->inter_path);
}

/* GPUs with links to each other, and to their CPUs. */
static void links_add(struct topology *topology) {
  for (uint32_t gpu = 0; gpu < topology->gpu_count; gpu++) {
    const uint32_t peer = topology->gpus[gpu ^ 1];
    struct topology_link *link = topology_add_link(topology, topology->gpus[gpu]);
    assert_non_null(link);
    strcpy(link->target, topology->devices[topology->devices[peer].parent].name);
    link->target_class = 0x030200;
    link->count = 2;
    link->peer = peer;
    topology->devices[topology->gpus[gpu]].host_mbps = 450000;
    topology->devices[topology->gpus[gpu]].host_links = 1;
  }
}

static void same_graph(const struct topology *topology) {
  struct topology two;
  struct node_shape shape, shape_two;
  struct graph graph, graph_two;
  uint64_t *words = words_of(topology, &shape), *words_two;
  assert_int_equal(shape_read(&shape, "two", NODES, &two), ncclSuccess);
  words_two = words_of(&two, &shape_two);
  assert_int_equal(shape.count, shape_two.count);
  assert_memory_equal(words, words_two, shape.count * sizeof *words);
  graph_of(topology, &graph);
  graph_of(&two, &graph_two);
  assert_true(graph_digest(&graph) == graph_digest(&graph_two));
  speeds_are_equal(&graph.ring_speed, &graph_two.ring_speed);
  speeds_are_equal(&graph.tree_speed, &graph_two.tree_speed);
  speeds_are_equal(&graph.switch_speed, &graph_two.switch_speed);
  speeds_are_equal(&graph.network_speed, &graph_two.network_speed);
  graph_free(&graph);
  graph_free(&graph_two);
  topology_free(&two);
  os_free(words);
  os_free(words_two);
}

static void words_give_the_graph(void **state) {
  (void)state;
  for (uint32_t i = 0; topology_preset(i) != NULL; i++) {
    struct topology topology;
    node_make(topology_preset(i), &topology);
    same_graph(&topology);
    links_add(&topology);
    topology.devices[topology.nets[0]].adds = true;
    same_graph(&topology);
    topology_free(&topology);
  }
}

static uint64_t digest_of(const struct topology *topology) {
  struct node_shape shape;
  uint64_t *words = words_of(topology, &shape);
  const uint64_t digest = layout_shape_digest(&shape);
  os_free(words);
  return digest;
}

static void names_do_not_matter(void **state) {
  struct topology topology;
  (void)state;
  node_make("dgx-h100", &topology);
  const uint64_t digest = digest_of(&topology);
  for (uint32_t row = 0; row < topology.device_count; row++) {
    struct topology_device *device = &topology.devices[row];
    if (device->kind == TOPOLOGY_PCI) snprintf(device->name, sizeof device->name, "00ab:%02x:00.0", row);
    if (device->kind != TOPOLOGY_NET) continue;
    snprintf(device->name, sizeof device->name, "ibp%u", row);
    device->guid = row * UINT64_C(12345);
    device->number += 3;
  }
  assert_true(digest_of(&topology) == digest);
  topology_free(&topology);
}

static void what_decides_changes_the_digest(void **state) {
  struct topology topology;
  (void)state;
  node_make("dgx-h100", &topology);
  const uint64_t digest = digest_of(&topology);
  struct topology_device *cpu = &topology.devices[topology.cpus[0]];
  struct topology_device *gpu = &topology.devices[topology.gpus[3]];
  struct topology_device *net = &topology.devices[topology.nets[5]];
#define CHANGED(member, value)                   \
  do {                                           \
    const __typeof__(member) kept_ = member;     \
    member = value;                              \
    assert_true(digest_of(&topology) != digest); \
    member = kept_;                              \
    assert_true(digest_of(&topology) == digest); \
  } while (0)
  CHANGED(cpu->model, 0x55);
  CHANGED(cpu->maker[0], 'X');
  CHANGED(cpu->name[0], 'X');
  CHANGED(gpu->capability, 80);
  CHANGED(gpu->host_mbps, 1000);
  CHANGED(gpu->host_links, 1);
  CHANGED(topology.devices[gpu->parent].link_gts, 16);
  CHANGED(topology.devices[gpu->parent].link_width, 8);
  CHANGED(topology.devices[gpu->parent].parent, topology.devices[gpu->parent].parent - 5);
  CHANGED(net->speed_mbits, 200000);
  CHANGED(net->adds, true);
  CHANGED(topology.links[7].count, 17);
  CHANGED(topology.links[7].target_class, 0);
  CHANGED(topology.link_count, topology.link_count - 1);
  setenv("NCCL_CROSS_NIC", "0", 1);
  param_reset();
  assert_true(digest_of(&topology) != digest);
  unsetenv("NCCL_CROSS_NIC");
  param_reset();
  topology_free(&topology);
}

static bool is_refused(const uint64_t *words, uint32_t count) {
  const struct node_shape shape = {words, count};
  struct topology topology;
  const ncclResult_t result = shape_read(&shape, "a record", 1, &topology);
  if (result == ncclSuccess) topology_free(&topology);
  else assert_non_null(strstr(log_own_error(), "a record: "));
  return result != ncclSuccess;
}

static void nonsense_is_refused(void **state) {
  struct topology topology;
  struct node_shape shape;
  uint64_t seed = 3;
  const uint64_t live = os_alloc_live();
  (void)state;
  node_make("dgx-h100", &topology);
  uint64_t *words = words_of(&topology, &shape);
  assert_false(is_refused(words, shape.count));
  assert_true(is_refused(words, 0));
  assert_true(is_refused(words + 1, shape.count - 1)); /* no CPU */
  for (uint32_t row = 0; row < shape.count; row++) {
    const uint64_t kept = words[row];
    words[row] = 0;
    assert_true(is_refused(words, shape.count));
    words[row] = kept | UINT64_C(2047) << 3; /* its parent does not exist */
    assert_true(is_refused(words, shape.count));
    words[row] = kept;
  }
  for (int round = 0; round < 2000; round++) {
    const uint32_t row = random_below(&seed, shape.count), bit = random_below(&seed, 64);
    words[row] ^= UINT64_C(1) << bit;
    is_refused(words, shape.count); /* or a topology of some other node */
    if (round % 4 != 0) words[row] ^= UINT64_C(1) << bit;
  }
  os_free(words);
  topology_free(&topology);
  assert_int_equal(os_alloc_live(), live);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(words_give_the_graph),
      cmocka_unit_test(names_do_not_matter),
      cmocka_unit_test(what_decides_changes_the_digest),
      cmocka_unit_test(nonsense_is_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
