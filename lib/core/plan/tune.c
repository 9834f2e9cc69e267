/* tune.c: the arithmetic of the cost model, and the choices. Bandwidths are in GB/s (1e9 bytes), latencies in
 * microseconds. In order: measured figures, NCCL's formulas, the choices that use both. */
#include "core/plan/tune.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "core/plan/names.h"
#include "core/plan/rules.h"
#include "core/plan/tune_file.h"
#include "core/plan/tune_table.h"
#include "core/plugins/tuner.h"
#include "schedule/chunk.h"

size_t tune_bytes(uint8_t func, size_t count, uint32_t element_bytes, uint32_t rank_count) {
  const bool all = func == FUNC_ALL_GATHER || func == FUNC_REDUCE_SCATTER;
  return count * element_bytes * (all ? rank_count : 1);
}

/* A question to the model, with what it needs of the graph. */
struct query {
  const struct graph *graph;
  const struct graph_speed *speed;
  const struct tune_limit *limit;
  uint8_t func, algo, proto;
  uint32_t ranks, nodes, node_ranks, nodes_class, channel_count;
  double bytes;
  bool quick;   /* plan_limits.quick_protos has the protocol */
  bool ordered; /* sums are in rank order */
  bool apart;   /* rules_root_apart() */
  bool proxied; /* some of its links are behind a network and use proxies */
  bool on_host; /* plan_limits.on_host */
};

static bool func_is_halves(uint8_t func) { return func == FUNC_ALL_GATHER || func == FUNC_REDUCE_SCATTER; }
static bool func_is_chain(uint8_t func) { return func == FUNC_BROADCAST || func == FUNC_REDUCE; }

static bool algo_is_direct(uint8_t algo) { return algo == ALGO_DIRECT || algo == ALGO_TWO_SHOT; }

static double least(double a, double b) { return a < b ? a : b; }
static double most(double a, double b) { return a > b ? a : b; }

/* Sequential hops of a ring. */
static uint32_t ring_hops(uint8_t func, uint32_t rank_count) {
  switch (func) {
    case FUNC_ALL_REDUCE: return 2 * (rank_count - 1);
    case FUNC_ALL_GATHER:
    case FUNC_REDUCE_SCATTER: return rank_count - 1;
    case FUNC_SEND:
    case FUNC_RECV: return 1;
    default: return rank_count;
  }
}

/* ---- measured: one node of Hopper GPUs over NVLink ---- */

/* A graph without speeds counts as measured. */
static bool graph_is_measured(const struct graph *graph) {
  if (graph->ring_speed.intra_gbps <= 0) return true;
  return graph->node_count == 1 && graph->capability_min >= 90 && graph->capability_max < 100 &&
         graph->ring_speed.intra_path <= GRAPH_NVL;
}

static bool ll_is_proxied(const struct query *q) { return q->proxied && q->nodes > 1; }

static double measured_ring_gbps(const struct query *q) {
  const struct tune_measured_ring *ring = &tune_measured_ring;
  const double all = least(ring->channel_gbps * q->channel_count, ring->all_gbps);
  double gbps = all;
  if (q->proto == PROTO_LL) gbps = least(all / 2, ring->ll_all_gbps);
  if (q->proto == PROTO_LL && ll_is_proxied(q)) gbps = least(gbps, tune_proxied_ll_gbps);
  if (q->proto == PROTO_LL128)
    gbps = least(ring->ll128_share * all, ring->ll128_channel_gbps * q->channel_count);
  if (q->ranks == 2) gbps = least(gbps, tune_measured_pair.ring_channel_gbps[q->proto] * q->channel_count);
  if (q->ranks != 2 || q->func != FUNC_REDUCE_SCATTER) return gbps;
  return least(gbps, tune_measured_pair.ring_gbps[q->proto]);
}

/* Of one hop. Few channels carry less, as in a ring. */
static double pair_chain_us(const struct query *q) {
  const struct tune_measured_pair *pair = &tune_measured_pair;
  const struct tune_measured_ring *ring = &tune_measured_ring;
  const double share = least(1, ring->channel_gbps * q->channel_count / ring->all_gbps);
  return most(pair->chain_least_us[q->proto],
              pair->chain_base_us[q->proto] + q->bytes / (1000.0 * pair->chain_gbps[q->proto] * share));
}

static double measured_ring_us(const struct query *q) {
  if (q->ranks == 2 && func_is_chain(q->func)) return pair_chain_us(q);
  const struct tune_measured_ring *ring = &tune_measured_ring;
  const uint32_t hops = q->ranks > 1 ? ring_hops(q->func, q->ranks) : 1;
  const bool chain = q->func != FUNC_ALL_REDUCE && !func_is_halves(q->func);
  const double to_algorithm = chain || q->ranks == 1 ? 1.0 : (double)q->ranks / hops;
  const double gbps = measured_ring_gbps(q) * to_algorithm;
  return ring->base_us[q->proto] + hops * ring->hop_us[q->proto] + q->bytes / (1000.0 * gbps);
}

/* Bytes that the busiest rank sends, or the root of a reduction receives, per byte of the operation. */
static double direct_share(uint8_t func, uint8_t algo, bool apart, uint32_t rank_count) {
  const double n = rank_count;
  if (apart) return 1;
  if (algo == ALGO_TWO_SHOT) return 2 * (n - 1) / n;
  return func_is_halves(func) ? (n - 1) / n : n - 1;
}

/* Bytes of a rank's block on a channel that go once round: one line per thread. With more other ranks than
 * this, a thread has fewer registers for each (kernels/launch.h). */
#define ONCE_BYTES 4096.0
#define ONCE_LINKS 3u
#define ONCE_LINKS_BYTES 2048.0
#define ONCE_ROOT_BYTES 8192.0 /* of a reduction of two ranks to one of them */

static bool direct_goes_once(const struct query *q) {
  const bool blocks = q->algo == ALGO_TWO_SHOT || func_is_halves(q->func);
  const double block_bytes = q->bytes / q->channel_count / (blocks ? q->ranks : 1);
  const bool to_root = q->func == FUNC_REDUCE && q->ranks == 2;
  return q->quick && q->proto == PROTO_LL &&
         block_bytes <= (to_root                      ? ONCE_ROOT_BYTES
                         : q->ranks - 1 <= ONCE_LINKS ? ONCE_BYTES
                                                      : ONCE_LINKS_BYTES);
}

static const struct tune_measured_direct *direct_measured(const struct query *q) {
  const bool once = direct_goes_once(q);
  if (q->algo == ALGO_TWO_SHOT) return once ? &tune_measured_two_shot_once : &tune_measured_two_shot;
  return once ? &tune_measured_one_shot_once : &tune_measured_one_shot;
}

