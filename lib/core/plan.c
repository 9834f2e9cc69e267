/* plan.c: how a group's operations become works and batches. Collectives first, by falling traffic, laid over
 * the channels with one cursor; then sends and receives in the order of the rounds in which their ends meet.
 * Every rank walks the same rounds and draws the same borders, so no batch of one rank waits for a later
 * batch of another. */
#include "core/plan.h"

#include <string.h>

#include "base/log.h"
#include "base/os.h"
#include "core/custom.h"
#include "core/links.h"
#include "core/rules.h"
#include "core/tune.h"
#include "schedule/p2p.h"
#include "schedule/pat.h"
#include "schedule/ring.h"
#include "schedule/switch.h"

void plan_limits_default(struct plan_limits *limits) {
  memset(limits, 0, sizeof *limits);
  limits->slots = 8;
  limits->step_bytes[PROTO_SIMPLE] = 524288;
  limits->step_bytes[PROTO_LL] = 65536;
  limits->step_bytes[PROTO_LL128] = 614400;
  limits->p2p_chunk_bytes = 524288;
  limits->channel_count = 32;
  limits->p2p_channel_count = 32;
  limits->p2p_channels_per_peer = 32;
  limits->flag_bits = 32;
  limits->direct = true;
  limits->algos = ~0u;
  limits->links = STEP_LINKS_MAX;
}

/* A work in the order of generation; sorted by channel at the end. */
struct draft_row {
  struct work work;
  struct plan_buffers buffers;
  uint64_t batch_id; /* equal and adjacent on a channel = same batch */
};

struct draft {
  const struct plan_request *request;
  struct plan_memory *memory;
  struct draft_row *rows; /* memory->draft */
  uint32_t count;
  uint64_t next_batch_id;
  size_t scratch_bytes; /* of lists so far */
};

#define ROWS_FIRST 8

static ncclResult_t out_of_memory(const struct plan_request *request) {
  return log_fail(ncclSystemError, "rank %u: out of memory while planning %u operations", request->rank,
                  request->op_count);
}

/* What the block holds is kept. */
static bool block_reserve(void **block, size_t *capacity_bytes, size_t bytes) {
  if (bytes <= *capacity_bytes) return true;
  void *grown = os_realloc(*block, bytes);
  if (grown == NULL) return false;
  *block = grown;
  *capacity_bytes = bytes;
  return true;
}

static bool draft_reserve(struct draft *draft) {
  struct plan_memory *memory = draft->memory;
  const size_t rows = memory->draft_bytes / sizeof *draft->rows;
  if (draft->count < rows) return true;
  const size_t grown = rows == 0 ? ROWS_FIRST : 2 * rows;
  if (!block_reserve(&memory->draft, &memory->draft_bytes, grown * sizeof *draft->rows)) return false;
  draft->rows = (struct draft_row *)memory->draft;
  return true;
}

static ncclResult_t draft_add(struct draft *draft, const struct work *work, const void *in, void *out,
                              uint64_t batch_id) {
  if (!draft_reserve(draft)) return out_of_memory(draft->request);
  struct draft_row *row = &draft->rows[draft->count++];
  row->work = *work;
  row->buffers.in = in;
  row->buffers.out = out;
  row->batch_id = batch_id;
  return ncclSuccess;
}

/* ---- all-to-all ---- */

/* Messages are its ring: they carry it unless the user leaves them out and Direct is possible. */
static bool all_to_all_is_direct(const struct plan_request *request) {
  if (request->rank_count == 1 || ((request->algo_mask[FUNC_ALL_TO_ALL] >> ALGO_RING) & 1) != 0) return false;
  for (uint8_t proto = 0; proto < PROTO_COUNT; proto++)
    if (rules_forbid(request, FUNC_ALL_TO_ALL, ALGO_DIRECT, proto) == NULL) return true;
  return false;
}

