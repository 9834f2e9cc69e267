/* conn_share.c: connections between processes of one host. FIFO and buffers are in the arena (arena.h) of the
 * receiver's process, slots that receivers read at the sender in that of the sender's. The other process maps
 * that arena once for all connections, and finds them by offsets; with the same mapping senders store into
 * outputs that receivers offer. Handles are validated before
 * any address is made from them; the caller exchanges them. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "backends/emu/block.h"
#include "backends/emu/order.h"
#include "backends/emu/rma.h"
#include "backends/emu/world_impl.h"
#include "backends/first_step.h"
#include "base/log.h"
#include "base/os.h"
#include "base/param.h"

#define HANDLE_MAGIC UINT64_C(0x7475747469636431)
#define CONN_MAGIC UINT64_C(0x7475747469636e31)
#define SIGNALS_MAGIC UINT64_C(0x7475747469736731)
#define HANDLE_NO_SHARING 1u /* the process's settings forbid sharing */

struct comm_handle {
  uint64_t magic;
  struct share_ticket ticket; /* of the arena; 0 bytes if there is none */
  uint64_t flags;
  struct emu_order_peer order; /* of its process */
};
static_assert(sizeof(struct comm_handle) <= DEVICE_COMM_HANDLE_BYTES, "a handle holds it");

struct conn_handle {
  uint64_t magic;
  struct share_ticket ticket;
  uint64_t base;         /* address of the arena in its process */
  uint64_t fifo, buffer; /* offsets in the arena; buffer: 0 if the slots are at the other end */
  uint32_t slots, step_bytes;
  uint64_t block_bytes; /* after the FIFO, for a PXN proxy */
};
static_assert(sizeof(struct conn_handle) <= DEVICE_CONN_HANDLE_BYTES, "a handle holds it");

static bool sharing_forbidden(void) {
  return param_int(PARAM_SHM_DISABLE) != 0 && param_int(PARAM_P2P_DISABLE) != 0;
}

/* Allows other processes to map the arena until the rank is closed. */
static ncclResult_t comm_pin(struct device_comm *comm) {
  struct share_ticket ticket;
  uint64_t base;
  emu_lock();
  const bool pinned = comm->pinned;
  emu_unlock();
  if (pinned) return ncclSuccess;
  TRY(emu_arena_pin(&ticket, &base));
  emu_lock();
  const bool raced = comm->pinned;
  comm->pinned = true;
  comm->ticket = ticket;
  comm->arena_base = base;
  emu_unlock();
  if (raced) emu_arena_unpin();
  return ncclSuccess;
}

ncclResult_t emu_comm_handle(struct device_comm *comm, struct device_comm_handle *handle) {
  struct comm_handle content;
  memset(&content, 0, sizeof content);
  memset(handle, 0, sizeof *handle);
  content.magic = HANDLE_MAGIC;
  content.flags = sharing_forbidden() ? HANDLE_NO_SHARING : 0;
  if (content.flags == 0) {
    if (comm_pin(comm) == ncclSuccess) content.ticket = comm->ticket;
    else
      log_info(LOG_INIT | LOG_SHM,
               "comm %s: rank %" PRIu32 " shares no memory with other processes, and takes the network: %s",
               comm->name, comm->config.rank, log_own_error());
  }
  if (content.ticket.bytes > 0) emu_order_describe(&content.order);
  memcpy(handle->bytes, &content, sizeof content);
  return ncclSuccess;
}

/* ---- the order of events that processes share ---- */

/* What the ranks say, by rank; NULL if there is no memory. */
static struct emu_order_peer *order_peers(const struct device_comm_handle *const *handles,
                                          uint32_t rank_count, const struct emu_order_peer ***places) {
  struct emu_order_peer *peers = (struct emu_order_peer *)os_alloc(
      rank_count * (sizeof(struct emu_order_peer) + sizeof(struct emu_order_peer *)));
  if (peers == NULL) return NULL;
  const struct emu_order_peer **by_rank = (const struct emu_order_peer **)(void *)(peers + rank_count);
  for (uint32_t rank = 0; rank < rank_count; rank++) {
    struct comm_handle content;
    if (handles[rank] == NULL) continue;
    memcpy(&content, handles[rank]->bytes, sizeof content);
    peers[rank] = content.order;
    by_rank[rank] = &peers[rank];
  }
  *places = by_rank;
  return peers;
}

