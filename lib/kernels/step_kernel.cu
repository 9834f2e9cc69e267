/* step_kernel.cu: the kernel's entry: one block a channel, which runs its batches in order, each batch's
 * works as lanes over the shared executors. It instantiates every iterator and both executors, so that a
 * change to lib/schedule or lib/protocol that a GPU cannot compile fails the build. It promises the
 * emulator's results. It knows nothing of how memory was mapped: the host puts addresses into the arguments.
 */
#include <cuda_runtime.h>

#include "protocol/run.h"

#include "backends/cuda/launch.h"

/* A batch in shared memory. */
struct block {
  struct lane lanes[PLAN_BATCH_WORKS_MAX];
  bool stopped; /* by an error or an abort: later batches do not run */
};

__shared__ struct block block;
extern __shared__ uint64_t block_works[]; /* struct bound_work, as many as the batch has */

PRIM_FN void link_bind(struct link *link, struct fifo *fifo, uint8_t *buffer, uint32_t peer, uint8_t proto,
                       const struct plan_limits *limits) {
  link->fifo = fifo;
  link->buffer = buffer;
  link->slots = limits->slots;
  link->step_bytes = limits->step_bytes[proto];
  link->peer = peer;
}

PRIM_FN void lane_bind(struct lane *lane, const struct launch_arguments *arguments,
                       const struct bound_work *bound) {
  const struct work *work = &bound->work;
  for (uint32_t i = 0; i < work->recv_count; i++)
    link_bind(&lane->recv[i], bound->recv_fifo[i], bound->recv_buffer[i], work->recv_peer[i], work->proto,
              &arguments->limits);
  for (uint32_t i = 0; i < work->send_count; i++)
    link_bind(&lane->send[i], bound->send_fifo[i], bound->send_buffer[i], work->send_peer[i], work->proto,
              &arguments->limits);
  lane->depth = (uint8_t)arguments->depth;
  lane->flag_bits = (uint8_t)arguments->limits.flag_bits;
  lane->group_lines = work->proto == PROTO_LL ? PRIM_FRAGMENT_LINES * PRIM_WORKERS : PRIM_WORKERS / 2;
  lane_open(lane, work, bound->buffers.in, bound->buffers.out);
}

/* Notes the first lane that found that the ranks do not agree; true when there is one. */
PRIM_FN bool batch_report(const struct lane *lanes, uint32_t lane_count,
                          const struct launch_arguments *arguments) {
  for (uint32_t i = 0; i < lane_count; i++) {
    const struct lane *lane = &lanes[i];
    struct launch_error *error = &arguments->cells->errors[lane->work->channel_index];
    if (lane->error == LANE_OK) continue;
    error->peer = lane->mismatch_peer;
    error->func = lane->work->func;
    error->op_sequence = lane->work->op_sequence;
    error->expected_bytes = lane->expected_bytes;
    error->found_bytes = lane->found_bytes;
    error->error = lane->error;
    __threadfence_system();
    *(volatile int *)&arguments->cells->failed = 1;
    *(volatile int *)arguments->failed = 1;
    return true;
  }
  return false;
}

/* The leader's part of a batch. */
PRIM_FN void batch_lead(const struct launch_arguments *arguments, uint32_t work_count) {
  const struct bound_work *works = (const struct bound_work *)block_works;
  struct prim prim = {&arguments->cells->abort, arguments->failed, 0, false};
  prim_team.move = 0;
  prim_team.command_count = 0;
  prim_team.loaded = prim_team.stores = false;
  for (uint32_t i = 0; i < work_count; i++) lane_bind(&block.lanes[i], arguments, &works[i]);
  batch_run(block.lanes, work_count, &prim);
  block.stopped = batch_report(block.lanes, work_count, arguments) || prim.aborted;
  prim_dismiss();
}

/* All threads: the works travel over a slow bus once. */
PRIM_FN void batch_fetch(const uint8_t *works, uint32_t work_count) {
  const uint64_t *words = (const uint64_t *)works;
  for (uint32_t i = threadIdx.x; i < work_count * (uint32_t)sizeof(struct bound_work) / 8; i += blockDim.x)
    block_works[i] = words[i];
}

