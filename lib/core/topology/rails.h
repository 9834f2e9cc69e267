/* rails.h: which NIC a connection goes through, and over which GPU of the node. Receives take the
 * NIC that is nearest to their GPU. So do sends of collectives, where that may be a NIC behind another GPU
 * (PXN). Messages are sent, at level 2, through the NIC that is nearest to the receiver's own place in a
 * node, through the GPU beside it, so that all of a node's messages to one rank take one rail. A pure
 * function of topology, places and settings. */
#ifndef TUTTI_CORE_RAILS_H
#define TUTTI_CORE_RAILS_H

#include "backends/backend.h"
#include "core/topology/topology_paths.h"

struct rails_ask {
  const struct paths *paths;
  uint32_t gpu, peer_gpu; /* indices into topology.gpus, each on its own node: nodes are of one kind */
  const bool *here; /* by GPU of our node: a rank of the communicator drives it that may send; NULL: none */
  uint32_t channel_index;
  bool sends, message;
  uint32_t level; /* NCCL_P2P_PXN_LEVEL; 0 also where NCCL_PXN_DISABLE is set */
};

struct rails_answer {
  uint32_t net;  /* index into topology.nets */
  uint32_t over; /* the GPU by whose side it is sent; TOPOLOGY_NONE: the own */
};

/* The topology has nets. */
struct rails_answer rails_choose(const struct rails_ask *ask);

/* The same for the ranks of one process. */
struct rails;
struct rails_place {
  uint32_t device; /* of the rank, as layout_graph() takes them */
  bool here;       /* a rank of this process */
  uint32_t node;   /* ranks with equal numbers share a node, and map each other's memory */
};
/* NULL in *rails where nothing is known of NICs. Free with rails_free(). */
ncclResult_t rails_create(const struct backend *ops, const struct rails_place *places, uint32_t rank_count,
                          struct rails **rails);
void rails_free(struct rails *rails); /* NULL is allowed */
/* The device of a network with `device_count` for the connection that `rank` names so; 0 where rails is
 * NULL. *over: the rank of this process by whose side it goes, or `rank` itself. */
uint32_t rails_device(const struct rails *rails, uint32_t rank, const struct device_conn_name *name,
                      uint32_t device_count, uint32_t *over);
/* Whether it should rather go over a device beside the GPU of a rank of another process, *over; which is only
 * so where the network has the very devices that the topology has. */
bool rails_pxn(const struct rails *rails, uint32_t rank, const struct device_conn_name *name,
               uint32_t device_count, uint32_t *device, uint32_t *over);

#endif
