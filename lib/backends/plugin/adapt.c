/* adapt.c: adapts a plugin's table to struct net_ops: contexts of communicators, requests, and the number of
 * their results. If a plugin's call fails, the log names the plugin, the call and the peer; messages of the
 * plugin itself go to the library's log. */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "backends/plugin/plugin.h"
#include "base/log.h"
#include "base/os.h"
#include "base/plugin_file.h"

#define REQUESTS (2 * ABI_REQUESTS_MAX) /* per connection: a flush needs a request besides its receive's */
#define MESSAGE_BYTES_MAX (1u << 30)
#define NAME_BYTES 64

/* What a plugin keeps per communicator, from version 11 on. */
struct context {
  uint64_t key;
  void *theirs;
  uint32_t use_count; /* listeners, connections, and connects in progress */
  struct context *next;
};

/* A connect in progress, which is called again: its context must stay. */
struct pending {
  const void *handle;
  struct context *context;
  struct pending *next;
};

struct end;
struct request {
  void *theirs;
  struct end *end; /* NULL: free */
  uint32_t count;  /* number of sizes that test() returns */
  bool in_parts;
  /* Of two parts: theirs is the first one's, and NULL when it has ended. */
  void *last;            /* the last part's; NULL until it is posted, and when it has ended */
  struct net_part after; /* the last part; data NULL: it is posted */
  size_t bytes;          /* of the parts that have ended */
};

/* A listener, or one end of a connection. */
struct end {
  void *theirs;
  struct context *context; /* NULL in version 10 */
  uint32_t rank, peer;
  char comm_name[NAME_BYTES];
  bool sends;
  struct request *unposted; /* its last part must be posted before anything else; NULL: none */
  struct request requests[REQUESTS];
};

static struct {
  struct plugin plugin;
  bool started;
  void *context; /* of the process: from the first init */
  os_mutex mutex;
  struct context *contexts;
  struct pending *pending;
  struct net_ops ops;
} in_use = {.mutex = OS_MUTEX_INITIALIZER};

#define NET (in_use.plugin.net)

static ncclResult_t result_sane(ncclResult_t result) {
  const int value = (int)result;
  return value >= 0 && value < ncclNumResults ? result : ncclInternalError;
}

/* Returns the plugin's result; logs an error if it is one. */
static ncclResult_t plugin_result(ncclResult_t result, const char *call) {
  if (result == ncclSuccess) return result;
  return log_fail(result_sane(result), "network plugin '%s' (%s): %s fails with '%s'", NET->name,
                  in_use.plugin.from, call, err_text(result_sane(result)));
}

static ncclResult_t plugin_result_of(ncclResult_t result, const struct end *end, const char *call) {
  if (result == ncclSuccess) return result;
  return log_fail(result_sane(result),
                  "network plugin '%s' (%s): %s of rank %u with rank %u of communicator %s fails with '%s'",
                  NET->name, in_use.plugin.from, call, end->rank, end->peer, end->comm_name,
                  err_text(result_sane(result)));
}

const char *plugin_table_fault(const struct abi_net *net) {
  if (net->name == NULL) return "name";
  if (net->init.v10 == NULL) return "init";
  if (net->devices == NULL) return "devices";
  if (net->properties == NULL) return "getProperties";
  if (net->listen.v10 == NULL) return "listen";
  if (net->connect.v10 == NULL) return "connect";
  if (net->accept.v6 == NULL) return "accept";
  if (net->register_memory.v8 == NULL) return "regMr";
  if (net->unregister_memory == NULL) return "deregMr";
  if (net->isend.v10 == NULL) return "isend";
  if (net->irecv.v10 == NULL) return "irecv";
  if (net->test == NULL) return "test";
  if (net->close_send == NULL) return "closeSend";
  if (net->close_recv == NULL) return "closeRecv";
  return net->close_listen == NULL ? "closeListen" : NULL;
}

/* ---- contexts ---- */

static ncclResult_t plugin_init(const struct net_peer *peer, void **context) {
  return plugin_result(plugin_call_init(&in_use.plugin, peer, context), "init");
}

