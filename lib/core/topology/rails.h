/* rails.h: selects the NIC of a connection, and the GPU of the node next to which it sends. Receives use the
 * NIC nearest to their GPU. So do sends of collectives, which may use a NIC next to another GPU (PXN). At PXN
 * level 2, messages are sent through the NIC that is nearest to the receiver's position in a node, through
 * the GPU next to that NIC, so that all of a node's messages to one rank share one rail. A pure function of
 * topology, places and settings. */
#ifndef TUTTI_CORE_RAILS_H
#define TUTTI_CORE_RAILS_H

#include "backends/backend.h"
#include "backends/net.h"
#include "core/topology/topology_paths.h"

struct rails_ask {
  const struct paths *paths;
  uint32_t gpu, peer_gpu; /* indices into topology.gpus, each on its own node; all nodes are of one kind */
  const bool *here; /* by GPU of the own node: a rank of the communicator uses it and can send; NULL: none */
  uint32_t channel_index;
  bool sends, message;
  uint32_t level;     /* NCCL_P2P_PXN_LEVEL; 0 if NCCL_PXN_DISABLE is set */
  uint32_t nets_most; /* rails_nets_most() */
};

/* NICs that a GPU uses at most, of those that are as near as its nearest (NCCL_NETDEVS_POLICY); 0: all. */
uint32_t rails_nets_most(void);

struct rails_answer {
  uint32_t net;  /* index into topology.nets */
  uint32_t over; /* the GPU next to the NIC; TOPOLOGY_NONE: the own GPU */
};

/* The topology must have nets. */
struct rails_answer rails_choose(const struct rails_ask *ask);

/* As rails_choose(), for the ranks of one process. */
struct rails;
struct rails_place {
  uint32_t device; /* of the rank, as layout_graph() takes them */
  bool here;       /* the rank is in this process */
  uint32_t node;   /* ranks with equal numbers share a node, and map each other's memory */
  uint64_t pci_id; /* hash_text() of its GPU's bus id, as pci_name() spells it; 0: unknown */
};
/* *rails is NULL if no NICs are known. Free with rails_free(). */
ncclResult_t rails_create(const struct backend *ops, const struct rails_place *places, uint32_t rank_count,
                          struct rails **rails);
/* The same for a backend whose devices are this machine's: where GPUs and the network's devices are is read
 * from the machine. *rails is NULL, and the log says why, if it does not have the GPUs of all ranks that are
 * here. Messages and PXN go over GPUs of this process alone. */
ncclResult_t rails_create_of_machine(const struct backend *ops, const struct net_ops *net, uint32_t net_count,
                                     const struct rails_place *places, uint32_t rank_count,
                                     struct rails **rails);
/* True if ranks of other processes may send (rails_pxn); equal on all ranks of a communicator. */
bool rails_over_processes(const struct rails *rails);
void rails_free(struct rails *rails); /* NULL is allowed */
/* The network device, of `device_count`, for this connection of `rank`; 0 if rails is NULL. *over: the rank
 * of this process that sends, or `rank` itself. */
uint32_t rails_device(const struct rails *rails, uint32_t rank, const struct device_conn_name *name,
                      uint32_t device_count, uint32_t *over);
/* The path between a NIC and the GPU of a rank that is here. */
struct rails_reach {
  const char *gpu;
  enum graph_path path;
  bool used;  /* the rank's connections may use the NIC ... */
  bool sends; /* ... or only those on which it sends, as the NIC is beside another GPU of the process (PXN) */
};
/* `net` is an index into topology.nets, of rails_net_count(); false if the path is not known. */
bool rails_reach(const struct rails *rails, uint32_t rank, uint32_t net, struct rails_reach *reach);
uint32_t rails_net_count(const struct rails *rails);             /* 0 if rails is NULL */
bool rails_has_nvlink(const struct rails *rails, uint32_t rank); /* the GPU of a rank that is here */
/* The longest path over which NICs reach memory of GPUs (NCCL_NET_GDR_LEVEL, NCCL_NET_GDR_C2C). */
enum graph_path rails_gdr_level(void);
/* True if the connection should use a device next to the GPU of a rank of another process, *over (PXN). Only
 * if the network has exactly the devices of the topology. */
bool rails_pxn(const struct rails *rails, uint32_t rank, const struct device_conn_name *name,
               uint32_t device_count, uint32_t *device, uint32_t *over);

#endif
