/* graph_build.c: connects chains inside nodes to rings and trees over nodes. Rings pass the nodes in order,
 * and each node along its own chain. A tree is a binary tree of nodes; each node's ranks form a chain below
 * its first rank. */
#include "core/topology/graph_build.h"

#include <string.h>

#include "base/array.h"
#include "base/log.h"
#include "base/os.h"

#define NOTHING_FOUND_GBPS 0.1

/* Nodes whose ranks use the same GPUs in the same order are of one kind. */
struct kind {
  uint32_t gpu_count;
  const uint32_t *gpus;
  struct search_result ring, tree;
};

struct building {
  const struct graph_request *request;
  struct paths paths;
  uint32_t node_count;
  uint32_t *node, *local; /* by rank */
  uint32_t *first;        /* by node: index of its first rank in `ranks` and `gpus`; one more at the end */
  uint32_t *ranks, *gpus; /* ranks node by node, and the GPU of each */
  uint32_t *gpu;          /* by rank */
  uint32_t *kind_of;      /* by node */
  struct kind *kinds;
  uint32_t kind_count, kind_capacity;
  struct search_result ring, tree; /* what all kinds have in common; their chains are not used */
  uint32_t tree_copies;            /* rows per tree chain: 2 if there is a second tree */
  uint32_t *rings, *heads;
  struct graph_tree *trees;
  uint32_t channel_found; /* before channels are duplicated */
};

/* ---- Nodes ---- */

static ncclResult_t places_check(const struct graph_request *request) {
  for (uint32_t rank = 0; rank < request->rank_count; rank++) {
    const struct graph_place *place = &request->places[rank];
    if (place->gpu < request->topology->gpu_count && place->node < request->topology->node_count) continue;
    return log_fail(
        ncclInvalidUsage,
        "rank %u is to use GPU %u of node %u, but the topology '%s' has %u nodes of %u GPUs; give it more "
        "or use fewer",
        rank, place->gpu, place->node, request->topology->name, request->topology->node_count,
        request->topology->gpu_count);
  }
  return ncclSuccess;
}

/* Numbers nodes in the order of their first ranks. */
static bool nodes_number(struct building *b) {
  const struct graph_request *request = b->request;
  uint32_t *number = (uint32_t *)os_alloc(request->topology->node_count * sizeof *number);
  if (number == NULL) return false;
  for (uint32_t rank = 0; rank < request->rank_count; rank++) {
    uint32_t *own = &number[request->places[rank].node];
    if (*own == 0) *own = ++b->node_count;
    b->node[rank] = *own - 1;
    b->local[rank] = b->first[b->node[rank] + 1]++;
  }
  os_free(number);
  for (uint32_t node = 0; node < b->node_count; node++) b->first[node + 1] += b->first[node];
  for (uint32_t rank = 0; rank < request->rank_count; rank++) {
    const uint32_t place = b->first[b->node[rank]] + b->local[rank];
    b->ranks[place] = rank;
    b->gpus[place] = request->places[rank].gpu;
  }
  return true;
}

static uint32_t node_ranks(const struct building *b, uint32_t node) {
  return b->first[node + 1] - b->first[node];
}

static uint32_t kind_find(const struct building *b, uint32_t node) {
  const uint32_t *gpus = b->gpus + b->first[node], count = node_ranks(b, node);
  uint32_t kind = 0;
  for (; kind < b->kind_count; kind++) {
    const struct kind *known = &b->kinds[kind];
    if (known->gpu_count == count && memcmp(known->gpus, gpus, count * sizeof *gpus) == 0) break;
  }
  return kind;
}

/* A single rank needs one channel only. Trees get at most as many channels as rings, which every other
 * collective uses. */
static ncclResult_t kind_search_pattern(const struct building *b, const struct search_request *search,
                                        struct search_result *result) {
  bool found = false;
  if (b->request->file != NULL && b->request->rank_count > 1)
    TRY(graph_file_find(b->request->file, search, result, &found));
  return found ? ncclSuccess : search_run(search, result);
}