static double apart_us(const struct query *q) {
  const struct tune_measured_apart *apart = &tune_measured_apart;
  const struct graph_speed *ring = &q->graph->ring_speed;
  double gbps = least(apart->all_gbps, apart->channel_gbps * q->channel_count);
  if (!graph_is_measured(q->graph)) gbps = least(gbps, ring->channel_count * ring->intra_gbps);
  return most(apart->least_us, apart->base_us + q->bytes / (1000.0 * gbps));
}

/* What OneShot carries where it copies, and no block goes once round. */
static double one_shot_copy_gbps(const struct query *q, double gbps) {
  const struct tune_measured_pair *pair = &tune_measured_pair;
  if (q->ranks == 2 && q->proto == PROTO_SIMPLE) {
    if (q->func == FUNC_ALL_GATHER) return pair->gather_gbps;
    if (q->func == FUNC_BROADCAST) return pair->broadcast_gbps;
    if (q->func == FUNC_ALL_TO_ALL) return pair->all_to_all_gbps;
  }
  return q->func == FUNC_ALL_TO_ALL ? least(gbps, tune_measured_messages.direct_gbps[q->proto]) : gbps;
}

/* NULL: not a sum of two ranks in one hop, or one that was measured with the others. */
static const struct tune_measured_pair_sum *pair_sum_of(uint8_t func, uint8_t algo, uint32_t rank_count) {
  if (rank_count != 2 || algo != ALGO_DIRECT) return NULL;
  if (func == FUNC_REDUCE_SCATTER) return &tune_measured_pair.scatter_sum;
  return func == FUNC_REDUCE ? &tune_measured_pair.root_sum : NULL;
}

static double pair_sum_us(const struct query *q, const struct tune_measured_pair_sum *sum) {
  const struct graph_speed *ring = &q->graph->ring_speed;
  double gbps = least(sum->all_gbps, sum->channel_gbps * q->channel_count);
  if (!graph_is_measured(q->graph)) gbps = least(gbps, ring->channel_count * ring->intra_gbps);
  const double moved = q->bytes * direct_share(q->func, q->algo, false, q->ranks);
  return most(sum->least_us, sum->base_us + moved / (1000.0 * gbps));
}

/* If the links are slower than those measured, a hop costs more and the links limit the bandwidth. */
static double direct_us(const struct query *q) {
  const struct tune_measured_pair_sum *sum = pair_sum_of(q->func, q->algo, q->ranks);
  if (q->apart) return apart_us(q);
  if (sum != NULL && q->proto == PROTO_SIMPLE && q->graph->ring_speed.intra_path <= GRAPH_NVL)
    return pair_sum_us(q, sum);
  const struct tune_measured_direct *direct = direct_measured(q);
  const struct graph_speed *ring = &q->graph->ring_speed;
  const double(*hops)[PROTO_COUNT] = tune_latency[ALGO_RING].hop_us;
  const bool pair_shots = q->ranks == 2 && q->algo == ALGO_TWO_SHOT && q->proto == PROTO_SIMPLE;
  const double channel_gbps =
      pair_shots ? tune_measured_pair.two_shot_channel_gbps : direct->channel_gbps[q->proto];
  double gbps = least(one_shot_copy_gbps(q, direct->all_gbps[q->proto]), channel_gbps * q->channel_count);
  if (func_reduces(q->func) && q->algo == ALGO_DIRECT && q->ranks == 2 && !direct_goes_once(q))
    gbps = least(gbps, tune_measured_pair.one_shot_gbps[q->proto]);
  double time_us = direct->base_us[q->proto] + direct->rounds * (q->ranks - 1) * direct->peer_us[q->proto];
  if (!graph_is_measured(q->graph)) gbps = least(gbps, ring->channel_count * ring->intra_gbps);
  if (ring->intra_path > GRAPH_NVL)
    time_us += direct->rounds * (hops[TUNE_PCI][q->proto] - hops[TUNE_NVLINK][q->proto]);
  time_us += q->bytes * direct_share(q->func, q->algo, q->apart, q->ranks) / (1000.0 * gbps);
  const bool waits = q->func == FUNC_BROADCAST && q->proto == PROTO_SIMPLE && q->ranks == 2;
  return most(time_us, waits ? tune_measured_pair.broadcast_us : direct->least_us[q->proto]);
}

/* ---- measured: GPUs that do not reach each other ---- */

/* Bus bandwidth to bytes of the operation per second. */
static double bus_to_algorithm(const struct query *q) {
  if (q->algo == ALGO_RING || q->algo == ALGO_NVLS || q->algo == ALGO_NVLS_TREE) {
    const bool message = q->func == FUNC_SEND || q->func == FUNC_RECV;
    return message ? 1 : (double)q->ranks / ring_hops(q->func, q->ranks);
  }
  return q->func == FUNC_ALL_REDUCE ? 0.5 : 1;
}

static bool is_on_host(const struct query *q) {
  return q->on_host && q->nodes == 1 && q->ranks > 1 && (q->algo == ALGO_RING || algo_is_direct(q->algo));
}

/* The second of two shots was not measured: it counts as a ring's hop. */
static double host_us(const struct query *q) {
  const struct tune_measured_host *host = &tune_measured_host;
  const uint8_t proto = q->proto;
  if (algo_is_direct(q->algo)) {
    const double second_us = q->algo == ALGO_TWO_SHOT ? host->ring_hop_us[proto] : 0;
    const double gbps =
        least(host->direct_channel_gbps[proto] * q->channel_count, host->direct_all_gbps[proto]);
    return host->direct_base_us[proto] + second_us +
           q->bytes * direct_share(q->func, q->algo, q->apart, q->ranks) / (1000.0 * gbps);
  }
  const uint32_t hops = ring_hops(q->func, q->ranks);
  const double gbps = least(host->ring_channel_gbps[proto] * q->channel_count, host->ring_all_gbps[proto]);
  return host->ring_base_us[proto] + hops * host->ring_hop_us[proto] +
         q->bytes / (1000.0 * gbps * bus_to_algorithm(q));
}

/* ---- measured: cores that share memory ---- */

/* Trees, for more ranks than direct collectives support. The cost of a hop is unknown there, since many ranks
 * share a core, but it is equal for all options. */
static bool cores_tree(const struct query *q, double *hops, double *share) {
  if (q->ranks <= DIRECT_LINKS_USUAL + 1 || (q->algo != ALGO_TREE && q->algo != ALGO_PAT)) return false;
  *hops = ceil(log2(q->ranks)) * (q->algo == ALGO_TREE ? 2 : 1);
  if (q->algo == ALGO_TREE) *share = 3; /* to the parent, and to two children */
  return true;
}

