/* machine.h: graphs of described machines, for verbs that show plans without running them: nodes with equal
 * numbers of ranks, described by numbers or by a preset's name, and searched as the library does. */
#ifndef TUTTI_SIM_MACHINE_H
#define TUTTI_SIM_MACHINE_H

#include "core/topology/graph.h"

/* `nodes` nodes of `gpus` ranks each, ranks numbered node by node, on PLAN_CHANNELS_MAX channels. `name` is a
 * preset of core/topology/topology.h; NULL: dgx-h100 for several nodes, and graph_flat() for one. The
 * topology's own settings (NCCL_CROSS_NIC, ...) are ignored. ncclInvalidUsage for an unknown name or an
 * invalid number, ncclSystemError when memory is out. Free with graph_free(). */
ncclResult_t machine_graph(const char *name, uint32_t nodes, uint32_t gpus, struct graph *graph);

/* The same with `gpus` by node, on this number of channels, and with the topology's own settings, as a
 * communicator takes them. */
ncclResult_t machine_graph_of(const char *name, const uint32_t *gpus, uint32_t nodes, uint32_t channels,
                              struct graph *graph);

#endif
