/* fold.c: see fold.h. Candidates are found by refinement: nodes get numbers from what they are, then again
 * and again from that and from the numbers of those that they are connected to, until no more kinds appear.
 * What was found so is then compared member by member, so that nothing rests on a hash. */
#include "simulate/fold.h"

#include <stdlib.h>
#include <string.h>

#include "base/os.h"

struct kind {
  uint64_t hash;
  uint32_t node;
};

struct folder {
  const struct cluster *cluster;
  const struct walk_net *net;
  uint32_t *rank_lane;           /* by rank: its first lane; one more behind the last */
  uint32_t *link_lane;           /* by link */
  uint32_t *conn_from, *conn_to; /* by connection: the link at either end */
  uint64_t *way;                 /* by connection: what its route is like */
  uint64_t *fixed, *hash, *next; /* by node: what it is; its number of this round, and of the next */
  struct kind *kinds;
  uint32_t *rep;
};

/* ---- works whose slices do not depend on the rank ---- */

/* Where a loop has a chunk a rank, every rank has the same counts in another order only if all are whole. */
static bool chunks_are_even(const struct work *work) {
  const size_t loop = work->chunk_count * work->rank_count;
  const size_t rest = loop > 0 ? work->part_count % loop : 1;
  return rest == 0 || rest == work->last_chunk_count * work->rank_count;
}

static bool work_is_placeless(const struct work *work) {
  if ((work->flags & (WORK_FUSED | WORK_PART)) != 0 || work->conn_index != CONN_COLLECTIVE) return false;
  switch (work->algo) {
    case ALGO_PAT: return true; /* of a tree no two places are alike: each is another way from the root */
    case ALGO_RING:
      if (work->func == FUNC_ALL_REDUCE) return chunks_are_even(work);
      return work->func == FUNC_ALL_GATHER || work->func == FUNC_REDUCE_SCATTER;
    default: return false;
  }
}

static bool works_are_alike(const struct work *a, const struct work *b) {
  return a->func == b->func && a->algo == b->algo && a->proto == b->proto &&
         a->element_bytes == b->element_bytes && a->chunk_steps == b->chunk_steps &&
         a->slice_steps == b->slice_steps && a->recv_count == b->recv_count &&
         a->send_count == b->send_count && a->channel_index == b->channel_index && a->flags == b->flags &&
         a->role == b->role && a->conn_index == b->conn_index && a->count == b->count &&
         a->part_count == b->part_count && a->chunk_count == b->chunk_count &&
         a->last_chunk_count == b->last_chunk_count && a->rank_count == b->rank_count &&
         (a->algo != ALGO_PAT || a->pack == b->pack);
}

/* ---- numbers ---- */

static uint64_t mix(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * UINT64_C(0x9e3779b97f4a7c15);
  return hash ^ hash >> 29;
}

static uint64_t mix_double(uint64_t hash, double value) {
  uint64_t bits;
  memcpy(&bits, &value, sizeof bits);
  return mix(hash, bits);
}

static uint64_t work_hash(const struct work *work) {
  uint64_t hash = mix(work->func, work->algo * 256u + work->proto);
  hash = mix(hash, work->flags * 65536ull + work->role);
  hash = mix(hash, work->recv_count * 65536ull + work->send_count * 256ull + work->channel_index);
  hash = mix(mix(hash, work->part_count), work->chunk_count);
  hash = mix(hash, work->last_chunk_count);
  return work_is_placeless(work) ? hash : mix(hash, UINT64_C(1) << 40 | work->rank);
}

/* Links by their place on the sender's or the receiver's node. */
static uint64_t way_hash(const struct cluster *cluster, const struct walk_conn *conn) {
  const uint32_t inside = cluster->paths.link_count;
  struct cluster_route route;
  cluster_route_find(cluster, conn, &route);
  uint64_t hash = mix(route.kind, route.network);
  hash = mix_double(mix_double(hash, route.gbps), route.flight_us);
  for (uint32_t i = 0; i < route.link_count; i++)
    hash =
        mix(hash, route.links[i] % inside * 2ull + (route.links[i] / inside == conn->sender / cluster->gpus));
  return hash;
}

