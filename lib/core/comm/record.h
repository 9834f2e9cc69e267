/* record.h: what calls, groups and launches tell the communicator's recorder (trace/recorder.h). Everything
 * here is by the thread that drives the communicator, but for what says otherwise. */
#ifndef TUTTI_CORE_RECORD_H
#define TUTTI_CORE_RECORD_H

#include "core/comm/collective_call.h"
#include "trace/recorder.h"

/* Begins to record: the rank's numbers, name and settings are known. */
void record_birth(struct ncclComm *comm);
/* All ranks have met: what they have in common is known too. */
void record_met(struct ncclComm *comm);
/* A call that is noted, in the group of this number, 0: none; `sequence` is its operation's. */
void record_call(const struct collective_call *call, uint64_t ticks, uint64_t sequence, uint32_t group);
/* A call that was made again, and launched: the operations before comm->sequence. */
void record_cached(const struct collective_call *call, uint64_t ticks, uint64_t launched, uint64_t plan);
/* A call that failed: nothing where its communicator is none. */
void record_refused(const struct collective_call *call, ncclResult_t result);
/* How many kernels the backend has launched: before a launch, for record_launch(). */
static inline uint64_t record_launched(const struct ncclComm *comm) {
  const struct record_comm *noted = comm->recorder.comm;
  return noted != NULL ? __atomic_load_n(&noted->launched, __ATOMIC_RELAXED) : 0;
}
/* A plan of the operations [sequence, sequence + operations), launched now. */
void record_launch(struct ncclComm *comm, uint64_t number, uint64_t plan, uint64_t sequence,
                   uint32_t operations, uint32_t streams, bool captured);
void record_plan(struct ncclComm *comm, const struct plan *plan);

#endif
