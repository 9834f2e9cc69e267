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

/* finish.c: ncclInvalidUsage if another thread is in a call of the communicator, or an open group has any. */
ncclResult_t comm_check_unused(const struct ncclComm *comm, const char *call, const void *caller);
/* Between the two, another thread's abort of the communicator waits with freeing it. False: it is aborted. */
bool comm_waiter_enter(struct ncclComm *comm);
void comm_waiter_leave(struct ncclComm *comm);
/* Waits until no kernel of this rank is unfinished, and its proxies have sent all. An error of its kernels,
 * or an abort by another thread, ends the wait. */
ncclResult_t comm_drain(struct ncclComm *comm);

#endif