static ncclResult_t order_no_memory(const struct device_comm *comm) {
  return log_no_memory("comm %s: rank %" PRIu32 ": one order of events with other processes", comm->name,
                       comm->config.rank);
}

ncclResult_t emu_comm_order_prepare(struct device_comm *comm, const struct device_comm_handle *const *handles,
                                    uint32_t rank_count) {
  const struct emu_order_peer **by_rank = NULL;
  bool joins = false;
  struct emu_order_peer *peers = order_peers(handles, rank_count, &by_rank);
  if (peers == NULL) return order_no_memory(comm);
  const ncclResult_t result = emu_order_prepare(by_rank, rank_count, &joins);
  if (result == ncclSuccess && joins) comm->order_slots = (uint32_t *)os_alloc(rank_count * sizeof(uint32_t));
  os_free(peers);
  if (result != ncclSuccess || !joins || comm->order_slots != NULL) return result;
  emu_order_cancel();
  return order_no_memory(comm);
}

void emu_comm_order_join(struct device_comm *comm, const struct device_comm_handle *const *handles,
                         uint32_t rank_count) {
  const struct emu_order_peer **by_rank = NULL;
  if (comm->order_slots == NULL) return;
  struct emu_order_peer *peers = order_peers(handles, rank_count, &by_rank);
  if (peers != NULL) {
    emu_order_join(by_rank, rank_count, comm->order_slots);
    comm->trace_id = emu_order_comm(comm->order_slots, rank_count, comm->config.comm_id);
  }
  os_free(peers);
  emu_lock();
  comm->ordered = peers != NULL;
  emu_comm_order_share();
  emu_unlock();
}

void emu_comm_order_share(void) {
  uint64_t slots = 0;
  for (const struct device_comm *comm = emu_comms; comm != NULL; comm = comm->next) {
    if (!comm->ordered || __atomic_load_n(&comm->abort_flag, __ATOMIC_RELAXED) != 0) continue;
    for (uint32_t rank = 0; rank < comm->config.rank_count; rank++)
      if (comm->order_slots[rank] != EMU_ORDER_NOBODY) slots |= UINT64_C(1) << comm->order_slots[rank];
  }
  emu_order_share(slots);
}

void emu_comm_order_hold(int more) {
  emu_lock();
  if (more < 0) emu_world_release(); /* threads that the result releases are busy now */
  emu_order_hold(more);
  emu_unlock();
}

void emu_comm_order_met(uint64_t name) {
  if (emu_order_on()) emu_world_release(); /* as above */
  emu_order_met(name);
}

/* ---- mappings of other processes' memory ---- */

static ncclResult_t peer_no_memory(const struct device_comm *comm) {
  return log_no_memory("comm %s: rank %" PRIu32 ": noting ranks of other processes", comm->name,
                       comm->config.rank);
}

static bool peer_known(struct device_comm *comm, const struct share_ticket *ticket) {
  emu_lock();
  const bool known = map_find(&comm->peers, ticket->number) != NULL;
  emu_unlock();
  return known;
}

/* Keeps the mapping until the rank is closed. If two threads made it, the first one's is kept. */
static ncclResult_t peer_note(struct device_comm *comm, const struct share_ticket *ticket, void *memory) {
  struct emu_peer *peer = (struct emu_peer *)os_alloc(sizeof *peer);
  emu_lock();
  const bool known = map_find(&comm->peers, ticket->number) != NULL;
  const bool noted = !known && peer != NULL && map_reserve(&comm->peers);
  if (noted) {
    peer->ticket = *ticket;
    peer->memory = memory;
    map_insert(&comm->peers, ticket->number, peer);
  }
  emu_unlock();
  if (noted) return ncclSuccess;
  os_free(peer);
  share_unmap(memory, ticket->bytes);
  return known ? ncclSuccess : peer_no_memory(comm);
}

/* A failure is not remembered: the next try may find descriptors or address space. */
static ncclResult_t peer_map(struct device_comm *comm, const struct share_ticket *ticket, bool *reach) {
  void *memory = NULL;
  *reach = comm != NULL && peer_known(comm, ticket);
  if (*reach || share_map(ticket, &memory) != ncclSuccess) return ncclSuccess;
  *reach = true;
  if (comm != NULL) return peer_note(comm, ticket, memory);
  share_unmap(memory, ticket->bytes);
  return ncclSuccess;
}

