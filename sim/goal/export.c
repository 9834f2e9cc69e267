/* export.c: see export.h. Dependences: a slice's sends wait for all data that its lane has received so far,
 * and begin after the lane's previous sends; a lane of a later batch waits for the lanes of the previous
 * batch. FIFO slots are omitted: the reader of the file decides how far a sender may be ahead. */
#include "goal/export.h"

#include <inttypes.h>
#include <string.h>

#include "base/array.h"
#include "base/log.h"
#include "base/map.h"
#include "base/os.h"
#include "steps/slices.h"

#define NO_OP UINT32_MAX

/* A connection: messages so far at each end. */
struct export_conn {
  uint32_t sent, received;
  uint32_t recv_op; /* of the slot that is being read, or NO_OP */
};

struct op_list {
  uint32_t *ops, count, capacity;
};

/* One call's plans, with the counters of each of its connections. */
struct export_call {
  struct sim_net net;
  struct export_conn **conns, *own; /* own: connections that no earlier call had */
  uint32_t *first_block;            /* by rank, and one more */
};

struct goal_export {
  struct goal_build *build;
  struct goal_export_costs costs;
  struct slices *slices;
  uint32_t tag_base;
  struct map conns; /* of all calls, by ends, channel and index */
  struct export_call **calls;
  uint32_t call_count;
  const struct export_call *call;    /* whose steps are being written */
  struct op_list pending;            /* of the lane: what its next send waits for */
  struct op_list ends, before_batch; /* of this and the previous batch: the operations that end their lanes */
  struct op_list done;               /* of the rank's blocks: the operations that end them */
  uint32_t last_send;                /* of the lane, or NO_OP */
};

static ncclResult_t list_add(struct op_list *list, uint32_t op) {
  TRY(array_reserve(&list->ops, &list->capacity, (uint64_t)list->count + 1, sizeof *list->ops,
                    "the waits of a lane"));
  list->ops[list->count++] = op;
  return ncclSuccess;
}

static ncclResult_t op_add(struct goal_export *out, const struct goal_op *op, uint32_t *index) {
  *index = goal_build_op(out->build, op);
  if (*index != NO_OP) return ncclSuccess;
  return log_no_memory("the steps of a rank");
}

static ncclResult_t op_wait(struct goal_export *out, uint32_t op, const struct op_list *list) {
  for (uint32_t i = 0; i < list->count; i++) TRY(goal_build_edge(out->build, list->ops[i], op, false));
  return ncclSuccess;
}

/* Tags distinguish the connections of two ranks, and the messages of a connection. */
static ncclResult_t tag_of(const struct goal_export *out, const struct sim_conn *conn, uint32_t message,
                           uint32_t *tag) {
  enum { CHANNEL_BITS = 6, INDEX_BITS = 2, MESSAGE_BITS = 22 };
  if (conn->channel >> CHANNEL_BITS != 0 || conn->index >> INDEX_BITS != 0 || message >> MESSAGE_BITS != 0)
    return log_fail(ncclInvalidUsage,
                    "from %" PRIu32 " to %" PRIu32
                    " on channel %u: more than 2^%d messages, which "
                    "is as many as a tag tells apart; export fewer bytes",
                    conn->sender, conn->receiver, conn->channel, MESSAGE_BITS);
  *tag = out->tag_base | message << (CHANNEL_BITS + INDEX_BITS) | (uint32_t)conn->index << CHANNEL_BITS |
         conn->channel;
  return ncclSuccess;
}

static ncclResult_t message_add(struct goal_export *out, uint32_t conn_index, bool send, uint64_t bytes,
                                uint32_t *index) {
  const struct sim_conn *conn = &out->call->net.conns[conn_index];
  struct export_conn *own = out->call->conns[conn_index];
  const uint32_t rank = send ? conn->sender : conn->receiver, peer = send ? conn->receiver : conn->sender;
  struct goal_op op;
  memset(&op, 0, sizeof op);
  op.kind = send ? GOAL_SEND : GOAL_RECV;
  op.size = bytes;
  op.peer = goal_distance(out->build->goal, rank, peer);
  op.cpu = (uint8_t)conn->channel;
  TRY(tag_of(out, conn, send ? own->sent++ : own->received++, &op.tag));
  return op_add(out, &op, index);
}

/* ---- one slice ---- */

static ncclResult_t slice_receive(struct goal_export *out, const struct sim_lane *lane,
                                  const struct sim_slice *slice) {
  for (uint32_t i = 0; i < lane->work->recv_count; i++) {
    const uint32_t conn = out->call->net.links[lane->first_link + i];
    struct export_conn *own = out->call->conns[conn];
    const uint64_t bytes = slice->moves[i].moved;
    if (bytes > 0 && own->recv_op == NO_OP) {
      TRY(message_add(out, conn, false, 0, &own->recv_op));
      TRY(op_wait(out, own->recv_op, &out->before_batch));
      TRY(list_add(&out->pending, own->recv_op));
    }
    if (bytes > 0) out->build->ops[own->recv_op].size += bytes;
    if ((slice->frees >> i & 1) != 0) own->recv_op = NO_OP;
  }
  return ncclSuccess;
}

