/* life.h: how a communicator begins and ends in this process. */
#ifndef TUTTI_CORE_LIFE_H
#define TUTTI_CORE_LIFE_H

#include "core/comm/comm.h"

/* A communicator that nobody has met: device and config noted, settings read. `config` has every member
 * set. */
ncclResult_t comm_create(const char *call, const ncclConfig_t *config, uint32_t device_index,
                         struct ncclComm **comm);
/* Takes a communicator out of whatever it is in and frees it: withdraws from a rendezvous, or leaves its
 * communicator. */
void comm_discard(struct ncclComm *comm);

#endif
