/* proxy_conn.c: one connection's state machine, one action at a time. A sender's slices are posted when there
 * is space for them, transmitted when the kernel's tail has passed them, and done when the network has sent
 * them; then head frees their slots. A receiver's slices are posted into free slots, received, flushed if the
 * slots are device memory, transmitted to the kernel by tail, and done when the kernel's head has passed
 * them. For LL slices the flags of the lines replace tail (proxy_ll.c). Does not know which thread runs it,
 * or when. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "core/plan/names.h"
#include "core/proxy/proxy_impl.h"
#include "core/proxy/proxy_pxn.h"

void proxy_comm_fail(struct proxy_comm *comm, ncclResult_t code, const char *format, ...) {
  va_list arguments;
  if (comm->failed) return;
  va_start(arguments, format);
  vsnprintf(comm->text, sizeof comm->text, format, arguments);
  va_end(arguments);
  comm->code = code;
  comm->failed = true;
}

/* What a network is doing with a message, for error messages. */
static const char text_sending[] = "sending to", text_receiving[] = "receiving from";

static const char *operation_text(const struct work *work, char out[64]) {
  snprintf(out, 64, "%s %" PRIu64, names_func[work->func], work->op_sequence);
  return out;
}

/* A message that does not fit is not the one that its receiver expects: LL has less capacity than Simple's
 * slots, and both ends choose by the size. */
static void conn_disagree(struct proxy_conn *conn, const char *operation, const char *why) {
  const uint32_t rank = conn->comm->call.rank;
  proxy_comm_fail(conn->comm, ncclInvalidUsage,
                  "rank %" PRIu32 " and rank %" PRIu32 " do not agree on operation %s: %s (channel %" PRIu32
                  "); call the same operation with the same count and type on both ranks, in the same order",
                  rank, conn->name.peer, operation, why, conn->name.channel_index);
}

/* A failed call of the network breaks the communicator. The report names communicator and rank; most networks
 * name themselves. */
static bool net_good(struct proxy_conn *conn, ncclResult_t result, const char *what) {
  if (result == ncclSuccess) return true;
  const char *net = conn->comm->net->name, *why = log_own_error();
  const bool named = strstr(why, net) != NULL;
  char operation[64] = "no operation";
  if (conn->n_done < conn->n_posted)
    operation_text(conn->flights[conn->n_done % PROXY_SLICES_MAX].slice.part, operation);
  else if (conn->first != NULL) operation_text(conn->first->work, operation);
  if (result == ncclInvalidUsage && (what == text_sending || what == text_receiving)) {
    conn_disagree(conn, operation, why);
    return false;
  }
  proxy_comm_fail(conn->comm, result, "%s rank %" PRIu32 " failed (%s, channel %" PRIu32 "): %s%s%s", what,
                  conn->name.peer, operation, conn->name.channel_index, named ? "" : net, named ? "" : ": ",
                  why);
  return false;
}

/* ---- connecting ---- */

void proxy_conn_begin(struct proxy_conn *conn, uint64_t step) {
  conn->next_step = step;
  conn->steps = (struct proxy_counters){step, step, step, step, step};
}

struct net_peer proxy_conn_peer(const struct proxy_conn *conn) {
  const struct proxy_comm_call *call = &conn->comm->call;
  const struct net_peer peer = {call->comm_key,   call->rank,    conn->name.peer,
                                conn->comm->name, &call->secret, call->traffic_class};
  return peer;
}

static bool conn_connect(struct proxy_conn *conn) {
  const struct net_ops *net = conn->comm->net;
  const struct net_peer peer = proxy_conn_peer(conn);
  const ncclResult_t result = conn->name.sends
                                  ? net->connect(conn->net_device, &peer, &conn->handle, &conn->connection)
                                  : net->accept(conn->listener, &conn->connection);
  if (!net_good(conn, result, conn->name.sends ? "connecting to" : "taking the connection of")) return false;
  if (conn->connection == NULL) return false;
  conn->comm->connecting -= 1;
  if (net->takes_parts != NULL) conn->parts = net->takes_parts(conn->connection);
  /* In a deterministic emulator lanes wait for zero-copy sends: only those that NICs hold. */
  if (proxy_in_world() && conn->parts == NET_PARTS_ANYWHERE) conn->parts = NET_PARTS_NONE;
  conn->direct =
      conn->end.direct != NULL && conn->parts != NET_PARTS_NONE && conn->end.memory != POINTER_DEVICE;
  proxy_conn_update_zero_copy(conn);
  if (net->look != NULL) conn->idle_look = NET_LOOK_LATER;
  if (conn->comm->idle_look < conn->idle_look) conn->comm->idle_look = conn->idle_look;
  return true;
}

