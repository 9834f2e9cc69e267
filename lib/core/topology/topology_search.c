/* topology_search.c: for each candidate bandwidth, from the highest, and for each relaxation of the allowed
 * path types, chains are built GPU by GPU over the remaining bandwidth of the links, with backtracking. The
 * result with the most total bandwidth wins; worse path types must bring a tenth more. */
#include "core/topology/topology_search.h"

#include <string.h>

#include "base/log.h"
#include "base/os.h"

#define STEPS_ALL (1u << 19)     /* limit of the whole search */
#define STEPS_ATTEMPT (1u << 14) /* limit of one attempt */
#define STEPS_SAME (1u << 8)     /* the same, if all channels use one chain */
#define SLACK_GBPS 1e-6          /* sums of doubles */
#define GOOD_ENOUGH 0.9          /* of the maximum bandwidth of the GPUs or NICs */
#define WORSE_MUST_BRING 1.1

static const double intra_speeds[] = {40, 30, 20, 18, 15, 12, 10, 9, 7, 6, 5, 4, 3, 0};
static const double inter_speeds[] = {48, 30, 28, 24, 20, 18,  15,  12,  10,  9,
                                      7,  6,  5,  4,  3,  2.4, 1.2, .24, .12, 0};
static const double intra_speeds_sm90[] = {60, 50, 40, 30, 24, 20, 15, 12, 11, 6, 3, 0};
static const double inter_speeds_sm90[] = {48, 45, 42, 40, 30,  24,  22,  20,  17.5,
                                           15, 12, 6,  3,  2.4, 1.2, .24, .12, 0};
static const double intra_speeds_sm100[] = {90, 80, 70, 60, 50, 45, 40, 30, 24, 20, 19, 18, 12, 6, 3, 0};
static const double inter_speeds_sm100[] = {96,   86, 80, 48, 45.1, 42,  40,  30,  24,  22, 20,
                                            17.5, 15, 12, 6,  3,    2.4, 1.2, .24, .12, 0};

const double *search_speeds(uint32_t capability, bool network) {
  if (capability >= 100) return network ? inter_speeds_sm100 : intra_speeds_sm100;
  if (capability >= 90) return network ? inter_speeds_sm90 : intra_speeds_sm90;
  return network ? inter_speeds : intra_speeds;
}

struct search {
  const struct search_request *request;
  const struct paths *paths;
  /* One attempt. */
  double gbps;
  enum graph_path intra_most, inter_most;
  uint32_t intra_types; /* set of the path types between its GPUs */
  uint32_t cross_nic;
  bool same;
  uint32_t steps_left, steps_all_left;
  double *left;                         /* by link: GB/s not used by any channel */
  bool used[TOPOLOGY_GPUS_MAX];         /* by local rank: in the channel being built */
  bool last_allowed[TOPOLOGY_GPUS_MAX]; /* by local rank: may be its last */
  uint32_t last_left;                   /* number of these not used yet */
  struct search_result now, found, best;
};

static bool is_tree(const struct search *search) { return search->now.pattern != SEARCH_RING; }
static bool has_network(const struct search *search) { return search->request->node_count > 1; }

static const struct paths_route *route_inside(const struct search *search, uint32_t from, uint32_t to) {
  const uint32_t *gpus = search->request->gpus;
  return &search->paths->gpu_gpu[gpus[from] * search->paths->gpu_count + gpus[to]];
}

static const struct paths_route *route_nic(const struct search *search, uint32_t place, uint32_t net,
                                           bool out) {
  const uint32_t index = search->request->gpus[place] * search->paths->net_count + net;
  return out ? &search->paths->gpu_net[index] : &search->paths->net_gpu[index];
}

/* ---- Taking links and giving them back ---- */

static void links_give(struct search *search, const struct paths_route *route, uint32_t hops, double gbps) {
  for (uint32_t i = 0; i < hops; i++) search->left[route->hops[i]] += gbps * route->cost;
  search->now.hop_count -= hops;
}

static bool links_take(struct search *search, const struct paths_route *route, double gbps) {
  for (uint32_t i = 0; i < route->hop_count; i++) {
    double *left = &search->left[route->hops[i]];
    search->now.hop_count += 1;
    *left -= gbps * route->cost;
    if (*left >= -SLACK_GBPS) continue;
    links_give(search, route, i + 1, gbps);
    return false;
  }
  return true;
}

