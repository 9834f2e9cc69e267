/* collective.c: the entry points that move data. Each describes its call, which is checked, converted for
 * planning (bytes if nothing is reduced, sends and receives for gather and scatter) and queued in the group.
 */
#include "core/collective.h"

#include <string.h>

#include "base/callsite.h"
#include "base/log.h"
#include "base/open_group.h"
#include "base/os.h"
#include "core/api.h"
#include "core/copies_note.h"
#include "core/group.h"
#include "core/comm/handles.h"
#include "core/comm/record.h"
#include "core/comm/use.h"
#include "core/plugins/profiler.h"
#include "kernels/kernels.h"

static struct plan_op op_make(uint8_t func, uint32_t peer, const void *in, void *out, size_t bytes) {
  struct plan_op op;
  memset(&op, 0, sizeof op);
  op.func = func;
  op.dtype = ncclInt8;
  op.peer = peer;
  op.count = bytes;
  op.in = in;
  op.out = out;
  return op;
}

/* ---- Functions made of sends and receives ---- */

struct p2p_expansion {
  const struct collective_call *call;
  struct plan_op *ops;
  uint32_t op_count;
  size_t bytes; /* of one block */
};

static void expansion_send(struct p2p_expansion *expansion, uint32_t peer, size_t block) {
  expansion->ops[expansion->op_count++] = op_make(
      FUNC_SEND, peer, (const char *)expansion->call->in + block * expansion->bytes, NULL, expansion->bytes);
}

static void expansion_recv(struct p2p_expansion *expansion, uint32_t peer, size_t block) {
  expansion->ops[expansion->op_count++] = op_make(
      FUNC_RECV, peer, NULL, (char *)expansion->call->out + block * expansion->bytes, expansion->bytes);
}

/* True if a root that works in place already has its own block in place. */
static bool expansion_self_done(const struct p2p_expansion *expansion, uint32_t rank) {
  const struct collective_call *call = expansion->call;
  if ((uint32_t)call->peer != rank) return false;
  if (call->func == FUNC_GATHER) return call->in == (const char *)call->out + rank * expansion->bytes;
  return call->func == FUNC_SCATTER && (const char *)call->in + rank * expansion->bytes == call->out;
}

static void expansion_describe(struct p2p_expansion *expansion) {
  const struct collective_call *call = expansion->call;
  const uint32_t rank = call->comm->rank, root = (uint32_t)call->peer;
  const bool self_done = expansion_self_done(expansion, rank);
  if (call->func == FUNC_GATHER && !self_done) expansion_send(expansion, root, 0);
  if (call->func == FUNC_SCATTER && !self_done) expansion_recv(expansion, root, 0);
  if (rank != root) return;
  for (uint32_t peer = 0; peer < call->comm->rank_count; peer++) {
    if (peer == rank && self_done) continue;
    if (call->func != FUNC_GATHER) expansion_send(expansion, peer, peer);
    if (call->func != FUNC_SCATTER) expansion_recv(expansion, peer, peer);
  }
}

static ncclResult_t p2p_expand(const struct collective_call *call) {
  struct p2p_expansion expansion = {call, NULL, 0, call->count * kernel_type_bytes((uint8_t)call->dtype)};
  const size_t capacity = 2 * (size_t)call->comm->rank_count + 1;
  expansion.ops = (struct plan_op *)os_alloc(capacity * sizeof *expansion.ops);
  if (!expansion.ops) {
    return log_no_memory("%s: rank %u of comm '%s': %zu messages", call->name, call->comm->rank,
                         call->comm->name, capacity);
  }
  expansion_describe(&expansion);
  const ncclResult_t result = group_add_ops(call, expansion.ops, expansion.op_count);
  os_free(expansion.ops);
  return result;
}

/* ---- One operation ---- */

static ncclResult_t reduction_note(const struct collective_call *call) {
  struct plan_op op = op_make(call->func, (uint32_t)call->peer, call->in, call->out, call->count);
  op.dtype = (uint8_t)call->dtype;
  struct redop_resolved resolved;
  TRY(redop_resolve(call->comm, call->name, call->op, call->dtype, &resolved));
  op.op = resolved.op;
  op.op_arg = resolved.op_arg;
  op.scalar = resolved.scalar;
  if (call->func == FUNC_REDUCE && op.peer != call->comm->rank) op.out = NULL;
  return group_add_ops(call, &op, 1);
}