void proxy_conn_progress_idle(struct proxy_conn *conn) {
  log_evidence(true);
  if (!net_good(conn, conn->comm->net->look(conn->connection, &conn->idle_look),
                "keeping the connection with"))
    conn->idle_look = NET_LOOK_NEVER;
  log_evidence(false);
}

void proxy_conn_close(const struct net_ops *net, struct proxy_conn *conn) {
  for (uint32_t i = 0; i < PLAN_BATCH_WORKS_MAX && conn->connection != NULL; i++)
    if (conn->registrations[i] != NULL) net->unregister_memory(conn->connection, conn->registrations[i]);
  proxy_conn_forget_memory(net, conn);
  proxy_device_close(net, conn);
  proxy_ll_withdraw(net, conn);
  if (conn->connection != NULL && conn->name.sends) net->close_send(conn->connection);
  if (conn->connection != NULL && !conn->name.sends) net->close_recv(conn->connection);
  if (conn->listener != NULL) net->close_listen(conn->listener);
  proxy_ll_close(conn);
  if (conn->pxn_client != NULL) proxy_pxn_client_close(conn);
}

/* ---- slots ---- */

/* A PXN proxy has no tasks. */
static uint8_t *slots_of(const struct proxy_conn *conn, const struct proxy_task *task) {
  return task != NULL && task->set != NULL ? task->set->buffer : conn->end.buffer;
}

static uint32_t place_of(const struct proxy_task *task) {
  return task != NULL && task->set != NULL ? task->set->place : 0;
}

/* Registers the task's slots with the connection's network at its first slice. */
static bool slots_register(struct proxy_conn *conn, const struct proxy_task *task) {
  const struct net_ops *net = conn->comm->net;
  const struct device_net_end *end = &conn->end;
  const uint32_t index = place_of(task);
  if (conn->next_slice.ll) return net_good(conn, proxy_ll_register(conn), "registering memory towards");
  if ((conn->registered >> index & 1) != 0) return true;
  conn->registered |= 1u << index;
  uint8_t *slots = slots_of(conn, task);
  const size_t bytes = (size_t)end->slots * end->step_bytes;
  void **registration = &conn->registrations[index];
  const ncclResult_t result = conn->trailers != NULL ? proxy_device_register(conn, slots, bytes, registration)
                                                     : net->register_memory(conn->connection, slots, bytes,
                                                                            NET_MEMORY_HOST, registration);
  return net_good(conn, result, "registering the slots towards");
}

/* ---- slices ---- */

static struct proxy_flight *flight_at(struct proxy_conn *conn, uint64_t number) {
  return &conn->flights[number % PROXY_SLICES_MAX];
}

static uint8_t *slot_of(const struct proxy_conn *conn, const struct proxy_task *task,
                        const struct transfer *slice) {
  return slots_of(conn, task) + (size_t)(slice->begin % conn->end.slots) * conn->end.step_bytes;
}

/* Address of its message. */
static uint8_t *flight_slot(const struct proxy_conn *conn, const struct proxy_flight *flight) {
  if (flight->slice.ll) return proxy_ll_place(conn, flight);
  return slot_of(conn, flight->task, &flight->slice);
}

/* Capacity for the slice's message. */
static size_t slots_bytes(const struct proxy_conn *conn, const struct transfer *slice) {
  if (slice->ll) return conn->ll->place_bytes;
  return (size_t)(slice->end - slice->begin) * conn->end.step_bytes;
}

/* After the slice in its slots, if the host can access those. */
static uint8_t *flight_trailer(struct proxy_conn *conn, const struct proxy_flight *flight) {
  if (conn->trailers != NULL && !flight->slice.ll) return (uint8_t *)&conn->trailers[flight - conn->flights];
  return flight_slot(conn, flight) + flight->slice.bytes;
}

static void *flight_registration(const struct proxy_conn *conn, const struct proxy_flight *flight) {
  return flight->slice.ll ? conn->ll->registration : conn->registrations[place_of(flight->task)];
}

static void task_settle(struct proxy_task *task) {
  if (task->iterated && task->outstanding == 0) proxy_task_done(task);
}