/* The rank's own work on the data, as one computation. */
static ncclResult_t slice_compute(struct goal_export *out, const struct sim_lane *lane,
                                  const struct sim_slice *slice) {
  struct goal_op op;
  const uint64_t reduce_ns = (slice->flags & STEP_REDUCE) != 0 ? out->costs.reduce_ns : 0;
  const uint64_t copy_ns = (slice->flags & STEP_KEEP) != 0 ? out->costs.copy_ns : 0;
  uint32_t index;
  memset(&op, 0, sizeof op);
  op.kind = GOAL_CALC;
  const uint64_t blocks =
      slice->is_each && slice->recv_links ? (uint64_t)__builtin_popcountll(slice->recv_links) : 1;
  op.size = slice->bytes * blocks * (reduce_ns + copy_ns) / 1024;
  op.cpu = (uint8_t)lane->work->channel_index;
  if (op.size == 0) return ncclSuccess;
  TRY(op_add(out, &op, &index));
  TRY(op_wait(out, index, out->pending.count > 0 ? &out->pending : &out->before_batch));
  out->pending.count = 0;
  return list_add(&out->pending, index);
}

/* The sends wait for everything pending; later operations wait only for the start of the sends. */
static ncclResult_t slice_send(struct goal_export *out, const struct sim_lane *lane,
                               const struct sim_slice *slice) {
  uint32_t sent = NO_OP;
  for (uint32_t i = 0; i < lane->work->send_count; i++) {
    const uint32_t conn = out->call->net.links[lane->first_link + lane->work->recv_count + i];
    const uint64_t bytes = slice->moves[lane->work->recv_count + i].held;
    if ((slice->announces >> i & 1) == 0 || bytes == 0) continue;
    TRY(message_add(out, conn, true, bytes, &sent));
    TRY(op_wait(out, sent,
                out->pending.count > 0 || out->last_send != NO_OP ? &out->pending : &out->before_batch));
    if (out->last_send != NO_OP) TRY(goal_build_edge(out->build, out->last_send, sent, true));
  }
  if (sent == NO_OP) return ncclSuccess;
  out->pending.count = 0;
  out->last_send = sent;
  return ncclSuccess;
}

static ncclResult_t lane_add(struct goal_export *out, const struct sim_lane *lane) {
  const struct plan *plan = &out->call->net.plans[lane->rank];
  const struct sim_slice *slice;
  out->pending.count = 0;
  out->last_send = NO_OP;
  slices_begin(out->slices, &plan->limits, lane->work);
  while ((slice = slices_next(out->slices)) != NULL) {
    if ((slice->flags & STEP_AWAIT_LIST) != 0)
      return log_fail(ncclInvalidUsage, "rank %" PRIu32 ": lists that wait for each other cannot be exported",
                      lane->rank);
    TRY(slice_receive(out, lane, slice));
    TRY(slice_compute(out, lane, slice));
    TRY(slice_send(out, lane, slice));
  }
  for (uint32_t i = 0; i < out->pending.count; i++) TRY(list_add(&out->ends, out->pending.ops[i]));
  return out->last_send == NO_OP ? ncclSuccess : list_add(&out->ends, out->last_send);
}

/* One batch after another; a batch without messages passes its dependences to the next. */
static ncclResult_t block_add(struct goal_export *out, const struct sim_block *block) {
  out->ends.count = 0;
  for (uint32_t i = 0; i < block->lane_count; i++) {
    const struct sim_lane *lane = &out->call->net.lanes[block->first_lane + i];
    if (i > 0 && lane->batch != lane[-1].batch && out->ends.count > 0) {
      const struct op_list ends = out->ends;
      out->ends = out->before_batch;
      out->before_batch = ends;
      out->ends.count = 0;
    }
    TRY(lane_add(out, lane));
  }
  return ncclSuccess;
}

/* ---- calls ---- */

static ncclResult_t fail_memory(void) { return log_no_memory("a call's connections"); }

/* The connection's counters, shared by all calls. */
static ncclResult_t conn_get(struct goal_export *out, struct export_call *call, uint32_t index,
                             uint32_t *fresh) {
  const struct sim_conn *conn = &call->net.conns[index];
  const uint64_t ends = (uint64_t)conn->sender << 32 | conn->receiver << 8;
  const uint64_t key = (ends | (uint64_t)(conn->channel & 63) << 2 | (conn->index & 3)) + 1;
  call->conns[index] = (struct export_conn *)map_find(&out->conns, key);
  if (call->conns[index] != NULL) return ncclSuccess;
  if (!map_reserve(&out->conns)) return fail_memory();
  call->conns[index] = &call->own[(*fresh)++];
  call->conns[index]->recv_op = NO_OP;
  map_insert(&out->conns, key, call->conns[index]);
  return ncclSuccess;
}

