/* remote_region.c: tells the processes of other ranks which user memory to map, so that their kernels store
 * into outputs, and when it is freed (REMOTE_CALL_REGION). If a process refuses or does not answer, data uses
 * slots instead. Does not know how memory is mapped. */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "core/bootstrap/control.h"
#include "core/comm/comm.h"
#include "core/remote/remote.h"

#define ANSWER_NS UINT64_C(10000000000)
#define SEEN_MOST 32

/* Sent as is. */
struct region_question {
  uint32_t kind; /* REMOTE_CALL_REGION */
  uint32_t rank; /* the rank that maps ... */
  uint32_t from; /* ... this rank's memory ... */
  uint32_t gone; /* ... or, if 1, unmaps it */
  struct device_memory_handle handle;
};

/* ---- answering ---- */

ncclResult_t remote_region_answer(struct remote *remote, const void *request, uint32_t bytes, void *reply,
                                  uint32_t *reply_bytes) {
  const uint32_t rank_count = remote->shared->rank_count;
  struct region_question question;
  uint64_t address = 0;
  if (bytes == sizeof question) memcpy(&question, request, sizeof question);
  if (bytes != sizeof question || question.rank >= rank_count || question.from >= rank_count ||
      remote->ranks[question.rank].process_index != remote->own_process ||
      remote_transport_to(remote, question.rank, question.from) != TRANSPORT_SHARED)
    return log_fail(ncclRemoteError,
                    "a call of %u bytes about memory makes no sense; load the same library everywhere",
                    bytes);
  os_mutex_lock(&remote->lock);
  const struct ncclComm *comm = remote->comms[question.rank];
  if (comm && question.gone)
    comm->ops->process->region_unmap(comm->device_comm, question.from, &question.handle);
  else if (comm && comm->ops->process->region_map(comm->device_comm, question.from, &question.handle,
                                                  &address) != ncclSuccess)
    address = 0;
  os_mutex_unlock(&remote->lock);
  if (question.gone) remote_lease_wake();
  memcpy(reply, &address, sizeof address);
  *reply_bytes = sizeof address;
  return ncclSuccess;
}

/* ---- asking ---- */

static uint64_t region_send(const struct remote *remote, const uint32_t *called_off,
                            const struct region_question *question) {
  char what[96];
  const struct sock_wait wait = {os_time_ns() + ANSWER_NS, called_off, what};
  uint64_t address = 0;
  uint32_t reply_bytes = sizeof address;
  snprintf(what, sizeof what, "rank %u telling rank %u of its memory", question->from, question->rank);
  const enum control_outcome outcome =
      control_ask(&remote->addresses[remote->ranks[question->rank].process_index], &remote->secret, &wait,
                  question, sizeof *question, &address, &reply_bytes);
  return outcome == CONTROL_ANSWERED && reply_bytes == sizeof address ? address : 0;
}

static void region_show(struct ncclComm *comm, const void *memory, uint32_t peer) {
  struct region_question question = {REMOTE_CALL_REGION, peer, comm->rank, 0, {{0}}};
  if (!comm->ops->process->region_ask(comm->device_comm, memory, peer, &question.handle)) return;
  const uint64_t address = region_send(comm->shared->remote, &comm->called_off, &question);
  comm->ops->process->region_answered(comm->device_comm, peer, &question.handle, address);
  remote_lease_wake();
  log_trace(LOG_REG, "comm %s: rank %u %s rank %u its memory around %p", comm->name, comm->rank,
            address != 0 ? "shows" : "cannot show", peer, memory);
}

/* Memory and peers of one plan that are already handled. */
struct seen {
  uint32_t count;
  const void *memory[SEEN_MOST];
  uint32_t peer[SEEN_MOST];
};

static bool memory_seen(const struct seen *seen, const void *memory) {
  for (uint32_t i = 0; i < seen->count; i++)
    if (seen->memory[i] == memory) return true;
  return false;
}

static bool seen_before(struct seen *seen, const void *memory, uint32_t peer) {
  for (uint32_t i = 0; i < seen->count; i++)
    if (seen->memory[i] == memory && seen->peer[i] == peer) return true;
  if (seen->count < SEEN_MOST) {
    seen->memory[seen->count] = memory;
    seen->peer[seen->count++] = peer;
  }
  return false;
}

static void region_show_all(struct ncclComm *comm, const void *memory, const uint32_t *peers, uint32_t count,
                            bool lasts, struct seen *seen) {
  bool checked = memory == NULL || memory_seen(seen, memory);
  for (uint32_t k = 0; memory != NULL && k < count; k++) {
    if (remote_transport_to(comm->shared->remote, comm->rank, peers[k]) != TRANSPORT_SHARED ||
        seen_before(seen, memory, peers[k]))
      continue;
    if (!checked)
      comm->ops->process->region_check(comm->device_comm, memory,
                                       lasts || registrations_hold(comm->registrations, memory));
    checked = true;
    region_show(comm, memory, peers[k]);
  }
}

void remote_regions_show(struct ncclComm *comm, const struct plan *plan, bool lasts) {
  struct seen seen = {0, {NULL}, {0}};
  for (uint32_t i = 0; i < plan->work_count; i++) {
    const struct work *work = &plan->works[i];
    if ((work->flags & WORK_DIRECT_RECV) != 0)
      region_show_all(comm, plan->buffers[i].out, work->recv_peer, work->recv_count, lasts, &seen);
    if ((work->flags & WORK_SHOWS_INPUT) != 0)
      region_show_all(comm, plan->buffers[i].in, work->send_peer, work->send_count, lasts, &seen);
  }
}

/* A communicator that is closed meanwhile unmaps the memory itself. */
void remote_regions_return(struct remote *remote, uint32_t rank, const uint32_t *called_off) {
  struct region_question question = {REMOTE_CALL_REGION, 0, rank, 1, {{0}}};
  for (bool more = true; more && __atomic_load_n(called_off, __ATOMIC_ACQUIRE) == 0;) {
    os_mutex_lock(&remote->lock);
    const struct ncclComm *comm = remote->comms[rank];
    more = comm && comm->ops->process->region_gone(comm->device_comm, &question.rank, &question.handle);
    os_mutex_unlock(&remote->lock);
    if (more) region_send(remote, called_off, &question);
  }
}
