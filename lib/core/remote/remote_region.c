/* remote_region.c: tells the processes of other ranks which user memory to map, so that their kernels store
 * into outputs, and when it is freed (REMOTE_CALL_REGION). If a process refuses or does not answer, data uses
 * slots instead. Does not know how memory is mapped. */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/share.h"
#include "core/bootstrap/control.h"
#include "core/comm/comm.h"
#include "core/remote/remote.h"

#define ANSWER_NS UINT64_C(10000000000)
#define SEEN_MOST 32

/* Sent as is. */
struct region_question {
  uint32_t kind;              /* REMOTE_CALL_REGION */
  uint32_t rank;              /* the rank that maps ... */
  uint32_t from;              /* ... this rank's memory ... */
  uint32_t gone;              /* ... or, if 1, unmaps it */
  struct share_ticket ticket; /* of the memory's descriptor; bytes 0: it has none */
  struct device_memory_handle handle;
};

/* ---- answering ---- */

/* The address at which the memory is mapped, or 0. */
static uint64_t region_map(struct remote *remote, const struct region_question *question) {
  uint64_t address = 0;
  int descriptor = -1;
  /* Before the lock is taken: it may wait for the owner. */
  if (question->ticket.bytes > 0 && share_fetch(&question->ticket, &descriptor) != ncclSuccess) return 0;
  os_mutex_lock(&remote->lock);
  const struct ncclComm *comm = remote->comms[question->rank];
  if (comm && comm->ops->process->region_map(comm->device_comm, question->from, &question->handle, descriptor,
                                             &address) != ncclSuccess)
    address = 0;
  os_mutex_unlock(&remote->lock);
  share_close(descriptor);
  return address;
}

static void region_unmap(struct remote *remote, const struct region_question *question) {
  os_mutex_lock(&remote->lock);
  struct ncclComm *comm = remote->comms[question->rank];
  if (comm) comm->ops->process->region_unmap(comm->device_comm, question->from, &question->handle);
  if (comm) __atomic_fetch_add(&comm->one_sided.unmapped, 1, __ATOMIC_RELEASE);
  os_mutex_unlock(&remote->lock);
  remote_lease_wake();
}

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
  if (question.gone) region_unmap(remote, &question);
  else address = region_map(remote, &question);
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

/* A buffer of a plan. */
struct shown {
  const void *memory;
  size_t bytes;
};

/* Sends the question. A descriptor is passed on until it is answered: it keeps the memory in use. */
static uint64_t region_offer(struct ncclComm *comm, struct region_question *question, int descriptor) {
  if (descriptor >= 0 && share_pass(descriptor, &question->ticket) != ncclSuccess) return 0;
  const uint64_t address = region_send(comm->shared->remote, &comm->called_off, question);
  if (descriptor >= 0) share_pass_end(&question->ticket);
  return address;
}

/* True if the peer has said of some of it that it can map it later. */
static bool region_show(struct ncclComm *comm, const struct shown *shown, uint32_t peer) {
  bool later = false;
  struct region_question question = {REMOTE_CALL_REGION, peer, comm->rank, 0, {0, {0, 0}, 0, 0}, {{0}}};
  int descriptor = -1;
  while (comm->ops->process->region_ask(comm->device_comm, shown->memory, shown->bytes, peer,
                                        &question.handle, &descriptor)) {
    const uint64_t address = region_offer(comm, &question, descriptor);
    share_close(descriptor);
    comm->ops->process->region_answered(comm->device_comm, peer, &question.handle, address);
    remote_lease_wake();
    log_trace(LOG_REG, "comm %s: rank %u %s rank %u its memory around %p", comm->name, comm->rank,
              address > DEVICE_REGION_LATER ? "shows" : "cannot show", peer, shown->memory);
    memset(&question.ticket, 0, sizeof question.ticket);
    descriptor = -1;
    later = later || address == DEVICE_REGION_LATER;
  }
  return later;
}

/* A peer that has mapped what was at this address before cannot map this until its kernels have ended. */
#define WINDOW_TRIES 1000

