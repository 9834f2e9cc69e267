/* block.h: the code of a GPU block, compiled once per protocol (kernel_*.cu). A block is one channel: it runs
 * the channel's batches in order and gives each work of a batch to a warp group, which runs it as a lane over
 * the shared executors. It instantiates every iterator and the executors, so a change to lib/schedule or
 * lib/protocol that does not compile for GPUs fails the build. It gives the emulator's results. It does not
 * know how memory was mapped: the host puts addresses into the arguments. */
#ifndef TUTTI_KERNELS_BLOCK_H
#define TUTTI_KERNELS_BLOCK_H

#include "protocol/run.h"

#include "kernels/launch.h"
#include "kernels/compute_warp.h"

static_assert(offsetof(struct fifo_sender, head) == 0 && offsetof(struct fifo_receiver, tail) == 0 &&
                  offsetof(struct fifo_receiver, announced) == LAUNCH_ANNOUNCED_OFFSET &&
                  offsetof(struct fifo_receiver, source) == LAUNCH_SOURCE_OFFSET &&
                  offsetof(struct fifo_sender, offer) == LAUNCH_OFFER_OFFSET &&
                  offsetof(struct fifo_sender, send_step) == LAUNCH_STEP_OFFSET &&
                  offsetof(struct fifo_sender, read_step) == LAUNCH_READ_OFFSET &&
                  offsetof(struct fifo_receiver, recv_step) == LAUNCH_STEP_OFFSET,
              "the host reads and writes them for a proxy");
static_assert(sizeof(struct fifo_sender) == LAUNCH_END_BYTES &&
                  sizeof(struct fifo_receiver) == LAUNCH_END_BYTES,
              "the host allocates what the kernel uses");

static_assert(PRIM_WARPS_MAX == LAUNCH_WARPS_MAX, "the host counts warps as the kernel does");
static_assert(2 * PLAN_BATCH_WORKS_MAX <= PRIM_WARPS_MAX,
              "a warp group has a warp that leads and one that moves");

__shared__ struct bound_work block_works[PLAN_BATCH_WORKS_MAX];

#ifdef BLOCK_LANES_SHARED
/* The lanes of issue and commit warps. They are not in local memory, because the data that is moved would
 * evict it from the first-level cache. All threads of a warp write the same values. */
__shared__ struct lane block_lanes[PRIM_WARPS_MAX];
#endif

#define BOUND_WORDS ((uint32_t)sizeof(struct bound_work) / 8) /* of all that a work is bound to */

/* Word `i` of the works of a batch. A scalar in memory is read here: when the launch begins, all that
 * precedes it on the stream has ended, as such launches do not overlap. */
PRIM_FN uint64_t bound_work_word(const uint64_t *words, uint32_t i) {
  if (i % BOUND_WORDS != offsetof(struct work, op_arg) / 8) return words[i];
  const struct work *work = (const struct work *)(words + i / BOUND_WORDS * BOUND_WORDS);
  if ((work->flags & WORK_SCALAR) == 0) return words[i];
  return element_load((const uint8_t *)(uintptr_t)words[i], work->element_bytes);
}

PRIM_FN const struct work *bound_work_of(const struct bound_work *bound) {
  return (const struct work *)bound->work;
}

/* Records for the host what the work's lane waits for, at index `place` of its batch. Called by one thread of
 * the warp. */
PRIM_FN void work_note_wait(const struct bound_work *bound, const int *abort_flag, uint32_t place) {
  if (prim_lane() != 0) return;
  const struct work *work = bound_work_of(bound);
  struct rank_control *control = (struct rank_control *)(uintptr_t)abort_flag;
  struct launch_wait *wait = &control->waits[work->channel_index * PLAN_BATCH_WORKS_MAX + place];
  prim_store_pair(wait->work, bound->work[0], bound->work[1]);
  prim_store_pair(&wait->sequence, work->op_sequence + 1,
                  bound->recv_peer | (uint64_t)bound->send_peer << 32);
}

PRIM_FN void prim_note_wait(const struct prim *prim) {
  const uint32_t place = (uint32_t)(prim->queue - prim_shared.queues);
  if (prim->issues) work_note_wait(&block_works[place], prim->abort_flag, place);
}

PRIM_FN void link_bind(struct link *link, const struct bound_link *end, uint32_t peer, uint8_t proto,
                       const struct plan_limits *limits) {
  link->sender = end->sender;
  link->receiver = end->receiver;
  link->buffer = end->buffer;
  link->slots = limits->slots;
  link->step_bytes = limits->step_bytes[proto];
  link->peer = peer;
}

/* True if the work has links or shifts that are stored after the batches: `further` is their offset. */
PRIM_FN bool work_has_further(const struct work *work) {
  return work->recv_count > 1 || work->send_count > 1 || (work->flags & WORK_SHOWS_INPUT) != 0;
}

