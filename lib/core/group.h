/* group.h: what a thread collects between ncclGroupStart and ncclGroupEnd, and how it is carried out. */
#ifndef TUTTI_CORE_GROUP_H
#define TUTTI_CORE_GROUP_H

#include "core/rendezvous/rendezvous.h"

/* Making one communicator. The group owns call.comm until the job has succeeded. */
struct group_job {
  struct group_job *next;
  struct rendezvous_call call;
  ncclComm_t *result; /* set when the group succeeds */
};

/* Every call that takes part in groups sits between these two: alone, it is a group of one. `result` is what
 * the call came to; a failure is kept for the outermost end. The leave returns `result`, or what the
 * outermost end came to. */
void group_enter(void);
bool group_is_open(void);    /* of the calling thread */
uint32_t group_number(void); /* of the process's groups, from 1; 0: no ncclGroupStart began it */
ncclResult_t group_leave(ncclResult_t result);

/* Between the two: notes work. On failure nothing is held (a job's communicator stays the caller's). */
ncclResult_t group_add_job(const struct rendezvous_call *call, ncclComm_t *result);
ncclResult_t group_add_ops(struct ncclComm *comm, const struct plan_op *ops, uint32_t op_count,
                           device_stream stream);

struct collective_call;
/* A call in an open group, without checks: true when it goes on with a group that was made before, and
 * nothing has to be noted of it now. */
bool group_follow(const struct collective_call *call);
/* Notes any other call of an open group: checks it, and adds its operations. */
ncclResult_t group_note(const struct collective_call *call);

/* Drops what this thread's open group has noted for the communicator, which is about to go. */
void group_forget(struct ncclComm *comm);

/* The request for plan_build and plan_time_us. */
void group_request(const struct ncclComm *comm, const struct plan_op *ops, uint32_t op_count,
                   struct plan_request *request);

#endif
