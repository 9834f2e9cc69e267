/* plan_collective.c: turns collectives into works: in order of decreasing traffic, distributed over the
 * channels with one cursor; adjacent collectives of one kind choose their algorithm together. The user's
 * custom schedule takes precedence over all algorithms. */
#include <string.h>

#include "base/log.h"
#include "core/custom/custom.h"
#include "core/plan/plan_draft.h"
#include "core/plan/rules.h"
#include "core/plan/tune.h"
#include "core/topology/links.h"
#include "schedule/algo.h"

static size_t func_weight(uint8_t func, uint32_t rank_count) {
  switch (func) {
    case FUNC_ALL_REDUCE: return 2;
    case FUNC_ALL_GATHER:
    case FUNC_REDUCE_SCATTER:
    case FUNC_ALL_TO_ALL: return rank_count;
    default: return 1;
  }
}

/* LL lines are half flags and LL is meant for latency: its data counts four times towards the budget. */
#define LL_WEIGHT 4
/* Weight of a fast sum in one hop over LL, twice that of any all-reduce: half as many lines per block arrive
 * sooner. */
#define ONE_HOP_WEIGHT 16

/* Rounded down to the protocol's grain if it is longer than that. */
static size_t chunk_grains(uint8_t proto, size_t bytes) {
  static const size_t grain_bytes[PROTO_COUNT] = {16, 1920, 512};
  return bytes > grain_bytes[proto] ? bytes / grain_bytes[proto] * grain_bytes[proto] : bytes;
}

/* Maximum data bytes of a chunk. */
size_t chunk_data_bytes(const struct plan_limits *limits, uint8_t proto, uint32_t chunk_steps) {
  size_t bytes = (size_t)(limits->step_bytes[PROTO_SIMPLE] - limits->reserved_bytes) * chunk_steps;
  if (proto == PROTO_LL) bytes = limits->step_bytes[PROTO_LL] / 2;
  if (proto == PROTO_LL128) bytes = (size_t)limits->step_bytes[PROTO_LL128] / 128 * 120;
  if (limits->chunk_bytes != 0) bytes = size_min(bytes, limits->chunk_bytes);
  return chunk_grains(proto, bytes);
}

/* Rings in which every rank's data passes every rank: two chunks are in flight at once, in slices. */
static bool work_is_pipelined(const struct work *work) {
  return work->algo == ALGO_RING && (work->func == FUNC_ALL_REDUCE || work->func == FUNC_ALL_GATHER ||
                                     work->func == FUNC_REDUCE_SCATTER);
}

static void work_set_steps(struct work *work, const struct plan_limits *limits) {
  const bool pipelined = work->proto == PROTO_SIMPLE && work_is_pipelined(work);
  work->chunk_steps = (uint8_t)(pipelined ? chunk_steps_of_slots(limits->slots) : 1);
  work->slice_steps = (uint8_t)(work->chunk_steps > 1 ? work->chunk_steps / 2 : 1);
  const size_t bytes = chunk_data_bytes(limits, work->proto, work->chunk_steps);
  work->chunk_count = size_max(1, bytes / work->element_bytes);
}

static bool op_in_place(const struct plan_op *op, const struct plan_request *request,
                        uint32_t element_bytes) {
  const uint8_t *in = (const uint8_t *)op->in, *out = (const uint8_t *)op->out;
  const size_t own = (size_t)request->rank * op->count * element_bytes;
  if (op->func == FUNC_ALL_GATHER) return in == out + own;
  if (op->func == FUNC_REDUCE_SCATTER) return out == in + own;
  return in == out;
}

/* Which links transfer final values: those of an algorithm's second half. */
static uint32_t work_final_flags(const struct work *work) {
  const uint32_t both = WORK_DIRECT_SEND | WORK_DIRECT_RECV;
  if (work->func == FUNC_REDUCE || work->func == FUNC_REDUCE_SCATTER) return 0;
  if (switch_is_algo(work->algo)) return 0; /* a switch has no address of an output */
  if (work->algo == ALGO_TREE)
    return work->role == ROLE_UP ? 0 : work->role == ROLE_DOWN ? both : (uint32_t)WORK_DIRECT_SEND;
  return work->algo == ALGO_DIRECT && work->func == FUNC_ALL_REDUCE ? 0 : both;
}

