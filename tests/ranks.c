/* ranks.c: see ranks.h. */
#include "ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/emu/block.h"
#include "base/os.h"
#include "base/param.h"
#include "core/plan/plan.h"
#include "kernels/kernels.h"
#include "values.h"

/* ---- opening ---- */

ncclResult_t ranks_configure(const tutti_emu_config_t *config) {
  ncclResult_t result = tutti_emu_configure(config);
  for (int tries = 0; tries < 1000 && result == ncclInvalidUsage; tries++) {
    os_sleep_ms(1);
    result = tutti_emu_configure(config);
  }
  return result;
}

static ncclResult_t connect_all(struct ranks *ranks, uint32_t rank) {
  struct device_comm *sender = ranks->comms[rank], *receiver = ranks->comms[(rank + 1) % ranks->count];
  for (uint32_t channel = 0; channel < ranks->limits.channel_count; channel++)
    for (uint8_t proto = 0; proto < PROTO_COUNT; proto++)
      TRY(ranks->ops->device->comm_connect(sender, receiver, channel, 0, proto));
  for (uint32_t channel = 0; channel < ranks->limits.p2p_channel_count; channel++) {
    TRY(ranks->ops->device->comm_connect(sender, receiver, channel, 1, PROTO_LL));
    TRY(ranks->ops->device->comm_connect(sender, receiver, channel, 1, PROTO_SIMPLE));
  }
  return ncclSuccess;
}

ncclResult_t ranks_open_bare(struct ranks *ranks, uint32_t count, const struct plan_limits *limits) {
  memset(ranks, 0, sizeof *ranks);
  ranks->ops = emu_backend();
  ranks->count = count;
  ranks->limits = *limits;
  for (uint32_t rank = 0; rank < count; rank++) {
    const struct device_comm_config config = {1, rank, count, rank, ranks->limits, "test", NULL};
    TRY(ranks->ops->device->comm_open(&config, &ranks->comms[rank]));
  }
  return graph_flat(count, &ranks->graph);
}

ncclResult_t ranks_open(struct ranks *ranks, uint32_t count) {
  struct plan_limits limits;
  TRY(emu_backend()->device->limits(&limits));
  limits.first_step = (uint32_t)param_int(PARAM_TUTTI_FIRST_STEP); /* as core/settings */
  TRY(ranks_open_bare(ranks, count, &limits));
  for (uint32_t rank = 0; rank < count; rank++) TRY(connect_all(ranks, rank));
  return ncclSuccess;
}

void ranks_close(struct ranks *ranks) {
  for (uint32_t rank = 0; rank < ranks->count; rank++) ranks->ops->device->comm_close(ranks->comms[rank]);
  graph_free(&ranks->graph);
  memset(ranks, 0, sizeof *ranks);
}

/* done() of wait_until: runs under the backend's lock. */
struct idle_range {
  const struct ranks *ranks;
  uint32_t first, end;
};

static bool range_is_idle(void *argument) {
  const struct idle_range *range = (const struct idle_range *)argument;
  for (uint32_t rank = range->first; rank < range->end; rank++)
    if (range->ranks->comms[rank]->ended != range->ranks->comms[rank]->launches) return false;
  return true;
}

ncclResult_t ranks_error(const struct ranks *ranks) {
  for (uint32_t rank = 0; rank < ranks->count; rank++)
    TRY(ranks->ops->device->comm_error(ranks->comms[rank]));
  return ncclSuccess;
}

ncclResult_t ranks_wait(struct ranks *ranks) { return ranks_wait_for(ranks, 0, ranks->count); }

ncclResult_t ranks_wait_for(struct ranks *ranks, uint32_t first, uint32_t end) {
  struct idle_range range = {ranks, first, end};
  TRY(ranks->ops->device->wait_until(range_is_idle, &range, 0));
  return ranks_error(ranks);
}

/* ---- memory ---- */

static size_t blocks_in(const struct ranks *ranks, const struct call *call) {
  return call->func == FUNC_REDUCE_SCATTER ? ranks->count : 1;
}

static size_t blocks_out(const struct ranks *ranks, const struct call *call) {
  return call->func == FUNC_ALL_GATHER ? ranks->count : 1;
}

