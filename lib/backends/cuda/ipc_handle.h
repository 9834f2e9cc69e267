/* ipc_handle.h: what ranks on GPUs send to ranks of other processes: about their device, and about an end of
 * a connection. Plain data and checks, without CUDA, so that they can be tested on any machine. It promises
 * that a handle that passes the checks names memory within its piece. It does not know whether the piece can
 * be mapped. */
#ifndef TUTTI_BACKENDS_CUDA_IPC_HANDLE_H
#define TUTTI_BACKENDS_CUDA_IPC_HANDLE_H

#include <assert.h>

#include "backends/backend.h"
#include "base/pci.h"
#include "base/os.h"
#include "base/share.h"

#define IPC_HANDLE_BYTES 64

/* One piece of a process's device memory, or of memory of the host that devices access (IPC_NUMBER_OF_SHM).
 */
struct ipc_piece {
  uint64_t owner; /* the process's number: random, never 0 */
  uint64_t number;
  uint64_t bytes;
  uint8_t handle[IPC_HANDLE_BYTES]; /* of CUDA, or a struct share_ticket */
};

/* Forbidden by the process's settings, or unsupported: of device memory, of memory of the host. */
#define IPC_NO_SHARING 1u
#define IPC_NO_SHM 2u

struct ipc_comm_handle {
  uint64_t magic;
  struct ipc_piece piece;  /* any piece of the device, for a trial mapping */
  uint64_t probe, token;   /* offset of the token in it, and its value */
  struct share_ticket shm; /* of a page that begins with shm_token */
  uint64_t shm_token;
  struct os_process process;
  char bus_id[PCI_NAME_BYTES];
  uint32_t flags;
  uint32_t level; /* the longest path that the process's settings allow, an enum device_path_type */
};
static_assert(sizeof(struct ipc_comm_handle) <= DEVICE_COMM_HANDLE_BYTES, "a handle holds it");

/* An end of a connection and, if they are its own, the slots that were asked for. */
struct ipc_conn_handle {
  uint64_t magic;
  struct os_process process;
  struct ipc_piece end_piece;
  uint64_t end;                         /* offset in it */
  uint32_t sends, proto;                /* proto: as in struct device_conn_name */
  uint64_t buffer;                      /* of the owner of the slots: offset in its piece */
  uint64_t buffer_number, buffer_bytes; /* of that piece */
  uint8_t buffer_handle[IPC_HANDLE_BYTES];
  uint32_t slots, step_bytes;
};
static_assert(sizeof(struct ipc_conn_handle) <= DEVICE_CONN_HANDLE_BYTES, "a handle holds it");

/* An end in a piece: the layout of launch.h, then a word that the process that mapped it sets when it
 * leaves. */
#define IPC_LEFT_OFFSET 384u
#define IPC_END_BYTES 512u

/* How a piece of the program's memory is exported. */
enum ipc_kind {
  IPC_LEGACY,     /* cudaMalloc: a handle of cudaIpcGetMemHandle */
  IPC_DESCRIPTOR, /* cuMemCreate: a descriptor, passed beside the handle */
  IPC_FABRIC,     /* cuMemCreate: a CUmemFabricHandle */
  IPC_KINDS
};

/* The range of addresses in which the owner has mapped a piece of cuMemCreate: peers map it at the same place
 * of a range of their own, so that buffers may lie in several pieces. */
struct ipc_range {
  uint64_t base, bytes, offset; /* offset: of the piece */
  uint32_t kind;                /* enum ipc_kind */
};
#define IPC_RANGE_BYTES_MOST (UINT64_C(1) << 44)

/* Memory of the program that is exported to a peer. */
struct ipc_memory_handle {
  uint64_t magic;
  struct ipc_piece piece;
  struct ipc_range range; /* kind IPC_LEGACY: the rest is 0 */
  struct os_process process;
};
static_assert(sizeof(struct ipc_memory_handle) <= DEVICE_MEMORY_HANDLE_BYTES, "a handle holds it");

/* A rank's counters of signals, in memory of the host. */
struct ipc_signals_handle {
  uint64_t magic;
  struct ipc_piece piece;
  uint64_t offset;
  struct os_process process;
};
static_assert(sizeof(struct ipc_signals_handle) <= DEVICE_CONN_HANDLE_BYTES, "a handle holds it");

/* Distinguishes the numbers of the process's own pieces from those of the program's allocations. */
#define IPC_NUMBER_OF_REGION (UINT64_C(1) << 63)
/* And, among the process's own, those of memory of the host. */
#define IPC_NUMBER_OF_SHM (UINT64_C(1) << 62)

/* The other bits of a program's allocation are any: its number may be a hash. */
static inline bool ipc_piece_on_host(const struct ipc_piece *piece) {
  return (piece->number & (IPC_NUMBER_OF_REGION | IPC_NUMBER_OF_SHM)) == IPC_NUMBER_OF_SHM;
}

void ipc_comm_handle_write(const struct ipc_comm_handle *content, struct device_comm_handle *handle);
/* False for a handle that a build of this version cannot have written. */
bool ipc_comm_handle_read(const struct device_comm_handle *handle, struct ipc_comm_handle *content);

void ipc_conn_handle_write(const struct ipc_conn_handle *content, struct device_conn_handle *handle);
/* False unless the handle is for the end that `name`, this process's end, needs: with slots of these sizes,
 * within its pieces. */
bool ipc_conn_handle_read(const struct device_conn_handle *handle, const struct device_conn_name *name,
                          const struct plan_limits *limits, struct ipc_conn_handle *content);
void ipc_memory_handle_write(const struct ipc_memory_handle *content, struct device_memory_handle *handle);
bool ipc_memory_handle_read(const struct device_memory_handle *handle, struct ipc_memory_handle *content);

void ipc_signals_handle_write(const struct ipc_signals_handle *content, struct device_conn_handle *handle);
bool ipc_signals_handle_read(const struct device_conn_handle *handle, uint32_t rank_count,
                             struct ipc_signals_handle *content);

/* True if the sender's or the receiver's end has the slots. */
static inline bool ipc_conn_has_slots(bool sends, uint8_t slots) {
  return sends == (slots == SLOTS_AT_SENDER);
}

/* The piece that contains an end's slots. */
void ipc_conn_buffer_piece(const struct ipc_conn_handle *content, struct ipc_piece *piece);

#endif
