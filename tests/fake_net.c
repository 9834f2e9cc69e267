/* fake_net.c: see fake_net.h. */
#include "fake_net.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "random.h"

#define QUEUE_MAX 64
#define REFUSALS_MAX 6

struct message {
  const uint8_t *from;
  uint8_t *to, *copy; /* copy: of a message that outlives its sender's request */
  size_t bytes, capacity, moved, sent_bytes;
  bool sent, received, send_done, recv_done;
};

/* One connection: the k-th send and the k-th receive share message k. */
struct fake_link {
  bool used, listens, connected, accepted, send_closed, recv_closed;
  uint64_t comm_key;
  struct message messages[QUEUE_MAX];
  uint64_t sends, receives;
};

struct request {
  struct fake_link *link;
  uint64_t number;
  bool sends;
  struct request *previous, *next;
};

static struct {
  struct fake_options options;
  uint64_t random;
  uint32_t refusals;
  struct request *requests; /* dropped requests are kept until the next reset */
  struct fake_link *links[FAKE_LINKS_MAX];
  struct fake_stats stats;
} fake;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void fake_net_reset(const struct fake_options *options) {
  while (fake.requests != NULL) {
    struct request *request = fake.requests;
    fake.requests = request->next;
    free(request);
  }
  for (uint32_t i = 0; i < FAKE_LINKS_MAX; i++) {
    for (uint32_t k = 0; k < QUEUE_MAX && fake.links[i] != NULL; k++) free(fake.links[i]->messages[k].copy);
    free(fake.links[i]);
  }
  memset(&fake, 0, sizeof fake);
  fake.options = *options;
  fake.random = options->seed * 0x9e3779b97f4a7c15u + 1;
}

struct fake_stats fake_net_stats(void) {
  pthread_mutex_lock(&lock);
  const struct fake_stats stats = fake.stats;
  pthread_mutex_unlock(&lock);
  return stats;
}

static bool refuses(void) {
  if (fake.refusals >= REFUSALS_MAX || random_below(&fake.random, 100) >= fake.options.refuse_percent) {
    fake.refusals = 0;
    return false;
  }
  fake.refusals += 1;
  return true;
}

static ncclResult_t count_call(void) {
  fake.stats.calls += 1;
  if (fake.stats.calls != fake.options.fail_call) return ncclSuccess;
  return log_fail(ncclRemoteError, "the fake network's cable is pulled");
}

/* Every call takes the lock, is counted, and may fail. */
#define CALL(body)                            \
  do {                                        \
    pthread_mutex_lock(&lock);                \
    ncclResult_t call_result_ = count_call(); \
    if (call_result_ == ncclSuccess) {        \
      body                                    \
    }                                         \
    pthread_mutex_unlock(&lock);              \
    return call_result_;                      \
  } while (0)

static ncclResult_t fake_devices(uint32_t *count) {
  *count = 2;
  return ncclSuccess;
}

static ncclResult_t fake_properties(uint32_t device, struct net_properties *properties) {
  memset(properties, 0, sizeof *properties);
  memcpy(properties->name, device == 0 ? "fake0" : "fake1", 6);
  properties->max_recvs = 1;
  properties->max_message_bytes = 1u << 30;
  return ncclSuccess;
}

static uint32_t link_new(void) {
  uint32_t i = 1;
  while (i < FAKE_LINKS_MAX && fake.links[i] != NULL) i += 1;
  if (i == FAKE_LINKS_MAX) abort();
  fake.links[i] = (struct fake_link *)calloc(1, sizeof *fake.links[i]);
  return i;
}

static ncclResult_t fake_listen(uint32_t device, const struct net_peer *peer, struct net_handle *handle,
                                void **listener) {
  (void)device;
  CALL({
    const uint32_t index = link_new();
    fake.links[index]->comm_key = peer->comm_key;
    fake.links[index]->listens = true;
    memcpy(handle->bytes, &index, sizeof index);
    fake.stats.listeners_open += 1;
    *listener = fake.links[index];
  });
}

static ncclResult_t fake_connect(uint32_t device, const struct net_peer *peer, struct net_handle *handle,
                                 void **connection) {
  (void)device;
  CALL({
    uint32_t index;
    memcpy(&index, handle->bytes, sizeof index);
    if (fake.links[index]->comm_key != peer->comm_key) abort();
    if (!refuses()) {
      fake.links[index]->connected = true;
      fake.stats.connections_open += 1;
      *connection = fake.links[index];
    }
  });
}

static ncclResult_t fake_accept(void *listener, void **connection) {
  struct fake_link *link = (struct fake_link *)listener;
  CALL({
    if (link->connected && !refuses()) {
      link->accepted = true;
      fake.stats.connections_open += 1;
      *connection = link;
    }
  });
}

static ncclResult_t fake_register(void *connection, void *data, size_t bytes, enum net_memory kind,
                                  void **registration) {
  (void)data, (void)bytes, (void)kind;
  CALL({
    fake.stats.registrations += 1;
    *registration = connection;
  });
}

static ncclResult_t fake_unregister(void *connection, void *registration) {
  pthread_mutex_lock(&lock);
  if (connection != registration) abort();
  fake.stats.registrations -= 1;
  pthread_mutex_unlock(&lock);
  return ncclSuccess;
}

static struct message *message_at(struct fake_link *link, uint64_t number) {
  return &link->messages[number % QUEUE_MAX];
}

static void *request_new(struct fake_link *link, uint64_t number, bool sends) {
  struct request *request = (struct request *)malloc(sizeof *request);
  *request = (struct request){link, number, sends, NULL, fake.requests};
  if (fake.requests != NULL) fake.requests->previous = request;
  fake.requests = request;
  fake.stats.requests += 1;
  return request;
}