/* The next slice of the oldest task that has one; removes tasks that have none left. A task that waits for
 * its slots has none yet. */
static bool conn_next_slice(struct proxy_conn *conn) {
  if (conn->pxn != NULL && !conn->has_next) conn->has_next = proxy_pxn_take(conn);
  while (!conn->has_next && conn->first != NULL) {
    struct proxy_task *task = conn->first;
    if (task->set != NULL && task->set->first != task) return false;
    if (!task->begun)
      transfer_begin(&task->iter, task->work, task->link_index, conn->name.sends, conn->next_step,
                     task->posting->ops->limits.step_bytes[PROTO_SIMPLE]);
    task->begun = true;
    conn->has_next = transfer_next(&task->iter, &conn->next_slice);
    conn->next_step = task->iter.link.next_step;
    if (conn->has_next) return true;
    task->iterated = true;
    conn->first = task->next;
    if (conn->first == NULL) conn->last = NULL;
    task_settle(task);
  }
  return conn->has_next;
}

/* Steps that rounding skipped were never in use: they are free as soon as all before them are. */
static void conn_skip(struct proxy_conn *conn) {
  if (conn->n_done != conn->n_posted || conn->next_slice.begin <= conn->steps.done) return;
  conn->steps.done = conn->next_slice.begin;
  if (conn->name.sends && conn->pxn_client == NULL && !conn->end.pooled)
    conn->comm->call.ops->network->net_store(conn->end.conn, conn->end.head, conn->steps.done);
}

/* Plans leave space for the proxies at the end of slots (plan_limits_reserve); others are refused. */
static bool conn_has_space(struct proxy_conn *conn) {
  if (!conn_next_slice(conn)) return false;
  if (conn->next_slice.bytes + sizeof(struct proxy_trailer) > slots_bytes(conn, &conn->next_slice)) {
    proxy_comm_fail(conn->comm, ncclInternalError,
                    "a slice of %zu bytes for rank %" PRIu32 " leaves no space in its slots",
                    conn->next_slice.bytes, conn->name.peer);
    return false;
  }
  conn_skip(conn);
  if (conn->pxn_client == NULL && !slots_register(conn, conn->first)) return false;
  return conn->next_slice.end <= conn->steps.done + conn->end.slots;
}

static void conn_posted(struct proxy_conn *conn, void *request, void *direct) {
  struct proxy_flight *flight = flight_at(conn, conn->n_posted);
  flight->slice = conn->next_slice;
  flight->task = conn->first; /* NULL in a PXN proxy */
  if (flight->task != NULL) flight->task->outstanding += 1;
  flight->request = request;
  flight->direct = direct;
  flight->staged = false;
  if (flight->slice.ll) flight->line = conn->ll->next++;
  conn->has_next = false;
  conn->n_posted += 1;
  conn->steps.posted = flight->slice.end;
}

static void conn_done(struct proxy_conn *conn) {
  struct proxy_flight *flight = flight_at(conn, conn->n_done);
  conn->steps.done = flight->slice.end;
  conn->n_done += 1;
  if (flight->task == NULL) return;
  flight->task->outstanding -= 1;
  task_settle(flight->task);
}

/* True if the flight's request has completed; the network may fail here. */
static bool flight_ended(struct proxy_conn *conn, struct proxy_flight *flight, size_t *bytes,
                         const char *what) {
  bool done = false;
  if (!net_good(conn, conn->comm->net->test(flight->request, &done, bytes), what) || !done) return false;
  flight->request = NULL;
  flight->direct = NULL;
  conn->comm->requests -= 1;
  return true;
}

/* ---- sending ---- */

/* A sender with its own slots may fill the free ones; with shared slots, the posted ones. */
static void send_leave(struct proxy_conn *conn) {
  const uint64_t head = conn->end.pooled ? conn->steps.posted - conn->end.slots : conn->steps.done;
  conn->comm->call.ops->network->net_store(conn->end.conn, conn->end.head, head);
}

static struct device_net_zero_copy *zero_copy_of(const struct proxy_conn *conn,
                                                 const struct proxy_flight *flight) {
  return &conn->end.direct->zero_copy_sends[flight->slice.begin % conn->end.slots];
}

/* The network no longer reads the user's memory. A lane that waits for this checks when head changes. */
static void zero_copy_end(struct device_net_zero_copy *zero_copy) {
  __atomic_store_n(&zero_copy->data, NULL, __ATOMIC_RELEASE);
}