static ncclResult_t kind_search_paths(const struct building *b, const struct paths *paths,
                                      struct kind *kind) {
  const bool alone = b->request->rank_count == 1;
  struct search_request search;
  memset(&search, 0, sizeof search);
  search.paths = paths;
  search.gpus = kind->gpus;
  search.gpu_count = kind->gpu_count;
  search.pattern = SEARCH_RING;
  search.node_count = b->node_count;
  search.channels_most = alone ? 1 : SEARCH_CHANNELS_MAX;
  search.cross_nic = b->request->cross_nic;
  TRY(kind_search_pattern(b, &search, &kind->ring));
  search.pattern = SEARCH_BALANCED_TREE;
  if (kind->ring.channel_count > 0) search.channels_most = kind->ring.channel_count;
  return kind_search_pattern(b, &search, &kind->tree);
}

/* Paths use only GPUs of the communicator. */
static ncclResult_t kind_search(const struct building *b, struct kind *kind) {
  struct paths_rules rules = b->request->rules;
  struct paths paths;
  bool in_use[TOPOLOGY_GPUS_MAX];
  memset(in_use, 0, sizeof in_use);
  for (uint32_t place = 0; place < kind->gpu_count; place++) in_use[kind->gpus[place]] = true;
  rules.in_use = in_use;
  TRY(paths_find(b->request->topology, &rules, &paths));
  const ncclResult_t result = kind_search_paths(b, &paths, kind);
  paths_free(&paths);
  return result;
}

static ncclResult_t kind_add(struct building *b, uint32_t node) {
  TRY(array_reserve(&b->kinds, &b->kind_capacity, (uint64_t)b->kind_count + 1, sizeof *b->kinds,
                    "the kinds of nodes"));
  struct kind *kind = &b->kinds[b->kind_count];
  kind->gpus = b->gpus + b->first[node];
  kind->gpu_count = node_ranks(b, node);
  if (kind->gpu_count > TOPOLOGY_GPUS_MAX)
    return log_fail(ncclInvalidUsage, "node %u has %u ranks; expected at most %u", node, kind->gpu_count,
                    TOPOLOGY_GPUS_MAX);
  TRY(kind_search(b, kind));
  b->kind_count += 1;
  return ncclSuccess;
}

/* ---- What all kinds have in common ---- */

static void result_agree(struct search_result *all, const struct search_result *one, bool first) {
  if (first) *all = *one;
  if (one->channel_count < all->channel_count) all->channel_count = one->channel_count;
  if (one->gbps < all->gbps) all->gbps = one->gbps;
  if (one->intra_path > all->intra_path) all->intra_path = one->intra_path;
  if (one->inter_path > all->inter_path) all->inter_path = one->inter_path;
  all->same_channels = all->same_channels && one->same_channels;
  if (one->pattern > all->pattern) all->pattern = one->pattern; /* the simpler tree */
}

/* One channel in rank order if no path is found, so that there is a graph at all. */
static void result_settle(struct building *b, bool ring) {
  struct search_result *all = ring ? &b->ring : &b->tree;
  bool crossing = true;
  for (uint32_t i = 0; i < b->kind_count; i++) {
    const struct search_result *one = ring ? &b->kinds[i].ring : &b->kinds[i].tree;
    result_agree(all, one, i == 0);
    crossing = crossing && one->cross_nic == 2;
  }
  all->cross_nic = crossing ? 2 : all->cross_nic == 2 ? 1 : all->cross_nic;
  if (all->channel_count > 0) return;
  log_info(LOG_GRAPH, "%s: no path over %u nodes is found in the topology '%s'; one channel in rank order",
           ring ? "ring" : "tree", b->node_count, b->request->topology->name);
  all->channel_count = 1;
  all->gbps = NOTHING_FOUND_GBPS;
  all->intra_path = all->inter_path = GRAPH_SYS;
  all->pattern = ring ? SEARCH_RING : SEARCH_TREE;
  all->same_channels = true;
  for (uint32_t i = 0; i < b->kind_count; i++) {
    struct search_result *one = ring ? &b->kinds[i].ring : &b->kinds[i].tree;
    for (uint32_t place = 0; place < b->kinds[i].gpu_count; place++) one->chain[0][place] = place;
    one->net[0][0] = one->net[0][1] = TOPOLOGY_NONE;
  }
}