static ncclResult_t move_note(const struct collective_call *call) {
  if (call->func == FUNC_GATHER || call->func == FUNC_SCATTER) return p2p_expand(call);
  const size_t bytes = call->count * kernel_type_bytes((uint8_t)call->dtype);
  const struct plan_op op = op_make(call->func, (uint32_t)call->peer, call->in, call->out, bytes);
  return group_add_ops(call, &op, 1);
}

/* By copy engines, or by a kernel. */
static ncclResult_t carry_note(const struct collective_call *call) {
  struct ncclComm *comm = call->comm;
  struct copies_place place;
  TRY(copies_find(call, &place));
  if (place.number == 0) return move_note(call);
  TRY(copies_note(call, &place));
  __atomic_store_n(&comm->sequence, comm->sequence + 1, __ATOMIC_RELAXED);
  return ncclSuccess;
}

ncclResult_t collective_note(const struct collective_call *call) {
  TRY(collective_check(call));
  TRY(group_check_owner(call->comm, call->name));
  log_info(LOG_COLL,
           "%s: opCount %llx sendbuff %p recvbuff %p count %zu datatype %d op %d root %d comm %p [nranks=%u] "
           "stream %p",
           call->name + 4, (unsigned long long)call->comm->sequence, call->in, call->out, call->count,
           (int)call->dtype, (int)call->op, call->peer, (void *)call->comm, call->comm->rank_count,
           call->stream);
  if (call->count == 0 && call->func != FUNC_SEND && call->func != FUNC_RECV) return ncclSuccess;
  switch (call->func) {
    case FUNC_REDUCE:
    case FUNC_ALL_REDUCE:
    case FUNC_REDUCE_SCATTER: return reduction_note(call);
    default: return carry_note(call);
  }
}

/* Records a call of a group that was just queued or followed. */
static void call_record(const struct collective_call *call, uint64_t ticks) {
  const uint64_t next = call->comm->sequence + call->comm->call_cache.followed;
  const bool counts = call->count != 0 || call->func == FUNC_SEND || call->func == FUNC_RECV;
  record_call(call, ticks, next - counts, group_number());
}

static ncclResult_t call_note(const struct collective_call *call, bool alone) {
  const uint64_t ticks = ticks_now();
  ncclResult_t result = alone ? collective_note(call) : group_note(call);
  if (result == ncclSuccess) result = match_call(call);
  else if (call->comm != NULL && comm_is_ready(call->comm) && comm_async_error(call->comm) != ncclSuccess)
    record_mismatch(call, ticks); /* it may differ from those that failed */
  if (result == ncclSuccess && !alone) open_group_add(call->stream, call->comm->device_index);
  if (result == ncclSuccess) call_record(call, ticks);
  else record_refused(call, result);
  return result;
}

/* call_note() between the events of a profiler plugin. */
static ncclResult_t call_profile(const struct collective_call *call, bool alone) {
  struct ncclComm *comm = call->comm;
  uint64_t graph = 0;
  if (!comm_known_is_ready(comm) || comm->ops->device->stream_capture(call->stream, &graph) != ncclSuccess)
    return call_note(call, alone);
  const struct profiler_call about = {.sequence = comm->sequence,
                                      .in = call->in,
                                      .out = call->out,
                                      .stream = (void *)call->stream,
                                      .count = call->count,
                                      .peer = (uint32_t)call->peer,
                                      .func = call->func,
                                      .dtype = (uint8_t)call->dtype,
                                      .captured = graph != 0};
  profiler_call_begin(comm->profiler, &about);
  const ncclResult_t result = call_note(call, alone);
  profiler_call_end(comm->profiler, comm->sequence != about.sequence);
  if (!comm->queue.queued) profiler_group_end(comm->profiler); /* refused, or of count 0 */
  return result;
}

/* `known`: the communicator is one. */
static ncclResult_t call_run(const struct collective_call *call, bool known) {
  const bool alone = !group_is_open();
  ncclResult_t result;
  if (known && alone && call_cache_launch(call, &result)) return result;
  if (!alone && group_follow(call, known)) {
    result = match_call(call);
    if (result == ncclSuccess) {
      call_record(call, ticks_now());
      open_group_add(call->stream, call->comm->device_index);
      return ncclSuccess;
    }
    record_refused(call, result);
    group_enter();
    return group_leave(result);
  }
  log_call("%s(%p, %p, %zu, %d, %d, %d, %p, %p)", call->name, call->in, call->out, call->count,
           (int)call->dtype, (int)call->op, call->peer, (void *)call->comm, call->stream);
  group_enter();
  result =
      group_leave(known && call->comm->profiler != NULL ? call_profile(call, alone) : call_note(call, alone));
  if (alone && result == ncclSuccess) call_cache_note(call);
  return result;
}