void remote_window_show(struct ncclComm *comm, const void *memory, size_t bytes) {
  const struct remote *remote = comm->shared->remote;
  const struct process_ops *process = comm->ops->process;
  const struct shown shown = {memory, bytes};
  if (!remote || !remote->shows) return;
  process->window_hold(comm->device_comm, memory, bytes, true);
  for (uint32_t peer = 0; peer < comm->rank_count; peer++) {
    if (remote_transport_to(remote, comm->rank, peer) != TRANSPORT_SHARED ||
        remote_on_host(remote, comm->rank, peer))
      continue;
    bool later = region_show(comm, &shown, peer);
    for (int i = 0; later && i < WINDOW_TRIES && !__atomic_load_n(&comm->called_off, __ATOMIC_RELAXED); i++) {
      os_sleep_ms(1);
      process->region_check(comm->device_comm, memory, bytes, true);
      region_show(comm, &shown, peer);
      later = process->window_shown(comm->device_comm, peer, (uint64_t)(uintptr_t)memory, bytes) <=
              DEVICE_REGION_LATER;
    }
  }
}

void remote_window_hide(struct ncclComm *comm, const void *memory, size_t bytes) {
  const struct remote *remote = comm->shared->remote;
  if (!remote || !remote->shows) return;
  comm->ops->process->window_hold(comm->device_comm, memory, bytes, false);
  remote_lease_wake();
}

/* Buffers and peers of one plan that are already handled. */
struct seen {
  uint32_t count;
  struct shown shown[SEEN_MOST];
  uint32_t peer[SEEN_MOST];
};

static bool is_same(const struct shown *a, const struct shown *b) {
  return a->memory == b->memory && a->bytes == b->bytes;
}

static bool memory_seen(const struct seen *seen, const struct shown *shown) {
  for (uint32_t i = 0; i < seen->count; i++)
    if (is_same(&seen->shown[i], shown)) return true;
  return false;
}

static bool seen_before(struct seen *seen, const struct shown *shown, uint32_t peer) {
  for (uint32_t i = 0; i < seen->count; i++)
    if (is_same(&seen->shown[i], shown) && seen->peer[i] == peer) return true;
  if (seen->count < SEEN_MOST) {
    seen->shown[seen->count] = *shown;
    seen->peer[seen->count++] = peer;
  }
  return false;
}

static void region_show_all(struct ncclComm *comm, const struct shown *shown, const uint32_t *peers,
                            uint32_t count, bool lasts, struct seen *seen) {
  bool checked = shown->memory == NULL || memory_seen(seen, shown);
  for (uint32_t k = 0; shown->memory != NULL && k < count; k++) {
    if (remote_transport_to(comm->shared->remote, comm->rank, peers[k]) != TRANSPORT_SHARED ||
        seen_before(seen, shown, peers[k]))
      continue;
    if (!checked)
      comm->ops->process->region_check(comm->device_comm, shown->memory, shown->bytes,
                                       lasts || registrations_hold(comm->registrations, shown->memory));
    checked = true;
    region_show(comm, shown, peers[k]);
  }
}

void remote_regions_show(struct ncclComm *comm, const struct plan *plan, bool lasts) {
  struct seen seen = {0, {{NULL, 0}}, {0}};
  for (uint32_t i = 0; i < plan->work_count; i++) {
    const struct work *work = &plan->works[i];
    const struct shown out = {plan->buffers[i].out, work_out_bytes(work)};
    const struct shown in = {plan->buffers[i].in, work_in_bytes(work)};
    if ((work->flags & WORK_DIRECT_RECV) != 0)
      region_show_all(comm, &out, work->recv_peer, work->recv_count, lasts, &seen);
    if ((work->flags & WORK_SHOWS_INPUT) != 0)
      region_show_all(comm, &in, work->send_peer, work->send_count, lasts, &seen);
  }
}

/* A communicator that is closed meanwhile unmaps the memory itself. */
void remote_regions_return(struct remote *remote, uint32_t rank, const uint32_t *called_off) {
  struct region_question question = {REMOTE_CALL_REGION, 0, rank, 1, {0, {0, 0}, 0, 0}, {{0}}};
  for (bool more = true; more && __atomic_load_n(called_off, __ATOMIC_ACQUIRE) == 0;) {
    os_mutex_lock(&remote->lock);
    const struct ncclComm *comm = remote->comms[rank];
    more = comm && comm->ops->process->region_gone(comm->device_comm, &question.rank, &question.handle);
    os_mutex_unlock(&remote->lock);
    if (more) region_send(remote, called_off, &question);
  }
}