/* Data of a ring uses one direction; of a tree up and then down, half of the bandwidth each. */
static bool edge_take(struct search *search, uint32_t from, uint32_t to) {
  const struct paths_route *there = route_inside(search, from, to), *back = route_inside(search, to, from);
  if (there->type > search->intra_most) return false;
  if (!is_tree(search)) return links_take(search, there, search->gbps);
  if (back->type > search->intra_most || !links_take(search, there, search->gbps / 2)) return false;
  if (links_take(search, back, search->gbps / 2)) return true;
  links_give(search, there, there->hop_count, search->gbps / 2);
  return false;
}

static void edge_give(struct search *search, uint32_t from, uint32_t to) {
  const struct paths_route *there = route_inside(search, from, to), *back = route_inside(search, to, from);
  const double gbps = is_tree(search) ? search->gbps / 2 : search->gbps;
  links_give(search, there, there->hop_count, gbps);
  if (is_tree(search)) links_give(search, back, back->hop_count, gbps);
}

/* Share of a tree's network traffic at the node's first or second rank: on average over a pair of trees a
 * node has one parent and one child, with half of the bandwidth each. */
static double nic_share(const struct search *search, bool second) {
  if (search->now.pattern == SEARCH_BALANCED_TREE) return second ? .25 : .75;
  if (search->now.pattern == SEARCH_SPLIT_TREE) return .5;
  return second ? 0 : 1;
}

static bool nic_take(struct search *search, uint32_t place, uint32_t net, bool out, double share) {
  const struct paths_route *route = route_nic(search, place, net, out);
  return route->type <= search->inter_most && links_take(search, route, search->gbps * share);
}

static void nic_give(struct search *search, uint32_t place, uint32_t net, bool out, double share) {
  const struct paths_route *route = route_nic(search, place, net, out);
  links_give(search, route, route->hop_count, search->gbps * share);
}

static bool nic_take_both(struct search *search, uint32_t place, uint32_t net, double share) {
  if (!nic_take(search, place, net, false, share)) return false;
  if (nic_take(search, place, net, true, share)) return true;
  nic_give(search, place, net, false, share);
  return false;
}

static void nic_give_both(struct search *search, uint32_t place, uint32_t net, double share) {
  nic_give(search, place, net, false, share);
  nic_give(search, place, net, true, share);
}

/* ---- Building chains: each function calls the next one and undoes its part. True: the search is done ----
 */

static bool channel_begin(struct search *search);
static bool chain_extend(struct search *search, uint32_t length);

/* A ring that leaves by its pair's NIC counts only if the pair is complete. */
static void channels_note(struct search *search) {
  const struct search_result *now = &search->now;
  struct search_result *found = &search->found;
  if (search->cross_nic == 2 && has_network(search) && now->channel_count % 2 != 0) return;
  if (now->channel_count > found->channel_count ||
      (now->channel_count == found->channel_count && now->hop_count < found->hop_count))
    *found = *now;
}

static bool channel_end(struct search *search) {
  bool used[TOPOLOGY_GPUS_MAX], last_allowed[TOPOLOGY_GPUS_MAX];
  const uint32_t last_left = search->last_left;
  memcpy(used, search->used, sizeof used);
  memcpy(last_allowed, search->last_allowed, sizeof last_allowed);
  search->now.channel_count += 1;
  channels_note(search);
  const bool enough =
      search->same || search->now.channel_count == search->request->channels_most || channel_begin(search);
  search->now.channel_count -= 1;
  search->last_left = last_left;
  memcpy(search->used, used, sizeof used);
  memcpy(search->last_allowed, last_allowed, sizeof last_allowed);
  return enough;
}

/* The NIC by which channel number channel_count leaves, TOPOLOGY_NONE if it is free to choose. */
static uint32_t ring_nic_out(const struct search *search) {
  const struct search_result *now = &search->now;
  const uint32_t channel = now->channel_count;
  if (search->cross_nic == 0) return now->net[channel][0];
  return search->cross_nic == 2 && channel % 2 != 0 ? now->net[channel - 1][0] : TOPOLOGY_NONE;
}