/* guard | in | guard | out | guard; in place, the larger buffer has the other at the rank's own block. */
static bool rank_prepare(const struct ranks *ranks, struct call *call, uint32_t rank) {
  const size_t unit = kernel_type_bytes(call->dtype), block_bytes = call->count * unit;
  const size_t in_bytes = blocks_in(ranks, call) * block_bytes;
  const size_t out_bytes = blocks_out(ranks, call) * block_bytes;
  const size_t bytes = in_bytes + out_bytes + 3 * GUARD_BYTES;
  uint8_t *memory = (uint8_t *)malloc(bytes);
  call->memory[rank] = memory;
  if (memory == NULL) return false;
  memset(memory, GUARD_BYTE, bytes);
  call->in[rank] = memory + GUARD_BYTES;
  call->out[rank] = call->in[rank] + in_bytes + GUARD_BYTES;
  if (call->in_place && call->func == FUNC_ALL_GATHER) call->in[rank] = call->out[rank] + rank * block_bytes;
  else if (call->in_place && call->func == FUNC_REDUCE_SCATTER)
    call->out[rank] = call->in[rank] + rank * block_bytes;
  else if (call->in_place) call->out[rank] = call->in[rank];
  memset(call->out[rank], STALE_BYTE, out_bytes);
  for (size_t i = 0; i < in_bytes / unit; i++)
    value_store(call->dtype, call->in[rank] + i * unit, value_input(call->sequence, rank, i));
  return true;
}

bool call_prepare(struct ranks *ranks, struct call *call) {
  call->sequence = ranks->sequence++;
  memset(call->memory, 0, sizeof call->memory);
  for (uint32_t rank = 0; rank < ranks->count; rank++)
    if (!rank_prepare(ranks, call, rank)) return false;
  return true;
}

void call_free(struct call *call) {
  for (uint32_t rank = 0; rank < RANKS_MAX; rank++) free(call->memory[rank]);
  memset(call->memory, 0, sizeof call->memory);
}

/* ---- launching ---- */

static uint32_t rank_behind(const struct ranks *ranks, const struct call *call, uint32_t rank) {
  return (rank + ranks->count - 1 - call->skips) % ranks->count;
}

static uint32_t ops_of_call(const struct ranks *ranks, uint32_t rank, const struct call *call, size_t count,
                            struct plan_op ops[2]) {
  const struct plan_op op = {.func = call->func,
                             .dtype = call->dtype,
                             .op = OP_SUM,
                             .peer = call->root,
                             .count = count,
                             .in = call->in[rank],
                             .out = call->out[rank],
                             .sequence = call->sequence};
  ops[0] = ops[1] = op;
  if (call->func != FUNC_SEND_RECV) return 1;
  ops[0].func = FUNC_SEND;
  ops[0].peer = (rank + 1 + call->skips) % ranks->count;
  ops[0].out = NULL;
  ops[1].func = FUNC_RECV;
  ops[1].peer = rank_behind(ranks, call, rank);
  ops[1].in = NULL;
  return 2;
}

static ncclResult_t connect_plan_of(struct ranks *ranks, const struct plan *plan) {
  for (uint32_t i = 0; i < plan->work_count; i++) {
    const struct work *work = &plan->works[i];
    struct device_comm *own = ranks->comms[work->rank];
    for (uint32_t k = 0; k < work->recv_count; k++)
      TRY(ranks->ops->device->comm_connect(ranks->comms[work->recv_peer[k]], own, work->channel_index,
                                           work_link_conn(work, work->recv_peer[k], false),
                                           work_slots(work)));
    for (uint32_t k = 0; k < work->send_count; k++)
      TRY(ranks->ops->device->comm_connect(own, ranks->comms[work->send_peer[k]], work->channel_index,
                                           work_link_conn(work, work->send_peer[k], true), work_slots(work)));
  }
  return ncclSuccess;
}

