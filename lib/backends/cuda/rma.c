/* rma.c: one-sided calls without a kernel: a copy engine moves the data, the stream then stores the signal's
 * number, and streams wait for numbers. The counters are memory of the host, which every device of the
 * process reaches, also those of other processes, and the host, which ends waits when a rank is aborted. A
 * later signal on another stream would overtake an earlier one, so puts for one peer are ordered by an event.
 */
#include "backends/cuda/rma.h"

#include <cuda.h>
#include <string.h>

#include "backends/cuda/device.h"
#include "backends/cuda/ipc.h"
#include "base/log.h"
#include "base/param.h"
#include "base/share.h"

/* Streams compare modulo 2^64 with a sign: more than any number of a signal, and yet greater. */
#define SIGNALS_ALL (UINT64_C(1) << 62)

typedef CUresult (*stream_value)(CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned flags);
static stream_value wait_value, write_value; /* the same value whoever finds it first */

static ncclResult_t streams_check(const struct device_comm *comm, const char *call) {
  if (wait_value == NULL) *(void **)&wait_value = cuda_driver_function("cuStreamWaitValue64_v2");
  if (write_value == NULL) *(void **)&write_value = cuda_driver_function("cuStreamWriteValue64_v2");
  if (wait_value != NULL && write_value != NULL &&
      cuda_device_ask(comm->config.device_index, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS) != 0)
    return ncclSuccess;
  return log_fail(ncclInvalidUsage,
                  "%s: rank %u of comm '%s': one-sided calls need stream memory operations of 64 bits, which "
                  "device %u or its driver does not have; use ncclSend and ncclRecv",
                  call, comm->config.rank, comm->name, comm->config.device_index);
}

/* ---- counters ---- */

/* Of a rank. They belong to the world, so that they are there while any rank of it is open. */
struct cuda_signals {
  struct arena_block block;
  uint64_t *host;            /* atomic: where the host accesses them; NULL: there are none */
  void *view;                /* of shared pages, which the host cannot access where devices do; NULL: none */
  struct cuda_signals *next; /* of those kept */
};

static struct cuda_signals *kept; /* under cuda_mutex */

static ncclResult_t signals_view(struct cuda_signals *signals) {
  struct share_ticket ticket;
  uint64_t *host = (uint64_t *)signals->block.address;
  if (signals->block.piece->device_index == ARENA_SHM) {
    memcpy(&ticket, &signals->block.piece->handle, sizeof ticket);
    TRY(share_map(&ticket, &signals->view));
    host = (uint64_t *)(void *)((uint8_t *)signals->view + signals->block.extent.offset);
  }
  __atomic_store_n(&signals->host, host, __ATOMIC_RELEASE);
  return ncclSuccess;
}

ncclResult_t cuda_rma_signals(const struct device_comm *comm, const struct arena_block **block) {
  struct cuda_world *world = comm->world;
  const uint32_t rank_count = comm->config.rank_count;
  const bool shared = world->rank_count < rank_count && param_int(PARAM_SHM_DISABLE) == 0;
  if (world->signals == NULL) {
    struct cuda_signals *all = (struct cuda_signals *)os_alloc(rank_count * sizeof *all);
    if (all == NULL) return log_no_memory("rank %u of comm '%s': its signals", comm->config.rank, comm->name);
    __atomic_store_n(&world->signals, all, __ATOMIC_RELEASE);
  }
  struct cuda_signals *signals = &world->signals[comm->config.rank];
  *block = &signals->block;
  if (signals->block.address == NULL)
    TRY(cuda_arena_take(shared ? ARENA_SHM : ARENA_HOST, SIGNAL_SETS * rank_count * sizeof(uint64_t),
                        &signals->block));
  return signals->host != NULL ? ncclSuccess : signals_view(signals);
}

static ncclResult_t signals_of(const struct device_comm *comm, uint64_t **signals) {
  const struct arena_block *block = NULL;
  cuda_lock();
  const ncclResult_t result = cuda_rma_signals(comm, &block);
  if (result == ncclSuccess) *signals = (uint64_t *)block->address;
  cuda_unlock();
  return result;
}

void cuda_rma_signals_close(struct cuda_world *world, uint32_t rank_count) {
  for (uint32_t rank = 0; world->signals != NULL && rank < rank_count; rank++) {
    struct cuda_signals *signals = &world->signals[rank];
    struct cuda_signals *row = NULL;
    if (signals->view != NULL) share_unmap(signals->view, signals->block.piece->pages.mapped_bytes);
    if (signals->view != NULL) row = (struct cuda_signals *)os_alloc(sizeof *row);
    else cuda_arena_give(&signals->block);
    if (row == NULL) continue;
    row->block = signals->block;
    row->next = kept;
    kept = row;
  }
  os_free(world->signals);
}

