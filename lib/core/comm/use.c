/* use.c: the marks of use.h. A call marks the communicator and then looks for its end; an end marks it and
 * then looks for calls. Both marks are sequentially consistent, so that one of the two sees the other. */
#include "core/comm/use.h"

#include <errno.h>

#include "base/callsite.h"
#include "base/log.h"

enum use_state { USE_NONE, USE_QUEUED, USE_CALLED };

#define PLACE_BYTES 256
#define LOAD(place) __atomic_load_n(&(place), __ATOMIC_SEQ_CST)
#define STORE(place, value) __atomic_store_n(&(place), (value), __ATOMIC_RELAXED)

/* An address that tells threads apart. */
static const void *self(void) { return &errno; }

static bool is_elsewhere(const struct comm_use *use) { return LOAD(use->thread) != self(); }

bool use_begin(struct ncclComm *comm, const char *call, const void *caller) {
  struct comm_use *use = &comm->use;
  if (__atomic_load_n(&use->state, __ATOMIC_RELAXED) == USE_QUEUED && is_elsewhere(use)) return false;
  STORE(use->thread, self());
  STORE(use->call, call);
  STORE(use->caller, caller);
  __atomic_store_n(&use->state, USE_CALLED, __ATOMIC_SEQ_CST);
  return true;
}

void use_resume(struct ncclComm *comm) {
  __atomic_store_n(&comm->use.state, USE_CALLED, __ATOMIC_SEQ_CST);
}

void use_end(struct ncclComm *comm) {
  __atomic_store_n(&comm->use.state, comm->queue.queued ? USE_QUEUED : USE_NONE, __ATOMIC_RELEASE);
}

ncclResult_t use_check(const struct ncclComm *comm, const char *call, const void *caller) {
  char here[PLACE_BYTES], there[PLACE_BYTES];
  const char *end = LOAD(comm->use.end_call);
  if (end == NULL) return ncclSuccess;
  callsite_text(caller, here, sizeof here);
  callsite_text(LOAD(comm->use.end_caller), there, sizeof there);
  return log_fail(ncclInvalidUsage,
                  "%s at %s: another thread has called %s of rank %u of comm '%s' at %s; let that be the "
                  "last call on it",
                  call, here, end, comm->rank, comm->name, there);
}

void use_end_announce(struct ncclComm *comm, const char *call, const void *caller) {
  STORE(comm->use.end_caller, caller);
  __atomic_store_n(&comm->use.end_call, call, __ATOMIC_SEQ_CST);
}

void use_end_withdraw(struct ncclComm *comm) {
  __atomic_store_n(&comm->use.end_call, NULL, __ATOMIC_RELEASE);
}

bool use_is_called(const struct ncclComm *comm) { return LOAD(comm->use.state) == USE_CALLED; }

bool use_is_queued_elsewhere(const struct ncclComm *comm) {
  return LOAD(comm->use.state) == USE_QUEUED && is_elsewhere(&comm->use);
}

ncclResult_t use_check_alone(const struct ncclComm *comm, const char *call, const void *caller) {
  const struct comm_use *use = &comm->use;
  const uint32_t state = LOAD(use->state);
  char here[PLACE_BYTES], there[PLACE_BYTES];
  if (state == USE_NONE || !is_elsewhere(use)) return ncclSuccess;
  callsite_text(caller, here, sizeof here);
  callsite_text(LOAD(use->caller), there, sizeof there);
  return log_fail(ncclInvalidUsage,
                  "%s at %s: rank %u of comm '%s' has %s of another thread, called at %s, %s; %s before the "
                  "communicator ends",
                  call, here, comm->rank, comm->name, LOAD(use->call), there,
                  state == USE_CALLED ? "which has not returned" : "in a group that is still open",
                  state == USE_CALLED ? "let it return" : "end the group");
}