/* Each link shows the work's input, or hides it, by itself. */
PRIM_FN void lane_bind_input(struct lane *lane, const struct work *work, const uint64_t *shifts) {
#if PRIM_ALGOS > 0
  if ((work->flags & WORK_SHOWS_INPUT) == 0) return;
  for (uint32_t i = 0; i < work->send_count && i < PRIM_LINKS; i++) {
    lane->send[i].shows = shifts[i] != LAUNCH_HIDDEN;
    lane->send[i].offer_shift = shifts[i];
  }
#else
  (void)lane, (void)work, (void)shifts;
#endif
}

/* Binds the links after the first of each side, and the shifts of all. */
PRIM_FN void lane_bind_further(struct lane *lane, const struct bound_further *further,
                               const struct bound_work *bound, const struct plan_limits *limits) {
  const struct work *work = bound_work_of(bound);
  const uint8_t proto = lane_proto(work);
  const struct bound_further *next = further + bound->further;
  for (uint32_t i = 1; i < work->recv_count && i < PRIM_LINKS; i++, next++)
    link_bind(&lane->recv[i % PRIM_LINKS], &next->link, (uint32_t)next->peer, proto, limits);
  for (uint32_t i = 1; i < work->send_count && i < PRIM_LINKS; i++, next++)
    link_bind(&lane->send[i % PRIM_LINKS], &next->link, (uint32_t)next->peer, proto, limits);
  if (!work_has_further(work)) return;
  const uint64_t *shifts = (const uint64_t *)next;
  if ((work->flags & WORK_DIRECT_RECV) != 0) {
    for (uint32_t i = 0; i < work->recv_count && i < PRIM_LINKS; i++) lane->recv[i].offer_shift = shifts[i];
    shifts += work->recv_count;
  }
  lane_bind_input(lane, work, shifts);
}

PRIM_FN void lane_bind(struct lane *lane, struct prim *prim, const struct launch_arguments *arguments,
                       const struct bound_further *further, const struct bound_work *bound) {
  const struct work *work = bound_work_of(bound);
  const uint8_t proto = lane_proto(work);
  lane->recv[0].offer_shift = bound->further;
  if (PRIM_LINKS > 1) lane_bind_further(lane, further, bound, &arguments->limits);
  link_bind(&lane->recv[0], &bound->recv, bound->recv_peer, proto, &arguments->limits);
  link_bind(&lane->send[0], &bound->send, bound->send_peer, proto, &arguments->limits);
  if (proto != PROTO_LL128 && (work->flags & WORK_POOLED) != 0)
    lane->recv[0].step_bytes = lane->send[0].step_bytes = plan_message_step_bytes(&arguments->limits, proto);
  lane->depth = PRIM_DEPTH;
  lane->flag_bits = (uint8_t)arguments->limits.flag_bits;
  lane->group_lines = prim_group_lines(prim, line_kind_of(work));
  lane_open(lane, prim, work, bound->in, bound->out);
}

/* ---- warp groups ---- */

/* LL kernels run short launches. */
PRIM_FN bool launch_is_short(void) {
#ifdef PRIM_PROTO
  return PRIM_PROTO != PROTO_SIMPLE;
#else
  return false;
#endif
}

/* Minimum number of warps of a warp group with separate issue and commit warps. Smaller groups use their
 * warps for moving data, except for short launches. */
#ifndef WARP_GROUP_APART
#define WARP_GROUP_APART 6
#endif

/* Sets up this warp as member `rank` of a warp group of `size` warps that begins with warp `first` of the
 * block. */
PRIM_FN void warp_group_take_part(struct prim *prim, struct compute_warp *compute, uint32_t first,
                                  uint32_t size, uint32_t rank) {
  const bool apart = size >= WARP_GROUP_APART || (size > 2 && launch_is_short());
  prim->first_compute_warp = first + 1;
  prim->compute_warps = apart ? size - 2 : size - 1;
  prim->issues = rank == 0;
  prim->commits = apart ? rank == size - 1 : rank == 0;
  compute->index = (rank - 1) * PRIM_WARP + prim_lane();
  compute->count = prim->compute_warps * PRIM_WARP;
}

/* Returns this warp's work of the batch, or work_count if it has none. */
PRIM_FN uint32_t warp_group_join(struct prim *prim, struct compute_warp *compute,
                                 const struct bound_batch *batch) {
  const uint32_t warp = threadIdx.x / PRIM_WARP, work_count = batch->work_count;
  uint32_t first = 0;
  if (work_count == 1) {
    warp_group_take_part(prim, compute, 0, blockDim.x / PRIM_WARP, warp);
    return 0;
  }
  uint64_t sizes = *(const uint64_t *)batch->warps; /* one read: the batch may be in host memory */
  for (uint32_t i = 0; i < work_count; i++, sizes >>= 8) {
    const uint32_t size = (uint8_t)sizes;
    if (warp < first + size) {
      warp_group_take_part(prim, compute, first, size, warp - first);
      return i;
    }
    first += size;
  }
  return work_count;
}

/* ---- batches ---- */

