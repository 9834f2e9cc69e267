/* conn.c: the table of a rank's connections, and how they are made and freed. FIFO and buffers lie in the
 * receiver's device, or in memory of the host where the sender does not reach it. Buffers are made protocol
 * by protocol when first asked for. */
#include "backends/cuda/device.h"
#include "base/log.h"

static uint64_t conn_key(uint32_t peer, uint32_t channel_index, uint32_t conn_index, bool sends) {
  return 1 + (((uint64_t)peer << 16) | (uint64_t)channel_index << 8 | conn_index << 1 | (sends ? 1u : 0u));
}

static struct cuda_conn_entry *conn_entry(const struct device_comm *comm, uint64_t key) {
  const uint32_t mask = comm->conn_capacity - 1;
  uint32_t i = (uint32_t)((key * 0x9e3779b97f4a7c15u) >> 40) & mask;
  while (comm->conns[i].key != 0 && comm->conns[i].key != key) i = (i + 1) & mask;
  return &comm->conns[i];
}

struct cuda_conn *cuda_conn_find(struct device_comm *comm, uint32_t peer, uint32_t channel_index,
                                 uint32_t conn_index, bool sends) {
  if (comm->conn_capacity == 0) return NULL;
  return conn_entry(comm, conn_key(peer, channel_index, conn_index, sends))->conn;
}

/* Room for one more entry; the table stays at most half full. */
static bool conn_reserve(struct device_comm *comm) {
  if (2 * (comm->conn_count + 1) <= comm->conn_capacity) return true;
  const uint32_t old_capacity = comm->conn_capacity;
  struct cuda_conn_entry *old = comm->conns;
  const uint32_t capacity = old_capacity == 0 ? 8 : 2 * old_capacity;
  struct cuda_conn_entry *fresh = (struct cuda_conn_entry *)os_alloc(capacity * sizeof *fresh);
  if (fresh == NULL) return false;
  comm->conns = fresh;
  comm->conn_capacity = capacity;
  for (uint32_t i = 0; i < old_capacity; i++)
    if (old[i].key != 0) *conn_entry(comm, old[i].key) = old[i];
  comm->memory_bytes += (capacity - old_capacity) * sizeof *fresh;
  os_free(old);
  return true;
}

static void conn_insert(struct device_comm *comm, uint64_t key, struct cuda_conn *conn) {
  struct cuda_conn_entry *entry = conn_entry(comm, key);
  entry->key = key;
  entry->conn = conn;
  comm->conn_count += 1;
}

static ncclResult_t conn_memory(const struct cuda_conn *conn, size_t bytes, void **pointer) {
  return conn->on_host ? cuda_zeroed_host(bytes, pointer) : cuda_zeroed_device(bytes, pointer);
}

static void conn_memory_free(const struct cuda_conn *conn, void *pointer) {
  if (pointer == NULL) return;
  if (conn->on_host) cudaFreeHost(pointer);
  else cudaFree(pointer);
}

static void conn_free(struct cuda_conn *conn) {
  for (uint8_t proto = 0; proto < PROTO_COUNT; proto++) conn_memory_free(conn, conn->buffer[proto]);
  conn_memory_free(conn, conn->fifo);
  os_free(conn);
}

static ncclResult_t conn_create(struct device_comm *sender, struct device_comm *receiver,
                                struct cuda_conn **result) {
  struct cuda_conn *conn = NULL;
  if (conn_reserve(sender) && conn_reserve(receiver)) conn = (struct cuda_conn *)os_alloc(sizeof *conn);
  if (conn == NULL)
    return log_fail(ncclSystemError, "rank %u of comm %s: no memory for a connection", receiver->config.rank,
                    receiver->name);
  conn->on_host = !cuda_reach(sender->config.device_index, receiver->config.device_index);
  conn->reference_count = 2;
  const ncclResult_t made = conn_memory(conn, step_kernel_fifo_bytes(), &conn->fifo);
  if (made == ncclSuccess) *result = conn;
  else os_free(conn);
  return made;
}

/* Within the receiver's scope. */
static ncclResult_t conn_open(struct device_comm *sender, struct device_comm *receiver,
                              uint32_t channel_index, uint32_t conn_index, uint8_t proto) {
  const size_t bytes = (size_t)sender->config.limits.slots * sender->config.limits.step_bytes[proto];
  struct cuda_conn *conn = cuda_conn_find(sender, receiver->config.rank, channel_index, conn_index, true);
  void *buffer = NULL;
  if (conn == NULL) {
    TRY(conn_create(sender, receiver, &conn));
    conn_insert(sender, conn_key(receiver->config.rank, channel_index, conn_index, true), conn);
    conn_insert(receiver, conn_key(sender->config.rank, channel_index, conn_index, false), conn);
    receiver->memory_bytes += sizeof *conn + step_kernel_fifo_bytes();
  }
  if (conn->buffer[proto] != NULL) return ncclSuccess;
  TRY(conn_memory(conn, bytes, &buffer));
  conn->buffer[proto] = (uint8_t *)buffer;
  receiver->memory_bytes += bytes;
  return ncclSuccess;
}

ncclResult_t cuda_conn_open(struct device_comm *sender, struct device_comm *receiver, uint32_t channel_index,
                            uint32_t conn_index, uint8_t proto) {
  const struct cuda_scope scope = cuda_scope_enter(receiver->config.device_index);
  const ncclResult_t result = conn_open(sender, receiver, channel_index, conn_index, proto);
  cuda_scope_leave(&scope);
  return result;
}

void cuda_conn_close_all(struct device_comm *comm) {
  for (uint32_t i = 0; i < comm->conn_capacity; i++) {
    struct cuda_conn *conn = comm->conns[i].conn;
    if (conn == NULL) continue;
    conn->reference_count -= 1;
    if (conn->reference_count == 0) conn_free(conn);
  }
  os_free(comm->conns);
  comm->conns = NULL;
  comm->conn_capacity = comm->conn_count = 0;
}
