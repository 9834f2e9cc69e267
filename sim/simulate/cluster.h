/* cluster.h: the machine of a simulation: nodes of one kind with their links and NICs, a network of leaves
 * and spines between them, and the costs of the protocols. Gives for each connection its links and how late
 * the other end sees a post. Pure data: knows no plan and no time. */
#ifndef TUTTI_SIM_SIMULATE_CLUSTER_H
#define TUTTI_SIM_SIMULATE_CLUSTER_H

#include "core/plan/tune_table.h"
#include "core/topology/graph_build.h"
#include "core/topology/rails.h"
#include "steps/net.h"

#define CLUSTER_RANKS_MAX 131072u
#define CLUSTER_ROUTE_LINKS_MAX 24

/* The costs of moving data, besides the time on links. Columns are LL, LL128, Simple. */
struct cluster_costs {
  double launch_us[PROTO_COUNT]; /* per collective, before its first slice */
  double message_launch_us;      /* ... and for messages */
  double slice_us[PROTO_COUNT];  /* of a lane, per slice: its waits, fences and posts */
  double move_us[PROTO_COUNT];   /* added for a slice with data: filling and draining the pipeline */
  double post_us[TUNE_LINK_COUNT][PROTO_COUNT]; /* until the other end sees a post, by link */
  double lane_gbps[PROTO_COUNT];                /* the most that a lane moves, in data */
  double link_share;                            /* the part of a link's nominal bandwidth that data may use */
  double proxy_us;                              /* until a proxy has seen what a lane posted */
  double message_us;                            /* of a NIC, per message */
  double side_us;       /* of a lane, per side of a slice that it has: receive and send */
  double gap_us;        /* of a NIC: least time from the end of a message to the next one */
  double links_gbps;    /* bandwidth of every link; 0: the machine's */
  double zero_copy;     /* not 0: data stored directly into outputs costs a receiver no move */
  double proxy_ll_gbps; /* most data of a connection in LL that proxies convert; 0: the NIC sends lines */
};

/* The network between the nodes. */
struct cluster_fabric {
  uint32_t leaf_nodes;     /* nodes below one leaf, on each rail */
  double hop_us;           /* per switch with its cable */
  double oversubscription; /* bandwidth into a leaf from below divided by that of its spine links; 1: none */
};

struct cluster_spec {
  const char *machine;  /* a preset's name; NULL: dgx-h100 */
  const char *topology; /* or a file of NCCL's XML; NULL: none */
  const char *sysfs;    /* or a folder of the shape of /sys; NULL: none */
  uint32_t nodes, gpus; /* of a node; ranks are numbered node by node */
  bool gpus_given;      /* by the description */
  uint32_t channels;    /* that the graph is searched for; 0: PLAN_CHANNELS_MAX */
  struct cluster_fabric fabric;
  struct cluster_costs costs;
  const char *costs_text; /* the origin of the costs, for users */
  bool costs_changed;     /* some of them were set individually */
};

/* One node of 8 GPUs; 32 nodes below a leaf, 0.6 us per hop; measured costs (cluster_costs.c). */
void cluster_spec_begin(struct cluster_spec *spec);
/* Takes the number of GPUs from spec->sysfs, if that is set and the description does not give it. */
ncclResult_t cluster_count_gpus(struct cluster_spec *spec);
/* Costs of this library's own kernels on GPUs of one node, in LL and Simple; the others are unchanged. */
void cluster_costs_kernels(struct cluster_costs *costs);
/* "NAME=VALUE", where NAME is a member of struct cluster_costs with ".LL", ".LL128" or ".Simple", or without
 * a suffix for all three; posts are nvlink_post_us, pci_post_us, network_post_us. NULL, or what was expected.
 */
const char *cluster_cost_set(struct cluster_costs *costs, const char *text);
/* "L,o,g,G", microseconds and nanoseconds per byte: the LogGP model instead of all costs and links. */
const char *cluster_loggp_set(struct cluster_spec *spec, const char *text);

struct cluster {
  struct topology topology;
  struct paths paths;
  struct graph graph;
  struct cluster_fabric fabric;
  struct cluster_costs costs;
  bool flat; /* every message goes as far as one through a spine, so costs do not depend on leaves */
  uint32_t nodes, gpus, ranks;
  uint32_t leaf_count, link_count;
  double *link_gbps; /* node after node as paths has them, then leaf by leaf and rail: up, down */
  double *rank_slow; /* by rank: factor of its lanes' costs */
};

/* On success fills *cluster (free with cluster_free). Messages name the invalid number and its limit. */
ncclResult_t cluster_make(const struct cluster_spec *spec, struct cluster *cluster);
void cluster_free(struct cluster *cluster);
/* Reads "NAME VALUE" lines over the values in *spec; errors have file, line and what was expected. Texts of
 * *spec then point into *text, an os_alloc block of the caller's. */
ncclResult_t cluster_read(const char *path, struct cluster_spec *spec, char **text);
/* The same from memory, which is modified. */
ncclResult_t cluster_parse(const char *path, char *text, struct cluster_spec *spec);

/* The route of a connection. */
struct cluster_route {
  uint32_t link_count;
  uint32_t links[CLUSTER_ROUTE_LINKS_MAX];
  double gbps;      /* the narrowest of them */
  bool network;     /* a proxy at each end carries it */
  uint8_t kind;     /* enum tune_link */
  double flight_us; /* through the network's switches */
};
void cluster_route_find(const struct cluster *cluster, const struct sim_conn *conn,
                        struct cluster_route *route);
/* Bytes on links per byte of data. */
double cluster_wire(uint8_t proto);
/* The most that a connection on this route demands of its links: the bandwidth of a lane of the rank, or over
 * a network of a NIC. */
double cluster_most_gbps(const struct cluster *cluster, const struct cluster_route *route, uint8_t proto,
                         uint32_t rank);
/* The link's ends for messages, as "node 3 GPU 2 out" or "leaf 2 rail 1 up". */
void cluster_link_name(const struct cluster *cluster, uint32_t link, char *out, size_t out_bytes);

/* One row of --fault, "slow-rank:RANK:FACTOR", "slow-link:RANK:FACTOR" (what the rank's GPU sends over NVLink
 * or PCIe), "nic:NODE:NIC:FACTOR" or "nic:NODE:NIC:off". False with what was expected in `why`. */
bool cluster_fault(struct cluster *cluster, const char *text, char *why, size_t why_bytes);

/* One row of --scale, "nics:FACTOR" (all NICs' ports, leaves and spines), "links:FACTOR" (all other links) or
 * "compute:FACTOR", which multiplies *compute; factors 0.001 to 1000. Plans do not change. */
bool cluster_scale(struct cluster *cluster, const char *text, double *compute);

#endif
