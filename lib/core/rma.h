/* rma.h: one-sided calls, as the end of a group launches them. */
#ifndef TUTTI_CORE_RMA_H
#define TUTTI_CORE_RMA_H

#include "core/comm/comm.h"

/* Of the calls that the group has queued: the puts and signals, which wait for nobody; then, behind its
 * kernel, the waits. So calls of one group never wait for one another, in whatever order they are made. */
ncclResult_t rma_launch_puts(struct ncclComm *comm);
ncclResult_t rma_launch_waits(struct ncclComm *comm);
void rma_free(struct ncclComm *comm);

#endif
