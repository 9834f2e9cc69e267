/* topology.h: paths between the GPUs that this process sees: NVLink by NVML or CUDA's attributes, PCI by
 * sysfs, and what NCCL_P2P_DISABLE and NCCL_P2P_LEVEL make of them. Called with cuda_mutex held. It knows
 * what should work, not what does: that is link_test.h. */
#ifndef TUTTI_BACKENDS_CUDA_TOPOLOGY_H
#define TUTTI_BACKENDS_CUDA_TOPOLOGY_H

#include "backends/backend.h"

/* Type, name, link_count and gbps; peer_access and ll128 are left false. Found out once a pair. */
void topology_path(uint32_t from, uint32_t to, struct device_path_info *info);

/* The same towards a GPU by its bus id, which need not be visible to this process. */
void topology_path_named(uint32_t from, const char *bus_id, struct device_path_info *info);

/* Towards the farthest of the host's GPUs: NVL only where all are behind NVLinks. With peer_access and
 * ll128 as they are for ranks of several processes. */
void topology_path_farthest(uint32_t from, struct device_path_info *info);

/* The longest path that the settings allow; LOC allows none between two devices. */
enum device_path_type topology_level(void);

/* False where the settings forbid one device to store into the other's memory. */
bool topology_allows(uint32_t from, uint32_t to);

#endif
