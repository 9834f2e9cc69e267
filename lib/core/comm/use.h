/* use.h: which call a thread is in on a communicator. One thread at a time uses a communicator; what ends it
 * (destroy, finalize, abort) looks here for another thread, and calls look for such an end. Costs a call one
 * store that other cores see at once (an xchg on x86). */
#ifndef TUTTI_CORE_USE_H
#define TUTTI_CORE_USE_H

#include "core/comm/comm.h"

/* A thread is in this call from now on. False, if another thread has calls in its open group: that check is
 * the group's. Else use_end() follows. */
bool use_begin(struct ncclComm *comm, const char *call, const void *caller);
/* The calls of this thread's group are launched. use_end() follows. */
void use_resume(struct ncclComm *comm);
void use_end(struct ncclComm *comm);
/* For a thread inside: ncclInvalidUsage if another one is ending the communicator. */
ncclResult_t use_check(const struct ncclComm *comm, const char *call, const void *caller);

/* From now on calls are refused; the last end counts. */
void use_end_announce(struct ncclComm *comm, const char *call, const void *caller);
/* The communicator was not ended. */
void use_end_withdraw(struct ncclComm *comm);
/* ncclInvalidUsage if another thread is in a call, or has calls in its open group. */
ncclResult_t use_check_alone(const struct ncclComm *comm, const char *call, const void *caller);
bool use_is_called(const struct ncclComm *comm);
/* Calls wait in a group that another thread has open. */
bool use_is_queued_elsewhere(const struct ncclComm *comm);

#endif
