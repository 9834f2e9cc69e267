/* life.h: creates and frees a communicator in this process. */
#ifndef TUTTI_CORE_LIFE_H
#define TUTTI_CORE_LIFE_H

#include "core/comm/comm.h"

/* Creates a communicator that has joined no rendezvous yet: device and config are set, settings are read.
 * Every member of `config` is set. */
ncclResult_t comm_create(const char *call, const void *caller, const ncclConfig_t *config,
                         uint32_t device_index, struct ncclComm **comm);
/* Frees a communicator; it first withdraws from its rendezvous or leaves its shared state. */
void comm_discard(struct ncclComm *comm);

#endif
