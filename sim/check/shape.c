/* shape.c: rows of ranks for nodes that are all alike. */
#include "check/shape.h"

#include <string.h>

#include "base/log.h"
#include "base/os.h"

/* A rank's place in the tree over nodes: the first of a node speaks to the parent and to both children, or on
 * split trees leaves the second child to its neighbour. */
static struct graph_tree tree_row(uint32_t nodes, uint32_t gpus, uint32_t rank, bool second) {
  const uint32_t node = rank / gpus, place = rank % gpus, speaker = second && gpus > 1 ? 1 : 0;
  const struct graph_places places = graph_double_tree(nodes, node, second);
  struct graph_tree row = {GRAPH_NONE, {GRAPH_NONE, GRAPH_NONE, GRAPH_NONE}};
  uint32_t children = 0;
  if (place > 0) {
    row.up = rank - 1;
  } else if (places.up != GRAPH_NONE) {
    row.up = places.up * gpus + (places.first ? 0 : speaker);
  }
  if (place + 1 < gpus) row.down[children++] = rank + 1;
  if (place == 0 && places.down[0] != GRAPH_NONE) row.down[children++] = places.down[0] * gpus;
  if (place == speaker && places.down[1] != GRAPH_NONE) row.down[children++] = places.down[1] * gpus;
  return row;
}

/* The block behind graph->memory: trees of both kinds, then node, local, two rings, heads. */
static void rows_set(uint32_t nodes, uint32_t gpus, struct graph *graph) {
  const uint32_t n = nodes * gpus;
  struct graph_tree *trees[2] = {(struct graph_tree *)graph->memory, (struct graph_tree *)graph->memory + n};
  uint32_t *node = (uint32_t *)(void *)(trees[1] + n), *local = node + n,
           *rings[2] = {local + n, local + 2 * n}, *head = rings[1] + n;
  for (uint32_t rank = 0; rank < n; rank++) {
    node[rank] = rank / gpus;
    local[rank] = rank % gpus;
    rings[0][rank] = rank;
    rings[1][rank] = (n - rank) % n;
    trees[0][rank] = tree_row(nodes, gpus, rank, false);
    trees[1][rank] = tree_row(nodes, gpus, rank, true);
  }
  for (uint32_t i = 0; i < nodes; i++) head[i] = i * gpus;
  graph->node = node;
  graph->local = local;
  for (uint32_t channel = 0; channel < PLAN_CHANNELS_MAX; channel++) {
    graph->ring[channel] = rings[channel % 2];
    graph->tree[channel] = trees[channel % 2];
    graph->head[channel] = head;
  }
}

ncclResult_t shape_graph(uint32_t nodes, uint32_t gpus, struct graph *graph) {
  if (nodes == 1) return graph_flat(gpus, graph);
  const size_t ranks = (size_t)nodes * gpus;
  memset(graph, 0, sizeof *graph);
  graph->memory = os_alloc(2 * ranks * sizeof(struct graph_tree) + (4 * ranks + nodes) * sizeof(uint32_t));
  if (!graph->memory) return log_fail(ncclSystemError, "no memory for the rings of %zu ranks", ranks);
  graph->rank_count = (uint32_t)ranks;
  graph->node_count = nodes;
  graph->node_ranks_max = gpus;
  graph->nodes_even = true;
  graph->channel_count = PLAN_CHANNELS_MAX;
  graph->capability_min = graph->capability_max = 90;
  graph->ring_speed.channel_count = graph->tree_speed.channel_count = 1;
  graph->ring_speed.intra_path = graph->tree_speed.intra_path = GRAPH_NVL;
  graph->ring_speed.inter_path = graph->tree_speed.inter_path = GRAPH_NET;
  rows_set(nodes, gpus, graph);
  return ncclSuccess;
}