static bool ring_leave(struct search *search, uint32_t last) {
  uint32_t *net = search->now.net[search->now.channel_count];
  const uint32_t fixed = ring_nic_out(search);
  for (uint32_t turn = 0; turn < search->paths->net_count; turn++) {
    const uint32_t nic = paths_net_near(search->paths, search->request->gpus[last], turn);
    if (fixed != TOPOLOGY_NONE && nic != fixed) continue;
    if (search->cross_nic == 2 && nic == net[0]) continue;
    if (!nic_take(search, last, nic, true, 1)) continue;
    net[1] = nic;
    if (channel_end(search)) return true;
    nic_give(search, last, nic, true, 1);
  }
  return false;
}

static bool ring_close(struct search *search) {
  const uint32_t *chain = search->now.chain[search->now.channel_count];
  const uint32_t first = chain[0], last = chain[search->request->gpu_count - 1];
  if (has_network(search)) return ring_leave(search, last);
  if (search->request->gpu_count == 1) return channel_end(search);
  if (!edge_take(search, last, first)) return false;
  if (channel_end(search)) return true;
  edge_give(search, last, first);
  return false;
}

/* The second rank of a tree has its own NIC, the nearest with bandwidth left. */
static bool tree_second(struct search *search, uint32_t place) {
  uint32_t *net = search->now.net[search->now.channel_count];
  const double share = nic_share(search, true);
  for (uint32_t turn = 0; turn < search->paths->net_count; turn++) {
    const uint32_t nic = paths_net_near(search->paths, search->request->gpus[place], turn);
    if (!nic_take_both(search, place, nic, share)) continue;
    net[1] = nic;
    if (chain_extend(search, 2)) return true;
    nic_give_both(search, place, nic, share);
  }
  return false;
}

static bool chain_go_on(struct search *search, uint32_t length) {
  const uint32_t *chain = search->now.chain[search->now.channel_count];
  if (length == 2 && is_tree(search) && has_network(search) && nic_share(search, true) > 0)
    return tree_second(search, chain[1]);
  return chain_extend(search, length);
}

/* Adds one GPU: the next ones by number first, and nearer ones before others. */
static bool chain_extend(struct search *search, uint32_t length) {
  uint32_t *chain = search->now.chain[search->now.channel_count];
  const uint32_t count = search->request->gpu_count, previous = chain[length - 1];
  if (length == count) return is_tree(search) ? channel_end(search) : ring_close(search);
  for (uint32_t type = GRAPH_LOC; type <= (uint32_t)search->intra_most; type++) {
    for (uint32_t step = (search->intra_types >> type & 1) != 0 ? 1 : count; step < count; step++) {
      const uint32_t place = (previous + step) % count;
      if (search->used[place] || route_inside(search, previous, place)->type != type) continue;
      const bool may_end = search->last_allowed[place];
      if (length + 1 < count && may_end && search->last_left == 1) continue;
      if (length + 1 == count && !may_end) continue;
      if (search->steps_left == 0) return true;
      search->steps_left -= 1;
      if (!edge_take(search, previous, place)) continue;
      chain[length] = place;
      search->used[place] = true;
      search->last_left -= may_end;
      if (chain_go_on(search, length + 1)) return true;
      search->last_left += may_end;
      search->used[place] = false;
      edge_give(search, previous, place);
    }
  }
  return false;
}

/* The GPUs that may be a ring's end: those near the NIC that it must leave by. */
static void chain_bound_end(struct search *search) {
  const uint32_t nic = is_tree(search) || !has_network(search) ? TOPOLOGY_NONE : ring_nic_out(search);
  search->last_left = 0;
  for (uint32_t place = 0; place < search->request->gpu_count; place++) {
    search->last_allowed[place] =
        nic == TOPOLOGY_NONE || route_nic(search, place, nic, true)->type <= search->inter_most;
    search->last_left += search->last_allowed[place];
  }
}

static bool chain_begin(struct search *search, uint32_t place) {
  memset(search->used, 0, sizeof search->used);
  chain_bound_end(search);
  search->now.chain[search->now.channel_count][0] = place;
  search->used[place] = true;
  if (search->last_allowed[place]) {
    if (search->last_left == 1 && search->request->gpu_count > 1) return false;
    search->last_left -= 1;
  }
  return chain_extend(search, 1);
}