static bool p2p_domain_shared(const struct plan_request *request, const uint32_t *peers,
                              uint32_t peer_count) {
  const uint32_t *p2p_domains = request->p2p_domains;
  for (uint32_t i = 0; p2p_domains != NULL && i < peer_count; i++)
    if (p2p_domains[peers[i]] != p2p_domains[request->rank]) return false;
  return peer_count > 0;
}

static bool p2p_domains_one(const struct plan_request *request) {
  const uint32_t *p2p_domains = request->p2p_domains;
  for (uint32_t rank = 1; p2p_domains != NULL && rank < request->rank_count; rank++)
    if (p2p_domains[rank] != p2p_domains[0]) return false;
  return true;
}

/* Between CPU cores that share memory, exchanging an address costs more cache misses than copying this many
 * bytes twice. */
#define CORES_DIRECT_BYTES 16384u

/* Direct collectives that add directly from the peers' inputs, if the backend's executors read them. Not for
 * OneShot in place, where the sum would overwrite what others still read. */
static uint32_t work_input_flags(const struct work *work, const struct plan_request *request) {
  const bool in_order =
      work->algo == ALGO_DIRECT && work->func == FUNC_ALL_REDUCE && (work->flags & WORK_IN_PLACE) != 0;
  const bool shown = work->func != FUNC_REDUCE || request->settings.limits.quick_protos == 0;
  const bool apart = (work->flags & WORK_ROOT_APART) != 0;
  const bool reads = func_reduces(work->func) && shown && !in_order && !apart && work->op != OP_PRE_MUL_SUM;
  return reads && tune_shows_inputs(request, work->algo) ? (uint32_t)WORK_SHOWS_INPUT : 0;
}

/* Rings, messages and trees over Simple read slots at their sender if the settings say so: a function of what
 * both ends of each link know. */
uint32_t work_slot_flags(const struct work *work, const struct plan_request *request) {
  const bool reads = request->settings.reads_slots && work->proto == PROTO_SIMPLE &&
                     (work->algo == ALGO_RING || work->algo == ALGO_TREE);
  return reads ? (uint32_t)WORK_READS_SLOTS : 0;
}

/* Final values may be stored directly into a neighbour's output if it is reachable. Both ends of a link must
 * decide equally, and the flags apply to all links of a side: if a side may have several links, only
 * communicators of one P2P domain store directly. Where slots are read at their sender no data is stored over
 * a link. */
uint32_t work_direct_flags(const struct work *work, const struct plan_request *request) {
  const bool one_link = work->algo == ALGO_RING;
  if (!request->settings.limits.direct || work->proto != PROTO_SIMPLE) return 0;
  if ((work->flags & WORK_READS_SLOTS) != 0) return 0;
  if (request->settings.limits.cores && work->count * work->element_bytes < CORES_DIRECT_BYTES) return 0;
  if (!one_link && !p2p_domains_one(request)) return 0;
  return work_input_flags(work, request) |
         (work_final_flags(work) &
          ((p2p_domain_shared(request, work->send_peer, work->send_count) ? (uint32_t)WORK_DIRECT_SEND : 0) |
           (p2p_domain_shared(request, work->recv_peer, work->recv_count) ? (uint32_t)WORK_DIRECT_RECV : 0)));
}

/* GPUs overlap the loops of direct collectives: counters are in flight for as long as a chunk's data. Cores
 * see a counter at once, and would have more slots in their caches. */
static uint32_t work_overlap_flags(const struct work *work, const struct plan_limits *limits) {
  const bool direct = work->algo == ALGO_DIRECT || work->algo == ALGO_TWO_SHOT;
  const bool enough = limits->slots >= DIRECT_OVERLAP_SLOTS * work->chunk_steps;
  if (!direct || !enough || limits->cores || work->proto != PROTO_SIMPLE) return 0;
  return work->part_count > direct_loop_elements(work) ? (uint32_t)WORK_LOOPS_OVERLAP : 0;
}

struct work work_of_task(const struct plan_request *request, const struct task *task) {
  const struct plan_op *op = task->op;
  struct work work;
  memset(&work, 0, sizeof work);
  work.func = op->func;
  work.algo = task->algo;
  work.proto = task->proto;
  work.dtype = op->dtype;
  work.op = op->op;
  work.op_arg = op->op_arg;
  work.element_bytes = (uint8_t)task->element_bytes;
  work.rank = request->rank;
  work.rank_count = request->rank_count;
  work.root = op->peer;
  work.count = op->count;
  work.op_sequence = op->sequence;
  work.flags = work_slot_flags(&work, request);
  if (rules_root_apart(request, op->func, task->algo)) work.flags |= WORK_ROOT_APART;
  if (op_in_place(op, request, task->element_bytes)) work.flags |= WORK_IN_PLACE;
  work_set_steps(&work, &request->settings.limits);
  return work;
}