void cuda_rma_kept_drop(void) {
  for (struct cuda_signals *row = kept; row != NULL; row = kept) {
    kept = row->next;
    cuda_arena_give(&row->block);
    os_free(row);
  }
}

static uint64_t counter_count(const struct device_comm *comm) {
  return (uint64_t)SIGNAL_SETS * comm->config.rank_count;
}

static uint64_t await_place(const struct device_comm *comm, const struct device_await *await) {
  return signal_place(comm->config.rank_count, await->set, await->peer);
}

/* ---- the order of calls ---- */

static int end_await(const struct cuda_rma_end *end, uint64_t key, cudaStream_t stream) {
  if (end->event == NULL || end->stream_key == key) return 0;
  return cudaStreamWaitEvent(stream, end->event, 0);
}

static int end_note(struct cuda_rma_end *end, uint64_t key, cudaStream_t stream) {
  cudaEvent_t event = end->event;
  int error = 0;
  if (event == NULL) error = cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  if (error == 0) error = cudaEventRecord(event, stream);
  end->stream_key = key;
  if (event != NULL) __atomic_store_n(&end->event, event, __ATOMIC_RELEASE);
  return error;
}

static bool end_passed(const struct cuda_rma_end *end) {
  cudaEvent_t event = __atomic_load_n(&end->event, __ATOMIC_ACQUIRE);
  if (event == NULL) return true;
  const cudaError_t state = cudaEventQuery(event);
  if (state != cudaSuccess) cudaGetLastError();
  return state != cudaErrorNotReady;
}

/* The stream's own, else one that has passed, else another; NULL: out of memory. */
static struct cuda_rma_end *wait_end(struct cuda_rma *rma, uint64_t key) {
  for (struct cuda_rma_end *end = rma->waits; end != NULL; end = end->next)
    if (end->stream_key == key) return end;
  for (struct cuda_rma_end *end = rma->waits; end != NULL; end = end->next)
    if (end_passed(end)) return end;
  struct cuda_rma_end *fresh = (struct cuda_rma_end *)os_alloc(sizeof *fresh);
  if (fresh == NULL) return NULL;
  fresh->next = rma->waits;
  __atomic_store_n(&rma->waits, fresh, __ATOMIC_RELEASE);
  return fresh;
}

/* False: out of memory. */
static bool puts_have(struct device_comm *comm) {
  if (comm->rma.puts != NULL) return true;
  struct cuda_rma_end *puts =
      (struct cuda_rma_end *)os_alloc(comm->config.rank_count * sizeof *comm->rma.puts);
  __atomic_store_n(&comm->rma.puts, puts, __ATOMIC_RELEASE);
  return puts != NULL;
}

/* ---- calls ---- */

bool cuda_comm_reaches(struct device_comm *comm, struct device_comm *target, const void *memory,
                       size_t bytes) {
  struct mapped_memory mapped;
  const uint32_t own = comm->config.device_index, theirs = target->config.device_index;
  cuda_lock();
  bool reaches = own == theirs || cuda_reach(own, theirs);
  cuda_unlock();
  if (reaches && own != theirs && bytes > 0 && cuda_mapped_find((uint64_t)(uintptr_t)memory, &mapped)) {
    cuda_conns_lock(target);
    reaches = cuda_access_reaches(target, memory, bytes, own);
    cuda_conns_unlock(target);
  }
  return reaches;
}

static ncclResult_t reach_check(struct device_comm *comm, const struct device_put *put) {
  struct device_comm *target = put->target;
  const uint32_t own = comm->config.device_index, theirs = target->config.device_index;
  if (cuda_comm_reaches(comm, target, put->call.out, put->call.in_bytes)) return ncclSuccess;
  return log_fail(
      ncclInvalidUsage,
      "%s: rank %u of comm '%s' on device %u does not reach the window of rank %u on device %u: "
      "one-sided calls need memory that both reach; use ncclSend on rank %u and ncclRecv on rank %u",
      put->call.name, comm->config.rank, comm->name, own, put->call.peer, theirs, comm->config.rank,
      put->call.peer);
}

static int store_number(uint64_t *signal, uint64_t number, cudaStream_t stream) {
  const CUresult error =
      write_value((CUstream)stream, (CUdeviceptr)(uintptr_t)signal, number, CU_STREAM_WRITE_VALUE_DEFAULT);
  return error == CUDA_SUCCESS ? 0 : cudaErrorUnknown;
}