/* Enters by this NIC, into the nearest GPUs first. */
static bool channel_begin_at(struct search *search, uint32_t nic) {
  const uint32_t channel = search->now.channel_count, count = search->request->gpu_count;
  const bool tree = is_tree(search);
  const double share = tree ? nic_share(search, false) : 1;
  const uint32_t port = route_nic(search, 0, nic, false)->hops[0];
  if (search->left[port] < search->gbps * share - SLACK_GBPS) return false;
  search->now.net[channel][0] = search->now.net[channel][1] = nic;
  for (uint32_t type = GRAPH_LOC; type <= (uint32_t)search->inter_most; type++) {
    for (uint32_t turn = 0; turn < count; turn++) {
      const uint32_t place = (channel + turn) % count;
      if (route_nic(search, place, nic, false)->type != type) continue;
      if (search->steps_left == 0) return true;
      search->steps_left -= 1;
      const bool taken =
          tree ? nic_take_both(search, place, nic, share) : nic_take(search, place, nic, false, share);
      if (!taken) continue;
      if (chain_begin(search, place)) return true;
      if (tree) nic_give_both(search, place, nic, share);
      else nic_give(search, place, nic, false, share);
    }
  }
  return false;
}

/* On one node a ring has no first GPU, and a tree's first differs from channel to channel. */
static bool channel_begin_inside(struct search *search) {
  const uint32_t channel = search->now.channel_count, count = search->request->gpu_count;
  search->now.net[channel][0] = search->now.net[channel][1] = TOPOLOGY_NONE;
  for (uint32_t turn = 0; turn < (is_tree(search) ? count : 1); turn++) {
    const uint32_t place = is_tree(search) ? (channel + turn) % count : 0;
    if (chain_begin(search, place)) return true;
  }
  return false;
}

static bool channel_begin(struct search *search) {
  const uint32_t channel = search->now.channel_count, nets = search->paths->net_count;
  if (!has_network(search)) return channel_begin_inside(search);
  if (search->cross_nic == 2 && channel % 2 != 0)
    return channel_begin_at(search, search->now.net[channel - 1][1]);
  for (uint32_t turn = 0; turn < nets; turn++)
    if (channel_begin_at(search, (channel + turn) % nets)) return true;
  return false;
}

/* ---- Attempts ---- */

static enum graph_path worse(enum graph_path a, enum graph_path b) { return a > b ? a : b; }

static void result_measure(const struct search *search, struct search_result *result) {
  const uint32_t count = search->request->gpu_count;
  const bool ring = result->pattern == SEARCH_RING, network = has_network(search);
  result->intra_path = result->inter_path = GRAPH_LOC;
  for (uint32_t channel = 0; channel < result->channel_count; channel++) {
    const uint32_t *chain = result->chain[channel], *net = result->net[channel];
    for (uint32_t i = 1; i < count; i++)
      result->intra_path = worse(result->intra_path, route_inside(search, chain[i - 1], chain[i])->type);
    if (!network && ring && count > 1)
      result->intra_path = worse(result->intra_path, route_inside(search, chain[count - 1], chain[0])->type);
    if (!network) continue;
    const uint32_t second = ring ? chain[count - 1] : chain[result->pattern == SEARCH_TREE ? 0 : 1];
    result->inter_path = worse(result->inter_path, route_nic(search, chain[0], net[0], false)->type);
    result->inter_path = worse(result->inter_path, route_nic(search, second, net[1], true)->type);
  }
}

/* Repeats the one chain found as often as there is bandwidth for it. */
static void channels_repeat(struct search *search) {
  struct search_result *found = &search->found;
  double most = search->request->channels_most;
  for (uint32_t link = 0; link < search->paths->link_count; link++) {
    const double once = search->paths->link_gbps[link] - search->left[link];
    const double capacity = once > SLACK_GBPS ? (search->paths->link_gbps[link] + SLACK_GBPS) / once : most;
    if (capacity < most) most = capacity;
  }
  const uint32_t hops = found->hop_count;
  for (found->channel_count = 1; found->channel_count + 1 <= most; found->channel_count++) {
    memcpy(found->chain[found->channel_count], found->chain[0], sizeof found->chain[0]);
    memcpy(found->net[found->channel_count], found->net[0], sizeof found->net[0]);
    found->hop_count += hops;
  }
}

