/* conn.c: an end of a connection: its resources, the steps until it is ready, errors, and closing.
 *
 *   sender                                               receiver
 *   connect: connects the socket, authenticates      ->  accept: finds the listener
 *   info: queue pairs, GIDs, memory for entries      ->  makes and connects its queue pairs
 *                                                    <-  info
 *   connects its queue pairs, tests each path (path.c)
 *   go                                               ->  may write entries of posted receives */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "backends/ibv/ib.h"
#include "base/log.h"
#include "base/param.h"

#define CONN_INFO_MAGIC 0x7475747469696234ull
#define HANDLE_MAGIC 0x7475747469696230ull
#define GUESTS_MAX 4
static_assert(sizeof(struct ib_handle) <= NET_HANDLE_BYTES, "a handle fits");

/* ---- error messages ---- */

ncclResult_t ib_fail(struct ib_end *end, ncclResult_t code, const char *format, ...) {
  char text[768], address[SOCK_TEXT_BYTES];
  va_list arguments;
  if (end->failed != ncclSuccess) return end->failed;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  end->failed = code;
  return log_fail(code, "Network IB: %s: rank %u %s rank %u at %s over %s: %s", end->comm_name, end->rank,
                  end->kind == IB_SEND ? "sending to" : "receiving from", end->peer,
                  sock_address_text(&end->address, address), end->device->name, text);
}

ncclResult_t ib_gone(struct ib_end *end) {
  const unsigned long long number = end->kind == IB_SEND ? end->begun : end->finished;
  return ib_fail(end, ncclRemoteError,
                 "the other end closed the connection, with %llu messages %s; the other process's own "
                 "messages say why",
                 number, end->kind == IB_SEND ? "begun" : "received");
}

/* ---- resources ---- */

static uint32_t qps_wanted(const struct ib_device *device) {
  const uint32_t each = (uint32_t)param_int(PARAM_IB_QPS_PER_CONNECTION);
  const uint32_t wanted = each * device->port_count;
  return wanted < IB_QPS_MAX ? wanted : IB_QPS_MAX;
}

static ncclResult_t class_check(const struct net_peer *peer) {
  if (peer->traffic_class <= 256) return ncclSuccess;
  return log_fail(ncclInvalidArgument, "%s: config.trafficClass is %u; the most that RoCE has is 255",
                  peer->comm_name, peer->traffic_class - 1);
}

static void end_names(struct ib_end *end, enum ib_kind kind, const struct net_peer *peer) {
  end->kind = kind;
  end->rank = peer->rank;
  end->peer = peer->peer;
  end->comm_key = peer->comm_key;
  end->traffic_class = peer->traffic_class;
  end->verbs = end->device->ports[0].of->verbs;
  snprintf(end->comm_name, sizeof end->comm_name, "%s",
           peer->comm_name != NULL ? peer->comm_name : "communicator");
}

/* The completion queue has space for all requests that can be under way on its queue pairs. */
static ncclResult_t outlet_open(struct ib_end *end, uint32_t index) {
  const struct ib_port *port = &end->device->ports[index];
  struct ib_outlet *outlet = &end->outlets[index];
  const uint32_t ports = end->device->port_count, qps = (end->qp_count + ports - 1) / ports;
  const int depth = (int)((qps + 1) * (IB_SEND_DEPTH + IB_RECEIVE_DEPTH)),
            most = port->of->attributes.max_cqe;
  outlet->pd = end->verbs->pd_alloc(port->of->context);
  if (outlet->pd == NULL)
    return ib_fail(end, ncclSystemError, "%s gives no protection domain", port->of->name);
  outlet->cq = end->verbs->cq_create(port->of->context, depth < most || most <= 0 ? depth : most);
  if (outlet->cq == NULL)
    return ib_fail(end, ncclSystemError, "%s gives no completion queue of %d entries (%s)", port->of->name,
                   depth, strerror(errno));
  outlet->memory = end->verbs->memory_register(outlet->pd, end->memory, sizeof *end->memory,
                                               IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE, false);
  if (outlet->memory == NULL)
    return ib_fail(end, ncclSystemError, "memory cannot be registered with %s: see `ulimit -l`",
                   port->of->name);
  struct ib_port_info *info = &end->own.ports[index];
  memcpy(info->gid, port->gid.raw, sizeof info->gid);
  info->lid = port->attributes.lid;
  info->mtu = (uint8_t)port->attributes.active_mtu;
  info->ethernet = port->ethernet;
  info->key = outlet->memory->rkey;
  return ncclSuccess;
}