/* Sequential hops, and bytes that each rank stores per byte of the operation; false for an algorithm without
 * such figures. */
static bool cores_route(const struct query *q, double *hops, double *share) {
  const double n = q->ranks;
  *hops = ring_hops(q->func, q->ranks);
  *share = *hops / n;
  if (func_is_chain(q->func)) {
    *hops = n - 1;
    *share = 1;
  }
  if (q->algo == ALGO_RING) return true;
  if (cores_tree(q, hops, share)) return true;
  if (!algo_is_direct(q->algo)) return false;
  *hops = q->algo == ALGO_TWO_SHOT ? 2 : 1;
  *share = direct_share(q->func, q->algo, q->apart, q->ranks);
  if (q->algo == ALGO_DIRECT && q->func == FUNC_ALL_REDUCE)
    *share *= 1.15; /* every rank adds everything up */
  return true;
}

static double cores_us(const struct query *q) {
  const struct tune_measured_cores *cores = &tune_measured_cores;
  double hops, share;
  if (!cores_route(q, &hops, &share)) return INFINITY;
  const double ring_us = q->algo == ALGO_RING && q->proto == PROTO_SIMPLE ? cores->ring_us : 0;
  return cores->base_us[q->proto] + ring_us + hops * cores->hop_us[q->proto] +
         q->bytes * share / (1000.0 * cores->gbps[q->proto]);
}

/* One hop of a direct collective sends a message to each other rank. */
static double sockets_us(const struct query *q) {
  const struct tune_measured_sockets *sockets = &tune_measured_sockets;
  double hops, share;
  if (!cores_route(q, &hops, &share)) return INFINITY;
  const bool direct = algo_is_direct(q->algo);
  const double messages = direct ? hops * (q->ranks - 1) : hops;
  if (q->algo == ALGO_DIRECT) share = direct_share(q->func, q->algo, q->apart, q->ranks);
  const double ll_us = q->proto == PROTO_SIMPLE
                           ? 0
                           : messages * sockets->ll_us + q->bytes * share / (1000.0 * sockets->ll_gbps);
  return ll_us + sockets->base_us + hops * sockets->hop_us + messages * sockets->message_us +
         q->bytes * share / (1000.0 * (direct ? sockets->direct_gbps : sockets->gbps));
}

/* ---- NCCL's formulas ---- */

static const struct graph_speed *graph_speed_of(const struct graph *graph, uint8_t algo) {
  switch (algo) {
    case ALGO_TREE:
    case ALGO_PAT: return &graph->tree_speed;
    case ALGO_COLLNET_DIRECT:
    case ALGO_COLLNET_CHAIN: return &graph->network_speed;
    case ALGO_NVLS:
    case ALGO_NVLS_TREE: return &graph->switch_speed;
    default: return &graph->ring_speed;
  }
}

static bool algo_is_collnet(uint8_t algo) {
  return algo == ALGO_COLLNET_DIRECT || algo == ALGO_COLLNET_CHAIN;
}

static const struct tune_limit *limit_of(const struct graph *graph) {
  const uint32_t capability = graph->capability_min;
  return &tune_limit[capability < 80    ? TUNE_VOLTA
                     : capability < 90  ? TUNE_AMPERE
                     : capability < 100 ? TUNE_HOPPER
                                        : TUNE_BLACKWELL];
}

/* Maximum LL bandwidth of all channels. Over several nodes it depends on the host's CPU, not the GPU; the
 * first row is for Intel and unknown CPUs. If proxies transfer LL, they limit it. */
static double ll_most_gbps(const struct query *q) {
  if (ll_is_proxied(q)) return tune_proxied_ll_gbps;
  const struct tune_limit *limit = q->nodes == 1 ? q->limit : &tune_limit[TUNE_VOLTA];
  return limit->ll_all_gbps[q->nodes_class];
}

static double tree_bus_gbps(const struct query *q, double gbps, double channels) {
  if (q->func == FUNC_ALL_REDUCE) gbps = least(0.92 * gbps, channels * q->limit->tree_gbps[q->nodes_class]);
  if (q->proto == PROTO_LL) return least(gbps / 3.8, ll_most_gbps(q));
  if (q->proto == PROTO_LL128)
    return least(gbps * (q->nodes == 1 ? 7.0 / 9 : 120.0 / 128),
                 channels * q->limit->tree_ll128_gbps[q->nodes_class]);
  return gbps;
}

static double ring_bus_gbps(const struct query *q, double gbps, double channels) {
  if (q->proto == PROTO_LL) return least(ll_most_gbps(q), gbps / 2);
  if (q->proto == PROTO_LL128)
    return least(0.92 * gbps, channels * q->limit->ring_ll128_gbps[q->nodes_class]);
  return gbps;
}

static double switch_bus_gbps(const struct query *q) {
  const double channels = q->speed->channel_count, n = q->node_ranks;
  double gbps = q->speed->intra_gbps * q->limit->switch_efficiency * (channels - 1) / channels;
  if (q->speed->channel_count < 2) return 0;
  gbps *= q->func == FUNC_ALL_REDUCE ? 2 : (n - 1) / n;
  if (q->nodes > 1) {
    const bool both = q->algo == ALGO_NVLS_TREE && q->nodes <= 2;
    gbps = least(gbps, q->speed->inter_gbps * (both ? 2 : 1));
  }
  if (q->algo == ALGO_NVLS_TREE) gbps = least(gbps, q->limit->switch_tree_gbps[q->nodes_class]);
  return gbps * channels;
}

static double network_bus_gbps(const struct query *q, double gbps) {
  const struct graph_speed *speed = q->speed;
  if (q->algo != ALGO_COLLNET_DIRECT) return gbps;
  if (q->func != FUNC_ALL_REDUCE) return q->node_ranks * least(speed->intra_gbps, 0.9 * speed->inter_gbps);
  const double share = (double)q->node_ranks / speed->channel_count;
  return gbps / (share - (share - 1) / 2) * (q->graph->capability_min >= 90 ? 0.85 : 1);
}

