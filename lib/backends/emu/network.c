/* network.c: the network between the emulated nodes of one process, and its injected faults (fault.h). A
 * message waits until its receive is posted, then for a number of turns drawn from the seed. Messages of one
 * connection stay in order; those of different connections may overtake each other. In guarded mode a service
 * makes the turns, so that a run depends only on program and seed; in threads mode each test of a request
 * makes one.
 *
 * A lost peer is ncclRemoteError, with a message that names ranks, device and fault. No real time is used,
 * except for slow and cut connections in threads mode. */
#include <stdio.h>
#include <string.h>

#include "backends/backend.h"
#include "backends/fault.h"
#include "backends/emu/world.h"
#include "backends/emu/world_impl.h"
#include "backends/net.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/os.h"

#define MARK 0x74757474696e6574u
#define NICS_USUAL 8
#define NICS_MAX 64 /* as TUTTI_EMU's nics */
#define NIC_MBPS 400000
#define MESSAGE_BYTES_MAX (1u << 30)
#define HOLD_TURNS 200    /* delay of a held message */
#define SLOW_TURNS 100    /* time that a slow connection takes for a message: guarded */
#define SLOW_NS 60000000u /* the same in threads mode */
#define CUT_TURNS 64      /* silence after which an end gives up: guarded */
#define CUT_NS 300000000u /* the same in threads mode */
#define NAME_BYTES 64

enum request_state { REQUEST_FREE, REQUEST_WAITS, REQUEST_DONE, REQUEST_TOO_LONG, REQUEST_LINGERS };

struct end;
struct request {
  enum request_state state;
  struct end *end;
  uint8_t *data;
  size_t bytes;       /* of the message; of a receive that is not done, the buffer's size */
  size_t other_bytes; /* REQUEST_TOO_LONG: the size at the other end */
  uint64_t due;       /* sends: the turn from which on it may arrive */
  uint64_t due_ns;    /* sends of a slow connection in threads mode: the time; else 0 */
  bool twice;         /* sends: the message arrives twice */
  bool lingers;       /* sends: the message arrives, but its send never completes */
};

/* The requests of one end, in order: those that wait are in [first, last). A free request's place is reused.
 */
struct end {
  struct wire *wire;
  bool sends, open, error_logged;
  struct request requests[NET_REQUESTS_MAX];
  uint64_t first, last;
};

enum wire_state { WIRE_GOOD, WIRE_CUT, WIRE_STOPPED, WIRE_SILENT, WIRE_RESET, WIRE_CLOSED };

/* One connection. */
struct wire {
  struct wire *next;
  enum wire_state state;
  uint64_t comm_key, listener; /* number of the listener that will accept it; 0: accepted */
  uint32_t sender, receiver, device;
  char comm_name[NAME_BYTES];
  bool refuses;              /* accepts no more messages */
  bool slow;                 /* takes long for each message */
  uint64_t cut_turn, cut_ns; /* when it became WIRE_CUT */
  uint64_t due, due_ns;      /* of the previous message: no later one arrives earlier */
  uint8_t *duplicate;        /* a message that arrives a second time, before any other */
  size_t duplicate_bytes;
  struct end send, recv;
};

struct listener {
  struct listener *next;
  struct net_peer peer;
  uint64_t number;
};

/* The content of a handle. */
struct place {
  uint64_t mark, process, number;
};

static struct {
  os_mutex mutex;
  uint64_t process; /* 0: not drawn yet */
  uint64_t random, turn, number;
  uint64_t messages[NICS_MAX]; /* sent, by device */
  struct fault_plan fault;
  struct listener *listeners;
  struct wire *wires; /* in the order of creation, which is the same on every guarded run */
  void *service;      /* NULL: tests of requests make the turns */
} net = {.mutex = OS_MUTEX_INITIALIZER};

void emu_network_restart(const struct emu_options *options) {
  os_mutex_lock(&net.mutex);
  net.random = options->seed ^ 0x6e6574u;
  net.turn = 0;
  memset(net.messages, 0, sizeof net.messages);
  const enum fault_kind kind = (enum fault_kind)options->fault;
  fault_plan_make(&net.fault, FAULT_IS_LANES(kind) ? FAULT_NOTHING : kind, options->fault_at, options->seed);
  os_mutex_unlock(&net.mutex);
}

