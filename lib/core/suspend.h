/* suspend.h: ncclCommSuspend and ncclCommResume, between their call and the end of the thread's group. */
#ifndef TUTTI_CORE_SUSPEND_H
#define TUTTI_CORE_SUSPEND_H

#include "core/comm/comm.h"

/* A rank that is to be suspended or resumed with all others of its communicator. */
struct suspend_job {
  struct suspend_job *next;
  struct ncclComm *comm;
  const char *call;
  const void *caller;
  bool resumes;
  bool entered;              /* `comm` knows that a thread is about it */
  struct ncclComm *stand_in; /* while it waits for the other ranks */
};

/* Suspends and resumes all; `jobs` may be NULL. */
ncclResult_t suspend_run(struct suspend_job *jobs);
void suspend_free(struct suspend_job *jobs);

#endif
