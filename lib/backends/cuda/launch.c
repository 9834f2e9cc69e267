/* launch.c: launches plans on the GPU. Small plans are passed in the kernel's arguments; larger ones are in
 * host memory that the kernel reads once (slab.c). launch_order.c orders a rank's kernels. It promises that
 * nothing here waits for a kernel, so that one thread may launch for several devices, and that a launch takes
 * no lock that another rank's launch takes. */
#include <stdio.h>
#include <string.h>

#include "backends/cuda/ipc.h"
#include "backends/cuda/vmm.h"
#include "base/log.h"
#include "kernels/warps.h"
#include "schedule/algo.h"

/* One kernel launch in preparation. */
struct launch_setup {
  struct device_comm *comm;
  const device_stream *streams;
  uint32_t stream_count;
  struct cuda_capture capture;
  struct cuda_kernel kernel;
  size_t plan_bytes; /* of a plan that is passed in the kernel's arguments */
  struct own_copy aside;
};

/* ---- binding ---- */

/* Plain allocations by cudaMalloc, and those of ncclMemAlloc, are mapped where every peer's kernel can access
 * them. */
static bool memory_in_reach(const void *memory) {
  struct vmm_memory own;
  struct cudaPointerAttributes attributes;
  if (cudaPointerGetAttributes(&attributes, memory) != cudaSuccess) {
    cudaGetLastError();
    return false;
  }
  return attributes.type == cudaMemoryTypeDevice &&
         (cuda_memory_is_plain(memory) || cuda_memory_find_own(memory, &own));
}

/* Only within a host may the slots be the sender's. */
static void bind_link(struct bound_link *link, const struct cuda_conn *conn, const struct work *work) {
  link->sender = (struct fifo_sender *)conn->sender;
  link->receiver = (struct fifo_receiver *)conn->receiver;
  link->buffer = conn->buffer[conn->net ? work->proto : work_slots(work)];
}

static void bind_end(struct device_comm *comm, const struct work *work, uint32_t index, bool sends,
                     struct bound_link *link) {
  const uint32_t peer = (sends ? work->send_peer : work->recv_peer)[index];
  bind_link(link, cuda_conn_find(comm, peer, work->channel_index, work->conn_index, sends), work);
}

/* Number of the work's links after the first of each side. */
static uint32_t further_count(const struct work *work) {
  return (work->recv_count > 1 ? work->recv_count - 1u : 0) +
         (work->send_count > 1 ? work->send_count - 1u : 0);
}

/* Entries of a work in the launch's further links: its links, then the shifts of its offers, if it makes any,
 * and of its input's address, if it publishes that. */
static uint32_t further_entries(const struct work *work) {
  const uint32_t links = further_count(work), entry_words = sizeof(struct bound_further) / sizeof(uint64_t);
  uint32_t words = 0;
  if (work->flags & WORK_DIRECT_RECV) words += work->recv_count;
  if (work->flags & WORK_SHOWS_INPUT) words += work->send_count;
  const bool apart = links > 0 || (work->flags & WORK_SHOWS_INPUT) != 0;
  return links + (apart ? (words + entry_words - 1) / entry_words : 0);
}

static void bind_further(struct device_comm *comm, const struct work *work, struct bound_further *next) {
  for (uint32_t i = 1; i < work->recv_count; i++, next++) {
    bind_end(comm, work, i, false, &next->link);
    next->peer = work->recv_peer[i];
  }
  for (uint32_t i = 1; i < work->send_count; i++, next++) {
    bind_end(comm, work, i, true, &next->link);
    next->peer = work->send_peer[i];
  }
}

static void bind_ends(struct device_comm *comm, const struct work *work, struct bound_work *bound) {
  if (work->recv_count > 0) bind_end(comm, work, 0, false, &bound->recv);
  if (work->send_count > 0) bind_end(comm, work, 0, true, &bound->send);
  bound->recv_peer = work->recv_peer[0];
  bound->send_peer = work->send_peer[0];
}

/* Offsets of the parts of a launch's data: works, batches, further links. */
static size_t data_batches_offset(const struct plan *plan) {
  return plan->work_count * sizeof(struct bound_work);
}

static size_t data_further_offset(const struct plan *plan) {
  return data_batches_offset(plan) + plan->batch_count * sizeof(struct bound_batch);
}

static size_t data_bytes(const struct plan *plan) {
  size_t bytes = data_further_offset(plan);
  for (uint32_t i = 0; i < plan->work_count; i++)
    bytes += further_entries(&plan->works[i]) * sizeof(struct bound_further);
  return bytes;
}

static ncclResult_t ring_copy(struct device_comm *comm, const uint32_t *host, struct cuda_ring *ring) {
  const size_t bytes = comm->config.rank_count * sizeof *host;
  const struct cuda_scope scope = cuda_scope_enter(comm->config.device_index);
  cuda_lock();
  ncclResult_t result = ncclSuccess;
  if (ring->block.address == NULL) result = cuda_arena_take(comm->config.device_index, bytes, &ring->block);
  cuda_unlock();
  if (result == ncclSuccess) result = cuda_memory_write(ring->block.address, host, bytes);
  cuda_scope_leave(&scope);
  if (result == ncclSuccess) ring->ranks = (uint32_t *)ring->block.address;
  return result;
}