static uint32_t draw_below(uint32_t bound) { return (uint32_t)(hash_draw(&net.random) % bound); }

static bool is_self_driven(void) { return net.service == NULL || emu_options()->mode != EMU_GUARDED; }

/* ---- turns ---- */

static struct request *request_at(struct end *end, uint64_t number) {
  return &end->requests[number % NET_REQUESTS_MAX];
}

/* The oldest waiting request. */
static struct request *request_head(const struct end *end) {
  for (uint64_t number = end->first; number < end->last; number++) {
    struct request *request = request_at((struct end *)(uintptr_t)end, number);
    if (request->state == REQUEST_WAITS) return request;
  }
  return NULL;
}

static bool wire_met(const struct wire *wire) {
  return wire->state == WIRE_GOOD && request_head(&wire->recv) != NULL &&
         (wire->duplicate != NULL || request_head(&wire->send) != NULL);
}

static bool wire_counts_down(const struct wire *wire) {
  return wire->state == WIRE_CUT && (request_head(&wire->send) != NULL || request_head(&wire->recv) != NULL);
}

static bool something_to_do(void) {
  for (struct wire *wire = net.wires; wire != NULL; wire = wire->next)
    if (wire_met(wire) || wire_counts_down(wire)) return true;
  return false;
}

static void request_finish(struct end *end, struct request *request, enum request_state state) {
  request->state = state;
  while (end->first < end->last && request_at(end, end->first)->state != REQUEST_WAITS) end->first += 1;
}

/* Copies the message for its second arrival; if out of memory, it arrives only once. */
static void wire_repeat(struct wire *wire, const struct request *send) {
  wire->duplicate = (uint8_t *)os_alloc(send->bytes);
  wire->duplicate_bytes = send->bytes;
  if (wire->duplicate != NULL) memcpy(wire->duplicate, send->data, send->bytes);
}

/* The second arrival of a message, which completes a receive and no send. */
static void arrive_duplicate(struct wire *wire, struct request *recv) {
  recv->bytes = wire->duplicate_bytes < recv->bytes ? wire->duplicate_bytes : recv->bytes;
  memcpy(recv->data, wire->duplicate, recv->bytes);
  request_finish(&wire->recv, recv, REQUEST_DONE);
  os_free(wire->duplicate);
  wire->duplicate = NULL;
}

static void wire_arrive(struct wire *wire) {
  struct request *send = request_head(&wire->send), *recv = request_head(&wire->recv);
  enum request_state state = REQUEST_DONE;
  if (wire->duplicate != NULL) {
    arrive_duplicate(wire, recv);
    return;
  }
  send->other_bytes = recv->bytes;
  recv->other_bytes = send->bytes;
  if (send->bytes > recv->bytes) {
    state = REQUEST_TOO_LONG;
  } else {
    if (send->bytes > 0) memcpy(recv->data, send->data, send->bytes);
    recv->bytes = send->bytes;
    if (send->twice) wire_repeat(wire, send);
  }
  request_finish(&wire->recv, recv, state);
  request_finish(&wire->send, send, send->lingers ? REQUEST_LINGERS : state);
}

static bool wire_is_due(const struct wire *wire) {
  if (wire->duplicate != NULL) return true;
  const struct request *send = request_head(&wire->send);
  return send->due <= net.turn && (send->due_ns == 0 || send->due_ns <= os_time_ns());
}

static uint32_t count_due(void) {
  uint32_t count = 0;
  for (const struct wire *wire = net.wires; wire != NULL; wire = wire->next)
    count += wire_met(wire) && wire_is_due(wire);
  return count;
}

static void cut_go_on(void) {
  const bool guarded = emu_options()->mode == EMU_GUARDED;
  for (struct wire *wire = net.wires; wire != NULL; wire = wire->next) {
    if (!wire_counts_down(wire)) continue;
    if (guarded ? net.turn - wire->cut_turn > CUT_TURNS : os_time_ns() - wire->cut_ns > CUT_NS)
      wire->state = WIRE_SILENT;
  }
}

