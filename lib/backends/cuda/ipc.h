/* ipc.h: device memory of other processes of this host, mapped piece by piece. A piece is opened once per
 * device of this process (of memory of the host: once), and reference-counted. Unused mappings are closed
 * when no rank is open, because closing may wait for kernels. Called with cuda_mutex held. It knows nothing
 * of connections. */
#ifndef TUTTI_BACKENDS_CUDA_IPC_H
#define TUTTI_BACKENDS_CUDA_IPC_H

#include "backends/cuda/arena.h"
#include "backends/cuda/device.h"
#include "backends/cuda/ipc_handle.h"

struct ipc_window; /* ipc_window.c */

struct ipc_mapping {
  uint8_t *base;
  struct ipc_window *window; /* in which it lies; NULL: it is of cudaIpcOpenMemHandle */
  uint32_t device_index, use_count;
  bool lost; /* the device was reset: the mapping exists no more */
  struct ipc_piece piece;
  struct shm_pages pages; /* of memory of the host */
  struct os_process process;
  struct ipc_mapping *next;
};

/* Fills in what other processes need to map a piece of this process. */
ncclResult_t cuda_ipc_offer(struct arena_piece *piece, struct ipc_piece *offer);
/* Called within a scope of the device. `whose` names the owner in error messages. */
ncclResult_t cuda_ipc_map(uint32_t device_index, const struct ipc_piece *piece,
                          const struct os_process *process, const char *whose, struct ipc_mapping **mapping);
/* The same for memory of cuMemCreate; `descriptor`: -1 unless the range's kind needs one. ncclInProgress,
 * without a message: the mapping of what was there before has not ended yet. */
ncclResult_t cuda_ipc_map_in_range(uint32_t device_index, const struct ipc_memory_handle *handle,
                                   int descriptor, const char *whose, struct ipc_mapping **mapping);
void cuda_ipc_unmap(struct ipc_mapping *mapping); /* NULL is allowed; does not close the mapping */
/* Removes unused mappings from the list; cuda_ipc_close closes them. It may wait for kernels, so call it
 * without cuda_mutex. `idle`: only those of programs' regions, on devices of which it says true; NULL: all.
 */
struct ipc_mapping *cuda_ipc_take_unused(bool (*idle)(uint32_t device_index));
bool cuda_ipc_has_unused(void); /* of programs' regions */
void cuda_ipc_close(struct ipc_mapping *mappings);
/* Mappings of a device end when the program resets it. */
void cuda_ipc_forget(uint32_t device_index);
/* This process's number, as handles contain it. */
uint64_t cuda_ipc_owner(void);
const struct os_process *cuda_ipc_self(void);

ncclResult_t cuda_comm_handle(struct device_comm *comm, struct device_comm_handle *handle);
ncclResult_t cuda_comm_check(struct device_comm *comm, uint32_t peer,
                             const struct device_comm_handle *handle);
ncclResult_t cuda_comm_reach(struct device_comm *comm, uint32_t peer, const struct device_comm_handle *handle,
                             bool *reach);
ncclResult_t cuda_comm_reach_shm(struct device_comm *comm, uint32_t peer,
                                 const struct device_comm_handle *handle, bool *reach);
/* Frees what other processes tried to map, when no rank is open. */
void cuda_ipc_probe_close(void);

/* ipc_window.c: memory of cuMemCreate. What the driver says of the memory that is mapped at an address;
 * false: it is not of cuMemCreate, or this driver does not know it. */
struct mapped_memory {
  uint64_t base, bytes, id; /* id: changes with what is mapped there */
  struct ipc_range range;
  uint64_t handle_types; /* that its allocation allows */
};
bool cuda_mapped_find(uint64_t address, struct mapped_memory *memory);
/* Only its id; 0: nothing is mapped there. `base`: where the mapping is to begin. */
uint64_t cuda_mapped_id(uint64_t address, uint64_t base);
/* A new descriptor, or a fabric handle; false: the driver refuses. */
bool cuda_mapped_export(uint64_t base, uint32_t kind, int *descriptor, uint8_t handle[IPC_HANDLE_BYTES]);
/* Maps a piece for the current device at its place in a window: a range of addresses of this process for a
 * range of another one. ncclInProgress: the place is taken. Any thread. */
ncclResult_t cuda_window_map(uint32_t device_index, const struct ipc_piece *piece,
                             const struct ipc_range *range, int descriptor, const char *whose,
                             struct ipc_window **window, uint8_t **base);
/* May wait for kernels. */
void cuda_window_unmap(struct ipc_window *window, uint8_t *base, uint64_t bytes);

/* ipc_region.c */
void cuda_region_check(struct device_comm *comm, const void *memory, size_t bytes, bool lasts);
bool cuda_region_ask(struct device_comm *comm, const void *memory, size_t bytes, uint32_t peer,
                     struct device_memory_handle *handle, int *descriptor);
void cuda_region_answered(struct device_comm *comm, uint32_t peer, const struct device_memory_handle *handle,
                          uint64_t address);
ncclResult_t cuda_region_map(struct device_comm *comm, uint32_t peer,
                             const struct device_memory_handle *handle, int descriptor, uint64_t *address);
void cuda_region_unmap(struct device_comm *comm, uint32_t peer, const struct device_memory_handle *handle);
bool cuda_regions_look(void);
bool cuda_region_gone(struct device_comm *comm, uint32_t *peer, struct device_memory_handle *handle);
bool cuda_region_sweep(void);
/* The peers' mappings of the memory that a plan's kernel shows last as long as the graph. Called with the
 * rank's conns_mutex held, since the plan was bound. */
ncclResult_t cuda_regions_leave(struct device_comm *comm, const struct plan *plan, cudaGraph_t graph);
void cuda_regions_close(struct device_comm *comm);
/* The shift from a buffer's address to the peer's address of it; false: the peer has not mapped it. With the
 * rank's conns_mutex held. */
bool cuda_region_shift(struct device_comm *comm, const void *memory, size_t bytes, uint32_t peer,
                       uint64_t *shift);

/* Windows that ranks of other processes put into. */
void cuda_window_hold(struct device_comm *comm, const void *memory, size_t bytes, bool holds);
uint64_t cuda_window_shown(struct device_comm *comm, uint32_t peer, uint64_t address, size_t bytes);
/* What other processes have shown to this rank, and have not taken back, contains these addresses. */
bool cuda_guests_hold(const struct device_comm *comm, uint64_t address, uint64_t bytes);

/* conn_remote.c: connections with ranks of other processes. Each end is memory of its rank's device, or of
 * the host (device_conn_name.on_host), mapped by the other process. */
ncclResult_t cuda_conn_export(struct device_comm *comm, const struct device_conn_name *name,
                              struct device_conn_handle *handle);
ncclResult_t cuda_conn_import(struct device_comm *comm, const struct device_conn_name *name,
                              const struct device_conn_handle *handle);
/* Whether the other process still has to read slots of this end; not after it has left. */
bool cuda_conn_remote_unread(const struct cuda_conn *conn);
/* Tells the other process that this rank's kernels no longer use its end; takes effect after
 * cuda_settle(). */
void cuda_conn_remote_leave(const struct cuda_conn *conn);
/* Unmaps the other end, and keeps the memory that the other process may still use. */
void cuda_conn_remote_free(struct cuda_conn *conn);
/* Frees kept memory whose other end has left. */
void cuda_conn_kept_sweep(void);
/* Frees all kept memory of the host, when no rank is open: others keep what they have mapped of it. */
void cuda_conn_kept_drop(void);

#endif