/* Between nodes each channel may have a different ring order; it never changes. Without the rank's lock, as
 * copying takes cuda_mutex. */
static ncclResult_t ring_prepare(struct device_comm *comm, const struct work *work) {
  const uint32_t *host = work->ring_ranks;
  struct cuda_ring *ring = &comm->rings[work->channel_index];
  if (host == NULL) return ncclSuccess;
  for (uint32_t channel = 0; channel < PLAN_CHANNELS_MAX && ring->ranks == NULL; channel++) {
    const struct cuda_ring *other = &comm->rings[channel];
    if (other->ranks != NULL && memcmp(other->host, host, comm->config.rank_count * sizeof *host) == 0)
      ring->ranks = other->ranks;
  }
  if (ring->ranks == NULL) TRY(ring_copy(comm, host, ring));
  ring->host = host;
  return ncclSuccess;
}

/* Messages over networks: their index in the batch selects one of the rank's slot pools. */
static void bind_pools(struct device_comm *comm, const struct plan *plan, struct bound_work *works) {
  if (!comm->hosted) return;
  for (uint32_t b = 0; b < plan->batch_count; b++) {
    const struct plan_batch *batch = &plan->batches[b];
    for (uint32_t place = 0; place < batch->work_count; place++) {
      struct bound_work *bound = &works[batch->first_work + place];
      struct work *work = (struct work *)(void *)bound->work;
      const bool sends = work->send_count > 0;
      const uint32_t peer = sends ? bound->send_peer : bound->recv_peer;
      if (work->conn_index != CONN_MESSAGE || work->send_count + work->recv_count == 0) continue;
      if (!cuda_conn_find(comm, peer, work->channel_index, CONN_MESSAGE, sends)->pooled) continue;
      work->flags |= WORK_POOLED;
      if (work->proto == PROTO_LL) continue;
      const struct arena_block *slots = (const struct arena_block *)map_find(
          &comm->slots, backend_slots_key(work->channel_index, place, sends));
      (sends ? &bound->send : &bound->recv)->buffer = (uint8_t *)slots->address;
    }
  }
}

/* Caches results, because the works of a plan use few buffers: whether all of the process's devices reach the
 * last one, and the peers' shifts of it. */
#define SHIFTS_KEPT 16u
struct reach_asked {
  bool captured;
  const void *memory;
  bool reached;
  struct {
    const void *memory;
    size_t bytes;
    uint32_t peer;
    bool found;
    uint64_t shift;
  } shifts[SHIFTS_KEPT]; /* by peer modulo SHIFTS_KEPT */
};

static bool memory_reached(struct reach_asked *asked, const void *memory) {
  if (asked->memory == NULL || asked->memory != memory) asked->reached = memory_in_reach(memory);
  asked->memory = memory;
  return asked->reached;
}

/* Memory of cuMemCreate that peers of this process reach is not shown in graphs: a replay may find other
 * memory at its addresses, to which they have no access. */
static bool shift_ask(struct device_comm *comm, const struct cuda_conn *conn, bool sends, const void *memory,
                      size_t bytes, uint32_t peer, bool captured, uint64_t *shift) {
  if (conn->remote != NULL) return cuda_region_shift(comm, memory, bytes, peer, shift);
  return !captured && cuda_access_reaches(comm, memory, bytes, conn->devices[sends ? 0 : 1]);
}

static bool shift_of_peer(struct device_comm *comm, const struct cuda_conn *conn, bool sends,
                          const void *memory, size_t bytes, uint32_t peer, struct reach_asked *asked,
                          uint64_t *shift) {
  const uint32_t i = peer % SHIFTS_KEPT;
  if (asked->shifts[i].memory != memory || asked->shifts[i].bytes != bytes || asked->shifts[i].peer != peer) {
    asked->shifts[i].memory = memory;
    asked->shifts[i].bytes = bytes;
    asked->shifts[i].peer = peer;
    asked->shifts[i].shift = 0;
    asked->shifts[i].found =
        shift_ask(comm, conn, sends, memory, bytes, peer, asked->captured, &asked->shifts[i].shift);
  }
  *shift = asked->shifts[i].shift;
  return asked->shifts[i].found;
}

/* The shift from an address of this rank's memory to that of a link's peer; false: it must stay hidden. */
static bool shift_find(struct device_comm *comm, const struct work *work, uint32_t index, bool sends,
                       const void *memory, struct reach_asked *asked, uint64_t *shift) {
  const uint32_t peer = (sends ? work->send_peer : work->recv_peer)[index];
  const struct cuda_conn *conn = cuda_conn_find(comm, peer, work->channel_index, work->conn_index, sends);
  const size_t bytes = sends ? work_in_bytes(work) : work_out_bytes(work);
  *shift = 0;
  if (memory == NULL) return false;
  return (conn->remote == NULL && memory_reached(asked, memory)) ||
         shift_of_peer(comm, conn, sends, memory, bytes, peer, asked, shift);
}