ncclResult_t emu_comm_reach(struct device_comm *comm, uint32_t peer, const struct device_comm_handle *handle,
                            bool *reach) {
  struct comm_handle content;
  memcpy(&content, handle->bytes, sizeof content);
  if (content.magic != HANDLE_MAGIC)
    return log_fail(ncclInvalidUsage,
                    "comm %s: what rank %" PRIu32
                    " says of its device is not understood; use the same build "
                    "and backend on all ranks",
                    comm != NULL ? comm->name : "to be", peer);
  *reach = false;
  if (content.flags != 0 || sharing_forbidden() || !share_possible(&content.ticket)) return ncclSuccess;
  if (comm == NULL) return peer_map(NULL, &content.ticket, reach);
  if (!comm->pinned) return ncclSuccess;
  *reach = content.ticket.number == comm->ticket.number; /* it is this process's own arena */
  return *reach ? ncclSuccess : peer_map(comm, &content.ticket, reach);
}

/* The offset of a PXN proxy's block after its FIFO. */
#define BLOCK_OFFSET \
  ((sizeof(struct emu_fifo) + FIFO_LINE_BYTES - 1) / FIFO_LINE_BYTES * (size_t)FIFO_LINE_BYTES)

/* ---- the receiver's end ---- */

/* The error message names the purpose, then the cause. */
static ncclResult_t arena_take(const struct device_comm *owner, size_t bytes, void **memory) {
  const bool made = emu_arena_alloc(bytes, true, memory);
  char why[256];
  if (made && *memory != NULL) return ncclSuccess;
  if (made) return emu_conn_no_memory(owner, bytes);
  snprintf(why, sizeof why, "%s", log_own_error());
  return log_fail(ncclSystemError,
                  "rank %" PRIu32 " of comm %s has no memory for a connection of %zu bytes: %s",
                  owner->config.rank, owner->name, bytes, why);
}

static ncclResult_t export_create(struct device_comm *receiver, const struct device_conn_name *name,
                                  struct emu_conn **made) {
  struct emu_conn *conn = emu_conn_new(&receiver->config.limits, name->peer, receiver->config.rank,
                                       name->channel_index, name->conn_index);
  if (conn == NULL) return emu_conn_no_memory(receiver, sizeof *conn);
  conn->place = EMU_CONN_EXPORTED;
  receiver->has_remote = true;
  const ncclResult_t result = map_reserve(&receiver->conns)
                                  ? arena_take(receiver, sizeof *conn->fifo, &conn->fifo_memory)
                                  : emu_conn_no_memory(receiver, sizeof *conn);
  if (result != ncclSuccess) {
    os_free(conn);
    return result;
  }
  conn->fifo = (struct emu_fifo *)conn->fifo_memory;
  conn->fifo->receiver_conn = conn;
  emu_conn_begin(conn, &receiver->config.limits);
  map_insert(&receiver->conns, backend_conn_key(name->peer, name->channel_index, name->conn_index, false),
             conn);
  receiver->memory_bytes += sizeof *conn + sizeof *conn->fifo;
  *made = conn;
  return ncclSuccess;
}

static ncclResult_t export_buffer(struct device_comm *owner, struct emu_conn *conn, uint8_t slots) {
  const size_t bytes = emu_conn_buffer_bytes(conn, slots);
  void *pages = NULL;
  if (conn->buffer[slots] != NULL) return ncclSuccess;
  TRY(arena_take(owner, bytes, &pages));
  conn->buffer[slots] = (uint8_t *)pages + emu_conn_buffer_shift(conn, slots);
  emu_conn_begin_slots(conn, &owner->config.limits, slots);
  owner->memory_bytes += bytes;
  return ncclSuccess;
}

static ncclResult_t wrong_place(const struct device_comm *comm, const struct device_conn_name *name) {
  return log_fail(ncclInternalError,
                  "comm %s: rank %" PRIu32 " has a connection with rank %" PRIu32 " on channel %" PRIu32
                  " that is of another kind",
                  comm->name, comm->config.rank, name->peer, name->channel_index);
}

