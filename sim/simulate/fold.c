/* fold.c: see fold.h. Lanes, connections, shared links, blocks of several batches and, for plans that run in
 * sequence, ranks are the nodes of a graph; refine.h partitions it by hashes, and the parts are then compared
 * member by member, so the result does not depend on a hash. */
#include "simulate/fold.h"

#include <string.h>

#include "base/os.h"
#include "simulate/demand.h"
#include "simulate/refine.h"

/* Labels of edges; from LABEL_LINK on: a link of a lane by its place and direction. */
enum { LABEL_SHARES, LABEL_BLOCK, LABEL_RANK, LABEL_LINK };

struct folder {
  const struct cluster *cluster;
  const struct sim_net *net;
  const struct fold_turns *turns;  /* or NULL */
  struct cluster_route *routes;    /* by connection */
  uint32_t *shared, *shared_links; /* by link of the cluster: its number here plus one; and the reverse */
  uint32_t first_link, first_block, first_rank, nodes; /* of the graph; lanes first, then connections */
  uint32_t shared_count;
  struct refine_graph graph;
  uint64_t *colour;
  uint32_t *part, *rep;
};

/* ---- works whose slices do not depend on the rank ---- */

/* If a loop has a chunk per rank, every rank has the same counts in a different order only if all are whole.
 */
static bool chunks_are_even(const struct work *work) {
  const size_t loop = work->chunk_count * work->rank_count;
  const size_t rest = loop > 0 ? work->part_count % loop : 1;
  return rest == 0 || rest == work->last_chunk_count * work->rank_count;
}

static bool work_is_placeless(const struct work *work) {
  if (work->func == FUNC_SEND || work->func == FUNC_RECV || work->func == FUNC_COPY) return true;
  if ((work->flags & (WORK_FUSED | WORK_PART)) != 0 || work->conn_index != CONN_COLLECTIVE) return false;
  switch (work->algo) {
    case ALGO_PAT: return true;
    case ALGO_TREE: return true;
    case ALGO_RING:
      if (work->func == FUNC_ALL_REDUCE) return chunks_are_even(work);
      return work->func == FUNC_ALL_GATHER || work->func == FUNC_REDUCE_SCATTER;
    default: return false;
  }
}

/* Every slice uses all links of a side, so links are interchangeable. */
static bool work_takes_all_links(const struct work *work) { return work->algo == ALGO_TREE; }

static bool works_are_alike(const struct work *a, const struct work *b) {
  return a->func == b->func && a->algo == b->algo && a->proto == b->proto &&
         a->element_bytes == b->element_bytes && a->chunk_steps == b->chunk_steps &&
         a->slice_steps == b->slice_steps && a->recv_count == b->recv_count &&
         a->send_count == b->send_count && a->flags == b->flags && a->role == b->role &&
         a->conn_index == b->conn_index && a->count == b->count && a->part_count == b->part_count &&
         a->chunk_count == b->chunk_count && a->last_chunk_count == b->last_chunk_count &&
         a->rank_count == b->rank_count && (a->algo != ALGO_PAT || a->pack == b->pack);
}

/* ---- colours ---- */

static uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * UINT64_C(0x9e3779b97f4a7c15);
  return hash ^ hash >> 29;
}

static uint64_t mix_double(uint64_t hash, double value) {
  uint64_t bits;
  memcpy(&bits, &value, sizeof bits);
  return mix(hash, bits);
}

static uint64_t lane_colour(const struct folder *folder, uint32_t index) {
  const struct sim_lane *lane = &folder->net->lanes[index];
  const struct work *work = lane->work;
  if (!work_is_placeless(work)) return mix(1, index);
  uint64_t hash = mix(mix(2, work->func * 65536ull + work->algo * 256u + work->proto), lane->batch);
  hash = mix(hash, work->flags * 65536ull + work->role);
  hash = mix(hash, work->recv_count * 256ull + work->send_count);
  hash = mix(mix(hash, work->part_count), work->chunk_count);
  if (folder->turns) hash = mix(hash, folder->turns->plan[index]);
  return mix_double(mix(hash, work->last_chunk_count), folder->cluster->rank_slow[lane->rank]);
}