static ncclResult_t end_open(struct ib_end *end, uint32_t qp_count) {
  end->qp_count = qp_count;
  end->memory = (struct ib_memory *)os_pages_map(sizeof *end->memory);
  if (end->memory == NULL) return ib_fail(end, ncclSystemError, "a connection" LOG_OUT_OF_MEMORY);
  end->own.magic = CONN_INFO_MAGIC;
  end->own.qp_count = qp_count;
  end->own.port_count = end->device->port_count;
  end->own.memory = (uint64_t)(uintptr_t)end->memory;
  snprintf(end->own.name, sizeof end->own.name, "%s", end->device->name);
  for (uint32_t i = 0; i < end->device->port_count; i++) TRY(outlet_open(end, i));
  end->own.bad = end->other.bad; /* a receiver has the sender's info */
  ib_ports_choose(end);
  return ib_qps_create(end);
}

/* A receiver sends the number of messages that it has: those are delivered even if their acknowledgements are
 * lost.
 */
ncclResult_t ib_end_close(struct ib_end *end) {
  if (end->kind == IB_RECEIVE) ib_wire_note_send(&end->wire, WIRE_BYE, end->finished);
  ib_qps_destroy(end);
  ib_regions_free(end);
  for (uint32_t i = 0; i < end->device->port_count; i++) {
    const struct ib_outlet *outlet = &end->outlets[i];
    if (outlet->memory != NULL) end->verbs->memory_unregister(outlet->memory);
    if (outlet->cq != NULL) end->verbs->cq_destroy(outlet->cq);
    if (outlet->pd != NULL) end->verbs->pd_free(outlet->pd);
  }
  if (end->memory != NULL) os_pages_unmap(end->memory, sizeof *end->memory);
  sock_close(end->wire.fd);
  os_free(end);
  return ncclSuccess;
}

struct ib_request *ib_request_take(struct ib_end *end, bool flush) {
  for (uint32_t i = 0; i < NET_REQUESTS_MAX; i++) {
    struct ib_request *request = &end->requests[flush ? NET_REQUESTS_MAX + i : i];
    if (request->used) continue;
    request->end = end;
    request->used = true;
    request->done = false;
    request->count = request->immediate = request->reads = 0;
    return request;
  }
  return NULL;
}

/* ---- becoming ready ---- */

static bool info_is_good(const struct ib_end *end) {
  const struct ib_conn_info *info = &end->other;
  for (uint32_t i = 0; i < end->qp_count; i++)
    if (info->outlets[i] >= info->port_count) return false;
  return info->magic == CONN_INFO_MAGIC && info->qp_count == end->qp_count && info->port_count > 0 &&
         info->port_count <= IB_PORTS_MAX && info->memory != 0 &&
         memchr(info->name, '\0', sizeof info->name) != NULL;
}

/* Both ends compute the same numbers from the two infos. */
ncclResult_t ib_conn_info_take(struct ib_end *end) {
  const uint32_t own = end->device->port_count;
  if (!info_is_good(end)) return ib_fail(end, ncclRemoteError, "the other end's connection info is invalid");
  if (end->other.ports[0].ethernet != end->own.ports[0].ethernet)
    return ib_fail(end, ncclRemoteError,
                   "%s is %s, and the other end's %s is not: NCCL_IB_HCA chooses devices of one kind",
                   end->device->name, end->own.ports[0].ethernet ? "RoCE" : "InfiniBand", end->other.name);
  end->stripes = own > end->other.port_count ? own : end->other.port_count;
  if (param_int(PARAM_IB_SPLIT_DATA_ON_QPS) != 0 || end->stripes > end->qp_count)
    end->stripes = end->qp_count;
  const int64_t routing = param_int(PARAM_IB_ADAPTIVE_ROUTING);
  const bool adaptive = routing < 0 ? !end->own.ports[0].ethernet : routing != 0;
  end->adaptive_bytes = adaptive ? (size_t)param_int(PARAM_IB_AR_THRESHOLD) : SIZE_MAX;
  TRY(ib_qps_connect(end));
  end->phase = end->kind == IB_SEND ? IB_PATH : IB_INFO_OUT;
  end->phase_ns = os_time_ns();
  return ncclSuccess;
}