/* Either all links of a work offer its output, or none. */
static void bind_offers(struct device_comm *comm, struct work *work, const void *out,
                        struct reach_asked *asked, struct bound_work *bound, struct bound_further *further) {
  const uint32_t links = further_count(work);
  uint64_t *shifts = further_entries(work) > 0 ? (uint64_t *)(void *)(further + links) : &bound->further;
  for (uint32_t i = 0; i < work->recv_count; i++)
    if (!shift_find(comm, work, i, false, out, asked, &shifts[i])) work->flags |= WORK_OUTPUT_HIDDEN;
}

/* Each link publishes its input independently: the peer reads it in place, or in a slot. */
static void bind_inputs(struct device_comm *comm, const struct work *work, const void *in,
                        struct reach_asked *asked, struct bound_further *further) {
  uint64_t *shifts = (uint64_t *)(void *)(further + further_count(work));
  if (work->flags & WORK_DIRECT_RECV) shifts += work->recv_count;
  for (uint32_t i = 0; i < work->send_count; i++)
    if (!shift_find(comm, work, i, true, in, asked, &shifts[i])) shifts[i] = LAUNCH_HIDDEN;
}

/* Along a chain with direct stores a rank begins when the next one has offered its output, so no data moves
 * before all ranks have begun. Short parts would be in the slots by then. */
#define CHAIN_DIRECT_BYTES (16u << 20)

static bool work_goes_by_slots(const struct work *work) {
  return work->func == FUNC_BROADCAST && work->algo == ALGO_RING &&
         work->part_count * work->element_bytes < CHAIN_DIRECT_BYTES;
}

/* Kernels whose works run one after another may have too few warps to divide. */
static void bind_batches(const struct plan *plan, const struct bound_work *works, uint32_t warp_count,
                         struct bound_batch *batches) {
  for (uint32_t b = 0; b < plan->batch_count; b++) {
    const struct plan_batch *batch = &plan->batches[b];
    const struct work *members[PLAN_BATCH_WORKS_MAX];
    batches[b] = (struct bound_batch){.first_work = batch->first_work, .work_count = batch->work_count};
    for (uint32_t i = 0; i < batch->work_count; i++)
      members[i] = (const struct work *)(const void *)works[batch->first_work + i].work;
    if (warp_count >= warps_needed(members, batch->work_count, WARPS_LEAST))
      warps_divide(members, batch->work_count, warp_count, batches[b].warps);
  }
}

static void bind_plan(const struct launch_setup *setup, const struct plan *plan, uint8_t *data) {
  struct device_comm *comm = setup->comm;
  const bool aside = setup->aside.bytes > 0;
  struct bound_work *works = (struct bound_work *)data;
  struct bound_further *further = (struct bound_further *)(data + data_further_offset(plan));
  uint64_t further_used = 0;
  struct reach_asked out_asked, in_asked;
  memset(&out_asked, 0, sizeof out_asked);
  memset(&in_asked, 0, sizeof in_asked);
  out_asked.captured = in_asked.captured = setup->capture.id != 0;
  for (uint32_t i = 0; i < plan->work_count; i++) {
    const void *out = plan->buffers[i].out;
    struct work work = plan->works[i];
    work.op_sequence += plan->first_sequence;
    if (aside && own_copy_takes(&work)) own_copy_leave(&work);
    if (work_goes_by_slots(&work)) work.flags &= ~(uint32_t)(WORK_DIRECT_SEND | WORK_DIRECT_RECV);
    works[i].further = further_entries(&work) > 0 ? further_used : 0;
    if (work.flags & WORK_DIRECT_RECV)
      bind_offers(comm, &work, out, &out_asked, &works[i], further + further_used);
    if (work.flags & WORK_SHOWS_INPUT)
      bind_inputs(comm, &work, plan->buffers[i].in, &in_asked, further + further_used);
    if (plan->buffers[i].scalar != NULL) {
      work.flags |= WORK_SCALAR;
      work.op_arg = (uintptr_t)plan->buffers[i].scalar;
    }
    if (work.ring_ranks != NULL) work.ring_ranks = comm->rings[work.channel_index].ranks;
    memset(&works[i].recv, 0, 2 * sizeof works[i].recv);
    memcpy(works[i].work, &work, sizeof works[i].work);
    works[i].in = plan->buffers[i].in;
    works[i].out = plan->buffers[i].out;
    bind_ends(comm, &work, &works[i]);
    bind_further(comm, &work, further + further_used);
    further_used += further_entries(&work);
  }
  bind_pools(comm, plan, works);
  bind_batches(plan, works, setup->kernel.warp_count,
               (struct bound_batch *)(void *)(data + data_batches_offset(plan)));
}

/* Bytes of a channel's part from which on copy engines are faster than instructions. The limit is higher
 * along a chain, where short parts are dominated by the time of the hops. */
#define BULK_PART_BYTES (1u << 20)
#define BULK_CHAIN_BYTES (4u << 20)

static bool work_adds(const struct work *work) {
  return work->func == FUNC_ALL_REDUCE || work->func == FUNC_REDUCE_SCATTER || work->func == FUNC_REDUCE;
}

/* Long copies between GPUs that reach each other's memory; host memory was not measured. Sums are faster if
 * instructions load their sources. */