/* `user`: the work uses the user's memory. */
static ncclResult_t draft_work(struct draft *draft, const struct task *task, const struct work *work,
                               bool user, uint64_t batch_id) {
  TRY(draft_add(draft, work, user ? task->op->in : NULL, user ? task->op->out : NULL, batch_id));
  draft->rows[draft->count - 1].buffers.scalar = task->op->scalar;
  return ncclSuccess;
}

/* A communicator of one rank: the collective is a copy that still applies the operator's stages. */
static ncclResult_t draft_local(struct draft *draft, const struct task *task) {
  const struct plan_op *op = task->op;
  if (op->in == op->out && op->op != OP_PRE_MUL_SUM) return ncclSuccess;
  struct work work = work_of_task(draft->request, task);
  work.func = FUNC_COPY;
  work.algo = ALGO_RING;
  work.proto = PROTO_SIMPLE;
  work.flags = 0;
  work.chunk_steps = work.slice_steps = 1;
  work.part_count = op->count;
  work.chunk_count = op->count;
  return draft_work(draft, task, &work, true, draft->next_batch_id++);
}

/* A chain's first byte passes every rank before the last rank starts, so chunks are a small fraction of a
 * channel's data: between the size at which a step costs as much as its data and the size at which the step's
 * cost is negligible. A GPU's step costs more if it adds; between two GPUs there is but one hop to wait for.
 * Steps that only forward gain nothing below 128 KiB. */
#define CHAIN_CHUNKS 64
#define CHAIN_CHUNKS_GPU_SUM 32
#define CHAIN_CHUNKS_GPU_PAIR 8
#define CHAIN_CHUNK_BYTES_MIN 65536u
#define CHAIN_CHUNK_BYTES_MIN_GPU_COPY 131072u
#define CHAIN_CHUNK_BYTES_MAX 262144u

void work_shorten_chain(const struct plan_limits *limits, struct work *work) {
  const bool gpu = !limits->cores, adds = work->func == FUNC_REDUCE;
  const size_t sums = work->rank_count > 2 ? CHAIN_CHUNKS_GPU_SUM : CHAIN_CHUNKS_GPU_PAIR;
  const size_t chunks = gpu && adds ? sums : CHAIN_CHUNKS;
  const size_t least = gpu && !adds ? CHAIN_CHUNK_BYTES_MIN_GPU_COPY : CHAIN_CHUNK_BYTES_MIN;
  const size_t part_bytes = work->part_count * work->element_bytes;
  size_t bytes = work->chunk_count * work->element_bytes;
  if (work->proto != PROTO_SIMPLE || work->algo != ALGO_RING || work_is_pipelined(work)) return;
  while (bytes >= 2 * least && (bytes > CHAIN_CHUNK_BYTES_MAX || bytes * chunks > part_bytes)) bytes /= 2;
  work->chunk_count = bytes / work->element_bytes;
}

/* Shortens chunks of stages that overlap, to whole multiples of the protocol's grain. */
static void work_shorten_stage(const struct draft *draft, const struct task *task, struct work *work) {
  const struct plan_request *request = draft->request;
  const size_t bytes = tune_bytes(work->func, work->count, work->element_bytes, request->rank_count);
  const size_t most = work->chunk_count * work->element_bytes;
  size_t least =
      tune_chunk_bytes(request, work->func, work->algo, work->proto, bytes, task->channel_count, most);
  if (task->chunk_bytes != 0) least = size_min(least, task->chunk_bytes);
  if (least < most) work->chunk_count = size_max(1, chunk_grains(work->proto, least) / work->element_bytes);
}

/* Small blocks of PAT share a slot. */
static void work_pack(struct work *work, const struct plan_limits *limits) {
  const size_t block_bytes = size_min(work->chunk_count, work->part_count) * work->element_bytes;
  work->pack =
      pat_pack(work->rank_count, block_bytes, limits->step_bytes[PROTO_SIMPLE] - limits->reserved_bytes);
}

