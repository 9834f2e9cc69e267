/* conn_remote.c: connections whose other end is a rank of another process of this host. Each end is a block
 * on its own rank's device that the other process maps, or in memory of the host if the devices do not reach
 * each other, so each rank polls its own memory. Blocks that a process still has mapped when the owner's rank
 * closes are kept until that process has left them or has ended. The content of handles is checked before it
 * is used as an address. */
#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "backends/cuda/ipc.h"
#include "base/log.h"

static_assert(IPC_LEFT_OFFSET == LAUNCH_END_BYTES, "the word follows the end");

/* The state of such a connection that is private to this process. */
struct cuda_conn_remote {
  bool sends; /* this process's end is the sender's */
  bool invited, imported;
  struct os_process process;
  struct ipc_mapping *end, *buffers[SLOTS_COUNT];
  uint32_t device_index;
  struct cuda_conn *next_kept;
};

static struct cuda_conn *kept;

static uint32_t own_arena(const struct cuda_conn *conn) {
  return conn->on_host ? ARENA_SHM : conn->remote->device_index;
}

static struct arena_block *own_block(struct cuda_conn *conn) {
  return conn->remote->sends ? &conn->sender_block : &conn->receiver_block;
}

/* ---- this process's end ---- */

static ncclResult_t no_memory(const struct device_comm *comm) {
  return log_no_memory("rank %u of comm %s: a connection", comm->config.rank, comm->name);
}

static ncclResult_t conn_create(struct device_comm *comm, const struct device_conn_name *name,
                                struct cuda_conn **result) {
  if (!map_reserve(&comm->conns)) return no_memory(comm);
  struct cuda_conn *conn = (struct cuda_conn *)os_alloc(sizeof *conn);
  struct cuda_conn_remote *remote = (struct cuda_conn_remote *)os_alloc(sizeof *remote);
  if (conn == NULL || remote == NULL) {
    os_free(conn);
    os_free(remote);
    return no_memory(comm);
  }
  conn->remote = remote;
  conn->reference_count = 1;
  conn->on_host = name->on_host;
  comm->shm = comm->shm || name->on_host;
  remote->sends = name->sends;
  remote->device_index = comm->config.device_index;
  const struct plan_limits *limits = &comm->config.limits;
  ncclResult_t made = cuda_arena_take(own_arena(conn), IPC_END_BYTES, own_block(conn));
  if (made == ncclSuccess) made = cuda_first_end(limits, name->sends, own_block(conn)->address);
  if (made != ncclSuccess) {
    cuda_arena_give(own_block(conn));
    os_free(remote);
    os_free(conn);
    return made;
  }
  *(name->sends ? &conn->sender : &conn->receiver) = own_block(conn)->address;
  map_insert(&comm->conns, backend_conn_key(name->peer, name->channel_index, name->conn_index, name->sends),
             conn);
  comm->memory_bytes += sizeof *conn + sizeof *remote + IPC_END_BYTES;
  *result = conn;
  return ncclSuccess;
}

/* The slots, if this end owns them: the receiver's, or the sender's of SLOTS_AT_SENDER. */
static ncclResult_t conn_slots(struct device_comm *comm, struct cuda_conn *conn, uint8_t slots) {
  const uint8_t proto = slots_proto(slots);
  const struct plan_limits *limits = &comm->config.limits;
  const uint64_t bytes = (uint64_t)limits->slots * limits->step_bytes[proto];
  struct arena_block *block = &conn->buffer_block[slots];
  if (!ipc_conn_has_slots(conn->remote->sends, slots) || block->address != NULL) return ncclSuccess;
  TRY(cuda_arena_take(own_arena(conn), bytes, block));
  const ncclResult_t begun = cuda_first_slots(limits, proto, limits->step_bytes[proto], block->address);
  if (begun != ncclSuccess) cuda_arena_give(block);
  TRY(begun);
  conn->buffer[slots] = (uint8_t *)block->address;
  comm->memory_bytes += bytes;
  return ncclSuccess;
}

