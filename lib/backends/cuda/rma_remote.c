/* rma_remote.c: one-sided calls for ranks of other processes of this host. Their windows are mapped as
 * outputs are (ipc_region.c), and their counters of signals, which lie in memory of the host, as connections'
 * ends. A put is refused when its window has been taken back: what it would store to may be unmapped at any
 * time. */
#include <stdio.h>
#include <string.h>

#include "backends/cuda/ipc.h"
#include "backends/cuda/rma.h"
#include "base/log.h"

struct cuda_rma_there {
  struct ipc_mapping *mapping; /* NULL: not imported */
  uint64_t *signals;           /* by the rank that sends them */
};

bool cuda_puts_between(void) { return true; }

/* ---- counters ---- */

static ncclResult_t signals_offer(struct device_comm *comm, struct ipc_signals_handle *content) {
  const struct arena_block *block = NULL;
  TRY(cuda_rma_signals(comm, &block));
  if (block->piece->device_index != ARENA_SHM)
    return log_fail(
        ncclInvalidUsage,
        "comm %s: rank %u shares no memory of the host, in which other processes count signals; unset "
        "NCCL_SHM_DISABLE, or use ncclSend and ncclRecv",
        comm->name, comm->config.rank);
  content->process = *cuda_ipc_self();
  content->offset = block->extent.offset;
  return cuda_ipc_offer(block->piece, &content->piece);
}

ncclResult_t cuda_signals_export(struct device_comm *comm, struct device_conn_handle *handle) {
  struct ipc_signals_handle content;
  memset(&content, 0, sizeof content);
  cuda_lock();
  const struct cuda_scope scope = cuda_scope_enter(comm->config.device_index);
  const ncclResult_t result = signals_offer(comm, &content);
  cuda_scope_leave(&scope);
  cuda_unlock();
  ipc_signals_handle_write(&content, handle);
  return result;
}

/* Called with the lock held. */
static ncclResult_t signals_map(struct device_comm *comm, uint32_t peer,
                                const struct ipc_signals_handle *content) {
  struct cuda_rma_there *there = comm->rma.there;
  char whose[64];
  if (there == NULL)
    there = (struct cuda_rma_there *)os_alloc(comm->config.rank_count * sizeof *comm->rma.there);
  if (there == NULL) return log_no_memory("noting signals of rank %u", peer);
  comm->rma.there = there;
  if (there[peer].mapping != NULL) return ncclSuccess;
  snprintf(whose, sizeof whose, "rank %u (process %d)", peer, (int)content->process.number);
  TRY(cuda_ipc_map(comm->config.device_index, &content->piece, &content->process, whose,
                   &there[peer].mapping));
  there[peer].signals = (uint64_t *)(void *)(there[peer].mapping->base + content->offset);
  return ncclSuccess;
}

ncclResult_t cuda_signals_import(struct device_comm *comm, uint32_t peer,
                                 const struct device_conn_handle *handle) {
  struct ipc_signals_handle content;
  if (!ipc_signals_handle_read(handle, comm->config.rank_count, &content))
    return log_fail(
        ncclInvalidUsage,
        "comm %s: what rank %u says of its signals is not understood; use the same build on all ranks",
        comm->name, peer);
  cuda_lock();
  const struct cuda_scope scope = cuda_scope_enter(comm->config.device_index);
  const ncclResult_t result = signals_map(comm, peer, &content);
  cuda_scope_leave(&scope);
  cuda_unlock();
  return result;
}

void cuda_rma_there_close(struct device_comm *comm) {
  for (uint32_t rank = 0; comm->rma.there != NULL && rank < comm->config.rank_count; rank++)
    cuda_ipc_unmap(comm->rma.there[rank].mapping);
  os_free(comm->rma.there);
}

/* ---- windows ---- */

void cuda_put_window_map(struct device_comm *comm, uint32_t peer, uint64_t address, size_t bytes,
                         void **mapped) {
  (void)peer;
  cuda_lock();
  *mapped = address != 0 && cuda_guests_hold(comm, address, bytes) ? (void *)(uintptr_t)address : NULL;
  cuda_unlock();
}

ncclResult_t cuda_rma_put_begin(struct device_comm *comm, const struct device_put *put, uint64_t **signal) {
  const struct plan_call *call = &put->call;
  cuda_lock();
  const struct cuda_rma_there *there = comm->rma.there != NULL ? &comm->rma.there[call->peer] : NULL;
  const bool mapped = there != NULL && there->signals != NULL &&
                      cuda_guests_hold(comm, (uint64_t)(uintptr_t)call->out, call->out_bytes);
  if (mapped) __atomic_store_n(&comm->rma.putting, 1, __ATOMIC_RELEASE);
  cuda_unlock();
  if (mapped) *signal = &there->signals[signal_place(comm->config.rank_count, put->set, comm->config.rank)];
  if (mapped) return ncclSuccess;
  return log_fail(
      ncclInvalidUsage,
      "%s: rank %u of comm '%s': rank %u has freed the memory of its window, or deregistered it; do "
      "so behind the last put into it",
      call->name, comm->config.rank, comm->name, call->peer);
}

void cuda_rma_put_end(struct device_comm *comm) { __atomic_store_n(&comm->rma.putting, 0, __ATOMIC_RELEASE); }