static bool lanes_are_alike(const struct folder *folder, uint32_t one, uint32_t two) {
  const struct sim_lane *a = &folder->net->lanes[one], *b = &folder->net->lanes[two];
  return one == two ||
         (work_is_placeless(a->work) && works_are_alike(a->work, b->work) && a->batch == b->batch &&
          (!folder->turns || folder->turns->plan[one] == folder->turns->plan[two]) &&
          folder->cluster->rank_slow[a->rank] == folder->cluster->rank_slow[b->rank]);
}

static uint64_t conn_colour(const struct cluster_route *route) {
  return mix_double(mix_double(mix(3, route->kind * 2ull + route->network), route->gbps), route->flight_us);
}

static bool routes_are_alike(const struct cluster_route *a, const struct cluster_route *b) {
  return a->kind == b->kind && a->network == b->network && a->gbps == b->gbps && a->flight_us == b->flight_us;
}

static void colours_set(struct folder *folder) {
  const struct sim_net *net = folder->net;
  for (uint32_t i = 0; i < net->lane_count; i++) folder->colour[i] = lane_colour(folder, i);
  for (uint32_t i = 0; i < net->conn_count; i++)
    folder->colour[net->lane_count + i] = conn_colour(&folder->routes[i]);
  for (uint32_t i = 0; i < folder->shared_count; i++)
    folder->colour[folder->first_link + i] =
        mix_double(4, folder->cluster->link_gbps[folder->shared_links[i]]);
  for (uint32_t i = folder->first_block; i < folder->first_rank; i++) folder->colour[i] = 5;
  for (uint32_t i = folder->first_rank; i < folder->nodes; i++)
    folder->colour[i] = mix(6, folder->turns->colour[i - folder->first_rank]);
}

/* ---- the graph ---- */

/* A block whose lanes all begin at once does not couple them. */
static bool block_has_turns(const struct sim_net *net, uint32_t block) {
  const struct sim_block *place = &net->blocks[block];
  return place->lane_count > 0 && net->lanes[place->first_lane + place->lane_count - 1].batch > 0;
}

/* False if a connection lacks an end, or has several lanes of one plan. `ends`: for each connection the
 * numbers plus one of the plans that last received and sent over it. */
static bool conns_are_single(const struct sim_net *net, const struct fold_turns *turns, uint32_t *ends) {
  for (uint32_t i = 0; i < net->lane_count; i++) {
    const struct work *work = net->lanes[i].work;
    const uint32_t plan = turns ? turns->plan[i] + 1 : 1;
    for (uint32_t k = 0; k < (uint32_t)work->recv_count + work->send_count; k++) {
      uint32_t *end = &ends[2 * (size_t)net->links[net->lanes[i].first_link + k] + (k >= work->recv_count)];
      if (*end == plan) return false;
      *end = plan;
    }
  }
  for (size_t i = 0; i < 2 * (size_t)net->conn_count; i++)
    if (ends[i] == 0) return false;
  return true;
}

/* The demand of connections on links at a time, into `gbps`. */
static bool demand_find(const struct folder *folder, double *gbps) {
  const struct cluster *cluster = folder->cluster;
  const struct sim_net *net = folder->net;
  struct demand demand;
  if (folder->turns) {
    memcpy(gbps, folder->turns->demand_gbps, cluster->link_count * sizeof *gbps);
    return true;
  }
  bool whole = demand_make(cluster, &demand);
  for (uint32_t i = 0; whole && i < net->conn_count; i++) {
    const struct sim_conn *conn = &net->conns[i];
    const struct cluster_route *route = &folder->routes[i];
    const double gbps = cluster_most_gbps(cluster, route, conn->proto, conn->sender);
    whole = demand_add(&demand, route, gbps * (1 + conn->shows));
  }
  whole = whole && demand_sum(&demand, gbps);
  demand_free(&demand);
  return whole;
}