static ncclResult_t conn_get(struct device_comm *comm, const struct device_conn_name *name,
                             struct cuda_conn **result) {
  if (name->peer >= comm->config.rank_count || name->channel_index >= PLAN_CHANNELS_MAX ||
      name->conn_index > CONN_FROM_SWITCH || name->proto >= SLOTS_COUNT)
    return log_fail(
        ncclInvalidArgument,
        "comm %s: no connection of rank %u can have peer %u, channel %u, number %u and protocol %u",
        comm->name, comm->config.rank, name->peer, name->channel_index, name->conn_index, name->proto);
  struct cuda_conn *conn =
      cuda_conn_find(comm, name->peer, name->channel_index, name->conn_index, name->sends);
  if (conn != NULL && (conn->remote == NULL || conn->on_host != name->on_host))
    return log_fail(ncclInternalError,
                    "comm %s: rank %u has a connection with rank %u on channel %u that is of another kind",
                    comm->name, comm->config.rank, name->peer, name->channel_index);
  if (conn == NULL) TRY(conn_create(comm, name, &conn));
  TRY(conn_slots(comm, conn, name->proto));
  *result = conn;
  return ncclSuccess;
}

static ncclResult_t handle_fill(const struct device_comm *comm, struct cuda_conn *conn, uint8_t slots,
                                struct ipc_conn_handle *content) {
  struct ipc_piece piece;
  const struct arena_block *end = own_block(conn), *buffer = &conn->buffer_block[slots];
  memset(content, 0, sizeof *content);
  content->process = *cuda_ipc_self();
  content->sends = conn->remote->sends;
  content->proto = slots;
  cuda_arena_show(end->piece, comm->world->serial);
  TRY(cuda_ipc_offer(end->piece, &content->end_piece));
  content->end = end->extent.offset;
  if (!ipc_conn_has_slots(conn->remote->sends, slots)) return ncclSuccess;
  cuda_arena_show(buffer->piece, comm->world->serial);
  TRY(cuda_ipc_offer(buffer->piece, &piece));
  content->buffer = buffer->extent.offset;
  content->buffer_number = piece.number;
  content->buffer_bytes = piece.bytes;
  memcpy(content->buffer_handle, piece.handle, sizeof piece.handle);
  content->slots = comm->config.limits.slots;
  content->step_bytes = comm->config.limits.step_bytes[slots_proto(slots)];
  return ncclSuccess;
}

ncclResult_t cuda_conn_export(struct device_comm *comm, const struct device_conn_name *name,
                              struct device_conn_handle *handle) {
  struct cuda_conn *conn = NULL;
  struct ipc_conn_handle content;
  TRY(conn_get(comm, name, &conn));
  if (handle == NULL) return ncclSuccess;
  TRY(handle_fill(comm, conn, name->proto, &content));
  conn->remote->invited = true;
  ipc_conn_handle_write(&content, handle);
  return ncclSuccess;
}

/* ---- the other end ---- */

static ncclResult_t import_end(struct cuda_conn *conn, const struct ipc_conn_handle *handle,
                               const char *whose) {
  struct cuda_conn_remote *remote = conn->remote;
  if (remote->imported) return ncclSuccess;
  TRY(cuda_ipc_map(remote->device_index, &handle->end_piece, &handle->process, whose, &remote->end));
  *(remote->sends ? &conn->receiver : &conn->sender) = remote->end->base + handle->end;
  remote->process = handle->process;
  remote->imported = true;
  return ncclSuccess;
}

static ncclResult_t import_slots(struct cuda_conn *conn, const struct ipc_conn_handle *handle,
                                 const char *whose) {
  struct cuda_conn_remote *remote = conn->remote;
  struct ipc_piece piece;
  if (!ipc_conn_has_slots(!remote->sends, (uint8_t)handle->proto) || remote->buffers[handle->proto] != NULL)
    return ncclSuccess;
  ipc_conn_buffer_piece(handle, &piece);
  TRY(cuda_ipc_map(remote->device_index, &piece, &handle->process, whose, &remote->buffers[handle->proto]));
  conn->buffer[handle->proto] = remote->buffers[handle->proto]->base + handle->buffer;
  return ncclSuccess;
}