static ncclResult_t collective_run(const char *name, uint8_t func, const void *in, void *out, size_t count,
                                   ncclDataType_t dtype, ncclRedOp_t op, int peer, ncclComm_t comm,
                                   cudaStream_t stream, const void *caller) {
  const struct collective_call call = {
      name, func, in, out, count, dtype, op, peer, comm, (device_stream)stream, caller};
  const bool known = comm != NULL && handles_has(comm);
  if (!known || !use_begin(comm, name, caller)) return call_run(&call, known);
  ncclResult_t result = use_check(comm, name, caller);
  if (result == ncclSuccess) {
    result = call_run(&call, true);
  } else {
    group_enter();
    result = group_leave(result);
  }
  use_end(comm);
  return result;
}

/* ---- Entry points ---- */

ncclResult_t pncclAllReduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                            ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return collective_run("ncclAllReduce", FUNC_ALL_REDUCE, sendbuff, recvbuff, count, datatype, op, 0, comm,
                        stream, CALL_PLACE);
}
API_EXPORT(AllReduce);

ncclResult_t pncclReduce(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                         ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
  return collective_run("ncclReduce", FUNC_REDUCE, sendbuff, recvbuff, count, datatype, op, root, comm,
                        stream, CALL_PLACE);
}
API_EXPORT(Reduce);

ncclResult_t pncclBroadcast(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                            int root, ncclComm_t comm, cudaStream_t stream) {
  return collective_run("ncclBroadcast", FUNC_BROADCAST, sendbuff, recvbuff, count, datatype, ncclSum, root,
                        comm, stream, CALL_PLACE);
}
API_EXPORT(Broadcast);

ncclResult_t pncclBcast(void *buff, size_t count, ncclDataType_t datatype, int root, ncclComm_t comm,
                        cudaStream_t stream) {
  return collective_run("ncclBcast", FUNC_BROADCAST, buff, buff, count, datatype, ncclSum, root, comm, stream,
                        CALL_PLACE);
}
API_EXPORT(Bcast);

ncclResult_t pncclAllGather(const void *sendbuff, void *recvbuff, size_t sendcount, ncclDataType_t datatype,
                            ncclComm_t comm, cudaStream_t stream) {
  return collective_run("ncclAllGather", FUNC_ALL_GATHER, sendbuff, recvbuff, sendcount, datatype, ncclSum, 0,
                        comm, stream, CALL_PLACE);
}
API_EXPORT(AllGather);

ncclResult_t pncclReduceScatter(const void *sendbuff, void *recvbuff, size_t recvcount,
                                ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                                cudaStream_t stream) {
  return collective_run("ncclReduceScatter", FUNC_REDUCE_SCATTER, sendbuff, recvbuff, recvcount, datatype, op,
                        0, comm, stream, CALL_PLACE);
}
API_EXPORT(ReduceScatter);

ncclResult_t pncclAlltoAll(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                           ncclComm_t comm, cudaStream_t stream) {
  return collective_run("ncclAlltoAll", FUNC_ALL_TO_ALL, sendbuff, recvbuff, count, datatype, ncclSum, 0,
                        comm, stream, CALL_PLACE);
}
API_EXPORT(AlltoAll);

ncclResult_t pncclGather(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                         int root, ncclComm_t comm, cudaStream_t stream) {
  return collective_run("ncclGather", FUNC_GATHER, sendbuff, recvbuff, count, datatype, ncclSum, root, comm,
                        stream, CALL_PLACE);
}
API_EXPORT(Gather);

ncclResult_t pncclScatter(const void *sendbuff, void *recvbuff, size_t count, ncclDataType_t datatype,
                          int root, ncclComm_t comm, cudaStream_t stream) {
  return collective_run("ncclScatter", FUNC_SCATTER, sendbuff, recvbuff, count, datatype, ncclSum, root, comm,
                        stream, CALL_PLACE);
}
API_EXPORT(Scatter);

ncclResult_t pncclSend(const void *sendbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                       cudaStream_t stream) {
  return collective_run("ncclSend", FUNC_SEND, sendbuff, NULL, count, datatype, ncclSum, peer, comm, stream,
                        CALL_PLACE);
}
API_EXPORT(Send);

ncclResult_t pncclRecv(void *recvbuff, size_t count, ncclDataType_t datatype, int peer, ncclComm_t comm,
                       cudaStream_t stream) {
  return collective_run("ncclRecv", FUNC_RECV, NULL, recvbuff, count, datatype, ncclSum, peer, comm, stream,
                        CALL_PLACE);
}
API_EXPORT(Recv);
