/* plugin.c: libtutti-net-fault.so: the library's sockets with one injected fault (fault.h), as a network
 * plugin of version 11 of the interface, for any library that loads plugins. TUTTI_NET_FAULTS selects the
 * fault: fault=NAME,fault_at=K,seed=S; K counts the messages that this process sends. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/fault.h"
#include "backends/net.h"
#include "backends/net_abi.h"
#include "base/log.h"
#include "base/os.h"

#define EXPORT __attribute__((visibility("default")))
#define REQUESTS (2 * NET_REQUESTS_MAX)
#define HOLD_NS 200000000u
#define CUT_NS 3000000000u
#define LIST_BYTES 256

struct fault_net_context {
  uint64_t comm_id;
};

struct fault_net_end;
struct fault_net_request {
  struct fault_net_end *end; /* NULL: free */
  void *inner, *second;      /* second: the copy of a message that is sent twice */
  const void *data;
  size_t bytes;
  int tag;
  void *registration;
  bool dropped;
};

enum end_state { END_GOOD, END_CUT, END_LOST };

struct fault_net_end {
  void *inner;
  bool sends;
  enum end_state state;
  uint64_t hold_until_ns, cut_ns, comm_id;
  bool drawn; /* the fault of the next message has been drawn: */
  enum fault_kind kind;
  struct fault_net_request *repeating; /* a message whose second copy must be sent before any other */
  struct fault_net_request requests[REQUESTS];
};

static struct {
  os_mutex mutex;
  bool begun;
  int stopped; /* atomic */
  struct fault_plan plan;
} faults = {.mutex = OS_MUTEX_INITIALIZER};

/* ---- the plan ---- */

static bool plan_kind(const char *name, enum fault_kind *kind) {
  for (uint32_t i = 0; i <= FAULT_RESET; i++) {
    if (strcmp(name, fault_names[i]) != 0) continue;
    *kind = (enum fault_kind)i;
    return true;
  }
  return false;
}

static bool plan_item(const char *item, enum fault_kind *kind, uint64_t *at, uint64_t *seed) {
  const char *value = strchr(item, '=');
  if (value == NULL) return false;
  value += 1;
  char *end;
  if (strncmp(item, "fault=", 6) == 0) return plan_kind(value, kind);
  const uint64_t number = strtoull(value, &end, 0);
  if (value[0] < '0' || value[0] > '9' || *end != '\0') return false;
  if (strncmp(item, "fault_at=", 9) == 0) *at = number;
  else if (strncmp(item, "seed=", 5) == 0) *seed = number;
  else return false;
  return true;
}

static bool plan_begin(void) {
  const char *text = os_env("TUTTI_NET_FAULTS");
  char list[LIST_BYTES], *rest = NULL;
  enum fault_kind kind = FAULT_NOTHING;
  uint64_t at = 0, seed = 1;
  snprintf(list, sizeof list, "%s", text != NULL ? text : "");
  for (char *item = strtok_r(list, ",", &rest); item != NULL; item = strtok_r(NULL, ",", &rest))
    if (!plan_item(item, &kind, &at, &seed)) {
      log_visible(
          "TUTTI_NET_FAULTS: '%s' is none of fault=NAME (drop, duplicate, hold, cut, stop, reset), "
          "fault_at=K "
          "and seed=S",
          item);
      return false;
    }
  fault_plan_make(&faults.plan, kind, at, seed);
  return faults.begun = true;
}

static enum fault_kind plan_next(void) {
  os_mutex_lock(&faults.mutex);
  const enum fault_kind kind = fault_next(&faults.plan);
  os_mutex_unlock(&faults.mutex);
  if (kind != FAULT_NOTHING)
    log_info(LOG_NET, "fault injection: fault '%s' happens to message %llu", fault_names[kind],
             (unsigned long long)faults.plan.at);
  return kind;
}

static const struct net_ops *inner(void) { return socket_net_ops(); }

/* ---- the process ---- */

