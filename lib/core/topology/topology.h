/* topology.h: what a cluster is made of: one kind of node, so many times. A node is a tree of CPUs, PCI
 * switches, GPUs and NICs, and NVLinks between its GPUs, read from NCCL's XML or made from a few
 * numbers. Pure data: no device is asked. Who reaches whom how fast is topology_paths.h's to say. */
#ifndef TUTTI_CORE_TOPOLOGY_H
#define TUTTI_CORE_TOPOLOGY_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TOPOLOGY_NONE UINT32_MAX
#define TOPOLOGY_NODES_MAX 65536
#define TOPOLOGY_DEVICES_MAX 1024 /* of a node: rows of its tree */
#define TOPOLOGY_DEPTH_MAX 16     /* of that tree */
#define TOPOLOGY_CPUS_MAX 64
#define TOPOLOGY_GPUS_MAX 128
#define TOPOLOGY_NETS_MAX 128
#define TOPOLOGY_LINKS_MAX 4096 /* rows of NVLinks of a node */
#define TOPOLOGY_NAME_BYTES 64
#define TOPOLOGY_FILE_BYTES_MAX (4u << 20)

enum topology_kind { TOPOLOGY_CPU, TOPOLOGY_PCI, TOPOLOGY_GPU, TOPOLOGY_NIC, TOPOLOGY_NET, TOPOLOGY_KINDS };

/* One row of a node's tree. A member that its kind does not have is 0; a text that the file left out is "".
 */
struct topology_device {
  enum topology_kind kind;
  uint32_t parent; /* row of what it hangs on, above its own; TOPOLOGY_NONE for a CPU */
  int32_t number;  /* CPU: NUMA node, -1 unknown; GPU, NET: device number */
  char
      name[TOPOLOGY_NAME_BYTES]; /* PCI: bus id, lower case; NET: its name; CPU: "x86_64", "arm64", "ppc64" */
  char maker[TOPOLOGY_NAME_BYTES]; /* CPU: "GenuineIntel", "AuthenticAMD", ... */
  char affinity[320];              /* CPU: mask, as the file has it */
  int32_t family, model;           /* CPU */
  uint32_t pci_class;              /* PCI: 0x060400 a bridge, 0x0302xx a GPU, 0x02xxxx a NIC */
  uint32_t pci_ids[4];             /* PCI: vendor, device, vendor and device of the subsystem */
  double link_gts;                 /* PCI: speed of a lane of its link upwards, GT/s; 0 unknown */
  uint32_t link_width;             /* PCI: lanes; 0 unknown */
  uint32_t capability;             /* GPU: compute capability times ten */
  int32_t rank;                    /* GPU: as the file says, -1 without */
  bool direct;                     /* GPU, NET: GPUDirect RDMA ("gdr") */
  bool adds;                       /* NET: the network can add ("coll") */
  uint32_t host_mbps, host_links;  /* GPU: a link to its CPU that is not PCI (C2C): MB/s each, and how many */
  uint32_t speed_mbits;            /* NET: Mbit/s; 0 unknown */
  uint32_t port, connections_max;  /* NET */
  double latency_us;               /* NET */
  uint64_t guid;                   /* NET */
};

/* NVLinks from one GPU to one other end. */
struct topology_link {
  uint32_t gpu;                     /* row */
  char target[TOPOLOGY_NAME_BYTES]; /* bus id of the other end */
  uint32_t target_class;            /* its PCI class: 0x0680xx a switch, 0x03xxxx a GPU, else the CPU */
  uint32_t peer;  /* row of the GPU at the other end, TOPOLOGY_NONE when it is none of these */
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

/* Reads `path`, one node's description, and makes `nodes` of it. On failure *topology is untouched:
 * ncclSystemError when it cannot be read or memory is out, ncclInvalidUsage for what is wrong inside, by
 * file, line and what was expected. Free with topology_free(). */
ncclResult_t topology_read(const char *path, uint32_t nodes, struct topology *topology);
/* The same from memory; `path` is for the messages. */
ncclResult_t topology_parse(const char *path, const char *text, size_t bytes, uint32_t nodes,
                            struct topology *topology);
void topology_free(struct topology *topology);

/* A cluster by numbers. */
struct topology_spec {
  const char *machine; /* a preset's name; NULL: dgx-h100 */
  uint32_t nodes;      /* 0: 1 */
  uint32_t gpus, nics; /* of a node; 0: as the preset has it */
};

/* Fails with ncclInvalidUsage when there is no such machine (naming those that are) or a number is out of
 * bounds. */
ncclResult_t topology_make(const struct topology_spec *spec, struct topology *topology);
/* Names of the presets, one after the other; NULL behind the last. */
const char *topology_preset(uint32_t index);

/* The XML that topology_read() reads, in a fresh os_alloc block; NULL when memory is out. */
char *topology_text(const struct topology *topology);
/* Writes it to a file; ncclSystemError when that cannot be written. */
ncclResult_t topology_write(const struct topology *topology, const char *path);

/* GB/s in one direction of the link from this row to its parent; 0 for a CPU and where parent and row are one
 * piece (a GPU and its PCI function). */
double topology_link_gbps(const struct topology *topology, uint32_t device);
/* GB/s in one direction of one NVLink of this GPU. */
double topology_nvlink_gbps(uint32_t capability);
/* GB/s of the link between CPUs, seen from this one. */
double topology_socket_gbps(const struct topology_device *cpu);
/* GB/s of a NIC's port in one direction. */
double topology_net_gbps(const struct topology_device *net);
/* True when the other end of these links is an NVSwitch. */
bool topology_link_is_switch(const struct topology_link *link);

/* ---- for who fills a topology ---- */

/* Space for one more row, zeroed; NULL when memory is out or the bound is reached. */
struct topology_device *topology_add(struct topology *topology, enum topology_kind kind, uint32_t parent);
struct topology_link *topology_add_link(struct topology *topology, uint32_t gpu);
/* Fills the lists and the links' peers. Fails with ncclInvalidUsage, naming `path`, when there is no GPU or
 * two have one number. */
ncclResult_t topology_finish(const char *path, struct topology *topology);

#endif