static ncclResult_t step_dial(struct ib_end *end) {
  const int64_t pause_ms = param_int(PARAM_SOCKET_RETRY_SLEEP_MSEC);
  if (end->wire.fd < 0 && os_time_ns() < end->phase_ns) return ncclSuccess;
  int state = 0;
  if (end->wire.fd < 0) {
    state = ib_wire_dial(&end->handle.address);
    end->wire.fd = state >= 0 ? state : -1;
  }
  if (state >= 0) state = ib_wire_dialed(end->wire.fd);
  if (state == 0) return ncclSuccess;
  if (state > 0) {
    handshake_client_begin(&end->client, end->wire.fd, HANDSHAKE_DATA,
                           ib_handle_key(&end->handle, end->comm_key), &end->secret);
    end->phase = IB_HANDSHAKE;
    return ncclSuccess;
  }
  sock_close(end->wire.fd);
  end->wire.fd = -1;
  if (++end->idle > param_int(PARAM_SOCKET_RETRY_CNT))
    return ib_fail(end, ncclRemoteError, "connecting: %s, after %u tries", strerror(-state), end->idle);
  end->phase_ns = os_time_ns() + end->idle * (uint64_t)pause_ms * 1000000;
  return ncclSuccess;
}

static ncclResult_t step_handshake(struct ib_end *end) {
  char reason[128] = "";
  switch (handshake_client_step(&end->client, reason, sizeof reason)) {
    case HANDSHAKE_DONE: end->phase = IB_INFO_OUT; return ncclSuccess;
    case HANDSHAKE_GONE:
      return ib_fail(end, ncclRemoteError, "connecting: %s",
                     reason[0] != '\0' ? reason : "the other end hung up");
    default: return ncclSuccess;
  }
}

static ncclResult_t step_infos(struct ib_end *end) {
  const bool out = end->phase == IB_INFO_OUT;
  const int moved = out ? ib_wire_send(&end->wire, &end->own, sizeof end->own)
                        : ib_wire_receive(&end->wire, &end->other, sizeof end->other);
  if (moved < 0) return ib_gone(end);
  if (moved == 0) return ncclSuccess;
  if (!out) return ib_conn_info_take(end);
  end->phase = end->kind == IB_SEND ? IB_INFO_IN : IB_GO;
  return ncclSuccess;
}

static ncclResult_t step_go(struct ib_end *end) {
  const int got = ib_wire_note_receive(&end->wire);
  if (got < 0) return ib_gone(end);
  if (got > 0 && end->wire.note.kind == WIRE_RECONNECT) return ib_reconnect_asked(end);
  if (got == 0 || end->wire.note.kind != WIRE_GO) return ncclSuccess;
  end->phase = IB_READY;
  return ib_reconnect_resume(end);
}

ncclResult_t ib_end_step(struct ib_end *end) {
  if (end->failed != ncclSuccess) return end->failed;
  switch (end->phase) {
    case IB_DIALING: return step_dial(end);
    case IB_HANDSHAKE: return step_handshake(end);
    case IB_INFO_OUT:
    case IB_INFO_IN: return step_infos(end);
    case IB_DRAIN:
    case IB_RECONNECT_OUT:
    case IB_RECONNECT_IN:
    case IB_LINK: return ib_reconnect_step(end);
    case IB_PATH: return ib_path_step(end);
    case IB_GO: return step_go(end);
    default: return ncclSuccess;
  }
}

ncclResult_t ib_end_poll(struct ib_end *end) {
  return end->phase == IB_READY ? ib_poll(end) : ib_end_step(end);
}

