/* step_kernel.cu: the kernel's entry: one block a channel, which runs its batches in order, each batch's
 * works as lanes over the shared executors. It instantiates every iterator and both executors, so that a
 * change to lib/schedule or lib/protocol that a GPU cannot compile fails the build. It promises the same
 * results as the emulator's threads mode; it is not fast yet. It knows nothing of how memory was mapped:
 * the host puts addresses into the arguments. */
#include "protocol/run.h"
#include "schedule/plan.h"

#define STEP_KERNEL_THREADS 128

/* A rank's ends of connections for one work, in the order of its links. */
struct step_kernel_ends {
  struct fifo *recv_fifo[STEP_LINKS_MAX], *send_fifo[STEP_LINKS_MAX];
  uint8_t *recv_buffer[STEP_LINKS_MAX], *send_buffer[STEP_LINKS_MAX];   /* of the work's protocol */
};

/* A lane that could not go on: what struct lane says about it. */
struct step_kernel_error {
  uint32_t error, channel_index, peer;   /* enum lane_error */
  uint64_t op_sequence, expected_bytes, found_bytes;
};

struct step_kernel_arguments {
  const struct work *works;
  const struct plan_buffers *buffers;    /* by work */
  const struct step_kernel_ends *ends;   /* by work */
  const struct plan_batch *batches;
  const uint32_t *first_batch;           /* by block, and one behind the last */
  const int *abort_flag;
  struct step_kernel_error *errors;      /* by block */
  struct plan_limits limits;
  uint32_t depth;                        /* slices in flight, 1..LANE_DEPTH_MAX */
};

PRIM_FN void link_bind(struct link *link, struct fifo *fifo, uint8_t *buffer, uint32_t peer, uint8_t proto,
                       const struct plan_limits *limits) {
  link->fifo = fifo;
  link->buffer = buffer;
  link->slots = limits->slots;
  link->step_bytes = limits->step_bytes[proto];
  link->peer = peer;
}

PRIM_FN void lane_bind(struct lane *lane, const struct step_kernel_arguments *arguments,
                       uint32_t work_index) {
  const struct work *work = &arguments->works[work_index];
  const struct step_kernel_ends *ends = &arguments->ends[work_index];
  for (uint32_t i = 0; i < work->recv_count; i++)
    link_bind(&lane->recv[i], ends->recv_fifo[i], ends->recv_buffer[i], work->recv_peer[i], work->proto,
              &arguments->limits);
  for (uint32_t i = 0; i < work->send_count; i++)
    link_bind(&lane->send[i], ends->send_fifo[i], ends->send_buffer[i], work->send_peer[i], work->proto,
              &arguments->limits);
  lane->depth = (uint8_t)arguments->depth;
  lane->flag_bits = (uint8_t)arguments->limits.flag_bits;
  lane->group_lines = work->proto == PROTO_LL ? PRIM_FRAGMENT_LINES * blockDim.x : blockDim.x / 2;
  lane_open(lane, work, arguments->buffers[work_index].in, arguments->buffers[work_index].out);
}

/* Notes the first lane that found that the ranks do not agree; true when there is one. */
PRIM_FN bool batch_report(const struct lane *lanes, uint32_t lane_count, struct step_kernel_error *error) {
  for (uint32_t i = 0; i < lane_count; i++) {
    const struct lane *lane = &lanes[i];
    if (lane->error == LANE_OK) continue;
    error->channel_index = lane->work->channel_index;
    error->peer = lane->mismatch_peer;
    error->op_sequence = lane->work->op_sequence;
    error->expected_bytes = lane->expected_bytes;
    error->found_bytes = lane->found_bytes;
    error->error = lane->error;
    return true;
  }
  return false;
}

extern "C" __global__ void __launch_bounds__(STEP_KERNEL_THREADS)
tutti_step_kernel(const __grid_constant__ struct step_kernel_arguments arguments) {
  struct lane lanes[PLAN_BATCH_WORKS_MAX];
  struct prim prim = {arguments.abort_flag, threadIdx.x, blockDim.x};
  const uint32_t end = arguments.first_batch[blockIdx.x + 1];
  for (uint32_t index = arguments.first_batch[blockIdx.x]; index < end; index++) {
    const struct plan_batch *batch = &arguments.batches[index];
    for (uint32_t i = 0; i < batch->work_count; i++) lane_bind(&lanes[i], &arguments, batch->first_work + i);
    batch_run(lanes, batch->work_count, &prim);
    if (batch_report(lanes, batch->work_count, &arguments.errors[blockIdx.x]) || prim_aborted(&prim)) return;
  }
}