/* A rank's works on one channel; several run concurrently if the algorithm has several roles. A switch that
 * the rank hosts does not access user memory. */
static ncclResult_t draft_channel(struct draft *draft, const struct task *task, struct work *work) {
  const struct graph *graph = draft->request->graph;
  uint32_t roles[LINKS_ROLES_MAX];
  const uint32_t count = links_roles(graph, work->algo, work->channel_index, work->rank, roles);
  const uint64_t batch_id = draft->next_batch_id++;
  const uint32_t flags = work->flags;
  for (uint32_t i = 0; i < count; i++) {
    work->role = (uint16_t)roles[i];
    links_set(graph, work);
    algo_cut(work);
    work->flags = flags | work_direct_flags(work, draft->request) |
                  work_overlap_flags(work, &draft->request->settings.limits);
    TRY(draft_work(draft, task, work, work->role != ROLE_SWITCH, batch_id));
  }
  work->flags = flags;
  return ncclSuccess;
}

/* Distributes a task over the channels, starting at the cursor, over no more channels than its size needs. */
static struct chunk_split task_split(const struct task *task, struct chunk_cursor *cursor) {
  const size_t budget_bytes = cursor->budget_bytes;
  cursor->budget_bytes = size_max(budget_bytes, task->budget_bytes);
  const struct chunk_split split =
      chunk_split_next(cursor, task->op->count, task->element_bytes, task->weight);
  cursor->budget_bytes = budget_bytes;
  return split;
}

/* A custom schedule's blocks name their channels, so the cursor does not move. */
static ncclResult_t draft_custom(struct draft *draft, const struct task *task) {
  const struct custom_schedule *custom = draft->request->custom;
  const uint64_t batch_id = draft->next_batch_id++;
  struct work work = work_of_task(draft->request, task);
  if (custom_needs_scratch(custom) && draft->scratch_bytes == 0) draft->scratch_bytes = LIST_PROGRESS_BYTES;
  work.scratch_page = (uint32_t)(draft->scratch_bytes / LIST_PAGE_BYTES);
  for (uint32_t index = 0; custom_work(custom, index, &work); index++)
    TRY(draft_work(draft, task, &work, true, batch_id));
  draft->scratch_bytes += custom_scratch_bytes(custom, task->op->count, task->element_bytes);
  return ncclSuccess;
}

static ncclResult_t draft_collective(struct draft *draft, const struct task *task,
                                     struct chunk_cursor *cursor) {
  const struct graph *graph = draft->request->graph;
  if (draft->request->rank_count == 1) return draft_local(draft, task);
  if (task->algo == ALGO_CUSTOM) return draft_custom(draft, task);
  struct work work = work_of_task(draft->request, task);
  work_shorten_stage(draft, task, &work);
  const size_t chunk_count = work.chunk_count;
  const uint32_t *ring = NULL;
  const struct chunk_split split = task_split(task, cursor);
  for (uint32_t channel = split.channel_low; channel <= split.channel_high; channel++) {
    work.channel_index = (uint16_t)channel;
    if (work.algo == ALGO_RING && graph->ring[channel] != ring) {
      ring = graph->ring[channel];
      work.ring_index = links_ring_index(graph, channel, work.rank);
    }
    chunk_split_part(&split, channel, &work.part_offset, &work.part_count);
    work.chunk_count = chunk_count;
    work_shorten_chain(&draft->request->settings.limits, &work);
    if (work.algo == ALGO_PAT) work_pack(&work, &draft->request->settings.limits);
    TRY(draft_channel(draft, task, &work));
  }
  return ncclSuccess;
}

/* Single tasks by decreasing traffic, then fused sets; equal tasks keep the order of the calls, which is the
 * same on every rank. */
static bool task_precedes(const struct task *a, const struct task *b) {
  if (a->fused != b->fused) return a->fused < b->fused;
  return a->fused == 0 && a->traffic_bytes > b->traffic_bytes;
}

static void tasks_sort(struct task *tasks, uint32_t count) {
  for (uint32_t i = 1; i < count; i++) {
    const struct task task = tasks[i];
    uint32_t at = i;
    for (; at > 0 && task_precedes(&task, &tasks[at - 1]); at--) tasks[at] = tasks[at - 1];
    tasks[at] = task;
  }
}