ncclResult_t ib_connect(uint32_t device, const struct net_peer *peer, struct net_handle *handle,
                        void **connection) {
  TRY(class_check(peer));
  const struct ib_device *of = ib_device_of(device);
  if (of == NULL) return ncclInvalidArgument;
  struct ib_end *end = (struct ib_end *)os_alloc(sizeof *end);
  if (end == NULL) return log_no_memory("Network IB: a connection");
  end->device = of;
  end->wire.fd = -1;
  end_names(end, IB_SEND, peer);
  memcpy(&end->handle, handle->bytes, sizeof end->handle);
  net_peer_secret(peer, ib_handle_key(&end->handle, peer->comm_key), &end->secret);
  const struct ib_handle *to = &end->handle;
  ncclResult_t result = ncclSuccess;
  if (to->magic != HANDLE_MAGIC || to->address.port == 0 || to->qp_count < 1 || to->qp_count > IB_QPS_MAX)
    result = ib_fail(end, ncclInvalidArgument, "these bytes are no handle of this network");
  end->address = to->address;
  const uint32_t own = qps_wanted(of);
  if (result == ncclSuccess) result = end_open(end, own > to->qp_count ? own : to->qp_count);
  if (result == ncclSuccess) *connection = end;
  else ib_end_close(end);
  return result;
}

/* ---- listening ---- */

struct listener {
  enum ib_kind kind; /* first, as in struct ib_end */
  int fd;
  const struct ib_device *device;
  uint64_t comm_key, key;
  struct secret secret;
  uint32_t rank, peer, traffic_class;
  char comm_name[64];
  struct ib_handle handle;
  bool claimed, guest_used[GUESTS_MAX];
  struct handshake guests[GUESTS_MAX];
  struct ib_end *end; /* the connection that is being made */
};

static ncclResult_t listener_open(struct listener *listener) {
  struct sock_interface interfaces[SOCK_INTERFACES_MAX];
  uint32_t count = 0;
  TRY(handshake_check());
  TRY(sock_interfaces_find(NULL, interfaces, &count));
  if (count == 0)
    return log_fail(ncclSystemError, "Network IB: no interface to meet at: see NCCL_SOCKET_IFNAME");
  return sock_listen(&interfaces[0].address, &listener->fd, &listener->handle.address);
}

ncclResult_t ib_listen(uint32_t device, const struct net_peer *peer, struct net_handle *handle, void **out) {
  TRY(class_check(peer));
  const struct ib_device *of = ib_device_of(device);
  if (of == NULL) return ncclInvalidArgument;
  struct listener *listener = (struct listener *)os_alloc(sizeof *listener);
  if (listener == NULL) return log_no_memory("Network IB: a listener");
  listener->kind = IB_LISTENER;
  listener->fd = -1;
  listener->device = of;
  listener->comm_key = peer->comm_key;
  listener->rank = peer->rank;
  listener->peer = peer->peer;
  listener->traffic_class = peer->traffic_class;
  if (peer->comm_name != NULL)
    snprintf(listener->comm_name, sizeof listener->comm_name, "%s", peer->comm_name);
  listener->handle.magic = HANDLE_MAGIC;
  listener->handle.number = os_entropy();
  listener->key = ib_handle_key(&listener->handle, peer->comm_key);
  net_peer_secret(peer, listener->key, &listener->secret);
  listener->handle.qp_count = qps_wanted(of);
  listener->handle.port_count = of->port_count;
  const ncclResult_t result = listener_open(listener);
  if (result != ncclSuccess) {
    ib_listen_close(listener);
    return result;
  }
  memset(handle, 0, sizeof *handle);
  memcpy(handle->bytes, &listener->handle, sizeof listener->handle);
  *out = listener;
  return ncclSuccess;
}

/* A free place; if there is none, that of the oldest client. */
static uint32_t guest_place(struct listener *listener) {
  uint32_t eldest = 0;
  for (uint32_t i = 0; i < GUESTS_MAX; i++) {
    if (!listener->guest_used[i]) return i;
    if (listener->guests[i].begin_ns < listener->guests[eldest].begin_ns) eldest = i;
  }
  sock_close(listener->guests[eldest].fd);
  listener->guest_used[eldest] = false;
  return eldest;
}