static uint64_t node_fixed(const struct folder *folder, uint32_t node) {
  const struct cluster *cluster = folder->cluster;
  const uint32_t inside = cluster->paths.link_count;
  uint64_t hash = 1;
  for (uint32_t i = 0; i < inside; i++)
    hash = mix_double(hash, cluster->link_gbps[(size_t)node * inside + i]);
  for (uint32_t rank = node * cluster->gpus; rank < (node + 1) * cluster->gpus; rank++) {
    hash = mix_double(hash, cluster->rank_slow[rank]);
    for (uint32_t lane = folder->rank_lane[rank]; lane < folder->rank_lane[rank + 1]; lane++)
      hash = mix(mix(hash, folder->net->lanes[lane].batch), work_hash(folder->net->lanes[lane].work));
  }
  return hash;
}

/* The link at the other end of a link's connection. */
static uint32_t link_other(const struct folder *folder, uint32_t link) {
  const uint32_t conn = folder->net->links[link];
  return folder->conn_from[conn] == link ? folder->conn_to[conn] : folder->conn_from[conn];
}

/* A link's place on its node: rank there, lane of that, link of that. */
struct place {
  uint32_t node, local, lane, link;
};

static struct place place_of(const struct folder *folder, uint32_t link) {
  const struct walk_lane *lane = &folder->net->lanes[folder->link_lane[link]];
  const uint32_t gpus = folder->cluster->gpus;
  const struct place place = {lane->rank / gpus, lane->rank % gpus,
                              folder->link_lane[link] - folder->rank_lane[lane->rank],
                              link - lane->first_link};
  return place;
}

static uint32_t link_first(const struct folder *folder, uint32_t node) {
  const uint32_t lane = folder->rank_lane[node * folder->cluster->gpus];
  return lane < folder->net->lane_count ? folder->net->lanes[lane].first_link : folder->net->link_count;
}

static uint64_t node_next(const struct folder *folder, uint32_t node) {
  uint64_t hash = mix(folder->fixed[node], folder->hash[node]);
  for (uint32_t link = link_first(folder, node); link < link_first(folder, node + 1); link++) {
    const struct place other = place_of(folder, link_other(folder, link));
    hash = mix(mix(hash, folder->hash[other.node]),
               other.local * 65536ull * 64 + other.lane * 64ull + other.link);
    hash = mix(hash, folder->way[folder->net->links[link]]);
  }
  return hash;
}

static int kind_order(const void *a, const void *b) {
  const struct kind *one = (const struct kind *)a, *two = (const struct kind *)b;
  if (one->hash != two->hash) return one->hash < two->hash ? -1 : 1;
  return one->node < two->node ? -1 : one->node > two->node;
}

/* Sorts nodes by number; how many kinds there are. The first of each kind stands for it. */
static uint32_t kinds_count(struct folder *folder) {
  const uint32_t nodes = folder->cluster->nodes;
  uint32_t count = 0, rep = 0;
  for (uint32_t node = 0; node < nodes; node++) folder->kinds[node] = (struct kind){folder->hash[node], node};
  qsort(folder->kinds, nodes, sizeof *folder->kinds, kind_order);
  for (uint32_t i = 0; i < nodes; i++) {
    const bool begins = i == 0 || folder->kinds[i].hash != folder->kinds[i - 1].hash;
    if (begins) rep = folder->kinds[i].node;
    folder->rep[folder->kinds[i].node] = rep;
    count += begins;
  }
  return count;
}

static uint32_t refine(struct folder *folder) {
  const uint32_t nodes = folder->cluster->nodes;
  for (uint32_t node = 0; node < nodes; node++)
    folder->hash[node] = folder->fixed[node] = node_fixed(folder, node);
  for (uint32_t count = kinds_count(folder), before = 0; count < nodes; count = kinds_count(folder)) {
    if (count == before) return count;
    before = count;
    for (uint32_t node = 0; node < nodes; node++) folder->next[node] = node_next(folder, node);
    memcpy(folder->hash, folder->next, nodes * sizeof *folder->hash);
  }
  return nodes;
}

/* ---- the proof ---- */

static bool links_agree(const struct folder *folder, uint32_t link, uint32_t rep_link) {
  const struct place one = place_of(folder, link_other(folder, link));
  const struct place two = place_of(folder, link_other(folder, rep_link));
  const uint64_t *way = folder->way;
  return folder->rep[one.node] == folder->rep[two.node] && one.local == two.local && one.lane == two.lane &&
         one.link == two.link && way[folder->net->links[link]] == way[folder->net->links[rep_link]];
}