/* Locked. */
static ncclResult_t export_locked(struct device_comm *receiver, const struct device_conn_name *name,
                                  struct emu_conn **found) {
  struct emu_conn *conn = emu_conn_find(receiver, name->peer, name->channel_index, name->conn_index, false);
  if (conn != NULL && conn->place != EMU_CONN_EXPORTED) return wrong_place(receiver, name);
  if (conn == NULL) TRY(export_create(receiver, name, &conn));
  if (name->proto != SLOTS_AT_SENDER) TRY(export_buffer(receiver, conn, name->proto));
  *found = conn;
  return ncclSuccess;
}

static ncclResult_t sent_create(struct device_comm *sender, const struct device_conn_name *name,
                                struct emu_conn **made) {
  struct emu_conn *conn = emu_conn_new(&sender->config.limits, sender->config.rank, name->peer,
                                       name->channel_index, name->conn_index);
  if (conn == NULL) return emu_conn_no_memory(sender, sizeof *conn);
  conn->place = EMU_CONN_EXPORTED;
  ncclResult_t result = map_reserve(&sender->sent)
                            ? arena_take(sender, sizeof *conn->fifo, &conn->fifo_memory)
                            : emu_conn_no_memory(sender, sizeof *conn);
  if (result == ncclSuccess) result = export_buffer(sender, conn, SLOTS_AT_SENDER);
  if (result != ncclSuccess) {
    if (conn->fifo_memory != NULL) emu_arena_free(conn->fifo_memory);
    os_free(conn);
    return result;
  }
  conn->fifo = (struct emu_fifo *)conn->fifo_memory;
  map_insert(&sender->sent, backend_conn_key(name->peer, name->channel_index, name->conn_index, true), conn);
  sender->memory_bytes += sizeof *conn + sizeof *conn->fifo;
  *made = conn;
  return ncclSuccess;
}

/* The slots of a sender that the receiver reads there. Of the FIFO beside them only the guest is used: the
 * FIFO of the connection itself is the receiver's. The receiver may ask for them before this rank has the
 * connection. Locked. */
static ncclResult_t sent_locked(struct device_comm *sender, const struct device_conn_name *name,
                                struct emu_conn **found) {
  *found = (struct emu_conn *)map_find(
      &sender->sent, backend_conn_key(name->peer, name->channel_index, name->conn_index, true));
  return *found != NULL ? ncclSuccess : sent_create(sender, name, found);
}

static ncclResult_t name_check(const struct device_comm *comm, const struct device_conn_name *name) {
  if (name->peer < comm->config.rank_count && name->channel_index < PLAN_CHANNELS_MAX &&
      name->conn_index <= CONN_FROM_SWITCH && name->proto < SLOTS_COUNT)
    return ncclSuccess;
  return log_fail(ncclInvalidArgument,
                  "comm %s: no connection of rank %" PRIu32 " can have peer %" PRIu32 ", channel %" PRIu32
                  ", number %" PRIu32 " and protocol %u",
                  comm->name, comm->config.rank, name->peer, name->channel_index, name->conn_index,
                  name->proto);
}

/* True if the end that `name` names has the slots. */
static bool owns_slots(const struct device_conn_name *name) {
  return name->sends == (name->proto == SLOTS_AT_SENDER);
}

static void handle_fill(const struct device_comm *comm, const struct emu_conn *conn, uint8_t slots, bool owns,
                        struct device_conn_handle *handle) {
  struct conn_handle content;
  memset(&content, 0, sizeof content);
  content.magic = CONN_MAGIC;
  content.ticket = comm->ticket;
  content.base = comm->arena_base;
  content.fifo = (uint64_t)(uintptr_t)conn->fifo - content.base;
  content.buffer = owns ? (uint64_t)(uintptr_t)conn->buffer[slots] - content.base : 0;
  content.slots = conn->slots;
  content.step_bytes = conn->step_bytes[slots_proto(slots)];
  content.block_bytes = conn->block_bytes;
  memset(handle, 0, sizeof *handle);
  memcpy(handle->bytes, &content, sizeof content);
}

/* A sender's end without slots needs no handle of its own; both_ends only makes core ask for it. */
bool emu_conn_both_ends(void) { return emu_options()->both_ends; }

