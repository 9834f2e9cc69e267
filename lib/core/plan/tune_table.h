/* tune_table.h: the figures of the cost model (tune.c): latencies in microseconds, bandwidths in GB/s (1e9
 * bytes). */
#ifndef TUTTI_CORE_TUNE_TABLE_H
#define TUTTI_CORE_TUNE_TABLE_H

#include "schedule/work.h"

/* Kind of link that a hop uses. */
enum tune_link { TUNE_NVLINK, TUNE_PCI, TUNE_NET, TUNE_LINK_COUNT };

/* Classes of machines: by the lowest compute capability of a communicator, and by its number of nodes: one,
 * two, more. */
enum { TUNE_VOLTA, TUNE_AMPERE, TUNE_HOPPER, TUNE_BLACKWELL, TUNE_CLASS_COUNT };
enum { TUNE_NODES_COUNT = 3 };

/* Latencies of an algorithm, by protocol; 0 if it does not support the protocol. */
struct tune_latency {
  double base_us[PROTO_COUNT];
  double hop_us[TUNE_LINK_COUNT][PROTO_COUNT];
};
extern const struct tune_latency tune_latency[ALGO_COUNT];

/* Maximum bandwidth of a channel, by number of nodes, on one class of GPUs. */
struct tune_limit {
  double ll_all_gbps[TUNE_NODES_COUNT]; /* of all channels together */
  double ring_ll128_gbps[TUNE_NODES_COUNT];
  double tree_ll128_gbps[TUNE_NODES_COUNT];
  double tree_gbps[TUNE_NODES_COUNT];
  double switch_tree_gbps[TUNE_NODES_COUNT];
  double switch_efficiency;
};
extern const struct tune_limit tune_limit[TUNE_CLASS_COUNT];

/* Fraction of its bandwidth that a tree reaches, by size: entry i is for 64 << i bytes. */
enum { TUNE_CORRECTION_COUNT = 24 };
extern const double tune_tree_share[PROTO_COUNT][TUNE_CORRECTION_COUNT];

/* Minimum bytes per thread, by protocol; for smaller sizes first channels, then threads are left out. */
extern const uint32_t tune_thread_bytes[PROTO_COUNT];
extern const uint32_t tune_threads[PROTO_COUNT];

/* Measured on one node of Hopper GPUs over NVLink. */
struct tune_measured_ring {
  double base_us[PROTO_COUNT], hop_us[PROTO_COUNT];
  double channel_gbps, all_gbps; /* of one channel, and of all channels together */
  double ll_all_gbps, ll128_channel_gbps, ll128_share;
};
extern const struct tune_measured_ring tune_measured_ring;

/* A direct collective: time = base + rounds * (ranks - 1) * peer + bytes sent per rank / rate, and no less
 * than `least`. */
struct tune_measured_direct {
  double base_us[PROTO_COUNT], peer_us[PROTO_COUNT], least_us[PROTO_COUNT];
  double all_gbps[PROTO_COUNT];     /* of all channels together */
  double channel_gbps[PROTO_COUNT]; /* of one channel */
  uint32_t rounds;
};
extern const struct tune_measured_direct tune_measured_one_shot, tune_measured_two_shot;
extern const struct tune_measured_direct tune_measured_one_shot_once, tune_measured_two_shot_once;

/* A broadcast in two shots whose root is apart, over Simple: time = base + bytes / rate, and no less than
 * `least`. */
struct tune_measured_apart {
  double base_us, least_us, all_gbps, channel_gbps;
  uint32_t channels; /* more are slower */
};
extern const struct tune_measured_apart tune_measured_apart;

/* A sum of two ranks in one hop over Simple: time = base + bytes that come from the other rank / rate, and no
 * less than `least`. */
struct tune_measured_pair_sum {
  double base_us, least_us, all_gbps, channel_gbps;
};

/* Two ranks, which share a single link. Limits of OneShot where it adds and of a reduce-scatter's ring;
 * OneShot over Simple where it copies; a chain, which has one hop: time = base + bytes / rate, and no less.
 */
