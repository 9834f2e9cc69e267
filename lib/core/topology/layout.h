/* layout.h: the graph of a communicator from what is known of the machine: NCCL_TOPO_FILE, or what the
 * backend says of nodes. Reads the settings of topology (NCCL_CROSS_NIC, NCCL_PXN_DISABLE, ...) and writes
 * what was asked for (NCCL_TOPO_DUMP_FILE, NCCL_GRAPH_DUMP_FILE). */
#ifndef TUTTI_CORE_LAYOUT_H
#define TUTTI_CORE_LAYOUT_H

#include "backends/backend.h"
#include "core/topology/graph_build.h"

/* The graph for ranks on these devices, `channel_count` channels of it; graph_flat()'s where all devices are
 * as one. Free with graph_free(). A file that cannot be read, ranks that do not fit into the topology: the
 * code and the sentence of topology_read() or graph_build(). May read and write files. */
ncclResult_t layout_graph(const struct backend *ops, const uint32_t *devices, uint32_t rank_count,
                          uint32_t channel_count, struct graph *graph);

/* The same for ranks of several processes and hosts: by rank its node, and its place among the ranks of that
 * node, both counted from 0 in the order of the ranks. */
ncclResult_t layout_graph_places(const struct graph_place *places, uint32_t rank_count, uint32_t node_count,
                                 uint32_t channel_count, struct graph *graph);
/* The topology that such a graph is made from; without devices where all of them are as one. Free with
 * topology_free(). */
ncclResult_t layout_topology(const struct backend *ops, struct topology *topology);

/* What the settings allow: NCCL_P2P_DISABLE, NCCL_P2P_LEVEL, NCCL_NVB_DISABLE, NCCL_PXN_DISABLE. */
struct paths_rules layout_rules(void);
uint32_t layout_cross_nic(void); /* NCCL_CROSS_NIC */

#endif