static bool plan_is_bulk(const struct device_comm *comm, const struct plan *plan) {
  size_t most = 0;
  for (uint32_t i = 0; i < plan->work_count; i++) {
    if (work_adds(&plan->works[i])) return false;
    const size_t bytes = plan->works[i].part_count * plan->works[i].element_bytes;
    const bool chain = plan->works[i].func == FUNC_BROADCAST;
    if (bytes >= (chain ? BULK_CHAIN_BYTES : BULK_PART_BYTES)) most = size_max(most, bytes);
  }
  return comm->overlaps && plan->limits.direct && !comm->hosted && !comm->shm && most > 0;
}

/* Most bytes of a block's chunk for a kernel of single passes; 0: it is not one. */
static size_t kernel_once_bytes(uint32_t kernel) {
  switch (kernel) {
    case LAUNCH_KERNEL_ONCE: return (LAUNCH_ONCE_WARPS - 1) * WARP_LL_BYTES;
    case LAUNCH_KERNEL_ONCE_LINES: return (LAUNCH_ONCE_LINES_WARPS - 1) * LAUNCH_ONCE_LINES * WARP_LL_BYTES;
    case LAUNCH_KERNEL_ONCE_LINKS: return (LAUNCH_ONCE_LINKS_WARPS - 1) * WARP_LL_BYTES;
    default: return 0;
  }
}

static bool work_has_few_links(const struct work *work) {
  return work->send_count <= LAUNCH_ONCE_LINKS && work->recv_count <= LAUNCH_ONCE_LINKS;
}

/* The kernel of a direct collective over LL: by its number of links, whether its lines fit in a single pass
 * over a block's threads, and whether its sum, if any, is of a type common in training. */
static uint32_t work_direct_kernel(const struct work *work) {
  const bool plain = work->dtype == ncclFloat || work->dtype == ncclBfloat16 || work->dtype == ncclHalf;
  const bool few = work_has_few_links(work);
  const bool once = work->part_count <= work->chunk_count * algo_loop_chunks(work);
  const size_t bytes = work_chunk_bytes(work);
  const uint32_t looped = few ? LAUNCH_KERNEL_DIRECT : LAUNCH_KERNEL_DIRECT_LINKS;
  uint32_t kernel = few ? LAUNCH_KERNEL_ONCE : LAUNCH_KERNEL_ONCE_LINKS;
  if (work->op != OP_SUM || (work_adds(work) && !plain) || !once) return looped;
  if (few && bytes > kernel_once_bytes(kernel)) kernel = LAUNCH_KERNEL_ONCE_LINES;
  return bytes > kernel_once_bytes(kernel) ? looped : kernel;
}

/* The kernel that suits all works. */
static uint32_t plan_direct_kernel(const struct plan *plan) {
  const uint32_t kernel = work_direct_kernel(&plan->works[0]);
  uint32_t differ = 0;
  bool few = true, lines = true; /* one or several lines a thread */
  for (uint32_t i = 0; i < plan->work_count; i++) {
    const uint32_t other = work_direct_kernel(&plan->works[i]);
    few = few && work_has_few_links(&plan->works[i]);
    lines = lines && (other == LAUNCH_KERNEL_ONCE || other == LAUNCH_KERNEL_ONCE_LINES);
    differ += other != kernel;
  }
  if (differ == 0) return kernel;
  if (lines) return LAUNCH_KERNEL_ONCE_LINES;
  return few ? LAUNCH_KERNEL_DIRECT : LAUNCH_KERNEL_DIRECT_LINKS;
}

/* The kernel of the protocol that all works use, or the mixed one; for works other than rings and messages,
 * the kernels with more than one link per side. The kernel of direct collectives over Simple frees an
 * operation's last slots when the next operation begins, so it is not used if a proxy would wait for them.
 * The kernels of direct collectives have no reduction to a root that has a shard, as TUTTI_SUM_ORDER=rank
 * makes it. */
static uint32_t plan_kernel(const struct device_comm *comm, const struct plan *plan) {
  const uint32_t proto = plan->works[0].proto;
  bool alike = true, linked = false, direct = true, adds = false;
  for (uint32_t i = 0; i < plan->work_count; i++) {
    const uint8_t family = algo_family(&plan->works[i]);
    alike = alike && plan->works[i].proto == proto;
    linked = linked || (family != FAMILY_RING && family != FAMILY_P2P);
    adds = adds || work_adds(&plan->works[i]);
    direct = direct && family == FAMILY_DIRECT &&
             (plan->works[i].func != FUNC_REDUCE || direct_is_one_hop_reduce(&plan->works[i]) ||
              direct_is_apart(&plan->works[i]));
  }
  if (direct && alike && proto == PROTO_LL) return plan_direct_kernel(plan);
  if (direct && alike && proto == PROTO_SIMPLE && !comm->hosted)
    return adds && comm->config.rank_count == 2 ? LAUNCH_KERNEL_DIRECT_PAIR : LAUNCH_KERNEL_DIRECT_SIMPLE;
  if (linked) return alike && proto == PROTO_LL ? LAUNCH_KERNEL_LL_LINKS : LAUNCH_KERNEL_LINKS;
  if (alike && proto == PROTO_SIMPLE && plan_is_bulk(comm, plan)) return LAUNCH_KERNEL_BULK;
  return alike ? proto : LAUNCH_KERNEL_MIXED;
}

static bool kernel_takes_long_plan(uint32_t kernel) {
  return kernel == LAUNCH_KERNEL_DIRECT_SIMPLE || kernel == LAUNCH_KERNEL_DIRECT_PAIR;
}