/* Bus bandwidth: what the links transfer. */
static double bus_gbps(const struct query *q) {
  const struct graph_speed *speed = q->speed;
  const bool intra = q->nodes <= 2 || algo_is_collnet(q->algo);
  double channels = speed->channel_count;
  double gbps = channels * (intra ? speed->intra_gbps : speed->inter_gbps);
  if (graph_is_measured(q->graph) && speed == &q->graph->tree_speed) { /* relative to the measured ring */
    channels = q->channel_count;
    gbps = least(tune_measured_ring.channel_gbps * channels, tune_measured_ring.all_gbps);
  }
  switch (q->algo) {
    case ALGO_TREE: return tree_bus_gbps(q, gbps, channels);
    case ALGO_PAT: return 0.75 * gbps;
    case ALGO_NVLS:
    case ALGO_NVLS_TREE: return switch_bus_gbps(q);
    case ALGO_COLLNET_DIRECT:
    case ALGO_COLLNET_CHAIN: return network_bus_gbps(q, gbps);
    default: return ring_bus_gbps(q, gbps, channels);
  }
}

/* Fraction of a tree's bandwidth by size. */
static double tree_share(const struct query *q) {
  uint32_t row = 0;
  if (q->algo != ALGO_TREE || q->func != FUNC_ALL_REDUCE) return 1;
  while (row < TUNE_CORRECTION_COUNT && q->bytes >= (double)(128ull << row)) row += 1;
  return row < TUNE_CORRECTION_COUNT ? tune_tree_share[q->proto][row] : 1;
}

/* Cost of posting to the network per hop inside a node. */
static double post_us(const struct query *q) { return q->nodes == 1 ? 0 : q->proto == PROTO_SIMPLE ? 3 : 1; }

static double ring_latency_us(const struct query *q, double intra_us, double inter_us) {
  const uint32_t hops = ring_hops(q->func, q->ranks);
  const double base_us = tune_latency[ALGO_RING].base_us[q->proto];
  if (q->func != FUNC_ALL_REDUCE && !func_is_halves(q->func)) {
    const double hop_us = most(intra_us, q->nodes > 1 ? inter_us : 0);
    return base_us + (q->speed->same_channels ? 1 : hops) * hop_us;
  }
  const uint32_t network_hops = (q->nodes - 1) * (q->func == FUNC_ALL_REDUCE ? 2 : 1);
  double time_us = base_us + (hops - network_hops) * most(intra_us, post_us(q)) + network_hops * inter_us;
  const double ring_bytes = (double)q->channel_count * q->ranks;
  if (q->proto == PROTO_SIMPLE && q->func == FUNC_ALL_REDUCE && q->nodes > 1 && q->bytes >= 64 * ring_bytes)
    time_us *= q->graph->capability_min < 80 ? 1.9 : 1.4;
  return time_us;
}

static double latency_us(const struct query *q) {
  const uint8_t link = q->speed->intra_path <= GRAPH_NVL ? TUNE_NVLINK : TUNE_PCI;
  const uint8_t network_algo = q->node_ranks == 1 && q->algo == ALGO_RING ? ALGO_TREE : q->algo;
  const double base_us = tune_latency[q->algo].base_us[q->proto], others = q->node_ranks - 1.0;
  const double inter_us = tune_latency[network_algo].hop_us[TUNE_NET][q->proto];
  const double intra_us = tune_latency[q->algo].hop_us[link][q->proto], depth = log2(q->nodes);
  switch (q->algo) {
    case ALGO_TREE: return base_us + 2 * (others * intra_us + depth * inter_us);
    case ALGO_COLLNET_DIRECT: return 2 * (least(1, others) * intra_us + others * 0.4) + inter_us;
    case ALGO_COLLNET_CHAIN: return 2 * others * intra_us + inter_us;
    case ALGO_NVLS: return intra_us + (q->nodes > 1 ? inter_us : 0);
    case ALGO_NVLS_TREE: return intra_us + 2 * depth * inter_us;
    case ALGO_PAT: return base_us + depth * inter_us / 3.5 + 2.8 * q->ranks;
    default: return ring_latency_us(q, intra_us, inter_us);
  }
}

/* A tree's latency relative to the measured ring, in the proportion of NCCL's figures. */
static double measured_tree_latency_us(const struct query *q) {
  const struct tune_latency *tree = &tune_latency[ALGO_TREE], *ring = &tune_latency[ALGO_RING];
  const struct tune_measured_ring *measured = &tune_measured_ring;
  const uint8_t proto = q->proto;
  const double hop_us =
      measured->hop_us[proto] * tree->hop_us[TUNE_NVLINK][proto] / ring->hop_us[TUNE_NVLINK][proto];
  return measured->base_us[proto] * tree->base_us[proto] / ring->base_us[proto] +
         2 * (q->ranks - 1.0) * hop_us;
}

/* A direct collective between hosts over LL: one hop over the network, as of a ring, and all bytes through
 * the proxies. Further messages of the hop were not measured: assumed to cost a fifth of the first. */
static double network_direct_us(const struct query *q) {
  const double hop_us = tune_latency[ALGO_TREE].hop_us[TUNE_NET][q->proto], others = q->ranks - 1.0;
  const double bytes = q->bytes * direct_share(q->func, q->algo, q->apart, q->ranks);
  return tune_latency[ALGO_RING].base_us[q->proto] + hop_us * (1 + 0.2 * (others - 1)) +
         bytes / (1000.0 * tune_proxied_ll_gbps);
}

static double formula_us(const struct query *q) {
  const double gbps = bus_gbps(q) * bus_to_algorithm(q) * tree_share(q);
  if (gbps <= 0) return INFINITY;
  const bool measured = q->algo == ALGO_TREE && graph_is_measured(q->graph);
  return (measured ? measured_tree_latency_us(q) : latency_us(q)) + q->bytes / (1000.0 * gbps);
}

/* ---- this library between hosts ---- */

/* All connections of a node together. Proxies convert LL for each of them at the measured rate; how many of
 * one rank they keep up with was not measured. */
static double joined_net_gbps(const struct query *q) {
  if (q->proto == PROTO_LL) return tune_proxied_ll_gbps * q->channel_count;
  return q->speed->channel_count * q->speed->inter_gbps;
}

/* A direct reduce-scatter between hosts, and what distributes its sums (TUTTI_SUM_ORDER=rank): each rank
 * sends a block to each other one, so all blocks but those within the node leave it. With LL a proxy
 * converts the lines of each connection. Fitted to tutti sim. */
static double joined_order_us(const struct query *q) {
  const struct tune_joined *joined = &tune_joined;
  const double rounds = q->algo == ALGO_TWO_SHOT ? 2 : 1, ranks = q->ranks, block = q->bytes / ranks;
  const double leaving = rounds * block * q->node_ranks * (ranks - q->node_ranks);
  const bool ll = q->proto == PROTO_LL;
  const double node_us = leaving / (1000.0 * (ll ? joined->order_ll_share : joined->order_share) *
                                    q->speed->channel_count * q->speed->inter_gbps);
  const double conn_us = ll ? rounds * block / (1000.0 * joined_net_gbps(q)) : 0;
  return joined->base_us[q->proto] + rounds * joined->net_us[q->proto] + most(node_us, conn_us);
}