ncclResult_t emu_conn_export(struct device_comm *comm, const struct device_conn_name *name,
                             struct device_conn_handle *handle) {
  struct emu_conn *conn = NULL;
  TRY(name_check(comm, name));
  if (name->sends && name->proto != SLOTS_AT_SENDER) {
    const struct conn_handle nothing = {.magic = CONN_MAGIC};
    if (handle == NULL) return ncclSuccess;
    memset(handle, 0, sizeof *handle);
    memcpy(handle->bytes, &nothing, sizeof nothing);
    return ncclSuccess;
  }
  TRY(comm_pin(comm));
  emu_lock();
  const ncclResult_t result = name->sends ? sent_locked(comm, name, &conn) : export_locked(comm, name, &conn);
  if (result == ncclSuccess && handle != NULL) conn->invited = true;
  emu_unlock();
  if (result == ncclSuccess && handle != NULL) handle_fill(comm, conn, name->proto, owns_slots(name), handle);
  return result;
}

/* ---- the sender's end ---- */

/* The handle's offsets lie in the block, and its sizes match those that this rank plans with. `name`: this
 * rank's end; only if it does not own the slots does the handle name them. */
static bool conn_handle_fits(const struct conn_handle *handle, const struct plan_limits *limits,
                             const struct device_conn_name *name) {
  const uint8_t proto = slots_proto(name->proto);
  const uint64_t bytes = handle->ticket.bytes,
                 buffer_bytes =
                     owns_slots(name) ? 0 : handle->slots * fifo_slot_bytes(proto, handle->step_bytes);
  if (handle->block_bytes > bytes || bytes - handle->block_bytes < BLOCK_OFFSET) return false;
  const bool pool = handle->block_bytes > 0 && handle->step_bytes == plan_pool_step_bytes(limits);
  return handle->magic == CONN_MAGIC && handle->slots == limits->slots &&
         (pool || handle->step_bytes == limits->step_bytes[proto]) && handle->fifo % FIFO_LINE_BYTES == 0 &&
         handle->buffer % 16 == 0 && buffer_bytes <= bytes &&
         handle->fifo <= bytes - handle->block_bytes - BLOCK_OFFSET && handle->buffer <= bytes - buffer_bytes;
}

/* The checks' counters begin at the first step. */
static void import_pxn(struct emu_conn *conn, const struct plan_limits *limits, uint32_t step_bytes) {
  struct emu_shadow *shadow = &conn->shadow;
  conn->step_bytes[PROTO_SIMPLE] = step_bytes;
  if (conn->conn_index == CONN_MESSAGE)
    shadow->announced = shadow->written = shadow->writing = shadow->read = shadow->reading =
        first_step_of(limits, true);
}

/* Locked. The connection takes over the caller's reference to the mapping. */
static struct emu_conn *import_create(struct device_comm *sender, const struct device_conn_name *name,
                                      const struct conn_handle *handle, void *memory) {
  if (!map_reserve(&sender->conns)) return NULL;
  struct emu_conn *conn = emu_conn_new(&sender->config.limits, sender->config.rank, name->peer,
                                       name->channel_index, name->conn_index);
  if (conn == NULL) return NULL;
  conn->place = EMU_CONN_IMPORTED;
  sender->has_remote = true;
  conn->peer_memory = memory;
  conn->peer_bytes = handle->ticket.bytes;
  conn->peer_shift = (uint64_t)(uintptr_t)memory - handle->base;
  conn->fifo = (struct emu_fifo *)(void *)((uint8_t *)memory + handle->fifo);
  conn->fifo->sender_conn = conn;
  conn->block_bytes = handle->block_bytes;
  if (handle->block_bytes > 0) import_pxn(conn, &sender->config.limits, handle->step_bytes);
  os_process_self(&conn->fifo->guest.process);
  __atomic_store_n(&conn->fifo->guest.came, 1, __ATOMIC_RELEASE);
  map_insert(&sender->conns, backend_conn_key(name->peer, name->channel_index, name->conn_index, true), conn);
  sender->memory_bytes += sizeof *conn;
  return conn;
}

/* Locked. */
static ncclResult_t import_locked(struct device_comm *sender, const struct device_conn_name *name,
                                  const struct conn_handle *handle, void *memory, bool *used) {
  struct emu_conn *conn = emu_conn_find(sender, name->peer, name->channel_index, name->conn_index, true);
  *used = conn == NULL;
  if (conn == NULL) conn = import_create(sender, name, handle, memory);
  *used = *used && conn != NULL;
  if (conn == NULL) return peer_no_memory(sender);
  if (conn->place != EMU_CONN_IMPORTED || conn->peer_memory != memory) return wrong_place(sender, name);
  if (name->proto != SLOTS_AT_SENDER) {
    conn->buffer[name->proto] = (uint8_t *)memory + handle->buffer;
    return ncclSuccess;
  }
  struct emu_conn *sent = NULL;
  TRY(sent_locked(sender, name, &sent));
  conn->buffer[SLOTS_AT_SENDER] = sent->buffer[SLOTS_AT_SENDER];
  return ncclSuccess;
}