static ncclResult_t nodes_search(struct building *b) {
  for (uint32_t node = 0; node < b->node_count; node++) {
    const uint32_t kind = kind_find(b, node);
    if (kind == b->kind_count) TRY(kind_add(b, node));
    b->kind_of[node] = kind;
  }
  result_settle(b, true);
  result_settle(b, false);
  return ncclSuccess;
}

/* ---- Rows ---- */

static uint32_t chain_rank(const struct building *b, const struct search_result *result, uint32_t channel,
                           uint32_t node, uint32_t place) {
  return b->ranks[b->first[node] + result->chain[channel][place]];
}

/* If rings leave by their pair's NIC, odd nodes use the pair's chain, so that data stays on its rail. */
static void ring_fill(const struct building *b, uint32_t channel, uint32_t *row) {
  const uint32_t count = b->request->rank_count;
  uint32_t used = 0, shift = 0;
  for (uint32_t node = 0; node < b->node_count; node++) {
    const uint32_t swapped = b->ring.cross_nic == 2 && node % 2 != 0 ? channel ^ 1 : channel;
    for (uint32_t place = 0; place < node_ranks(b, node); place++)
      row[used++] = chain_rank(b, &b->kinds[b->kind_of[node]].ring, swapped, node, place);
  }
  while (row[shift] != 0) shift += 1;
  uint32_t *turned = row + count; /* space for one more row follows */
  for (uint32_t i = 0; i < count; i++) turned[i] = row[(shift + i) % count];
  memcpy(row, turned, count * sizeof *row);
}

static ncclResult_t ring_check(const struct building *b, const uint32_t *row) {
  const uint32_t count = b->request->rank_count;
  uint32_t *seen = b->rings + (size_t)b->ring.channel_count * count;
  memset(seen, 0, count * sizeof *seen);
  for (uint32_t i = 0; i < count; i++) {
    if (row[i] >= count || seen[row[i]]++ != 0)
      return log_fail(ncclInternalError, "a ring of %u ranks passes rank %u twice; report this", count,
                      row[i]);
  }
  return ncclSuccess;
}

static void tree_add_child(struct graph_tree *row, uint32_t parent, uint32_t child) {
  uint32_t slot = 0;
  while (row[parent].down[slot] != GRAPH_NONE) slot += 1;
  row[parent].down[slot] = child;
  row[child].up = parent;
}

/* The rank of a node that connects to its first or second child node. */
static uint32_t tree_holder(const struct building *b, uint32_t channel, uint32_t node, bool second) {
  const enum search_pattern pattern = b->tree.pattern;
  const bool by_next = pattern == SEARCH_SPLIT_TREE || (pattern == SEARCH_BALANCED_TREE && !second);
  const uint32_t place = by_next && node_ranks(b, node) > 1 ? 1 : 0;
  return chain_rank(b, &b->kinds[b->kind_of[node]].tree, channel, node, place);
}