static bool tasks_alike(const struct task *a, const struct task *b) {
  return a->algo == b->algo && a->op->func == b->op->func && a->op->op == b->op->op &&
         a->op->dtype == b->op->dtype;
}

static size_t tasks_traffic_bytes(const struct task *tasks, uint32_t count) {
  size_t traffic = 0;
  for (uint32_t i = 0; i < count; i++)
    traffic += chunk_traffic_bytes(tasks[i].op->count * tasks[i].element_bytes, tasks[i].weight);
  return traffic;
}

/* Tasks that chose together share the channels that their sum needs, or take one each while there are any,
 * because they need no order. */
static void tasks_settle(const struct plan_request *request, struct task *tasks, uint32_t count,
                         const struct tune_choice *choice) {
  const uint32_t channel_count =
      (uint32_t)size_min(request->settings.limits.channel_count, size_max(choice->channel_count, count));
  const bool sums = tasks->op->func == FUNC_ALL_REDUCE || tasks->op->func == FUNC_REDUCE;
  const bool quick =
      choice->algo == ALGO_DIRECT && sums && tune_is_quick(request, choice->algo, choice->proto);
  for (uint32_t i = 0; i < count; i++) {
    tasks[i].algo = choice->algo;
    tasks[i].proto = choice->proto;
    if (choice->proto == PROTO_LL) tasks[i].weight = quick ? ONE_HOP_WEIGHT : tasks[i].weight * LL_WEIGHT;
  }
  const size_t budget_bytes = chunk_budget_bytes(tasks_traffic_bytes(tasks, count), channel_count);
  for (uint32_t i = 0; i < count; i++) {
    tasks[i].channel_count = channel_count;
    tasks[i].chunk_bytes = choice->chunk_bytes;
    tasks[i].budget_bytes = budget_bytes;
  }
}

/* PAT does not reduce a sum with a stage before or after it. The steps could, but the cost model, shared with
 * NCCL, excludes it. */
static ncclResult_t task_choose(const struct plan_request *request, const struct plan_op *op, size_t bytes,
                                struct tune_choice *choice) {
  struct plan_request without = *request;
  if (op->func != FUNC_REDUCE_SCATTER || op->op < OP_PRE_MUL_SUM)
    return tune_choose(request, op->func, bytes, choice);
  without.settings.algo_mask[op->func] &= ~(1u << ALGO_PAT);
  return tune_choose(&without, op->func, bytes, choice);
}

/* Adjacent tasks of one kind choose algorithm and protocol by their sum, while none is four times the
 * smallest of the run. */
static ncclResult_t tasks_choose(const struct plan_request *request, struct task *tasks, uint32_t count) {
  for (uint32_t first = 0, end; first < count; first = end) {
    size_t bytes = 0, traffic = tasks[first].traffic_bytes;
    for (end = first; end < count && tasks_alike(&tasks[first], &tasks[end]); end++) {
      if (traffic >= 4 * size_max(1, tasks[end].traffic_bytes)) break;
      const struct plan_op *op = tasks[end].op;
      bytes += tune_bytes(op->func, op->count, tasks[end].element_bytes, request->rank_count);
    }
    if (end == first) end = first + 1;
    if (tasks[first].algo == ALGO_CUSTOM) continue;
    struct tune_choice choice;
    TRY(task_choose(request, tasks[first].op, bytes, &choice));
    tasks_settle(request, tasks + first, end - first, &choice);
  }
  return ncclSuccess;
}

/* The protocol with which a ring takes the least time; without a graph, the first. */
static uint8_t ring_proto(const struct plan_request *request, const struct task *task, uint32_t protos) {
  const size_t bytes = tune_bytes(task->op->func, task->op->count, task->element_bytes, request->rank_count);
  uint8_t best = PROTO_SIMPLE;
  double best_us = -1;
  for (uint8_t proto = 0; proto < PROTO_COUNT; proto++) {
    if (((protos >> proto) & 1) == 0) continue;
    if (request->graph == NULL) return proto;
    const double time_us = tune_time_us(request, task->op->func, ALGO_RING, proto, bytes,
                                        request->settings.limits.channel_count);
    if (best_us >= 0 && time_us >= best_us) continue;
    best = proto;
    best_us = time_us;
  }
  return best;
}

/* The rule that forbids the user's custom schedule for an operation; NULL if it is used, and the task is set
 * so. It takes precedence over all other algorithms, because the user named the file. */
