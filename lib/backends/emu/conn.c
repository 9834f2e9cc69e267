/* conn.c: the table of a rank's connections, and how they are made and freed. A connection is found by peer,
 * channel, index and direction; buffers are mapped protocol by protocol when first asked for and counted to
 * the receiver, who owns them. */
#include "backends/emu/block.h"
#include "base/log.h"
#include "base/os.h"

struct emu_conn_entry {
  uint64_t key; /* 0 = free */
  struct emu_conn *conn;
};

static uint64_t conn_key(uint32_t peer, uint32_t channel_index, uint32_t conn_index, bool sends) {
  return 1 + (((uint64_t)peer << 16) | (uint64_t)channel_index << 8 | conn_index << 1 | (sends ? 1u : 0u));
}

static struct emu_conn_entry *conn_entry(const struct device_comm *comm, uint64_t key) {
  const uint32_t mask = comm->conn_capacity - 1;
  uint32_t i = (uint32_t)((key * 0x9e3779b97f4a7c15u) >> 40) & mask;
  while (comm->conns[i].key != 0 && comm->conns[i].key != key) i = (i + 1) & mask;
  return &comm->conns[i];
}

struct emu_conn *emu_conn_find(struct device_comm *comm, uint32_t peer, uint32_t channel_index,
                               uint32_t conn_index, bool sends) {
  if (comm->conn_capacity == 0) return NULL;
  return conn_entry(comm, conn_key(peer, channel_index, conn_index, sends))->conn;
}

/* Room for one more entry; the table stays at most half full. */
static bool conn_reserve(struct device_comm *comm) {
  if (2 * (comm->conn_count + 1) <= comm->conn_capacity) return true;
  const uint32_t old_capacity = comm->conn_capacity;
  struct emu_conn_entry *old = comm->conns;
  const uint32_t capacity = old_capacity == 0 ? 8 : 2 * old_capacity;
  struct emu_conn_entry *fresh = (struct emu_conn_entry *)os_alloc(capacity * sizeof *fresh);
  if (fresh == NULL) return false;
  comm->conns = fresh;
  comm->conn_capacity = capacity;
  for (uint32_t i = 0; i < old_capacity; i++)
    if (old[i].key != 0) *conn_entry(comm, old[i].key) = old[i];
  comm->memory_bytes += (capacity - old_capacity) * sizeof *fresh;
  os_free(old);
  return true;
}

static void conn_insert(struct device_comm *comm, uint64_t key, struct emu_conn *conn) {
  struct emu_conn_entry *entry = conn_entry(comm, key);
  entry->key = key;
  entry->conn = conn;
  comm->conn_count += 1;
}

#define PAGE_BYTES 4096u

/* Buffers of different connections begin at different places in a page: else their first slots, which are the
 * busiest, would all compete for the same sets of the cache. */
static size_t conn_buffer_shift(const struct emu_conn *conn, uint8_t proto) {
  const uint32_t color = conn->receiver_rank * 7 + conn->sender_rank + conn->channel_index * 5 + proto * 3u;
  return color * FIFO_LINE_BYTES % PAGE_BYTES;
}

static size_t conn_buffer_bytes(const struct emu_conn *conn, uint8_t proto) {
  return (size_t)conn->slots * conn->step_bytes[proto] + conn_buffer_shift(conn, proto);
}

static bool conn_buffer_map(struct emu_conn *conn, uint8_t proto) {
  uint8_t *pages = (uint8_t *)os_pages_map(conn_buffer_bytes(conn, proto));
  if (pages != NULL) conn->buffer[proto] = pages + conn_buffer_shift(conn, proto);
  return pages != NULL;
}

static void conn_free(struct emu_conn *conn) {
  for (uint8_t proto = 0; proto < PROTO_COUNT; proto++)
    if (conn->buffer[proto] != NULL)
      os_pages_unmap(conn->buffer[proto] - conn_buffer_shift(conn, proto), conn_buffer_bytes(conn, proto));
  os_free(conn->fifo_memory);
  os_free(conn);
}

static struct emu_conn *conn_create(const struct device_comm *sender, const struct device_comm *receiver,
                                    uint32_t channel_index, uint32_t conn_index) {
  struct emu_conn *conn = (struct emu_conn *)os_alloc(sizeof *conn);
  if (conn == NULL) return NULL;
  conn->fifo_memory = os_alloc(sizeof *conn->fifo + FIFO_LINE_BYTES);
  if (conn->fifo_memory == NULL) {
    os_free(conn);
    return NULL;
  }
  conn->fifo = (struct fifo *)(((uintptr_t)conn->fifo_memory + FIFO_LINE_BYTES - 1) / FIFO_LINE_BYTES *
                               FIFO_LINE_BYTES);
  conn->slots = sender->config.limits.slots;
  for (int proto = 0; proto < PROTO_COUNT; proto++)
    conn->step_bytes[proto] = sender->config.limits.step_bytes[proto];
  conn->sender_rank = sender->config.rank;
  conn->receiver_rank = receiver->config.rank;
  conn->channel_index = channel_index;
  conn->conn_index = conn_index;
  conn->reference_count = 2;
  return conn;
}

static ncclResult_t conn_out_of_memory(const struct device_comm *receiver, size_t bytes) {
  return log_fail(
      ncclSystemError,
      "rank %u of comm %s: no memory for a connection of %zu bytes; lower NCCL_BUFFSIZE or the number "
      "of channels",
      receiver->config.rank, receiver->name, bytes);
}

ncclResult_t emu_conn_open(struct device_comm *sender, struct device_comm *receiver, uint32_t channel_index,
                           uint32_t conn_index, uint8_t proto) {
  struct emu_conn *conn = emu_conn_find(sender, receiver->config.rank, channel_index, conn_index, true);
  if (conn == NULL) {
    if (!conn_reserve(sender) || !conn_reserve(receiver)) return conn_out_of_memory(receiver, sizeof *conn);
    conn = conn_create(sender, receiver, channel_index, conn_index);
    if (conn == NULL) return conn_out_of_memory(receiver, sizeof *conn + sizeof *conn->fifo);
    conn_insert(sender, conn_key(receiver->config.rank, channel_index, conn_index, true), conn);
    conn_insert(receiver, conn_key(sender->config.rank, channel_index, conn_index, false), conn);
    receiver->memory_bytes += sizeof *conn + sizeof *conn->fifo;
  }
  if (conn->buffer[proto] == NULL) {
    if (!conn_buffer_map(conn, proto)) return conn_out_of_memory(receiver, conn_buffer_bytes(conn, proto));
    receiver->memory_bytes += conn_buffer_bytes(conn, proto);
  }
  return ncclSuccess;
}

void emu_conn_close_all(struct device_comm *comm) {
  for (uint32_t i = 0; i < comm->conn_capacity; i++) {
    struct emu_conn *conn = comm->conns[i].conn;
    if (conn == NULL) continue;
    conn->reference_count -= 1;
    if (conn->reference_count == 0) conn_free(conn);
  }
  os_free(comm->conns);
  comm->conns = NULL;
  comm->conn_capacity = comm->conn_count = 0;
}
