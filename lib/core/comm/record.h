/* record.h: what calls, groups and launches write to the communicator's recorder (trace/recorder.h). Only the
 * thread that uses the communicator calls these functions, unless a comment says otherwise. */
#ifndef TUTTI_CORE_RECORD_H
#define TUTTI_CORE_RECORD_H

#include "core/comm/collective_call.h"
#include "trace/recorder.h"

/* Starts recording; the rank's numbers, name and settings are known. */
void record_birth(struct ncclComm *comm);
/* All ranks have joined: records what they have in common. `request`: of any operations. */
void record_met(struct ncclComm *comm, const struct plan_request *request);
static inline bool record_lacks_met(const struct ncclComm *comm) {
  return comm->recorder.comm != NULL && comm->recorder.comm->topology_digest == 0;
}
/* Records a queued call: the number of its group (0: none) and the `sequence` of its operation. */
void record_call(const struct collective_call *call, uint64_t ticks, uint64_t sequence, uint32_t group);
/* Records a call launched from the call cache: the operations before comm->sequence. */
void record_cached(const struct collective_call *call, uint64_t ticks, uint64_t launched, uint64_t plan);
/* Records a call that differs from another rank's, or the first one after the communicator has failed;
 * record_refused() follows. */
void record_mismatch(const struct collective_call *call, uint64_t ticks);
/* Records a failed call; does nothing if its communicator is invalid. */
void record_refused(const struct collective_call *call, ncclResult_t result);
/* Number of kernels that the backend has launched; read before a launch, for record_launch(). */
static inline uint64_t record_launched(const struct ncclComm *comm) {
  const struct record_comm *noted = comm->recorder.comm;
  return noted != NULL ? __atomic_load_n(&noted->launched, __ATOMIC_RELAXED) : 0;
}
/* Records the launch of a plan of the operations [sequence, sequence + operations). */
void record_launch(struct ncclComm *comm, uint64_t number, uint64_t plan, uint64_t sequence,
                   uint32_t operations, uint32_t streams, bool captured);
void record_plan(struct ncclComm *comm, const struct plan *plan);

#endif
