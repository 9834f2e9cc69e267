/* group.h: what a thread queues between ncclGroupStart and ncclGroupEnd, and how the group is executed. */
#ifndef TUTTI_CORE_GROUP_H
#define TUTTI_CORE_GROUP_H

#include "core/rendezvous/rendezvous.h"

struct collective_call;
struct suspend_job;

/* Creation of one communicator. The group owns call.comm until the job has succeeded. */
struct group_job {
  struct group_job *next;
  struct rendezvous_call call;
  ncclComm_t *result; /* set when the group succeeds */
};

/* Every call that can be part of a group runs between group_enter() and group_leave(); a call outside a group
 * is a group of one. `result` is the call's result; a failure is kept for the outermost end of the group.
 * group_leave() returns `result`, or the group's result at the outermost end. */
void group_enter(void);
bool group_is_open(void);    /* true if the calling thread has an open group */
uint32_t group_number(void); /* number of the open group in this process, from 1; 0: no ncclGroupStart */
ncclResult_t group_leave(ncclResult_t result);

/* ncclInvalidUsage if another thread's open group has calls of the communicator: they are in one group at a
 * time, of one thread. */
ncclResult_t group_check_owner(const struct ncclComm *comm, const char *call);
/* Between the two: queue work. On failure nothing is queued (a job's communicator stays the caller's). */
ncclResult_t group_add_job(const struct rendezvous_call *call, ncclComm_t *result);
void group_add_suspend(struct suspend_job *job); /* suspend.h; after it no call fails */
ncclResult_t group_add_ops(const struct collective_call *call, const struct plan_op *ops, uint32_t op_count);

/* A call in an open group, without checks, except that `known` says whether its communicator is one. True if
 * it continues a group that was executed before, so that nothing has to be queued now. */
bool group_follow(const struct collective_call *call, bool known);
/* Queues any other call of an open group: checks it and adds its operations. */
ncclResult_t group_note(const struct collective_call *call);

/* A one-sided call is about to be queued for the communicator: no call cache follows or keeps this group. */
ncclResult_t group_hold(const struct collective_call *call);

/* Drops what this thread's open group has queued for a communicator that is about to be freed. */
void group_forget(struct ncclComm *comm);

/* Fills the request for plan_build and plan_time_us. */
void group_request(const struct ncclComm *comm, const struct plan_op *ops, uint32_t op_count,
                   struct plan_request *request);

#endif
