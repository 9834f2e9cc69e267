/* socket.c: the socket net's table of functions; checks arguments and calls the other files. */
#include "backends/socket/socket.h"
#include "base/log.h"

static ncclResult_t net_memory_register(void *connection, void *data, size_t bytes, enum net_memory kind,
                                        void **registration) {
  (void)data;
  (void)bytes;
  if (kind != NET_MEMORY_HOST)
    return log_fail(ncclInvalidArgument, "socket net: sockets carry host memory alone");
  *registration = connection;
  return ncclSuccess;
}

static ncclResult_t net_memory_unregister(void *connection, void *registration) {
  (void)connection;
  (void)registration;
  return ncclSuccess;
}

static ncclResult_t net_send(void *connection, const void *data, size_t bytes, int tag, void *registration,
                             void **request) {
  (void)tag; /* messages match receives by order */
  (void)registration;
  return send_begin((struct end *)connection, NULL, data, bytes, request);
}

static ncclResult_t net_receive(void *connection, uint32_t count, void *const *data, const size_t *bytes,
                                const int *tags, void *const *registrations, void **request) {
  (void)tags;
  (void)registrations;
  if (count != 1)
    return log_fail(ncclInvalidArgument, "socket net: %u receives in one call: it takes 1", count);
  return receive_begin((struct end *)connection, NULL, 0, data[0], bytes[0], request);
}

/* With data sockets a message must be contiguous. */
static enum net_parts net_takes_parts(void *connection) {
  const struct end *end = (const struct end *)connection;
  return end->endpoint.data_sockets == 0 ? NET_PARTS_ANYWHERE : NET_PARTS_NONE;
}

static ncclResult_t net_send_parts(void *connection, const struct net_part *first, const void *data,
                                   size_t bytes, void *registration, void **request) {
  (void)registration;
  return send_begin((struct end *)connection, first, data, bytes, request);
}

static ncclResult_t net_receive_parts(void *connection, const struct net_part *first, size_t whole_bytes,
                                      void *data, size_t bytes, void *registration, void **request) {
  (void)registration;
  return receive_begin((struct end *)connection, first, whole_bytes, data, bytes, request);
}

static void net_part_move(void *request, void *first) {
  ((struct request *)request)->first = (uint8_t *)first;
}

static bool request_done(struct request *request) {
  return request->stream_done && atomic_load_explicit(&request->tasks, memory_order_acquire) == 0;
}

static ncclResult_t net_test(void *handle, bool *done, size_t *bytes) {
  struct request *request = (struct request *)handle;
  struct end *end = request->end;
  *done = false;
  if (!request_done(request)) {
    const ncclResult_t result = end->kind == END_SEND ? send_move(end) : receive_move(end);
    if (!request_done(request)) return result; /* a request completed before the failure still succeeds */
  }
  if (bytes != NULL) *bytes = request->bytes;
  request->used = false;
  *done = true;
  return ncclSuccess;
}

static ncclResult_t net_close_send(void *connection) {
  send_close((struct end *)connection);
  return ncclSuccess;
}

static ncclResult_t net_close_receive(void *connection) {
  receive_close((struct end *)connection);
  return ncclSuccess;
}

static ncclResult_t net_connect(uint32_t device, const struct net_peer *peer, struct net_handle *handle,
                                void **connection) {
  return send_connect(device, peer, handle, connection);
}

static ncclResult_t net_wait_descriptors(void *connection, int *descriptors, uint32_t capacity,
                                         uint32_t *count) {
  struct end *end = (struct end *)connection;
  *count = 0;
  if (capacity == 0) return ncclSuccess;
  if (end->kind == END_SEND) {
    *count = send_descriptors(end, descriptors, capacity);
  } else if (end->kind == END_RECEIVE) {
    *count = receive_descriptors(end, descriptors, capacity);
  } else {
    descriptors[0] = port_descriptor(connection);
    *count = 1;
  }
  return ncclSuccess;
}

const struct net_ops *socket_net_ops(void) {
  static const struct net_ops ops = {
      .size = sizeof ops,
      .name = "Socket",
      .devices = socket_devices,
      .properties = socket_properties,
      .listen = port_listen,
      .connect = net_connect,
      .accept = port_accept,
      .register_memory = net_memory_register,
      .unregister_memory = net_memory_unregister,
      .isend = net_send,
      .irecv = net_receive,
      .iflush = net_flush_nothing,
      .test = net_test,
      .close_send = net_close_send,
      .close_recv = net_close_receive,
      .close_listen = port_close,
      .finish = NULL,
      .wait_descriptors = net_wait_descriptors,
      .takes_parts = net_takes_parts,
      .isend_parts = net_send_parts,
      .irecv_parts = net_receive_parts,
      .part_move = net_part_move,
  };
  return &ops;
}
