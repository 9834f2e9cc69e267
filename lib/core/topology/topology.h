/* topology.h: a cluster: a number of nodes of one kind. A node is a tree of CPUs, PCI switches, GPUs and
 * NICs, with NVLinks between its GPUs, read from NCCL's XML or made from a few numbers. Pure data: queries no
 * device. topology_paths.h computes paths and bandwidths. */
#ifndef TUTTI_CORE_TOPOLOGY_H
#define TUTTI_CORE_TOPOLOGY_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TOPOLOGY_NONE UINT32_MAX
#define TOPOLOGY_NODES_MAX 65536
#define TOPOLOGY_DEVICES_MAX 1024 /* rows per node */
#define TOPOLOGY_DEPTH_MAX 16     /* of that tree */
#define TOPOLOGY_CPUS_MAX 64
#define TOPOLOGY_GPUS_MAX 128
#define TOPOLOGY_NETS_MAX 128
#define TOPOLOGY_LINKS_MAX 4096 /* rows of NVLinks per node */
#define TOPOLOGY_NAME_BYTES 64
#define TOPOLOGY_FILE_BYTES_MAX (4u << 20)

enum topology_kind { TOPOLOGY_CPU, TOPOLOGY_PCI, TOPOLOGY_GPU, TOPOLOGY_NIC, TOPOLOGY_NET, TOPOLOGY_KINDS };

/* One row of a node's tree. Members that do not apply to its kind are 0; texts that the file omits are "". */
struct topology_device {
  enum topology_kind kind;
  uint32_t parent; /* row of its parent, which precedes it; TOPOLOGY_NONE for a CPU */
  int32_t number;  /* CPU: NUMA node, -1 unknown; GPU, NET: device number */
  char
      name[TOPOLOGY_NAME_BYTES]; /* PCI: bus id, lower case; NET: its name; CPU: "x86_64", "arm64", "ppc64" */
  char maker[TOPOLOGY_NAME_BYTES]; /* CPU: "GenuineIntel", "AuthenticAMD", ... */
  char affinity[320];              /* CPU: mask, as in the file */
  int32_t family, model;           /* CPU */
  uint32_t pci_class;              /* PCI: 0x060400 a bridge, 0x0302xx a GPU, 0x02xxxx a NIC */
  uint32_t pci_ids[4];             /* PCI: vendor, device, vendor and device of the subsystem */
  double link_gts;                 /* PCI: speed per lane of its upstream link, GT/s; 0 unknown */
  uint32_t link_width;             /* PCI: lanes; 0 unknown */
  uint32_t capability;             /* GPU: compute capability times ten */
  int32_t rank;                    /* GPU: as in the file, -1 if absent */
  bool direct;                     /* GPU, NET: GPUDirect RDMA ("gdr") */
  bool adds;                       /* NET: the network can add ("coll") */
  uint32_t host_mbps, host_links;  /* GPU: non-PCI links to its CPU (C2C): MB/s each, and their number */
  uint32_t speed_mbits;            /* NET: Mbit/s; 0 unknown */
  uint32_t port, connections_max;  /* NET */
  double latency_us;               /* NET */
  uint64_t guid;                   /* NET */
};

/* NVLinks from one GPU to one other device. */
struct topology_link {
  uint32_t gpu;                     /* row */
  char target[TOPOLOGY_NAME_BYTES]; /* bus id of the other end */
  uint32_t target_class;            /* its PCI class: 0x0680xx a switch, 0x03xxxx a GPU, else the CPU */
  uint32_t peer;  /* row of the GPU at the other end, TOPOLOGY_NONE if it is not a GPU of this node */
  uint32_t count; /* links */
};

struct topology {
  char name[TOPOLOGY_NAME_BYTES]; /* of the preset, or of the file; for headings */
  uint32_t node_count;            /* nodes, all of this kind */
  uint32_t device_count, link_count;
  struct topology_device *devices; /* parents before children */
  struct topology_link *links;     /* ordered by GPU */
  uint32_t cpu_count, gpu_count, net_count;
  uint32_t *cpus, *gpus, *nets; /* rows: CPUs in the file's order, the others by device number */
};

/* Reads the description of one node from `path`, for a cluster of `nodes` such nodes. On failure *topology is
 * unchanged. ncclSystemError: the file cannot be read, or out of memory; ncclInvalidUsage: invalid contents,
 * with file, line and what was expected. Free with topology_free(). */
ncclResult_t topology_read(const char *path, uint32_t nodes, struct topology *topology);
/* As topology_read(), from memory; `path` is for messages. */
ncclResult_t topology_parse(const char *path, const char *text, size_t bytes, uint32_t nodes,
                            struct topology *topology);
/* As topology_read(), of a file that may describe only a part of a node: its lists stay empty, and there need
 * be no GPU. */
ncclResult_t topology_read_part(const char *path, struct topology *topology);
void topology_free(struct topology *topology);

/* A cluster described by numbers. */
struct topology_spec {
  const char *machine; /* a preset's name; NULL: dgx-h100 */
  uint32_t nodes;      /* 0: 1 */
  uint32_t gpus, nics; /* per node; 0: the preset's */
};

/* ncclInvalidUsage: unknown machine (the message lists the known ones), or a number out of bounds. */
ncclResult_t topology_make(const struct topology_spec *spec, struct topology *topology);
/* Name of the preset `index`; NULL after the last. */
const char *topology_preset(uint32_t index);

/* The XML that topology_read() reads, in a new os_alloc block; NULL if memory is out. */
char *topology_text(const struct topology *topology);
/* Writes that XML to a file; ncclSystemError if it cannot be written. */
ncclResult_t topology_write(const struct topology *topology, const char *path);

/* GB/s in one direction of the link from this row to its parent; 0 for a CPU, and if row and parent are one
 * device (a GPU and its PCI function). */
double topology_link_gbps(const struct topology *topology, uint32_t device);
/* GB/s in one direction of one NVLink of this GPU. */
double topology_nvlink_gbps(uint32_t capability);
/* GB/s of the link between CPUs, for this CPU. */
double topology_socket_gbps(const struct topology_device *cpu);
/* GB/s of a NIC's port in one direction. */
double topology_net_gbps(const struct topology_device *net);
/* True if the other end of these links is an NVSwitch. */
bool topology_link_is_switch(const struct topology_link *link);

/* ---- for code that fills a topology ---- */

/* Appends a zeroed row; NULL if memory is out or the limit is reached. */
struct topology_device *topology_add(struct topology *topology, enum topology_kind kind, uint32_t parent);
struct topology_link *topology_add_link(struct topology *topology, uint32_t gpu);
/* Fills the lists and the links' peers. ncclInvalidUsage, naming `path`: there is no GPU, or two have the
 * same number. */
ncclResult_t topology_finish(const char *path, struct topology *topology);

#endif
