/* ibv.c: the ibv net's table of functions. */
#include "backends/ibv/ib.h"

static ncclResult_t net_register(void *connection, void *data, size_t bytes, enum net_memory kind,
                                 void **registration) {
  return ib_region_take((struct ib_end *)connection, NULL, data, bytes, kind, registration);
}

static ncclResult_t net_register_dmabuf(void *connection, void *data, size_t bytes, int descriptor,
                                        uint64_t offset, void **registration) {
  const struct ib_dmabuf dmabuf = {descriptor, offset};
  struct ib_end *end = (struct ib_end *)connection;
  if (end->verbs->dmabuf_register == NULL)
    return log_fail(ncclInvalidArgument, "Network IB: libibverbs.so.1 has no ibv_reg_dmabuf_mr");
  return ib_region_take(end, &dmabuf, data, bytes, NET_MEMORY_CUDA, registration);
}

static ncclResult_t net_unregister(void *connection, void *registration) {
  return ib_region_give((struct ib_end *)connection, registration);
}

static ncclResult_t net_send(void *connection, const void *data, size_t bytes, int tag, void *registration,
                             void **request) {
  const struct ib_place places[IB_PLACES] = {{data, bytes, (struct ib_region *)registration},
                                             {NULL, 0, NULL}};
  return ib_send((struct ib_end *)connection, places, tag, request);
}

static enum net_parts net_takes_parts(void *connection) {
  (void)connection;
  return NET_PARTS_REGISTERED;
}

static ncclResult_t net_send_parts(void *connection, const struct net_part *first, const void *data,
                                   size_t bytes, void *registration, void **request) {
  const struct ib_place places[IB_PLACES] = {
      {first->data, first->bytes, (struct ib_region *)first->registration},
      {data, bytes, (struct ib_region *)registration}};
  return ib_send((struct ib_end *)connection, places, 0, request);
}

static ncclResult_t net_receive_parts(void *connection, const struct net_part *first, size_t whole_bytes,
                                      void *data, size_t bytes, void *registration, void **request) {
  const struct ib_place places[IB_PLACES] = {
      {first->data, first->bytes, (struct ib_region *)first->registration},
      {data, bytes, (struct ib_region *)registration}};
  return ib_receive_split((struct ib_end *)connection, places, whole_bytes, request);
}

/* Posted work requests cannot be redirected, so the queue pairs stop. The operation's own error has been
 * logged already and remains the text of ncclGetLastError(). */
static void net_part_move(void *handle, void *first) {
  struct ib_end *end = ((struct ib_request *)handle)->end;
  (void)first;
  ib_qps_stop(end);
  if (end->failed == ncclSuccess) end->failed = ncclRemoteError;
}

static ncclResult_t net_receive(void *connection, uint32_t count, void *const *data, const size_t *bytes,
                                const int *tags, void *const *registrations, void **request) {
  return ib_receive((struct ib_end *)connection, count, data, bytes, tags, registrations, request);
}

static ncclResult_t net_flush(void *connection, uint32_t count, void *const *data, const size_t *bytes,
                              void *const *registrations, void **request) {
  return ib_flush((struct ib_end *)connection, count, data, bytes, registrations, request);
}

static ncclResult_t net_test(void *handle, bool *done, size_t *bytes) {
  struct ib_request *request = (struct ib_request *)handle;
  *done = false;
  if (!request->done) {
    const ncclResult_t result = ib_end_poll(request->end);
    if (!request->done) return result; /* a request completed before the failure still succeeds */
  }
  for (uint32_t i = 0; bytes != NULL && i < request->count; i++) bytes[i] = request->bytes[i];
  request->used = false;
  *done = true;
  return ncclSuccess;
}

static ncclResult_t net_close_send(void *connection) {
  ib_send_linger((struct ib_end *)connection);
  return ib_end_close((struct ib_end *)connection);
}

static ncclResult_t net_close_receive(void *connection) { return ib_end_close((struct ib_end *)connection); }

static ncclResult_t net_look(void *connection, enum net_look *wish) {
  return ib_look((struct ib_end *)connection, wish);
}

const struct net_ops *ibv_net_ops(void) {
  static const struct net_ops ops = {
      .size = sizeof ops,
      .name = "IB",
      .devices = ib_devices,
      .properties = ib_properties,
      .listen = ib_listen,
      .connect = ib_connect,
      .accept = ib_accept,
      .register_memory = net_register,
      .unregister_memory = net_unregister,
      .register_dmabuf = net_register_dmabuf,
      .device_trial = ib_device_trial,
      .isend = net_send,
      .irecv = net_receive,
      .iflush = net_flush,
      .test = net_test,
      .close_send = net_close_send,
      .close_recv = net_close_receive,
      .close_listen = ib_listen_close,
      .finish = ib_finish,
      .takes_parts = net_takes_parts,
      .isend_parts = net_send_parts,
      .irecv_parts = net_receive_parts,
      .part_move = net_part_move,
      .look = net_look,
  };
  return &ops;
}