static ncclResult_t fault_net_init(void **context, uint64_t comm_id, struct abi_config *config, abi_log log,
                                   abi_profile profile) {
  struct fault_net_context *fresh = (struct fault_net_context *)os_alloc(sizeof *fresh);
  (void)config, (void)log, (void)profile;
  if (fresh == NULL) return ncclSystemError;
  fresh->comm_id = comm_id;
  os_mutex_lock(&faults.mutex);
  const bool planned = faults.begun || plan_begin();
  os_mutex_unlock(&faults.mutex);
  if (!planned) {
    os_free(fresh);
    return ncclInvalidArgument;
  }
  *context = fresh;
  return ncclSuccess;
}

static ncclResult_t fault_net_finalize(void *context) {
  os_free(context);
  return ncclSuccess;
}

static ncclResult_t fault_net_devices(int *count) {
  uint32_t found = 0;
  TRY(inner()->devices(&found));
  *count = (int)found;
  return ncclSuccess;
}

/* The strings of a device live as long as the process. */
static ncclResult_t fault_net_properties(int device, void *result) {
  static struct net_properties known[16];
  struct abi_properties_v11 *theirs = (struct abi_properties_v11 *)result;
  if (device < 0 || device >= 16) return ncclInvalidArgument;
  struct net_properties *mine = &known[device];
  os_mutex_lock(&faults.mutex);
  const ncclResult_t answer = inner()->properties((uint32_t)device, mine);
  os_mutex_unlock(&faults.mutex);
  TRY(answer);
  memset(theirs, 0, sizeof *theirs);
  theirs->device.name = mine->name;
  theirs->device.pci_path = mine->pci_path[0] != '\0' ? mine->pci_path : NULL;
  theirs->device.guid = mine->guid;
  theirs->device.memory = ABI_MEMORY_HOST;
  theirs->device.speed_mbps = (int)mine->speed_mbps;
  theirs->device.port = (int)mine->port;
  theirs->device.latency_us = mine->latency_us;
  theirs->device.comms_max = 65536;
  theirs->device.recvs_max = 1;
  theirs->parts.count = 1;
  theirs->parts.devices[0] = device;
  theirs->p2p_bytes_max = theirs->collective_bytes_max = mine->max_message_bytes;
  theirs->requests_at_once_max = 1;
  return ncclSuccess;
}

/* ---- connections ---- */

static struct net_peer peer_of(uint64_t comm_id) {
  /* A plugin knows neither its ranks nor the communicator's secret. */
  const struct net_peer peer = {.comm_key = comm_id, .comm_name = "fault injection"};
  return peer;
}

static ncclResult_t end_create(void *from, bool sends, uint64_t comm_id, void **result) {
  struct fault_net_end *end = (struct fault_net_end *)os_alloc(sizeof *end);
  if (end == NULL) return ncclSystemError;
  end->inner = from;
  end->sends = sends;
  end->comm_id = comm_id;
  *result = end;
  return ncclSuccess;
}

static ncclResult_t fault_net_listen(void *context, int device, void *handle, void **listener) {
  const uint64_t comm_id = ((const struct fault_net_context *)context)->comm_id;
  const struct net_peer peer = peer_of(comm_id);
  void *made = NULL;
  TRY(inner()->listen((uint32_t)device, &peer, (struct net_handle *)handle, &made));
  const ncclResult_t result = end_create(made, false, comm_id, listener);
  if (result != ncclSuccess) inner()->close_listen(made);
  return result;
}

static ncclResult_t fault_net_connect(void *context, int device, void *handle, void **sender,
                                      void **offload) {
  const uint64_t comm_id = ((const struct fault_net_context *)context)->comm_id;
  const struct net_peer peer = peer_of(comm_id);
  uint8_t *place = (uint8_t *)handle + NET_HANDLE_BYTES - sizeof(void *); /* what is being connected */
  bool connected = false;
  void *made = NULL;
  (void)offload;
  *sender = NULL;
  memcpy(&made, place, sizeof made);
  if (made == NULL) TRY(inner()->connect((uint32_t)device, &peer, (struct net_handle *)handle, &made));
  memcpy(place, &made, sizeof made);
  ncclResult_t result = socket_net_connected(made, &connected);
  if (result == ncclSuccess && !connected) return ncclSuccess;
  if (result == ncclSuccess) result = end_create(made, true, comm_id, sender);
  if (result != ncclSuccess) inner()->close_send(made);
  memset(place, 0, sizeof made);
  return result;
}