/* Blocks go round: the hops and the network's time overlap in part. */
static double joined_ring_us(const struct query *q) {
  const struct tune_joined *joined = &tune_joined;
  const double rounds = q->func == FUNC_ALL_REDUCE ? 2 : 1, ranks = q->ranks, block = q->bytes / ranks;
  const double net_hops = rounds * (q->nodes - 1.0), hops = rounds * (ranks - 1.0) - net_hops;
  double hops_us = hops * joined->hop_us[q->proto] + net_hops * joined->net_us[q->proto];
  const double bytes_us = rounds * (ranks - 1.0) * block / (1000.0 * joined_net_gbps(q));
  if (q->proto == PROTO_LL)
    return joined->base_us[q->proto] + hops_us + bytes_us - 0.5 * least(hops_us, bytes_us);
  if (block / q->channel_count >= joined->hidden_bytes) hops_us /= 2;
  return joined->base_us[q->proto] + hops_us + bytes_us;
}

static double joined_chain_us(const struct query *q) {
  const struct tune_joined *joined = &tune_joined;
  const double piece = least(q->bytes / q->channel_count, joined->piece_bytes[q->proto]);
  const double net_gbps = joined_net_gbps(q), net_hops = q->nodes - 1.0, hops = q->ranks - 1.0 - net_hops;
  const double piece_us = piece / (1000.0 * joined->gbps[q->proto]);
  const double net_piece_us = q->proto == PROTO_LL ? piece / (1000.0 * tune_proxied_ll_gbps) : piece_us;
  return joined->base_us[q->proto] + hops * (joined->chain_hop_us[q->proto] + piece_us) +
         net_hops * (joined->net_us[q->proto] + net_piece_us) +
         (q->bytes - piece * q->channel_count) / (1000.0 * net_gbps);
}

/* Up and down: the ranks of a node as a chain, the nodes as a binary tree. */
static double joined_tree_us(const struct query *q) {
  const struct tune_joined *joined = &tune_joined;
  const bool ll = q->proto == PROTO_LL;
  const double piece = least(q->bytes / q->channel_count, joined->tree_piece_bytes[q->proto]);
  const double piece_us = piece / (1000.0 * joined->tree_gbps[q->proto]);
  const double level_us = joined->level_us[q->proto] + piece / (1000.0 * joined->level_gbps[q->proto]);
  const double first_us = ll ? joined->net_us[q->proto] + piece / (1000.0 * tune_proxied_ll_gbps) : level_us;
  const double gbps = joined_net_gbps(q) * (ll ? 1 : 0.5);
  return joined->tree_base_us[q->proto] +
         2 * ((q->node_ranks - 1.0) * (joined->chain_hop_us[q->proto] + piece_us) + first_us +
              (log2(q->nodes) - 1) * level_us) +
         (q->bytes - piece * q->channel_count) / (1000.0 * gbps);
}

/* True for what the simulation is a model of: other collectives are NCCL's formulas. */
static bool is_joined(const struct query *q) {
  return q->proxied && q->nodes > 1 && q->proto != PROTO_LL128 && q->speed->inter_gbps > 0 &&
         (q->algo == ALGO_TREE || (q->algo == ALGO_RING && q->func <= FUNC_ALL_REDUCE));
}

static double joined_us(const struct query *q) {
  if (q->algo == ALGO_TREE) return joined_tree_us(q);
  return q->func == FUNC_ALL_REDUCE || func_is_halves(q->func) ? joined_ring_us(q) : joined_chain_us(q);
}

double tune_time_us(const struct plan_request *request, uint8_t func, uint8_t algo, uint8_t proto,
                    size_t bytes, uint32_t channel_count) {
  const struct graph *graph = request->graph;
  const uint32_t nodes = graph->node_count;
  const struct query query = {graph,
                              graph_speed_of(graph, algo),
                              limit_of(graph),
                              func,
                              algo,
                              proto,
                              request->rank_count,
                              nodes,
                              graph->node_ranks_max,
                              nodes > TUNE_NODES_COUNT ? TUNE_NODES_COUNT - 1 : nodes - 1,
                              channel_count,
                              (double)bytes,
                              ((request->settings.limits.quick_protos >> proto) & 1) != 0,
                              rules_order(request, func),
                              rules_root_apart(request, func, algo),
                              request->settings.limits.reserved_bytes != 0,
                              request->settings.limits.on_host};
  if (algo == ALGO_CUSTOM) return INFINITY;
  if (request->settings.limits.cores)
    return request->settings.limits.reserved_bytes != 0 ? sockets_us(&query) : cores_us(&query);
  if (query.ordered && query.proxied && nodes > 1 && query.speed->inter_gbps > 0)
    return joined_order_us(&query);
  if (is_on_host(&query)) return host_us(&query);
  if (algo_is_direct(algo)) return nodes > 1 ? network_direct_us(&query) : direct_us(&query);
  if (is_joined(&query)) return joined_us(&query);
  if (algo == ALGO_RING && (graph_is_measured(graph) || request->rank_count == 1))
    return measured_ring_us(&query);
  return formula_us(&query);
}

/* True if the figures are tune_joined's. */
static bool request_is_joined(const struct plan_request *request) {
  const struct graph *graph = request->graph;
  return request->settings.limits.reserved_bytes != 0 && graph->node_count > 1 &&
         graph->ring_speed.inter_gbps > 0;
}

static const char *figures_text(const struct plan_request *request) {
  if (request->settings.limits.cores)
    return request->settings.limits.reserved_bytes != 0 ? "figures of sockets between cores"
                                                        : "figures of CPU cores";
  if (request->settings.limits.on_host && request->graph->node_count == 1)
    return "figures of H200 GPUs over memory of the host, as measured";
  if (graph_is_measured(request->graph)) return "figures of NVLink between H200 GPUs, as measured";
  if (request_is_joined(request)) return "figures fitted to tutti sim";
  return "figures of NCCL's published model";
}

void tune_model_text(const struct plan_request *request, char *out, size_t out_bytes) {
  const uint32_t nodes = request->graph->node_count;
  snprintf(out, out_bytes, "%u ranks on %u node%s, %s, at most %u channels", request->rank_count, nodes,
           nodes == 1 ? "" : "s", figures_text(request), request->settings.limits.channel_count);
}

/* ---- channels and chunks ---- */

/* With more channels a GPU's plan no longer fits into its kernel's arguments, and half as many reach the same
 * bandwidth, except for sums of two ranks; beyond this many bytes per channel LL rings are faster, however
 * few channels there are. */