static uint32_t type_bytes(uint8_t dtype) {
  static const uint8_t bytes[ncclNumTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return bytes[dtype];
}

/* One block to each rank and one from each, in the order of the ranks. */
static struct plan_op *all_to_all_messages(const struct plan_op *op, uint32_t rank_count,
                                           struct plan_op *message) {
  const size_t bytes = op->count * type_bytes(op->dtype);
  for (uint32_t peer = 0; peer < rank_count; peer++) {
    for (uint32_t half = 0; half < 2; half++, message++) {
      *message = *op;
      message->func = half == 0 ? FUNC_SEND : FUNC_RECV;
      message->peer = peer;
      message->in = half == 0 ? (const uint8_t *)op->in + peer * bytes : NULL;
      message->out = half == 0 ? NULL : (uint8_t *)op->out + peer * bytes;
    }
  }
  return message;
}

/* The request with messages in the place of each all-to-all, where they carry it. */
static ncclResult_t request_expand(struct plan_request *request, struct plan_memory *memory) {
  uint32_t exchanges = 0;
  for (uint32_t i = 0; i < request->op_count; i++) exchanges += request->ops[i].func == FUNC_ALL_TO_ALL;
  if (exchanges == 0 || all_to_all_is_direct(request)) return ncclSuccess;
  const size_t count = request->op_count + (size_t)exchanges * (2 * request->rank_count - 1);
  if (!block_reserve(&memory->messages, &memory->message_bytes, count * sizeof *request->ops))
    return out_of_memory(request);
  struct plan_op *next = (struct plan_op *)memory->messages;
  for (uint32_t i = 0; i < request->op_count; i++) {
    if (request->ops[i].func != FUNC_ALL_TO_ALL) *next++ = request->ops[i];
    else next = all_to_all_messages(&request->ops[i], request->rank_count, next);
  }
  request->ops = (const struct plan_op *)memory->messages;
  request->op_count = (uint32_t)count;
  return ncclSuccess;
}

/* ---- collectives ---- */

/* What planning knows of one collective before it lies on channels. */
struct task {
  const struct plan_op *op;
  uint32_t element_bytes;
  uint8_t algo, proto;
  uint32_t fused; /* the set of broadcasts that it is one of, from 1 on; 0: it stands alone */
  size_t weight;  /* bytes moved a byte of count */
  size_t traffic_bytes;
  uint32_t channel_count; /* over how many it is spread at most */
  size_t budget_bytes;    /* traffic that a channel of it should carry at least */
};

static bool op_is_p2p(const struct plan_op *op) { return op->func == FUNC_SEND || op->func == FUNC_RECV; }

static size_t func_weight(uint8_t func, uint32_t rank_count) {
  switch (func) {
    case FUNC_ALL_REDUCE: return 2;
    case FUNC_ALL_GATHER:
    case FUNC_REDUCE_SCATTER:
    case FUNC_ALL_TO_ALL: return rank_count;
    default: return 1;
  }
}

/* LL moves its data as lines that are half flags and is meant for latency: it counts four times towards the
 * budget. */
#define LL_WEIGHT 4

/* Cut to the protocol's grain where it is longer than that. */
static size_t chunk_grains(uint8_t proto, size_t bytes) {
  static const size_t grain_bytes[PROTO_COUNT] = {16, 1920, 512};
  return bytes > grain_bytes[proto] ? bytes / grain_bytes[proto] * grain_bytes[proto] : bytes;
}

/* Most data bytes of a chunk. */
static size_t chunk_data_bytes(const struct plan_limits *limits, uint8_t proto, uint32_t chunk_steps) {
  size_t bytes = (size_t)limits->step_bytes[PROTO_SIMPLE] * chunk_steps;
  if (proto == PROTO_LL) bytes = limits->step_bytes[PROTO_LL] / 2;
  if (proto == PROTO_LL128) bytes = (size_t)limits->step_bytes[PROTO_LL128] / 128 * 120;
  if (limits->chunk_bytes != 0) bytes = size_min(bytes, limits->chunk_bytes);
  return chunk_grains(proto, bytes);
}

/* Rings in which every rank's data passes every rank: two chunks are under way at once, in slices. */
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

/* Which links carry final values: those of an algorithm's last half. */
static uint32_t work_final_flags(const struct work *work) {
  const uint32_t both = WORK_DIRECT_SEND | WORK_DIRECT_RECV;
  if (work->func == FUNC_REDUCE || work->func == FUNC_REDUCE_SCATTER) return 0;
  if (switch_is_algo(work->algo)) return 0; /* a switch has no address of an output */
  if (work->algo == ALGO_TREE)
    return work->role == ROLE_UP ? 0 : work->role == ROLE_DOWN ? both : (uint32_t)WORK_DIRECT_SEND;
  return work->algo == ALGO_DIRECT && work->func == FUNC_ALL_REDUCE ? 0 : both;
}

/* They may be stored straight into a neighbour's output when all ranks are in reach of each other. */
static uint32_t work_direct_flags(const struct work *work, const struct plan_limits *limits) {
  if (!limits->direct || work->proto != PROTO_SIMPLE) return 0;
  return work_final_flags(work) & ((work->send_count > 0 ? (uint32_t)WORK_DIRECT_SEND : 0) |
                                   (work->recv_count > 0 ? (uint32_t)WORK_DIRECT_RECV : 0));
}

static struct work work_of_task(const struct plan_request *request, const struct task *task) {
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
  if (op_in_place(op, request, task->element_bytes)) work.flags |= WORK_IN_PLACE;
  work_set_steps(&work, &request->limits);
  return work;
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
  return draft_add(draft, &work, op->in, op->out, draft->next_batch_id++);
}

/* A chain's first byte passes every rank before the last rank begins, so chunks are a small part of what a
 * channel carries: of a size between that at which a step costs as much as its data, and that at which it
 * costs nothing. */
#define CHAIN_CHUNKS 64
#define CHAIN_CHUNK_BYTES_MIN 65536u
#define CHAIN_CHUNK_BYTES_MAX 262144u

static void work_shorten_chain(struct work *work) {
  const size_t part_bytes = work->part_count * work->element_bytes;
  size_t bytes = work->chunk_count * work->element_bytes;
  if (work->proto != PROTO_SIMPLE || work->algo != ALGO_RING || work_is_pipelined(work)) return;
  while (bytes >= 2 * CHAIN_CHUNK_BYTES_MIN &&
         (bytes > CHAIN_CHUNK_BYTES_MAX || bytes * CHAIN_CHUNKS > part_bytes))
    bytes /= 2;
  work->chunk_count = bytes / work->element_bytes;
}

/* Stages that overlap want short chunks, whole multiples of the protocol's grain. */
static void work_shorten_stage(const struct draft *draft, const struct task *task, struct work *work) {
  const struct plan_request *request = draft->request;
  const size_t bytes = tune_bytes(work->func, work->count, work->element_bytes, request->rank_count);
  const size_t most = work->chunk_count * work->element_bytes;
  const size_t least =
      tune_chunk_bytes(request, work->func, work->algo, work->proto, bytes, task->channel_count, most);
  if (least < most) work->chunk_count = size_max(1, chunk_grains(work->proto, least) / work->element_bytes);
}

/* Blocks of aggregated trees that are small share a slot. */
static void work_pack(struct work *work, const struct plan_limits *limits) {
  const size_t block_bytes = size_min(work->chunk_count, work->part_count) * work->element_bytes;
  work->pack = pat_pack(work->rank_count, block_bytes, limits->step_bytes[PROTO_SIMPLE]);
}

static void work_cut(struct work *work) {
  if (switch_is_algo(work->algo)) switch_cut(work);
  else ring_cut(work);
}

/* A rank's works on one channel: side by side where the algorithm has more than one. A switch that it hosts
 * touches nothing of the user's. */
static ncclResult_t draft_channel(struct draft *draft, const struct task *task, struct work *work) {
  const struct graph *graph = draft->request->graph;
  uint32_t roles[LINKS_ROLES_MAX];
  const uint32_t count = links_roles(graph, work->algo, work->channel_index, work->rank, roles);
  const uint64_t batch_id = draft->next_batch_id++;
  const uint32_t flags = work->flags;
  for (uint32_t i = 0; i < count; i++) {
    work->role = (uint16_t)roles[i];
    links_set(graph, work);
    work_cut(work);
    work->flags = flags | work_direct_flags(work, &draft->request->limits);
    const bool user = work->role != ROLE_SWITCH;
    TRY(draft_add(draft, work, user ? task->op->in : NULL, user ? task->op->out : NULL, batch_id));
  }
  work->flags = flags;
  return ncclSuccess;
}

/* Lays a task over the channels from the cursor on: over no more of them than it is worth. */
static struct chunk_split task_split(const struct task *task, struct chunk_cursor *cursor) {
  const size_t budget_bytes = cursor->budget_bytes;
  cursor->budget_bytes = size_max(budget_bytes, task->budget_bytes);
  const struct chunk_split split =
      chunk_split_next(cursor, task->op->count, task->element_bytes, task->weight);
  cursor->budget_bytes = budget_bytes;
  return split;
}

/* The user's own steps: their blocks say on which channels, so that the cursor stays where it is. */
static ncclResult_t draft_custom(struct draft *draft, const struct task *task) {
  const struct custom_schedule *custom = draft->request->custom;
  const uint64_t batch_id = draft->next_batch_id++;
  struct work work = work_of_task(draft->request, task);
  if (custom_needs_scratch(custom) && draft->scratch_bytes == 0) draft->scratch_bytes = LIST_CELLS_BYTES;
  work.scratch_page = (uint32_t)(draft->scratch_bytes / LIST_PAGE_BYTES);
  for (uint32_t index = 0; custom_work(custom, index, &work); index++)
    TRY(draft_add(draft, &work, task->op->in, task->op->out, batch_id));
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
    work_shorten_chain(&work);
    if (work.algo == ALGO_PAT) work_pack(&work, &draft->request->limits);
    TRY(draft_channel(draft, task, &work));
  }
  return ncclSuccess;
}