/* The part to send without a copy; if its data is NULL, the whole message is in the slot, perhaps only now.
 */
static struct net_part send_zero_copy(struct proxy_conn *conn, struct proxy_flight *flight) {
  struct net_part first = {NULL, 0, NULL};
  if (!conn->direct) return first;
  struct device_net_zero_copy *zero_copy = zero_copy_of(conn, flight);
  if (zero_copy->data == NULL) return first;
  first = (struct net_part){(void *)(uintptr_t)zero_copy->data, zero_copy->bytes, NULL};
  if (conn->parts != NET_PARTS_REGISTERED) return first;
  first.registration = proxy_conn_registration(conn, first.data, first.bytes);
  if (first.registration != NULL) return first;
  memcpy(flight_slot(conn, flight), first.data, first.bytes);
  zero_copy_end(zero_copy);
  send_leave(conn);
  first.data = NULL;
  return first;
}

/* With a zero-copy send the slot has only the trailer, at its usual place. */
static ncclResult_t send_request(struct proxy_conn *conn, struct proxy_flight *flight) {
  const struct proxy_comm *comm = conn->comm;
  const struct transfer *slice = &flight->slice;
  uint8_t *data = flight_slot(conn, flight);
  void *registration = flight_registration(conn, flight);
  if (conn->trailers != NULL && !slice->ll) {
    const struct net_part all = {data, slice->bytes, registration};
    return comm->net->isend_parts(conn->connection, &all, flight_trailer(conn, flight),
                                  sizeof(struct proxy_trailer), conn->trailers_registration,
                                  &flight->request);
  }
  const struct net_part first = slice->ll ? (struct net_part){NULL, 0, NULL} : send_zero_copy(conn, flight);
  if (first.data == NULL)
    return comm->net->isend(conn->connection, data, slice->bytes + sizeof(struct proxy_trailer),
                            (int)comm->call.rank, registration, &flight->request);
  if (first.bytes != slice->bytes)
    return log_fail(ncclInternalError, "a kernel sends %zu bytes without a copy for a slice of %zu",
                    first.bytes, slice->bytes);
  TRY(comm->net->isend_parts(conn->connection, &first, data + slice->bytes, sizeof(struct proxy_trailer),
                             registration, &flight->request));
  if (flight->request == NULL) return ncclSuccess;
  flight->direct = first.data;
  if (conn->parts != NET_PARTS_REGISTERED) zero_copy_end(zero_copy_of(conn, flight));
  return ncclSuccess;
}

bool proxy_conn_is_filled(const struct proxy_conn *conn, const struct proxy_flight *flight) {
  if (flight->slice.ll) return flight->slice.skipped || flight->staged || proxy_ll_is_filled(conn, flight);
  return conn->comm->call.ops->network->net_load(conn->end.conn, conn->end.tail) >= flight->slice.end;
}

/* As proxy_conn_is_filled(), and takes the lines that have arrived. */
static bool send_is_filled(struct proxy_conn *conn, struct proxy_flight *flight) {
  const bool takes = flight->slice.ll && !flight->slice.skipped;
  return takes ? proxy_ll_take(conn, flight) : proxy_conn_is_filled(conn, flight);
}

static bool send_transmit(struct proxy_conn *conn) {
  struct proxy_flight *flight = flight_at(conn, conn->n_transmitted);
  const struct transfer *slice = &flight->slice;
  if (conn->n_transmitted == conn->n_posted || !send_is_filled(conn, flight)) return false;
  if (slice->skipped) {
    conn->n_transmitted += 1;
    conn->steps.transmitted = slice->end;
    return true;
  }
  const struct proxy_trailer trailer = {PROXY_MAGIC, (uint32_t)slice->bytes, conn->n_transmitted,
                                        slice->begin, slice->agreed_bytes};
  memcpy(flight_trailer(conn, flight), &trailer, sizeof trailer);
  if (!net_good(conn, send_request(conn, flight), text_sending)) return false;
  if (flight->request == NULL) {
    recorder_pace_note(&conn->pace, true, 0);
    return false;
  }
  conn->comm->requests += 1;
  if (flight->direct != NULL) conn->comm->bytes.sent_direct += slice->bytes;
  else conn->comm->bytes.sent_staged += slice->bytes;
  conn->n_transmitted += 1;
  conn->steps.transmitted = slice->end;
  return true;
}

