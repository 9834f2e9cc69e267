/* machine.h: the topology of a machine from what its kernel and its driver say: the PCI tree, NUMA nodes and
 * NICs of /sys, GPUs and NVLinks of NVML. In place of /sys it reads any folder of that shape, so that a
 * machine can be described elsewhere; there the folder has what /sys lacks: `nvml.xml`, the GPUs in NCCL's
 * XML of a topology, and `cpuinfo`, as in /proc.
 *
 * A switch of the PCI tree is one row with the name of its upstream port. A root port is none. What a folder
 * does not say is unknown, as in virtual machines: a link of 12 GB/s, one CPU. */
#ifndef TUTTI_CORE_MACHINE_H
#define TUTTI_CORE_MACHINE_H

#include "base/nvml.h"
#include "core/topology/topology.h"

#define MACHINE_SYSFS "/sys"
#define MACHINE_PATH_BYTES 1024

/* A port of a NIC, as a network's device or as the kernel lists it. */
struct machine_net {
  char name[TOPOLOGY_NAME_BYTES]; /* "mlx5_0", "eth0" */
  char path[MACHINE_PATH_BYTES];  /* its device's folder in the PCI tree; "": none */
  uint32_t speed_mbits, port, connections_max;
  double latency_us;
  uint64_t guid;
  bool direct; /* GPUDirect RDMA */
};

struct machine {
  const char *sysfs;        /* "/sys", or a folder of its shape */
  struct topology part;     /* rows of machine_describe() */
  struct topology gpus;     /* PCI functions, GPUs and NVLinks, below any CPU */
  struct machine_net *nets; /* by device number */
  uint32_t net_count;
};

/* What the settings name: TUTTI_SYSFS, or /sys. */
const char *machine_sysfs(void);

/* GPUs that the caller knows, for a machine without NVML. */
struct machine_known {
  const struct nvml_gpu *gpus;
  uint32_t count;
};

/* Reads the GPUs, by NVML or from the folder's nvml.xml; no NICs. `known` may be NULL. ncclInvalidUsage: the
 * folder has no such file, or it is wrong; ncclSystemError: out of memory, or no GPU is known. Free with
 * machine_close(). */
ncclResult_t machine_open(const char *sysfs, const struct machine_known *known, struct machine *machine);
/* Reads NCCL's XML, which may describe a part of the machine, as those that clouds ship: devices that it
 * names are where it says, not where the folder does. ncclInvalidUsage, ncclSystemError: as topology_read().
 */
ncclResult_t machine_describe(struct machine *machine, const char *path);
void machine_close(struct machine *machine);

/* Adds the active ports of class/infiniband, or without any the interfaces of class/net that are up and have
 * a PCI device. */
ncclResult_t machine_find_nets(struct machine *machine);
/* Adds a NIC that a network reports. Its place is the folder's device of this name, else `path`. */
ncclResult_t machine_add_net(struct machine *machine, const struct machine_net *net);

/* The topology of `nodes` such machines; as topology_read(). */
ncclResult_t machine_topology(const struct machine *machine, uint32_t nodes, struct topology *topology);

/* The whole of it, of a folder with its own NICs. `part`: a file for machine_describe(), or NULL. */
ncclResult_t machine_read(const char *sysfs, const char *part, uint32_t nodes, struct topology *topology);

#endif