static uint32_t kernel_warps_most(uint32_t kernel) {
  switch (kernel) {
    case LAUNCH_KERNEL_DIRECT: return LAUNCH_DIRECT_WARPS;
    case LAUNCH_KERNEL_DIRECT_LINKS: return LAUNCH_DIRECT_LINKS_WARPS;
    case LAUNCH_KERNEL_DIRECT_SIMPLE:
    case LAUNCH_KERNEL_DIRECT_PAIR: return LAUNCH_DIRECT_SIMPLE_WARPS;
    case LAUNCH_KERNEL_ONCE: return LAUNCH_ONCE_WARPS;
    case LAUNCH_KERNEL_ONCE_LINES: return LAUNCH_ONCE_LINES_WARPS;
    case LAUNCH_KERNEL_ONCE_LINKS: return LAUNCH_ONCE_LINKS_WARPS;
    default: return LAUNCH_WARPS_MAX;
  }
}

/* Warps of a block, whose batches run one after another. Direct collectives over LL have no issue warp, and
 * those of a batch run one after another. */
static uint32_t plan_warps(const struct plan *plan, uint32_t kernel) {
  const uint32_t limit = kernel_warps_most(kernel);
  const bool looped = kernel == LAUNCH_KERNEL_DIRECT || kernel == LAUNCH_KERNEL_DIRECT_LINKS;
  const bool direct = looped || kernel_once_bytes(kernel) > 0;
  size_t most = 1;
  for (uint32_t b = 0; b < plan->batch_count; b++) {
    const struct plan_batch *batch = &plan->batches[b];
    size_t warps = 0;
    for (uint32_t i = 0; i < batch->work_count; i++) {
      const size_t own = warps_useful(&plan->works[batch->first_work + i]);
      warps = direct ? size_max(warps, own - 1) : warps + own;
    }
    most = size_max(most, warps);
  }
  return (uint32_t)size_min(most, limit);
}

static uint32_t plan_blocks(const struct plan *plan, uint16_t *first_batch) {
  uint32_t block_count = 0;
  for (uint32_t b = 0; b < plan->batch_count; b++)
    if (b == 0 || plan->batches[b].channel_index != plan->batches[b - 1].channel_index)
      first_batch[block_count++] = (uint16_t)b;
  first_batch[block_count] = (uint16_t)plan->batch_count;
  return block_count;
}

/* Blocks of a cluster. Stores of 32 blocks to another GPU reach 356 GB/s on H200, in clusters of four 369.
 * Short operations gain nothing. */
static uint32_t kernel_cluster(const struct device_comm *comm, const struct cuda_kernel *kernel,
                               bool captured) {
  switch (kernel->kernel) {
    case PROTO_SIMPLE:
    case LAUNCH_KERNEL_MIXED:
    case LAUNCH_KERNEL_LINKS:
    case LAUNCH_KERNEL_BULK:
    case LAUNCH_KERNEL_DIRECT_SIMPLE:
    case LAUNCH_KERNEL_DIRECT_PAIR: return cuda_budget_cluster(comm, kernel->block_count, captured);
    default: return 1;
  }
}

/* Fills the last cluster with blocks that have no batch. */
static void kernel_fill_clusters(struct cuda_kernel *kernel, uint16_t *first_batch) {
  const uint32_t last = kernel->block_count;
  kernel->block_count = (uint32_t)size_round_up(last, kernel->cluster);
  for (uint32_t block = last + 1; block <= kernel->block_count; block++)
    first_batch[block] = first_batch[last];
}

/* ---- launch ---- */

/* What writes a scalar has ended before it is read. */
static bool plan_has_scalar(const struct plan *plan) {
  for (uint32_t i = 0; i < plan->work_count; i++)
    if (plan->buffers[i].scalar != NULL) return true;
  return false;
}

static void launch_fill(struct device_comm *comm, const struct plan *plan, bool from_graph,
                        struct launch_arguments *arguments) {
  arguments->data = NULL;
  arguments->batches_offset = (uint32_t)data_batches_offset(plan);
  arguments->further_offset = (uint32_t)data_further_offset(plan);
  arguments->from_graph = from_graph;
  arguments->hosted = comm->hosted;
  arguments->counts = comm->order.counts;
  arguments->control = comm->control;
  arguments->failed = comm->world->failed;
  arguments->limits = plan->limits;
}

/* Locks the rank's own table: this excludes peers that connect meanwhile, but not peers' launches. */
static ncclResult_t launch_bind(const struct launch_setup *setup, const struct plan *plan, uint8_t *data) {
  for (uint32_t i = 0; i < plan->work_count; i++) TRY(ring_prepare(setup->comm, &plan->works[i]));
  cuda_conns_lock(setup->comm);
  setup->comm->regions.bound = setup->comm->regions.generation;
  bind_plan(setup, plan, data);
  const ncclResult_t result =
      setup->capture.id != 0 ? cuda_regions_leave(setup->comm, plan, setup->capture.graph) : ncclSuccess;
  cuda_conns_unlock(setup->comm);
  return result;
}

/* ---- the hook that each start calls ---- */

