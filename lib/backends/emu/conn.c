/* conn.c: the table of a rank's connections; makes those within the process, and frees all. A connection is
 * found by peer, channel, index and direction. Slots are mapped at first use and accounted to the end that
 * owns them: the receiver, or the sender of SLOTS_AT_SENDER. */
#include "backends/emu/block.h"
#include "backends/first_step.h"
#include "base/log.h"
#include "base/os.h"

struct emu_conn *emu_conn_find(struct device_comm *comm, uint32_t peer, uint32_t channel_index,
                               uint32_t conn_index, bool sends) {
  return (struct emu_conn *)map_find(&comm->conns, backend_conn_key(peer, channel_index, conn_index, sends));
}

#define PAGE_BYTES 4096u

/* Buffers of different connections begin at different offsets in a page. Otherwise their first slots, which
 * are the busiest, would compete for the same cache sets. */
size_t emu_conn_buffer_shift(const struct emu_conn *conn, uint8_t slots) {
  const uint32_t color = conn->receiver_rank * 7 + conn->sender_rank + conn->channel_index * 5 + slots * 3u;
  return color * FIFO_LINE_BYTES % PAGE_BYTES;
}

size_t emu_conn_buffer_bytes(const struct emu_conn *conn, uint8_t slots) {
  const uint8_t proto = slots_proto(slots);
  return conn->slots * fifo_slot_bytes(proto, conn->step_bytes[proto]) + emu_conn_buffer_shift(conn, slots);
}

/* ---- counters that do not begin at 0 ---- */

void emu_conn_begin(const struct emu_conn *conn, const struct plan_limits *limits) {
  if (limits->first_step == 0) return; /* the memory is zeroed */
  first_step_end(limits, true, &conn->fifo->sender);
  first_step_end(limits, false, &conn->fifo->receiver);
  conn->fifo->sender.send_head = limits->first_step;
}

void emu_conn_begin_slots(const struct emu_conn *conn, const struct plan_limits *limits, uint8_t slots) {
  const uint8_t proto = slots_proto(slots);
  if (limits->first_step == 0 || proto == PROTO_SIMPLE) return;
  for (uint32_t slot = 0; slot < conn->slots; slot++) {
    uint8_t *lines = conn->buffer[proto] + slot * fifo_slot_bytes(proto, conn->step_bytes[proto]);
    if (proto == PROTO_LL) {
      first_step_tag(lines, first_step_before(limits->first_step, conn->slots, slot));
      lines += FIFO_LL_TAGGED_BYTES;
    }
    first_step_fill(limits, proto, slot, lines, conn->step_bytes[proto]);
  }
}

/* ---- */

static bool conn_buffer_map(struct emu_conn *conn, const struct plan_limits *limits, uint8_t slots) {
  uint8_t *pages = (uint8_t *)os_pages_map(emu_conn_buffer_bytes(conn, slots));
  if (pages == NULL) return false;
  conn->buffer[slots] = pages + emu_conn_buffer_shift(conn, slots);
  emu_conn_begin_slots(conn, limits, slots);
  return true;
}

static void conn_free(struct emu_conn *conn, bool failed) {
  if (emu_conn_is_remote(conn)) {
    emu_conn_unshare(conn, failed);
    return;
  }
  for (uint8_t slots = 0; slots < SLOTS_COUNT; slots++)
    if (conn->buffer[slots] != NULL)
      os_pages_unmap(conn->buffer[slots] - emu_conn_buffer_shift(conn, slots),
                     emu_conn_buffer_bytes(conn, slots));
  os_free(conn->fifo_memory);
  os_free(conn->direct);
  os_free(conn);
}

struct emu_conn *emu_conn_new(const struct plan_limits *limits, uint32_t sender_rank, uint32_t receiver_rank,
                              uint32_t channel_index, uint32_t conn_index) {
  struct emu_conn *conn = (struct emu_conn *)os_alloc(sizeof *conn);
  if (conn == NULL) return NULL;
  conn->slots = limits->slots;
  conn->shadow.writing = conn->shadow.written = conn->shadow.announced = limits->first_step;
  conn->shadow.reading = conn->shadow.read = conn->shadow.freed = limits->first_step;
  for (int proto = 0; proto < PROTO_COUNT; proto++) conn->step_bytes[proto] = limits->step_bytes[proto];
  conn->sender_rank = sender_rank;
  conn->receiver_rank = receiver_rank;
  conn->channel_index = channel_index;
  conn->conn_index = conn_index;
  conn->reference_count = 1;
  return conn;
}

static struct emu_conn *conn_create(const struct device_comm *sender, const struct device_comm *receiver,
                                    uint32_t channel_index, uint32_t conn_index) {
  struct emu_conn *conn = emu_conn_new(&sender->config.limits, sender->config.rank, receiver->config.rank,
                                       channel_index, conn_index);
  if (conn == NULL) return NULL;
  conn->fifo_memory = os_alloc(sizeof *conn->fifo + FIFO_LINE_BYTES);
  if (conn->fifo_memory == NULL) {
    os_free(conn);
    return NULL;
  }
  conn->fifo = (struct emu_fifo *)(((uintptr_t)conn->fifo_memory + FIFO_LINE_BYTES - 1) / FIFO_LINE_BYTES *
                                   FIFO_LINE_BYTES);
  conn->fifo->sender_conn = conn->fifo->receiver_conn = conn;
  emu_conn_begin(conn, &sender->config.limits);
  conn->reference_count = 2;
  return conn;
}