#define DIRECT_CHANNELS 16u
#define DIRECT_SIMPLE_CHANNELS 24u
#define DIRECT_PAIR_SUM_CHANNELS 32u
#define DIRECT_CHANNEL_BYTES 49152u

/* Not if some ranks are behind a network: the fast kernels store into the peers' memory. */
bool tune_is_quick(const struct plan_request *request, uint8_t algo, uint8_t proto) {
  return algo_is_direct(algo) && request->settings.limits.reserved_bytes == 0 &&
         ((request->settings.limits.quick_protos >> proto) & 1) != 0;
}

bool tune_shows_inputs(const struct plan_request *request, uint8_t algo) {
  const struct plan_limits *limits = &request->settings.limits;
  return algo_is_direct(algo) && limits->reserved_bytes == 0 &&
         ((limits->algos & PLAN_SHOWS_INPUTS) != 0 || tune_is_quick(request, algo, PROTO_SIMPLE));
}

static uint32_t direct_channels(const struct plan_request *request, uint8_t func, uint8_t algo,
                                uint8_t proto) {
  const bool apart = rules_root_apart(request, func, algo);
  const uint32_t simple = apart                                          ? tune_measured_apart.channels
                          : pair_sum_of(func, algo, request->rank_count) ? DIRECT_PAIR_SUM_CHANNELS
                                                                         : DIRECT_SIMPLE_CHANNELS;
  const uint32_t most = proto == PROTO_SIMPLE ? simple : DIRECT_CHANNELS;
  return (uint32_t)size_min(request->settings.limits.channel_count, most);
}

/* Each channel over a network costs additional work of a proxy and the network. Two channels per chain that
 * the NICs have bandwidth for keep them busy; a channel may be a TCP stream, of which a fast NIC needs
 * several. */
#define NETWORK_CHANNELS_LEAST 8u

static uint32_t network_channels(const struct plan_request *request, uint32_t all) {
  const struct graph_speed *ring = &request->graph->ring_speed;
  if (request->graph->node_count <= 1 || request->settings.limits.cores || ring->inter_gbps <= 0) return all;
  return (uint32_t)size_min(all, size_max(2 * (size_t)ring->channel_count, NETWORK_CHANNELS_LEAST));
}

uint32_t tune_channels(const struct plan_request *request, uint8_t func, uint8_t algo, uint8_t proto,
                       size_t bytes) {
  const uint32_t all = request->settings.limits.channel_count;
  uint32_t threads =
      request->settings.max_threads[proto] != 0 ? request->settings.max_threads[proto] : tune_threads[proto];
  size_t thread_bytes = tune_thread_bytes[proto];
  if (request->settings.limits.cores && request->settings.limits.reserved_bytes != 0)
    return 1; /* one core feeds all connections */
  if (algo == ALGO_RING && request->graph->node_count <= 1) return all;
  if (algo == ALGO_RING && proto == PROTO_LL) thread_bytes *= request->rank_count;
  if (proto == PROTO_LL &&
      request->settings.limits.reserved_bytes != 0) /* each channel is one more message, as in Simple */
    thread_bytes = size_max(thread_bytes, tune_thread_bytes[PROTO_SIMPLE]);
  if (algo_is_collnet(algo)) thread_bytes = 512;
  if (algo == ALGO_RING && request->settings.thread_bytes[1][proto] != 0)
    thread_bytes = request->settings.thread_bytes[1][proto];
  if (algo == ALGO_TREE && request->settings.thread_bytes[0][proto] != 0)
    thread_bytes = request->settings.thread_bytes[0][proto];
  const uint32_t most = tune_is_quick(request, algo, proto) ? direct_channels(request, func, algo, proto)
                                                            : network_channels(request, all);
  const bool apart = rules_root_apart(request, func, algo);
  const double share = algo_is_direct(algo) ? direct_share(func, algo, apart, request->rank_count) : 1;
  const size_t worth = (size_t)((double)bytes * share) / (threads * thread_bytes);
  return worth < 1 ? 1 : worth > most ? most : (uint32_t)worth;
}

/* Halves chunks that are longer than `floor_bytes` while a channel has fewer than `chunks` of them. */
static size_t chunk_halve(size_t chunk_bytes, double channel_bytes, double chunks, size_t floor_bytes) {
  while (chunk_bytes > floor_bytes && channel_bytes / (double)chunk_bytes < chunks) chunk_bytes /= 2;
  return chunk_bytes;
}

/* Chunks of overlapping stages: with fewer than `chunks` chunks in all, they shrink to `bytes`. */
struct chunk_stage {
  double chunks;
  size_t bytes;
};

static size_t chunk_stages(size_t chunk_bytes, double channel_bytes, const struct chunk_stage *stages,
                           uint32_t count) {
  for (uint32_t i = 0; i < count; i++) {
    if (channel_bytes < stages[i].chunks * (double)chunk_bytes)
      chunk_bytes = size_min(chunk_bytes, stages[i].bytes);
  }
  return chunk_bytes;
}

static size_t chunk_of_switch(const struct graph *graph, double head_bytes, size_t chunk_bytes) {
  static const struct chunk_stage stages[] = {{64, 65536}, {8, 32768}, {2, 16384}};
  const struct graph_speed *speed = &graph->switch_speed;
  const bool slow = graph->node_count > 1 && speed->channel_count * speed->inter_gbps < 150;
  return chunk_stages(size_min(chunk_bytes, slow ? 32768 : 131072), head_bytes, stages, 3);
}

size_t tune_chunk_bytes(const struct plan_request *request, uint8_t func, uint8_t algo, uint8_t proto,
                        size_t bytes, uint32_t channel_count, size_t chunk_bytes) {
  static const struct chunk_stage tree_stages[] = {{32, 262144}, {16, 131072}, {4, 65536}, {1, 32768}};
  const struct graph *graph = request->graph;
  const double channel_bytes = (double)bytes / channel_count, ranks = graph->node_ranks_max;
  const double head_bytes = channel_bytes / ranks, depth = ranks > 1 ? 2 : 1;
  const double stages = 1 + log2(graph->node_count) + 0.1 * ranks;
  switch (algo) {
    case ALGO_TREE:
      if (proto != PROTO_LL128) return chunk_bytes;
      chunk_bytes = chunk_halve(chunk_bytes, channel_bytes, 64 * stages / ranks, 131072);
      return chunk_halve(chunk_bytes, channel_bytes, 16 * stages / ranks, 32768);
    case ALGO_PAT: return chunk_halve(chunk_bytes, channel_bytes, func == FUNC_ALL_GATHER ? 32 : 16, 65536);
    case ALGO_NVLS: return chunk_of_switch(graph, head_bytes, chunk_bytes);
    case ALGO_NVLS_TREE: return chunk_stages(chunk_bytes, head_bytes, tree_stages, 4);
    case ALGO_COLLNET_DIRECT:
      chunk_bytes = chunk_halve(chunk_bytes, head_bytes, 64 * depth, 131072);
      chunk_bytes = chunk_halve(chunk_bytes, head_bytes, 8 * depth, 65536);
      return chunk_halve(chunk_bytes, head_bytes, 8 * depth, 32768);
    case ALGO_COLLNET_CHAIN:
      chunk_bytes = chunk_halve(size_min(chunk_bytes, 262144), channel_bytes, 64 * ranks, 131072);
      chunk_bytes = chunk_halve(chunk_bytes, channel_bytes, 8 * ranks, 65536);
      return chunk_halve(chunk_bytes, channel_bytes, ranks, 32768);
    default: return chunk_bytes;
  }
}

