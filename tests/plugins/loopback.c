/* loopback.c: a network plugin over Unix sockets, built once for each version of the interface (ABI is 6 to
 * 12), to prove that the library uses each correctly. It checks its caller: contexts, handles, registered
 * memory, requests in flight. The first violation is kept (loopback_fault) and fails the call. It is slow on
 * purpose: connects, accepts, sends and receives return nothing at first. */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "backends/net_abi.h"
#include "plugins/loopback.h"

#define EXPORT __attribute__((visibility("default")))
#define DEVICES 2
#define RECVS_MAX 4
#define REGISTRATIONS 64
#define MARK 0x6c6f6f7062616b21u

static struct loopback_counts counts;
static char fault[256];
static bool lies; /* reports wrong sizes of received messages */
static abi_log say;

EXPORT const struct loopback_counts *loopback_counted(void) { return &counts; }
EXPORT const char *loopback_fault(void) { return fault; }
EXPORT void loopback_lie(void) { lies = true; }

static ncclResult_t offence(const char *what) {
  if (fault[0] == '\0') snprintf(fault, sizeof fault, "%s", what);
  say(2, 16, __FILE__, __LINE__, "offence: %s", what);
  return ncclInvalidUsage;
}
#define DEMAND(condition, what) \
  if (!(condition)) return offence(what)

enum kind { LISTENER = 1, SENDER, RECEIVER };

struct registration {
  uint64_t mark;
  const char *data;
  size_t bytes;
};

struct part {
  char *data;
  size_t bytes, moved;
  int tag;
  bool taken, done;
};

struct head {
  uint64_t bytes;
  int64_t tag;
};

struct link;
struct request {
  struct link *link;
  uint32_t count;
  uint64_t turn;
  bool used, flush;
  struct part parts[RECVS_MAX];
};

struct link {
  uint64_t mark;
  enum kind kind;
  int fd;
  uint32_t patience; /* calls that return nothing */
  struct registration registrations[REGISTRATIONS];
  struct request requests[ABI_REQUESTS_MAX];
  uint64_t posted, ended; /* requests, in order */
  struct head head;
  size_t head_moved;
  struct part *current;
};

struct place {
  uint64_t mark;
  char name[64];
  int fd;
  uint32_t calls;
};

/* ---- init ---- */

#if ABI >= 10
/* LOOPBACK_CLASS: the class that the program's communicators ask for; none without it. */
static int class_expected(void) {
  const char *text = getenv("LOOPBACK_CLASS");
  return text != NULL ? atoi(text) : -1;
}
#endif

struct context {
  uint64_t mark, comm_id;
};

static int live_contexts;