static bool send_post(struct proxy_conn *conn) {
  if (!conn_has_space(conn)) return false;
  conn_posted(conn, NULL, NULL);
  if (conn->end.pooled) send_leave(conn);
  return true;
}

/* Records if a sender has messages in flight, or a receiver has space for messages that have not arrived. */
static void conn_pace(struct proxy_conn *conn, const struct record_proxy *before) {
  const bool sends = conn->name.sends;
  const uint64_t asked = sends ? conn->n_transmitted : conn->n_posted;
  const uint64_t given = sends ? conn->n_done : conn->n_received;
  recorder_pace_note(&conn->pace, asked != given,
                     (uint32_t)given - (sends ? before->done : before->received));
}

static void conn_record(struct proxy_conn *conn) {
  struct record_proxy *row = conn->record;
  if (row == NULL) return;
  conn_pace(conn, row);
  row->posted = (uint32_t)conn->n_posted;
  row->received = (uint32_t)conn->n_received;
  row->flushed = (uint32_t)conn->n_flushed;
  row->transmitted = (uint32_t)conn->n_transmitted;
  row->done = (uint32_t)conn->n_done;
  row->connected = conn->connection != NULL;
}

void proxy_conn_lead(struct proxy_conn *conn) {
  if (conn->connection == NULL || !conn->name.sends) return;
  while (!conn->comm->failed && send_post(conn)) continue;
  conn_record(conn);
}

static bool send_advance(struct proxy_conn *conn) {
  if (send_post(conn)) return true;
  if (conn->comm->failed) return false;
  if (send_transmit(conn)) return true;
  if (conn->comm->failed || conn->n_done == conn->n_transmitted) return false;
  struct proxy_flight *flight = flight_at(conn, conn->n_done);
  const bool held = flight->direct != NULL && conn->parts == NET_PARTS_REGISTERED;
  if (!flight->slice.skipped && !flight_ended(conn, flight, NULL, text_sending)) return false;
  if (held) zero_copy_end(zero_copy_of(conn, flight));
  conn_done(conn);
  if (!conn->end.pooled || held) send_leave(conn);
  return true;
}

/* ---- sending through another process (PXN client) ---- */

/* The PXN proxy moves head, the kernel tail. */
static bool pxn_client_advance(struct proxy_conn *conn) {
  if (conn_has_space(conn)) {
    proxy_pxn_client_describe(conn);
    conn_posted(conn, NULL, NULL);
    return true;
  }
  if (conn->comm->failed || !proxy_pxn_client_check(conn) || conn->n_done == conn->n_posted) return false;
  if (conn->comm->call.ops->network->net_load(conn->end.conn, conn->end.head) <
      flight_at(conn, conn->n_done)->slice.end)
    return false;
  conn_done(conn);
  conn->n_transmitted = conn->n_done;
  return true;
}

/* ---- receiving ---- */

/* Where the next slice can be received directly, without its slot; data NULL: nowhere. */
static struct net_part zero_copy_receive_of(struct proxy_conn *conn) {
  const struct transfer *slice = &conn->next_slice;
  const struct proxy_ops *ops = conn->first->posting->ops;
  struct net_part target = {NULL, slice->bytes, NULL};
  if (!conn->direct || slice->ll || !slice->zero_copy || ops->buffers == NULL ||
      slice->bytes < DEVICE_NET_DIRECT_BYTES_MIN)
    return target;
  uint8_t *out = (uint8_t *)ops->buffers[slice->part - ops->works].out;
  if (out == NULL) return target;
  target.data = out + slice->out_offset * slice->part->element_bytes;
  if (conn->parts != NET_PARTS_REGISTERED) return target;
  target.registration = proxy_conn_registration(conn, target.data, target.bytes);
  if (target.registration == NULL) target.data = NULL;
  return target;
}

static ncclResult_t recv_request(struct proxy_conn *conn, const struct net_part *target, void **request) {
  const struct net_ops *net = conn->comm->net;
  struct proxy_flight *flight = flight_at(conn, conn->n_posted); /* the flight to fill */
  flight->slice = conn->next_slice;
  flight->task = conn->first;
  void *data = flight_slot(conn, flight);
  void *registration = flight_registration(conn, flight);
  const size_t bytes = slots_bytes(conn, &conn->next_slice);
  if (conn->trailers != NULL && !conn->next_slice.ll) {
    const struct net_part all = {data, bytes - sizeof(struct proxy_trailer), registration};
    return net->irecv_parts(conn->connection, &all, NET_PARTS_TAIL, flight_trailer(conn, flight),
                            sizeof(struct proxy_trailer), conn->trailers_registration, request);
  }
  const int tag = (int)conn->name.peer;
  if (target->data == NULL)
    return net->irecv(conn->connection, 1, &data, &bytes, &tag, &registration, request);
  return net->irecv_parts(conn->connection, target, target->bytes + sizeof(struct proxy_trailer), data, bytes,
                          registration, request);
}

