/* topology_paths.h: paths between the GPUs and NICs of one node: the type of each path, its bandwidth, and
 * its links, so that a search can count the remaining bandwidth of each. A pure function of a topology and
 * the user's rules. */
#ifndef TUTTI_CORE_TOPOLOGY_PATHS_H
#define TUTTI_CORE_TOPOLOGY_PATHS_H

#include "core/topology/graph.h"
#include "core/topology/topology.h"

#define PATHS_LOCAL_GBPS 5000.0
#define PATHS_HOPS_MAX (2 * TOPOLOGY_DEPTH_MAX + 8)

/* What the user allows: the longest path between GPUs that store into each other's memory (NCCL_P2P_LEVEL;
 * longer ones go through the host), paths through another GPU (NVB), and paths to a NIC through another GPU
 * (PXN). */
struct paths_rules {
  enum graph_path peer_level;
  bool over_gpu, nic_over_gpu;
  const bool *in_use; /* by GPU: paths may go through it; NULL: all */
};

/* NCCL's defaults. */
#define PATHS_RULES_DEFAULT \
  { GRAPH_PXB, true, true, NULL }

struct paths_route {
  enum graph_path type;
  double gbps;   /* in one direction; 0 if the type is GRAPH_DIS */
  double cost;   /* bytes on its links per byte of data */
  uint32_t over; /* intermediate GPU of NVB and PXN, else TOPOLOGY_NONE */
  uint32_t hop_count;
  uint16_t hops[PATHS_HOPS_MAX]; /* links, each in one direction: indices into link_gbps */
};

/* Indices of GPUs and nets are those of topology.gpus and topology.nets. */
struct paths {
  const struct topology *topology;
  uint32_t gpu_count, net_count, link_count;
  uint32_t *near;              /* gpu * net_count + turn: the net that paths_net_near() returns */
  double *link_gbps;           /* by link and direction */
  struct paths_route *gpu_gpu; /* from * gpu_count + to */
  struct paths_route *gpu_net; /* gpu * net_count + net; from the GPU into the network */
  struct paths_route *net_gpu; /* same index; from the network into the GPU: never through another GPU */
};

/* `topology` outlives the result. Free with paths_free(). ncclSystemError when memory is out. */
ncclResult_t paths_find(const struct topology *topology, const struct paths_rules *rules,
                        struct paths *paths);
void paths_free(struct paths *paths);

/* "LOC", "NVL", ... "DIS". */
const char *paths_type_name(enum graph_path type);

/* The `turn`-th nearest net to this GPU, of net_count. GPUs with the same nearest nets start at different
 * ones of them. */
uint32_t paths_net_near(const struct paths *paths, uint32_t gpu, uint32_t turn);
/* GB/s in one direction of all NVLinks of a GPU, and of those to switches only. */
double paths_nvlink_gbps(const struct paths *paths, uint32_t gpu);
double paths_switch_gbps(const struct paths *paths, uint32_t gpu);

#endif
