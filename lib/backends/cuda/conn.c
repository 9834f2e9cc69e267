/* conn.c: the table of a rank's connections, and how they are created and freed. Each end has what it polls
 * on its own device, and the receiver has the slots, or the sender those of SLOTS_AT_SENDER. All of it is in
 * host memory if the devices do not reach each other, or if the other end is behind a network. Slots are
 * created when first used. */
#include "backends/cuda/ipc.h"
#include "backends/first_step.h"
#include "backends/net_ll.h"
#include "base/log.h"

#define SAMPLE_STEP_BYTES 4096u

struct cuda_conn *cuda_conn_find(struct device_comm *comm, uint32_t peer, uint32_t channel_index,
                                 uint32_t conn_index, bool sends) {
  return (struct cuda_conn *)map_find(&comm->conns, backend_conn_key(peer, channel_index, conn_index, sends));
}

/* An end of the connection, in memory of its rank. */
static ncclResult_t conn_end(const struct cuda_conn *conn, const struct device_comm *owner, bool sends,
                             struct arena_block *block, void **pointer) {
  const uint32_t device_index = owner->config.device_index;
  const struct plan_limits *limits = &owner->config.limits;
  const struct cuda_scope scope = cuda_scope_enter(device_index);
  ncclResult_t result = cuda_arena_take(conn->on_host ? ARENA_HOST : device_index, LAUNCH_END_BYTES, block);
  if (result == ncclSuccess) result = cuda_first_end(limits, sends, block->address);
  cuda_scope_leave(&scope);
  if (result == ncclSuccess) *pointer = block->address;
  return result;
}

/* Slots of a protocol, in memory of the end that owns them. */
static ncclResult_t conn_slots(const struct cuda_conn *conn, const struct device_comm *owner, uint8_t proto,
                               struct arena_block *block) {
  const uint32_t device_index = owner->config.device_index;
  const struct plan_limits *limits = &owner->config.limits;
  const struct cuda_scope scope = cuda_scope_enter(device_index);
  ncclResult_t result = cuda_arena_take(conn->on_host ? ARENA_HOST : device_index,
                                        (uint64_t)limits->slots * limits->step_bytes[proto], block);
  if (result == ncclSuccess)
    result = cuda_first_slots(limits, proto, limits->step_bytes[proto], block->address);
  if (result != ncclSuccess) cuda_arena_give(block);
  cuda_scope_leave(&scope);
  return result;
}

static void conn_free(struct cuda_conn *conn) {
  for (uint8_t slots = 0; slots < SLOTS_COUNT; slots++) cuda_arena_give(&conn->buffer_block[slots]);
  cuda_arena_give(&conn->sender_block);
  cuda_arena_give(&conn->receiver_block);
  os_free(conn);
}

static ncclResult_t conn_create(struct device_comm *sender, struct device_comm *receiver,
                                struct cuda_conn **result) {
  struct cuda_conn *conn = NULL;
  if (map_reserve(&sender->conns) && map_reserve(&receiver->conns))
    conn = (struct cuda_conn *)os_alloc(sizeof *conn);
  if (conn == NULL)
    return log_no_memory("rank %u of comm %s: a connection", receiver->config.rank, receiver->name);
  conn->on_host = !cuda_reach(sender->config.device_index, receiver->config.device_index) ||
                  !cuda_reach(receiver->config.device_index, sender->config.device_index);
  conn->devices[0] = receiver->config.device_index;
  conn->devices[1] = sender->config.device_index;
  conn->reference_count = 2;
  ncclResult_t made = conn_end(conn, sender, true, &conn->sender_block, &conn->sender);
  if (made == ncclSuccess) made = conn_end(conn, receiver, false, &conn->receiver_block, &conn->receiver);
  if (made == ncclSuccess) *result = conn;
  else conn_free(conn);
  return made;
}

