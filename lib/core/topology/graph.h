/* graph.h: how the ranks of a communicator are distributed over nodes, and which rings, trees and heads its
 * channels use. Pure data, equal on all ranks, made once per communicator and read by planning, the cost
 * model, the checker and the simulator. */
#ifndef TUTTI_CORE_GRAPH_H
#define TUTTI_CORE_GRAPH_H

#include "base/err.h"
#include "core/topology/shape.h"
#include "schedule/plan.h"

#define GRAPH_NONE UINT32_MAX /* no such rank */
#define GRAPH_CHILDREN_MAX 3

/* Path types between two devices, nearest first; NCCL's numbers. */
enum graph_path {
  GRAPH_LOC = 0,
  GRAPH_NVL = 1,
  GRAPH_NVB = 2,
  GRAPH_C2C = 3,
  GRAPH_PIX = 4,
  GRAPH_PXB = 5,
  GRAPH_P2C = 6,
  GRAPH_PXN = 7,
  GRAPH_PHB = 8,
  GRAPH_SYS = 9,
  GRAPH_NET = 10,
  GRAPH_DIS = 11
};

/* A rank's place in a channel's tree. */
struct graph_tree {
  uint32_t up;                       /* rank, or GRAPH_NONE at the root */
  uint32_t down[GRAPH_CHILDREN_MAX]; /* ranks, then GRAPH_NONE */
};

/* What the search found for one pattern; input of the cost model. */
struct graph_speed {
  uint32_t channel_count;         /* found, before channels are duplicated; 0: the pattern is impossible */
  double intra_gbps, inter_gbps;  /* of one channel, GB/s in one direction; inter 0 on one node */
  uint8_t intra_path, inter_path; /* the worst enum graph_path used */
  bool same_channels;             /* all channels found have the same pattern */
  uint8_t pattern;                /* NCCL's number: 1 balanced tree, 2 split tree, 3 tree, 4 ring, 5 NVLS,
                                     6 CollNet; 0 where nothing was searched */
};

/* What the graph was made from, besides the ranks' places: records keep it, to make the graph again. */
struct graph_origin {
  bool flat;                   /* graph_flat(): nothing else matters */
  struct node_shape shape;     /* of the machines it was made for, which outlives the graph; count 0: none */
  uint64_t file_digest;        /* of NCCL_TOPO_FILE's bytes; 0: the topology was made from the next three */
  uint64_t graph_digest;       /* of NCCL_GRAPH_FILE's bytes, in 62 bits; 0: rings and trees were searched */
  uint32_t nodes, gpus, nics;  /* as in struct topology_spec */
  uint32_t channels;           /* that were asked for */
  uint32_t cross_nic;          /* NCCL_CROSS_NIC */
  uint32_t peer_level;         /* enum graph_path: the rules for paths */
  bool over_gpu, nic_over_gpu; /* likewise */
};

struct graph {
  struct graph_origin origin;
  uint32_t rank_count, node_count;
  uint32_t channel_count;  /* channels with entries below, 1..PLAN_CHANNELS_MAX */
  const uint32_t *node;    /* by rank: its node, 0..node_count-1, in the order of their first ranks */
  const uint32_t *local;   /* by rank: its index among the ranks of its node */
  const uint32_t *gpu;     /* by rank: index of its GPU in its node's topology */
  uint32_t node_ranks_max; /* ranks of the largest node */
  bool nodes_even;         /* all nodes have the same number of ranks */
  uint32_t capability_min, capability_max; /* compute capability times ten */
  const uint32_t *ring[PLAN_CHANNELS_MAX]; /* by channel: rank_count ranks in ring order, from rank 0 on;
                                              channels with one ring share one array */
  const struct graph_tree *tree[PLAN_CHANNELS_MAX]; /* by channel, then by rank */
  const uint32_t *head[PLAN_CHANNELS_MAX]; /* by channel, then by node: the rank that connects its node to
                                              the network; NULL on one node */
  struct graph_speed ring_speed, tree_speed;
  struct graph_speed switch_speed;  /* of a switch inside a node that adds and multicasts (NVLS) */
  struct graph_speed network_speed; /* of a network that adds (CollNet) */
  void *memory;                     /* memory of the arrays above */
};

/* One node whose ranks all have equal paths: every channel's ring is in rank order, every tree is the chain
 * in rank order. Free with graph_free(). ncclSystemError: out of memory. */
ncclResult_t graph_flat(uint32_t rank_count, struct graph *graph);
void graph_free(struct graph *graph);
/* The ranks of a node are numbered one after the other, and nodes in their order. */
bool graph_ranks_lie_by_node(const struct graph *graph);
/* Hash of the numbers and rings; equal for equal graphs. */
uint64_t graph_digest(const struct graph *graph);

/* A node of the double binary tree over `count` places: parent and children of `place`. The second tree
 * is the first one mirrored (even counts) or shifted by one (odd counts). GRAPH_NONE if there is none. */
struct graph_places {
  uint32_t up, down[2];
  bool first; /* this place is its parent's first child */
};
struct graph_places graph_double_tree(uint32_t count, uint32_t place, bool second);

#endif
