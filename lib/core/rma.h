/* rma.h: one-sided calls, as the end of a group launches them. */
#ifndef TUTTI_CORE_RMA_H
#define TUTTI_CORE_RMA_H

#include "core/comm/comm.h"

struct collective_call;

/* Of the calls that the group has queued: the puts and signals, which wait for nobody; then, behind its
 * kernel, the waits. So calls of one group never wait for one another, in whatever order they are made. */
ncclResult_t rma_launch_puts(struct ncclComm *comm);
ncclResult_t rma_launch_waits(struct ncclComm *comm);

/* The window of this number of call->peer, which it waits for. */
ncclResult_t rma_find_window(const struct collective_call *call, uint32_t number, struct window *window);

/* Collectives made of puts and waits, which are launched behind the kernel, in the order in which they are
 * queued. */
struct rma_copy {
  const void *in;
  void *own_out;   /* where the block belongs in the output of this rank ... */
  uint32_t number; /* ... and of another one: in the window of this number ... */
  uint64_t offset; /* ... from here on */
  size_t bytes;
};
/* NULL: a signal alone. */
ncclResult_t rma_queue_copy(const struct collective_call *call, uint32_t peer, const struct rma_copy *copy);
/* *awaits: `count` rows to be filled, before anything else is queued. */
ncclResult_t rma_queue_copy_wait(const struct collective_call *call, uint32_t count,
                                 struct device_await **awaits);
ncclResult_t rma_launch_copies(struct ncclComm *comm);

void rma_free(struct ncclComm *comm);

#endif