static ncclResult_t conn_open(struct device_comm *sender, struct device_comm *receiver,
                              uint32_t channel_index, uint32_t conn_index, uint8_t slots) {
  const uint8_t proto = slots_proto(slots);
  const size_t bytes = (size_t)sender->config.limits.slots * sender->config.limits.step_bytes[proto];
  struct device_comm *owner = slots == SLOTS_AT_SENDER ? sender : receiver;
  struct cuda_conn *conn = cuda_conn_find(sender, receiver->config.rank, channel_index, conn_index, true);
  if (conn == NULL) {
    TRY(conn_create(sender, receiver, &conn));
    map_insert(&sender->conns, backend_conn_key(receiver->config.rank, channel_index, conn_index, true),
               conn);
    map_insert(&receiver->conns, backend_conn_key(sender->config.rank, channel_index, conn_index, false),
               conn);
    sender->memory_bytes += LAUNCH_END_BYTES;
    receiver->memory_bytes += sizeof *conn + LAUNCH_END_BYTES;
  }
  if (conn->buffer[slots] != NULL) return ncclSuccess;
  TRY(conn_slots(conn, owner, proto, &conn->buffer_block[slots]));
  conn->buffer[slots] = (uint8_t *)conn->buffer_block[slots].address;
  owner->memory_bytes += bytes;
  return ncclSuccess;
}

ncclResult_t cuda_conn_open(struct device_comm *sender, struct device_comm *receiver, uint32_t channel_index,
                            uint32_t conn_index, uint8_t slots) {
  return conn_open(sender, receiver, channel_index, conn_index, slots);
}

static ncclResult_t conn_create_net(struct device_comm *comm, struct cuda_conn **result) {
  struct cuda_conn *conn = NULL;
  if (map_reserve(&comm->conns)) conn = (struct cuda_conn *)os_alloc(sizeof *conn);
  if (conn == NULL) return log_no_memory("rank %u of comm %s: a connection", comm->config.rank, comm->name);
  conn->on_host = conn->net = comm->hosted = true;
  conn->reference_count = 1;
  ncclResult_t made = conn_end(conn, comm, true, &conn->sender_block, &conn->sender);
  if (made == ncclSuccess) made = conn_end(conn, comm, false, &conn->receiver_block, &conn->receiver);
  if (made == ncclSuccess) *result = conn;
  else conn_free(conn);
  return made;
}

/* Buffers of network connections. LL lines are in host memory, because the proxy reads and writes them,
 * wherever other slots are. */
static ncclResult_t net_buffer(const struct device_comm *comm, uint8_t proto, uint32_t step_bytes, bool sends,
                               struct arena_block *block) {
  const struct plan_limits *limits = &comm->config.limits;
  const struct cuda_scope scope = cuda_scope_enter(comm->config.device_index);
  const bool on_device = comm->net_memory[sends] == POINTER_DEVICE && proto != PROTO_LL;
  ncclResult_t result = cuda_arena_take(on_device ? comm->config.device_index : ARENA_HOST,
                                        (uint64_t)limits->slots * step_bytes, block);
  if (result == ncclSuccess) result = cuda_first_slots(limits, proto, step_bytes, block->address);
  if (result != ncclSuccess) cuda_arena_give(block);
  cuda_scope_leave(&scope);
  return result;
}

/* Its steps begin at a count for which the sender has no free slots yet. */
static void conn_pool(struct cuda_conn *conn, const struct plan_limits *limits) {
  const uint64_t first = first_step_of(limits, true);
  conn->pooled = true;
  *(uint64_t *)(void *)((uint8_t *)conn->sender + LAUNCH_STEP_OFFSET) = first;
  *(uint64_t *)(void *)((uint8_t *)conn->receiver + LAUNCH_STEP_OFFSET) = first;
}