/* Routes, and which links can be full. */
static bool routes_find(struct folder *folder) {
  const struct cluster *cluster = folder->cluster;
  const struct sim_net *net = folder->net;
  double *demand = (double *)os_alloc(((size_t)cluster->link_count + 1) * sizeof *demand);
  for (uint32_t i = 0; demand && i < net->conn_count; i++)
    cluster_route_find(cluster, &net->conns[i], &folder->routes[i]);
  const bool whole = demand && demand_find(folder, demand);
  for (uint32_t link = 0; whole && link < cluster->link_count; link++) {
    if (demand[link] <= cluster->link_gbps[link] * (1 + 1e-10)) continue;
    folder->shared_links[folder->shared_count++] = link;
    folder->shared[link] = folder->shared_count;
  }
  os_free(demand);
  return whole;
}

static uint32_t edge_add(struct refine_edge *edges, uint32_t count, uint32_t one, uint32_t other,
                         uint32_t label) {
  if (edges) edges[count] = (struct refine_edge){one, other, (uint16_t)label};
  return count + 1;
}

static uint32_t lane_edges(const struct folder *folder, uint32_t index, struct refine_edge *edges,
                           uint32_t count) {
  const struct sim_net *net = folder->net;
  const struct sim_lane *lane = &net->lanes[index];
  const uint32_t recv_count = lane->work->recv_count, links = recv_count + lane->work->send_count;
  const bool alike = work_takes_all_links(lane->work);
  for (uint32_t k = 0; k < links; k++) {
    const uint32_t conn = net->links[lane->first_link + k], place = k < recv_count ? k : k - recv_count;
    const uint32_t label = LABEL_LINK + 2 * (alike ? 0 : place) + (k >= recv_count);
    count = edge_add(edges, count, index, net->lane_count + conn, label);
  }
  if (block_has_turns(net, lane->block))
    count = edge_add(edges, count, index, folder->first_block + lane->block, LABEL_BLOCK);
  if (folder->turns) count = edge_add(edges, count, index, folder->first_rank + lane->rank, LABEL_RANK);
  return count;
}

/* Writes to `edges`, unless that is NULL; returns their number. */
static uint32_t edges_list(const struct folder *folder, struct refine_edge *edges) {
  const struct sim_net *net = folder->net;
  uint32_t count = 0;
  for (uint32_t i = 0; i < net->lane_count; i++) count = lane_edges(folder, i, edges, count);
  for (uint32_t i = 0; i < net->conn_count; i++)
    for (uint32_t hop = 0; hop < folder->routes[i].link_count; hop++) {
      const uint32_t shared = folder->shared[folder->routes[i].links[hop]];
      if (shared > 0)
        count = edge_add(edges, count, net->lane_count + i, folder->first_link + shared - 1, LABEL_SHARES);
    }
  return count;
}

static bool graph_make(struct folder *folder) {
  const struct sim_net *net = folder->net;
  folder->first_link = net->lane_count + net->conn_count;
  folder->first_block = folder->first_link + folder->shared_count;
  folder->first_rank = folder->first_block + net->block_count;
  folder->nodes = folder->first_rank + (folder->turns ? net->rank_count : 0);
  const uint32_t count = edges_list(folder, NULL);
  struct refine_edge *edges = (struct refine_edge *)os_alloc(((size_t)count + 1) * sizeof *edges);
  folder->colour = (uint64_t *)os_alloc(((size_t)folder->nodes + 1) * sizeof(uint64_t));
  folder->part = (uint32_t *)os_alloc(((size_t)folder->nodes + 1) * sizeof(uint32_t));
  folder->rep = (uint32_t *)os_alloc(((size_t)folder->nodes + 1) * sizeof(uint32_t));
  bool whole = edges && folder->colour && folder->part && folder->rep;
  if (whole) {
    edges_list(folder, edges);
    whole = refine_graph_make(folder->nodes, edges, count, &folder->graph);
  }
  os_free(edges);
  if (whole) colours_set(folder);
  return whole && refine_parts(&folder->graph, folder->colour, folder->part, folder->rep);
}

