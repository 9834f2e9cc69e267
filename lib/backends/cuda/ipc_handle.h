/* ipc_handle.h: what ranks on GPUs tell ranks of other processes: of their device, and of an end of a
 * connection that they made. Plain data and checks, without CUDA, so that any machine can test them. Promises
 * that a handle that passes names memory within its piece. It does not know whether the piece can be mapped.
 */
#ifndef TUTTI_BACKENDS_CUDA_IPC_HANDLE_H
#define TUTTI_BACKENDS_CUDA_IPC_HANDLE_H

#include <assert.h>

#include "backends/backend.h"
#include "backends/cuda/path.h"
#include "base/os.h"

#define IPC_HANDLE_BYTES 64

/* One piece of a process's device memory. */
struct ipc_piece {
  uint64_t owner; /* the process's number: random, never 0 */
  uint64_t number;
  uint64_t bytes;
  uint8_t handle[IPC_HANDLE_BYTES];
};

#define IPC_NO_SHARING 1u /* the process's settings, or its device, forbid it */

struct ipc_comm_handle {
  uint64_t magic;
  struct ipc_piece piece; /* any of the device's, for a try */
  uint64_t probe, token;  /* where in it the token lies */
  struct os_process process;
  char bus_id[PATH_NAME_BYTES];
  uint32_t flags;
  uint32_t level; /* the longest path that the process's settings allow, an enum device_path_type */
};
static_assert(sizeof(struct ipc_comm_handle) <= DEVICE_COMM_HANDLE_BYTES, "a handle holds it");

/* An end of a connection, and, of a receiver's, the slots of one protocol. */
struct ipc_conn_handle {
  uint64_t magic;
  struct os_process process;
  struct ipc_piece end_piece;
  uint64_t end; /* offset in it */
  uint32_t sends, proto;
  uint64_t buffer; /* a receiver's: offset in its piece; those of one process differ in these alone */
  uint64_t buffer_number, buffer_bytes; /* of the piece */
  uint8_t buffer_handle[IPC_HANDLE_BYTES];
  uint32_t slots, step_bytes;
};
static_assert(sizeof(struct ipc_conn_handle) <= DEVICE_CONN_HANDLE_BYTES, "a handle holds it");

/* An end as it lies in a piece: what launch.h says, and a word that whoever has mapped it sets when it
 * leaves.
 */
#define IPC_LEFT_OFFSET 384u
#define IPC_END_BYTES 512u

/* Memory of the program that is shown to a peer. */
struct ipc_memory_handle {
  uint64_t magic;
  struct ipc_piece piece;
  struct os_process process;
};
static_assert(sizeof(struct ipc_memory_handle) <= DEVICE_MEMORY_HANDLE_BYTES, "a handle holds it");

/* Numbers of pieces: the process's own arenas', and those of allocations of the program. */
#define IPC_NUMBER_OF_REGION (UINT64_C(1) << 63)

void ipc_comm_handle_write(const struct ipc_comm_handle *content, struct device_comm_handle *handle);
/* False for what no build of this kind has written. */
bool ipc_comm_handle_read(const struct device_comm_handle *handle, struct ipc_comm_handle *content);

void ipc_conn_handle_write(const struct ipc_conn_handle *content, struct device_conn_handle *handle);
/* False unless it is that of the end which `name`, this process's end, needs: with slots of these sizes, and
 * within its pieces. */
bool ipc_conn_handle_read(const struct device_conn_handle *handle, const struct device_conn_name *name,
                          const struct plan_limits *limits, struct ipc_conn_handle *content);
void ipc_memory_handle_write(const struct ipc_memory_handle *content, struct device_memory_handle *handle);
bool ipc_memory_handle_read(const struct device_memory_handle *handle, struct ipc_memory_handle *content);

/* The piece that a receiver's slots lie in. */
void ipc_conn_buffer_piece(const struct ipc_conn_handle *content, struct ipc_piece *piece);

#endif