ncclResult_t cuda_conn_net(struct device_comm *comm, const struct device_conn_name *name,
                           struct device_net_end *end) {
  const struct plan_limits *limits = &comm->config.limits;
  const bool pools = name->conn_index == CONN_MESSAGE;
  const uint32_t step_bytes =
      pools ? plan_message_step_bytes(limits, name->proto) : limits->step_bytes[name->proto];
  const size_t bytes = (size_t)limits->slots * step_bytes;
  struct cuda_conn *conn =
      cuda_conn_find(comm, name->peer, name->channel_index, name->conn_index, name->sends);
  if (conn == NULL) {
    TRY(conn_create_net(comm, &conn));
    if (pools) conn_pool(conn, limits);
    conn->slots = limits->slots;
    conn->ll_bytes = pools ? plan_net_ll_bytes(limits) : limits->step_bytes[PROTO_LL];
    map_insert(&comm->conns, backend_conn_key(name->peer, name->channel_index, name->conn_index, name->sends),
               conn);
    comm->memory_bytes += sizeof *conn + 2 * LAUNCH_END_BYTES;
  }
  if (conn->buffer[name->proto] == NULL && (!pools || name->proto == PROTO_LL)) {
    TRY(net_buffer(comm, name->proto, step_bytes, name->sends, &conn->buffer_block[name->proto]));
    conn->buffer[name->proto] = (uint8_t *)conn->buffer_block[name->proto].address;
    comm->memory_bytes += bytes;
  }
  end->conn = (struct device_net_conn *)(void *)conn;
  end->head = (uint64_t *)conn->sender;
  end->tail = (uint64_t *)conn->receiver;
  end->buffer = conn->buffer[name->proto];
  end->slots = limits->slots;
  end->step_bytes = step_bytes;
  end->memory = comm->net_memory[name->sends] == POINTER_DEVICE ? POINTER_DEVICE : POINTER_HOST;
  end->pooled = conn->pooled;
  end->first_step = first_step_of(limits, conn->pooled);
  end->first_line = limits->first_step;
  return ncclSuccess;
}

static ncclResult_t slots_make(struct device_comm *comm, uint64_t key, uint32_t step_bytes, bool sends,
                               struct arena_block **made) {
  const struct plan_limits *limits = &comm->config.limits;
  struct arena_block *block = NULL;
  if (map_reserve(&comm->slots)) block = (struct arena_block *)os_alloc(sizeof *block);
  if (block == NULL)
    return log_no_memory("rank %u of comm %s: messages' slots", comm->config.rank, comm->name);
  const ncclResult_t result = net_buffer(comm, PROTO_SIMPLE, step_bytes, sends, block);
  if (result != ncclSuccess) {
    os_free(block);
    return result;
  }
  map_insert(&comm->slots, key, block);
  comm->memory_bytes += (size_t)limits->slots * step_bytes;
  *made = block;
  return ncclSuccess;
}

ncclResult_t cuda_net_slots(struct device_comm *comm, uint32_t channel_index, uint32_t place, bool sends,
                            uint8_t **buffer) {
  const uint64_t key = backend_slots_key(channel_index, place, sends);
  struct arena_block *block = (struct arena_block *)map_find(&comm->slots, key);
  if (block == NULL) TRY(slots_make(comm, key, plan_pool_step_bytes(&comm->config.limits), sends, &block));
  *buffer = (uint8_t *)block->address;
  return ncclSuccess;
}

/* Kept as slots of a channel that no plan has. */
ncclResult_t cuda_net_sample(struct device_comm *comm, size_t *bytes, uint8_t **sample) {
  const uint64_t key = backend_slots_key(UINT8_MAX, 0, false);
  struct arena_block *block = (struct arena_block *)map_find(&comm->slots, key);
  if (block == NULL) TRY(slots_make(comm, key, SAMPLE_STEP_BYTES, false, &block));
  *sample = (uint8_t *)block->address;
  *bytes = (size_t)comm->config.limits.slots * SAMPLE_STEP_BYTES;
  return ncclSuccess;
}

