/* links.c: neighbours by algorithm. Knows rings, trees, exchanges of all with all, and distances of powers of
 * two; nothing of sizes. */
#include "core/links.h"

#include "schedule/pat.h"

uint32_t links_ring_index(const struct graph *graph, uint32_t channel_index, uint32_t rank) {
  const uint32_t *ring = graph->ring[channel_index];
  uint32_t index = 0;
  while (ring[index] != rank) index += 1;
  return index;
}

uint32_t links_roles(const struct graph *graph, uint8_t algo, uint32_t channel_index, uint32_t rank,
                     uint32_t roles[LINKS_ROLES_MAX]) {
  roles[0] = ROLE_WHOLE;
  if (algo != ALGO_TREE || graph->tree[channel_index][rank].up == GRAPH_NONE) return 1;
  roles[0] = ROLE_UP;
  roles[1] = ROLE_DOWN;
  return 2;
}

/* Chains end at the root, or begin there. */
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

/* Everyone but the rank itself, from rank 0 on. */
static uint8_t links_others(const struct work *work, uint32_t *peers) {
  uint8_t count = 0;
  for (uint32_t peer = 0; peer < work->rank_count; peer++)
    if (peer != work->rank) peers[count++] = peer;
  return count;
}

static void links_set_direct(struct work *work) {
  const bool broadcast = work->func == FUNC_BROADCAST, root = work->rank == work->root;
  work->recv_count = work->send_count = 0;
  if (!broadcast || root) work->send_count = links_others(work, work->send_peer);
  if (!broadcast) work->recv_count = links_others(work, work->recv_peer);
  if (!broadcast || root) return;
  work->recv_count = 1;
  work->recv_peer[0] = work->root;
}

/* Link d is the rank 2^d ahead or behind: all-gather sends back, reduce-scatter ahead. */
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

void links_set(const struct graph *graph, struct work *work) {
  switch (work->algo) {
    case ALGO_TREE: links_set_tree(graph, work); break;
    case ALGO_DIRECT:
    case ALGO_TWO_SHOT: links_set_direct(work); break;
    case ALGO_PAT: links_set_pat(work); break;
    default: links_set_ring(graph, work); break;
  }
}

uint32_t links_most(const struct graph *graph, uint8_t func, uint8_t algo) {
  (void)func;
  switch (algo) {
    case ALGO_TREE: return GRAPH_CHILDREN_MAX;
    case ALGO_DIRECT:
    case ALGO_TWO_SHOT: return graph->rank_count - 1;
    case ALGO_PAT: return pat_dims(graph->rank_count);
    default: return 1;
  }
}
