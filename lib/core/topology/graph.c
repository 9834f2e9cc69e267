/* graph.c: rings and trees as rows of ranks: a pair of binary trees over places, and the graph of one node of
 * equal paths. graph_build.c orders places by the topology. */
#include "core/topology/graph.h"

#include <string.h>

#include "base/hash.h"
#include "base/log.h"
#include "base/os.h"

ncclResult_t graph_flat(uint32_t rank_count, struct graph *graph) {
  const size_t tree_bytes = rank_count * sizeof(struct graph_tree);
  uint8_t *memory = (uint8_t *)os_alloc(tree_bytes + 3 * (size_t)rank_count * sizeof(uint32_t));
  if (memory == NULL) return log_no_memory("the rings of %u ranks", rank_count);
  memset(graph, 0, sizeof *graph);
  struct graph_tree *tree = (struct graph_tree *)(void *)memory;
  uint32_t *node = (uint32_t *)(void *)(memory + tree_bytes), *local = node + rank_count,
           *ring = local + rank_count;
  for (uint32_t rank = 0; rank < rank_count; rank++) {
    node[rank] = 0;
    local[rank] = ring[rank] = rank;
    tree[rank].up = rank > 0 ? rank - 1 : GRAPH_NONE;
    tree[rank].down[0] = rank + 1 < rank_count ? rank + 1 : GRAPH_NONE;
    tree[rank].down[1] = tree[rank].down[2] = GRAPH_NONE;
  }
  graph->rank_count = graph->node_ranks_max = rank_count;
  graph->node_count = 1;
  graph->channel_count = PLAN_CHANNELS_MAX;
  graph->node = node;
  graph->local = graph->gpu = local;
  graph->origin.flat = true;
  graph->nodes_even = true;
  graph->capability_min = graph->capability_max = 90;
  for (uint32_t channel = 0; channel < PLAN_CHANNELS_MAX; channel++) {
    graph->ring[channel] = ring;
    graph->tree[channel] = tree;
  }
  graph->ring_speed.channel_count = graph->tree_speed.channel_count = 1;
  graph->ring_speed.intra_path = graph->tree_speed.intra_path = GRAPH_NVL;
  graph->ring_speed.same_channels = graph->tree_speed.same_channels = true;
  graph->memory = memory;
  return ncclSuccess;
}

bool graph_ranks_lie_by_node(const struct graph *graph) {
  for (uint32_t rank = 0; rank < graph->rank_count; rank++)
    if (graph->node[rank] * graph->node_ranks_max + graph->local[rank] != rank) return false;
  return true;
}

void graph_free(struct graph *graph) {
  os_free(graph->memory);
  memset(graph, 0, sizeof *graph);
}

/* A place's parent clears its lowest set bit and sets the next higher one, or only clears it if that exceeds
 * the tree. */
static struct graph_places binary_tree(uint32_t count, uint32_t place) {
  struct graph_places found = {GRAPH_NONE, {GRAPH_NONE, GRAPH_NONE}, false};
  if (place == 0) {
    uint32_t child = 1;
    while (child * 2 < count) child *= 2;
    if (count > 1) found.down[1] = child;
    return found;
  }
  const uint32_t bit = place & (0 - place), without = place & ~bit;
  found.up = (without | bit << 1) < count ? without | bit << 1 : without;
  found.first = place < found.up;
  if (bit == 1) return found;
  uint32_t offset = bit / 2;
  found.down[0] = place - offset;
  while (offset > 0 && place + offset >= count) offset /= 2;
  if (offset > 0) found.down[1] = place + offset;
  return found;
}

static uint32_t mirrored(uint32_t count, uint32_t place) {
  if (place == GRAPH_NONE) return place;
  return count % 2 == 0 ? count - 1 - place : (place + 1) % count;
}

struct graph_places graph_double_tree(uint32_t count, uint32_t place, bool second) {
  if (!second) return binary_tree(count, place);
  struct graph_places found =
      binary_tree(count, count % 2 == 0 ? count - 1 - place : (place + count - 1) % count);
  found.up = mirrored(count, found.up);
  found.down[0] = mirrored(count, found.down[0]);
  found.down[1] = mirrored(count, found.down[1]);
  return found;
}

uint64_t graph_digest(const struct graph *graph) {
  const uint32_t numbers[] = {graph->rank_count,     graph->node_count,     graph->channel_count,
                              graph->capability_min, graph->capability_max, graph->node_ranks_max};
  uint64_t digest = hash_bytes(HASH_SEED, numbers, sizeof numbers);
  for (uint32_t channel = 0; channel < graph->channel_count; channel++)
    if (graph->ring[channel] != NULL)
      digest = hash_bytes(digest, graph->ring[channel], graph->rank_count * sizeof *graph->ring[channel]);
  return digest;
}