#if ABI <= 10
#if ABI < 10
static ncclResult_t loop_init(abi_log log) {
#else
static ncclResult_t loop_init(abi_log log, abi_profile profile) {
  if (profile == NULL) return ncclInvalidUsage;
#endif
  say = log;
  say(3, 16, __FILE__, __LINE__, "loopback plugin, version %d", ABI);
  counts.init += 1;
  return ncclSuccess;
}
#else
static ncclResult_t loop_init(void **context, uint64_t comm_id, struct abi_config *config, abi_log log,
                              abi_profile profile) {
  struct context *fresh = calloc(1, sizeof *fresh);
  (void)profile;
  say = log;
  counts.init += 1;
  DEMAND(config != NULL && config->traffic_class == (comm_id == 0 ? -1 : class_expected()),
         "init: another traffic class was set");
  say(3, 16, __FILE__, __LINE__, "loopback plugin, version %d, communicator %llx", ABI,
      (unsigned long long)comm_id);
  fresh->mark = MARK;
  fresh->comm_id = comm_id;
  live_contexts += 1;
  *context = fresh;
  return ncclSuccess;
}
static ncclResult_t loop_finalize(void *context) {
  struct context *old = context;
  counts.finalize += 1;
  DEMAND(old != NULL && old->mark == MARK, "finalize: not a context");
  old->mark = 0;
  free(old);
  live_contexts -= 1;
  return ncclSuccess;
}
static ncclResult_t context_check(void *context) {
  const struct context *known = context;
  DEMAND(known != NULL && known->mark == MARK, "not a context");
  DEMAND(known->comm_id != 0, "the context of no communicator");
  return ncclSuccess;
}
#endif

EXPORT int loopback_contexts(void) { return live_contexts; }

/* TUTTI_TEST_MEMORY: cuda, dmabuf: memory of GPUs is registered by address, or by descriptor too; refused: it
 * is not, although getProperties says so. */
static bool memory_is(const char *kind) {
  const char *text = getenv("TUTTI_TEST_MEMORY");
  return text != NULL && strcmp(text, kind) == 0;
}

static int memory_kinds(void) {
  if (memory_is("dmabuf")) return ABI_MEMORY_HOST | ABI_MEMORY_CUDA | ABI_MEMORY_DMABUF;
  return memory_is("cuda") || memory_is("refused") ? ABI_MEMORY_HOST | ABI_MEMORY_CUDA : ABI_MEMORY_HOST;
}

static ncclResult_t loop_devices(int *count) {
  *count = DEVICES;
  return ncclSuccess;
}

static ncclResult_t loop_properties(int device, void *result) {
  static char names[DEVICES][8] = {"loop0", "loop1"}, path[] = "/sys/devices/pci0000:00/0000:00:01.0";
  DEMAND(device >= 0 && device < DEVICES, "getProperties: no such device");
  char *const own_path = device == 0 ? path : NULL;
#if ABI < 8
  struct abi_properties_v6 *mine = result;
  mine->name = names[device];
  mine->pci_path = own_path;
  mine->guid = 77;
  mine->memory = memory_kinds();
  mine->speed_mbps = 25000;
  mine->port = device + 1;
  mine->latency_us = 1.5f;
  mine->comms_max = 4096;
  mine->recvs_max = RECVS_MAX;
#if ABI == 7
  mine->device_type = ABI_OFFLOAD_NONE;
#endif
#elif ABI == 8
  struct abi_properties_v8 *mine = result;
  *mine = (struct abi_properties_v8){names[device], own_path, 77u,  memory_kinds(), 1, 25000,
                                     device + 1,    1.5f,     4096, RECVS_MAX,      0, 0};
#else
  const struct abi_device common = {
      names[device], own_path, 77u,       memory_kinds(),   0, 0, 25000, device + 1,
      1.5f,          4096,     RECVS_MAX, ABI_OFFLOAD_NONE, 0};
#if ABI <= 10
  struct abi_properties_v10 *mine = result;
#elif ABI == 11
  struct abi_properties_v11 *mine = result;
#else
  struct abi_properties_v12 *mine = result;
  mine->rail = (int16_t)device;
  mine->plane = 3;
#endif
  mine->device = common;
  mine->parts.count = 1;
  mine->parts.devices[0] = device;
  mine->p2p_bytes_max = mine->collective_bytes_max = 1u << 24;
#if ABI > 10
  mine->requests_at_once_max = 1;
#endif
#endif
  return ncclSuccess;
}

/* ---- links ---- */

static struct link *link_create(enum kind kind, int fd) {
  struct link *link = calloc(1, sizeof *link);
  link->mark = MARK;
  link->kind = kind;
  link->fd = fd;
  link->patience = kind == RECEIVER ? 0 : 3; /* both ends of a connection are not in step */
  counts.links += 1;
  return link;
}

static struct sockaddr_un address_of(const char *name, socklen_t *bytes) {
  struct sockaddr_un address;
  memset(&address, 0, sizeof address);
  address.sun_family = AF_UNIX;
  snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "%s", name);
  *bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name));
  return address;
}