static bool secret_find(void *argument, enum handshake_kind kind, uint64_t key, struct secret *secret) {
  const struct listener *listener = (const struct listener *)argument;
  if (kind != HANDSHAKE_DATA || key != listener->key) return false;
  *secret = listener->secret;
  return true;
}

static void guests_admit(struct listener *listener) {
  struct sock_address from;
  int fd;
  for (uint32_t i = 0; i < GUESTS_MAX && (fd = sock_accept(listener->fd, &from)) >= 0; i++) {
    const uint32_t index = guest_place(listener);
    handshake_begin(&listener->guests[index], fd, secret_find, listener);
    listener->guest_used[index] = true;
  }
}

/* The client is the sender: makes an end for it. Its info will say how many queue pairs it wants. */
static ncclResult_t guest_accept(struct listener *listener, int fd) {
  const struct net_peer peer = {.comm_key = listener->comm_key,
                                .rank = listener->rank,
                                .peer = listener->peer,
                                .comm_name = listener->comm_name,
                                .traffic_class = listener->traffic_class};
  struct ib_end *end = (struct ib_end *)os_alloc(sizeof *end);
  if (end == NULL) {
    sock_close(fd);
    return log_no_memory("Network IB: a connection");
  }
  end->device = listener->device;
  end_names(end, IB_RECEIVE, &peer);
  end->wire.fd = fd;
  end->address = sock_peer(fd);
  end->phase = IB_INFO_IN;
  listener->end = end;
  return ncclSuccess;
}

static ncclResult_t guest_step(struct listener *listener, uint32_t index) {
  struct handshake *guest = &listener->guests[index];
  const enum handshake_state state = handshake_step(guest);
  if (state == HANDSHAKE_MORE) return ncclSuccess;
  const char *refusal = listener->end != NULL ? "connected already" : NULL;
  listener->guest_used[index] = false;
  if (state == HANDSHAKE_DONE && handshake_answer(guest, refusal) && refusal == NULL)
    return guest_accept(listener, guest->fd);
  sock_close(guest->fd);
  return ncclSuccess;
}

/* The sender's info is complete, so the number of queue pairs is known. */
static ncclResult_t receiver_info(struct ib_end *end) {
  const int moved = ib_wire_receive(&end->wire, &end->other, sizeof end->other);
  if (moved < 0) return ib_gone(end);
  if (moved == 0) return ncclSuccess;
  if (end->other.qp_count < 1 || end->other.qp_count > IB_QPS_MAX)
    return ib_fail(end, ncclRemoteError, "the other end's connection info is invalid");
  TRY(end_open(end, end->other.qp_count));
  return ib_conn_info_take(end);
}

ncclResult_t ib_accept(void *at, void **connection) {
  struct listener *listener = (struct listener *)at;
  *connection = NULL;
  if (listener->claimed) return ncclSuccess;
  if (listener->end == NULL) guests_admit(listener);
  for (uint32_t i = 0; i < GUESTS_MAX; i++)
    if (listener->guest_used[i]) TRY(guest_step(listener, i));
  struct ib_end *end = listener->end;
  if (end == NULL) return ncclSuccess;
  if (end->phase == IB_INFO_IN) TRY(receiver_info(end));
  else TRY(ib_end_step(end));
  if (end->phase < IB_GO) return ncclSuccess;
  listener->claimed = true;
  listener->end = NULL;
  *connection = end;
  return ncclSuccess;
}

ncclResult_t ib_listen_close(void *at) {
  struct listener *listener = (struct listener *)at;
  for (uint32_t i = 0; i < GUESTS_MAX; i++)
    if (listener->guest_used[i]) sock_close(listener->guests[i].fd);
  if (listener->end != NULL) ib_end_close(listener->end);
  sock_close(listener->fd);
  secret_wipe(&listener->secret);
  os_free(listener);
  return ncclSuccess;
}