static void plugin_finalize(void *context) {
  if (in_use.plugin.version > 10 && NET->finalize != NULL) plugin_result(NET->finalize(context), "finalize");
}

/* Both are called with the mutex held. */
static ncclResult_t context_use(const struct net_peer *peer, struct context **context) {
  for (struct context *known = in_use.contexts; known != NULL; known = known->next) {
    if (known->key != peer->comm_key) continue;
    known->use_count += 1;
    *context = known;
    return ncclSuccess;
  }
  struct context *fresh = (struct context *)os_alloc(sizeof *fresh);
  if (fresh == NULL) return log_no_memory("a communicator of a network plugin");
  const ncclResult_t result = plugin_init(peer, &fresh->theirs);
  if (result != ncclSuccess) {
    os_free(fresh);
    return result;
  }
  fresh->key = peer->comm_key;
  fresh->use_count = 1;
  fresh->next = in_use.contexts;
  in_use.contexts = fresh;
  *context = fresh;
  return ncclSuccess;
}

static void context_leave(struct context *context) {
  struct context **link = &in_use.contexts;
  if (context == NULL) return;
  context->use_count -= 1;
  if (context->use_count > 0) return;
  while (*link != context) link = &(*link)->next;
  *link = context->next;
  plugin_finalize(context->theirs);
  os_free(context);
}

/* ---- connects in progress ---- */

static struct pending **pending_find(const void *handle) {
  struct pending **link = &in_use.pending;
  while (*link != NULL && (*link)->handle != handle) link = &(*link)->next;
  return link;
}

static void pending_drop(struct pending **link) {
  struct pending *old = *link;
  *link = old->next;
  os_free(old);
}

/* The context of a connect, which the caller then holds: that of an earlier call with this handle, or
 * another. */
static ncclResult_t pending_take(const struct net_peer *peer, const void *handle, struct context **context) {
  struct pending **link = pending_find(handle);
  if (*link == NULL) return context_use(peer, context);
  struct context *known = (*link)->context;
  pending_drop(link);
  if (known->key == peer->comm_key) {
    *context = known;
    return ncclSuccess;
  }
  context_leave(known); /* of an abandoned connect whose handle's address was reused */
  return context_use(peer, context);
}

static ncclResult_t pending_put(const void *handle, struct context *context) {
  struct pending *fresh = (struct pending *)os_alloc(sizeof *fresh);
  if (fresh == NULL) return log_no_memory("a connection of a network plugin");
  fresh->handle = handle;
  fresh->context = context;
  fresh->next = in_use.pending;
  in_use.pending = fresh;
  return ncclSuccess;
}

/* ---- ends ---- */

static struct end *end_create(const struct net_peer *peer) {
  struct end *end = (struct end *)os_alloc(sizeof *end);
  if (end == NULL) {
    log_no_memory("a connection of a network plugin");
    return NULL;
  }
  end->rank = peer->rank;
  end->peer = peer->peer;
  snprintf(end->comm_name, sizeof end->comm_name, "%s", peer->comm_name != NULL ? peer->comm_name : "");
  return end;
}

static void end_free(struct end *end) {
  os_mutex_lock(&in_use.mutex);
  context_leave(end->context);
  os_mutex_unlock(&in_use.mutex);
  os_free(end);
}

static bool has_contexts(void) { return in_use.plugin.version > 10; }

/* What the plugin keeps for the communicator; NULL before version 11. */
static void *end_context(const struct end *end) { return end->context != NULL ? end->context->theirs : NULL; }