/* Tells the host that the peer announced another size than this rank has, and aborts the communicator. */
PRIM_FN void launch_mismatch(const struct launch_arguments *arguments, const struct work *work, uint32_t peer,
                             uint64_t expected_bytes, uint64_t found_bytes) {
  struct launch_error *error = &arguments->control->errors[work->channel_index];
  error->peer = peer;
  error->func = work->func;
  error->op_sequence = work->op_sequence;
  error->expected_bytes = expected_bytes;
  error->found_bytes = found_bytes;
  error->error = LANE_SIZE_MISMATCH;
  __threadfence_system();
  *(volatile int *)&arguments->control->failed = 1;
  *(volatile int *)arguments->failed = 1;
}

PRIM_FN void batch_run(const struct launch_arguments *arguments, const struct bound_further *further,
                       const struct bound_batch *batch) {
  struct compute_warp compute;
  struct prim *prim = &compute.prim;
#ifdef BLOCK_LANES_SHARED
  struct lane *lane = &block_lanes[threadIdx.x / PRIM_WARP];
#else
  struct lane own = {}; /* or what a work leaves unset would stay in registers from batch to batch */
  struct lane *lane = &own;
#endif
  prim->abort_flag = &arguments->control->abort;
  prim->failed_flag = arguments->failed;
  prim->issued = prim->done = prim->fenced = prim->finished = prim->looks = 0;
  prim->aborted = false;
  const uint32_t index = warp_group_join(prim, &compute, batch);
  if (index == batch->work_count) return;
  prim->queue = &prim_shared.queues[index];
  if (!prim->issues && !prim->commits) {
    compute_run(&compute);
    return;
  }
  lane_bind(lane, prim, arguments, further, &block_works[index]);
  lane_run(lane, prim);
  if (lane->error != LANE_OK || prim->aborted) *(volatile uint32_t *)&prim_shared.stopped = 1;
  else if (prim->issues && prim->compute_warps > 0) prim_dismiss(prim);
  if (lane->error != LANE_OK && prim->commits && prim_lane() == 0)
    launch_mismatch(arguments, lane->work, lane->mismatch_peer, lane->expected_bytes, lane->found_bytes);
}

/* Called by all threads. */
PRIM_FN void batch_fetch(const struct launch_arguments *arguments, const uint8_t *data,
                         const struct bound_batch *batch) {
  const uint64_t *words = (const uint64_t *)(data + (size_t)batch->first_work * sizeof(struct bound_work));
  uint64_t *works = (uint64_t *)block_works;
  for (uint32_t i = threadIdx.x; i < batch->work_count * BOUND_WORDS; i += blockDim.x)
    works[i] = bound_work_word(words, i);
  if (threadIdx.x < PRIM_WARPS_MAX) prim_shared.done[threadIdx.x] = 0;
  if (threadIdx.x < PLAN_BATCH_WORKS_MAX) prim_shared.queues[threadIdx.x].issued = 0;
}

PRIM_FN void launch_count(uint64_t *count) {
  if (threadIdx.x == 0) atomicAdd((unsigned long long *)count, 1ull);
}

/* Called by one thread. */
PRIM_FN void launch_count_end(const struct launch_arguments *arguments) {
  struct launch_counts *counts = arguments->counts;
  atomicAdd((unsigned long long *)(arguments->from_graph ? &counts->graph_ended : &counts->plain_ended),
            1ull);
}

/* After the last barrier: what the block wrote is visible to readers that wait for the count. Aborted blocks
 * count too. */
PRIM_FN void launch_end(const struct launch_arguments *arguments) {
  if (threadIdx.x != 0) return;
  __threadfence();
  launch_count_end(arguments);
}

/* Lets the stream's next kernel, if it is from this library, start on the device while this one ends; it
 * waits before it touches what this one writes. An LL kernel is short, so it calls this when it begins. */
PRIM_FN void launch_invite_next(void) { prim_launch_dependents(); }

PRIM_FN void launch_await_previous(void) { prim_await_dependencies(); }

PRIM_FN void launch_run(const struct launch *launch) {
  const struct launch_arguments *arguments = &launch->arguments;
  const uint8_t *data = arguments->data != 0 ? arguments->data : (const uint8_t *)launch->plan;
  const struct bound_batch *batches = (const struct bound_batch *)(data + arguments->batches_offset);
  const struct bound_further *further = (const struct bound_further *)(data + arguments->further_offset);
  const uint32_t first = arguments->first_batch[blockIdx.x], end = arguments->first_batch[blockIdx.x + 1];
  if (launch_is_short()) launch_invite_next();
  if (threadIdx.x == 0) prim_shared.stopped = 0;
  if (arguments->from_graph) launch_count(&arguments->counts->graph_started);
  for (uint32_t index = first; index < end; index++) {
    batch_fetch(arguments, data, &batches[index]);
    __syncthreads();
    if (index == first) launch_await_previous();
    if (prim_peek_together(&prim_shared.stopped) == 0) batch_run(arguments, further, &batches[index]);
    if (index + 1 == end && !launch_is_short()) launch_invite_next();
    __syncthreads();
  }
  if (first == end) launch_await_previous();
  launch_end(arguments);
}

#endif