/* A receiver's own end, and the sender's slots, which it reads. Locked. */
static ncclResult_t import_sent_locked(struct device_comm *receiver, const struct device_conn_name *name,
                                       const struct conn_handle *handle, void *memory, bool *used) {
  struct emu_conn *conn = NULL;
  *used = false;
  TRY(export_locked(receiver, name, &conn));
  if (conn->buffer[SLOTS_AT_SENDER] != NULL) return ncclSuccess;
  *used = true;
  conn->read_memory = memory;
  conn->read_bytes = handle->ticket.bytes;
  conn->read_guest = &((struct emu_fifo *)(void *)((uint8_t *)memory + handle->fifo))->guest;
  os_process_self(&conn->read_guest->process);
  __atomic_store_n(&conn->read_guest->came, 1, __ATOMIC_RELEASE);
  conn->buffer[SLOTS_AT_SENDER] = (uint8_t *)memory + handle->buffer;
  return ncclSuccess;
}

ncclResult_t emu_conn_import(struct device_comm *comm, const struct device_conn_name *name,
                             const struct device_conn_handle *handle) {
  struct conn_handle content;
  void *memory;
  bool used;
  memcpy(&content, handle->bytes, sizeof content);
  TRY(name_check(comm, name));
  if (!name->sends && name->proto != SLOTS_AT_SENDER && content.magic == CONN_MAGIC)
    return emu_conn_export(comm, name, NULL);
  if (!conn_handle_fits(&content, &comm->config.limits, name))
    return log_fail(ncclInvalidUsage,
                    "comm %s: rank %" PRIu32 " cannot use the connection that rank %" PRIu32
                    " made for it; use the same build and the same settings on all ranks",
                    comm->name, comm->config.rank, name->peer);
  if (name->proto == SLOTS_AT_SENDER) TRY(comm_pin(comm));
  TRY(share_map(&content.ticket, &memory));
  emu_lock();
  const ncclResult_t result = name->sends ? import_locked(comm, name, &content, memory, &used)
                                          : import_sent_locked(comm, name, &content, memory, &used);
  emu_unlock();
  if (!used) share_unmap(memory, content.ticket.bytes);
  return result;
}

/* The guest of a sender's slots is the receiver. */
bool emu_conn_unread(struct device_comm *comm) {
  for (uint32_t i = 0; i < comm->sent.capacity; i++) {
    const uint64_t key = comm->sent.entries[i].key;
    const struct emu_conn *sent = (const struct emu_conn *)comm->sent.entries[i].value;
    const struct emu_conn *conn = key != 0 ? (const struct emu_conn *)map_find(&comm->conns, key) : NULL;
    if (conn == NULL || conn->fifo->sender.read_step <= prim_load_acquire(&conn->fifo->sender.head)) continue;
    const struct emu_guest *guest = &sent->fifo->guest;
    if (__atomic_load_n(&guest->left, __ATOMIC_ACQUIRE) != 0) continue;
    if (__atomic_load_n(&guest->came, __ATOMIC_ACQUIRE) == 0 || !os_process_gone(&guest->process))
      return true;
  }
  return false;
}

/* ---- PXN proxies: a sender of another process, and a proxy of this one ---- */

/* The same as at the receiver's end, whose messages use shared slots (conn.c). */
static uint64_t pxn_first_step(const struct device_comm *comm, const struct emu_conn *conn) {
  return first_step_of(&comm->config.limits, conn->conn_index == CONN_MESSAGE);
}

/* Begins with all slots free. */
static void pxn_begin(const struct device_comm *comm, struct emu_conn *conn) {
  emu_conn_begin(conn, &comm->config.limits);
  conn->fifo->sender.head = conn->fifo->sender.send_step = pxn_first_step(comm, conn);
}

