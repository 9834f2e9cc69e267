/* graph_build.h: the graph of a communicator from a topology and from where its ranks lie: one search for
 * each kind of node, then rings, trees and heads over all of them. A pure function, so that every rank has
 * the same. */
#ifndef TUTTI_CORE_GRAPH_BUILD_H
#define TUTTI_CORE_GRAPH_BUILD_H

#include "base/text.h"
#include "core/topology/topology_search.h"

struct graph_place {
  uint32_t node; /* below TOPOLOGY_NODES_MAX */
  uint32_t gpu;  /* index into topology.gpus */
  bool remote;   /* the rank is of another process */
};

struct graph_request {
  const struct topology *topology;
  const struct graph_place *places; /* by rank */
  uint32_t rank_count;
  uint32_t channels_min, channels_max; /* 1..PLAN_CHANNELS_MAX */
  uint32_t cross_nic;                  /* NCCL_CROSS_NIC */
  struct paths_rules rules;
};

/* Fills *graph; free with graph_free(). A topology without a path gives one channel of 0.1 GB/s in rank
 * order. Fails with ncclInvalidUsage when a place is not in the topology, ncclSystemError when memory is out.
 */
ncclResult_t graph_build(const struct graph_request *request, struct graph *graph);

/* What was found for the node of rank 0, in the XML of NCCL_GRAPH_DUMP_FILE. */
ncclResult_t graph_describe(const struct graph_request *request, struct text *text);

#endif