/* One turn: advances the network's time and delivers one of the messages that are due, drawn at random. */
static void make_turn(void) {
  net.turn += 1;
  const uint32_t count = count_due();
  uint32_t lot = count > 0 ? draw_below(count) : 0;
  for (struct wire *wire = net.wires; wire != NULL && count > 0; wire = wire->next) {
    if (!wire_met(wire) || !wire_is_due(wire)) continue;
    if (lot == 0) {
      wire_arrive(wire);
      break;
    }
    lot -= 1;
  }
  cut_go_on();
}

static bool service_ready(void *argument) {
  (void)argument;
  os_mutex_lock(&net.mutex);
  const bool ready = something_to_do();
  os_mutex_unlock(&net.mutex);
  return ready;
}

static void service_turn(void *argument) {
  (void)argument;
  os_mutex_lock(&net.mutex);
  make_turn();
  os_mutex_unlock(&net.mutex);
}

static bool service_outside(void *argument) {
  (void)argument;
  return false;
}

/* Lists the connections on which requests wait. */
static void service_report(void *argument, char *out, size_t out_bytes) {
  static const char *const words[] = {"", "cut", "silent", "lost", "reset", "closed"};
  size_t used = 0;
  (void)argument;
  if (out_bytes > 0) out[0] = '\0';
  os_mutex_lock(&net.mutex);
  for (const struct wire *wire = net.wires; wire != NULL && used < out_bytes; wire = wire->next) {
    const bool waits = request_head(&wire->send) != NULL || request_head(&wire->recv) != NULL;
    if (wire->state == WIRE_GOOD || !waits) continue;
    used +=
        (size_t)snprintf(out + used, out_bytes - used,
                         "\n  network Emu, device emu%u: rank %u -> rank %u of %s is %s: fault '%s' happened "
                         "to message %llu",
                         wire->device, wire->sender, wire->receiver, wire->comm_name, words[wire->state],
                         fault_names[net.fault.kind], (unsigned long long)net.fault.at);
  }
  os_mutex_unlock(&net.mutex);
}

/* Wakes the service after a change. Called without the mutex, because the service's functions take it with
 * the world locked. */
static void service_wake(void) {
  if (net.service != NULL) backend_ops()->network->service_wake(net.service);
}

/* ---- faults ---- */

static bool wire_alive(const struct wire *wire) { return wire->state <= WIRE_STOPPED; }

static void fault_cut(const struct wire *hit) {
  for (struct wire *wire = net.wires; wire != NULL; wire = wire->next) {
    const bool same = wire->sender == hit->sender && wire->receiver == hit->receiver;
    const bool reverse = wire->sender == hit->receiver && wire->receiver == hit->sender;
    if (wire->comm_key != hit->comm_key || !wire_alive(wire) || (!same && !reverse)) continue;
    wire->state = WIRE_CUT;
    wire->cut_turn = net.turn;
    wire->cut_ns = os_time_ns();
  }
}

static void fault_stop(const struct wire *hit) {
  for (struct wire *wire = net.wires; wire != NULL; wire = wire->next)
    if (wire->comm_key == hit->comm_key && wire_alive(wire) &&
        (wire->sender == hit->sender || wire->receiver == hit->sender))
      wire->state = WIRE_STOPPED;
}

/* Sets when the message may arrive: after all earlier ones of the connection. */
static void wire_delay(struct wire *wire, struct request *send) {
  if (emu_options()->mode == EMU_GUARDED) {
    wire->due = send->due += SLOW_TURNS;
    return;
  }
  const uint64_t now_ns = os_time_ns();
  wire->due_ns = send->due_ns = (now_ns > wire->due_ns ? now_ns : wire->due_ns) + SLOW_NS;
}

/* Injects the fault into a message that is about to be sent. */
static void fault_happen(struct wire *wire, struct request *send) {
  const enum fault_kind kind = fault_next(&net.fault);
  if (kind == FAULT_NOTHING) return;
  log_info(LOG_NET, "Network Emu: fault '%s' happens to message %llu, from rank %u to rank %u of %s",
           fault_names[kind], (unsigned long long)net.fault.at, wire->sender, wire->receiver,
           wire->comm_name);
  if (kind == FAULT_DROP) request_finish(&wire->send, send, REQUEST_DONE);
  if (kind == FAULT_DUPLICATE) send->twice = true;
  if (kind == FAULT_HOLD) wire->due = send->due += HOLD_TURNS;
  if (kind == FAULT_SLOW) wire->slow = true;
  if (kind == FAULT_CUT) fault_cut(wire);
  if (kind == FAULT_STOP) fault_stop(wire);
  if (kind == FAULT_RESET) wire->state = WIRE_RESET;
  if (kind == FAULT_REFUSE) wire->refuses = true;
  if (kind == FAULT_LINGER) send->lingers = true;
}

