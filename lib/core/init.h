/* init.h: what the calls that make communicators from unique ids share. */
#ifndef TUTTI_CORE_INIT_H
#define TUTTI_CORE_INIT_H

#include "core/rendezvous/rendezvous.h"

/* A rank that joins by ids. */
struct init_rank {
  ncclComm_t *comm;
  const ncclConfig_t *config, *inherited; /* NULL, NULL: the defaults */
  uint32_t device_index;
  bool grows; /* the ids may be of ncclCommGetUniqueId */
};

/* Queues the job of one rank, whose names and numbers of ranks are in `call`. */
ncclResult_t init_queue(struct rendezvous_call *call, int id_count, const ncclUniqueId *ids,
                        const struct init_rank *rank);

#endif