/* ---- the proof ---- */

/* Compares what colours represent; refine_holds() compares the rest. */
static bool members_are_alike(const struct folder *folder) {
  const struct sim_net *net = folder->net;
  const uint32_t *rep = folder->rep;
  for (uint32_t i = 0; i < net->lane_count; i++)
    if (rep[i] >= net->lane_count || !lanes_are_alike(folder, i, rep[i])) return false;
  for (uint32_t i = net->lane_count; i < folder->first_link; i++)
    if (rep[i] < net->lane_count || rep[i] >= folder->first_link ||
        !routes_are_alike(&folder->routes[i - net->lane_count], &folder->routes[rep[i] - net->lane_count]))
      return false;
  for (uint32_t i = folder->first_link; i < folder->first_block; i++)
    if (rep[i] < folder->first_link || rep[i] >= folder->first_block ||
        folder->cluster->link_gbps[folder->shared_links[i - folder->first_link]] !=
            folder->cluster->link_gbps[folder->shared_links[rep[i] - folder->first_link]])
      return false;
  for (uint32_t i = folder->first_block; i < folder->first_rank; i++)
    if (rep[i] < folder->first_block || rep[i] >= folder->first_rank) return false;
  for (uint32_t i = folder->first_rank; i < folder->nodes; i++)
    if (rep[i] < folder->first_rank ||
        !folder->turns->order_alike(folder->turns->context, i - folder->first_rank,
                                    rep[i] - folder->first_rank))
      return false;
  return true;
}

/* ---- making ---- */

static void *numbers(size_t count, size_t bytes) { return os_alloc((count + 1) * bytes); }

/* The lane's links are connections of the whole net, for now. */
static void lane_add(const struct folder *folder, struct fold *fold, uint32_t lane, bool begins_block) {
  const struct sim_lane *from = &folder->net->lanes[lane];
  struct sim_net *net = &fold->net;
  const uint32_t links = (uint32_t)from->work->recv_count + from->work->send_count;
  struct sim_lane *made = &net->lanes[net->lane_count];
  if (begins_block) {
    struct sim_block *block = &net->blocks[net->block_count++];
    *block = folder->net->blocks[from->block];
    block->first_lane = net->lane_count;
    block->lane_count = 0;
  }
  *made = *from;
  made->block = net->block_count - 1;
  made->first_link = net->link_count;
  net->blocks[made->block].lane_count += 1;
  fold->lane_of[net->lane_count++] = lane;
  if (links > 0)
    memcpy(&net->links[net->link_count], &folder->net->links[from->first_link], links * sizeof *net->links);
  net->link_count += links;
}

/* Whether the block's lanes represent others. Of blocks of several batches the first of its kind does; its
 * rank does, too, because kinds of lanes determine kinds of blocks and of ranks, and the lowest number
 * represents the others. */
static bool block_is_stuck(const struct folder *folder, uint32_t block) {
  const uint32_t node = folder->first_block + block;
  const uint32_t rank = folder->first_rank + folder->net->blocks[block].rank;
  if (folder->turns && folder->rep[rank] != rank) return false;
  return !block_has_turns(folder->net, block) || folder->rep[node] == node;
}

/* One lane of each kind; blocks of several batches stay together. For a kind in such a block, the first
 * member of the representing block runs, so `taken` is by representative. */