static ncclResult_t plugin_listen(uint32_t device, const struct net_peer *peer, struct net_handle *handle,
                                  void **listener) {
  struct end *end = end_create(peer);
  if (end == NULL) return ncclSystemError;
  ncclResult_t result = ncclSuccess;
  if (has_contexts()) {
    os_mutex_lock(&in_use.mutex);
    result = context_use(peer, &end->context);
    os_mutex_unlock(&in_use.mutex);
  }
  memset(handle, 0, sizeof *handle);
  if (result == ncclSuccess)
    result = plugin_result_of(
        plugin_call_listen(&in_use.plugin, end_context(end), (int)device, handle->bytes, &end->theirs), end,
        "listen");
  if (result == ncclSuccess && end->theirs == NULL)
    result = log_fail(ncclInternalError, "network plugin '%s': listen yields nothing", NET->name);
  if (result == ncclSuccess) *listener = end;
  else end_free(end);
  return result;
}

/* Keeps the context in use until the connect is done. */
static ncclResult_t reconnect_later(const void *handle, struct end *end) {
  os_mutex_lock(&in_use.mutex);
  const ncclResult_t result = has_contexts() ? pending_put(handle, end->context) : ncclSuccess;
  os_mutex_unlock(&in_use.mutex);
  if (result == ncclSuccess) end->context = NULL;
  end_free(end);
  return result;
}

static ncclResult_t plugin_connect(uint32_t device, const struct net_peer *peer, struct net_handle *handle,
                                   void **connection) {
  struct end *end = end_create(peer);
  if (end == NULL) return ncclSystemError;
  end->sends = true;
  ncclResult_t result = ncclSuccess;
  if (has_contexts()) {
    os_mutex_lock(&in_use.mutex);
    result = pending_take(peer, handle, &end->context);
    os_mutex_unlock(&in_use.mutex);
  }
  if (result == ncclSuccess)
    result = plugin_result_of(
        plugin_call_connect(&in_use.plugin, peer, end_context(end), (int)device, handle->bytes, &end->theirs),
        end, "connect");
  *connection = NULL;
  if (result == ncclSuccess && end->theirs == NULL) return reconnect_later(handle, end);
  if (result == ncclSuccess) *connection = end;
  else end_free(end);
  return result;
}

static ncclResult_t plugin_accept(void *listener, void **connection) {
  struct end *from = (struct end *)listener;
  void *theirs = NULL;
  *connection = NULL;
  TRY(plugin_result_of(plugin_call_accept(&in_use.plugin, from->theirs, &theirs), from, "accept"));
  if (theirs == NULL) return ncclSuccess;
  const struct net_peer peer = {.comm_key = from->context != NULL ? from->context->key : 0,
                                .rank = from->rank,
                                .peer = from->peer,
                                .comm_name = from->comm_name};
  struct end *end = end_create(&peer);
  if (end == NULL) {
    NET->close_recv(theirs);
    return ncclSystemError;
  }
  end->theirs = theirs;
  end->context = from->context;
  os_mutex_lock(&in_use.mutex);
  if (end->context != NULL) end->context->use_count += 1;
  os_mutex_unlock(&in_use.mutex);
  *connection = end;
  return ncclSuccess;
}

static ncclResult_t end_close(struct end *end, ncclResult_t (*close)(void *theirs), const char *call) {
  const ncclResult_t result = plugin_result_of(close(end->theirs), end, call);
  end_free(end);
  return result;
}

static ncclResult_t plugin_close_send(void *connection) {
  return end_close((struct end *)connection, NET->close_send, "closeSend");
}
static ncclResult_t plugin_close_recv(void *connection) {
  return end_close((struct end *)connection, NET->close_recv, "closeRecv");
}
static ncclResult_t plugin_close_listen(void *listener) {
  return end_close((struct end *)listener, NET->close_listen, "closeListen");
}

/* ---- memory ---- */

static ncclResult_t plugin_register(void *connection, void *data, size_t bytes, enum net_memory kind,
                                    void **registration) {
  struct end *end = (struct end *)connection;
  const int memory = kind == NET_MEMORY_CUDA ? ABI_MEMORY_CUDA : ABI_MEMORY_HOST;
  void *theirs = NULL;
  TRY(plugin_result_of(plugin_call_register(&in_use.plugin, end->theirs, data, bytes, memory, &theirs), end,
                       "regMr"));
  *registration = theirs;
  return ncclSuccess;
}