/* Logs that the connection is lost, once at each end. */
static ncclResult_t end_fail(struct end *end) {
  const struct wire *wire = end->wire;
  const char *why = wire->state == WIRE_RESET    ? "the connection was reset"
                    : wire->state == WIRE_SILENT ? "nothing was heard of it any more"
                                                 : "it has closed the connection";
  if (end->error_logged) return ncclRemoteError;
  end->error_logged = true;
  return log_fail(ncclRemoteError, "network Emu, device emu%u: rank %u has lost rank %u of %s: %s%s",
                  wire->device, end->sends ? wire->sender : wire->receiver,
                  end->sends ? wire->receiver : wire->sender, wire->comm_name, why,
                  wire->state == WIRE_CLOSED ? "" : " (TUTTI_EMU asked for this fault)");
}

/* ---- devices ---- */

static uint32_t device_count(void) {
  const struct emu_options *options = emu_options();
  const uint32_t near = options->device_count / options->node_count;
  return options->nic_count != 0 ? options->nic_count : near < NICS_USUAL ? near : NICS_USUAL;
}

static ncclResult_t network_properties(uint32_t device, struct net_properties *properties) {
  const uint32_t count = device_count();
  if (device >= count)
    return log_fail(ncclInvalidArgument, "network Emu has %u devices, no device %u", count, device);
  memset(properties, 0, sizeof *properties);
  snprintf(properties->name, sizeof properties->name, "emu%u", device);
  properties->guid = 0xe3000000u + device;
  properties->speed_mbps = NIC_MBPS;
  properties->port = 1;
  properties->latency_us = 1;
  properties->max_comms = 1u << 20;
  properties->max_recvs = 1;
  properties->max_message_bytes = MESSAGE_BYTES_MAX;
  properties->global_registration = true;
  properties->rail = (int32_t)device;
  return ncclSuccess;
}

/* ---- connections ---- */

static ncclResult_t network_listen(uint32_t device, const struct net_peer *peer, struct net_handle *handle,
                                   void **result) {
  struct listener *listener = (struct listener *)os_alloc(sizeof *listener);
  if (listener == NULL) return log_no_memory("network Emu: a listener");
  (void)device;
  os_mutex_lock(&net.mutex);
  if (net.process == 0) net.process = os_entropy() | 1;
  net.number += 1;
  listener->peer = *peer;
  listener->peer.comm_name = NULL; /* belongs to the caller */
  listener->number = net.number;
  listener->next = net.listeners;
  net.listeners = listener;
  const struct place place = {MARK, net.process, net.number};
  os_mutex_unlock(&net.mutex);
  memset(handle, 0, sizeof *handle);
  memcpy(handle->bytes, &place, sizeof place);
  *result = listener;
  return ncclSuccess;
}

static const struct listener *listener_find(const struct place *place, uint64_t comm_key) {
  for (const struct listener *listener = net.listeners; listener != NULL; listener = listener->next)
    if (listener->number == place->number && listener->peer.comm_key == comm_key) return listener;
  return NULL;
}

static ncclResult_t place_check(const struct place *place, const struct net_peer *peer) {
  if (place->mark == MARK && place->process == net.process) return ncclSuccess;
  return log_fail(ncclInvalidUsage,
                  "network Emu: rank %u cannot reach rank %u of %s, which lies in another process; leave "
                  "net=1 out of TUTTI_EMU",
                  peer->rank, peer->peer, peer->comm_name);
}

static void wire_append(struct wire *wire) {
  struct wire **link = &net.wires;
  while (*link != NULL) link = &(*link)->next;
  *link = wire;
}

