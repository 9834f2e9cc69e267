/* topology.h: paths between the GPUs that this process sees: NVLink from NVML or CUDA's attributes, PCI from
 * sysfs, and the limits set by NCCL_P2P_DISABLE and NCCL_P2P_LEVEL. Called with cuda_mutex held. It reports
 * what should work; link_test.h tests it. */
#ifndef TUTTI_BACKENDS_CUDA_TOPOLOGY_H
#define TUTTI_BACKENDS_CUDA_TOPOLOGY_H

#include "backends/backend.h"

/* Type, name, link_count and gbps; peer_access and ll128 stay false. Determined once per pair. */
void topology_path(uint32_t from, uint32_t to, struct device_path_info *info);

/* The same for a GPU given by its bus id, which need not be visible to this process. */
void topology_path_named(uint32_t from, const char *bus_id, struct device_path_info *info);

/* The path to the farthest GPU of the host: NVL only if NVLink connects all. Includes peer_access and ll128,
 * for ranks of several processes. */
void topology_path_farthest(uint32_t from, struct device_path_info *info);

/* The longest path that the settings allow; LOC allows none between two devices. */
enum device_path_type topology_level(void);

/* False if the settings forbid one device to store into the other's memory. */
bool topology_allows(uint32_t from, uint32_t to);
/* Fails if NVLinks join a device and another one, by bus id or index, over which the driver allows no access,
 * unless NCCL_IGNORE_DISABLED_P2P is set. */
ncclResult_t topology_check(uint32_t from, const char *bus_id);
ncclResult_t topology_check_pair(uint32_t from, uint32_t to);

#endif
