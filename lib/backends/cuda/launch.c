/* launch.c: a plan on its way to the GPU. Small plans travel with the kernel's arguments; larger ones lie in
 * memory of the host that the kernel reads once. Launches of a rank run in the order of their calls, whatever
 * their streams: an event says when the last one has ended, and launches of graphs wait for it and record it
 * as external nodes. Promises that nothing here waits for a kernel, so that one thread may launch for several
 * devices. */
#include <stdio.h>
#include <string.h>

#include "backends/cuda/device.h"
#include "base/log.h"

#define SLAB_BYTES (32u << 10)
#define SLAB_COUNT 64u
#define SLICES_IN_FLIGHT 2
#define SLAB_OF_GRAPH UINT64_MAX

/* ---- memory of plans ---- */

ncclResult_t cuda_arena_open(struct device_comm *comm) {
  void *arena = NULL;
  TRY(cuda_zeroed_host((size_t)SLAB_BYTES * SLAB_COUNT, &arena));
  comm->arena = (uint8_t *)arena;
  comm->memory_bytes += (size_t)SLAB_BYTES * SLAB_COUNT;
  for (uint32_t i = 0; i < SLAB_COUNT; i++) {
    struct cuda_slab *slab = (struct cuda_slab *)os_alloc(sizeof *slab);
    if (slab == NULL) return log_fail(ncclSystemError, "rank %u: out of memory", comm->config.rank);
    slab->data = comm->arena + (size_t)i * SLAB_BYTES;
    slab->bytes = SLAB_BYTES;
    slab->next = comm->slabs;
    comm->slabs = slab;
  }
  return ncclSuccess;
}

void cuda_arena_close(struct device_comm *comm) {
  for (struct cuda_slab *slab = comm->slabs, *next; slab != NULL; slab = next) {
    next = slab->next;
    if (slab->owns_data) cudaFreeHost(slab->data);
    os_free(slab);
  }
  comm->slabs = NULL;
  if (comm->arena != NULL) cudaFreeHost(comm->arena);
  comm->arena = NULL;
}

static ncclResult_t slab_create(struct device_comm *comm, size_t bytes, struct cuda_slab **result) {
  void *data = NULL;
  bytes = bytes < SLAB_BYTES ? SLAB_BYTES : (bytes + SLAB_BYTES - 1) / SLAB_BYTES * SLAB_BYTES;
  TRY(cuda_zeroed_host(bytes, &data));
  struct cuda_slab *slab = (struct cuda_slab *)os_alloc(sizeof *slab);
  if (slab == NULL) {
    cudaFreeHost(data);
    return log_fail(ncclSystemError, "rank %u: out of memory", comm->config.rank);
  }
  slab->data = (uint8_t *)data;
  slab->bytes = bytes;
  slab->owns_data = true;
  slab->next = comm->slabs;
  comm->slabs = slab;
  comm->memory_bytes += bytes;
  *result = slab;
  return ncclSuccess;
}

/* One whose kernel has ended, or a new one. */
static ncclResult_t slab_take(struct device_comm *comm, size_t bytes, struct cuda_slab **result) {
  const uint64_t ended = __atomic_load_n(&comm->cells->ended, __ATOMIC_ACQUIRE);
  for (struct cuda_slab *slab = comm->slabs; slab != NULL; slab = slab->next) {
    if (slab->number > ended || slab->bytes < bytes) continue;
    *result = slab;
    return ncclSuccess;
  }
  return slab_create(comm, bytes, result);
}

/* ---- binding ---- */

/* Only plain allocations of cudaMalloc are mapped where a peer's kernel can store into them. */
static bool output_in_reach(const void *out) {
  struct cudaPointerAttributes attributes;
  if (out == NULL) return false;
  if (cudaPointerGetAttributes(&attributes, out) != cudaSuccess) {
    cudaGetLastError();
    return false;
  }
  return attributes.type == cudaMemoryTypeDevice && cuda_memory_is_plain(out);
}

