/* finish.c: the ends of a communicator: finalize, destroy, abort, revoke, and the state that polling returns.
 * After destroy and abort the handle is invalid, unless they answer that another thread uses it. Abort
 * releases a thread that is stuck in finalize or destroy of the same communicator, and waits until calls of
 * other threads have returned. */
#include <inttypes.h>
#include <stdio.h>

#include "base/callsite.h"
#include "base/log.h"
#include "base/os.h"
#include "base/param.h"
#include "core/api.h"
#include "core/group.h"
#include "core/comm/handles.h"
#include "core/comm/leaks.h"
#include "core/comm/record.h"
#include "core/comm/use.h"
#include "core/remote/remote.h"
#include "core/life.h"

#define DRAIN_POLLS 64

/* Joins the count of threads that abort must wait for. False if the communicator is already aborted. */
bool comm_waiter_enter(struct ncclComm *comm) {
  comm->ops->device->lock();
  const bool admitted = !comm->aborted;
  if (admitted) comm->waiter_count += 1;
  comm->ops->device->unlock();
  return admitted;
}

void comm_waiter_leave(struct ncclComm *comm) {
  const struct backend *ops = comm->ops;
  ops->device->lock();
  comm->waiter_count -= 1;
  ops->device->unlock();
}

static bool comm_aborted(const struct ncclComm *comm) {
  return __atomic_load_n(&comm->aborted, __ATOMIC_ACQUIRE) != 0;
}

/* done() of wait_until: runs under the lock. */
static bool comm_is_aborted(void *argument) { return comm_aborted((const struct ncclComm *)argument); }

/* Slots that receivers of other processes read at their sender (NCCL_P2P_READ_ENABLE) end with its process,
 * and a receiver that makes its call later asks for them. So a rank leaves when they are read; but not never,
 * if nobody receives what it has sent. */
static bool comm_is_read(struct ncclComm *comm) {
  const uint64_t seconds = (uint64_t)param_int(PARAM_TUTTI_PEER_TIMEOUT_SECONDS);
  if (!comm->shared->remote || !comm->ops->device->comm_unread(comm->device_comm)) return true;
  if (comm->unread_ns == 0) comm->unread_ns = os_time_ns();
  if (seconds == 0 || os_time_ns() - comm->unread_ns < seconds * UINT64_C(1000000000)) return false;
  log_warn("rank %u of comm '%s' leaves, though not all that it has sent was received in %" PRIu64
           " s; call the receives that are missing, or set NCCL_P2P_READ_ENABLE=0",
           comm->rank, comm->name, seconds);
  return true;
}

/* True if no kernel of this rank is unfinished, and all that they sent is on the wire, or was read here. */
static bool comm_done(struct ncclComm *comm) {
  if (!comm->ops->device->comm_idle(comm->device_comm)) return false;
  const struct remote *remote = comm->shared->remote;
  if (remote && remote->proxies[comm->rank] && !proxy_comm_idle(remote->proxies[comm->rank])) return false;
  return comm_is_read(comm);
}

/* Polls at first, for short work; then sleeps a millisecond at a time. */
ncclResult_t comm_drain(struct ncclComm *comm) {
  const struct backend *ops = comm->ops;
  for (uint32_t polls = 0; !comm_aborted(comm) && !comm_done(comm); polls++) {
    TRY(ops->device->comm_error(comm->device_comm));
    if (polls < DRAIN_POLLS) ops->device->progress();
    else ops->device->wait_until(comm_is_aborted, comm, 1);
  }
  return comm_aborted(comm) ? ncclInvalidUsage : ops->device->comm_error(comm->device_comm);
}

ncclResult_t comm_check_unused(const struct ncclComm *comm, const char *call, const void *caller) {
  TRY(use_check_alone(comm, call, caller));
  if (!comm->queue.queued) return ncclSuccess;
  return log_fail(ncclInvalidUsage,
                  "%s: rank %u of comm '%s' has operations in a group that is still open; end the group "
                  "first",
                  call, comm->rank, comm->name);
}

/* ---- Finalize ---- */

/* Waits and sets FINALIZED. *aborted: another thread has aborted the communicator and frees it. */
static ncclResult_t finalize_wait(struct ncclComm *comm, const char *call, bool *aborted) {
  *aborted = true;
  if (!comm_waiter_enter(comm)) return ncclInvalidUsage;
  const ncclResult_t result = comm_drain(comm);
  *aborted = comm_aborted(comm);
  if (result == ncclSuccess) __atomic_store_n(&comm->state, COMM_FINALIZED, __ATOMIC_RELEASE);
  else {
    log_warn("%s: rank %u of comm '%s': its last operations did not end well: %s", call, comm->rank,
             comm->name, *aborted ? "aborted by another thread" : comm_why(comm, result));
  }
  comm_waiter_leave(comm);
  return result;
}