static void lanes_add(const struct folder *folder, struct fold *fold, bool *taken) {
  const struct sim_net *whole = folder->net;
  for (uint32_t b = 0; b < whole->block_count; b++) {
    const struct sim_block *block = &whole->blocks[b];
    const bool turns = block_has_turns(whole, b);
    bool begins = true;
    if (!block_is_stuck(folder, b)) continue;
    for (uint32_t lane = block->first_lane; lane < block->first_lane + block->lane_count; lane++) {
      if (taken[folder->rep[lane]]) continue;
      taken[folder->rep[lane]] = true;
      lane_add(folder, fold, lane, begins || !turns);
      begins = false;
    }
  }
}

/* Connections are numbered in the order in which lanes name them. */
static void links_bind(const struct folder *folder, struct sim_net *net, uint32_t *number) {
  const uint32_t lanes = folder->net->lane_count;
  for (uint32_t i = 0; i < net->lane_count; i++) {
    uint32_t *links = &net->links[net->lanes[i].first_link];
    const struct work *work = net->lanes[i].work;
    for (uint32_t k = 0; k < (uint32_t)work->recv_count + work->send_count; k++) {
      const uint32_t kind = folder->rep[lanes + links[k]] - lanes;
      if (number[kind] == 0) {
        net->conns[net->conn_count] = folder->net->conns[kind];
        number[kind] = ++net->conn_count;
      }
      links[k] = number[kind] - 1;
    }
  }
}

static bool net_fold(const struct folder *folder, struct fold *fold, uint32_t *number) {
  const struct sim_net *whole = folder->net;
  struct sim_net *net = &fold->net;
  bool *taken = (bool *)numbers(whole->lane_count, sizeof(bool));
  net->plans = whole->plans;
  net->first_rank = whole->first_rank;
  net->plan_count = whole->plan_count;
  net->rank_count = whole->rank_count;
  net->blocks = (struct sim_block *)numbers(whole->lane_count, sizeof *net->blocks);
  net->lanes = (struct sim_lane *)numbers(whole->lane_count, sizeof *net->lanes);
  net->conns = (struct sim_conn *)numbers(whole->conn_count, sizeof *net->conns);
  net->links = (uint32_t *)numbers(whole->link_count, sizeof *net->links);
  fold->lane_of = (uint32_t *)numbers(whole->lane_count, sizeof(uint32_t));
  const bool made = taken && net->blocks && net->lanes && net->conns && net->links && fold->lane_of;
  if (made) {
    lanes_add(folder, fold, taken);
    links_bind(folder, net, number);
  }
  os_free(taken);
  return made;
}

/* The shared links of the running connections: each link's representative, and how many of their kind use it.
 * A connection of a kind gives the kinds of links; a link of a kind gives the number of connections. */
static bool shares_fold(const struct folder *folder, struct fold *fold, const uint32_t *number) {
  const uint32_t lanes = folder->net->lane_count;
  const struct refine_graph *graph = &folder->graph;
  uint32_t *count = (uint32_t *)numbers(fold->net.conn_count, sizeof *count);
  size_t shares = 0;
  for (uint32_t link = folder->first_link; link < folder->first_block; link++)
    if (folder->rep[link] == link) shares += graph->first[link + 1] - graph->first[link];
  fold->first_share = (uint32_t *)numbers((size_t)fold->net.conn_count + 1, sizeof(uint32_t));
  fold->links = (uint32_t *)numbers(shares, sizeof(uint32_t));
  fold->users = (uint32_t *)numbers(shares, sizeof(uint32_t));
  const bool made = count && fold->first_share && fold->links && fold->users;
  for (int fill = 0; made && fill < 2; fill++) { /* counts, then fills */
    for (uint32_t link = folder->first_link; link < folder->first_block; link++) {
      if (folder->rep[link] != link) continue;
      for (uint32_t e = graph->first[link]; e < graph->first[link + 1];) {
        const uint32_t kind = folder->rep[graph->to[e]], conn = number[kind - lanes] - 1;
        uint32_t same = 0;
        for (; e < graph->first[link + 1] && folder->rep[graph->to[e]] == kind; e++) same += 1;
        if (fill == 0) {
          fold->first_share[conn + 1] += 1;
          continue;
        }
        const uint32_t at = fold->first_share[conn] + count[conn]++;
        fold->links[at] = folder->shared_links[link - folder->first_link];
        fold->users[at] = same;
      }
    }
    for (uint32_t conn = 0; fill == 0 && conn < fold->net.conn_count; conn++)
      fold->first_share[conn + 1] += fold->first_share[conn];
  }
  os_free(count);
  return made;
}