ncclResult_t cuda_conn_import(struct device_comm *comm, const struct device_conn_name *name,
                              const struct device_conn_handle *handle) {
  struct cuda_conn *conn = NULL;
  struct ipc_conn_handle content;
  char whose[64];
  if (!ipc_conn_handle_read(handle, name, &comm->config.limits, &content))
    return log_fail(ncclInvalidUsage,
                    "comm %s: rank %u cannot use the connection that rank %u made for it; use the same build "
                    "and the same settings on all ranks",
                    comm->name, comm->config.rank, name->peer);
  snprintf(whose, sizeof whose, "rank %u (process %d)", name->peer, (int)content.process.number);
  TRY(conn_get(comm, name, &conn));
  TRY(import_end(conn, &content, whose));
  return import_slots(conn, &content, whose);
}

/* ---- closing ---- */

/* Copies of device memory on a stream of the library's own, which wait for no kernel. */
bool cuda_conn_remote_unread(const struct cuda_conn *conn) {
  const struct cuda_conn_remote *remote = conn->remote;
  if (!remote->sends || conn->buffer_block[SLOTS_AT_SENDER].address == NULL) return false;
  const uint8_t *end = (const uint8_t *)conn->sender_block.address;
  uint64_t head = 0, read_step = 0, left = 0;
  const struct cuda_scope scope = cuda_scope_enter(remote->device_index);
  ncclResult_t result = cuda_memory_fetch(&head, end, sizeof head);
  if (result == ncclSuccess)
    result = cuda_memory_fetch(&read_step, end + LAUNCH_READ_OFFSET, sizeof read_step);
  if (result == ncclSuccess) result = cuda_memory_fetch(&left, end + IPC_LEFT_OFFSET, sizeof left);
  cuda_scope_leave(&scope);
  return result == ncclSuccess && head < read_step && left == 0 &&
         !(remote->imported && os_process_gone(&remote->process));
}

void cuda_conn_remote_leave(const struct cuda_conn *conn) {
  const struct cuda_conn_remote *remote = conn->remote;
  uint8_t *end = (uint8_t *)(remote->sends ? conn->receiver : conn->sender);
  if (!remote->imported || os_process_gone(&remote->process)) return;
  if (cudaMemsetAsync(end + IPC_LEFT_OFFSET, 1, sizeof(uint64_t), cuda_own_stream(remote->device_index)) !=
      cudaSuccess)
    cudaGetLastError();
}

static void own_end_free(struct cuda_conn *conn) {
  cuda_arena_give(own_block(conn));
  for (uint8_t slots = 0; slots < SLOTS_COUNT; slots++) cuda_arena_give(&conn->buffer_block[slots]);
  os_free(conn->remote);
  os_free(conn);
}

void cuda_conn_remote_free(struct cuda_conn *conn) {
  struct cuda_conn_remote *remote = conn->remote;
  cuda_ipc_unmap(remote->end);
  for (uint8_t slots = 0; slots < SLOTS_COUNT; slots++) cuda_ipc_unmap(remote->buffers[slots]);
  if (!remote->invited) {
    own_end_free(conn);
    return;
  }
  remote->next_kept = kept;
  kept = conn;
}

/* A process that was invited but never imported the end is unknown: what it might use is kept. */
static bool guest_left(struct cuda_conn *conn) {
  const struct cuda_conn_remote *remote = conn->remote;
  uint64_t left = 0;
  if (cuda_arena_lost(own_block(conn))) return true;
  const struct cuda_scope scope = cuda_scope_enter(remote->device_index);
  const uint8_t *end = (const uint8_t *)own_block(conn)->address;
  const ncclResult_t result = cuda_memory_fetch(&left, end + IPC_LEFT_OFFSET, sizeof left);
  cuda_scope_leave(&scope);
  return (result == ncclSuccess && left != 0) || (remote->imported && os_process_gone(&remote->process));
}

/* Ends of one communicator are freed together: if one is still in use, the following ones probably are
 * too. */
void cuda_conn_kept_sweep(void) {
  uint32_t stayed = 0;
  for (struct cuda_conn **place = &kept, *conn; (conn = *place) != NULL && stayed < 4;) {
    if (!guest_left(conn)) {
      place = &conn->remote->next_kept;
      stayed += 1;
      continue;
    }
    *place = conn->remote->next_kept;
    own_end_free(conn);
  }
}

void cuda_conn_kept_drop(void) {
  for (struct cuda_conn **place = &kept, *conn; (conn = *place) != NULL;) {
    if (!conn->on_host) {
      place = &conn->remote->next_kept;
      continue;
    }
    *place = conn->remote->next_kept;
    own_end_free(conn);
  }
}
