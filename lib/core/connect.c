/* connect.c: iterates over a plan's works and asks the backend for missing connections. Both ends of a
 * connection ask; the backend makes it once. After a failure the table is still correct. Does not know what a
 * connection consists of. */
#include "core/connect.h"

#include <stdio.h>
#include <string.h>

#include "base/array.h"
#include "base/log.h"
#include "base/os.h"
#include "core/comm/comm.h"
#include "core/remote/remote.h"
#include "core/proxy/net.h"

static ncclResult_t connect_reserve(struct ncclComm *comm) {
  if (connect_table_reserve(&comm->connections)) return ncclSuccess;
  return log_no_memory("rank %u of comm '%s': noting a connection", comm->rank, comm->name);
}

/* A link that is not in the table. */
struct connect_lack {
  struct connect_link link;
  struct device_conn_name name; /* as this rank names it */
};

/* In NCCL's words, where it has the transport. */
static const char *connect_via(const struct ncclComm *comm, const struct device_conn_name *name,
                               enum remote_transport transport) {
  if (transport == TRANSPORT_NETWORK) return "network";
  if (transport == TRANSPORT_LOCAL) return comm->ops->name;
  if (name->on_host) return "SHM/direct/direct";
  return strcmp(comm->ops->name, "cuda") == 0 ? "P2P/IPC" : "shared memory";
}

/* Between processes as NCCL does: at INFO, by the sender. */
static void connect_log(const struct ncclComm *comm, const struct device_conn_name *name,
                        enum remote_transport transport) {
  char text[160];
  snprintf(text, sizeof text, "Channel %02u/%u : %u -> %u via %s%s, connection %u, protocol %u",
           name->channel_index, name->conn_index, name->sends ? comm->rank : name->peer,
           name->sends ? name->peer : comm->rank, connect_via(comm, name, transport),
           name->proto == SLOTS_AT_SENDER ? "/read" : "", name->conn_index, slots_proto(name->proto));
  if (transport == TRANSPORT_LOCAL || !name->sends) log_trace(LOG_P2P, "%s", text);
  else
    log_info(LOG_INIT | (transport == TRANSPORT_NETWORK ? LOG_NET
                         : name->on_host                ? LOG_SHM
                                                        : LOG_P2P),
             "%s", text);
}

static ncclResult_t connect_here(struct ncclComm *comm, const struct device_conn_name *name) {
  struct device_comm *self = comm->device_comm, *other = comm->shared->device_comms[name->peer];
  TRY(comm->ops->device->comm_connect(name->sends ? self : other, name->sends ? other : self,
                                      name->channel_index, name->conn_index, name->proto));
  connect_log(comm, name, TRANSPORT_LOCAL);
  return ncclSuccess;
}

/* The receiver's end does not wait: the sender asks for it. */
static ncclResult_t connect_receiver(struct ncclComm *comm, const struct device_conn_name *name,
                                     enum remote_transport transport) {
  struct net_handle unused;
  if (transport == TRANSPORT_SHARED) return comm->ops->process->conn_export(comm->device_comm, name, NULL);
  return proxy_receive_open(comm->shared->remote->proxies[comm->rank], name, &unused);
}

/* A handle is valid only for the network that made it. */
static ncclResult_t connect_over_network(struct ncclComm *comm, const struct device_conn_name *name,
                                         const struct remote_listener *listener) {
  const struct remote *remote = comm->shared->remote;
  const struct net_ops *net = NULL;
  uint32_t device_count = 0;
  TRY(net_choose(&net, &device_count));
  if (strncmp(net->name, listener->network, sizeof listener->network - 1) == 0) {
    bool via_pxn = false;
    TRY(remote_pxn_try(comm, name, listener, device_count, &via_pxn));
    if (via_pxn) return ncclSuccess;
    return proxy_send_open(remote->proxies[comm->rank], name, &listener->handle, listener->apart != 0);
  }
  return log_fail(
      ncclInvalidUsage,
      "rank %u of comm '%s' uses network %s and rank %u (%s) network %.31s; give all processes the "
      "same NCCL_NET and NCCL_NET_PLUGIN; NCCL_DEBUG=INFO says why each took its own",
      comm->rank, comm->name, net->name, name->peer, remote->infos[name->peer].host_name, listener->network);
}

/* Connects with the answer of the other end's process. */
static ncclResult_t connect_answered(struct ncclComm *comm, const struct device_conn_name *name,
                                     enum remote_transport transport, const union remote_answer *answer) {
  connect_log(comm, name, transport);
  if (transport == TRANSPORT_SHARED)
    return comm->ops->process->conn_import(comm->device_comm, name, &answer->shared);
  return connect_over_network(comm, name, &answer->network);
}

/* Missing links to other processes, which must be asked for, in the order of the plan's works. */
struct connect_list {
  struct connect_lack *lacks;
  uint32_t count, capacity;
};

static ncclResult_t list_add(struct ncclComm *comm, struct connect_list *list,
                             const struct connect_lack *lack) {
  for (uint32_t i = 0; i < list->count; i++)
    if (list->lacks[i].link.key == lack->link.key && list->lacks[i].link.bit == lack->link.bit)
      return ncclSuccess;
  if (!array_grow(&list->lacks, &list->capacity, (uint64_t)list->count + 1, sizeof *list->lacks))
    return log_no_memory("rank %u of comm '%s': noting %u links", comm->rank, comm->name, list->count + 1);
  list->lacks[list->count++] = *lack;
  return ncclSuccess;
}

