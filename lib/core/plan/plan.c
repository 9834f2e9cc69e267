/* plan.c: turns a group's operations into works and batches: first collectives (plan_collective.c,
 * plan_fused.c), then sends and receives in the order of the rounds in which their ends meet (plan_p2p.c);
 * finally all are sorted by channel. Every rank processes the same rounds and forms the same batches, so no
 * batch of one rank waits for a later batch of another. */
#include "core/plan/plan.h"

#include <string.h>

#include "base/array.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/os.h"
#include "core/custom/custom.h"
#include "core/plan/plan_cache.h"
#include "core/plan/plan_draft.h"
#include "core/plan/rules.h"
#include "core/plan/tune.h"

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
  limits->algos_last = PLAN_ALGOS_LAST;
  limits->links = STEP_LINKS_MAX;
}

void plan_limits_reserve(struct plan_limits *limits) {
  if (limits->reserved_bytes != 0) return;
  limits->reserved_bytes = PLAN_RESERVED_BYTES;
  limits->step_bytes[PROTO_SIMPLE] += PLAN_RESERVED_BYTES;
}

void plan_request_begin(struct plan_request *request, uint32_t rank_count, const struct graph *graph) {
  memset(request, 0, sizeof *request);
  request->rank_count = rank_count;
  request->graph = graph;
  request->groups = graph != NULL && graph->node_count > 1 ? graph->node : NULL;
  plan_limits_default(&request->settings.limits);
  for (uint32_t func = 0; func < FUNC_COUNT; func++) {
    request->settings.algo_mask[func] = (1u << ALGO_COUNT) - 1;
    request->settings.proto_mask[func] = (1u << PROTO_COUNT) - 1;
  }
}

#define ROWS_FIRST 8

ncclResult_t plan_out_of_memory(const struct plan_request *request) {
  return log_no_memory("rank %u: a plan of %u operations", request->rank, request->op_count);
}

/* Keeps the contents of the block. */
bool plan_block_reserve(void **block, size_t *capacity_bytes, size_t bytes) {
  if (bytes <= *capacity_bytes) return true;
  if (!array_resize(block, bytes, 1)) return false;
  *capacity_bytes = bytes;
  return true;
}

static bool draft_reserve(struct draft *draft) {
  struct plan_memory *memory = draft->memory;
  const size_t rows = memory->draft_bytes / sizeof *draft->rows;
  if (draft->count < rows) return true;
  const size_t grown = rows == 0 ? ROWS_FIRST : 2 * rows;
  if (!plan_block_reserve(&memory->draft, &memory->draft_bytes, grown * sizeof *draft->rows)) return false;
  draft->rows = (struct draft_row *)memory->draft;
  return true;
}

ncclResult_t draft_add(struct draft *draft, const struct work *work, const void *in, void *out,
                       uint64_t batch_id) {
  if (!draft_reserve(draft)) return plan_out_of_memory(draft->request);
  struct draft_row *row = &draft->rows[draft->count++];
  row->work = *work;
  row->buffers = (struct plan_buffers){.in = in, .out = out};
  row->batch_id = batch_id;
  return ncclSuccess;
}
uint32_t plan_type_bytes(uint8_t dtype) {
  static const uint8_t bytes[ncclNumTypes] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return bytes[dtype];
}

bool plan_op_is_message(const struct plan_op *op) { return op->func == FUNC_SEND || op->func == FUNC_RECV; }

/* ---- all-to-all ---- */

/* For all-to-all, "Ring" means messages. If Direct is possible, messages are used unless the user excludes
 * them, or CPU cores are the devices, or the backend has a fast direct kernel that takes less time for this
 * size. A custom schedule is used if messages are excluded. */
static bool all_to_all_is_direct(const struct plan_request *request, const struct plan_op *op) {
  const bool messages = ((request->settings.algo_mask[FUNC_ALL_TO_ALL] >> ALGO_RING) & 1) != 0;
  const bool cores = request->settings.limits.cores && request->settings.limits.reserved_bytes == 0;
  if (request->rank_count == 1) return false;
  if (!messages && request->custom != NULL && custom_func(request->custom) == FUNC_ALL_TO_ALL &&
      ((request->settings.algo_mask[FUNC_ALL_TO_ALL] >> ALGO_CUSTOM) & 1) != 0)
    return true;
  if (messages && !cores) return tune_direct_is_best(request, op->count * plan_type_bytes(op->dtype));
  for (uint8_t proto = 0; proto < PROTO_COUNT; proto++)
    if (rules_forbid(request, FUNC_ALL_TO_ALL, ALGO_DIRECT, proto) == NULL) return true;
  return false;
}