static const struct cuda_conn *conn_of(struct device_net_conn *net) {
  return (const struct cuda_conn *)(void *)net;
}

static uint64_t *announced_at(const struct cuda_conn *conn, uint64_t slot) {
  return (uint64_t *)(void *)((uint8_t *)conn->receiver + LAUNCH_ANNOUNCED_OFFSET) + 2 * slot;
}

void cuda_net_announce(struct device_net_conn *net, uint32_t slot, uint32_t tag, uint64_t bytes) {
  uint64_t *halves = announced_at(conn_of(net), slot);
  __atomic_store_n(&halves[0], (bytes & 0xffffffffu) | (uint64_t)tag << 32, __ATOMIC_RELEASE);
  __atomic_store_n(&halves[1], bytes >> 32 | (uint64_t)tag << 32, __ATOMIC_RELEASE);
}

/* LL over networks; not with PXN, as no process sends for another on GPUs. */
bool cuda_net_ll(bool pxn) {
  (void)pxn;
  return true;
}

static uint8_t *ll_at(const struct cuda_conn *conn, const struct device_net_step *step) {
  return conn->buffer[PROTO_LL] + step->line % conn->slots * conn->ll_bytes;
}

/* An empty step has no line that could announce it; the operation's first step announces the size. */
bool cuda_net_take(struct device_net_conn *net, const struct device_net_step *step, void *data) {
  const struct cuda_conn *conn = conn_of(net);
  const uint8_t *lines = ll_at(conn, step);
  if (step->bytes == 0 && !step->announces) return true;
  if (step->bytes == 0) {
    const uint64_t *halves = announced_at(conn, step->step % conn->slots);
    const uint32_t tag = (uint32_t)step->step + 1;
    return line_half_has(net_line_half(halves, 0), tag) && line_half_has(net_line_half(halves, 1), tag);
  }
  if (!net_ll_ready(lines, step)) return false;
  if (data != NULL) net_ll_read(lines, step->bytes, (uint8_t *)data);
  return true;
}

void cuda_net_put(struct device_net_conn *net, const struct device_net_step *step, const void *data) {
  const struct cuda_conn *conn = conn_of(net);
  uint8_t *lines = ll_at(conn, step);
  if (step->announces)
    cuda_net_announce(net, (uint32_t)(step->step % conn->slots), (uint32_t)step->step + 1,
                      step->agreed_bytes);
  net_ll_write(lines, step, (const uint8_t *)data);
  if (line_cleans_at(step->line, step->flag_bits, conn->slots)) net_ll_clean(lines, conn->ll_bytes, step);
}

/* Signals to other processes that this rank's kernels have ended, before anything is freed. */
static void conns_leave(const struct device_comm *comm) {
  bool left_any = false;
  for (uint32_t i = 0; i < comm->conns.capacity; i++) {
    const struct cuda_conn *conn = (const struct cuda_conn *)comm->conns.entries[i].value;
    if (conn == NULL || conn->remote == NULL) continue;
    cuda_conn_remote_leave(conn);
    left_any = true;
  }
  if (left_any) cuda_settle();
}

void cuda_conn_close_all(struct device_comm *comm, bool lost) {
  if (!lost) conns_leave(comm);
  for (uint32_t i = 0; i < comm->conns.capacity; i++) {
    struct cuda_conn *conn = (struct cuda_conn *)comm->conns.entries[i].value;
    if (conn == NULL) continue;
    conn->reference_count -= 1;
    if (conn->reference_count > 0) continue;
    if (conn->remote != NULL) cuda_conn_remote_free(conn);
    else conn_free(conn);
  }
  map_clear(&comm->conns);
  for (uint32_t i = 0; i < comm->slots.capacity; i++) {
    struct arena_block *block = (struct arena_block *)comm->slots.entries[i].value;
    if (block != NULL) cuda_arena_give(block);
    os_free(block);
  }
  map_clear(&comm->slots);
}
