/* graph.h: how the ranks of a communicator lie on nodes, and which rings, trees and heads its channels use.
 * Pure data, equal on all ranks, made once for a communicator and read by the plan, the cost model, the
 * checker and the simulator. */
#ifndef TUTTI_CORE_GRAPH_H
#define TUTTI_CORE_GRAPH_H

#include "base/err.h"
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
  uint32_t down[GRAPH_CHILDREN_MAX]; /* ranks; GRAPH_NONE behind the last */
};

/* What the search found for one pattern: what the cost model starts from. */
struct graph_speed {
  uint32_t channel_count;         /* found, before channels are duplicated; 0: the pattern is not possible */
  double intra_gbps, inter_gbps;  /* of one channel, GB/s in one direction; inter 0 on one node */
  uint8_t intra_path, inter_path; /* the worst enum graph_path on the way */
  bool same_channels;             /* all channels found have the same pattern */
  uint8_t pattern;                /* NCCL's number: 1 balanced tree, 2 split tree, 3 tree, 4 ring, 5 NVLS,
                                     6 CollNet; 0 where nothing was searched */
};

struct graph {
  uint32_t rank_count, node_count;
  uint32_t channel_count;  /* channels that rows exist for below, 1..PLAN_CHANNELS_MAX */
  const uint32_t *node;    /* by rank: its node, 0..node_count-1, in the order of their first ranks */
  const uint32_t *local;   /* by rank: its place among the ranks of its node */
  uint32_t node_ranks_max; /* ranks of the fullest node */
  bool nodes_even;         /* all nodes have as many ranks */
  uint32_t capability_min, capability_max; /* compute capability times ten */
  const uint32_t *ring[PLAN_CHANNELS_MAX]; /* by channel: rank_count ranks in ring order, from rank 0 on;
                                              channels with one ring share one array */
  const struct graph_tree *tree[PLAN_CHANNELS_MAX]; /* by channel, then by rank */
  const uint32_t *head[PLAN_CHANNELS_MAX]; /* by channel, then by node: the rank that speaks for its node to
                                              the network; NULL on one node */
  struct graph_speed ring_speed, tree_speed;
  struct graph_speed switch_speed;  /* of a switch inside a node that adds and multicasts (NVLS) */
  struct graph_speed network_speed; /* of a network that adds (CollNet) */
  void *memory;                     /* what the pointers above point into */
};

/* One node whose ranks all reach each other alike: every channel's ring goes by number, every tree is the
 * chain by number. Free with graph_free(). ncclSystemError when memory is out. */
ncclResult_t graph_flat(uint32_t rank_count, struct graph *graph);
void graph_free(struct graph *graph);
/* Equal for graphs with the same numbers and rings. */
uint64_t graph_digest(const struct graph *graph);

/* The binary tree over `count` places (facts: btree): parent and children of `place`; the second tree of the
 * pair is the first one mirrored (even counts) or shifted by one (odd). GRAPH_NONE where there is none. */
struct graph_places {
  uint32_t up, down[2];
  bool first; /* this place is its parent's first child */
};
struct graph_places graph_double_tree(uint32_t count, uint32_t place, bool second);

#endif