ncclResult_t pncclCommFinalize(ncclComm_t comm) {
  static const char *const call = "ncclCommFinalize";
  bool aborted;
  if (!comm) return ncclSuccess;
  TRY(comm_check_sound(comm, call));
  TRY(comm_check_unused(comm, call, CALL_PLACE));
  TRY(match_end(comm, MATCH_END_FINALIZE, CALL_PLACE));
  __atomic_store_n(&comm->state, COMM_FINALIZING, __ATOMIC_RELEASE);
  recorder_life(&comm->recorder, LIFE_FINALIZE, comm->sequence);
  if (!comm->config.blocking) return ncclInProgress;
  return finalize_wait(comm, call, &aborted);
}
API_EXPORT(CommFinalize);

/* ---- Destroy and abort ---- */

/* True if kernels may still be running. */
static bool comm_needs_drain(const struct ncclComm *comm) {
  const enum comm_state state = comm_state(comm);
  if (comm->revoked || __atomic_load_n(&comm->async_error, __ATOMIC_ACQUIRE) != ncclSuccess) return false;
  return state == COMM_READY || state == COMM_FINALIZING;
}

static ncclResult_t destroy_check(const struct ncclComm *comm, const char *call, const void *caller) {
  if (comm_state(comm) == COMM_RENDEZVOUS ||
      __atomic_load_n(&comm->children_rendezvous, __ATOMIC_ACQUIRE) != 0) {
    return log_fail(ncclInvalidArgument,
                    "%s: comm '%s' is still being made or split; poll ncclCommGetAsyncError, or call "
                    "ncclCommAbort",
                    call, comm->name);
  }
  return comm_check_unused(comm, call, caller);
}

static ncclResult_t destroy_run(struct ncclComm *comm, const char *call, const void *caller) {
  bool aborted = false;
  log_info(LOG_DESTROY, "comm %p rank %u nranks %u cudaDev %u - Destroy START", (void *)comm, comm->rank,
           comm->rank_count, comm->device_index);
  recorder_life(&comm->recorder, LIFE_DESTROY, comm->sequence);
  const ncclResult_t ended = match_end(comm, MATCH_END_DESTROY, caller);
  const ncclResult_t drained = comm_needs_drain(comm) ? finalize_wait(comm, call, &aborted) : ncclSuccess;
  const ncclResult_t result = ended != ncclSuccess ? ended : drained;
  if (aborted) return result; /* the aborting thread frees it */
  if (comm->shared && comm->shared->remote && !comm->revoked) remote_report_error(comm);
  if (comm_state(comm) != COMM_FINALIZED && comm->device_comm)
    comm->ops->device->comm_abort(comm->device_comm);
  comm_discard(comm);
  return result;
}

#define WHAT_BYTES 96

/* Also says what it is: another thread may free it afterwards. */
static bool destroy_claim(void *handle, void *what) {
  struct ncclComm *comm = (struct ncclComm *)handle;
  snprintf((char *)what, WHAT_BYTES, "rank %u of comm '%.64s'", comm->rank, comm->name);
  return !__atomic_exchange_n(&comm->destroying, true, __ATOMIC_ACQ_REL);
}

ncclResult_t pncclCommDestroy(ncclComm_t comm) {
  static const char *const call = "ncclCommDestroy";
  if (!comm) return ncclSuccess;
  TRY(comm_check_handle(comm, call));
  char what[WHAT_BYTES];
  snprintf(what, sizeof what, "communicator %p", (void *)comm);
  if (!handles_claim(comm, destroy_claim, what))
    return log_fail(ncclInvalidUsage,
                    "%s: another thread is destroying %s; destroy each communicator once, on the thread that "
                    "drives its rank",
                    call, what);
  use_end_announce(comm, call, CALL_PLACE);
  const ncclResult_t refused = destroy_check(comm, call, CALL_PLACE);
  if (refused == ncclSuccess) return destroy_run(comm, call, CALL_PLACE);
  use_end_withdraw(comm);
  __atomic_store_n(&comm->destroying, false, __ATOMIC_RELEASE);
  return refused;
}
API_EXPORT(CommDestroy);

/* done() of wait_until: runs under the lock. */
static bool comm_unwaited(void *argument) { return ((const struct ncclComm *)argument)->waiter_count == 0; }