ncclResult_t emu_conn_no_memory(const struct device_comm *owner, size_t bytes) {
  return log_no_memory(
      "rank %u of comm %s: a connection of %zu bytes (see NCCL_BUFFSIZE, NCCL_MAX_NCHANNELS)",
      owner->config.rank, owner->name, bytes);
}

ncclResult_t emu_conn_open(struct device_comm *sender, struct device_comm *receiver, uint32_t channel_index,
                           uint32_t conn_index, uint8_t slots) {
  struct device_comm *owner = slots == SLOTS_AT_SENDER ? sender : receiver;
  struct emu_conn *conn = emu_conn_find(sender, receiver->config.rank, channel_index, conn_index, true);
  if (conn == NULL) {
    /* A rank that is linked to itself puts both ends into one table, which map_reserve() leaves space for. */
    if (!map_reserve(&sender->conns) || !map_reserve(&receiver->conns))
      return emu_conn_no_memory(receiver, sizeof *conn);
    conn = conn_create(sender, receiver, channel_index, conn_index);
    if (conn == NULL) return emu_conn_no_memory(receiver, sizeof *conn + sizeof *conn->fifo);
    map_insert(&sender->conns, backend_conn_key(receiver->config.rank, channel_index, conn_index, true),
               conn);
    map_insert(&receiver->conns, backend_conn_key(sender->config.rank, channel_index, conn_index, false),
               conn);
    receiver->memory_bytes += sizeof *conn + sizeof *conn->fifo;
  }
  if (conn->buffer[slots] == NULL) {
    if (!conn_buffer_map(conn, &owner->config.limits, slots))
      return emu_conn_no_memory(owner, emu_conn_buffer_bytes(conn, slots));
    owner->memory_bytes += emu_conn_buffer_bytes(conn, slots);
  }
  return ncclSuccess;
}

/* The steps begin so that a sender has no free slots yet. */
static void conn_pool(struct emu_conn *conn, const struct plan_limits *limits, bool sends) {
  struct emu_shadow *shadow = &conn->shadow;
  const uint64_t first = first_step_of(limits, true);
  conn->pooled = true;
  conn->step_bytes[PROTO_SIMPLE] = plan_pool_step_bytes(limits);
  conn->step_bytes[PROTO_LL] = plan_net_ll_bytes(limits);
  conn->fifo->sender.send_step = conn->fifo->receiver.recv_step = first;
  shadow->announced = shadow->written = shadow->writing = first;
  shadow->read = shadow->reading = first;
  if (!sends) shadow->freed = first;
}

/* Of the other rank only the number is used. */
ncclResult_t emu_conn_open_net(struct device_comm *comm, const struct device_conn_name *name,
                               struct emu_conn **made) {
  struct emu_conn *conn = emu_conn_find(comm, name->peer, name->channel_index, name->conn_index, name->sends);
  if (conn == NULL) {
    struct device_comm other = {.config = comm->config};
    other.config.rank = name->peer;
    if (!map_reserve(&comm->conns)) return emu_conn_no_memory(comm, sizeof *conn);
    conn = name->sends ? conn_create(comm, &other, name->channel_index, name->conn_index)
                       : conn_create(&other, comm, name->channel_index, name->conn_index);
    if (conn == NULL) return emu_conn_no_memory(comm, sizeof *conn + sizeof *conn->fifo);
    conn->reference_count = 1;
    conn->net = true;
    if (emu_net_may_zero_copy())
      conn->direct = (struct device_net_direct *)os_alloc(sizeof *conn->direct); /* NULL: uses slots */
    if (name->conn_index == CONN_MESSAGE) conn_pool(conn, &comm->config.limits, name->sends);
    conn->comm_id = comm->config.comm_id;
    comm->reaches_out = !emu_options()->net; /* the emulated network is within the process */
    map_insert(&comm->conns, backend_conn_key(name->peer, name->channel_index, name->conn_index, name->sends),
               conn);
    comm->memory_bytes += sizeof *conn + sizeof *conn->fifo;
  }
  if (conn->buffer[name->proto] == NULL && (!conn->pooled || name->proto == PROTO_LL)) {
    if (!conn_buffer_map(conn, &comm->config.limits, name->proto))
      return emu_conn_no_memory(comm, emu_conn_buffer_bytes(conn, name->proto));
    comm->memory_bytes += emu_conn_buffer_bytes(conn, name->proto);
  }
  *made = conn;
  return ncclSuccess;
}

void emu_conn_close_all(struct device_comm *comm) {
  const bool failed = comm->error != ncclSuccess || __atomic_load_n(&comm->abort_flag, __ATOMIC_RELAXED) != 0;
  for (uint32_t i = 0; i < comm->conns.capacity; i++) {
    struct emu_conn *conn = (struct emu_conn *)comm->conns.entries[i].value;
    if (conn == NULL) continue;
    conn->reference_count -= 1;
    if (conn->reference_count == 0) conn_free(conn, failed);
  }
  map_clear(&comm->conns);
  for (uint32_t i = 0; i < comm->sent.capacity; i++) {
    struct emu_conn *conn = (struct emu_conn *)comm->sent.entries[i].value;
    if (conn != NULL) emu_conn_unshare(conn, failed);
  }
  map_clear(&comm->sent);
}
