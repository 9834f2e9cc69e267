/* graph_build.h: builds the graph of a communicator from a topology and the ranks' places: one search for
 * each kind of node, then rings, trees and heads over all nodes. A pure function, so every rank gets the same
 * graph.
 */
#ifndef TUTTI_CORE_GRAPH_BUILD_H
#define TUTTI_CORE_GRAPH_BUILD_H

#include "base/text.h"
#include "core/topology/graph_file.h"

struct graph_place {
  uint32_t node; /* below TOPOLOGY_NODES_MAX */
  uint32_t gpu;  /* index into topology.gpus */
  bool remote;   /* the rank is in another process */
};

struct graph_request {
  const struct topology *topology;
  const struct graph_place *places; /* by rank */
  uint32_t rank_count;
  uint32_t channels_min, channels_max; /* 1..PLAN_CHANNELS_MAX */
  uint32_t cross_nic;                  /* NCCL_CROSS_NIC */
  struct paths_rules rules;
  const struct graph_file *file; /* instead of a search; NULL: none */
};

/* Fills *graph; free it with graph_free(). A topology without paths gives one channel of 0.1 GB/s in rank
 * order. ncclInvalidUsage: a place is not in the topology; ncclSystemError: out of memory. */
ncclResult_t graph_build(const struct graph_request *request, struct graph *graph);

/* Describes the search result for rank 0's node in the XML of NCCL_GRAPH_DUMP_FILE. */
ncclResult_t graph_describe(const struct graph_request *request, struct text *text);

#endif