/* ---- choosing ---- */

/* Used only if nothing else is left: PAT with several ranks per node, and algorithms that the backend
 * supports only slowly. Two shots of a reduction to a root take half as long again as a chain on four GPUs,
 * and one hop over Simple was measured with two ranks alone. */
static bool algo_is_last(const struct plan_request *request, uint8_t func, uint8_t algo, uint8_t proto,
                         size_t bytes) {
  const struct graph *graph = request->graph;
  if (algo == ALGO_PAT) return graph->node_count != graph->rank_count;
  if (rules_root_apart(request, func, algo))
    return func == FUNC_REDUCE || !tune_is_quick(request, algo, proto);
  if (tune_is_quick(request, algo, proto) && proto == PROTO_SIMPLE)
    return func == FUNC_REDUCE && algo == ALGO_DIRECT && request->rank_count != 2;
  if (tune_is_quick(request, algo, proto))
    return bytes > (size_t)direct_channels(request, func, algo, proto) * DIRECT_CHANNEL_BYTES;
  return graph->node_count <= 1 && ((request->settings.limits.algos_last >> algo) & 1) != 0;
}

uint32_t tune_candidates(const struct plan_request *request, uint8_t func, size_t bytes,
                         struct tune_candidate rows[TUNE_CANDIDATES]) {
  uint32_t allowed = 0;
  for (uint8_t index = 0; index < TUNE_CANDIDATES; index++) {
    struct tune_candidate *row = &rows[index];
    row->algo = index / PROTO_COUNT;
    row->proto = index % PROTO_COUNT;
    row->forbidden = rules_forbid(request, func, row->algo, row->proto);
    row->last = algo_is_last(request, func, row->algo, row->proto, bytes);
    row->channel_count = 0;
    row->time_us = 0;
    if (row->forbidden != NULL) continue;
    row->channel_count = tune_channels(request, func, row->algo, row->proto, bytes);
    row->time_us = tune_time_us(request, func, row->algo, row->proto, bytes, row->channel_count);
    allowed += 1;
  }
  return allowed;
}

bool tune_direct_is_best(const struct plan_request *request, size_t block_bytes) {
  const struct tune_measured_messages *messages = &tune_measured_messages;
  const double sent_bytes = (double)block_bytes * (request->rank_count - 1);
  const double most_us = messages->base_us + sent_bytes / (1000.0 * messages->gbps);
  struct tune_candidate rows[TUNE_CANDIDATES];
  if (request->settings.limits.quick_protos == 0 || !graph_is_measured(request->graph)) return false;
  tune_candidates(request, FUNC_ALL_TO_ALL, block_bytes, rows);
  for (uint32_t index = 0; index < TUNE_CANDIDATES; index++) {
    const struct tune_candidate *row = &rows[index];
    if (algo_is_direct(row->algo) && row->forbidden == NULL && !row->last && row->time_us < most_us)
      return true;
  }
  return false;
}

size_t tune_net_message_bytes(const struct plan_request *request) {
  const struct tune_measured_ring *ring = &tune_measured_ring;
  const double saved_us = ring->base_us[PROTO_SIMPLE] + ring->hop_us[PROTO_SIMPLE] - ring->base_us[PROTO_LL] -
                          ring->hop_us[PROTO_LL];
  return request->settings.limits.cores ? 0 : (size_t)(saved_us * 1000.0 * tune_proxied_ll_gbps);
}

/* With equal times a ring is preferred. */
static bool candidate_is_better(const struct tune_candidate *row, const struct tune_candidate *best) {
  if (row->forbidden != NULL) return false;
  if (best == NULL || row->last != best->last) return best == NULL || best->last;
  if (row->time_us < best->time_us) return true;
  return row->time_us == best->time_us && row->algo == ALGO_RING && best->algo != ALGO_RING;
}

/* The algorithm that sums in rank order is forbidden with every protocol; the rule of the last protocol that
 * NCCL_PROTO allows says why. */
static ncclResult_t order_impossible(const struct plan_request *request, uint8_t func) {
  const uint8_t algo = rules_order_algo(func);
  const char *why = rules_forbid(request, func, algo, PROTO_LL);
  for (uint8_t proto = PROTO_LL128; proto < PROTO_COUNT; proto++)
    if (((request->settings.proto_mask[func] >> proto) & 1) != 0)
      why = rules_forbid(request, func, algo, proto);
  return log_fail(ncclInvalidUsage,
                  "rank %u: TUTTI_SUM_ORDER=rank needs %s for %s among %u ranks, and %s; set "
                  "TUTTI_SUM_ORDER=any where sums may be in another order",
                  request->rank, names_algo[algo], names_func[func], request->rank_count, why);
}

/* Reports the rule of each algorithm that was named, and what would be allowed without the two variables. */
static ncclResult_t nothing_left(const struct plan_request *request, uint8_t func) {
  char algos[96], protos[32], rules[1024] = "", would[96];
  uint32_t possible = 0, used = 0;
  if (rules_order(request, func)) return order_impossible(request, func);
  names_list(names_algo, ALGO_COUNT, request->settings.algo_mask[func], algos, sizeof algos);
  names_list(names_proto, PROTO_COUNT, request->settings.proto_mask[func], protos, sizeof protos);
  for (uint8_t algo = 0; algo < ALGO_COUNT; algo++) {
    const char *why = NULL;
    for (uint8_t proto = 0; proto < PROTO_COUNT; proto++) {
      if (rules_forbid_always(request, func, algo, proto) == NULL) possible |= 1u << algo;
      else if (((request->settings.proto_mask[func] >> proto) & 1) != 0)
        why = rules_forbid_always(request, func, algo, proto);
    }
    if (((request->settings.algo_mask[func] >> algo) & 1) == 0 || used >= sizeof rules - 1) continue;
    if (why == NULL) why = rules_forbid(request, func, algo, PROTO_SIMPLE);
    used += (uint32_t)snprintf(rules + used, sizeof rules - used, "; %s: %s", names_algo[algo],
                               why != NULL ? why : "NCCL_PROTO leaves no protocol that it has");
  }
  names_list(names_algo, ALGO_COUNT, possible, would, sizeof would);
  return log_fail(
      ncclInvalidUsage,
      "rank %u: NCCL_ALGO (%s) and NCCL_PROTO (%s) leave no option for %s%s. Allowed without them: "
      "%s; change or unset them",
      request->rank, algos, protos, names_func[func], rules, would);
}