/* One block to each rank and one from each, in rank order. */
static struct plan_op *all_to_all_messages(const struct plan_op *op, uint32_t rank_count,
                                           struct plan_op *message) {
  const size_t bytes = op->count * plan_type_bytes(op->dtype);
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

/* Replaces each all-to-all that uses messages by its sends and receives. */
static ncclResult_t request_expand(struct plan_request *request, struct plan_memory *memory) {
  const struct plan_request given = *request;
  uint32_t expansions = 0;
  for (uint32_t i = 0; i < request->op_count; i++) {
    if (request->ops[i].func != FUNC_ALL_TO_ALL) continue;
    if (!all_to_all_is_direct(request, &request->ops[i])) expansions += 1;
  }
  request->settings.algo_mask[FUNC_ALL_TO_ALL] &= ~(1u << ALGO_RING); /* which only meant messages */
  if (expansions == 0) return ncclSuccess;
  const size_t count = request->op_count + (size_t)expansions * (2 * request->rank_count - 1);
  if (!plan_block_reserve(&memory->messages, &memory->message_bytes, count * sizeof *request->ops))
    return plan_out_of_memory(request);
  struct plan_op *next = (struct plan_op *)memory->messages;
  for (uint32_t i = 0; i < request->op_count; i++) {
    const struct plan_op *op = &given.ops[i];
    if (op->func != FUNC_ALL_TO_ALL || all_to_all_is_direct(&given, op)) *next++ = *op;
    else next = all_to_all_messages(op, given.rank_count, next);
  }
  request->ops = (const struct plan_op *)memory->messages;
  request->op_count = (uint32_t)count;
  return ncclSuccess;
}
/* ---- putting it together ---- */

static uint32_t draft_channels(const struct draft *draft) {
  uint32_t channel_count = 0;
  for (uint32_t i = 0; i < draft->count; i++)
    if (draft->rows[i].work.channel_index >= channel_count)
      channel_count = draft->rows[i].work.channel_index + 1u;
  return channel_count;
}

/* Index of each channel's first work; one entry more than there are channels. */
static void draft_measure(const struct draft *draft, uint32_t channel_count, uint32_t *begin) {
  for (uint32_t channel = 0; channel <= channel_count; channel++) begin[channel] = 0;
  for (uint32_t i = 0; i < draft->count; i++) begin[draft->rows[i].work.channel_index + 1u] += 1;
  for (uint32_t channel = 0; channel < channel_count; channel++) begin[channel + 1] += begin[channel];
}

/* Stable: a channel's works keep the order of generation. `ids` are the batches' ids by place. */
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

/* Sets the batches, channel by channel. */
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
  if (!plan_block_reserve(&memory->plan, &memory->plan_bytes,
                          (draft->count > 0 ? draft->count : 1) * row_bytes))
    return plan_out_of_memory(request);
  memset(&fresh, 0, sizeof fresh);
  fresh.works = (struct work *)memory->plan;
  fresh.buffers = (struct plan_buffers *)(fresh.works + draft->count);
  uint64_t *ids = (uint64_t *)(fresh.buffers + draft->count);
  fresh.batches = (struct plan_batch *)(ids + draft->count);
  fresh.rank = request->rank;
  fresh.rank_count = request->rank_count;
  fresh.work_count = draft->count;
  fresh.limits = request->settings.limits;
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
  plan_cache_free(memory->cache);
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
  if (result == ncclSuccess) memory.plan = NULL; /* the plan owns it now */
  plan_memory_free(&memory);
  return result;
}

void plan_free(struct plan *plan) {
  os_free(plan->works);
  memset(plan, 0, sizeof *plan);
}

/* The least time of Ring over a set of protocols; of Simple if the set is empty. */
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

/* A single rank only copies. */
static double collective_time_us(const struct plan_request *request, const struct plan_op *op, size_t bytes) {
  struct tune_choice choice;
  struct plan_request alone = *request;
  alone.settings.tuner = NULL; /* other ranks need not ask for the time, and so not the plugin */
  if (op->count == 0 || tune_choose(&alone, op->func, bytes, &choice) != ncclSuccess) return 0;
  if (request->rank_count > 1) return choice.time_us;
  return ring_time_us(request, op->func, request->settings.proto_mask[op->func], bytes,
                      request->settings.limits.channel_count);
}

double plan_time_us(const struct plan_request *request) {
  double total_us = 0, send_us = 0, recv_us = 0;
  for (uint32_t i = 0; i < request->op_count; i++) {
    struct plan_op message = request->ops[i], *op = &message;
    if (op->func == FUNC_ALL_TO_ALL) op->func = FUNC_SEND; /* concurrent messages of equal length */
    const size_t bytes = tune_bytes(op->func, op->count, plan_type_bytes(op->dtype), request->rank_count);
    if (!plan_op_is_message(op)) {
      total_us += collective_time_us(request, op, bytes);
      continue;
    }
    const uint32_t protos = request->settings.proto_mask[op->func] & ~(1u << PROTO_LL128);
    const double time_us =
        ring_time_us(request, op->func, protos, bytes, request->settings.limits.p2p_channels_per_peer);
    if (op->func == FUNC_SEND) send_us = time_us > send_us ? time_us : send_us;
    else recv_us = time_us > recv_us ? time_us : recv_us;
  }
  return total_us + (send_us > recv_us ? send_us : recv_us);
}

uint64_t plan_digest(const struct plan *plan) {
  uint64_t digest = HASH_SEED;
  for (uint32_t i = 0; i < plan->work_count; i++) {
    const struct work *work = &plan->works[i];
    const uint64_t sizes[] = {work->func,        work->algo,        work->proto,       work->channel_index,
                              work->chunk_steps, work->slice_steps, work->count,       work->part_offset,
                              work->part_count,  work->chunk_count, work->op_sequence, work->op};
    if (work->func <= FUNC_ALL_REDUCE) digest = hash_bytes(digest, sizes, sizeof sizes);
  }
  return digest;
}