static void tree_fill(const struct building *b, uint32_t channel, bool second, struct graph_tree *row,
                      uint32_t *heads) {
  for (uint32_t rank = 0; rank < b->request->rank_count; rank++)
    row[rank].up = row[rank].down[0] = row[rank].down[1] = row[rank].down[2] = GRAPH_NONE;
  for (uint32_t node = 0; node < b->node_count; node++) {
    const struct search_result *chains = &b->kinds[b->kind_of[node]].tree;
    heads[node] = chain_rank(b, chains, channel, node, 0);
    for (uint32_t place = 1; place < node_ranks(b, node); place++)
      tree_add_child(row, chain_rank(b, chains, channel, node, place - 1),
                     chain_rank(b, chains, channel, node, place));
  }
  for (uint32_t node = 0; node < b->node_count; node++) {
    const struct graph_places places = graph_double_tree(b->node_count, node, second);
    for (uint32_t child = 0; child < 2; child++)
      if (places.down[child] != GRAPH_NONE)
        tree_add_child(row, tree_holder(b, channel, node, child == 1), heads[places.down[child]]);
  }
}

/* NCCL's number of channels: each channel twice, so that both trees carry half; twice again if NICs are fast
 * and channels few; then the user's bounds. */
static uint32_t channels_wanted(const struct building *b, uint32_t capability) {
  uint32_t count = 2 * b->channel_found;
  if (capability >= 90 && b->node_count > 1 && b->ring.gbps > 45 && count < 16) count *= 2;
  if (count > b->request->channels_max) count = b->request->channels_max;
  if (count < b->request->channels_min) count = b->request->channels_min;
  return count < PLAN_CHANNELS_MAX ? count : PLAN_CHANNELS_MAX;
}

/* ---- Speeds ---- */

static void speed_fill(struct graph_speed *speed, const struct search_result *result, bool network) {
  speed->channel_count = result->channel_count;
  speed->intra_gbps = result->gbps;
  speed->inter_gbps = network ? result->gbps : 0;
  speed->intra_path = (uint8_t)result->intra_path;
  speed->inter_path = (uint8_t)(network ? result->inter_path : GRAPH_LOC);
  speed->same_channels = result->same_channels;
  speed->pattern = (uint8_t)result->pattern;
}

/* A switch that adds: one channel per GPU, which is its head, with the total bandwidth of all GPUs. */
static void switch_fill(const struct building *b, struct graph *graph) {
  const uint32_t heads = graph->node_ranks_max;
  double most = 0, nics = 0;
  if (graph->capability_min < 90 || heads < 2 || !graph->nodes_even) return;
  for (uint32_t i = 0; i < b->request->rank_count; i++) {
    const double gbps = paths_switch_gbps(&b->paths, b->gpus[i]);
    if (i == 0 || gbps < most) most = gbps;
  }
  for (uint32_t net = 0; net < b->paths.net_count; net++)
    nics += topology_net_gbps(&b->paths.topology->devices[b->paths.topology->nets[net]]);
  if (b->node_count > 1 && nics < most) most = nics;
  const double *speed = search_speeds(graph->capability_min, b->node_count > 1);
  while (*speed > 0 && *speed * heads > most) speed += 1;
  if (*speed == 0) return;
  struct graph_speed *found = &graph->switch_speed;
  found->channel_count = heads;
  found->intra_gbps = *speed;
  found->inter_gbps = b->node_count > 1 ? *speed : 0;
  found->intra_path = GRAPH_NVL;
  found->inter_path = (uint8_t)(b->node_count > 1 ? b->tree.inter_path : GRAPH_LOC);
  found->pattern = SEARCH_SWITCH;
}

/* A network that adds: as trees, over the NICs that support it; each NIC sends once and receives once. */
static void network_fill(const struct building *b, struct graph *graph) {
  uint32_t nics = 0;
  for (uint32_t net = 0; net < b->paths.net_count; net++)
    nics += b->paths.topology->devices[b->paths.topology->nets[net]].adds;
  if (b->node_count < 2 || nics == 0 || b->tree.gbps <= NOTHING_FOUND_GBPS) return;
  speed_fill(&graph->network_speed, &b->tree, true);
  if (nics < b->tree.channel_count) graph->network_speed.channel_count = nics;
  graph->network_speed.pattern = SEARCH_DIRECT;
}