static bool ranks_fold(const struct folder *folder, struct fold *fold) {
  const uint32_t ranks = folder->nodes - folder->first_rank;
  if (ranks == 0) return true;
  fold->rank_of = (uint32_t *)numbers(ranks, sizeof(uint32_t));
  for (uint32_t i = 0; fold->rank_of && i < ranks; i++)
    fold->rank_of[i] = folder->rep[folder->first_rank + i] - folder->first_rank;
  return fold->rank_of != NULL;
}

static bool folder_make(struct folder *folder, const struct cluster *cluster, const struct sim_net *net,
                        const struct fold_turns *turns) {
  folder->cluster = cluster;
  folder->net = net;
  folder->turns = turns;
  folder->routes = (struct cluster_route *)numbers(net->conn_count, sizeof *folder->routes);
  folder->shared = (uint32_t *)numbers(cluster->link_count, sizeof(uint32_t));
  folder->shared_links = (uint32_t *)numbers(cluster->link_count, sizeof(uint32_t));
  return folder->routes && folder->shared && folder->shared_links;
}

static void folder_free(struct folder *folder) {
  os_free(folder->routes);
  os_free(folder->shared);
  os_free(folder->shared_links);
  os_free(folder->colour);
  os_free(folder->part);
  os_free(folder->rep);
  refine_graph_free(&folder->graph);
}

static bool may_fold(const struct sim_net *net, const struct fold_turns *turns) {
  bool placeless = false, single = false;
  for (uint32_t i = 0; i < net->lane_count && !placeless; i++)
    placeless = work_is_placeless(net->lanes[i].work);
  if (!placeless) return false;
  uint32_t *ends = (uint32_t *)numbers(net->conn_count, 2 * sizeof *ends);
  if (ends) single = conns_are_single(net, turns, ends);
  os_free(ends);
  return single;
}

static bool lanes_fold(struct folder *folder, struct fold *fold) {
  uint32_t *number = (uint32_t *)numbers(folder->net->conn_count, sizeof(uint32_t));
  const bool folded = number && members_are_alike(folder) &&
                      refine_holds(&folder->graph, folder->part, folder->rep) &&
                      net_fold(folder, fold, number) && shares_fold(folder, fold, number) &&
                      ranks_fold(folder, fold) && fold->net.lane_count < folder->net->lane_count;
  os_free(number);
  return folded;
}

bool fold_make(const struct cluster *cluster, const struct sim_net *whole, const struct fold_turns *turns,
               struct fold *fold) {
  struct folder folder;
  bool folded = false;
  memset(fold, 0, sizeof *fold);
  memset(&folder, 0, sizeof folder);
  if (!may_fold(whole, turns)) return false;
  if (folder_make(&folder, cluster, whole, turns) && routes_find(&folder) && graph_make(&folder))
    folded = lanes_fold(&folder, fold);
  folder_free(&folder);
  if (!folded) fold_free(fold);
  return folded;
}

void fold_free(struct fold *fold) {
  os_free(fold->lane_of);
  os_free(fold->rank_of);
  os_free(fold->first_share);
  os_free(fold->links);
  os_free(fold->users);
  sim_net_free(&fold->net);
  memset(fold, 0, sizeof *fold);
}
