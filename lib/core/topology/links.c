/* links.c: neighbours by algorithm: rings, trees, direct collectives, distances of powers of two, and the
 * ranks that host switches. Knows nothing of sizes. */
#include "core/topology/links.h"

#include "schedule/direct.h"
#include "schedule/pat.h"
#include "schedule/switch.h"

uint32_t links_ring_index(const struct graph *graph, uint32_t channel_index, uint32_t rank) {
  const uint32_t *ring = graph->ring[channel_index];
  const uint32_t block = graph->node_ranks_max;
  /* Most rings pass nodes in order: start at the place where the rank's node should be. */
  uint32_t index = block > 0 ? rank - rank % block : 0;
  while (ring[index] != rank) index = index + 1 == graph->rank_count ? 0 : index + 1;
  return index;
}

/* ---- switches: their hosts ---- */

static uint32_t rank_at(const struct graph *graph, uint32_t node, uint32_t local) {
  uint32_t rank = 0;
  while (graph->node[rank] != node || graph->local[rank] != local) rank += 1;
  return rank;
}

/* Host of the switch that a rank's sums go to. Channels alternate, so that no rank does all the adding. */
static uint32_t switch_host(const struct graph *graph, uint8_t algo, uint32_t channel_index, uint32_t rank) {
  const uint32_t node = channel_index % graph->node_count;
  switch (algo) {
    case ALGO_COLLNET_DIRECT: return rank_at(graph, node, graph->local[rank]);
    case ALGO_COLLNET_CHAIN: return graph->head[channel_index][node];
    default: return rank_at(graph, graph->node[rank], channel_index % graph->node_ranks_max);
  }
}

uint32_t links_roles(const struct graph *graph, uint8_t algo, uint32_t channel_index, uint32_t rank,
                     uint32_t roles[LINKS_ROLES_MAX]) {
  uint32_t count = 0;
  if (algo == ALGO_COLLNET_CHAIN ||
      (algo == ALGO_TREE && graph->tree[channel_index][rank].up != GRAPH_NONE)) {
    roles[count++] = ROLE_UP;
    roles[count++] = ROLE_DOWN;
  } else {
    roles[count++] = ROLE_WHOLE;
  }
  if (switch_is_algo(algo) && switch_host(graph, algo, channel_index, rank) == rank)
    roles[count++] = ROLE_SWITCH;
  return count;
}

/* Chains end or begin at the root. */
static void links_set_ring(const struct graph *graph, struct work *work) {
  const uint32_t *ring = graph->ring[work->channel_index];
  const uint32_t n = work->rank_count;
  const uint32_t next = ring[(work->ring_index + 1) % n], previous = ring[(work->ring_index + n - 1) % n];
  bool receives = true, sends = true;
  if (work->func == FUNC_BROADCAST) {
    receives = work->rank != work->root;
    sends = next != work->root;
  } else if (work->func == FUNC_REDUCE) {
    receives = previous != work->root;
    sends = work->rank != work->root;
  }
  work->recv_count = receives;
  work->send_count = sends;
  work->recv_peer[0] = previous;
  work->send_peer[0] = next;
  work->ring_ranks = ring;
}

static uint8_t links_children(const struct graph_tree *tree, uint32_t *peers) {
  uint8_t count = 0;
  while (count < GRAPH_CHILDREN_MAX && tree->down[count] != GRAPH_NONE) {
    peers[count] = tree->down[count];
    count += 1;
  }
  return count;
}

static void links_set_tree(const struct graph *graph, struct work *work) {
  const struct graph_tree *tree = &graph->tree[work->channel_index][work->rank];
  work->recv_count = work->role == ROLE_DOWN ? 1 : links_children(tree, work->recv_peer);
  work->send_count = work->role == ROLE_UP ? 1 : links_children(tree, work->send_peer);
  if (work->role == ROLE_DOWN) work->recv_peer[0] = tree->up;
  if (work->role == ROLE_UP) work->send_peer[0] = tree->up;
}

/* From the rank after the root on (direct_is_apart); a broadcast sends nothing to its root. */
static void links_set_apart(struct work *work) {
  const bool broadcast = work->func == FUNC_BROADCAST, root = work->rank == work->root;
  uint32_t *recv = work->recv_peer, *send = work->send_peer;
  work->recv_count = work->send_count = 0;
  for (uint32_t i = 1; i <= work->rank_count; i++) {
    const uint32_t peer = (work->root + i) % work->rank_count;
    if (peer == work->rank) continue;
    if (!broadcast || !root) recv[work->recv_count++] = peer;
    if (!broadcast || peer != work->root) send[work->send_count++] = peer;
  }
}

/* A broadcast has links from the root alone, and a reduction in one hop to it. */
static bool link_exists(const struct work *work, uint32_t from, uint32_t to) {
  if (work->func == FUNC_BROADCAST) return from == work->root;
  return !direct_is_one_hop_reduce(work) || to == work->root;
}

static void links_set_direct(struct work *work) {
  if ((work->flags & WORK_ROOT_APART) != 0) {
    links_set_apart(work);
    return;
  }
  work->recv_count = work->send_count = 0;
  for (uint32_t peer = 0; peer < work->rank_count; peer++) {
    if (peer == work->rank) continue;
    if (link_exists(work, peer, work->rank)) work->recv_peer[work->recv_count++] = peer;
    if (link_exists(work, work->rank, peer)) work->send_peer[work->send_count++] = peer;
  }
}