static bool lanes_agree(const struct folder *folder, uint32_t lane, uint32_t rep_lane) {
  const struct walk_lane *one = &folder->net->lanes[lane], *two = &folder->net->lanes[rep_lane];
  if (!works_are_alike(one->work, two->work) || !work_is_placeless(one->work) || one->batch != two->batch)
    return false;
  for (uint32_t i = 0; i < (uint32_t)one->work->recv_count + one->work->send_count; i++)
    if (!links_agree(folder, one->first_link + i, two->first_link + i)) return false;
  return true;
}

static bool nodes_agree(const struct folder *folder, uint32_t node, uint32_t rep) {
  const struct cluster *cluster = folder->cluster;
  const size_t inside = cluster->paths.link_count;
  if (memcmp(&cluster->link_gbps[node * inside], &cluster->link_gbps[rep * inside], inside * sizeof(double)))
    return false;
  for (uint32_t local = 0; local < cluster->gpus; local++) {
    const uint32_t rank = node * cluster->gpus + local, rep_rank = rep * cluster->gpus + local;
    const uint32_t lanes = folder->rank_lane[rank + 1] - folder->rank_lane[rank];
    if (cluster->rank_slow[rank] != cluster->rank_slow[rep_rank] ||
        lanes != folder->rank_lane[rep_rank + 1] - folder->rank_lane[rep_rank])
      return false;
    for (uint32_t i = 0; i < lanes; i++)
      if (!lanes_agree(folder, folder->rank_lane[rank] + i, folder->rank_lane[rep_rank] + i)) return false;
  }
  return true;
}

static bool all_agree(const struct folder *folder) {
  for (uint32_t node = 0; node < folder->cluster->nodes; node++)
    if (folder->rep[node] != node && !nodes_agree(folder, node, folder->rep[node])) return false;
  return true;
}

/* ---- making ---- */

/* False where a connection lacks an end, or has several lanes in turn. */
static bool ends_find(struct folder *folder) {
  const struct walk_net *net = folder->net;
  for (uint32_t conn = 0; conn < net->conn_count; conn++) {
    folder->conn_from[conn] = folder->conn_to[conn] = WALK_NONE;
    folder->way[conn] = way_hash(folder->cluster, &net->conns[conn]);
  }
  for (uint32_t i = 0, rank = 0; i <= net->lane_count; i++)
    while (rank <= net->rank_count && (i == net->lane_count || rank <= net->lanes[i].rank))
      folder->rank_lane[rank++] = i;
  for (uint32_t i = 0; i < net->lane_count; i++) {
    const struct walk_lane *lane = &net->lanes[i];
    for (uint32_t k = 0; k < (uint32_t)lane->work->recv_count + lane->work->send_count; k++) {
      const uint32_t link = lane->first_link + k;
      uint32_t *end = k < lane->work->recv_count ? folder->conn_to : folder->conn_from;
      if (end[net->links[link]] != WALK_NONE) return false;
      end[net->links[link]] = link;
      folder->link_lane[link] = i;
    }
  }
  for (uint32_t conn = 0; conn < net->conn_count; conn++)
    if (folder->conn_from[conn] == WALK_NONE || folder->conn_to[conn] == WALK_NONE) return false;
  return true;
}

static void *numbers(size_t count, size_t bytes) { return os_alloc((count + 1) * bytes); }

static bool folder_make(struct folder *folder, const struct cluster *cluster, const struct walk_net *net) {
  folder->cluster = cluster;
  folder->net = net;
  folder->rank_lane = (uint32_t *)numbers(net->rank_count, sizeof(uint32_t));
  folder->link_lane = (uint32_t *)numbers(net->link_count, sizeof(uint32_t));
  folder->conn_from = (uint32_t *)numbers(net->conn_count, sizeof(uint32_t));
  folder->conn_to = (uint32_t *)numbers(net->conn_count, sizeof(uint32_t));
  folder->way = (uint64_t *)numbers(net->conn_count, sizeof(uint64_t));
  folder->fixed = (uint64_t *)numbers(cluster->nodes, sizeof(uint64_t));
  folder->hash = (uint64_t *)numbers(cluster->nodes, sizeof(uint64_t));
  folder->next = (uint64_t *)numbers(cluster->nodes, sizeof(uint64_t));
  folder->kinds = (struct kind *)numbers(cluster->nodes, sizeof(struct kind));
  folder->rep = (uint32_t *)numbers(cluster->nodes, sizeof(uint32_t));
  return folder->rank_lane && folder->link_lane && folder->conn_from && folder->conn_to && folder->way &&
         folder->fixed && folder->hash && folder->next && folder->kinds && folder->rep;
}