static const char *task_try_custom(const struct plan_request *request, struct task *task) {
  const uint8_t func = task->op->func;
  uint32_t protos = 0;
  if (request->custom == NULL) return "TUTTI_CUSTOM_FILE names no schedule";
  if (request->rank_count == 1) return "one rank alone needs no schedule";
  if (rules_order(request, func)) return "TUTTI_SUM_ORDER=rank allows nothing but a direct reduce-scatter";
  if (((request->settings.algo_mask[func] >> ALGO_CUSTOM) & 1) == 0) return "NCCL_ALGO leaves it out";
  if (((request->settings.limits.algos >> ALGO_CUSTOM) & 1) == 0 ||
      request->settings.limits.links < custom_links_most(request->custom))
    return "this backend's executors do not carry its steps";
  const char *why = "NCCL_PROTO, or a link, leaves the schedule's protocol out";
  const uint32_t allowed = request->settings.proto_mask[func] & request->custom->protos;
  for (uint8_t proto = 0; proto < PROTO_COUNT; proto++) {
    if (((allowed >> proto) & 1) == 0) continue;
    struct task tried = *task;
    tried.algo = ALGO_CUSTOM;
    tried.proto = proto;
    const struct work work = work_of_task(request, &tried);
    const char *forbidden = custom_forbid(request->custom, &work);
    if (forbidden == NULL) protos |= 1u << proto;
    else why = forbidden;
  }
  if (protos == 0) return why;
  task->algo = ALGO_CUSTOM;
  task->proto = ring_proto(request, task, protos);
  return NULL;
}

/* If only the custom schedule is allowed, reports the rule that forbids it. */
static ncclResult_t tasks_try_custom(const struct plan_request *request, struct task *tasks, uint32_t count) {
  for (uint32_t i = 0; i < count && request->rank_count > 1; i++) {
    const char *why = task_try_custom(request, &tasks[i]);
    const uint8_t func = tasks[i].op->func;
    if (why != NULL && !rules_order(request, func) && request->settings.algo_mask[func] == 1u << ALGO_CUSTOM)
      return log_fail(ncclInvalidUsage, "rank %u: NCCL_ALGO allows Custom alone, and %s", request->rank, why);
    if (why != NULL && request->custom != NULL)
      log_info(LOG_TUNING, "rank %u: TUTTI_CUSTOM_FILE is not used for operation %llu: %s", request->rank,
               (unsigned long long)tasks[i].op->sequence, why);
  }
  return ncclSuccess;
}

static void tasks_collect(const struct plan_request *request, struct task *tasks, uint32_t *count) {
  *count = 0;
  for (uint32_t i = 0; i < request->op_count; i++) {
    const struct plan_op *op = &request->ops[i];
    if (plan_op_is_message(op) || op->count == 0) continue;
    struct task *task = &tasks[(*count)++];
    task->op = op;
    task->element_bytes = plan_type_bytes(op->dtype);
    task->algo = ALGO_RING;
    task->proto = PROTO_SIMPLE;
    task->fused = 0;
    task->weight = func_weight(op->func, request->rank_count);
    task->traffic_bytes = op->count * task->element_bytes * task->weight;
  }
}

ncclResult_t draft_collectives(struct draft *draft) {
  const struct plan_request *request = draft->request;
  struct plan_memory *memory = draft->memory;
  uint32_t count;
  if (!plan_block_reserve(&memory->tasks, &memory->task_bytes, request->op_count * sizeof(struct task)))
    return plan_out_of_memory(request);
  struct task *tasks = (struct task *)memory->tasks;
  tasks_collect(request, tasks, &count);
  const uint32_t all = count;
  if (request->rank_count > 1) tasks_fuse(request, tasks, all);
  tasks_sort(tasks, all);
  while (count > 0 && tasks[count - 1].fused != 0) count -= 1;
  TRY(tasks_try_custom(request, tasks, count));
  ncclResult_t result = tasks_choose(request, tasks, count);
  struct chunk_cursor cursor = {
      0, request->settings.limits.channel_count, 0,
      chunk_budget_bytes(tasks_traffic_bytes(tasks, count), request->settings.limits.channel_count)};
  for (uint32_t i = 0; i < count && result == ncclSuccess; i++)
    result = draft_collective(draft, &tasks[i], &cursor);
  if (result == ncclSuccess) result = draft_fused_sets(draft, tasks + count, all - count);
  return result;
}
