/* ipc_handle.c: see ipc_handle.h. Data from other processes is copied first, then checked. */
#include "backends/cuda/ipc_handle.h"

#include <assert.h>
#include <string.h>

#define HANDLE_MAGIC UINT64_C(0x7475747469677031)
#define CONN_MAGIC UINT64_C(0x7475747469676331)
#define REGION_MAGIC UINT64_C(0x7475747469677231)
#define SIGNALS_MAGIC UINT64_C(0x7475747469677331)
#define PIECE_BYTES_MOST (UINT64_C(1) << 40)
#define ALIGNED 128u

static_assert(sizeof(struct share_ticket) <= IPC_HANDLE_BYTES, "a piece holds it");

void ipc_comm_handle_write(const struct ipc_comm_handle *content, struct device_comm_handle *handle) {
  memset(handle, 0, sizeof *handle);
  memcpy(handle->bytes, content, sizeof *content);
  memcpy(handle->bytes, &(uint64_t){HANDLE_MAGIC}, sizeof(uint64_t));
}

static bool within(uint64_t offset, uint64_t bytes, uint64_t piece_bytes) {
  return piece_bytes <= PIECE_BYTES_MOST && bytes <= piece_bytes && offset <= piece_bytes - bytes &&
         offset % ALIGNED == 0;
}

bool ipc_comm_handle_read(const struct device_comm_handle *handle, struct ipc_comm_handle *content) {
  memcpy(content, handle->bytes, sizeof *content);
  content->bus_id[sizeof content->bus_id - 1] = '\0';
  if (content->magic != HANDLE_MAGIC || content->level > PATH_SYS) return false;
  if ((content->flags & IPC_NO_SHARING) != 0) return true;
  return content->piece.owner != 0 && within(content->probe, sizeof content->token, content->piece.bytes);
}

void ipc_conn_handle_write(const struct ipc_conn_handle *content, struct device_conn_handle *handle) {
  memset(handle, 0, sizeof *handle);
  memcpy(handle->bytes, content, sizeof *content);
  memcpy(handle->bytes, &(uint64_t){CONN_MAGIC}, sizeof(uint64_t));
}

/* In device memory or in memory of the host, as this end is. A piece of the host is as long as its ticket
 * states. */
static bool piece_is_due(const struct ipc_piece *piece, bool on_host) {
  struct share_ticket ticket;
  memcpy(&ticket, piece->handle, sizeof ticket);
  return ipc_piece_on_host(piece) == on_host && (!on_host || ticket.bytes >= piece->bytes);
}

bool ipc_conn_handle_read(const struct device_conn_handle *handle, const struct device_conn_name *name,
                          const struct plan_limits *limits, struct ipc_conn_handle *content) {
  struct ipc_piece buffer;
  memcpy(content, handle->bytes, sizeof *content);
  if (content->magic != CONN_MAGIC || content->sends != (name->sends ? 0u : 1u) ||
      content->proto != name->proto || content->end_piece.owner == 0 ||
      !piece_is_due(&content->end_piece, name->on_host) ||
      !within(content->end, IPC_END_BYTES, content->end_piece.bytes))
    return false;
  if (!ipc_conn_has_slots(content->sends != 0, name->proto)) return true;
  ipc_conn_buffer_piece(content, &buffer);
  return piece_is_due(&buffer, name->on_host) && content->slots == limits->slots &&
         content->step_bytes == limits->step_bytes[slots_proto(name->proto)] &&
         within(content->buffer, (uint64_t)content->slots * content->step_bytes, content->buffer_bytes);
}

void ipc_conn_buffer_piece(const struct ipc_conn_handle *content, struct ipc_piece *piece) {
  piece->owner = content->end_piece.owner;
  piece->number = content->buffer_number;
  piece->bytes = content->buffer_bytes;
  memcpy(piece->handle, content->buffer_handle, sizeof piece->handle);
}

void ipc_memory_handle_write(const struct ipc_memory_handle *content, struct device_memory_handle *handle) {
  memset(handle, 0, sizeof *handle);
  memcpy(handle->bytes, content, sizeof *content);
  memcpy(handle->bytes, &(uint64_t){REGION_MAGIC}, sizeof(uint64_t));
}

static bool range_holds(const struct ipc_range *range, uint64_t piece_bytes) {
  if (range->kind == IPC_LEGACY) return true;
  return range->kind < IPC_KINDS && range->bytes <= IPC_RANGE_BYTES_MOST && piece_bytes <= range->bytes &&
         range->offset <= range->bytes - piece_bytes;
}

bool ipc_memory_handle_read(const struct device_memory_handle *handle, struct ipc_memory_handle *content) {
  memcpy(content, handle->bytes, sizeof *content);
  return content->magic == REGION_MAGIC && content->piece.owner != 0 && content->piece.bytes > 0 &&
         content->piece.bytes <= PIECE_BYTES_MOST && (content->piece.number & IPC_NUMBER_OF_REGION) != 0 &&
         range_holds(&content->range, content->piece.bytes);
}

void ipc_signals_handle_write(const struct ipc_signals_handle *content, struct device_conn_handle *handle) {
  memset(handle, 0, sizeof *handle);
  memcpy(handle->bytes, content, sizeof *content);
  memcpy(handle->bytes, &(uint64_t){SIGNALS_MAGIC}, sizeof(uint64_t));
}

bool ipc_signals_handle_read(const struct device_conn_handle *handle, uint32_t rank_count,
                             struct ipc_signals_handle *content) {
  memcpy(content, handle->bytes, sizeof *content);
  return content->magic == SIGNALS_MAGIC && content->piece.owner != 0 &&
         piece_is_due(&content->piece, true) &&
         within(content->offset, rank_count * sizeof(uint64_t), content->piece.bytes);
}