static void pxn_fill(const struct device_comm *comm, struct emu_conn *conn, uint8_t proto,
                     struct device_pxn *pxn) {
  memset(pxn, 0, sizeof *pxn);
  pxn->end.conn = (struct device_net_conn *)(void *)conn;
  pxn->end.head = &conn->fifo->sender.head;
  pxn->end.tail = &conn->fifo->receiver.tail;
  pxn->end.buffer = conn->buffer[proto];
  pxn->end.slots = conn->slots;
  pxn->end.step_bytes = conn->step_bytes[proto];
  pxn->end.memory = POINTER_HOST;
  pxn->end.first_step = pxn_first_step(comm, conn);
  pxn->block = (uint8_t *)(void *)conn->fifo + BLOCK_OFFSET;
}

/* Allocates slots and counters. On failure the caller frees what was allocated. */
static ncclResult_t pxn_furnish(struct device_comm *comm, uint8_t proto, struct emu_conn *conn) {
  void *pages = NULL;
  if (conn->conn_index == CONN_MESSAGE) conn->step_bytes[proto] = plan_pool_step_bytes(&comm->config.limits);
  TRY(arena_take(comm, BLOCK_OFFSET + conn->block_bytes, &conn->fifo_memory));
  conn->fifo = (struct emu_fifo *)conn->fifo_memory;
  conn->fifo->receiver_conn = conn;
  pxn_begin(comm, conn);
  TRY(arena_take(comm, emu_conn_buffer_bytes(conn, proto), &pages));
  conn->buffer[proto] = (uint8_t *)pages + emu_conn_buffer_shift(conn, proto);
  return ncclSuccess;
}

/* Not in a rank's table, because it may outlive the rank. Locked. */
static ncclResult_t pxn_create(struct device_comm *comm, uint32_t sender, const struct device_conn_name *name,
                               size_t block_bytes, struct emu_conn **made) {
  struct emu_conn *conn =
      emu_conn_new(&comm->config.limits, sender, name->peer, name->channel_index, name->conn_index);
  if (conn == NULL) return emu_conn_no_memory(comm, sizeof *conn);
  conn->place = EMU_CONN_EXPORTED;
  conn->block_bytes = block_bytes;
  const ncclResult_t result = pxn_furnish(comm, name->proto, conn);
  if (result == ncclSuccess) {
    *made = conn;
    return ncclSuccess;
  }
  if (conn->fifo_memory != NULL) emu_arena_free(conn->fifo_memory);
  os_free(conn);
  return result;
}

ncclResult_t emu_pxn_make(struct device_comm *comm, uint32_t sender, const struct device_conn_name *name,
                          size_t block_bytes, struct device_pxn *pxn, struct device_conn_handle *handle) {
  struct emu_conn *conn = NULL;
  TRY(name_check(comm, name));
  TRY(comm_pin(comm));
  emu_lock();
  const ncclResult_t result = pxn_create(comm, sender, name, block_bytes, &conn);
  emu_unlock();
  TRY(result);
  pxn_fill(comm, conn, name->proto, pxn);
  handle_fill(comm, conn, name->proto, true, handle);
  return ncclSuccess;
}

/* The proxy and the sender have agreed that no more data is transferred. */
void emu_pxn_drop(struct device_net_conn *conn) {
  emu_lock();
  emu_conn_unshare((struct emu_conn *)(void *)conn, true);
  emu_unlock();
}

ncclResult_t emu_pxn_end(struct device_comm *sender, const struct device_conn_name *name, size_t block_bytes,
                         struct device_pxn *pxn) {
  emu_lock();
  struct emu_conn *conn = emu_conn_find(sender, name->peer, name->channel_index, name->conn_index, true);
  emu_unlock();
  if (conn == NULL || conn->place != EMU_CONN_IMPORTED || conn->block_bytes != block_bytes)
    return wrong_place(sender, name);
  pxn_fill(sender, conn, name->proto, pxn);
  return ncclSuccess;
}

/* ---- closing ---- */

/* The receiver reads no more slots at the sender. */
static void reading_ends(struct emu_conn *conn) {
  if (conn->read_memory == NULL) return;
  conn->buffer[SLOTS_AT_SENDER] = NULL;
  __atomic_store_n(&conn->read_guest->left, 1, __ATOMIC_RELEASE);
  share_unmap(conn->read_memory, conn->read_bytes);
  conn->read_memory = NULL;
}

/* A receiver may finish before its sender, which still handles steps without data and updates counters at its
 * end; a sender whose slots are read may finish before its receiver. Neither waits for that; the memory is
 * kept instead. After a failure before the other end has mapped the memory it may be freed: who comes late
 * finds zeroed pages, which look like a new connection. */