struct tune_measured_pair {
  struct tune_measured_pair_sum scatter_sum, root_sum; /* reduce-scatter, reduce */
  double two_shot_channel_gbps; /* over Simple */
  double ring_channel_gbps[PROTO_COUNT];
  double one_shot_gbps[PROTO_COUNT], ring_gbps[PROTO_COUNT];
  double gather_gbps, broadcast_gbps, all_to_all_gbps;
  double broadcast_us; /* a direct broadcast over Simple takes no less, whatever its size */
  double chain_base_us[PROTO_COUNT], chain_gbps[PROTO_COUNT], chain_least_us[PROTO_COUNT];
};
extern const struct tune_measured_pair tune_measured_pair;

/* Messages to all other ranks at once: time = base + bytes sent per rank / rate. And the maximum bandwidth of
 * a direct collective that does the same. */
struct tune_measured_messages {
  double base_us, gbps;
  double direct_gbps[PROTO_COUNT];
};
extern const struct tune_measured_messages tune_measured_messages;

/* One node whose GPUs do not reach each other: data passes through memory of the host. A ring: time = base +
 * hops * hop + bytes / rate; a direct collective: time = base + bytes sent per rank / rate. */
struct tune_measured_host {
  double ring_base_us[PROTO_COUNT], ring_hop_us[PROTO_COUNT];
  double ring_channel_gbps[PROTO_COUNT], ring_all_gbps[PROTO_COUNT];
  double direct_base_us[PROTO_COUNT];
  double direct_channel_gbps[PROTO_COUNT], direct_all_gbps[PROTO_COUNT];
};
extern const struct tune_measured_host tune_measured_host;

/* CPU cores that share memory: time = base + sequential hops + bytes stored per rank / rate. */
struct tune_measured_cores {
  double base_us[PROTO_COUNT], hop_us[PROTO_COUNT], gbps[PROTO_COUNT];
  double ring_us; /* a ring's chunks of several slots, Simple */
};
extern const struct tune_measured_cores tune_measured_cores;

/* CPU cores connected by sockets: time = base + sequential hops + messages sent per rank + bytes sent per
 * rank / rate. Direct collectives alternate sending a slot and receiving one, and are slower. */
struct tune_measured_sockets {
  double base_us, hop_us, message_us, gbps, direct_gbps;
  double ll_us, ll_gbps; /* added by LL: per message and per byte, for the conversion to lines at both ends */
};
extern const struct tune_measured_sockets tune_measured_sockets;

/* Rings and trees of this library between hosts, in LL and Simple: fitted to `tutti sim` (its README says
 * what it models), over 2 to 128 nodes. A channel's first piece, of at most `piece_bytes`, passes every hop
 * of the longest path; the rest follows at the rate of the network. */
struct tune_joined {
  double base_us[PROTO_COUNT], tree_base_us[PROTO_COUNT];
  double hop_us[PROTO_COUNT];       /* within a node, of a ring's block that is reduced or forwarded */
  double chain_hop_us[PROTO_COUNT]; /* ... of a chain or tree */
  double net_us[PROTO_COUNT];       /* a hop over the network */
  double level_us[PROTO_COUNT];     /* each way of a level of a tree between nodes, from the second one on */
  double piece_bytes[PROTO_COUNT], tree_piece_bytes[PROTO_COUNT];
  double gbps[PROTO_COUNT]; /* of a piece over a hop within a node */
  double tree_gbps[PROTO_COUNT], level_gbps[PROTO_COUNT];
  double order_share, order_ll_share; /* of a node's bandwidth that direct sums in rank order reach */
  double hidden_bytes;                /* blocks of a ring from which on slices hide half of the hops */
};
extern const struct tune_joined tune_joined;

/* Maximum LL bandwidth per rank between hosts: the proxy converts between LL lines and data and passes them
 * to the network, one slot at a time. Between two H200 over loopback TCP 0.6 (reduce_scatter) to 0.9
 * (all_reduce). */
extern const double tune_proxied_ll_gbps;

#endif
