/* far_relay.c: which rank of another process sends for one of this, and the call that asks for it
 * (FAR_CALL_RELAY). Promises that a process which cannot, or will not, send for others is no failure: the
 * rank then sends by itself. Knows nothing of what a relay does (proxy_relay.h). */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/param.h"
#include "core/bootstrap/control.h"
#include "core/comm.h"
#include "core/far/far.h"
#include "core/proxy/net.h"
#include "core/proxy/proxy_relay.h"
#include "core/topology/rails.h"

/* Travels as it is. */
struct relay_question {
  uint32_t kind; /* FAR_CALL_RELAY */
  uint32_t rank, over, device;
  struct device_conn_name name; /* as the sender names it */
  struct far_listener listener;
};
struct relay_reply {
  uint64_t made; /* 0: it cannot be */
  struct device_conn_card card;
  char why[256];
};

/* ---- answering ---- */

static bool question_is_sane(const struct far *far, const struct relay_question *question) {
  const uint32_t rank_count = far->team->rank_count;
  return question->rank < rank_count && question->over < rank_count && question->name.peer < rank_count &&
         far->ranks[question->over].party == far->own_party &&
         far_way_to(far, question->over, question->rank) == FAR_SHARED &&
         far_way_to(far, question->rank, question->name.peer) == FAR_NETWORK &&
         question->name.channel_index < PLAN_CHANNELS_MAX && question->name.conn_index < 4 &&
         question->name.proto == PROTO_SIMPLE && question->name.sends;
}

static ncclResult_t relay_open(const struct far *far, const struct relay_question *question,
                               struct device_conn_card *card) {
  const struct ncclComm *comm = far->comms[question->over];
  const struct net_ops *net = NULL;
  uint32_t device_count = 0;
  if (!comm)
    return log_fail(ncclRemoteError, "rank %" PRIu32 " has destroyed its communicator", question->over);
  TRY(net_choose(&net, &device_count));
  if (strncmp(net->name, question->listener.network, sizeof question->listener.network - 1) != 0)
    return log_fail(ncclInvalidUsage, "rank %" PRIu32 " uses network %s", question->over, net->name);
  const struct proxy_relay_call call = {.ops = comm->ops,
                                        .device_comm = comm->device_comm,
                                        .comm_key = far->wire_key,
                                        .rank = question->rank,
                                        .over = question->over,
                                        .rank_count = far->team->rank_count,
                                        .comm_name = comm->name,
                                        .name = question->name,
                                        .handle = question->listener.handle,
                                        .net_device = question->device};
  return proxy_relay_open(&call, card);
}

ncclResult_t far_relay_answer(struct far *far, const void *request, uint32_t bytes, void *reply,
                              uint32_t *reply_bytes) {
  struct relay_question question;
  struct relay_reply *answer = (struct relay_reply *)reply;
  if (bytes == sizeof question) memcpy(&question, request, sizeof question);
  if (bytes != sizeof question || !question_is_sane(far, &question))
    return log_fail(ncclRemoteError,
                    "a call of %u bytes for a rank that sends for another makes no sense; load the same "
                    "library everywhere",
                    bytes);
  memset(answer, 0, sizeof *answer);
  os_mutex_lock(&far->lock);
  answer->made = relay_open(far, &question, &answer->card) == ncclSuccess;
  os_mutex_unlock(&far->lock);
  if (!answer->made) snprintf(answer->why, sizeof answer->why, "%s", log_own_error());
  *reply_bytes = sizeof *answer;
  return ncclSuccess;
}

/* ---- asking ---- */

/* False: nobody will. */
static bool relay_ask(struct ncclComm *comm, const struct relay_question *question,
                      struct relay_reply *reply) {
  const struct far *far = comm->team->far;
  const struct sock_address *to = &far->addresses[far->ranks[question->over].party];
  char what[160];
  const struct sock_wait wait = {
      os_time_ns() + (uint64_t)param_int(PARAM_TUTTI_INIT_TIMEOUT_SECONDS) * 1000000000u, &comm->called_off,
      what};
  uint32_t reply_bytes = sizeof *reply;
  snprintf(what, sizeof what, "rank %" PRIu32 " of comm '%s' asking rank %" PRIu32 " to send for it",
           comm->rank, comm->name, question->over);
  const enum control_outcome outcome =
      control_ask(to, far->wire_key, &wait, question, sizeof *question, reply, &reply_bytes);
  if (outcome == CONTROL_ANSWERED && reply_bytes == sizeof *reply && reply->made) return true;
  reply->why[sizeof reply->why - 1] = '\0';
  log_info(LOG_NET | LOG_PROXY,
           "comm %s: channel %" PRIu32 ": %" PRIu32 " -> %" PRIu32 " does not go by way of rank %" PRIu32
           ": %s",
           comm->name, question->name.channel_index, comm->rank, question->name.peer, question->over,
           outcome == CONTROL_ANSWERED ? reply->why : "its process does not answer");
  return false;
}

ncclResult_t far_relay_try(struct ncclComm *comm, const struct device_conn_name *name,
                           const struct far_listener *listener, uint32_t device_count, bool *made) {
  const struct far *far = comm->team->far;
  struct relay_question question;
  struct relay_reply reply;
  struct proxy_over over;
  *made = false;
  if (!rails_relay(far->rails, comm->rank, name, device_count, &over.device, &over.rank)) return ncclSuccess;
  memset(&question, 0, sizeof question);
  memset(&reply, 0, sizeof reply);
  question.kind = FAR_CALL_RELAY;
  question.rank = comm->rank;
  question.over = over.rank;
  question.device = over.device;
  question.name = *name;
  question.listener = *listener;
  if (!relay_ask(comm, &question, &reply)) return ncclSuccess;
  TRY(comm->ops->conn_import(comm->device_comm, name, &reply.card));
  TRY(proxy_send_over(far->proxies[comm->rank], name, &over));
  log_info(LOG_NET | LOG_PROXY,
           "comm %s: channel %" PRIu32 ": %" PRIu32 " -> %" PRIu32 " goes by device %" PRIu32
           " at the side of rank %" PRIu32 ", whose process %d sends it (PXN)",
           comm->name, name->channel_index, comm->rank, name->peer, over.device, over.rank,
           far->cards[over.rank].process);
  *made = true;
  return ncclSuccess;
}
