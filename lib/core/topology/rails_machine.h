/* rails_machine.h: the topology of this machine with the devices of the network in use, for the choice of
 * NICs (rails.h). */
#ifndef TUTTI_CORE_RAILS_MACHINE_H
#define TUTTI_CORE_RAILS_MACHINE_H

#include "backends/backend.h"
#include "backends/net.h"
#include "core/topology/topology.h"

/* GPUs by NVML, else those that the backend has; their places, and those of the network's devices, from /sys
 * (TUTTI_SYSFS) and NCCL_TOPO_FILE. Its nets have the network's numbers. Free with topology_free(). */
ncclResult_t rails_topology_of_machine(const struct backend *ops, const struct net_ops *net,
                                       uint32_t net_count, struct topology *topology);

#endif