static void CUDART_CB hook_start(void *argument) {
  const struct launch_hook *hook = (const struct launch_hook *)argument;
  hook->start(hook->argument);
}

static void CUDART_CB hook_drop(void *argument) {
  struct launch_hook *hook = (struct launch_hook *)argument;
  hook->drop(hook->argument);
  os_free(hook);
}

/* A graph has a host node before the kernel, and the hook lives as long as the graph. */
static ncclResult_t hook_capture(const struct launch_hook *hook, cudaStream_t stream, cudaGraph_t graph) {
  cudaUserObject_t object = NULL;
  struct launch_hook *kept = (struct launch_hook *)os_alloc(sizeof *kept);
  int error = kept == NULL ? (int)cudaErrorMemoryAllocation : 0;
  if (error == 0) {
    *kept = *hook;
    error = cudaUserObjectCreate(&object, kept, hook_drop, 1, cudaUserObjectNoDestructorSync);
  }
  if (error != 0) {
    os_free(kept);
    hook->drop(hook->argument);
    return cuda_result(error, "noting what a graph's kernel needs of the host");
  }
  error = cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove);
  if (error != 0) cudaUserObjectRelease(object, 1); /* drops it */
  else error = cudaLaunchHostFunc(stream, hook_start, kept);
  return cuda_result(error, "giving a graph what its kernel needs of the host");
}

/* What a launch puts on its first stream: a kernel, a kernel with a copy beside it, or only copies. */
struct launch_content {
  const struct cuda_kernel *kernel;
  const union launch_any *launch;
  const struct own_copy *aside;
  const struct plan *plan; /* of copies */
};
typedef ncclResult_t (*content_enqueue)(struct device_comm *comm, const struct launch_content *content,
                                        cudaStream_t stream);

/* The events are the first thing that a graph of another kind refuses: the body of a conditional node has no
 * such nodes. */
static ncclResult_t launch_before(struct device_comm *comm, uint32_t block_count,
                                  const device_stream *streams, uint32_t stream_count,
                                  const struct cuda_capture *capture) {
  const int ordered = cuda_order_before(&comm->order, streams, stream_count, capture);
  if (ordered == cudaErrorNotSupported && capture->id != 0) {
    cudaGetLastError();
    return log_fail(
        ncclInvalidUsage,
        "comm %s: rank %u: the graph that the stream captures into takes no nodes of events, which "
        "order its kernels with others (the body of a conditional node is such a graph); capture "
        "collectives into the graph around it",
        comm->name, comm->config.rank);
  }
  TRY(cuda_result(ordered, "ordering a launch"));
  return cuda_result(cuda_budget_before(comm, block_count, (cudaStream_t)streams[0], capture),
                     "ordering a kernel with those of other communicators");
}

/* The only place that orders what a rank launches. */
static ncclResult_t enqueue_in_order(struct device_comm *comm, content_enqueue enqueue,
                                     const struct launch_content *content, const device_stream *streams,
                                     uint32_t stream_count, const struct cuda_capture *capture) {
  const uint32_t block_count = content->kernel != NULL ? content->kernel->block_count : 0;
  TRY(launch_before(comm, block_count, streams, stream_count, capture));
  const ncclResult_t result = enqueue(comm, content, (cudaStream_t)streams[0]);
  if (result != ncclSuccess) {
    cuda_budget_withdraw(comm);
    return result;
  }
  return cuda_result(cuda_order_after(&comm->order, streams, stream_count, capture, block_count),
                     "ordering what follows a launch");
}

static ncclResult_t kernel_enqueue(struct device_comm *comm, const struct launch_content *content,
                                   cudaStream_t stream) {
  const struct cuda_kernel *kernel = content->kernel;
  (void)comm;
  return cuda_result(step_kernel_launch(kernel->kernel, content->launch, kernel->block_count,
                                        kernel->warp_count, kernel->cluster, kernel->overlaps, stream),
                     "launching a kernel");
}

static ncclResult_t kernel_and_copy_enqueue(struct device_comm *comm, const struct launch_content *content,
                                            cudaStream_t stream) {
  TRY(cuda_result(cuda_side_begin(&comm->side, content->aside, stream), "copying beside a kernel"));
  TRY(kernel_enqueue(comm, content, stream));
  return cuda_result(cuda_side_end(&comm->side, stream), "waiting for a copy beside a kernel");
}

ncclResult_t cuda_kernel_enqueue(struct device_comm *comm, const struct cuda_kernel *kernel,
                                 const union launch_any *launch, device_stream stream,
                                 const struct cuda_capture *capture) {
  const struct launch_content content = {.kernel = kernel, .launch = launch};
  return enqueue_in_order(comm, kernel_enqueue, &content, &stream, 1, capture);
}

static ncclResult_t launch_enqueue(const struct launch_setup *setup, const union launch_any *launch) {
  const struct launch_content content = {&setup->kernel, launch, &setup->aside, NULL};
  return enqueue_in_order(setup->comm, setup->aside.bytes > 0 ? kernel_and_copy_enqueue : kernel_enqueue,
                          &content, setup->streams, setup->stream_count, &setup->capture);
}