static bool recv_post(struct proxy_conn *conn) {
  if (!conn_has_space(conn)) return false;
  if (conn->next_slice.skipped) {
    conn_posted(conn, NULL, NULL);
    return true;
  }
  void *request = NULL;
  const struct net_part target = zero_copy_receive_of(conn);
  if (!net_good(conn, recv_request(conn, &target, &request), text_receiving) || request == NULL) return false;
  if (conn->end.direct != NULL)
    conn->end.direct->zero_copy_receives[conn->next_slice.begin % conn->end.slots] = target.data;
  conn->comm->requests += 1;
  conn_posted(conn, request, target.data);
  return true;
}

static void recv_disagree(struct proxy_conn *conn, const struct transfer *slice,
                          const struct proxy_trailer *trailer) {
  char operation[64];
  const uint32_t rank = conn->comm->call.rank, peer = conn->name.peer;
  proxy_comm_fail(conn->comm, ncclInvalidUsage,
                  "rank %" PRIu32 " and rank %" PRIu32 " do not agree on operation %s: rank %" PRIu32
                  " has %" PRIu64 " bytes for channel %" PRIu32 " (a slice of %" PRIu32 " at step %" PRIu64
                  ") where rank %" PRIu32 " expects %" PRIu64 " (a slice of %zu at step %" PRIu64
                  "); call the same operation with the same count and type on both ranks, in the same order",
                  peer, rank, operation_text(slice->part, operation), peer, trailer->agreed_bytes,
                  conn->name.channel_index, trailer->bytes, trailer->step, rank, slice->agreed_bytes,
                  slice->bytes, slice->begin);
}

/* If ranks called different operations, the sizes differ; if a network lost or repeated a message, the
 * message numbers differ. */
static bool recv_agree(struct proxy_conn *conn, const struct proxy_flight *flight, size_t bytes,
                       bool zero_copy) {
  const struct transfer *slice = &flight->slice;
  const uint8_t *slot = flight_slot(conn, flight);
  struct proxy_trailer trailer;
  char operation[64];
  memset(&trailer, 0, sizeof trailer);
  if (conn->trailers != NULL && !slice->ll) memcpy(&trailer, flight_trailer(conn, flight), sizeof trailer);
  else if (zero_copy && bytes == slice->bytes + sizeof trailer) memcpy(&trailer, slot, sizeof trailer);
  else if (bytes >= sizeof trailer && bytes <= slots_bytes(conn, slice))
    memcpy(&trailer, slot + bytes - sizeof trailer, sizeof trailer);
  if (trailer.magic != PROXY_MAGIC || trailer.bytes + sizeof trailer != bytes) {
    proxy_comm_fail(conn->comm, ncclRemoteError,
                    "the message of %zu bytes from rank %" PRIu32 " at step %" PRIu64 " of channel %" PRIu32
                    " (%s) is damaged: network %s is faulty",
                    bytes, conn->name.peer, slice->begin, conn->name.channel_index,
                    operation_text(slice->part, operation), conn->comm->net->name);
    return false;
  }
  if (trailer.message != conn->n_received) {
    proxy_comm_fail(conn->comm, ncclRemoteError,
                    "message %" PRIu64 " from rank %" PRIu32 ", step %" PRIu64 " of channel %" PRIu32
                    " (%s), %s: message %" PRIu64 ", step %" PRIu64
                    ", came in its place; network %s is faulty",
                    conn->n_received, conn->name.peer, slice->begin, conn->name.channel_index,
                    operation_text(slice->part, operation),
                    trailer.message > conn->n_received ? "was lost" : "is missing, an older one was repeated",
                    trailer.message, trailer.step, conn->comm->net->name);
    return false;
  }
  const bool fits = slice->shared ? trailer.bytes >= slice->bytes : trailer.bytes == slice->bytes;
  if (fits && trailer.agreed_bytes == slice->agreed_bytes && trailer.step == slice->begin) return true;
  recv_disagree(conn, slice, &trailer);
  return false;
}