/* Those that stand alone by falling traffic, then set after set; equal ones keep the order of the calls,
 * which is the same on every rank. */
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

/* Tasks that chose together share the channels that their sum is worth, or take one each while there are any:
 * nothing orders them. */
static void tasks_settle(struct task *tasks, uint32_t count, uint32_t channels_most,
                         const struct tune_choice *choice) {
  const uint32_t channel_count = (uint32_t)size_min(channels_most, size_max(choice->channel_count, count));
  for (uint32_t i = 0; i < count; i++) {
    tasks[i].algo = choice->algo;
    tasks[i].proto = choice->proto;
    if (choice->proto == PROTO_LL) tasks[i].weight *= LL_WEIGHT;
  }
  const size_t budget_bytes = chunk_budget_bytes(tasks_traffic_bytes(tasks, count), channel_count);
  for (uint32_t i = 0; i < count; i++) {
    tasks[i].channel_count = channel_count;
    tasks[i].budget_bytes = budget_bytes;
  }
}

/* PAT reduces no sum that has a stage before or behind it: the model that it shares with NCCL has it so, not
 * the steps. */
static ncclResult_t task_choose(const struct plan_request *request, const struct plan_op *op, size_t bytes,
                                struct tune_choice *choice) {
  struct plan_request without = *request;
  if (op->func != FUNC_REDUCE_SCATTER || op->op < OP_PRE_MUL_SUM)
    return tune_choose(request, op->func, bytes, choice);
  without.algo_mask[op->func] &= ~(1u << ALGO_PAT);
  return tune_choose(&without, op->func, bytes, choice);
}