static ncclResult_t fault_net_accept(void *listener, void **receiver, void **offload) {
  const struct fault_net_end *at = (const struct fault_net_end *)listener;
  void *made = NULL;
  (void)offload;
  *receiver = NULL;
  TRY(inner()->accept(at->inner, &made));
  if (made == NULL) return ncclSuccess;
  const ncclResult_t result = end_create(made, false, at->comm_id, receiver);
  if (result != ncclSuccess) inner()->close_recv(made);
  return result;
}

/* Closes the connection; its end stays until it is closed by the caller. */
static ncclResult_t end_drop(struct fault_net_end *end) {
  void *gone = end->inner;
  end->inner = NULL;
  if (gone == NULL) return ncclSuccess;
  return end->sends ? inner()->close_send(gone) : inner()->close_recv(gone);
}

static ncclResult_t fault_net_close(void *connection) {
  const ncclResult_t result = end_drop((struct fault_net_end *)connection);
  os_free(connection);
  return result;
}

static ncclResult_t fault_net_close_listen(void *listener) {
  const ncclResult_t result = inner()->close_listen(((struct fault_net_end *)listener)->inner);
  os_free(listener);
  return result;
}

static ncclResult_t fault_net_register(void *connection, void *data, size_t bytes, int memory,
                                       void **registration) {
  struct fault_net_end *end = (struct fault_net_end *)connection;
  *registration = NULL;
  if (end->inner == NULL) return ncclSuccess;
  return inner()->register_memory(
      end->inner, data, bytes, memory == ABI_MEMORY_CUDA ? NET_MEMORY_CUDA : NET_MEMORY_HOST, registration);
}

static ncclResult_t fault_net_unregister(void *connection, void *registration) {
  struct fault_net_end *end = (struct fault_net_end *)connection;
  return end->inner == NULL ? ncclSuccess : inner()->unregister_memory(end->inner, registration);
}

/* ---- messages ---- */

/* ncclSuccess with *silent: no data moves on this connection any more. */
static ncclResult_t end_check(struct fault_net_end *end, bool *silent) {
  *silent = __atomic_load_n(&faults.stopped, __ATOMIC_ACQUIRE) != 0 || end->state == END_CUT;
  if (end->state == END_CUT && os_time_ns() - end->cut_ns > CUT_NS) {
    end->state = END_LOST;
    end_drop(end);
  }
  if (end->state != END_LOST) return ncclSuccess;
  return log_fail(ncclRemoteError, "fault injection: the connection is lost, as TUTTI_NET_FAULTS asked");
}

/* Draws what happens to the next message, once, however often its send is tried. */
static void fault_happen(struct fault_net_end *end) {
  if (end->drawn) return;
  end->drawn = true;
  end->kind = plan_next();
  if (end->kind == FAULT_HOLD) end->hold_until_ns = os_time_ns() + HOLD_NS;
  if (end->kind == FAULT_STOP) __atomic_store_n(&faults.stopped, 1, __ATOMIC_RELEASE);
  if (end->kind == FAULT_CUT) {
    end->cut_ns = os_time_ns();
    end->state = END_CUT;
  }
  if (end->kind == FAULT_RESET) {
    end->state = END_LOST;
    end_drop(end);
  }
}

static struct fault_net_request *request_take(struct fault_net_end *end) {
  for (uint32_t i = 0; i < REQUESTS; i++)
    if (end->requests[i].end == NULL) return &end->requests[i];
  return NULL;
}

static ncclResult_t repeat(struct fault_net_end *end) {
  struct fault_net_request *request = end->repeating;
  if (request == NULL) return ncclSuccess;
  TRY(inner()->isend(end->inner, request->data, request->bytes, request->tag, request->registration,
                     &request->second));
  if (request->second != NULL) end->repeating = NULL;
  return ncclSuccess;
}

static ncclResult_t send_inner(struct fault_net_end *end, struct fault_net_request *request) {
  request->dropped = end->kind == FAULT_DROP;
  if (request->dropped) return ncclSuccess;
  TRY(inner()->isend(end->inner, request->data, request->bytes, request->tag, request->registration,
                     &request->inner));
  if (request->inner != NULL && end->kind == FAULT_DUPLICATE) end->repeating = request;
  return ncclSuccess;
}