ncclResult_t call_launch(struct ranks *ranks, uint32_t rank, const struct call *call, size_t count) {
  struct plan_op ops[2];
  struct plan_request request;
  struct plan plan;
  uint32_t groups[RANKS_MAX] = {0};
  memset(&request, 0, sizeof request);
  for (uint32_t peer = 0; peer < ranks->count && ranks->remote != NULL; peer++)
    groups[peer] = peer != rank && ranks->remote[rank][peer] != 0;
  request.groups = groups;
  request.rank = rank;
  request.rank_count = ranks->count;
  request.graph = &ranks->graph;
  request.settings.limits = ranks->limits;
  request.settings.reads_slots = ranks->reads_slots;
  request.ops = ops;
  request.op_count = ops_of_call(ranks, rank, call, count, ops);
  request.settings.p2p_ll_threshold = call->proto == PROTO_LL ? 1 << 30 : 0;
  for (uint32_t func = 0; func < FUNC_COUNT; func++) {
    request.settings.algo_mask[func] = ranks->algo_mask != 0 ? ranks->algo_mask : 1u << ALGO_RING;
    request.settings.proto_mask[func] = 1u << call->proto;
  }
  TRY(plan_build(&request, &plan));
  const device_stream stream = NULL;
  if (ranks->launch != NULL) {
    const ncclResult_t launched = ranks->launch(ranks, rank, &plan);
    plan_free(&plan);
    return launched;
  }
  const bool lacks = ranks->algo_mask != 0 || ranks->reads_slots;
  ncclResult_t result = lacks ? connect_plan_of(ranks, &plan) : ncclSuccess;
  if (result == ncclSuccess) result = ranks->ops->device->launch(ranks->comms[rank], &plan, &stream, 1);
  plan_free(&plan);
  return result;
}

ncclResult_t call_launch_all(struct ranks *ranks, const struct call *call) {
  for (uint32_t rank = 0; rank < ranks->count; rank++) TRY(call_launch(ranks, rank, call, call->count));
  return ncclSuccess;
}

/* ---- expected results ---- */

static double sum_of(const struct ranks *ranks, const struct call *call, size_t index) {
  double sum = 0;
  for (uint32_t rank = 0; rank < ranks->count; rank++) sum += value_input(call->sequence, rank, index);
  return sum;
}

static double expected_of(const struct ranks *ranks, const struct call *call, uint32_t rank, size_t index) {
  switch (call->func) {
    case FUNC_BROADCAST: return value_input(call->sequence, call->root, index);
    case FUNC_ALL_GATHER:
      return value_input(call->sequence, (uint32_t)(index / call->count), index % call->count);
    case FUNC_REDUCE_SCATTER: return sum_of(ranks, call, rank * call->count + index);
    case FUNC_SEND_RECV: return value_input(call->sequence, rank_behind(ranks, call, rank), index);
    default: return sum_of(ranks, call, index);
  }
}

static bool guards_are_intact(const struct ranks *ranks, const struct call *call, uint32_t rank) {
  const size_t block_bytes = call->count * kernel_type_bytes(call->dtype);
  const uint8_t *middle = call->memory[rank] + GUARD_BYTES + blocks_in(ranks, call) * block_bytes;
  const uint8_t *last = middle + GUARD_BYTES + blocks_out(ranks, call) * block_bytes;
  return guard_is_intact(call->memory[rank]) && guard_is_intact(middle) && guard_is_intact(last);
}

static bool rank_check(const struct ranks *ranks, const struct call *call, uint32_t rank, char *text) {
  const size_t unit = kernel_type_bytes(call->dtype), count = blocks_out(ranks, call) * call->count;
  const bool has_result = call->func != FUNC_REDUCE || rank == call->root;
  for (size_t i = 0; i < count && has_result; i++) {
    const double found = value_load(call->dtype, call->out[rank] + i * unit);
    const double wanted = expected_of(ranks, call, rank, i);
    if (found == wanted) continue;
    snprintf(text, RANKS_TEXT_BYTES,
             "call %u (%s, protocol %u, %s, count %zu): rank %u element %zu is %g, not %g",
             (unsigned)call->sequence, emu_func_name(call->func), call->proto, kernel_type_name(call->dtype),
             call->count, rank, i, found, wanted);
    return false;
  }
  if (guards_are_intact(ranks, call, rank)) return true;
  snprintf(text, RANKS_TEXT_BYTES, "call %u (%s, count %zu): rank %u has bytes outside of its buffers",
           (unsigned)call->sequence, emu_func_name(call->func), call->count, rank);
  return false;
}

bool call_check(const struct ranks *ranks, const struct call *call, char text[RANKS_TEXT_BYTES]) {
  for (uint32_t rank = 0; rank < ranks->count; rank++)
    if (!rank_check(ranks, call, rank, text)) return false;
  return true;
}

uint64_t call_hash(const struct ranks *ranks, const struct call *call, uint64_t hash) {
  const size_t bytes = blocks_out(ranks, call) * call->count * kernel_type_bytes(call->dtype);
  for (uint32_t rank = 0; rank < ranks->count; rank++)
    for (size_t i = 0; i < bytes; i++) hash = (hash ^ call->out[rank][i]) * UINT64_C(0x100000001b3);
  return hash;
}