/* A flush makes data visible to the device; host memory needs none. */
static bool recv_received(struct proxy_conn *conn) {
  struct proxy_flight *flight = flight_at(conn, conn->n_received);
  size_t bytes = 0;
  if (conn->n_received == conn->n_posted) return false;
  const bool skipped = flight->slice.skipped, zero_copy = flight->direct != NULL;
  if (!skipped && !flight_ended(conn, flight, &bytes, text_receiving)) return false;
  if (!skipped && !recv_agree(conn, flight, bytes, zero_copy)) return false;
  if (zero_copy) conn->comm->bytes.received_direct += flight->slice.bytes;
  else conn->comm->bytes.received_staged += flight->slice.bytes;
  conn->n_received += 1;
  conn->steps.received = flight->slice.end;
  if (conn->end.memory != POINTER_DEVICE || !conn->comm->flushes || skipped || flight->slice.ll) return true;
  void *data = flight_slot(conn, flight), *registration = conn->registrations[place_of(flight->task)];
  const struct net_ops *net = conn->comm->net;
  net_good(conn, net->iflush(conn->connection, 1, &data, &bytes, &registration, &flight->request),
           "flushing what came from");
  conn->comm->requests += flight->request != NULL;
  return true;
}

/* Signals the kernel: by LL lines or by its tail. */
static void recv_report(const struct proxy_conn *conn, const struct proxy_flight *flight) {
  const struct backend *ops = conn->comm->call.ops;
  const struct transfer *slice = &flight->slice;
  if (slice->ll) {
    proxy_ll_put(conn, flight); /* also for an empty step, which may have to rewrite its slot */
    return;
  }
  if (slice->announces)
    ops->network->net_announce(conn->end.conn, (uint32_t)(slice->begin % conn->end.slots),
                               (uint32_t)slice->begin + 1, slice->agreed_bytes);
  ops->network->net_store(conn->end.conn, conn->end.tail, slice->end);
}

static bool recv_transmit(struct proxy_conn *conn) {
  struct proxy_flight *flight = flight_at(conn, conn->n_transmitted);
  const struct transfer *slice = &flight->slice;
  if (conn->n_transmitted == conn->n_received) return false;
  if (flight->request != NULL && !flight_ended(conn, flight, NULL, "flushing what came from")) return false;
  conn->n_flushed += 1;
  conn->steps.flushed = slice->end;
  recv_report(conn, flight);
  conn->n_transmitted += 1;
  conn->steps.transmitted = slice->end;
  return true;
}

/* Signals arrived data to the kernel before it asks the network for more. */
static bool recv_advance(struct proxy_conn *conn) {
  if (recv_transmit(conn)) return true;
  if (conn->comm->failed) return false;
  if (recv_post(conn)) return true;
  if (conn->comm->failed) return false;
  if (recv_received(conn)) return true;
  if (conn->comm->failed || conn->n_done == conn->n_transmitted) return false;
  if (conn->comm->call.ops->network->net_load(conn->end.conn, conn->end.head) <
      flight_at(conn, conn->n_done)->slice.end)
    return false;
  conn_done(conn);
  return true;
}

/* With PXN the process that sends moves head, and sees what the kernel stores. */
bool proxy_conn_waits_for_kernel(const struct proxy_conn *conn) {
  if (conn->connection == NULL || conn->pxn_client != NULL) return false;
  if (conn->name.sends)
    return conn->n_transmitted < conn->n_posted &&
           !proxy_conn_is_filled(conn, &conn->flights[conn->n_transmitted % PROXY_SLICES_MAX]);
  return conn->n_done < conn->n_transmitted &&
         conn->comm->call.ops->network->net_load(conn->end.conn, conn->end.head) <
             conn->flights[conn->n_done % PROXY_SLICES_MAX].slice.end;
}

static bool conn_advance(struct proxy_conn *conn) {
  if (conn->pxn_client != NULL) return pxn_client_advance(conn);
  if (conn->connection == NULL) return conn_connect(conn);
  return conn->name.sends ? send_advance(conn) : recv_advance(conn);
}

bool proxy_conn_advance(struct proxy_conn *conn) {
  log_evidence(true); /* the communicator may already be diagnosed, and a failure here be a consequence */
  const bool moved = !conn->comm->failed && conn_advance(conn);
  log_evidence(false);
  if (moved) conn_record(conn);
  return moved;
}