void emu_conn_unshare(struct emu_conn *conn, bool failed) {
  if (conn->place == EMU_CONN_IMPORTED) {
    __atomic_store_n(&conn->fifo->guest.left, 1, __ATOMIC_RELEASE);
    share_unmap(conn->peer_memory, conn->peer_bytes);
    os_free(conn);
    return;
  }
  reading_ends(conn);
  const bool came = __atomic_load_n(&conn->fifo->guest.came, __ATOMIC_ACQUIRE) != 0;
  if (came || (conn->invited && !failed)) emu_conn_keep(conn, failed);
  else emu_conn_free_exported(conn);
}

/* ---- signals ---- */

bool emu_puts_between(void) { return true; }

ncclResult_t emu_signals_export(struct device_comm *comm, struct device_conn_handle *handle) {
  struct conn_handle content;
  memset(&content, 0, sizeof content);
  memset(handle, 0, sizeof *handle);
  emu_lock();
  const bool there = emu_signals_have(comm) && comm->pinned && emu_arena_offset(comm->signals, &content.fifo);
  emu_unlock();
  if (!there)
    return log_fail(ncclSystemError,
                    "rank %" PRIu32 " of comm %s has no memory for signals of other processes",
                    comm->config.rank, comm->name);
  content.magic = SIGNALS_MAGIC;
  content.ticket = comm->ticket;
  content.base = comm->arena_base;
  memcpy(handle->bytes, &content, sizeof content);
  return ncclSuccess;
}

/* Of the handle, whose process has mapped its arena here when the ranks met. */
static bool signals_place(const struct device_comm *comm, const struct conn_handle *content,
                          struct emu_signals *place) {
  const uint64_t bytes = (uint64_t)SIGNAL_SETS * comm->config.rank_count * sizeof *place->signals;
  const struct emu_peer *peer = (const struct emu_peer *)map_find(&comm->peers, content->ticket.number);
  if (content->magic != SIGNALS_MAGIC || peer == NULL || content->fifo % sizeof *place->signals != 0 ||
      content->fifo > peer->ticket.bytes || bytes > peer->ticket.bytes - content->fifo)
    return false;
  place->signals = (uint64_t *)(void *)((uint8_t *)peer->memory + content->fifo);
  place->base = content->base;
  place->bytes = peer->ticket.bytes;
  place->shift = (uint64_t)(uintptr_t)peer->memory - content->base;
  return true;
}

ncclResult_t emu_signals_import(struct device_comm *comm, uint32_t peer,
                                const struct device_conn_handle *handle) {
  struct conn_handle content;
  memcpy(&content, handle->bytes, sizeof content);
  emu_lock();
  if (comm->signals_there == NULL)
    comm->signals_there =
        (struct emu_signals *)os_alloc(comm->config.rank_count * sizeof *comm->signals_there);
  const bool fits = comm->signals_there != NULL;
  const bool sane = fits && signals_place(comm, &content, &comm->signals_there[peer]);
  emu_unlock();
  if (!fits) return peer_no_memory(comm);
  if (sane) return ncclSuccess;
  return log_fail(ncclRemoteError,
                  "comm %s: what rank %" PRIu32
                  " says of its signals makes no sense; use the same build on all ranks",
                  comm->name, peer);
}

void emu_window_map(struct device_comm *comm, uint32_t peer, uint64_t address, size_t bytes, void **mapped) {
  *mapped = NULL;
  emu_lock();
  const struct emu_signals *there = comm->signals_there != NULL ? &comm->signals_there[peer] : NULL;
  if (there != NULL && there->signals != NULL && bytes <= there->bytes && address >= there->base &&
      address - there->base <= there->bytes - bytes)
    *mapped = (void *)(uintptr_t)(address + there->shift);
  emu_unlock();
}

void emu_comm_unshare(struct device_comm *comm) {
  for (uint32_t i = 0; i < comm->peers.capacity; i++) {
    struct emu_peer *peer = (struct emu_peer *)comm->peers.entries[i].value;
    if (peer == NULL) continue;
    share_unmap(peer->memory, peer->ticket.bytes);
    os_free(peer);
  }
  map_clear(&comm->peers);
  if (comm->pinned) emu_arena_unpin();
  comm->pinned = false;
}