static ncclResult_t listen_on(int device, void *handle, void **listener) {
  static uint32_t number;
  socklen_t bytes;
  struct place place;
  memset(&place, 0, sizeof place);
  place.mark = MARK;
  place.fd = -1;
  snprintf(place.name, sizeof place.name, "tutti-loopback-%d-%u-%d", (int)getpid(), number++, device);
  const struct sockaddr_un address = address_of(place.name, &bytes);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0 || bind(fd, (const struct sockaddr *)&address, bytes) != 0 || listen(fd, 8) != 0)
    return ncclSystemError;
  memcpy(handle, &place, sizeof place);
  *listener = link_create(LISTENER, fd);
  counts.listen += 1;
  return ncclSuccess;
}

/* Returns nothing at first, and keeps its progress in the handle. */
static ncclResult_t connect_to(void *handle, void **sender, void **offload) {
  struct place *place = handle;
  socklen_t bytes;
  DEMAND(place->mark == MARK, "connect: not a handle of this network");
  DEMAND(offload != NULL && *offload == NULL, "connect: asks for an offload");
  *sender = NULL;
  place->calls += 1;
  counts.connect += 1;
  if (place->calls < 3) return ncclSuccess;
  const struct sockaddr_un address = address_of(place->name, &bytes);
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return ncclSystemError;
  if (connect(fd, (const struct sockaddr *)&address, bytes) != 0) {
    close(fd);
    return errno == EAGAIN ? ncclSuccess : ncclRemoteError;
  }
  *sender = link_create(SENDER, fd);
  return ncclSuccess;
}

#if ABI <= 10
static ncclResult_t loop_listen(int device, void *handle, void **listener) {
  return listen_on(device, handle, listener);
}
#endif
#if ABI == 6
static ncclResult_t loop_connect(int device, void *handle, void **sender) {
  void *none = NULL;
  (void)device;
  return connect_to(handle, sender, &none);
}
#elif ABI < 10
static ncclResult_t loop_connect(int device, void *handle, void **sender, void **offload) {
  (void)device;
  return connect_to(handle, sender, offload);
}
#elif ABI == 10
static ncclResult_t loop_connect(int device, struct abi_config *config, void *handle, void **sender,
                                 void **offload) {
  (void)device;
  DEMAND(config != NULL && config->traffic_class == class_expected(),
         "connect: another traffic class was set");
  return connect_to(handle, sender, offload);
}
#else
static ncclResult_t loop_listen(void *context, int device, void *handle, void **listener) {
  const ncclResult_t result = context_check(context);
  return result == ncclSuccess ? listen_on(device, handle, listener) : result;
}
static ncclResult_t loop_connect(void *context, int device, void *handle, void **sender, void **offload) {
  const ncclResult_t result = context_check(context);
  (void)device;
  return result == ncclSuccess ? connect_to(handle, sender, offload) : result;
}
#endif

