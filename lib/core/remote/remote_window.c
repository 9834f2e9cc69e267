/* remote_window.c: windows and counters of signals of ranks in other processes of the host: a process asks
 * for them when a rank puts into a window for the first time (REMOTE_CALL_WINDOW). */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/param.h"
#include "core/bootstrap/control.h"
#include "core/comm/comm.h"
#include "core/remote/remote.h"

struct window_question {
  uint32_t kind; /* REMOTE_CALL_WINDOW */
  uint32_t peer; /* whose window it is */
  uint32_t number;
  uint32_t rank; /* that asks, to put into it */
};

struct window_reply {
  uint32_t found; /* enum window_find */
  uint32_t on_host;
  uint64_t begin, bytes;
  struct device_conn_handle signals;
};

/* ---- answering ---- */

static ncclResult_t window_tell(struct remote *remote, const struct window_question *question,
                                struct window_reply *reply) {
  const struct comm_shared *shared = remote->shared;
  struct ncclComm *comm = remote->comms[question->peer];
  struct window window;
  memset(&window, 0, sizeof window);
  reply->found = WINDOW_LEFT;
  if (!comm) return ncclSuccess;
  shared->ops->device->lock();
  reply->found =
      windows_find(shared->windows ? &shared->windows[question->peer] : NULL, question->number, &window);
  shared->ops->device->unlock();
  reply->on_host = window.registration == NULL;
  reply->bytes = window.bytes;
  if (window.registration)
    reply->begin = shared->ops->process->window_shown(comm->device_comm, question->rank,
                                                      (uint64_t)(uintptr_t)window.begin, window.bytes);
  if (reply->begin == DEVICE_REGION_LATER) reply->found = WINDOW_LATER;
  return shared->ops->process->signals_export(comm->device_comm, &reply->signals);
}

ncclResult_t remote_window_answer(struct remote *remote, const void *request, uint32_t bytes, void *reply,
                                  uint32_t *reply_bytes) {
  struct window_question question;
  struct window_reply *answer = (struct window_reply *)reply;
  if (bytes == sizeof question) memcpy(&question, request, sizeof question);
  if (bytes != sizeof question || question.peer >= remote->shared->rank_count ||
      question.rank >= remote->shared->rank_count ||
      remote->ranks[question.peer].process_index != remote->own_process)
    return log_fail(ncclRemoteError,
                    "a call of %u bytes for a window makes no sense; load the same library everywhere",
                    bytes);
  memset(answer, 0, sizeof *answer);
  os_mutex_lock(&remote->lock);
  const ncclResult_t result = window_tell(remote, &question, answer);
  os_mutex_unlock(&remote->lock);
  *reply_bytes = sizeof *answer;
  return result;
}

/* ---- asking ---- */

static ncclResult_t window_take(struct ncclComm *comm, uint32_t peer, const struct window_reply *reply,
                                struct window *window) {
  static struct registration somewhere; /* of the peer's: it is no memory of the host */
  void *mapped = NULL;
  if (reply->found != WINDOW_LEFT)
    TRY(comm->ops->process->signals_import(comm->device_comm, peer, &reply->signals));
  if (reply->found == WINDOW_FOUND && !reply->on_host)
    comm->ops->process->window_map(comm->device_comm, peer, reply->begin, reply->bytes, &mapped);
  window->begin = mapped;
  window->bytes = reply->bytes;
  window->registration = reply->on_host ? NULL : &somewhere;
  return ncclSuccess;
}

ncclResult_t remote_window_ask(struct ncclComm *comm, uint32_t peer, uint32_t number, enum window_find *found,
                               struct window *window) {
  const struct remote *remote = comm->shared->remote;
  const struct window_question question = {REMOTE_CALL_WINDOW, peer, number, comm->rank};
  const struct sock_address *to = &remote->addresses[remote->ranks[peer].process_index];
  struct window_reply reply;
  uint32_t reply_bytes = sizeof reply;
  char what[160];
  const struct sock_wait wait = {
      os_time_ns() + (uint64_t)param_int(PARAM_TUTTI_INIT_TIMEOUT_SECONDS) * 1000000000u, &comm->called_off,
      what};
  snprintf(what, sizeof what, "rank %u of comm '%s' asking rank %u for its window", comm->rank, comm->name,
           peer);
  comm->ops->process->order_hold(1);
  const ncclResult_t result =
      control_call(to, &remote->secret, &wait, &question, sizeof question, &reply, &reply_bytes);
  comm->ops->process->order_hold(-1);
  TRY(result);
  if (reply_bytes != sizeof reply)
    return log_fail(ncclRemoteError, "%s: %u bytes came back; load the same library everywhere", what,
                    reply_bytes);
  *found = (enum window_find)reply.found;
  return window_take(comm, peer, &reply, window);
}