/* done() of wait_until: runs under the lock. */
static bool comm_uncalled(void *argument) { return !use_is_called((const struct ncclComm *)argument); }

/* Calls wait in a group that another thread has open: it holds pointers to the communicator. */
static ncclResult_t abort_refuse(struct ncclComm *comm, const void *caller) {
  comm_set_async_error(comm, ncclInvalidUsage);
  return use_check_alone(comm, "ncclCommAbort", caller);
}

/* Otherwise ranks in other processes would wait for this one forever. Not for a communicator that is broken
 * or finalized, which every rank ends itself. */
static void comm_report_abort(struct ncclComm *comm) {
  char text[64];
  if (!comm->shared || !comm->shared->remote || comm_state(comm) != COMM_READY || comm->revoked) return;
  remote_report_error(comm);
  if (comm_async_error(comm) != ncclSuccess) return;
  snprintf(text, sizeof text, "rank %u was aborted by its program", comm->rank);
  remote_fail(comm->shared->remote, ncclRemoteError, text);
}

ncclResult_t pncclCommAbort(ncclComm_t comm) {
  if (!comm) return ncclSuccess;
  TRY(comm_check_handle(comm, "ncclCommAbort"));
  log_info(LOG_DESTROY, "comm %p rank %u nranks %u cudaDev %u - Abort START", (void *)comm, comm->rank,
           comm->rank_count, comm->device_index);
  leaks_excuse();
  use_end_announce(comm, "ncclCommAbort", CALL_PLACE);
  comm->ops->device->lock();
  __atomic_store_n(&comm->aborted, 1, __ATOMIC_RELEASE);
  __atomic_store_n(&comm->called_off, 1, __ATOMIC_RELEASE);
  bool waited_for = comm->waiter_count > 0;
  comm->ops->device->unlock();
  rendezvous_withdraw(comm, "was aborted");
  comm_report_abort(comm);
  if (comm->device_comm) comm->ops->device->comm_abort(comm->device_comm);
  while (waited_for) waited_for = comm->ops->device->wait_until(comm_unwaited, comm, 1000) != ncclSuccess;
  /* The call of another thread ends, as its waits are called off. */
  while (use_is_called(comm)) comm->ops->device->wait_until(comm_uncalled, comm, 1);
  if (use_is_queued_elsewhere(comm)) return abort_refuse(comm, CALL_PLACE);
  comm_discard(comm);
  return ncclSuccess;
}
API_EXPORT(CommAbort);

ncclResult_t pncclCommRevoke(ncclComm_t comm, int revokeFlags) {
  static const char *const call = "ncclCommRevoke";
  TRY(comm_check_met(comm, call));
  if (revokeFlags != NCCL_REVOKE_DEFAULT || comm->revoked) {
    return log_fail(ncclInvalidArgument, "%s: rank %u of comm '%s': %s", call, comm->rank, comm->name,
                    comm->revoked ? "it was revoked before" : "the flags must be NCCL_REVOKE_DEFAULT");
  }
  group_forget(comm);
  recorder_life(&comm->recorder, LIFE_REVOKE, comm->sequence);
  comm->revoked = true;
  comm->ops->device->comm_abort(comm->device_comm);
  return ncclSuccess;
}
API_EXPORT(CommRevoke);

/* ---- Polling ---- */

static ncclResult_t comm_poll(struct ncclComm *comm) {
  const enum comm_state state = comm_state(comm);
  if (state == COMM_RENDEZVOUS) {
    rendezvous_poll(comm);
    comm->ops->device->progress();
    if (comm_state(comm) == COMM_RENDEZVOUS) return ncclInProgress;
  }
  if (comm->revoked) return ncclSuccess;
  const ncclResult_t error = comm_async_error(comm);
  if (error != ncclSuccess) return error;
  if (__atomic_load_n(&comm->children_rendezvous, __ATOMIC_ACQUIRE) != 0) return ncclInProgress;
  if (state != COMM_FINALIZING) return ncclSuccess;
  comm->ops->device->progress();
  if (!comm_done(comm)) return ncclInProgress;
  __atomic_store_n(&comm->state, COMM_FINALIZED, __ATOMIC_RELEASE);
  return ncclSuccess;
}

ncclResult_t pncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *asyncError) {
  TRY(comm_check_handle(comm, "ncclCommGetAsyncError"));
  if (!asyncError) {
    return log_fail(ncclInvalidArgument,
                    "ncclCommGetAsyncError: comm '%s': asyncError is NULL; pass where to put the "
                    "state",
                    comm->name);
  }
  *asyncError = comm_poll(comm);
  return ncclSuccess;
}
API_EXPORT(CommGetAsyncError);