static void bind_ends(struct device_comm *comm, struct bound_work *bound) {
  struct work *work = &bound->work;
  for (uint32_t i = 0; i < work->recv_count; i++) {
    struct cuda_conn *conn =
        cuda_conn_find(comm, work->recv_peer[i], work->channel_index, work->conn_index, false);
    bound->recv_fifo[i] = (struct fifo *)conn->fifo;
    bound->recv_buffer[i] = conn->buffer[work->proto];
  }
  for (uint32_t i = 0; i < work->send_count; i++) {
    struct cuda_conn *conn =
        cuda_conn_find(comm, work->send_peer[i], work->channel_index, work->conn_index, true);
    bound->send_fifo[i] = (struct fifo *)conn->fifo;
    bound->send_buffer[i] = conn->buffer[work->proto];
  }
}

/* One array for all plans of the rank: the ring's order never changes. */
static ncclResult_t bind_ring(struct device_comm *comm, struct work *work) {
  void *ranks = NULL;
  if (work->ring_ranks == NULL) return ncclSuccess;
  if (comm->ring_ranks == NULL) {
    const size_t bytes = comm->config.rank_count * sizeof *comm->ring_ranks;
    TRY(cuda_zeroed_host(bytes, &ranks));
    memcpy(ranks, work->ring_ranks, bytes);
    comm->ring_ranks = (uint32_t *)ranks;
  }
  work->ring_ranks = comm->ring_ranks;
  return ncclSuccess;
}

static ncclResult_t bind_plan(struct device_comm *comm, const struct plan *plan, uint8_t *data) {
  struct bound_work *works = (struct bound_work *)data;
  const void *asked = NULL;
  bool reached = false;
  for (uint32_t i = 0; i < plan->work_count; i++) {
    struct bound_work *bound = &works[i];
    memset(bound, 0, sizeof *bound);
    bound->work = plan->works[i];
    bound->buffers = plan->buffers[i];
    if ((bound->work.flags & WORK_DIRECT_RECV) && (asked == NULL || asked != bound->buffers.out)) {
      asked = bound->buffers.out;
      reached = output_in_reach(asked);
    }
    if ((bound->work.flags & WORK_DIRECT_RECV) && !reached) bound->work.flags |= WORK_OUTPUT_HIDDEN;
    TRY(bind_ring(comm, &bound->work));
    bind_ends(comm, bound);
  }
  if (plan->batch_count > 0)
    memcpy(data + plan->work_count * sizeof *works, plan->batches, plan->batch_count * sizeof *plan->batches);
  return ncclSuccess;
}

static uint32_t plan_blocks(const struct plan *plan, uint16_t *first_batch) {
  uint32_t block_count = 0;
  for (uint32_t b = 0; b < plan->batch_count; b++)
    if (b == 0 || plan->batches[b].channel_index != plan->batches[b - 1].channel_index)
      first_batch[block_count++] = (uint16_t)b;
  first_batch[block_count] = (uint16_t)plan->batch_count;
  return block_count;
}

/* ---- order ---- */

/* Runs the kernel on the first stream after everything that came before on all of them. */
static int launch_join(struct device_comm *comm, const device_stream *streams, uint32_t stream_count,
                       bool before) {
  const cudaStream_t first = (cudaStream_t)streams[0];
  for (uint32_t i = 1; i < stream_count; i++) {
    const cudaStream_t other = (cudaStream_t)streams[i];
    int error = cudaEventRecord(comm->join, before ? other : first);
    if (error == 0) error = cudaStreamWaitEvent(before ? first : other, comm->join, 0);
    if (error != 0) return error;
  }
  return 0;
}

/* After the rank's launches that were made outside of this stream's capture, and those of the same capture.
 */
static int launch_order(struct device_comm *comm, cudaStream_t stream, unsigned long long graph_id) {
  if (graph_id == 0 && comm->launches == 0 && comm->graph_id == 0) return 0;
  if (graph_id == 0) return cudaStreamWaitEvent(stream, comm->serial, 0);
  if (comm->graph_id == graph_id) return cudaStreamWaitEvent(stream, comm->captured, 0);
  return cudaStreamWaitEvent(stream, comm->serial, cudaEventWaitExternal);
}

