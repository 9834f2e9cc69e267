/* remote_pxn.c: selects the rank of another process that sends for a rank of this one, and makes the call for
 * it (REMOTE_CALL_PXN). If that process cannot or will not send, this is no failure: the rank sends by
 * itself. Knows nothing of how a PXN proxy works (proxy_pxn.h). */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/param.h"
#include "core/bootstrap/control.h"
#include "core/comm/comm.h"
#include "core/remote/remote.h"
#include "core/proxy/net.h"
#include "core/proxy/proxy_pxn.h"
#include "core/topology/rails.h"

/* Sent as is. */
struct pxn_question {
  uint32_t kind; /* REMOTE_CALL_PXN */
  uint32_t rank, over, device;
  struct device_conn_name name; /* as the sender names it */
  struct remote_listener listener;
};
struct pxn_reply {
  uint64_t made; /* 0: not possible */
  struct device_conn_handle handle;
  char why[256];
};

/* ---- answering ---- */

static bool question_is_sane(const struct remote *remote, const struct pxn_question *question) {
  const uint32_t rank_count = remote->shared->rank_count;
  return question->rank < rank_count && question->over < rank_count && question->name.peer < rank_count &&
         remote->ranks[question->over].process_index == remote->own_process &&
         remote_transport_to(remote, question->over, question->rank) == TRANSPORT_SHARED &&
         remote_transport_to(remote, question->rank, question->name.peer) == TRANSPORT_NETWORK &&
         question->name.channel_index < PLAN_CHANNELS_MAX && question->name.conn_index < 4 &&
         question->name.proto == PROTO_SIMPLE && question->name.sends;
}

static ncclResult_t pxn_open(const struct remote *remote, const struct pxn_question *question,
                             struct device_conn_handle *handle) {
  const struct ncclComm *comm = remote->comms[question->over];
  const struct net_ops *net = NULL;
  uint32_t device_count = 0;
  if (!comm)
    return log_fail(ncclRemoteError, "rank %" PRIu32 " has destroyed its communicator", question->over);
  TRY(net_choose(&net, &device_count));
  if (strncmp(net->name, question->listener.network, sizeof question->listener.network - 1) != 0)
    return log_fail(ncclInvalidUsage, "rank %" PRIu32 " uses network %s", question->over, net->name);
  const struct proxy_pxn_call call = {.ops = comm->ops,
                                      .device_comm = comm->device_comm,
                                      .comm_key = remote->wire_key,
                                      .secret = remote->secret,
                                      .rank = question->rank,
                                      .over = question->over,
                                      .rank_count = remote->shared->rank_count,
                                      .comm_name = comm->name,
                                      .traffic_class = comm_traffic_class(comm),
                                      .name = question->name,
                                      .handle = question->listener.handle,
                                      .apart = question->listener.apart != 0,
                                      .net_device = question->device};
  return proxy_pxn_open(&call, handle);
}

ncclResult_t remote_pxn_answer(struct remote *remote, const void *request, uint32_t bytes, void *reply,
                               uint32_t *reply_bytes) {
  struct pxn_question question;
  struct pxn_reply *answer = (struct pxn_reply *)reply;
  if (bytes == sizeof question) memcpy(&question, request, sizeof question);
  if (bytes != sizeof question || !question_is_sane(remote, &question))
    return log_fail(ncclRemoteError,
                    "a call of %u bytes for a rank that sends for another makes no sense; load the same "
                    "library everywhere",
                    bytes);
  memset(answer, 0, sizeof *answer);
  os_mutex_lock(&remote->lock);
  answer->made = pxn_open(remote, &question, &answer->handle) == ncclSuccess;
  os_mutex_unlock(&remote->lock);
  if (!answer->made) snprintf(answer->why, sizeof answer->why, "%s", log_own_error());
  *reply_bytes = sizeof *answer;
  return ncclSuccess;
}

/* ---- asking ---- */

/* False: the process cannot or will not send. */
static bool pxn_ask(struct ncclComm *comm, const struct pxn_question *question, struct pxn_reply *reply) {
  const struct remote *remote = comm->shared->remote;
  const struct sock_address *to = &remote->addresses[remote->ranks[question->over].process_index];
  char what[160];
  const struct sock_wait wait = {
      os_time_ns() + (uint64_t)param_int(PARAM_TUTTI_INIT_TIMEOUT_SECONDS) * 1000000000u, &comm->called_off,
      what};
  uint32_t reply_bytes = sizeof *reply;
  snprintf(what, sizeof what, "rank %" PRIu32 " of comm '%s' asking rank %" PRIu32 " to send for it",
           comm->rank, comm->name, question->over);
  const enum control_outcome outcome =
      control_ask(to, &remote->secret, &wait, question, sizeof *question, reply, &reply_bytes);
  if (outcome == CONTROL_ANSWERED && reply_bytes == sizeof *reply && reply->made) return true;
  reply->why[sizeof reply->why - 1] = '\0';
  log_info(LOG_NET | LOG_PROXY,
           "comm %s: channel %" PRIu32 ": %" PRIu32 " -> %" PRIu32 " does not go through rank %" PRIu32
           ": %s",
           comm->name, question->name.channel_index, comm->rank, question->name.peer, question->over,
           outcome == CONTROL_ANSWERED ? reply->why : "its process does not answer");
  return false;
}

ncclResult_t remote_pxn_try(struct ncclComm *comm, const struct device_conn_name *name,
                            const struct remote_listener *listener, uint32_t device_count, bool *made) {
  const struct remote *remote = comm->shared->remote;
  struct pxn_question question;
  struct pxn_reply reply;
  struct proxy_over over;
  *made = false;
  if (!rails_pxn(remote->rails, comm->rank, name, device_count, &over.device, &over.rank)) return ncclSuccess;
  memset(&question, 0, sizeof question);
  memset(&reply, 0, sizeof reply);
  question.kind = REMOTE_CALL_PXN;
  question.rank = comm->rank;
  question.over = over.rank;
  question.device = over.device;
  question.name = *name;
  question.listener = *listener;
  if (!pxn_ask(comm, &question, &reply)) return ncclSuccess;
  TRY(comm->ops->process->conn_import(comm->device_comm, name, &reply.handle));
  TRY(proxy_send_over(remote->proxies[comm->rank], name, &over));
  log_info(LOG_NET | LOG_PROXY,
           "comm %s: channel %" PRIu32 ": %" PRIu32 " -> %" PRIu32 " goes by device %" PRIu32
           " at the side of rank %" PRIu32 ", whose process %d sends it (PXN)",
           comm->name, name->channel_index, comm->rank, name->peer, over.device, over.rank,
           remote->infos[over.rank].process);
  *made = true;
  return ncclSuccess;
}