static ncclResult_t plugin_register_dmabuf(void *connection, void *data, size_t bytes, int descriptor,
                                           uint64_t offset, void **registration) {
  struct end *end = (struct end *)connection;
  void *theirs = NULL;
  TRY(plugin_result_of(
      NET->register_dmabuf(end->theirs, data, bytes, ABI_MEMORY_CUDA, offset, descriptor, &theirs), end,
      "regMrDmaBuf"));
  *registration = theirs;
  return ncclSuccess;
}

static ncclResult_t plugin_unregister(void *connection, void *registration) {
  struct end *end = (struct end *)connection;
  return plugin_result_of(NET->unregister_memory(end->theirs, registration), end, "deregMr");
}

/* ---- requests ---- */

static struct request *request_take(struct end *end) {
  for (uint32_t i = 0; i < REQUESTS; i++)
    if (end->requests[i].end == NULL) return &end->requests[i];
  return NULL;
}

static void request_end(struct request *mine, bool *done) {
  mine->end = NULL;
  *done = true;
}

/* Stores the result of a call. If the plugin returned no request, the call is repeated later. */
static void request_give(struct end *end, struct request *request, void *theirs, uint32_t count,
                         void **result) {
  *result = NULL;
  if (theirs == NULL) return;
  *request = (struct request){.theirs = theirs, .end = end, .count = count};
  *result = request;
}

/* Posts a part as a message of its own; *theirs NULL: not now. */
static ncclResult_t part_post(struct end *end, const struct net_part *part, void **theirs) {
  struct net_part own = *part;
  int tag = 0;
  const ncclResult_t result = end->sends ? plugin_call_isend(&in_use.plugin, end->theirs, own.data, own.bytes,
                                                             tag, own.registration, theirs)
                                         : plugin_call_irecv(&in_use.plugin, end->theirs, 1, &own.data,
                                                             &own.bytes, &tag, &own.registration, theirs);
  return plugin_result_of(result, end, end->sends ? "isend" : "irecv");
}

/* Posts the last part that a request still waits to post. */
static ncclResult_t last_part_post(struct end *end) {
  struct request *request = end->unposted;
  if (request == NULL) return ncclSuccess;
  TRY(part_post(end, &request->after, &request->last));
  if (request->last == NULL) return ncclSuccess;
  request->after.data = NULL;
  end->unposted = NULL;
  return ncclSuccess;
}

/* Whether a new request can be posted behind those before it. */
static ncclResult_t posts_on(struct end *end, struct request **place) {
  *place = NULL;
  TRY(last_part_post(end));
  if (end->unposted == NULL) *place = request_take(end);
  return ncclSuccess;
}

/* The interface has no messages of two parts: each part is a message. */
static ncclResult_t parts_post(struct end *end, const struct net_part *first, void *data, size_t bytes,
                               void *registration, void **request) {
  struct request *place;
  void *theirs = NULL;
  *request = NULL;
  TRY(posts_on(end, &place));
  if (place == NULL) return ncclSuccess;
  TRY(part_post(end, first, &theirs));
  if (theirs == NULL) return ncclSuccess;
  request_give(end, place, theirs, 0, request);
  place->in_parts = true;
  place->after = (struct net_part){data, bytes, registration};
  end->unposted = place;
  return last_part_post(end);
}

static ncclResult_t plugin_isend_parts(void *connection, const struct net_part *first, const void *data,
                                       size_t bytes, void *registration, void **request) {
  return parts_post((struct end *)connection, first, (void *)(uintptr_t)data, bytes, registration, request);
}

static ncclResult_t plugin_irecv_parts(void *connection, const struct net_part *first, size_t whole_bytes,
                                       void *data, size_t bytes, void *registration, void **request) {
  if (whole_bytes != NET_PARTS_TAIL)
    return log_fail(ncclInternalError, "a receive of two parts whose last one has no place of its own");
  return parts_post((struct end *)connection, first, data, bytes, registration, request);
}