#if ABI == 6
static ncclResult_t loop_accept(void *listener, void **receiver) {
#else
static ncclResult_t loop_accept(void *listener, void **receiver, void **offload) {
#endif
  struct link *link = listener;
  DEMAND(link != NULL && link->mark == MARK && link->kind == LISTENER, "accept: not a listener");
#if ABI > 6
  DEMAND(offload != NULL && *offload == NULL, "accept: asks for an offload");
#endif
  *receiver = NULL;
  if (link->patience > 0) {
    link->patience -= 1;
    return ncclSuccess;
  }
  const int fd = accept4(link->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (fd >= 0) *receiver = link_create(RECEIVER, fd);
  return fd >= 0 || errno == EAGAIN ? ncclSuccess : ncclSystemError;
}

static ncclResult_t link_close(struct link *link, enum kind kind) {
  DEMAND(link != NULL && link->mark == MARK && link->kind == kind, "close: not of this kind");
  for (uint32_t i = 0; i < REGISTRATIONS; i++)
    DEMAND(link->registrations[i].mark == 0, "close: memory is still registered");
  close(link->fd);
  link->mark = 0;
  free(link);
  counts.links -= 1;
  return ncclSuccess;
}
static ncclResult_t loop_close_send(void *sender) { return link_close(sender, SENDER); }
static ncclResult_t loop_close_recv(void *receiver) { return link_close(receiver, RECEIVER); }
static ncclResult_t loop_close_listen(void *listener) { return link_close(listener, LISTENER); }

/* ---- memory ---- */

static bool is_connection(const struct link *link) {
  return link != NULL && link->mark == MARK && link->kind != LISTENER;
}

/* Bytes as the versions count them. */
#if ABI < 8
typedef int memory_bytes;
#else
typedef size_t memory_bytes;
#endif
#if ABI < 9
typedef int message_bytes;
#else
typedef size_t message_bytes;
#endif

static ncclResult_t loop_register(void *connection, void *data, memory_bytes bytes, int memory,
                                  void **result) {
  struct link *link = connection;
  DEMAND(is_connection(link), "regMr: not a connection");
  DEMAND(memory == ABI_MEMORY_HOST || memory == ABI_MEMORY_CUDA, "regMr: not a kind of memory");
  DEMAND((memory & memory_kinds()) != 0, "regMr: a kind of memory that getProperties does not have");
  if (memory == ABI_MEMORY_CUDA && memory_is("refused")) return ncclSystemError;
  if (memory == ABI_MEMORY_CUDA)
    say(3, 16, __FILE__, __LINE__, "loopback plugin: memory of a GPU by address");
  for (uint32_t i = 0; i < REGISTRATIONS; i++) {
    struct registration *one = &link->registrations[i];
    if (one->mark != 0) continue;
    *one = (struct registration){MARK, data, (size_t)bytes};
    *result = one;
    counts.registrations += 1;
    return ncclSuccess;
  }
  return ncclSystemError;
}

static ncclResult_t loop_register_dmabuf(void *connection, void *data, size_t bytes, int memory,
                                         uint64_t offset, int descriptor, void **result) {
  struct stat about;
  DEMAND(memory_is("dmabuf") && memory == ABI_MEMORY_CUDA, "regMrDmaBuf: not memory of a GPU");
  DEMAND(fstat(descriptor, &about) == 0 && (uint64_t)about.st_size >= offset + bytes,
         "regMrDmaBuf: memory that the descriptor does not have");
  say(3, 16, __FILE__, __LINE__, "loopback plugin: memory of a GPU by descriptor");
  return loop_register(connection, data, (memory_bytes)bytes, memory, result);
}

static ncclResult_t loop_unregister(void *connection, void *registration) {
  struct link *link = connection;
  struct registration *one = registration;
  DEMAND(is_connection(link), "deregMr: not a connection");
  DEMAND(one >= link->registrations && one < link->registrations + REGISTRATIONS && one->mark == MARK,
         "deregMr: not a registration of this connection");
  one->mark = 0;
  counts.registrations -= 1;
  return ncclSuccess;
}

static bool covers(const struct link *link, const struct registration *one, const char *data, size_t bytes) {
  return one >= link->registrations && one < link->registrations + REGISTRATIONS && one->mark == MARK &&
         data >= one->data && data + bytes <= one->data + one->bytes;
}

/* ---- messages ---- */

static struct request *request_begin(struct link *link, uint32_t count) {
  for (uint32_t i = 0; i < ABI_REQUESTS_MAX; i++) {
    struct request *request = &link->requests[i];
    if (request->used) continue;
    memset(request, 0, sizeof *request);
    request->used = true;
    request->link = link;
    request->count = count;
    request->turn = link->posted++;
    return request;
  }
  return NULL;
}

/* Two of five calls of a connection return nothing, one after the other. */
static bool is_impatient(struct link *link) {
  link->patience = (link->patience + 1) % 5;
  return link->patience < 2;
}

static ncclResult_t send_from(void *sender, void *data, size_t bytes, int tag, void *registration,
                              void **result) {
  struct link *link = sender;
  counts.isend += 1;
  DEMAND(is_connection(link) && link->kind == SENDER, "isend: not a sender");
  DEMAND(bytes <= (ABI < 9 ? 1u << 30 : 1u << 24), "isend: larger than getProperties allows");
  DEMAND(bytes == 0 || covers(link, registration, data, bytes), "isend: memory is not registered");
  *result = NULL;
  struct request *request = is_impatient(link) ? NULL : request_begin(link, 1);
  if (request == NULL) return ncclSuccess;
  request->parts[0] = (struct part){data, bytes, 0, tag, false, false};
  *result = request;
  return ncclSuccess;
}

#if ABI < 10
static ncclResult_t loop_isend(void *sender, void *data, message_bytes bytes, int tag, void *registration,
                               void **result) {
  return send_from(sender, data, (size_t)bytes, tag, registration, result);
}
#else
static ncclResult_t loop_isend(void *sender, void *data, size_t bytes, int tag, void *registration,
                               void *parent, void **result) {
  (void)parent;
  return send_from(sender, data, bytes, tag, registration, result);
}
#endif

static ncclResult_t receive_into(void *receiver, int count, void **data, const message_bytes *bytes,
                                 const int *tags, void **registrations, void **result) {
  struct link *link = receiver;
  counts.irecv += 1;
  DEMAND(is_connection(link) && link->kind == RECEIVER, "irecv: not a receiver");
  DEMAND(count >= 1 && count <= RECVS_MAX, "irecv: more than getProperties allows");
  for (int i = 0; i < count; i++)
    DEMAND(bytes[i] == 0 || covers(link, registrations[i], data[i], (size_t)bytes[i]),
           "irecv: memory is not registered");
  *result = NULL;
  struct request *request = is_impatient(link) ? NULL : request_begin(link, (uint32_t)count);
  if (request == NULL) return ncclSuccess;
  for (int i = 0; i < count; i++)
    request->parts[i] = (struct part){data[i], (size_t)bytes[i], 0, tags[i], false, false};
  *result = request;
  return ncclSuccess;
}

#if ABI < 10
static ncclResult_t loop_irecv(void *receiver, int count, void **data, message_bytes *bytes, int *tags,
                               void **registrations, void **result) {
  return receive_into(receiver, count, data, bytes, tags, registrations, result);
}
#else
static ncclResult_t loop_irecv(void *receiver, int count, void **data, size_t *bytes, int *tags,
                               void **registrations, void **parents, void **result) {
  DEMAND(parents != NULL, "irecv: no handles for a profiler");
  return receive_into(receiver, count, data, bytes, tags, registrations, result);
}
#endif

static ncclResult_t loop_iflush(void *receiver, int count, void **data, int *bytes, void **registrations,
                                void **result) {
  struct link *link = receiver;
  DEMAND(is_connection(link) && link->kind == RECEIVER, "iflush: not a receiver");
  for (int i = 0; i < count; i++)
    DEMAND(covers(link, registrations[i], data[i], (size_t)bytes[i]), "iflush: memory is not registered");
  struct request *request = request_begin(link, 0);
  if (request != NULL) request->flush = true;
  counts.iflush += 1;
  *result = request;
  return ncclSuccess;
}

static struct request *request_of_turn(struct link *link, uint64_t turn) {
  for (uint32_t i = 0; i < ABI_REQUESTS_MAX; i++)
    if (link->requests[i].used && link->requests[i].turn == turn) return &link->requests[i];
  return NULL;
}

/* The oldest request with parts to move; later requests wait for it. */
static struct request *request_oldest(struct link *link) {
  while (link->ended < link->posted) {
    struct request *request = request_of_turn(link, link->ended);
    bool over = true;
    for (uint32_t i = 0; request != NULL && i < request->count; i++) over = over && request->parts[i].done;
    if (request != NULL && !over) return request;
    link->ended += 1;
  }
  return NULL;
}

static bool move(struct link *link, void *data, size_t bytes, size_t *moved, ncclResult_t *result) {
  while (*moved < bytes) {
    char *at = (char *)data + *moved;
    const ssize_t some = link->kind == SENDER ? send(link->fd, at, bytes - *moved, MSG_NOSIGNAL)
                                              : recv(link->fd, at, bytes - *moved, 0);
    if (some > 0) *moved += (size_t)some;
    else if (some < 0 && errno == EAGAIN) return false;
    else return *result = ncclRemoteError, false;
  }
  return true;
}

static ncclResult_t part_choose(struct link *link, struct request *request) {
  if (link->kind == SENDER) {
    link->current = &request->parts[0];
    link->head = (struct head){link->current->bytes, link->current->tag};
    return ncclSuccess;
  }
  link->current = NULL;
  for (uint32_t i = 0; i < request->count && link->current == NULL; i++)
    if (!request->parts[i].taken && request->parts[i].tag == (int)link->head.tag)
      link->current = &request->parts[i];
  DEMAND(link->current != NULL, "a message whose tag no receive has");
  DEMAND(link->head.bytes <= link->current->bytes, "a message that is longer than its receive");
  link->current->bytes = (size_t)link->head.bytes;
  link->current->taken = true;
  return ncclSuccess;
}

static ncclResult_t progress(struct link *link) {
  ncclResult_t result = ncclSuccess;
  struct request *request;
  while ((request = request_oldest(link)) != NULL && result == ncclSuccess) {
    if (link->kind == SENDER && link->current == NULL) result = part_choose(link, request);
    if (!move(link, &link->head, sizeof link->head, &link->head_moved, &result)) return result;
    if (link->current == NULL) result = part_choose(link, request);
    if (result != ncclSuccess) return result;
    struct part *part = link->current;
    if (!move(link, part->data, part->bytes, &part->moved, &result)) return result;
    part->done = true;
    link->current = NULL;
    link->head_moved = 0;
    counts.messages += 1;
  }
  return result;
}

static ncclResult_t loop_test(void *request, int *done, int *bytes) {
  struct request *mine = request;
  counts.test += 1;
  DEMAND(mine != NULL && mine->used, "test: not a request, or one that was over");
  *done = 0;
  if (!mine->flush) {
    const ncclResult_t result = progress(mine->link);
    for (uint32_t i = 0; i < mine->count; i++)
      if (!mine->parts[i].done) return result;
  }
  for (uint32_t i = 0; bytes != NULL && i < mine->count; i++)
    bytes[i] = lies ? -1 : (int)mine->parts[i].bytes;
  mine->used = false;
  *done = 1;
  return ncclSuccess;
}

#define SYMBOL_OF(version) ncclNetPlugin_v##version
#define SYMBOL(version) SYMBOL_OF(version)

EXPORT const struct abi_net SYMBOL(ABI) = {
  .name = "Loopback",
#if ABI < 10
  .init.v6 = loop_init,
#elif ABI == 10
  .init.v10 = loop_init,
  .connect.v10 = loop_connect,
#else
  .init.v11 = loop_init,
  .listen.v11 = loop_listen,
  .connect.v11 = loop_connect,
  .finalize = loop_finalize,
#endif
#if ABI <= 10
  .listen.v10 = loop_listen,
#endif
#if ABI == 6
  .connect.v6 = loop_connect,
  .accept.v6 = loop_accept,
#else
  .accept.v7 = loop_accept,
#endif
#if ABI > 6 && ABI < 10
  .connect.v7 = loop_connect,
#endif
#if ABI < 8
  .register_memory.v6 = loop_register,
#else
  .register_memory.v8 = loop_register,
#endif
#if ABI < 9
  .isend.v6 = loop_isend,
  .irecv.v6 = loop_irecv,
#elif ABI == 9
  .isend.v9 = loop_isend,
  .irecv.v9 = loop_irecv,
#else
  .isend.v10 = loop_isend,
  .irecv.v10 = loop_irecv,
#endif
  .devices = loop_devices,
  .properties = loop_properties,
  .register_dmabuf = loop_register_dmabuf,
  .unregister_memory = loop_unregister,
  .iflush = loop_iflush,
  .test = loop_test,
  .close_send = loop_close_send,
  .close_recv = loop_close_recv,
  .close_listen = loop_close_listen,
};