/* Link d is the rank 2^d ahead or behind: all-gather sends backwards, reduce-scatter forwards. */
static void links_set_pat(struct work *work) {
  const uint32_t n = work->rank_count;
  const bool gathers = work->func == FUNC_ALL_GATHER;
  work->recv_count = work->send_count = (uint8_t)pat_dims(n);
  for (uint32_t d = 0; d < work->recv_count; d++) {
    const uint32_t ahead = (work->rank + (1u << d)) % n, behind = (work->rank + n - (1u << d)) % n;
    work->recv_peer[d] = gathers ? ahead : behind;
    work->send_peer[d] = gathers ? behind : ahead;
  }
}

/* ---- switches: links to them ---- */

static bool is_member(const struct graph *graph, const struct work *work, uint32_t rank) {
  switch (work->algo) {
    case ALGO_COLLNET_DIRECT: return graph->local[rank] == graph->local[work->rank];
    case ALGO_COLLNET_CHAIN: return graph->head[work->channel_index][graph->node[rank]] == rank;
    default: return graph->node[rank] == graph->node[work->rank];
  }
}

static void links_set_members(const struct graph *graph, struct work *work) {
  work->recv_count = 0;
  for (uint32_t rank = 0; rank < work->rank_count; rank++)
    if (is_member(graph, work, rank)) work->recv_peer[work->recv_count++] = rank;
}

/* The heads with equal index in their nodes form a tree; the channel's parity selects the tree of the pair.
 */
static void links_add_node_tree(const struct graph *graph, struct work *work) {
  const uint32_t node = graph->node[work->rank], local = graph->local[work->rank], count = graph->node_count;
  const bool second = work->channel_index % 2 == 1;
  const struct graph_places tree = graph_double_tree(count, node, second);
  uint32_t top = node;
  for (uint32_t up = tree.up; up != GRAPH_NONE; up = graph_double_tree(count, up, second).up) top = up;
  work->root = rank_at(graph, top, local);
  for (uint32_t i = 0; i < 2; i++)
    if (tree.down[i] != GRAPH_NONE) work->recv_peer[work->recv_count++] = rank_at(graph, tree.down[i], local);
  if (tree.up != GRAPH_NONE) work->recv_peer[work->recv_count++] = rank_at(graph, tree.up, local);
}

static void links_add_node_others(const struct graph *graph, struct work *work) {
  for (uint32_t rank = 0; rank < work->rank_count; rank++)
    if (rank != work->rank && graph->node[rank] == graph->node[work->rank])
      work->recv_peer[work->recv_count++] = rank;
}

/* A chain follows the node's ring from its head and ends at the last rank. */
static void links_set_chain(const struct graph *graph, struct work *work, uint32_t host) {
  const uint32_t node = graph->node[work->rank], head = graph->head[work->channel_index][node];
  uint32_t size = 0;
  for (uint32_t rank = 0; rank < work->rank_count; rank++) size += graph->node[rank] == node;
  const uint32_t local = graph->local[work->rank];
  const uint32_t place = (local + size - graph->local[head]) % size;
  const uint32_t before = place == 0 ? host : rank_at(graph, node, (local + size - 1) % size);
  const bool last = place + 1 == size, up = work->role == ROLE_UP;
  work->root = head;
  work->recv_count = !up || !last;
  work->send_count = up || !last;
  work->recv_peer[0] = work->send_peer[0] = before;
  if (!last) (up ? work->recv_peer : work->send_peer)[0] = rank_at(graph, node, (local + 1) % size);
}

static void links_set_switch(const struct graph *graph, struct work *work) {
  const uint32_t host = switch_host(graph, work->algo, work->channel_index, work->rank);
  work->conn_index = CONN_SWITCH;
  work->head_index = (uint16_t)graph->local[work->rank];
  work->head_count = (uint16_t)graph->node_ranks_max;
  work->root = work->rank;
  if (work->algo == ALGO_COLLNET_CHAIN && work->role != ROLE_SWITCH) {
    links_set_chain(graph, work, host);
    return;
  }
  work->recv_count = 0;
  if (work->role == ROLE_SWITCH) links_set_members(graph, work);
  else if (work->algo == ALGO_COLLNET_DIRECT) links_add_node_others(graph, work);
  if (work->role != ROLE_SWITCH) work->recv_peer[work->recv_count++] = host;
  if (work->role != ROLE_SWITCH && work->algo == ALGO_NVLS_TREE) links_add_node_tree(graph, work);
  work->send_count = work->recv_count;
  for (uint32_t i = 0; i < work->recv_count; i++) work->send_peer[i] = work->recv_peer[i];
}

void links_set(const struct graph *graph, struct work *work) {
  switch (work->algo) {
    case ALGO_TREE: links_set_tree(graph, work); break;
    case ALGO_DIRECT:
    case ALGO_TWO_SHOT: links_set_direct(work); break;
    case ALGO_PAT: links_set_pat(work); break;
    case ALGO_NVLS:
    case ALGO_NVLS_TREE:
    case ALGO_COLLNET_DIRECT:
    case ALGO_COLLNET_CHAIN: links_set_switch(graph, work); break;
    default: links_set_ring(graph, work); break;
  }
}

uint32_t links_most(const struct graph *graph, uint8_t algo) {
  switch (algo) {
    case ALGO_TREE: return GRAPH_CHILDREN_MAX;
    case ALGO_DIRECT:
    case ALGO_TWO_SHOT: return graph->rank_count - 1;
    case ALGO_PAT: return pat_dims(graph->rank_count);
    case ALGO_NVLS: return graph->node_ranks_max;
    case ALGO_NVLS_TREE: return graph->node_ranks_max > 4 ? graph->node_ranks_max : 4;
    case ALGO_COLLNET_DIRECT:
      return graph->node_ranks_max > graph->node_count ? graph->node_ranks_max : graph->node_count;
    case ALGO_COLLNET_CHAIN: return graph->node_count;
    default: return 1;
  }
}