static ncclResult_t launch_by_slab(const struct launch_setup *setup, const struct plan *plan, size_t bytes,
                                   union launch_any *launch) {
  struct cuda_slab *slab = NULL;
  TRY(cuda_slab_take(setup->comm, bytes, &slab));
  launch->arguments.data = slab->memory.data;
  const ncclResult_t bound = launch_bind(setup, plan, slab->memory.data);
  if (bound != ncclSuccess) {
    cuda_slab_put(slab);
    return bound;
  }
  if (setup->capture.id != 0) {
    TRY(cuda_slab_leave(slab, setup->capture.graph));
    return launch_enqueue(setup, launch);
  }
  const ncclResult_t result = launch_enqueue(setup, launch);
  cuda_slab_hold(setup->comm, slab, (cudaStream_t)setup->streams[0]);
  return result;
}

/* Allocates, and queries events, also while this thread captures: within a scope. */
static ncclResult_t launch_in_scope(const struct launch_setup *setup, const struct plan *plan, size_t bytes,
                                    union launch_any *launch) {
  const struct cuda_scope scope = cuda_scope_enter(setup->comm->config.device_index);
  ncclResult_t result;
  if (bytes > setup->plan_bytes) {
    result = launch_by_slab(setup, plan, bytes, launch);
  } else {
    result = launch_bind(setup, plan, (uint8_t *)launch->longer.plan);
    if (result == ncclSuccess) result = launch_enqueue(setup, launch);
  }
  cuda_scope_leave(&scope);
  return result;
}

/* Enters a scope only if needed. */
static ncclResult_t launch_bound(const struct launch_setup *setup, const struct plan *plan, size_t bytes,
                                 union launch_any *launch) {
  if (setup->capture.id != 0 || setup->aside.bytes > 0 || bytes > setup->plan_bytes)
    return launch_in_scope(setup, plan, bytes, launch);
  TRY(launch_bind(setup, plan, (uint8_t *)launch->longer.plan));
  return launch_enqueue(setup, launch);
}

/* A launch outside a graph starts once, so the hook is called now for the proxy that sends its data. */
static ncclResult_t launch_hooked(struct launch_setup *setup, const struct plan *plan, size_t bytes,
                                  union launch_any *launch) {
  const struct launch_hook *hook = plan->hook;
  if (setup->capture.id != 0) {
    TRY(hook_capture(hook, (cudaStream_t)setup->streams[0], setup->capture.graph));
    return launch_in_scope(setup, plan, bytes, launch);
  }
  hook->start(hook->argument);
  const ncclResult_t result = launch_bound(setup, plan, bytes, launch);
  hook->drop(hook->argument);
  return result;
}

/* With more blocks the kernel has bandwidth to spare for copies within the device, and a copy engine would
 * only compete with it; but a root that is apart loads for its copy what it has loaded to send. A capture
 * would include the side stream. */
#define ASIDE_BLOCKS_MAX 8u

static bool launch_copies_aside(const struct launch_setup *setup, const struct plan *plan) {
  const bool few = setup->kernel.block_count <= ASIDE_BLOCKS_MAX;
  return (few || direct_is_apart(&plan->works[0])) && setup->capture.id == 0;
}

/* ---- ranks on one device ---- */

/* Notes the launch; returns the rank that has launched the same operation on the same stream, or the own
 * one. */
static uint32_t world_note(struct cuda_world *world, const struct world_launch *launch) {
  uint32_t rank = launch->rank;
  os_mutex_lock(&world->launches_mutex);
  for (uint32_t i = 0; i < WORLD_LAUNCHES && i < world->launch_count; i++) {
    const struct world_launch *other = &world->launches[i];
    if (other->stream == launch->stream && other->sequence == launch->sequence) rank = other->rank;
  }
  world->launches[world->launch_count++ % WORLD_LAUNCHES] = *launch;
  os_mutex_unlock(&world->launches_mutex);
  return rank;
}

/* A collective on one stream for two ranks never ends: the second kernel would begin after the first one,
 * which waits for it. */
static ncclResult_t streams_are_apart(struct device_comm *comm, const struct plan *plan,
                                      const struct launch_setup *setup) {
  struct world_launch launch = {0, plan->first_sequence, comm->config.rank};
  if (!plan->limits.shares_device || setup->capture.id != 0 || plan->work_count == 0) return ncclSuccess;
  if (plan->works[0].conn_index == CONN_MESSAGE) return ncclSuccess;
  TRY(cuda_result(cuda_order_stream_key((cudaStream_t)setup->streams[0], &launch.stream),
                  "asking for a stream's id"));
  const uint32_t other = world_note(comm->world, &launch);
  if (other == comm->config.rank) return ncclSuccess;
  *(volatile int *)comm->world->failed = 1;
  return log_fail(
      ncclInvalidUsage,
      "comm %s: rank %u and rank %u, both on device %u, launch an operation on the same stream: the "
      "kernel of rank %u would wait for that of rank %u to end, which waits for it; give each rank a "
      "stream of its own (the legacy stream is one for all ranks of a device, a thread's default "
      "stream for all that the thread drives)",
      comm->name, other, comm->config.rank, comm->config.device_index, comm->config.rank, other);
}

/* ---- a rank alone ---- */

/* Nothing of the plan needs a kernel: it copies, and no operator scales its input. */
static bool plan_is_copies(const struct plan *plan) {
  for (uint32_t i = 0; i < plan->work_count; i++)
    if (plan->works[i].func != FUNC_COPY || plan->works[i].op == OP_PRE_MUL_SUM) return false;
  return true;
}