static int put_enqueue(struct cuda_rma_end *end, const struct device_put *put, uint64_t *signal,
                       cudaStream_t stream) {
  uint64_t key = 0;
  int error = cuda_order_stream_key(stream, &key);
  if (error == 0) error = end_await(end, key, stream);
  if (error == 0 && put->call.in_bytes > 0)
    error = cudaMemcpyAsync(put->call.out, put->call.in, put->call.in_bytes, cudaMemcpyDefault, stream);
  if (error == 0) error = store_number(signal, put->number, stream);
  return error != 0 ? error : end_note(end, key, stream);
}

static bool is_aborted(const struct device_comm *comm) {
  return __atomic_load_n(&comm->control->abort, __ATOMIC_ACQUIRE) != 0;
}

/* *signal: the rank's counter at the peer. */
static ncclResult_t put_begin(struct device_comm *comm, const struct device_put *put, uint64_t **signal) {
  if (put->target == NULL) return cuda_rma_put_begin(comm, put, signal);
  TRY(reach_check(comm, put));
  TRY(signals_of(put->target, signal));
  *signal += signal_place(comm->config.rank_count, put->set, comm->config.rank);
  return ncclSuccess;
}

/* A collective's block that stays here: beside what follows on the stream, up to the next wait. */
static ncclResult_t own_put(struct device_comm *comm, const struct device_put *put, device_stream stream) {
  const struct own_copy copy = {put->call.in, put->call.out, put->call.in_bytes};
  const struct cuda_scope scope = cuda_scope_enter(comm->config.device_index);
  const int error = cuda_side_begin(&comm->side, &copy, (cudaStream_t)stream);
  cuda_scope_leave(&scope);
  comm->rma.moves_own = error == 0;
  return cuda_result(error, "copying a block within the device");
}

static int own_put_await(struct device_comm *comm, cudaStream_t stream) {
  if (!comm->rma.moves_own) return 0;
  comm->rma.moves_own = false;
  return cuda_side_end(&comm->side, stream);
}

ncclResult_t cuda_put(struct device_comm *comm, const struct device_put *put, device_stream stream) {
  uint64_t *signal = NULL;
  TRY(streams_check(comm, put->call.name));
  if (put->set == SIGNALS_COLLECTIVE && put->target == comm) return own_put(comm, put, stream);
  if (is_aborted(comm) || (put->target != NULL && is_aborted(put->target))) return ncclSuccess;
  if (!puts_have(comm)) return log_no_memory("%s: rank %u", put->call.name, comm->config.rank);
  const struct cuda_scope scope = cuda_scope_enter(comm->config.device_index);
  ncclResult_t result = put_begin(comm, put, &signal);
  if (result == ncclSuccess)
    result = cuda_result(put_enqueue(&comm->rma.puts[put->call.peer], put, signal, (cudaStream_t)stream),
                         "enqueueing a put");
  if (put->target == NULL) cuda_rma_put_end(comm);
  cuda_scope_leave(&scope);
  return result;
}

static int await_enqueue(struct device_comm *comm, const struct device_await *awaits, uint32_t await_count,
                         const uint64_t *signals, cudaStream_t stream) {
  uint64_t key = 0;
  const int error = cuda_order_stream_key(stream, &key);
  struct cuda_rma_end *end = error == 0 ? wait_end(&comm->rma, key) : NULL;
  if (end == NULL) return error != 0 ? error : (int)cudaErrorMemoryAllocation;
  for (uint32_t i = 0; i < await_count; i++)
    if (wait_value((CUstream)stream, (CUdeviceptr)(uintptr_t)(signals + await_place(comm, &awaits[i])),
                   awaits[i].number, CU_STREAM_WAIT_VALUE_GEQ) != CUDA_SUCCESS)
      return cudaErrorUnknown;
  const int joined = own_put_await(comm, stream);
  return joined != 0 ? joined : end_note(end, key, stream);
}

/* False: out of memory. */
static bool needs_have(struct device_comm *comm) {
  if (comm->rma.needs != NULL) return true;
  struct cuda_rma_need *needs =
      (struct cuda_rma_need *)os_alloc(counter_count(comm) * sizeof *comm->rma.needs);
  __atomic_store_n(&comm->rma.needs, needs, __ATOMIC_RELEASE);
  return needs != NULL;
}

static void needs_note(const struct device_comm *comm, const struct plan_call *call,
                       const struct device_await *awaits, uint32_t await_count) {
  for (uint32_t i = 0; i < await_count; i++) {
    struct cuda_rma_need *need = &comm->rma.needs[await_place(comm, &awaits[i])];
    __atomic_store_n(&need->operation, call->sequence, __ATOMIC_RELAXED);
    __atomic_store_n(&need->func, call->func, __ATOMIC_RELAXED);
    __atomic_store_n(&need->number, awaits[i].number, __ATOMIC_RELEASE);
  }
}