/* Only slots in memory of GPUs take messages of two parts. */
static enum net_parts plugin_takes_parts(void *connection) {
  (void)connection;
  return NET_PARTS_NONE;
}

static void plugin_part_move(void *request, void *first) { (void)request, (void)first; }

static ncclResult_t plugin_isend(void *connection, const void *data, size_t bytes, int tag,
                                 void *registration, void **request) {
  struct end *end = (struct end *)connection;
  struct request *place;
  void *theirs = NULL;
  *request = NULL;
  TRY(posts_on(end, &place));
  if (place == NULL) return ncclSuccess;
  TRY(plugin_result_of(plugin_call_isend(&in_use.plugin, end->theirs, (void *)(uintptr_t)data, bytes, tag,
                                         registration, &theirs),
                       end, "isend"));
  request_give(end, place, theirs, 1, request);
  return ncclSuccess;
}

static ncclResult_t plugin_irecv(void *connection, uint32_t count, void *const *data, const size_t *bytes,
                                 const int *tags, void *const *registrations, void **request) {
  struct end *end = (struct end *)connection;
  struct request *place;
  void *places[PLUGIN_RECVS_MAX], *handles[PLUGIN_RECVS_MAX], *theirs = NULL;
  size_t sizes[PLUGIN_RECVS_MAX];
  int marks[PLUGIN_RECVS_MAX];
  *request = NULL;
  if (count > PLUGIN_RECVS_MAX)
    return log_fail(ncclInternalError, "irecv of %u: at most %d", count, PLUGIN_RECVS_MAX);
  TRY(posts_on(end, &place));
  if (place == NULL) return ncclSuccess;
  for (uint32_t i = 0; i < count; i++) {
    places[i] = data[i];
    sizes[i] = bytes[i];
    marks[i] = tags[i];
    handles[i] = registrations[i];
  }
  TRY(plugin_result_of(
      plugin_call_irecv(&in_use.plugin, end->theirs, (int)count, places, sizes, marks, handles, &theirs), end,
      "irecv"));
  request_give(end, place, theirs, count, request);
  return ncclSuccess;
}

static ncclResult_t plugin_iflush(void *connection, uint32_t count, void *const *data, const size_t *bytes,
                                  void *const *registrations, void **request) {
  struct end *end = (struct end *)connection;
  struct request *place = request_take(end);
  void *places[PLUGIN_RECVS_MAX], *handles[PLUGIN_RECVS_MAX], *theirs = NULL;
  int sizes[PLUGIN_RECVS_MAX];
  *request = NULL;
  if (NET->iflush == NULL) return ncclSuccess;
  if (count > PLUGIN_RECVS_MAX || place == NULL)
    return log_fail(ncclInternalError, "iflush of %u: at most %d, and one behind each receive", count,
                    PLUGIN_RECVS_MAX);
  for (uint32_t i = 0; i < count; i++) {
    places[i] = data[i];
    sizes[i] = (int)bytes[i];
    handles[i] = registrations[i];
  }
  TRY(plugin_result_of(NET->iflush(end->theirs, (int)count, places, sizes, handles, &theirs), end, "iflush"));
  request_give(end, place, theirs, 0, request);
  return ncclSuccess;
}

static ncclResult_t size_impossible(int size) {
  return log_fail(ncclInternalError, "network plugin '%s': test yields a size of %d bytes", NET->name, size);
}

/* Of one message; *theirs becomes NULL when it has ended. */
static ncclResult_t part_test(struct request *mine, void **theirs) {
  int finished = 0, size = 0;
  if (*theirs == NULL) return ncclSuccess;
  TRY(plugin_result_of(NET->test(*theirs, &finished, &size), mine->end, "test"));
  if (finished == 0) return ncclSuccess;
  *theirs = NULL;
  if (size >= 0) mine->bytes += (size_t)size;
  return size >= 0 ? ncclSuccess : size_impossible(size);
}