static double score(const struct search_result *result) { return result->channel_count * result->gbps; }

static bool is_worth_more(const struct search_result *fresh, const struct search_result *best) {
  if (fresh->channel_count == 0) return false;
  const bool worse_kind = fresh->intra_path > best->intra_path || fresh->inter_path > best->inter_path ||
                          fresh->cross_nic > best->cross_nic;
  if (best->channel_count == 0) return true;
  return score(fresh) > score(best) * (worse_kind ? WORSE_MUST_BRING : 1) + SLACK_GBPS;
}

static void attempt(struct search *search) {
  const uint32_t most = search->same ? STEPS_SAME : STEPS_ATTEMPT;
  search->steps_left = search->steps_all_left < most ? search->steps_all_left : most;
  const uint32_t steps_begun = search->steps_left;
  search->now.channel_count = search->found.channel_count = search->now.hop_count = 0;
  search->now.gbps = search->gbps;
  search->now.same_channels = search->same;
  search->now.cross_nic = has_network(search) ? search->cross_nic : 0;
  memcpy(search->left, search->paths->link_gbps, search->paths->link_count * sizeof *search->left);
  channel_begin(search);
  if (search->same && search->found.channel_count > 0) channels_repeat(search);
  search->steps_all_left -= steps_begun - search->steps_left;
  result_measure(search, &search->found);
  if (is_worth_more(&search->found, &search->best)) search->best = search->found;
}

static double gpu_slot_gbps(const struct paths *paths, uint32_t gpu) {
  const struct topology *topology = paths->topology;
  return topology_link_gbps(topology, topology->devices[topology->gpus[gpu]].parent);
}

/* Maximum bandwidth of the slowest GPU; on several nodes, of NICs and GPUs together. */
static double node_gbps(const struct search *search) {
  const struct paths *paths = search->paths;
  double slowest = 0, slots = 0, nics = 0;
  for (uint32_t net = 0; net < paths->net_count; net++)
    nics += topology_net_gbps(&paths->topology->devices[paths->topology->nets[net]]);
  for (uint32_t place = 0; place < search->request->gpu_count; place++) {
    const uint32_t gpu = search->request->gpus[place];
    const double slot = gpu_slot_gbps(paths, gpu), links = paths_nvlink_gbps(paths, gpu);
    slots += slot;
    if (place == 0 || (links > slot ? links : slot) < slowest) slowest = links > slot ? links : slot;
  }
  if (has_network(search)) return nics < slots ? nics : slots;
  return slowest;
}

static bool is_done(const struct search *search, double most) {
  return search->steps_all_left == 0 || score(&search->best) >= GOOD_ENOUGH * most;
}

/* A path type that no path has is not tried. */
static uint32_t types_present(const struct search *search, bool nics) {
  const uint32_t count = search->request->gpu_count;
  uint32_t types = 0;
  for (uint32_t a = 0; a < count && !nics; a++)
    for (uint32_t b = 0; b < count; b++)
      if (a != b || count == 1) types |= 1u << route_inside(search, a, b)->type;
  for (uint32_t a = 0; a < count && nics; a++)
    for (uint32_t net = 0; net < search->paths->net_count; net++)
      types |= 1u << route_nic(search, a, net, true)->type | 1u << route_nic(search, a, net, false)->type;
  return nics && !has_network(search) ? 1u << GRAPH_LOC : types;
}

/* One bandwidth and one set of path types: first all channels alike, then each its own; trees from the
 * requested pattern to the simplest. */
static void attempt_patterns(struct search *search, double most) {
  const uint32_t wanted = search->request->pattern;
  for (uint32_t pattern = wanted; pattern <= (wanted == SEARCH_RING ? SEARCH_RING : SEARCH_TREE); pattern++) {
    if (pattern != SEARCH_RING && (search->request->gpu_count == 1 || !has_network(search)))
      pattern = SEARCH_TREE;
    if (pattern == SEARCH_SPLIT_TREE && wanted != SEARCH_SPLIT_TREE) continue;
    search->now.pattern = (enum search_pattern)pattern;
    for (uint32_t same = 2; same-- > 0 && !is_done(search, most);) {
      search->same = same != 0;
      if (same == 0 || search->cross_nic != 2) attempt(search);
    }
  }
}