static void folder_free(struct folder *folder) {
  os_free(folder->rank_lane);
  os_free(folder->link_lane);
  os_free(folder->conn_from);
  os_free(folder->conn_to);
  os_free(folder->way);
  os_free(folder->fixed);
  os_free(folder->hash);
  os_free(folder->next);
  os_free(folder->kinds);
  os_free(folder->rep);
}

static void lane_add(struct folder *folder, struct walk_net *net, uint32_t whole_lane, uint32_t *made) {
  const struct walk_lane *from = &folder->net->lanes[whole_lane];
  struct walk_lane *lane = &net->lanes[net->lane_count++];
  *lane = *from;
  lane->first_link = net->link_count;
  lane->block = net->block_count - 1;
  net->blocks[lane->block].lane_count += 1;
  for (uint32_t k = 0; k < (uint32_t)from->work->recv_count + from->work->send_count; k++) {
    net->links[net->link_count++] = from->first_link + k; /* for now; links_bind() makes it a connection */
    if (k < from->work->recv_count) continue;
    made[from->first_link + k] = net->conn_count;
    net->conns[net->conn_count++] = folder->net->conns[folder->net->links[from->first_link + k]];
  }
}

/* A link that receives is the connection of its sender's representative. */
static void links_bind(const struct folder *folder, struct walk_net *net, const uint32_t *made) {
  for (uint32_t i = 0; i < net->link_count; i++) {
    const uint32_t link = net->links[i], from = folder->conn_from[folder->net->links[link]];
    const struct place place = place_of(folder, from);
    const uint32_t rank = folder->rep[place.node] * folder->cluster->gpus + place.local;
    net->links[i] = made[folder->net->lanes[folder->rank_lane[rank] + place.lane].first_link + place.link];
  }
}

static bool net_fold(struct folder *folder, struct walk_net *net) {
  const struct walk_net *whole = folder->net;
  uint32_t *made = (uint32_t *)numbers(whole->link_count, sizeof(uint32_t));
  net->plans = whole->plans;
  net->rank_count = whole->rank_count;
  net->blocks = (struct walk_block *)numbers(whole->block_count, sizeof *net->blocks);
  net->lanes = (struct walk_lane *)numbers(whole->lane_count, sizeof *net->lanes);
  net->conns = (struct walk_conn *)numbers(whole->conn_count, sizeof *net->conns);
  net->links = (uint32_t *)numbers(whole->link_count, sizeof *net->links);
  const bool whole_made = made && net->blocks && net->lanes && net->conns && net->links;
  for (uint32_t i = 0; whole_made && i < whole->block_count; i++) {
    const struct walk_block *block = &whole->blocks[i];
    const uint32_t node = block->rank / folder->cluster->gpus;
    if (folder->rep[node] != node) continue;
    struct walk_block *added = &net->blocks[net->block_count++];
    *added = *block;
    added->first_lane = net->lane_count;
    added->lane_count = 0;
    for (uint32_t k = 0; k < block->lane_count; k++) lane_add(folder, net, block->first_lane + k, made);
  }
  if (whole_made) links_bind(folder, net, made);
  os_free(made);
  return whole_made;
}

bool fold_make(const struct cluster *cluster, const struct walk_net *whole, struct fold *fold) {
  struct folder folder;
  bool folded = false;
  memset(fold, 0, sizeof *fold);
  memset(&folder, 0, sizeof folder);
  if (cluster->nodes < 2 || cluster->fabric.oversubscription > 1) return false;
  if (folder_make(&folder, cluster, whole) && ends_find(&folder)) {
    fold->kinds = refine(&folder);
    folded = fold->kinds < cluster->nodes && all_agree(&folder) && net_fold(&folder, &fold->net);
    fold->node_rep = folder.rep;
    folder.rep = NULL;
  }
  folder_free(&folder);
  if (!folded) fold_free(fold);
  return folded;
}

void fold_free(struct fold *fold) {
  os_free(fold->node_rep);
  walk_net_free(&fold->net);
  memset(fold, 0, sizeof *fold);
}