/* In the order of the calls, as the kernel's batches would be; what channels share in one piece. */
static ncclResult_t copies_enqueue(struct device_comm *comm, const struct launch_content *content,
                                   cudaStream_t stream) {
  const struct plan *plan = content->plan;
  int error = 0;
  (void)comm;
  for (uint32_t i = 0; i < plan->work_count && error == 0; i++) {
    const struct work *work = &plan->works[i];
    const size_t bytes = work->part_offset == 0 ? work->count * work->element_bytes : 0;
    if (bytes > 0)
      error = cudaMemcpyAsync(plan->buffers[i].out, plan->buffers[i].in, bytes, cudaMemcpyDefault, stream);
  }
  return cuda_result(error, "copying the data of a communicator of one rank");
}

static ncclResult_t launch_copies(const struct launch_setup *setup, const struct plan *plan) {
  const struct launch_content content = {.plan = plan};
  return enqueue_in_order(setup->comm, copies_enqueue, &content, setup->streams, setup->stream_count,
                          &setup->capture);
}

/* Ranks that share a device compare their streams at each launch (streams_are_apart). */
static bool launch_may_repeat(const struct launch_setup *setup, const struct plan *plan, size_t bytes) {
  return setup->capture.id == 0 && setup->stream_count == 1 && setup->aside.bytes == 0 &&
         bytes <= setup->plan_bytes && !plan->limits.shares_device && !plan_has_scalar(plan);
}

static ncclResult_t launch_plan(struct device_comm *comm, const struct plan *plan,
                                const device_stream *streams, uint32_t stream_count) {
  union launch_any launch; /* only the part that the plan fills is read */
  struct launch_setup setup = {.comm = comm, .streams = streams, .stream_count = stream_count};
  const size_t bytes = data_bytes(plan);
  const int asked = cuda_order_capture((cudaStream_t)streams[0], &setup.capture);
  ncclResult_t result = cuda_result(asked, "asking a stream for its capture");
  if (result == ncclSuccess) result = streams_are_apart(comm, plan, &setup);
  if (result != ncclSuccess && plan->hook != NULL) plan->hook->drop(plan->hook->argument);
  TRY(result);
  if (comm->config.rank_count == 1 && plan_is_copies(plan)) return launch_copies(&setup, plan);
  launch_fill(comm, plan, setup.capture.id != 0, &launch.arguments);
  struct cuda_kernel *kernel = &setup.kernel;
  kernel->block_count = plan_blocks(plan, launch.arguments.first_batch);
  if (kernel->block_count == 0) return ncclSuccess;
  kernel->kernel = plan_kernel(comm, plan);
  /* A kernel that waits for its turn takes multiprocessors that another rank's kernel may need. */
  kernel->overlaps = comm->overlaps && !plan->limits.shares_device && !plan_has_scalar(plan);
  kernel->warp_count = plan_warps(plan, kernel->kernel);
  kernel->cluster = kernel_cluster(comm, kernel, setup.capture.id != 0);
  kernel_fill_clusters(kernel, launch.arguments.first_batch);
  setup.plan_bytes =
      kernel_takes_long_plan(kernel->kernel) ? sizeof launch.longer.plan : sizeof launch.usual.plan;
  if (launch_copies_aside(&setup, plan)) own_copy_find(plan, &setup.aside);
  if (setup.capture.id != 0) result = cuda_graph_use(comm, &setup.capture);
  if (result != ncclSuccess && plan->hook != NULL) plan->hook->drop(plan->hook->argument);
  TRY(result);
  if (plan->hook != NULL) return launch_hooked(&setup, plan, bytes, &launch);
  const bool repeats = launch_may_repeat(&setup, plan, bytes);
  if (repeats && cuda_launch_rebound(comm, plan, streams[0], &setup.capture, &result)) return result;
  TRY(launch_bound(&setup, plan, bytes, &launch));
  if (repeats) cuda_launch_keep(comm, plan, kernel, &launch, bytes);
  return ncclSuccess;
}

static ncclResult_t launch_on_device(struct device_comm *comm, const struct plan *plan,
                                     const device_stream *streams, uint32_t stream_count) {
  int device_before = -1;
  if (cudaGetDevice(&device_before) == cudaSuccess && device_before == (int)comm->config.device_index)
    return launch_plan(comm, plan, streams, stream_count);
  const bool entered = cuda_device_enter(comm->config.device_index);
  const ncclResult_t result = launch_plan(comm, plan, streams, stream_count);
  if (entered) cuda_device_leave();
  return result;
}

/* Not a whole scope, because the common launch does nothing that a capture forbids. */
ncclResult_t cuda_launch(struct device_comm *comm, const struct plan *plan, const device_stream *streams,
                         uint32_t stream_count) {
  __atomic_fetch_add(&comm->launching, 1, __ATOMIC_ACQ_REL);
  const ncclResult_t result = launch_on_device(comm, plan, streams, stream_count);
  if (result == ncclSuccess) cuda_record_launch(comm, plan->first_sequence);
  __atomic_fetch_sub(&comm->launching, 1, __ATOMIC_ACQ_REL);
  return result;
}