/* Collectives of the group: messages may differ between ranks. */
static uint32_t collectives_count(const struct plan_request *request) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < request->op_count; i++) count += request->ops[i].func <= FUNC_ALL_REDUCE;
  return count;
}

/* Takes the tuning file's rule for this size, if the rules allow it. */
static bool file_choose(const struct plan_request *request, uint8_t func, size_t bytes,
                        struct tune_choice *choice) {
  if (request->settings.tune_file == NULL) return false;
  const struct tune_sought sought = {request->graph, bytes, collectives_count(request), func};
  const struct tune_rule *rule = NULL;
  const char *why = NULL;
  while ((rule = tune_file_find(request->settings.tune_file, rule, &sought)) != NULL) {
    why = rules_forbid(request, func, rule->algo, rule->proto);
    if (why == NULL) break;
    log_info(LOG_TUNING, "rank %u: line %u of the tuning file is skipped for %s of %zu bytes: %s",
             request->rank, rule->line, names_func[func], bytes, why);
  }
  if (rule == NULL) return false;
  const uint32_t most_channels = request->settings.limits.channel_count;
  choice->algo = rule->algo;
  choice->proto = rule->proto;
  choice->channel_count = rule->channel_count != 0
                              ? (uint32_t)size_min(rule->channel_count, most_channels)
                              : tune_channels(request, func, rule->algo, rule->proto, bytes);
  choice->time_us = tune_time_us(request, func, rule->algo, rule->proto, bytes, choice->channel_count);
  choice->file_line = rule->line;
  choice->chunk_bytes = rule->chunk_bytes;
  return true;
}

static void choice_take(const struct tune_candidate *row, struct tune_choice *choice) {
  choice->algo = row->algo;
  choice->proto = row->proto;
  choice->channel_count = row->channel_count;
  choice->time_us = row->time_us;
}

/* ---- a tuner plugin ---- */

/* What is used only if nothing else is left costs so many times what it is predicted to. */
#define TUNER_LAST_FACTOR 1024
#define TUNER_UNKNOWN_US 1e9f /* the model has no figures */

static void question_put(const struct plan_request *request, uint8_t func, size_t bytes,
                         const struct tune_candidate *rows, struct tuner_question *question) {
  memset(question, 0, sizeof *question);
  question->func = func;
  question->bytes = bytes;
  question->collectives = collectives_count(request);
  for (uint32_t i = 0; i < TUNER_ALGOS * PROTO_COUNT; i++) {
    const struct tune_candidate *row = &rows[i];
    float *cost = &question->costs[row->algo][row->proto];
    *cost = TUNER_IGNORE;
    if (row->forbidden != NULL) continue;
    *cost = (float)(row->last ? row->time_us * TUNER_LAST_FACTOR : row->time_us);
    if (isinf(row->time_us)) *cost = TUNER_UNKNOWN_US;
    question->options |= 1u << i;
  }
}

/* Changes the model's choice to the plugin's. */
static void tuner_settle(const struct plan_request *request, const struct tuner_question *question,
                         const struct tune_candidate *rows, struct tune_choice *choice) {
  const struct tune_choice own = *choice;
  struct tuner_answer answer;
  const bool chose = tuner_ask(request->settings.tuner, question, &answer);
  if (chose) choice_take(&rows[answer.algo * PROTO_COUNT + answer.proto], choice);
  if (answer.channel_count != 0)
    choice->channel_count = (uint32_t)size_min(answer.channel_count, request->settings.limits.channel_count);
  answer.algo = choice->algo;
  answer.proto = choice->proto;
  answer.channel_count = choice->channel_count;
  const size_t most = request->settings.limits.step_bytes[choice->proto];
  const size_t chunk = tune_chunk_bytes(request, question->func, choice->algo, choice->proto, question->bytes,
                                        choice->channel_count, most);
  answer.chunk_bytes = tuner_ask_chunk(request->settings.tuner, &answer, chunk);
  answer.changed = answer.algo != own.algo || answer.proto != own.proto ||
                   answer.channel_count != own.channel_count || answer.chunk_bytes != 0;
  tuner_remember(request->settings.tuner, question, &answer);
  choice->chunk_bytes = answer.chunk_bytes;
}

static void tuner_choose(const struct plan_request *request, uint8_t func, size_t bytes,
                         const struct tune_candidate *rows, struct tune_choice *choice) {
  struct tuner_question question;
  if (request->settings.tuner == NULL || func > FUNC_ALL_REDUCE) return;
  question_put(request, func, bytes, rows, &question);
  const struct tuner_answer *known = tuner_recall(request->settings.tuner, &question);
  if (known == NULL) tuner_settle(request, &question, rows, choice);
  else {
    choice->algo = known->algo;
    choice->proto = known->proto;
    choice->channel_count = known->channel_count;
    choice->chunk_bytes = known->chunk_bytes;
  }
  choice->time_us = tune_time_us(request, func, choice->algo, choice->proto, bytes, choice->channel_count);
}

ncclResult_t tune_choose(const struct plan_request *request, uint8_t func, size_t bytes,
                         struct tune_choice *choice) {
  struct tune_candidate rows[TUNE_CANDIDATES];
  const struct tune_candidate *best = NULL;
  memset(choice, 0, sizeof *choice);
  choice->algo = ALGO_RING;
  choice->proto = PROTO_SIMPLE;
  choice->channel_count = request->settings.limits.channel_count;
  if (request->rank_count == 1 || file_choose(request, func, bytes, choice)) return ncclSuccess;
  tune_candidates(request, func, bytes, rows);
  for (uint32_t index = 0; index < TUNE_CANDIDATES; index++)
    if (candidate_is_better(&rows[index], best)) best = &rows[index];
  if (best == NULL) return nothing_left(request, func);
  choice_take(best, choice);
  tuner_choose(request, func, bytes, rows, choice);
  return ncclSuccess;
}