/* Neighbours of one kind choose their algorithm and protocol by their sum, while none is four times the
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
    tasks_settle(tasks + first, end - first, request->limits.channel_count, &choice);
  }
  return ncclSuccess;
}

/* The protocol with which a ring would take the least time; without a graph, the first. */
static uint8_t ring_proto(const struct plan_request *request, const struct task *task, uint32_t protos) {
  const size_t bytes = tune_bytes(task->op->func, task->op->count, task->element_bytes, request->rank_count);
  uint8_t best = PROTO_SIMPLE;
  double best_us = -1;
  for (uint8_t proto = 0; proto < PROTO_COUNT; proto++) {
    if (((protos >> proto) & 1) == 0) continue;
    if (request->graph == NULL) return proto;
    const double time_us =
        tune_time_us(request, task->op->func, ALGO_RING, proto, bytes, request->limits.channel_count);
    if (best_us >= 0 && time_us >= best_us) continue;
    best = proto;
    best_us = time_us;
  }
  return best;
}

/* The rule by which the user's schedule does not carry an operation; NULL where it does, and then the task
 * says so. It goes before all other algorithms: whoever names a file wants it. */
static const char *task_try_custom(const struct plan_request *request, struct task *task) {
  const uint8_t func = task->op->func;
  uint32_t protos = 0;
  if (request->custom == NULL) return "TUTTI_CUSTOM_FILE names no schedule";
  if (request->rank_count == 1) return "one rank alone needs no schedule";
  if (((request->algo_mask[func] >> ALGO_CUSTOM) & 1) == 0) return "NCCL_ALGO leaves it out";
  if (((request->limits.algos >> ALGO_CUSTOM) & 1) == 0 ||
      request->limits.links < custom_links_most(request->custom))
    return "this backend's executors do not carry its steps";
  const char *why = "NCCL_PROTO, or a link, leaves the schedule's protocol out";
  const uint32_t allowed = request->proto_mask[func] & request->custom->protos;
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

/* Where nothing but the user's schedule is allowed, its rule is the answer. */
static ncclResult_t tasks_try_custom(const struct plan_request *request, struct task *tasks, uint32_t count) {
  for (uint32_t i = 0; i < count && request->rank_count > 1; i++) {
    const char *why = task_try_custom(request, &tasks[i]);
    if (why != NULL && request->algo_mask[tasks[i].op->func] == 1u << ALGO_CUSTOM)
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
    if (op_is_p2p(op) || op->count == 0) continue;
    struct task *task = &tasks[(*count)++];
    task->op = op;
    task->element_bytes = type_bytes(op->dtype);
    task->algo = ALGO_RING;
    task->proto = PROTO_SIMPLE;
    task->fused = 0;
    task->weight = func_weight(op->func, request->rank_count);
    task->traffic_bytes = op->count * task->element_bytes * task->weight;
  }
}

/* ---- broadcasts of a group, fused ---- */

/* Least bytes that are worth a channel of their own, and where parts begin. */
#define FUSED_PART_BYTES_MIN 32768u
#define FUSED_PART_ALIGN_BYTES 256u
#define FUSED_MAX 256

/* The k-th broadcasts of all roots are a set; one that would be alone in its set stands alone. Where all send
 * before any receives, one slot would be too few. */
static void tasks_fuse(const struct plan_request *request, struct task *tasks, uint32_t count) {
  const uint32_t ring = 1u << ALGO_RING;
  uint32_t set_count = 0;
  if ((request->limits.algos & PLAN_FUSES) == 0 || request->limits.slots < 2) return;
  if ((request->algo_mask[FUNC_BROADCAST] & ring) == 0) return;
  if ((request->proto_mask[FUNC_BROADCAST] & ~(1u << PROTO_LL128)) == 0) return;
  for (uint32_t i = 0; i < count; i++) {
    if (tasks[i].op->func != FUNC_BROADCAST) continue;
    tasks[i].fused = 1;
    for (uint32_t k = 0; k < i; k++)
      tasks[i].fused += tasks[k].op->func == FUNC_BROADCAST && tasks[k].op->peer == tasks[i].op->peer;
  }
  for (bool full = true; full; set_count += full) {
    uint32_t members = 0;
    for (uint32_t i = 0; i < count; i++) {
      if (tasks[i].fused != set_count + 1) continue;
      members += 1;
      if (members > FUSED_MAX) tasks[i].fused = 0;
    }
    full = members >= 2;
  }
  for (uint32_t i = 0; i < count; i++)
    if (tasks[i].fused > set_count) tasks[i].fused = 0;
}

/* As an all-gather of the largest would be carried, but fused lanes know no LL128. */
static ncclResult_t fused_choose(const struct plan_request *request, size_t bytes, uint8_t *proto) {
  struct plan_request like = *request;
  struct tune_choice choice;
  like.algo_mask[FUNC_ALL_GATHER] = 1u << ALGO_RING;
  like.proto_mask[FUNC_ALL_GATHER] = request->proto_mask[FUNC_BROADCAST] & ~(1u << PROTO_LL128);
  TRY(tune_choose(&like, FUNC_ALL_GATHER, bytes * request->rank_count, &choice));
  *proto = choice.proto;
  return ncclSuccess;
}

/* Hops from the task's root to this rank. */
static uint32_t fused_distance(const struct draft *draft, const struct task *task, uint32_t channel) {
  const struct plan_request *request = draft->request;
  const uint32_t own = links_ring_index(request->graph, channel, request->rank);
  const uint32_t root = links_ring_index(request->graph, channel, task->op->peer);
  return (own + request->rank_count - root) % request->rank_count;
}

static void tasks_sort_by_distance(const struct draft *draft, struct task *tasks, uint32_t count,
                                   uint32_t channel) {
  for (uint32_t i = 1; i < count; i++) {
    const struct task task = tasks[i];
    const uint32_t distance = fused_distance(draft, &task, channel);
    uint32_t at = i;
    for (; at > 0 && fused_distance(draft, &tasks[at - 1], channel) > distance; at--)
      tasks[at] = tasks[at - 1];
    tasks[at] = task;
  }
}

/* The set's parts on one channel: the first row is the lane's, and has both neighbours; where one has data,
 * it stands alone. */
static ncclResult_t draft_fused_channel(struct draft *draft, const struct task *tasks, uint32_t count,
                                        uint32_t channel, uint32_t channel_count) {
  const struct graph *graph = draft->request->graph;
  const uint64_t batch_id = draft->next_batch_id++;
  const uint32_t first = draft->count;
  size_t chunk_count = SIZE_MAX;
  for (uint32_t i = 0; i < count; i++) {
    const size_t share =
        size_round_up(size_div_up(tasks[i].op->count, channel_count), FUSED_PART_ALIGN_BYTES);
    struct work work = work_of_task(draft->request, &tasks[i]);
    work.channel_index = (uint16_t)channel;
    work.part_offset = size_min(tasks[i].op->count, channel * share);
    work.part_count = size_min(tasks[i].op->count - work.part_offset, share);
    if (work.part_count == 0) continue;
    work.ring_index = links_ring_index(graph, channel, work.rank);
    links_set(graph, &work);
    work_shorten_chain(&work);
    chunk_count = size_min(chunk_count, work.chunk_count);
    if (draft->count > first) work.flags |= WORK_PART;
    TRY(draft_add(draft, &work, tasks[i].op->in, tasks[i].op->out, batch_id));
  }
  if (draft->count == first) return ncclSuccess;
  struct work *head = &draft->rows[first].work;
  ring_cut(head);
  if (draft->count == first + 1) return ncclSuccess;
  head->flags |= WORK_FUSED;
  head->recv_count = head->send_count = 1;
  head->fused_count = draft->count - first;
  head->chunk_count = chunk_count;
  return ncclSuccess;
}

/* One set: its tasks lie together. */
static ncclResult_t draft_fused(struct draft *draft, struct task *tasks, uint32_t count) {
  const struct plan_request *request = draft->request;
  size_t largest = 0, sum = 0;
  uint8_t proto;
  for (uint32_t i = 0; i < count; i++) {
    largest = size_max(largest, tasks[i].op->count * tasks[i].element_bytes);
    sum += tasks[i].op->count * tasks[i].element_bytes;
  }
  TRY(fused_choose(request, largest, &proto));
  for (uint32_t i = 0; i < count; i++) tasks[i].proto = proto;
  const uint32_t channel_count =
      (uint32_t)size_min(request->limits.channel_count, size_div_up(sum, FUSED_PART_BYTES_MIN));
  for (uint32_t channel = 0; channel < channel_count; channel++) {
    tasks_sort_by_distance(draft, tasks, count, channel);
    TRY(draft_fused_channel(draft, tasks, count, channel, channel_count));
  }
  return ncclSuccess;
}

/* Set after set; the tasks of a set are brought together. */
static ncclResult_t draft_fused_sets(struct draft *draft, struct task *tasks, uint32_t count) {
  for (uint32_t first = 0, end; first < count; first = end) {
    const uint32_t set = tasks[first].fused;
    for (end = first + 1; end < count && tasks[end].fused == set;) end += 1;
    TRY(draft_fused(draft, tasks + first, end - first));
  }
  return ncclSuccess;
}

static ncclResult_t draft_collectives(struct draft *draft) {
  const struct plan_request *request = draft->request;
  struct plan_memory *memory = draft->memory;
  uint32_t count;
  if (!block_reserve(&memory->tasks, &memory->task_bytes, request->op_count * sizeof(struct task)))
    return out_of_memory(request);
  struct task *tasks = (struct task *)memory->tasks;
  tasks_collect(request, tasks, &count);
  const uint32_t all = count;
  if (request->rank_count > 1) tasks_fuse(request, tasks, all);
  tasks_sort(tasks, all);
  while (count > 0 && tasks[count - 1].fused != 0) count -= 1;
  TRY(tasks_try_custom(request, tasks, count));
  ncclResult_t result = tasks_choose(request, tasks, count);
  struct chunk_cursor cursor = {
      0, request->limits.channel_count, 0,
      chunk_budget_bytes(tasks_traffic_bytes(tasks, count), request->limits.channel_count)};
  for (uint32_t i = 0; i < count && result == ncclSuccess; i++)
    result = draft_collective(draft, &tasks[i], &cursor);
  if (result == ncclSuccess) result = draft_fused_sets(draft, tasks + count, all - count);
  return result;
}

/* ---- point-to-point ---- */

#define NO_OP UINT32_MAX

/* The sends to each peer and the receives from each peer, in the order of the calls. */
struct p2p_queues {
  uint32_t *send_head, *recv_head; /* by peer: index of an op, or NO_OP */
  uint32_t *next;                  /* by op */
  uint32_t left;
};

static ncclResult_t queues_fill(const struct plan_request *request, struct p2p_queues *queues) {
  const uint32_t n = request->rank_count;
  uint32_t *memory = (uint32_t *)os_alloc((2 * (size_t)n + request->op_count) * sizeof *memory);
  if (memory == NULL) return out_of_memory(request);
  queues->send_head = memory;
  queues->recv_head = memory + n;
  queues->next = memory + 2 * n;
  queues->left = 0;
  for (uint32_t peer = 0; peer < 2 * n; peer++) memory[peer] = NO_OP;
  for (uint32_t i = request->op_count; i-- > 0;) {
    const struct plan_op *op = &request->ops[i];
    if (!op_is_p2p(op)) continue;
    uint32_t *head = op->func == FUNC_SEND ? &queues->send_head[op->peer] : &queues->recv_head[op->peer];
    queues->next[i] = *head;
    *head = i;
    queues->left += 1;
  }
  return ncclSuccess;
}

static const struct plan_op *queues_take(const struct plan_request *request, struct p2p_queues *queues,
                                         uint32_t *head) {
  if (*head == NO_OP) return NULL;
  const struct plan_op *op = &request->ops[*head];
  *head = queues->next[*head];
  queues->left -= 1;
  return op;
}

static struct work work_of_message(const struct plan_request *request, const struct plan_op *op, size_t bytes,
                                   uint32_t parts) {
  const struct plan_limits *limits = &request->limits;
  struct work work;
  memset(&work, 0, sizeof work);
  const bool ll = bytes <= parts * request->p2p_ll_threshold ||
                  ((request->proto_mask[op->func] >> PROTO_SIMPLE) & 1) == 0;
  work.func = op->func;
  work.algo = ALGO_RING;
  work.proto = ll && ((request->proto_mask[op->func] >> PROTO_LL) & 1) != 0 ? PROTO_LL : PROTO_SIMPLE;
  work.dtype = ncclInt8;
  work.op = OP_SUM;
  work.element_bytes = 1;
  work.chunk_steps = work.slice_steps = 1;
  work.rank = request->rank;
  work.rank_count = request->rank_count;
  work.conn_index = CONN_MESSAGE;
  work.count = bytes;
  work.op_sequence = op->sequence;
  work.chunk_count = work.proto == PROTO_LL
                         ? chunk_data_bytes(limits, PROTO_LL, 1)
                         : size_min(limits->p2p_chunk_bytes, limits->step_bytes[PROTO_SIMPLE]);
  work.send_count = op->func == FUNC_SEND;
  work.recv_count = op->func == FUNC_RECV;
  work.send_peer[0] = work.recv_peer[0] = op->peer;
  work.flags = work_direct_flags(&work, limits);
  return work;
}

/* One half of a message: a work on each channel that carries a part. */
static ncclResult_t draft_half(struct draft *draft, const struct plan_op *op, uint32_t round,
                               uint64_t batch_id) {
  const struct plan_request *request = draft->request;
  const struct plan_limits *limits = &request->limits;
  const size_t bytes = op->count * type_bytes(op->dtype);
  const struct p2p_split split = p2p_message_split(bytes, limits->p2p_chunk_bytes, request->rank_count,
                                                   limits->p2p_channel_count, limits->p2p_channels_per_peer);
  struct work work = work_of_message(request, op, bytes, split.part_count);
  for (uint32_t part = 0; part < split.part_count; part++) {
    p2p_part(&split, bytes, part, &work.part_offset, &work.part_count);
    if (work.part_count == 0 && part > 0) break;
    work.channel_index = (uint16_t)p2p_channel(round, part, limits->p2p_channel_count);
    TRY(draft_add(draft, &work, op->in, op->out, batch_id));
  }
  return ncclSuccess;
}

/* Least bytes that are worth a channel of their own in a copy within the device. */
#define SELF_PART_BYTES_MIN 262144u

/* A message to oneself: copies, spread over all channels; none when both ends are the same memory. */
static ncclResult_t draft_self(struct draft *draft, const struct plan_op *send, const struct plan_op *recv,
                               uint64_t batch_id) {
  const uint32_t channel_count = draft->request->limits.p2p_channel_count;
  const size_t bytes = send->count * type_bytes(send->dtype);
  if (recv == NULL || send->in == recv->out || bytes == 0) return ncclSuccess;
  struct work work = work_of_message(draft->request, send, bytes, 1);
  work.func = FUNC_COPY;
  work.proto = PROTO_SIMPLE;
  work.flags = 0;
  work.send_count = 0;
  const size_t parts = size_min(channel_count, size_div_up(bytes, SELF_PART_BYTES_MIN));
  const struct p2p_split split = {(uint32_t)parts,
                                  size_round_up(size_div_up(bytes, parts), P2P_PART_ALIGN_BYTES)};
  for (uint32_t part = 0; part < split.part_count; part++) {
    p2p_part(&split, bytes, part, &work.part_offset, &work.part_count);
    if (work.part_count == 0) break;
    work.channel_index = (uint16_t)p2p_channel(0, part, channel_count);
    TRY(draft_add(draft, &work, send->in, recv->out, batch_id));
  }
  return ncclSuccess;
}

/* One sweep over the rounds takes at most one message a peer and direction; messages left over go to the next
 * sweep. */
static ncclResult_t draft_sweep(struct draft *draft, struct p2p_queues *queues) {
  const struct plan_request *request = draft->request;
  struct p2p_schedule schedule;
  uint32_t round, to, from;
  p2p_schedule_begin(&schedule, request->rank, request->rank_count, request->rank_count);
  while (queues->left > 0 && p2p_schedule_next(&schedule, &round, &to, &from)) {
    const uint64_t batch_id = draft->next_batch_id + round / P2P_BATCH_ROUNDS;
    const struct plan_op *send = queues_take(request, queues, &queues->send_head[to]);
    const struct plan_op *recv = queues_take(request, queues, &queues->recv_head[from]);
    if (round == 0) {
      if (send != NULL) TRY(draft_self(draft, send, recv, batch_id));
      continue;
    }
    if (send != NULL) TRY(draft_half(draft, send, round, batch_id));
    if (recv != NULL) TRY(draft_half(draft, recv, round, batch_id));
  }
  draft->next_batch_id += request->rank_count / P2P_BATCH_ROUNDS + 1;
  return ncclSuccess;
}

static ncclResult_t draft_p2p(struct draft *draft) {
  struct p2p_queues queues = {NULL, NULL, NULL, 0};
  bool any = false;
  for (uint32_t i = 0; i < draft->request->op_count && !any; i++) any = op_is_p2p(&draft->request->ops[i]);
  if (!any) return ncclSuccess;
  TRY(queues_fill(draft->request, &queues));
  ncclResult_t result = ncclSuccess;
  while (queues.left > 0 && result == ncclSuccess) result = draft_sweep(draft, &queues);
  os_free(queues.send_head);
  return result;
}

/* ---- putting it together ---- */

static uint32_t draft_channels(const struct draft *draft) {
  uint32_t channel_count = 0;
  for (uint32_t i = 0; i < draft->count; i++)
    if (draft->rows[i].work.channel_index >= channel_count)
      channel_count = draft->rows[i].work.channel_index + 1u;
  return channel_count;
}

/* Where each channel's works begin; one entry more than there are channels. */
static void draft_measure(const struct draft *draft, uint32_t channel_count, uint32_t *begin) {
  for (uint32_t channel = 0; channel <= channel_count; channel++) begin[channel] = 0;
  for (uint32_t i = 0; i < draft->count; i++) begin[draft->rows[i].work.channel_index + 1u] += 1;
  for (uint32_t channel = 0; channel < channel_count; channel++) begin[channel + 1] += begin[channel];
}

/* Stable: a channel's works keep the order of generation. `ids` are the batches' by place. */
static void plan_place(const struct draft *draft, struct plan *plan, uint32_t channel_count,
                       const uint32_t *begin, uint64_t *ids) {
  uint32_t at[PLAN_CHANNELS_MAX + 1];
  memcpy(at, begin, channel_count * sizeof *at);
  for (uint32_t i = 0; i < draft->count; i++) {
    const struct draft_row *row = &draft->rows[i];
    const uint32_t place = at[row->work.channel_index]++;
    plan->works[place] = row->work;
    plan->buffers[place] = row->buffers;
    ids[place] = row->batch_id;
  }
}

/* Borders between batches, channel by channel. */
static void plan_border(struct plan *plan, uint32_t channel_count, const uint32_t *begin,
                        const uint64_t *ids) {
  for (uint32_t channel = 0; channel < channel_count; channel++) {
    struct plan_batch *batch = NULL;
    for (uint32_t place = begin[channel]; place < begin[channel + 1]; place++) {
      if ((plan->works[place].flags & WORK_PART) != 0) continue;
      if (batch == NULL || ids[place] != ids[place - 1] || batch->work_count == PLAN_BATCH_WORKS_MAX) {
        batch = &plan->batches[plan->batch_count++];
        batch->channel_index = channel;
        batch->first_work = place;
        batch->work_count = 0;
      }
      batch->work_count += 1;
    }
    if (batch != NULL) plan->channel_mask |= UINT64_C(1) << channel;
  }
}

static ncclResult_t plan_of_draft(const struct draft *draft, struct plan *plan) {
  const struct plan_request *request = draft->request;
  struct plan_memory *memory = draft->memory;
  const size_t row_bytes =
      sizeof *plan->works + sizeof *plan->buffers + sizeof(uint64_t) + sizeof *plan->batches;
  uint32_t begin[PLAN_CHANNELS_MAX + 1];
  const uint32_t channel_count = draft_channels(draft);
  struct plan fresh;
  if (!block_reserve(&memory->plan, &memory->plan_bytes, (draft->count > 0 ? draft->count : 1) * row_bytes))
    return out_of_memory(request);
  memset(&fresh, 0, sizeof fresh);
  fresh.works = (struct work *)memory->plan;
  fresh.buffers = (struct plan_buffers *)(fresh.works + draft->count);
  uint64_t *ids = (uint64_t *)(fresh.buffers + draft->count);
  fresh.batches = (struct plan_batch *)(ids + draft->count);
  fresh.rank = request->rank;
  fresh.rank_count = request->rank_count;
  fresh.work_count = draft->count;
  fresh.limits = request->limits;
  fresh.scratch_bytes = draft->scratch_bytes;
  draft_measure(draft, channel_count, begin);
  plan_place(draft, &fresh, channel_count, begin, ids);
  plan_border(&fresh, channel_count, begin, ids);
  *plan = fresh;
  return ncclSuccess;
}

ncclResult_t plan_build_within(const struct plan_request *request, struct plan_memory *memory,
                               struct plan *plan) {
  struct plan_request expanded = *request;
  struct draft draft = {&expanded, memory, (struct draft_row *)memory->draft, 0, 0, 0};
  TRY(request_expand(&expanded, memory));
  TRY(draft_collectives(&draft));
  TRY(draft_p2p(&draft));
  return plan_of_draft(&draft, plan);
}

void plan_memory_free(struct plan_memory *memory) {
  os_free(memory->messages);
  os_free(memory->tasks);
  os_free(memory->draft);
  os_free(memory->plan);
  memset(memory, 0, sizeof *memory);
}

ncclResult_t plan_build(const struct plan_request *request, struct plan *plan) {
  struct plan_memory memory;
  memset(&memory, 0, sizeof memory);
  const ncclResult_t result = plan_build_within(request, &memory, plan);
  if (result == ncclSuccess) memory.plan = NULL; /* it is the plan's now */
  plan_memory_free(&memory);
  return result;
}

void plan_free(struct plan *plan) {
  os_free(plan->works);
  memset(plan, 0, sizeof *plan);
}

/* The least time of Ring with one of a set of protocols; of Simple when the set is empty. */
static double ring_time_us(const struct plan_request *request, uint8_t func, uint32_t protos, size_t bytes,
                           uint32_t channels) {
  double least_us = -1;
  if ((protos & ((1u << PROTO_COUNT) - 1)) == 0) protos = 1u << PROTO_SIMPLE;
  for (uint8_t proto = 0; proto < PROTO_COUNT; proto++) {
    if (((protos >> proto) & 1) == 0) continue;
    const double time_us = tune_time_us(request, func, ALGO_RING, proto, bytes, channels);
    if (least_us < 0 || time_us < least_us) least_us = time_us;
  }
  return least_us;
}

/* Alone, a rank copies. */
static double collective_time_us(const struct plan_request *request, const struct plan_op *op, size_t bytes) {
  struct tune_choice choice;
  if (op->count == 0 || tune_choose(request, op->func, bytes, &choice) != ncclSuccess) return 0;
  if (request->rank_count > 1) return choice.time_us;
  return ring_time_us(request, op->func, request->proto_mask[op->func], bytes, request->limits.channel_count);
}

double plan_time_us(const struct plan_request *request) {
  double total_us = 0, send_us = 0, recv_us = 0;
  for (uint32_t i = 0; i < request->op_count; i++) {
    struct plan_op message = request->ops[i], *op = &message;
    if (op->func == FUNC_ALL_TO_ALL) op->func = FUNC_SEND; /* all of them at once, each as long */
    const size_t bytes = tune_bytes(op->func, op->count, type_bytes(op->dtype), request->rank_count);
    if (!op_is_p2p(op)) {
      total_us += collective_time_us(request, op, bytes);
      continue;
    }
    const uint32_t protos = request->proto_mask[op->func] & ~(1u << PROTO_LL128);
    const double time_us =
        ring_time_us(request, op->func, protos, bytes, request->limits.p2p_channels_per_peer);
    if (op->func == FUNC_SEND) send_us = time_us > send_us ? time_us : send_us;
    else recv_us = time_us > recv_us ? time_us : recv_us;
  }
  return total_us + (send_us > recv_us ? send_us : recv_us);
}
