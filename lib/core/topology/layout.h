/* layout.h: the graph of a communicator from what is known of the machine: NCCL_TOPO_FILE, or what the
 * backend reports. Reads the topology settings (NCCL_CROSS_NIC, NCCL_PXN_DISABLE, ...) and writes the dumps
 * that the user requests (NCCL_TOPO_DUMP_FILE, NCCL_GRAPH_DUMP_FILE). */
#ifndef TUTTI_CORE_LAYOUT_H
#define TUTTI_CORE_LAYOUT_H

#include "backends/backend.h"
#include "base/param.h"
#include "core/topology/graph_build.h"

/* The graph, with `channel_count` channels, for ranks on these devices; graph_flat() if all devices are
 * equal. Free with graph_free(). Fails with the code and message of topology_read() or graph_build(): a file
 * cannot be read, or ranks do not fit into the topology. May read and write files. */
ncclResult_t layout_graph(const struct backend *ops, const uint32_t *devices, uint32_t rank_count,
                          uint32_t channel_count, struct graph *graph);

/* As layout_graph(), for ranks of several processes and hosts: `places` has each rank's node and its index
 * among the ranks of that node, both counted from 0 in rank order. */
ncclResult_t layout_graph_places(const struct graph_place *places, uint32_t rank_count, uint32_t node_count,
                                 uint32_t channel_count, struct graph *graph);
/* The same of machines that all have this shape; places have the indices of GPUs in it. The shape outlives
 * the graph; `name` is for the log. */
ncclResult_t layout_graph_shape(const struct node_shape *shape, const char *name,
                                const struct graph_place *places, uint32_t rank_count, uint32_t node_count,
                                uint32_t channel_count, struct graph *graph);
/* Equal for processes whose machines and settings of paths give the same graph of layout_graph_shape(); never
 * 0. */
uint64_t layout_shape_digest(const struct node_shape *shape);
/* True if NCCL_TOPO_FILE describes a whole node, or cannot be read: then it decides. */
bool layout_is_by_file(void);
/* Makes a graph of these functions from its origin and the ranks' places. ncclInvalidUsage if its
 * topology was read from a file and NCCL_TOPO_FILE does not name one with the same contents. */
ncclResult_t layout_graph_of_origin(const struct graph_origin *origin, const struct graph_place *places,
                                    uint32_t rank_count, struct graph *graph);
/* Equal for processes that have the same NCCL_GRAPH_FILE; 0: none. */
uint64_t layout_graph_file_digest(void);
/* Hash of a file's bytes, never 0; 0 if it cannot be read. */
uint64_t layout_file_digest(const char *path);

/* The topology for layout_graph(); without devices if all devices are equal. Free with topology_free(). */
ncclResult_t layout_topology(const struct backend *ops, struct topology *topology);

/* The paths that the settings allow: NCCL_P2P_DISABLE, NCCL_P2P_LEVEL, NCCL_NVB_DISABLE, NCCL_PXN_DISABLE. */
struct paths_rules layout_rules(void);
uint32_t layout_cross_nic(void); /* NCCL_CROSS_NIC */
/* The longest path that a setting like NCCL_P2P_LEVEL names; `initial` if it is not set, or wrong. */
enum graph_path layout_level(enum param_id param, enum graph_path initial);

#endif
