/* rails_machine.h: the topology of this machine with the devices of the network in use, for the choice of
 * NICs (rails.h) and for the graph between hosts. */
#ifndef TUTTI_CORE_RAILS_MACHINE_H
#define TUTTI_CORE_RAILS_MACHINE_H

#include "backends/backend.h"
#include "backends/net.h"
#include "core/topology/shape.h"
#include "core/topology/topology.h"

struct rails_machine {
  struct topology topology; /* its nets have the network's numbers */
  struct node_shape shape;
};

/* GPUs by NVML, else those that the backend has; their places, and those of the network's devices, from /sys
 * (TUTTI_SYSFS) and NCCL_TOPO_FILE. Read once for the same settings and network, and kept until the process
 * ends. Any thread. */
ncclResult_t rails_machine_find(const struct backend *ops, const struct net_ops *net, uint32_t net_count,
                                const struct rails_machine **machine);
/* Adds a network's devices to a machine, in their order. */
struct machine;
ncclResult_t rails_machine_add(struct machine *machine, const struct net_ops *net, uint32_t net_count);
/* The index in topology.gpus of the GPU with this hash_text() of its bus id; TOPOLOGY_NONE: it is not there.
 */
uint32_t rails_machine_gpu(const struct topology *topology, uint64_t pci_id);

#endif