static void graph_fill(const struct building *b, struct graph *graph) {
  const struct topology *topology = b->request->topology;
  graph->rank_count = b->request->rank_count;
  graph->node_count = b->node_count;
  graph->node = b->node;
  graph->local = b->local;
  graph->gpu = b->gpu;
  graph->nodes_even = true;
  for (uint32_t node = 0; node < b->node_count; node++) {
    const uint32_t count = node_ranks(b, node);
    if (count != node_ranks(b, 0)) graph->nodes_even = false;
    if (count > graph->node_ranks_max) graph->node_ranks_max = count;
  }
  for (uint32_t i = 0; i < graph->rank_count; i++) {
    const uint32_t capability = topology->devices[topology->gpus[b->gpus[i]]].capability;
    if (i == 0 || capability < graph->capability_min) graph->capability_min = capability;
    if (capability > graph->capability_max) graph->capability_max = capability;
  }
  speed_fill(&graph->ring_speed, &b->ring, b->node_count > 1);
  speed_fill(&graph->tree_speed, &b->tree, b->node_count > 1);
  switch_fill(b, graph);
  network_fill(b, graph);
  graph->channel_count = channels_wanted(b, graph->capability_min);
}

/* Channels use the chains found, in order, then again with the second tree, and so on. */
static void graph_point(const struct building *b, struct graph *graph) {
  for (uint32_t channel = 0; channel < PLAN_CHANNELS_MAX; channel++) {
    const uint32_t found = channel % b->channel_found, chain = found % b->tree.channel_count;
    const uint32_t copy = channel / b->channel_found % b->tree_copies;
    const size_t ranks = graph->rank_count;
    graph->ring[channel] = b->rings + (found % b->ring.channel_count) * ranks;
    graph->tree[channel] = b->trees + (chain * b->tree_copies + copy) * ranks;
    graph->head[channel] = b->node_count > 1 ? b->heads + (size_t)chain * b->node_count : NULL;
  }
}

/* ---- The whole ---- */

static ncclResult_t rows_fill(struct building *b, struct graph *graph) {
  const size_t ranks = b->request->rank_count, nodes = b->node_count;
  const uint32_t rings = b->ring.channel_count, trees = b->tree.channel_count;
  b->tree_copies = nodes > 1 ? 2 : 1;
  b->channel_found = rings > trees ? rings : trees;
  const size_t tree_bytes = trees * b->tree_copies * ranks * sizeof *b->trees;
  const size_t words = (rings + 4) * ranks + trees * nodes; /* 4: a row to rotate rings, node, local, gpu */
  uint8_t *memory = (uint8_t *)os_alloc(tree_bytes + words * sizeof(uint32_t));
  if (memory == NULL) return log_no_memory("the rings of %zu ranks", ranks);
  graph->memory = memory;
  b->trees = (struct graph_tree *)(void *)memory;
  b->rings = (uint32_t *)(void *)(memory + tree_bytes);
  b->heads = b->rings + (rings + 1) * ranks;
  uint32_t *node = b->heads + trees * nodes;
  memcpy(node, b->node, 2 * ranks * sizeof *node);
  b->node = node;
  b->local = node + ranks;
  b->gpu = node + 2 * ranks;
  for (size_t rank = 0; rank < ranks; rank++) b->gpu[rank] = b->request->places[rank].gpu;
  for (uint32_t channel = 0; channel < rings; channel++) {
    ring_fill(b, channel, b->rings + channel * ranks);
    TRY(ring_check(b, b->rings + channel * ranks));
  }
  for (uint32_t row = 0; row < trees * b->tree_copies; row++)
    tree_fill(b, row / b->tree_copies, row % b->tree_copies != 0, b->trees + row * ranks,
              b->heads + row / b->tree_copies * nodes);
  graph_fill(b, graph);
  graph_point(b, graph);
  return ncclSuccess;
}