/* The receiver of a link to another process of the host needs what is in the sender's memory. */
static bool connect_receiver_asks(const struct ncclComm *comm, uint8_t slots,
                                  enum remote_transport transport) {
  return transport == TRANSPORT_SHARED && (slots == SLOTS_AT_SENDER || comm->ops->process->conn_both_ends());
}

static ncclResult_t connect_peer(struct ncclComm *comm, const struct work *work, uint32_t peer, bool sending,
                                 struct connect_list *list) {
  const struct remote *remote = comm->shared->remote;
  const enum remote_transport transport =
      remote ? remote_transport_to(remote, comm->rank, peer) : TRANSPORT_LOCAL;
  const uint32_t conn_index = work_link_conn(work, peer, sending);
  const uint8_t slots = transport == TRANSPORT_NETWORK ? work->proto : work_slots(work);
  const bool on_host = remote != NULL && remote_on_host(remote, comm->rank, peer);
  const struct connect_lack lack = {connect_link_of(peer, sending, conn_index, slots, work->channel_index),
                                    {peer, work->channel_index, conn_index, slots, sending, on_host}};
  if (peer == comm->rank && work->conn_index != CONN_SWITCH) return ncclSuccess;
  if (connect_table_has(&comm->connections, lack.link)) return ncclSuccess;
  TRY(connect_reserve(comm));
  const bool asks = sending || connect_receiver_asks(comm, slots, transport);
  if (transport != TRANSPORT_LOCAL && asks) return list_add(comm, list, &lack);
  TRY(transport == TRANSPORT_LOCAL ? connect_here(comm, &lack.name)
                                   : connect_receiver(comm, &lack.name, transport));
  connect_table_add(&comm->connections, lack.link);
  return ncclSuccess;
}

/* Asks one peer's process for the other ends of all links to it at once. */
static ncclResult_t connect_ask(struct ncclComm *comm, const struct connect_list *list, uint32_t peer,
                                struct remote_request *requests, union remote_answer *answers) {
  const enum remote_transport transport = remote_transport_to(comm->shared->remote, comm->rank, peer);
  uint32_t count = 0, next = 0;
  for (uint32_t i = 0; i < list->count; i++) {
    if (list->lacks[i].name.peer != peer) continue;
    requests[count].rank = peer;
    requests[count].transport = transport;
    requests[count].name = list->lacks[i].name;
    requests[count].name.peer = comm->rank;
    requests[count++].name.sends = !list->lacks[i].name.sends;
  }
  TRY(remote_ask(comm, requests, count, answers));
  for (uint32_t i = 0; i < list->count; i++) {
    if (list->lacks[i].name.peer != peer) continue;
    TRY(connect_answered(comm, &list->lacks[i].name, transport, &answers[next++]));
    TRY(connect_reserve(comm));
    connect_table_add(&comm->connections, list->lacks[i].link);
  }
  return ncclSuccess;
}

static bool list_names_before(const struct connect_list *list, uint32_t index) {
  for (uint32_t i = 0; i < index; i++)
    if (list->lacks[i].name.peer == list->lacks[index].name.peer) return true;
  return false;
}

static ncclResult_t connect_list_open(struct ncclComm *comm, const struct connect_list *list) {
  if (list->count == 0) return ncclSuccess;
  struct remote_request *requests = (struct remote_request *)os_alloc(list->count * sizeof *requests);
  union remote_answer *answers = (union remote_answer *)os_alloc(list->count * sizeof *answers);
  ncclResult_t result = ncclSuccess;
  if (!requests || !answers)
    result = log_no_memory("rank %u of comm '%s': asking for %u links", comm->rank, comm->name, list->count);
  for (uint32_t i = 0; result == ncclSuccess && i < list->count; i++)
    if (!list_names_before(list, i))
      result = connect_ask(comm, list, list->lacks[i].name.peer, requests, answers);
  os_free(requests);
  os_free(answers);
  return result;
}

/* Opens receivers' ends first, so that a sender that asks for them need not wait. */
static ncclResult_t connect_works(struct ncclComm *comm, const struct plan *plan, struct connect_list *list) {
  for (uint32_t i = 0; i < plan->work_count; i++) {
    const struct work *work = &plan->works[i];
    for (uint32_t k = 0; k < work->recv_count; k++)
      TRY(connect_peer(comm, work, work->recv_peer[k], false, list));
    for (uint32_t k = 0; k < work->send_count; k++)
      TRY(connect_peer(comm, work, work->send_peer[k], true, list));
  }
  return connect_list_open(comm, list);
}

ncclResult_t connect_plan(struct ncclComm *comm, struct plan *plan) {
  struct connect_list list = {NULL, 0, 0};
  const ncclResult_t result = connect_works(comm, plan, &list);
  os_free(list.lacks);
  TRY(result);
  if (plan->scratch_bytes == 0) return ncclSuccess;
  return comm->ops->memory->scratch(comm->device_comm, plan->scratch_bytes, &plan->scratch);
}