static ncclResult_t parts_test(struct request *mine, bool *done, size_t *bytes) {
  TRY(last_part_post(mine->end));
  TRY(part_test(mine, &mine->theirs));
  TRY(part_test(mine, &mine->last));
  if (mine->theirs != NULL || mine->last != NULL || mine->after.data != NULL) return ncclSuccess;
  if (bytes != NULL) *bytes = mine->bytes;
  request_end(mine, done);
  return ncclSuccess;
}

static ncclResult_t plugin_test(void *request, bool *done, size_t *bytes) {
  struct request *mine = (struct request *)request;
  int finished = 0, sizes[PLUGIN_RECVS_MAX] = {0};
  *done = false;
  if (mine->in_parts) return parts_test(mine, done, bytes);
  TRY(plugin_result_of(NET->test(mine->theirs, &finished, mine->count > 0 ? sizes : NULL), mine->end,
                       "test"));
  if (finished == 0) return ncclSuccess;
  for (uint32_t i = 0; i < mine->count; i++) {
    if (sizes[i] < 0) return size_impossible(sizes[i]);
    if (bytes != NULL) bytes[i] = (size_t)sizes[i];
  }
  request_end(mine, done);
  return ncclSuccess;
}

/* ---- a trial of device memory ---- */

/* Plugins register memory for a connection, so that a trial needs one, of the process with itself. */
struct trial {
  struct net_handle handle;
  void *listener, *sender, *receiver;
};
#define TRIAL_MS 5000
#define TRIAL_COMM UINT64_C(0x747269616c) /* names no communicator */

static ncclResult_t trial_connect(uint32_t device, struct trial *trial) {
  const struct net_peer peer = {.comm_key = TRIAL_COMM, .comm_name = "a trial"};
  TRY(plugin_listen(device, &peer, &trial->handle, &trial->listener));
  for (uint32_t ms = 0; ms < TRIAL_MS; ms++) {
    if (trial->sender == NULL) TRY(plugin_connect(device, &peer, &trial->handle, &trial->sender));
    if (trial->receiver == NULL) TRY(plugin_accept(trial->listener, &trial->receiver));
    if (trial->sender != NULL && trial->receiver != NULL) return ncclSuccess;
    os_sleep_ms(1);
  }
  return ncclSystemError;
}

static int plugin_device_trial(uint32_t device, void *data, size_t bytes, int descriptor, uint64_t offset) {
  struct trial trial = {.listener = NULL};
  void *registration = NULL;
  int error = EHOSTUNREACH;
  if (trial_connect(device, &trial) == ncclSuccess) {
    const ncclResult_t made =
        descriptor >= 0
            ? plugin_register_dmabuf(trial.receiver, data, bytes, descriptor, offset, &registration)
            : plugin_register(trial.receiver, data, bytes, NET_MEMORY_CUDA, &registration);
    error = made == ncclSuccess ? 0 : EOPNOTSUPP;
    if (made == ncclSuccess) plugin_unregister(trial.receiver, registration);
  }
  if (trial.sender != NULL) plugin_close_send(trial.sender);
  if (trial.receiver != NULL) plugin_close_recv(trial.receiver);
  if (trial.listener != NULL) plugin_close_listen(trial.listener);
  return error;
}

/* ---- devices ---- */

static size_t message_bytes(size_t said) {
  return said == 0 || said > MESSAGE_BYTES_MAX ? MESSAGE_BYTES_MAX : said;
}

static uint32_t between(int value, uint32_t lowest, uint32_t highest) {
  return value < (int)lowest ? lowest : (uint32_t)value > highest ? highest : (uint32_t)value;
}