static void attempt_types(struct search *search, double most) {
  const uint32_t intra = search->intra_types, inter = types_present(search, true);
  for (uint32_t outer = GRAPH_LOC; outer < GRAPH_DIS; outer++) {
    for (uint32_t inner = GRAPH_LOC; inner < GRAPH_DIS; inner++) {
      if (((inter >> outer) & 1) == 0 || ((intra >> inner) & 1) == 0 || is_done(search, most)) continue;
      search->intra_most = (enum graph_path)inner;
      search->inter_most = (enum graph_path)outer;
      attempt_patterns(search, most);
    }
  }
}

/* Whether rings may leave by other NICs than they entered by, at this step of the relaxation; pairs need as
 * many odd nodes as even ones. */
static bool crossing_allowed(const struct search *search, uint32_t cross_nic) {
  const struct search_request *request = search->request;
  if (cross_nic == 0) return true;
  if (request->pattern != SEARCH_RING || !has_network(search) || search->paths->net_count < 2) return false;
  return cross_nic == request->cross_nic && (cross_nic != 2 || request->node_count % 2 == 0);
}

/* Maximum total bandwidth of channels of this bandwidth: a NIC, or on one node a GPU, has whole channels
 * only. */
static double speed_most(const struct search *search, double slowest, double gbps) {
  const struct paths *paths = search->paths;
  double most = 0;
  if (!has_network(search)) return (uint32_t)(slowest / gbps + SLACK_GBPS) * gbps;
  for (uint32_t net = 0; net < paths->net_count; net++)
    most += (uint32_t)(topology_net_gbps(&paths->topology->devices[paths->topology->nets[net]]) / gbps +
                       SLACK_GBPS) *
            gbps;
  return most;
}

static void attempt_speeds(struct search *search, uint32_t capability) {
  const double most = node_gbps(search);
  const bool ring = search->request->pattern == SEARCH_RING;
  for (const double *speed = search_speeds(capability, has_network(search)); *speed > 0; speed++) {
    for (uint32_t cross_nic = 0; cross_nic <= 2; cross_nic++) {
      if (!crossing_allowed(search, cross_nic) || is_done(search, most)) continue;
      if (ring && speed_most(search, most, *speed) <= score(&search->best)) continue;
      search->gbps = *speed;
      search->cross_nic = cross_nic;
      attempt_types(search, most);
    }
  }
}

/* Doubles the channels at half the bandwidth to keep more blocks busy, unless there are many already. */
static void result_double(struct search_result *result, uint32_t capability, uint32_t channels_most) {
  const uint32_t count = result->channel_count;
  if (result->gbps < 25 || count == 0 || 2 * count > channels_most) return;
  if (capability > 80 && result->gbps < 50 && count > 4) return;
  memcpy(result->chain[count], result->chain[0], count * sizeof result->chain[0]);
  memcpy(result->net[count], result->net[0], count * sizeof result->net[0]);
  result->channel_count *= 2;
  result->gbps /= 2;
  result->hop_count *= 2;
}

ncclResult_t search_run(const struct search_request *request, struct search_result *result) {
  const struct paths *paths = request->paths;
  struct search *search = (struct search *)os_alloc(sizeof *search);
  double *left = (double *)os_alloc(paths->link_count * sizeof *left);
  if (search == NULL || left == NULL) {
    os_free(search);
    os_free(left);
    return log_no_memory("searching rings for %u GPUs", request->gpu_count);
  }
  uint32_t capability = 0;
  for (uint32_t place = 0; place < request->gpu_count; place++) {
    const uint32_t own = paths->topology->devices[paths->topology->gpus[request->gpus[place]]].capability;
    if (place == 0 || own < capability) capability = own;
  }
  search->request = request;
  search->paths = paths;
  search->left = left;
  search->steps_all_left = STEPS_ALL;
  search->intra_types = types_present(search, false);
  attempt_speeds(search, capability);
  result_double(&search->best, capability, request->channels_most);
  *result = search->best;
  os_free(left);
  os_free(search);
  return ncclSuccess;
}
