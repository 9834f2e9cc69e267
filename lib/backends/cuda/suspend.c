/* suspend.c: gives the memory of a rank's connections back to its device, and counts the graphs that forbid
 * it. Other ranks of the communicator do the same at that time: what this process has mapped is closed before
 * its owner frees it, and what was shown to others is freed when they have closed it. Pieces of memory that
 * hold something of another communicator stay. */
#include <string.h>

#include "backends/cuda/ipc.h"
#include "base/log.h"

/* ---- graphs ---- */

/* Outlives the rank while a graph does. */
struct cuda_graph_uses {
  uint32_t count; /* atomic: graphs, and the rank */
};

static void CUDART_CB uses_drop(void *argument) {
  struct cuda_graph_uses *uses = (struct cuda_graph_uses *)argument;
  if (__atomic_sub_fetch(&uses->count, 1, __ATOMIC_ACQ_REL) == 0) os_free(uses);
}

ncclResult_t cuda_graph_use(struct device_comm *comm, const struct cuda_capture *capture) {
  cudaUserObject_t object = NULL;
  if (comm->graph_used == capture->id) return ncclSuccess;
  if (comm->graph_uses == NULL) {
    comm->graph_uses = (struct cuda_graph_uses *)os_alloc(sizeof *comm->graph_uses);
    if (comm->graph_uses == NULL) return log_no_memory("noting a graph that has kernels of a rank");
    comm->graph_uses->count = 1;
  }
  __atomic_add_fetch(&comm->graph_uses->count, 1, __ATOMIC_ACQ_REL);
  int error = cudaUserObjectCreate(&object, comm->graph_uses, uses_drop, 1, cudaUserObjectNoDestructorSync);
  if (error != 0) uses_drop(comm->graph_uses);
  else error = cudaGraphRetainUserObject(capture->graph, object, 1, cudaGraphUserObjectMove);
  if (error != 0 && object != NULL) cudaUserObjectRelease(object, 1); /* drops it */
  if (error == 0) comm->graph_used = capture->id;
  return cuda_result(error, "noting a graph that has kernels of a rank");
}

void cuda_graph_uses_close(struct device_comm *comm) {
  if (comm->graph_uses != NULL) uses_drop(comm->graph_uses);
}

/* The driver says that a graph is gone on a thread of its own, which may take a moment. */
#define GRAPHS_WAIT_MS 100u

static bool graphs_live(const struct device_comm *comm) {
  const struct cuda_graph_uses *uses = comm->graph_uses;
  for (uint32_t ms = 0; uses != NULL && __atomic_load_n(&uses->count, __ATOMIC_ACQUIRE) > 1; ms++) {
    if (ms == GRAPHS_WAIT_MS) return true;
    os_sleep_ms(1);
  }
  return false;
}

/* ---- checks ---- */

/* It has memory of other processes mapped. */
static bool comm_maps(struct device_comm *comm) {
  cuda_lock();
  cuda_conns_lock(comm);
  bool maps = comm->guests != NULL;
  for (uint32_t i = 0; i < comm->conns.capacity && !maps; i++) {
    const struct cuda_conn *conn = (const struct cuda_conn *)comm->conns.entries[i].value;
    maps = conn != NULL && conn->remote != NULL;
  }
  cuda_conns_unlock(comm);
  cuda_unlock();
  return maps;
}

/* Freeing and unmapping wait for the kernels of a device, and maybe of those that reach it. */
static bool process_is_idle(void) {
  struct device_comm *comm = cuda_comms();
  while (comm != NULL && cuda_comm_idle(comm)) comm = comm->next;
  return comm == NULL;
}

/* Kernels of other communicators may wait for ranks that are suspending this one. */
ncclResult_t cuda_comm_release_check(struct device_comm *comm) {
  if (graphs_live(comm))
    return log_fail(
        ncclInvalidUsage,
        "comm %s: rank %u has kernels in a CUDA graph, which would use memory that is given back; "
        "destroy the graph, and what was instantiated from it, before",
        comm->name, comm->config.rank);
  cuda_lock();
  const bool idle = process_is_idle();
  cuda_unlock();
  if (idle || !comm_maps(comm)) return ncclSuccess;
  return log_fail(ncclInvalidUsage,
                  "comm %s: rank %u: another communicator of the process has operations that have not ended, "
                  "and memory of other processes can be unmapped only after them; wait for their streams "
                  "before",
                  comm->name, comm->config.rank);
}

uint64_t cuda_comm_releasable(struct device_comm *comm) {
  cuda_lock();
  const uint64_t bytes =
      comm->memory_bytes - comm->lasting_bytes + map_bytes(&comm->conns) + map_bytes(&comm->slots);
  cuda_unlock();
  return bytes;
}

/* ---- giving back ---- */

static void rings_drop(struct device_comm *comm) {
  for (uint32_t channel = 0; channel < PLAN_CHANNELS_MAX; channel++)
    cuda_arena_give(&comm->rings[channel].block);
  memset(comm->rings, 0, sizeof comm->rings);
}

void cuda_comm_release(struct device_comm *comm) {
  const uint32_t rank_count = comm->config.rank_count;
  if (cuda_comm_lost(comm)) return;
  const struct cuda_scope scope = cuda_scope_enter(comm->config.device_index);
  cuda_lock();
  cuda_conns_lock(comm);
  cuda_kept_close(comm);
  cuda_conn_close_all(comm, false);
  cuda_regions_close(comm);
  comm->regions.rank_count = rank_count;
  rings_drop(comm);
  comm->memory_bytes = comm->lasting_bytes;
  comm->hosted = comm->shm = false;
  cuda_conns_unlock(comm);
  struct ipc_mapping *unused = cuda_ipc_take_unused(NULL);
  cuda_unlock();
  cuda_ipc_close(unused);
  cuda_scope_leave(&scope);
}

/* What kernels of other communicators would hold up stays with the process, for its next connections. */
void cuda_comm_release_end(struct device_comm *comm) {
  if (cuda_comm_lost(comm)) return;
  const struct cuda_scope scope = cuda_scope_enter(comm->config.device_index);
  cuda_lock();
  cuda_conn_kept_sweep();
  if (process_is_idle()) cuda_arena_trim_of(comm->config.device_index, comm->world->serial);
  cuda_unlock();
  cuda_scope_leave(&scope);
}