/* ---- the end of a kernel ---- */

/* In a set, a kernel has only the slots of posted slices. */
static uint8_t *zero_copy_slot(struct proxy_conn *conn, uint32_t index) {
  uint8_t *slots = conn->end.buffer;
  for (uint64_t k = conn->n_transmitted; k < conn->n_posted && conn->end.pooled; k++)
    if (flight_at(conn, k)->slice.begin % conn->end.slots == index)
      slots = slots_of(conn, flight_at(conn, k)->task);
  return slots + (size_t)index * conn->end.step_bytes;
}

/* Unsent data is sent from the slots, which are the kernel's until head frees them. */
static void send_settle(struct proxy_conn *conn) {
  struct device_net_direct *direct = conn->end.direct;
  for (uint32_t i = 0; i < conn->end.slots; i++) {
    struct device_net_zero_copy *zero_copy = &direct->zero_copy_sends[i];
    if (zero_copy->data != NULL) memcpy(zero_copy_slot(conn, i), zero_copy->data, zero_copy->bytes);
    zero_copy->data = NULL;
  }
  for (uint64_t k = conn->n_done; k < conn->n_transmitted; k++) {
    struct proxy_flight *flight = flight_at(conn, k);
    if (flight->direct == NULL) continue;
    memcpy(flight_slot(conn, flight), flight->direct, flight->slice.bytes);
    conn->comm->net->part_move(flight->request, flight_slot(conn, flight));
    flight->direct = NULL;
  }
}

/* A kernel that ended normally has all of its data; this one was aborted. */
static void recv_settle(struct proxy_conn *conn) {
  for (uint64_t k = conn->n_received; k < conn->n_posted; k++) {
    struct proxy_flight *flight = flight_at(conn, k);
    if (flight->direct == NULL) continue;
    conn->comm->net->part_move(flight->request, flight_slot(conn, flight));
    flight->direct = NULL;
  }
}

/* Lanes wait for everything that NICs hold, so this kernel was aborted. Messages that have arrived all the
 * same are still known as arrived: with zero-copy the trailer is not after the data in a slot. */
static void held_settle(struct proxy_conn *conn) {
  for (uint64_t k = conn->n_done; k < conn->n_posted; k++) {
    struct proxy_flight *flight = flight_at(conn, k);
    if (flight->direct != NULL) conn->comm->net->part_move(flight->request, NULL);
  }
  for (uint32_t i = 0; i < conn->end.slots; i++) zero_copy_end(&conn->end.direct->zero_copy_sends[i]);
}

void proxy_conn_settle(struct proxy_conn *conn) {
  if (!conn->direct) return;
  if (conn->parts == NET_PARTS_REGISTERED) held_settle(conn);
  else if (conn->name.sends) send_settle(conn);
  else recv_settle(conn);
}

static const char *waits_for(const struct proxy_conn *conn) {
  if (conn->pxn_client != NULL) return "the kernel's data, or the process that sends it (PXN)";
  if (conn->connection == NULL) return "the network to connect";
  if (conn->first != NULL && conn->first->set != NULL && conn->first->set->first != conn->first)
    return "slots that an earlier message has";
  if (conn->name.sends)
    return conn->n_transmitted < conn->n_posted ? "the kernel's data, or the network to take it"
                                                : "the network to take what was sent";
  return conn->n_received < conn->n_posted ? "the other rank's data" : "the kernel to read what came";
}

void proxy_conn_report(const struct proxy_conn *conn, char *out, size_t out_bytes) {
  const uint32_t rank = conn->comm->call.rank, peer = conn->name.peer;
  out[0] = '\0';
  if (conn->first == NULL && conn->n_done == conn->n_posted) return;
  snprintf(out, out_bytes,
           "\n  comm %s: proxy of rank %" PRIu32 ": connection %" PRIu32 " -> %" PRIu32 " channel %" PRIu32
           ": posted %" PRIu64 ", %s %" PRIu64 ", done %" PRIu64 ": waits for %s",
           conn->comm->name, rank, conn->name.sends ? rank : peer, conn->name.sends ? peer : rank,
           conn->name.channel_index, conn->steps.posted, conn->name.sends ? "transmitted" : "received",
           conn->name.sends ? conn->steps.transmitted : conn->steps.received, conn->steps.done,
           waits_for(conn));
}