static ncclResult_t fault_net_isend(void *sender, void *data, size_t bytes, int tag, void *registration,
                                    void *parent, void **result) {
  struct fault_net_end *end = (struct fault_net_end *)sender;
  struct fault_net_request *request = request_take(end);
  bool silent;
  (void)parent;
  *result = NULL;
  TRY(end_check(end, &silent));
  if (silent || request == NULL) return ncclSuccess;
  TRY(repeat(end));
  if (end->repeating != NULL) return ncclSuccess;
  fault_happen(end);
  TRY(end_check(end, &silent));
  if (silent || os_time_ns() < end->hold_until_ns) return ncclSuccess;
  memset(request, 0, sizeof *request);
  request->data = data;
  request->bytes = bytes;
  request->tag = tag;
  request->registration = registration;
  TRY(send_inner(end, request));
  if (request->inner == NULL && !request->dropped) return ncclSuccess;
  end->drawn = false;
  request->end = end;
  *result = request;
  return ncclSuccess;
}

static ncclResult_t fault_net_irecv(void *receiver, int count, void **data, size_t *bytes, int *tags,
                                    void **registrations, void **parents, void **result) {
  struct fault_net_end *end = (struct fault_net_end *)receiver;
  struct fault_net_request *request = request_take(end);
  bool silent;
  (void)parents;
  *result = NULL;
  TRY(end_check(end, &silent));
  if (silent || request == NULL) return ncclSuccess;
  memset(request, 0, sizeof *request);
  TRY(inner()->irecv(end->inner, (uint32_t)count, data, bytes, tags, registrations, &request->inner));
  if (request->inner == NULL) return ncclSuccess;
  request->end = end;
  *result = request;
  return ncclSuccess;
}

/* Host memory only: received data is already visible. */
static ncclResult_t fault_net_iflush(void *receiver, int count, void **data, int *bytes, void **registrations,
                                     void **result) {
  (void)receiver, (void)count, (void)data, (void)bytes, (void)registrations;
  *result = NULL;
  return ncclSuccess;
}

/* Tests one of the two sends of a request. */
static ncclResult_t test_one(void **request, size_t *bytes) {
  bool done = false;
  if (*request == NULL) return ncclSuccess;
  TRY(inner()->test(*request, &done, bytes));
  if (done) *request = NULL;
  return ncclSuccess;
}

static ncclResult_t fault_net_test(void *request, int *done, int *bytes) {
  struct fault_net_request *mine = (struct fault_net_request *)request;
  struct fault_net_end *end = mine->end;
  bool silent;
  *done = 0;
  TRY(end_check(end, &silent));
  if (silent) return ncclSuccess;
  TRY(repeat(end));
  size_t ignored = 0;
  TRY(test_one(&mine->inner, &mine->bytes));
  TRY(test_one(&mine->second, &ignored));
  if (mine->inner != NULL || mine->second != NULL || end->repeating == mine) return ncclSuccess;
  if (bytes != NULL) *bytes = (int)mine->bytes;
  mine->end = NULL;
  *done = 1;
  return ncclSuccess;
}

EXPORT extern const struct abi_net ncclNetPlugin_v11;
const struct abi_net ncclNetPlugin_v11 = {
    .name = "FaultNet",
    .init = {.v11 = fault_net_init},
    .devices = fault_net_devices,
    .properties = fault_net_properties,
    .listen = {.v11 = fault_net_listen},
    .connect = {.v11 = fault_net_connect},
    .accept = {.v7 = fault_net_accept},
    .register_memory = {.v8 = fault_net_register},
    .unregister_memory = fault_net_unregister,
    .isend = {.v10 = fault_net_isend},
    .irecv = {.v10 = fault_net_irecv},
    .iflush = fault_net_iflush,
    .test = fault_net_test,
    .close_send = fault_net_close,
    .close_recv = fault_net_close,
    .close_listen = fault_net_close_listen,
    .finalize = fault_net_finalize,
};