ncclResult_t cuda_await(struct device_comm *comm, const struct plan_call *call,
                        const struct device_await *awaits, uint32_t await_count, device_stream stream) {
  uint64_t *signals = NULL;
  TRY(streams_check(comm, call->name));
  if (is_aborted(comm)) return ncclSuccess;
  if (!needs_have(comm)) return log_no_memory("%s: rank %u", call->name, comm->config.rank);
  const struct cuda_scope scope = cuda_scope_enter(comm->config.device_index);
  ncclResult_t result = signals_of(comm, &signals);
  if (result == ncclSuccess)
    result = cuda_result(await_enqueue(comm, awaits, await_count, signals, (cudaStream_t)stream),
                         "enqueueing a wait for signals");
  if (result == ncclSuccess) needs_note(comm, call, awaits, await_count);
  cuda_scope_leave(&scope);
  if (is_aborted(comm)) cuda_rma_abort(comm); /* meanwhile */
  return result;
}

/* ---- what waits ---- */

static const uint64_t *signals_seen(const struct device_comm *comm) {
  const struct cuda_signals *all = __atomic_load_n(&comm->world->signals, __ATOMIC_ACQUIRE);
  return all != NULL ? __atomic_load_n(&all[comm->config.rank].host, __ATOMIC_ACQUIRE) : NULL;
}

void cuda_rma_stall(const struct device_comm *comm, struct device_stall *stall) {
  const struct cuda_rma_need *needs = __atomic_load_n(&comm->rma.needs, __ATOMIC_ACQUIRE);
  const uint64_t *signals = signals_seen(comm);
  for (uint64_t i = 0; needs != NULL && signals != NULL && i < counter_count(comm); i++) {
    const uint64_t came = __atomic_load_n(&signals[i], __ATOMIC_ACQUIRE);
    stall->moves = stall->moves * 31 + came;
    if (came >= __atomic_load_n(&needs[i].number, __ATOMIC_ACQUIRE)) continue;
    stall->busy = true;
    if (stall->wait_count == DEVICE_WAITS_MOST) continue;
    stall->waits[stall->wait_count++] =
        (struct device_wait){.peer = (uint32_t)(i % comm->config.rank_count),
                             .func = __atomic_load_n(&needs[i].func, __ATOMIC_RELAXED),
                             .operation = __atomic_load_n(&needs[i].operation, __ATOMIC_RELAXED)};
  }
}

/* ---- the end ---- */

bool cuda_rma_idle(struct device_comm *comm) {
  if (__atomic_load_n(&comm->rma.putting, __ATOMIC_ACQUIRE) != 0) return false;
  const struct cuda_rma_end *puts = __atomic_load_n(&comm->rma.puts, __ATOMIC_ACQUIRE);
  bool idle = true;
  for (uint32_t i = 0; puts != NULL && i < comm->config.rank_count; i++) idle = idle && end_passed(&puts[i]);
  for (const struct cuda_rma_end *end = __atomic_load_n(&comm->rma.waits, __ATOMIC_ACQUIRE); end != NULL;
       end = end->next)
    idle = idle && end_passed(end);
  if (!idle && is_aborted(comm)) cuda_rma_abort(comm); /* a peer may have stored a number since */
  return idle;
}

/* No lock: a thread that holds it may wait for the device. The block stays while the rank is open. */
void cuda_rma_abort(struct device_comm *comm) {
  const struct cuda_world *world = comm->world;
  struct cuda_signals *all = __atomic_load_n(&world->signals, __ATOMIC_ACQUIRE);
  uint64_t *signals = all != NULL ? __atomic_load_n(&all[comm->config.rank].host, __ATOMIC_ACQUIRE) : NULL;
  for (uint64_t i = 0; signals != NULL && i < counter_count(comm); i++)
    __atomic_store_n(&signals[i], SIGNALS_ALL, __ATOMIC_RELEASE);
}

void cuda_rma_close(struct device_comm *comm, bool lost) {
  struct cuda_rma_end *puts = comm->rma.puts, *next;
  for (uint32_t i = 0; !lost && puts != NULL && i < comm->config.rank_count; i++)
    if (puts[i].event != NULL) cudaEventDestroy(puts[i].event);
  os_free(puts);
  os_free(comm->rma.needs);
  for (struct cuda_rma_end *end = comm->rma.waits; end != NULL; end = next) {
    next = end->next;
    if (!lost && end->event != NULL) cudaEventDestroy(end->event);
    os_free(end);
  }
  cuda_rma_there_close(comm);
  memset(&comm->rma, 0, sizeof comm->rma);
}