static void properties_of(const struct abi_device *device, struct net_properties *properties) {
  memset(properties, 0, sizeof *properties);
  snprintf(properties->name, sizeof properties->name, "%s", device->name != NULL ? device->name : "?");
  if (device->pci_path != NULL)
    snprintf(properties->pci_path, sizeof properties->pci_path, "%s", device->pci_path);
  properties->guid = device->guid;
  properties->speed_mbps = between(device->speed_mbps, 0, INT32_MAX);
  properties->port = between(device->port, 0, INT32_MAX);
  properties->latency_us = device->latency_us;
  properties->max_comms = between(device->comms_max, 1, INT32_MAX);
  properties->max_recvs = between(device->recvs_max, 1, PLUGIN_RECVS_MAX);
  properties->memory_cuda = (device->memory & ABI_MEMORY_CUDA) != 0;
  properties->memory_dmabuf = (device->memory & ABI_MEMORY_DMABUF) != 0 && NET->register_dmabuf != NULL;
  properties->global_registration = device->registration_is_global != 0;
  properties->force_flush = device->force_flush != 0;
}

static ncclResult_t plugin_properties(uint32_t device, struct net_properties *properties) {
  struct abi_properties_v12 theirs;
  TRY(plugin_result(plugin_call_properties(&in_use.plugin, (int)device, &theirs), "getProperties"));
  if (theirs.device.device_type != ABI_OFFLOAD_NONE || (theirs.device.memory & ABI_MEMORY_HOST) == 0)
    return log_fail(ncclInvalidUsage,
                    "network plugin '%s' (%s): device %u %s; choose another with NCCL_NET_PLUGIN, or leave "
                    "plugins out with NCCL_NET_PLUGIN=none",
                    NET->name, in_use.plugin.from, device,
                    theirs.device.device_type != ABI_OFFLOAD_NONE ? "is driven by GPUs, not by the host"
                                                                  : "takes no host memory");
  properties_of(&theirs.device, properties);
  properties->max_message_bytes = message_bytes(theirs.p2p_bytes_max);
  properties->rail = theirs.rail;
  properties->plane = theirs.plane;
  return ncclSuccess;
}

static ncclResult_t plugin_devices(uint32_t *count) {
  const struct net_peer none = {.comm_key = 0}; /* of no communicator */
  struct net_properties properties;
  int found = 0;
  if (!in_use.started) {
    TRY(plugin_init(&none, &in_use.context));
    in_use.started = true;
  }
  TRY(plugin_result(NET->devices(&found), "devices"));
  for (int device = 0; device < found; device++) TRY(plugin_properties((uint32_t)device, &properties));
  *count = found > 0 ? (uint32_t)found : 0;
  return ncclSuccess;
}

static ncclResult_t plugin_finish(void) {
  os_mutex_lock(&in_use.mutex);
  while (in_use.pending != NULL) {
    context_leave(in_use.pending->context);
    pending_drop(&in_use.pending);
  }
  while (in_use.contexts != NULL) {
    in_use.contexts->use_count = 1;
    context_leave(in_use.contexts);
  }
  if (in_use.started) plugin_finalize(in_use.context);
  in_use.started = false;
  os_mutex_unlock(&in_use.mutex);
  return ncclSuccess;
}

bool plugin_release(void) {
  const bool started = in_use.started;
  plugin_finish();
  return started;
}

const struct net_ops *plugin_adapt(const struct plugin *plugin) {
  static const struct net_ops calls = {
      .size = sizeof(struct net_ops),
      .devices = plugin_devices,
      .properties = plugin_properties,
      .listen = plugin_listen,
      .connect = plugin_connect,
      .accept = plugin_accept,
      .register_memory = plugin_register,
      .unregister_memory = plugin_unregister,
      .register_dmabuf = plugin_register_dmabuf,
      .device_trial = plugin_device_trial,
      .isend = plugin_isend,
      .irecv = plugin_irecv,
      .iflush = plugin_iflush,
      .test = plugin_test,
      .close_send = plugin_close_send,
      .close_recv = plugin_close_recv,
      .close_listen = plugin_close_listen,
      .takes_parts = plugin_takes_parts,
      .isend_parts = plugin_isend_parts,
      .irecv_parts = plugin_irecv_parts,
      .part_move = plugin_part_move,
      .splits_parts = true,
      .finish = plugin_finish,
  };
  in_use.plugin = *plugin;
  in_use.ops = calls;
  in_use.ops.name = plugin->net->name;
  return &in_use.ops;
}