static ncclResult_t connect_locked(uint32_t device, const struct net_peer *peer, const struct place *place,
                                   struct wire *wire) {
  TRY(place_check(place, peer));
  if (listener_find(place, peer->comm_key) == NULL)
    return log_fail(ncclRemoteError, "network Emu: rank %u of %s does not listen to rank %u any more",
                    peer->peer, peer->comm_name, peer->rank);
  wire->comm_key = peer->comm_key;
  wire->listener = place->number;
  wire->sender = peer->rank;
  wire->receiver = peer->peer;
  wire->device = device;
  snprintf(wire->comm_name, sizeof wire->comm_name, "%s", peer->comm_name);
  wire->send.wire = wire->recv.wire = wire;
  wire->send.sends = wire->send.open = wire->recv.open = true;
  wire_append(wire);
  return ncclSuccess;
}

static ncclResult_t network_connect(uint32_t device, const struct net_peer *peer, struct net_handle *handle,
                                    void **connection) {
  struct place place;
  struct wire *wire = (struct wire *)os_alloc(sizeof *wire);
  if (wire == NULL) return log_no_memory("network Emu: a connection");
  memcpy(&place, handle->bytes, sizeof place);
  os_mutex_lock(&net.mutex);
  const ncclResult_t result = connect_locked(device, peer, &place, wire);
  os_mutex_unlock(&net.mutex);
  *connection = NULL;
  if (result == ncclSuccess) *connection = &wire->send;
  else os_free(wire);
  return result;
}

static ncclResult_t network_accept(void *listener, void **connection) {
  const struct listener *at = (const struct listener *)listener;
  *connection = NULL;
  os_mutex_lock(&net.mutex);
  for (struct wire *wire = net.wires; wire != NULL && *connection == NULL; wire = wire->next) {
    if (wire->listener != at->number) continue;
    wire->listener = 0;
    *connection = &wire->recv;
  }
  os_mutex_unlock(&net.mutex);
  return ncclSuccess;
}

/* ---- closing ---- */

static void wire_free(struct wire *wire) {
  struct wire **link = &net.wires;
  while (*link != wire) link = &(*link)->next;
  *link = wire->next;
  os_free(wire->duplicate);
  os_free(wire);
}

static void end_close(struct end *end) {
  struct wire *wire = end->wire;
  end->open = false;
  end->first = end->last;
  if (wire_alive(wire)) wire->state = WIRE_CLOSED;
  if (!wire->send.open && !wire->recv.open) wire_free(wire);
}

static ncclResult_t network_close(void *connection) {
  os_mutex_lock(&net.mutex);
  end_close((struct end *)connection);
  os_mutex_unlock(&net.mutex);
  service_wake();
  return ncclSuccess;
}

static ncclResult_t network_close_listen(void *listener) {
  struct listener *at = (struct listener *)listener, **link = &net.listeners;
  os_mutex_lock(&net.mutex);
  while (*link != at) link = &(*link)->next;
  *link = at->next;
  for (struct wire *wire = net.wires, *next; wire != NULL; wire = next) {
    next = wire->next;
    if (wire->listener == at->number) end_close(&wire->recv); /* it will never be accepted */
  }
  os_mutex_unlock(&net.mutex);
  os_free(at);
  service_wake();
  return ncclSuccess;
}

/* ---- memory and messages ---- */

static ncclResult_t network_register(void *connection, void *data, size_t bytes, enum net_memory kind,
                                     void **registration) {
  (void)data, (void)bytes, (void)kind; /* all memory of emulated devices is the host's */
  *registration = connection;
  return ncclSuccess;
}

static ncclResult_t network_unregister(void *connection, void *registration) {
  (void)connection, (void)registration;
  return ncclSuccess;
}

/* NULL if all places are in use. */
static struct request *request_begin(struct end *end, void *data, size_t bytes) {
  struct request *request = request_at(end, end->last);
  if (request->state != REQUEST_FREE) return NULL;
  memset(request, 0, sizeof *request);
  request->state = REQUEST_WAITS;
  request->end = end;
  request->data = (uint8_t *)data;
  request->bytes = bytes;
  end->last += 1;
  return request;
}

static ncclResult_t send_locked(struct end *end, void *data, size_t bytes, void **request) {
  struct wire *wire = end->wire;
  if (!wire_alive(wire)) return end_fail(end);
  struct request *send = wire->refuses ? NULL : request_begin(end, data, bytes);
  *request = send;
  if (send == NULL) return ncclSuccess;
  const uint64_t due = net.turn + draw_below(emu_options()->net_delay + 1);
  send->due = wire->due = due > wire->due ? due : wire->due;
  net.messages[wire->device % NICS_MAX] += 1;
  fault_happen(wire, send);
  if (wire->slow) wire_delay(wire, send);
  return ncclSuccess;
}