/* A block counts itself; nobody waits for the sum to arrive. */
PRIM_FN void launch_begin(const struct launch_arguments *arguments) {
  if (threadIdx.x == 0 && arguments->from_graph)
    atomicAdd((unsigned long long *)&arguments->counts->graph_started, 1ull);
}

/* Behind a barrier: what the block's threads wrote comes before the count. */
PRIM_FN void launch_end(const struct launch_arguments *arguments) {
  struct launch_counts *counts = arguments->counts;
  if (threadIdx.x != 0) return;
  __threadfence();
  atomicAdd((unsigned long long *)(arguments->from_graph ? &counts->graph_ended : &counts->plain_ended),
            1ull);
}

/* Thread 0 asks both flags at once, over a slow bus; the answer is for all. */
PRIM_FN bool launch_stopped(const struct launch_arguments *arguments) {
  bool stopped = false;
  if (threadIdx.x == 0) {
    const int abort = prim_flag(&arguments->cells->abort), failed = prim_flag(arguments->failed);
    stopped = abort != 0 || failed != 0;
  }
  return __syncthreads_or(stopped);
}

PRIM_FN void launch_run(const struct launch_arguments *arguments, const uint8_t *data) {
  const struct plan_batch *batches = (const struct plan_batch *)(data + arguments->batches_offset);
  const uint32_t end = arguments->first_batch[blockIdx.x + 1];
  launch_begin(arguments);
  bool stopped = launch_stopped(arguments);
  for (uint32_t index = arguments->first_batch[blockIdx.x]; index < end && !stopped; index++) {
    const struct plan_batch *batch = &batches[index];
    batch_fetch(data + (size_t)batch->first_work * sizeof(struct bound_work), batch->work_count);
    __syncthreads();
    if (threadIdx.x == 0) batch_lead(arguments, batch->work_count);
    else prim_serve();
    __syncthreads();
    stopped = block.stopped;
    __syncthreads();
  }
  launch_end(arguments);
}

PRIM_FN const uint8_t *launch_data(const struct launch_arguments *arguments, const uint64_t *plan) {
  return arguments->data != 0 ? arguments->data : (const uint8_t *)plan;
}

extern "C" __global__ void __launch_bounds__(PRIM_THREADS)
    tutti_step_kernel(const __grid_constant__ struct launch_small launch) {
  launch_run(&launch.arguments, launch_data(&launch.arguments, launch.plan));
}

extern "C" __global__ void __launch_bounds__(PRIM_THREADS)
    tutti_step_kernel_large(const __grid_constant__ struct launch_large launch) {
  launch_run(&launch.arguments, launch_data(&launch.arguments, launch.plan));
}

extern "C" int step_kernel_launch(const struct launch_large *launch, size_t plan_bytes, uint32_t block_count,
                                  void *stream) {
  void *parameters[] = {(void *)launch};
  const void *kernel = plan_bytes <= LAUNCH_SMALL_BYTES ? (const void *)tutti_step_kernel
                                                        : (const void *)tutti_step_kernel_large;
  return cudaLaunchKernel(kernel, dim3(block_count), dim3(PRIM_THREADS), parameters,
                          PLAN_BATCH_WORKS_MAX * sizeof(struct bound_work), (cudaStream_t)stream);
}

static int kernel_load(const void *kernel) {
  struct cudaFuncAttributes attributes;
  const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
  if (error != cudaSuccess) return error;
  return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                              PLAN_BATCH_WORKS_MAX * sizeof(struct bound_work));
}

extern "C" int step_kernel_load(void) {
  const int error = kernel_load((const void *)tutti_step_kernel);
  return error != 0 ? error : kernel_load((const void *)tutti_step_kernel_large);
}

extern "C" size_t step_kernel_fifo_bytes(void) { return sizeof(struct fifo); }
