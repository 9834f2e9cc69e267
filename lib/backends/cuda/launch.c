/* launch.c: a plan on its way to the GPU. Small plans travel with the kernel's arguments; larger ones lie in
 * memory of the host that the kernel reads once (slab.c). order.c keeps the order of a rank's kernels.
 * Promises that nothing here waits for a kernel, so that one thread may launch for several devices, and that
 * a launch takes no lock that another rank's launch takes. */
#include <stdio.h>
#include <string.h>

#include "backends/cuda/device.h"
#include "base/log.h"

#define SLICES_IN_FLIGHT 2

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

/* ---- launch ---- */

/* One kernel, on its way. */
struct launch_way {
  struct device_comm *comm;
  const device_stream *streams;
  uint32_t stream_count;
  struct cuda_capture capture;
};

static void launch_fill(struct device_comm *comm, const struct plan *plan, bool from_graph,
                        struct launch_arguments *arguments) {
  arguments->data = NULL;
  arguments->batches_offset = plan->work_count * (uint32_t)sizeof(struct bound_work);
  arguments->depth = SLICES_IN_FLIGHT;
  arguments->from_graph = from_graph;
  arguments->counts = comm->order.counts;
  arguments->cells = comm->cells;
  arguments->failed = comm->world->failed;
  arguments->limits = plan->limits;
}

/* The rank's own table: peers that connect to it meanwhile are kept out, its peers' launches are not. */
static ncclResult_t launch_bind(struct device_comm *comm, const struct plan *plan, uint8_t *data) {
  os_mutex_lock(&comm->conns_mutex);
  const ncclResult_t result = bind_plan(comm, plan, data);
  os_mutex_unlock(&comm->conns_mutex);
  return result;
}

/* Enqueueing is not locked: it waits where a stream's queue is full, for kernels that may wait for another
 * thread's. */
static ncclResult_t launch_enqueue(const struct launch_way *way, const struct launch_large *launch,
                                   size_t plan_bytes, uint32_t block_count) {
  struct cuda_order *order = &way->comm->order;
  TRY(cuda_result(cuda_order_before(order, way->streams, way->stream_count, &way->capture),
                  "ordering a kernel"));
  TRY(cuda_result(step_kernel_launch(launch, plan_bytes, block_count, way->streams[0]),
                  "launching a kernel"));
  return cuda_result(cuda_order_after(order, way->streams, way->stream_count, &way->capture, block_count),
                     "ordering what follows a kernel");
}

static ncclResult_t launch_by_slab(const struct launch_way *way, const struct plan *plan, size_t bytes,
                                   struct launch_large *launch, uint32_t block_count) {
  struct cuda_slab *slab = NULL;
  TRY(cuda_slab_take(way->comm, bytes, &slab));
  launch->arguments.data = slab->data;
  const ncclResult_t bound = launch_bind(way->comm, plan, slab->data);
  if (bound != ncclSuccess) {
    cuda_slab_put(slab);
    return bound;
  }
  if (way->capture.id != 0) {
    TRY(cuda_slab_leave(slab, way->capture.graph));
    return launch_enqueue(way, launch, 0, block_count);
  }
  const ncclResult_t result = launch_enqueue(way, launch, 0, block_count);
  cuda_slab_lend(way->comm, slab, (cudaStream_t)way->streams[0]);
  return result;
}

/* Allocates, and asks events, also while this thread captures: within a scope. */
static ncclResult_t launch_in_scope(const struct launch_way *way, const struct plan *plan, size_t bytes,
                                    struct launch_large *launch, uint32_t block_count) {
  const struct cuda_scope scope = cuda_scope_enter(way->comm->config.device_index);
  ncclResult_t result;
  if (bytes > sizeof launch->plan) {
    result = launch_by_slab(way, plan, bytes, launch, block_count);
  } else {
    result = launch_bind(way->comm, plan, (uint8_t *)launch->plan);
    if (result == ncclSuccess) result = launch_enqueue(way, launch, bytes, block_count);
  }
  cuda_scope_leave(&scope);
  return result;
}

static ncclResult_t launch_plan(struct device_comm *comm, const struct plan *plan,
                                const device_stream *streams, uint32_t stream_count) {
  struct launch_large launch; /* only what the plan fills is ever read */
  struct launch_way way = {comm, streams, stream_count, {0, NULL}};
  const size_t bytes =
      plan->work_count * sizeof(struct bound_work) + plan->batch_count * sizeof *plan->batches;
  TRY(cuda_result(cuda_order_capture((cudaStream_t)streams[0], &way.capture),
                  "asking a stream for its capture"));
  launch_fill(comm, plan, way.capture.id != 0, &launch.arguments);
  const uint32_t block_count = plan_blocks(plan, launch.arguments.first_batch);
  if (block_count == 0) return ncclSuccess;
  if (way.capture.id != 0 || bytes > sizeof launch.plan)
    return launch_in_scope(&way, plan, bytes, &launch, block_count);
  TRY(launch_bind(comm, plan, (uint8_t *)launch.plan));
  return launch_enqueue(&way, &launch, bytes, block_count);
}

/* Not a whole scope: the common launch does nothing that a capture forbids. */
ncclResult_t cuda_launch(struct device_comm *comm, const struct plan *plan, const device_stream *streams,
                         uint32_t stream_count) {
  const int device_index = (int)comm->config.device_index;
  int device_before = device_index;
  cudaGetDevice(&device_before);
  if (device_before != device_index) cudaSetDevice(device_index);
  const ncclResult_t result = launch_plan(comm, plan, streams, stream_count);
  if (device_before != device_index) cudaSetDevice(device_before);
  return result;
}