/* Nodes, paths, searches; call building_end() after it, whatever it returns. */
static ncclResult_t building_begin(struct building *b, const struct graph_request *request) {
  const size_t ranks = request->rank_count;
  memset(b, 0, sizeof *b);
  b->request = request;
  TRY(places_check(request));
  b->node = (uint32_t *)os_alloc((6 * ranks + 2) * sizeof *b->node);
  if (b->node == NULL) return log_no_memory("the places of %zu ranks", ranks);
  b->local = b->node + ranks;
  b->ranks = b->local + ranks;
  b->gpus = b->ranks + ranks;
  b->kind_of = b->gpus + ranks;
  b->first = b->kind_of + ranks;
  if (!nodes_number(b)) return log_no_memory("the numbers of nodes");
  TRY(paths_find(request->topology, &request->rules, &b->paths));
  return nodes_search(b);
}

static void building_end(struct building *b, uint32_t *node) {
  paths_free(&b->paths);
  os_free(b->kinds);
  os_free(node);
}

ncclResult_t graph_build(const struct graph_request *request, struct graph *graph) {
  struct building *b = (struct building *)os_alloc(sizeof *b);
  struct graph built;
  if (b == NULL) return log_no_memory("building the graph of %u ranks", request->rank_count);
  memset(&built, 0, sizeof built);
  ncclResult_t result = building_begin(b, request);
  uint32_t *node = b->node;
  if (result == ncclSuccess) result = rows_fill(b, &built);
  building_end(b, node);
  os_free(b);
  if (result == ncclSuccess) *graph = built;
  else graph_free(&built);
  return result;
}

/* ---- Writing ---- */

static void graph_write_net(struct text *text, const struct building *b, uint32_t net) {
  const struct topology *topology = b->request->topology;
  if (net != TOPOLOGY_NONE)
    text_add(text, "      <net dev=\"%d\"/>\n", topology->devices[topology->nets[net]].number);
}

static void graph_write(struct text *text, const struct building *b, uint32_t id,
                        const struct search_result *all, const struct search_result *chains) {
  const struct topology *topology = b->request->topology;
  text_add(text,
           "  <graph id=\"%u\" pattern=\"%u\" crossnic=\"%u\" nchannels=\"%u\" speedintra=\"%g\" "
           "speedinter=\"%g\" latencyinter=\"0\" typeintra=\"%s\" typeinter=\"%s\" samechannels=\"%u\">\n",
           id, (unsigned)all->pattern, all->cross_nic, all->channel_count, all->gbps, all->gbps,
           paths_type_name(all->intra_path), paths_type_name(all->inter_path), all->same_channels ? 1 : 0);
  for (uint32_t channel = 0; channel < all->channel_count; channel++) {
    text_add(text, "    <channel>\n");
    graph_write_net(text, b, chains->net[channel][0]);
    for (uint32_t place = 0; place < b->kinds[0].gpu_count; place++)
      text_add(text, "      <gpu dev=\"%d\"/>\n",
               topology->devices[topology->gpus[b->gpus[chains->chain[channel][place]]]].number);
    graph_write_net(text, b, chains->net[channel][1]);
    text_add(text, "    </channel>\n");
  }
  text_add(text, "  </graph>\n");
}

ncclResult_t graph_describe(const struct graph_request *request, struct text *text) {
  struct building *b = (struct building *)os_alloc(sizeof *b);
  if (b == NULL) return log_no_memory("describing the graph of %u ranks", request->rank_count);
  const ncclResult_t result = building_begin(b, request);
  if (result == ncclSuccess) {
    text_add(text, "<graphs version=\"1\">\n");
    graph_write(text, b, 0, &b->ring, &b->kinds[0].ring);
    graph_write(text, b, 1, &b->tree, &b->kinds[0].tree);
    text_add(text, "</graphs>\n");
  }
  building_end(b, b->node);
  os_free(b);
  TRY(result);
  return text->failed ? log_no_memory("the text of a graph") : ncclSuccess;
}