static ncclResult_t network_isend(void *connection, const void *data, size_t bytes, int tag,
                                  void *registration, void **request) {
  (void)tag, (void)registration;
  *request = NULL;
  os_mutex_lock(&net.mutex);
  const ncclResult_t result = send_locked((struct end *)connection, (void *)(uintptr_t)data, bytes, request);
  os_mutex_unlock(&net.mutex);
  service_wake();
  return result;
}

static ncclResult_t network_irecv(void *connection, uint32_t count, void *const *data, const size_t *bytes,
                                  const int *tags, void *const *registrations, void **request) {
  struct end *end = (struct end *)connection;
  (void)tags, (void)registrations;
  *request = NULL;
  if (count != 1)
    return log_fail(ncclInternalError, "network Emu takes one receive at a time, not %u", count);
  os_mutex_lock(&net.mutex);
  const bool lost = !wire_alive(end->wire);
  const ncclResult_t result = lost ? end_fail(end) : ncclSuccess;
  if (!lost) *request = request_begin(end, data[0], bytes[0]);
  os_mutex_unlock(&net.mutex);
  service_wake();
  return result;
}

static ncclResult_t too_long(const struct request *request) {
  const struct end *end = request->end;
  const struct wire *wire = end->wire;
  const size_t sent = end->sends ? request->bytes : request->other_bytes;
  const size_t capacity = end->sends ? request->other_bytes : request->bytes;
  return log_fail(ncclInvalidUsage,
                  "network Emu: rank %u sends %zu bytes to rank %u of %s, which has space for %zu: the "
                  "ranks' counts or calls differ",
                  wire->sender, sent, wire->receiver, wire->comm_name, capacity);
}

static ncclResult_t test_locked(struct request *request, bool *done, size_t *bytes) {
  struct end *end = request->end;
  if (is_self_driven()) make_turn();
  if (request->state == REQUEST_TOO_LONG) return too_long(request);
  if (request->state == REQUEST_LINGERS) return ncclSuccess;
  if (request->state == REQUEST_WAITS) return wire_alive(end->wire) ? ncclSuccess : end_fail(end);
  if (bytes != NULL) *bytes = request->bytes;
  request->state = REQUEST_FREE;
  *done = true;
  return ncclSuccess;
}

static ncclResult_t network_test(void *request, bool *done, size_t *bytes) {
  *done = false;
  os_mutex_lock(&net.mutex);
  const ncclResult_t result = test_locked((struct request *)request, done, bytes);
  os_mutex_unlock(&net.mutex);
  return result;
}

/* ---- the table ---- */

static ncclResult_t network_devices(uint32_t *count);

static struct net_ops network_ops = {
    .size = sizeof(struct net_ops),
    .name = "Emu",
    .devices = network_devices,
    .properties = network_properties,
    .listen = network_listen,
    .connect = network_connect,
    .accept = network_accept,
    .register_memory = network_register,
    .unregister_memory = network_unregister,
    .isend = network_isend,
    .irecv = network_irecv,
    .iflush = net_flush_nothing,
    .test = network_test,
    .close_send = network_close,
    .close_recv = network_close,
    .close_listen = network_close_listen,
};

/* Adds the service here, at the first call, because later calls may come from within an event. */
static ncclResult_t network_devices(uint32_t *count) {
  static const struct device_service service = {
      .name = "network",
      .key = UINT64_MAX,
      .ready = service_ready,
      .turn = service_turn,
      .outside = service_outside,
      .report = service_report,
  };
  const bool guarded = emu_options()->mode == EMU_GUARDED;
  if (net.service == NULL && guarded) TRY(backend_ops()->network->service_add(&service, &net.service));
  network_ops.in_world = net.service != NULL && guarded;
  *count = device_count();
  return ncclSuccess;
}

uint64_t emu_net_messages(uint32_t device) {
  os_mutex_lock(&net.mutex);
  const uint64_t count = device < NICS_MAX ? net.messages[device] : 0;
  os_mutex_unlock(&net.mutex);
  return count;
}

const struct net_ops *emu_net_ops(void) { return emu_options()->net ? &network_ops : NULL; }