static int launch_note_end(struct device_comm *comm, cudaStream_t stream, unsigned long long graph_id) {
  if (graph_id == 0) return cudaEventRecord(comm->serial, stream);
  comm->graph_id = graph_id;
  const cudaError_t error = cudaEventRecordWithFlags(comm->serial, stream, cudaEventRecordExternal);
  return error != cudaSuccess ? error : cudaEventRecord(comm->captured, stream);
}

static int launch_enqueue(struct device_comm *comm, const struct launch_large *launch, size_t plan_bytes,
                          uint32_t block_count, const device_stream *streams, uint32_t stream_count,
                          unsigned long long graph_id) {
  const cudaStream_t stream = (cudaStream_t)streams[0];
  int error = launch_join(comm, streams, stream_count, true);
  if (error == 0) error = launch_order(comm, stream, graph_id);
  if (error == 0) error = step_kernel_launch(launch, plan_bytes, block_count, stream);
  if (error == 0) error = launch_note_end(comm, stream, graph_id);
  if (error == 0) error = launch_join(comm, streams, stream_count, false);
  return error;
}

/* ---- launch ---- */

static void launch_fill(struct device_comm *comm, const struct plan *plan,
                        struct launch_arguments *arguments) {
  arguments->data = NULL;
  arguments->batches_offset = plan->work_count * (uint32_t)sizeof(struct bound_work);
  arguments->depth = SLICES_IN_FLIGHT;
  arguments->cells = comm->cells;
  arguments->failed = comm->world->failed;
  arguments->blocks_ended = comm->blocks_ended;
  arguments->limits = plan->limits;
}

/* Enqueueing is not locked: it waits where a stream's queue is full, for kernels that may wait for another
 * thread's. */
static ncclResult_t launch_plan(struct device_comm *comm, const struct plan *plan,
                                const device_stream *streams, uint32_t stream_count) {
  struct launch_large launch; /* only what the plan fills is ever read */
  struct launch_arguments *arguments = &launch.arguments;
  struct cuda_slab *slab = NULL;
  unsigned long long graph_id = 0;
  size_t bytes = plan->work_count * sizeof(struct bound_work) + plan->batch_count * sizeof *plan->batches;
  TRY(cuda_result(cuda_capture_info((cudaStream_t)streams[0], &graph_id), "asking a stream for its capture"));
  launch_fill(comm, plan, arguments);
  const uint32_t block_count = plan_blocks(plan, arguments->first_batch);
  if (block_count == 0) return ncclSuccess;
  if (bytes > sizeof launch.plan) {
    TRY(slab_take(comm, bytes, &slab));
    arguments->data = slab->data;
    bytes = 0;
  }
  os_mutex_lock(&cuda_mutex);
  const ncclResult_t bound = bind_plan(comm, plan, slab != NULL ? slab->data : (uint8_t *)launch.plan);
  os_mutex_unlock(&cuda_mutex);
  TRY(bound);
  arguments->number = graph_id == 0 ? comm->launches + 1 : 0;
  TRY(cuda_result(launch_enqueue(comm, &launch, bytes, block_count, streams, stream_count, graph_id),
                  "launching a kernel"));
  if (graph_id == 0) comm->launches += 1;
  if (slab != NULL) slab->number = graph_id == 0 ? comm->launches : SLAB_OF_GRAPH;
  return ncclSuccess;
}

ncclResult_t cuda_launch(struct device_comm *comm, const struct plan *plan, const device_stream *streams,
                         uint32_t stream_count) {
  const struct cuda_scope scope = cuda_scope_enter(comm->config.device_index);
  const ncclResult_t result = launch_plan(comm, plan, streams, stream_count);
  cuda_scope_leave(&scope);
  return result;
}