static void request_free(struct request *request) {
  if (request->previous != NULL) request->previous->next = request->next;
  else fake.requests = request->next;
  if (request->next != NULL) request->next->previous = request->previous;
  free(request);
  fake.stats.requests -= 1;
}

static void message_send(struct fake_link *link, const void *data, size_t bytes) {
  struct message *message = message_at(link, link->sends++);
  message->from = (const uint8_t *)data;
  message->bytes = bytes;
  message->sent = true;
}

/* A message that outlives its sender's request. */
static void message_send_copy(struct fake_link *link, const void *data, size_t bytes) {
  struct message *message = message_at(link, link->sends);
  uint8_t *copy = (uint8_t *)malloc(bytes + 1);
  memcpy(copy, data, bytes);
  message_send(link, copy, bytes);
  message->copy = copy;
  message->send_done = true;
}

static ncclResult_t fake_isend(void *connection, const void *data, size_t bytes, int tag, void *registration,
                               void **request) {
  struct fake_link *link = (struct fake_link *)connection;
  (void)tag;
  if (registration != connection) abort();
  CALL({
    const bool full = link->sends + 2 >= link->receives + QUEUE_MAX / 2;
    if (!full && !refuses()) {
      fake.stats.messages += 1;
      const enum fake_fault fault =
          fake.stats.messages == fake.options.fault_message ? fake.options.fault : FAKE_SOUND;
      if (fault == FAKE_REPEATS) message_send_copy(link, data, bytes);
      if (fault == FAKE_LOSES) {
        *request = request_new(link, UINT64_MAX, true);
      } else {
        if (fault == FAKE_DAMAGES) ((uint8_t *)(uintptr_t)data)[bytes - 32] ^= 1;
        *request = request_new(link, link->sends, true);
        message_send(link, data, bytes);
      }
    }
  });
}

static ncclResult_t fake_irecv(void *connection, uint32_t count, void *const *data, const size_t *bytes,
                               const int *tags, void *const *registrations, void **request) {
  struct fake_link *link = (struct fake_link *)connection;
  (void)tags;
  if (registrations[0] != connection || count != 1) abort();
  CALL({
    if (!refuses()) {
      struct message *message = message_at(link, link->receives);
      message->to = (uint8_t *)data[0];
      message->capacity = bytes[0];
      message->received = true;
      *request = request_new(link, link->receives++, false);
    }
  });
}

static void message_end(struct message *message) {
  if (!message->send_done || !message->recv_done) return;
  free(message->copy);
  memset(message, 0, sizeof *message);
}

/* The caller owns the memory of a closed end again. */
static bool message_is_cut(const struct fake_link *link, const struct message *message) {
  return message->moved < message->bytes && (link->recv_closed || link->send_closed);
}

static bool message_move(struct message *message) {
  if (!message->sent || !message->received) return false;
  size_t piece = message->bytes - message->moved;
  if (fake.options.piece_bytes != 0 && piece > fake.options.piece_bytes) piece = fake.options.piece_bytes;
  memcpy(message->to + message->moved, message->from + message->moved, piece);
  message->moved += piece;
  return message->moved == message->bytes;
}

static ncclResult_t fake_test(void *handle, bool *done, size_t *bytes) {
  struct request *request = (struct request *)handle;
  CALL({
    *done = false;
    struct message *message =
        request->number != UINT64_MAX ? message_at(request->link, request->number) : NULL;
    if (message != NULL && message->sent && message->received && message->bytes > message->capacity) {
      call_result_ = log_fail(ncclInvalidUsage, "the fake network: a message of %zu bytes for space of %zu",
                              message->bytes, message->capacity);
    } else if (message != NULL && message_is_cut(request->link, message)) {
      call_result_ = log_fail(ncclRemoteError, "the fake network: the other end has closed the connection");
    } else if (!refuses() && (message == NULL || message_move(message))) {
      *done = true;
      if (bytes != NULL) *bytes = message->bytes;
      if (message != NULL && request->sends) message->send_done = true;
      else if (message != NULL) message->recv_done = true;
      if (message != NULL) message_end(message);
      request_free(request);
    }
  });
}

static ncclResult_t fake_close_send(void *connection) {
  pthread_mutex_lock(&lock);
  ((struct fake_link *)connection)->send_closed = true;
  fake.stats.connections_open -= 1;
  pthread_mutex_unlock(&lock);
  return ncclSuccess;
}

static ncclResult_t fake_close_recv(void *connection) {
  pthread_mutex_lock(&lock);
  ((struct fake_link *)connection)->recv_closed = true;
  fake.stats.connections_open -= 1;
  pthread_mutex_unlock(&lock);
  return ncclSuccess;
}

static ncclResult_t fake_close_listen(void *listener) {
  (void)listener;
  pthread_mutex_lock(&lock);
  fake.stats.listeners_open -= 1;
  pthread_mutex_unlock(&lock);
  return ncclSuccess;
}

const struct net_ops *fake_net_ops(void) {
  static const struct net_ops ops = {
      .size = sizeof(struct net_ops),
      .name = "fake",
      .devices = fake_devices,
      .properties = fake_properties,
      .listen = fake_listen,
      .connect = fake_connect,
      .accept = fake_accept,
      .register_memory = fake_register,
      .unregister_memory = fake_unregister,
      .isend = fake_isend,
      .irecv = fake_irecv,
      .test = fake_test,
      .close_send = fake_close_send,
      .close_recv = fake_close_recv,
      .close_listen = fake_close_listen,
  };
  return &ops;
}