static ncclResult_t call_fill(struct goal_export *out, struct export_call *call) {
  const struct sim_net *net = &call->net;
  uint32_t fresh = 0, block = 0;
  call->conns = (struct export_conn **)os_alloc(net->conn_count * sizeof *call->conns);
  call->own = (struct export_conn *)os_alloc(net->conn_count * sizeof *call->own);
  call->first_block = (uint32_t *)os_alloc((net->rank_count + (size_t)1) * sizeof *call->first_block);
  if (call->conns == NULL || call->own == NULL || call->first_block == NULL) return fail_memory();
  for (uint32_t i = 0; i < net->conn_count; i++) TRY(conn_get(out, call, i, &fresh));
  for (uint32_t rank = 0; rank <= net->rank_count; rank++) {
    while (block < net->block_count && net->blocks[block].rank < rank) block++;
    call->first_block[rank] = block;
  }
  return ncclSuccess;
}

ncclResult_t goal_export_open(struct goal_build *build, const struct goal_export_costs *costs,
                              uint32_t tag_base, struct goal_export **opened) {
  struct goal_export *out = (struct goal_export *)os_alloc(sizeof *out);
  if (out == NULL) return fail_memory();
  out->slices = slices_open();
  if (out->slices == NULL) {
    os_free(out);
    return fail_memory();
  }
  out->build = build;
  out->costs = *costs;
  out->tag_base = tag_base;
  *opened = out;
  return ncclSuccess;
}

ncclResult_t goal_export_call(struct goal_export *out, const struct plan *plans, uint32_t rank_count,
                              uint32_t *number) {
  if (!array_resize(&out->calls, (uint64_t)out->call_count + 1, sizeof *out->calls)) return fail_memory();
  struct export_call *call = (struct export_call *)os_alloc(sizeof *call);
  if (call == NULL) return fail_memory();
  out->calls[out->call_count++] = call; /* goal_export_close() frees it from here on */
  TRY(sim_net_make(plans, rank_count, &call->net));
  TRY(call_fill(out, call));
  *number = out->call_count - 1;
  return ncclSuccess;
}

ncclResult_t goal_export_rank(struct goal_export *out, uint32_t number, uint32_t rank, uint32_t after,
                              uint32_t before) {
  const struct export_call *call = out->calls[number];
  out->call = call;
  out->done.count = 0;
  for (uint32_t block = call->first_block[rank]; block < call->first_block[rank + 1]; block++) {
    out->before_batch.count = 0;
    if (after != NO_OP) TRY(list_add(&out->before_batch, after));
    TRY(block_add(out, &call->net.blocks[block]));
    for (uint32_t i = 0; i < out->ends.count; i++) TRY(list_add(&out->done, out->ends.ops[i]));
  }
  if (after != NO_OP && out->done.count == 0) TRY(list_add(&out->done, after));
  return before == NO_OP ? ncclSuccess : op_wait(out, before, &out->done);
}

void goal_export_close(struct goal_export *out) {
  if (out == NULL) return;
  for (uint32_t i = 0; i < out->call_count; i++) {
    sim_net_free(&out->calls[i]->net);
    os_free(out->calls[i]->conns);
    os_free(out->calls[i]->own);
    os_free(out->calls[i]->first_block);
    os_free(out->calls[i]);
  }
  map_clear(&out->conns);
  slices_close(out->slices);
  os_free(out->calls);
  os_free(out->pending.ops);
  os_free(out->ends.ops);
  os_free(out->before_batch.ops);
  os_free(out->done.ops);
  os_free(out);
}

ncclResult_t goal_export_plans(const struct plan *plans, uint32_t rank_count,
                               const struct goal_export_costs *costs, struct goal *goal) {
  struct goal_export *out = NULL;
  struct goal_build build;
  uint32_t number;
  ncclResult_t result = goal_build_open(&build, goal, rank_count);
  if (result == ncclSuccess) result = goal_export_open(&build, costs, 0, &out);
  if (result == ncclSuccess) result = goal_export_call(out, plans, rank_count, &number);
  for (uint32_t rank = 0; rank < rank_count && result == ncclSuccess; rank++) {
    result = goal_export_rank(out, number, rank, NO_OP, NO_OP);
    if (result == ncclSuccess) result = goal_build_rank(&build, rank, 0);
  }
  goal_export_close(out);
  goal_build_close(&build);
  if (result != ncclSuccess) goal_free(goal);
  return result;
}
