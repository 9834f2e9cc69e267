/* replay_plan.c: makes the plans of recorded operations again. What the record has of a plan (algorithm,
 * protocol, channels, chunks, a digest) is forced, or guessed until the digest matches; if no guess matches,
 * a remark says so, and the closest plan is used. */
#include <string.h>

#include "base/array.h"
#include "base/log.h"
#include "base/os.h"
#include "core/plan/tune_file.h"
#include "kernels/kernels.h"
#include "replay/replay.h"
#include "trace/record_text.h"

#define LL_THRESHOLD 16384u     /* NCCL_P2P_LL_THRESHOLD's default */
#define NET_CHUNK_BYTES 131072u /* NCCL_P2P_NET_CHUNKSIZE's default */
#define RESERVED_BYTES 256u     /* that connections over networks keep in each slot */

/* ---- operations ---- */

struct op_list {
  struct plan_op *ops;
  uint32_t count, capacity;
};

static struct plan_op *ops_next(struct op_list *list) {
  if (!array_grow(&list->ops, &list->capacity, (uint64_t)list->count + 1, sizeof *list->ops)) return NULL;
  struct plan_op *op = &list->ops[list->count++];
  memset(op, 0, sizeof *op);
  return op;
}

struct op_memory {
  uint8_t *in, *out;
};

/* In place stays in place, also if one buffer is within the other. */
static struct op_memory op_memory(const struct replay *replay, const struct replay_op *op, uint8_t *memory) {
  const uint64_t in = op->place.in, out = op->place.out;
  const uint64_t ahead = in - out, behind = out - in;
  struct op_memory found = {memory, memory + replay->buffer_bytes};
  if (in != 0 && out != 0 && ahead < replay->buffer_bytes) found.in = found.out + ahead;
  else if (in != 0 && out != 0 && behind < replay->buffer_bytes) found.out = found.in + behind;
  return found;
}

static bool list_add_message(struct op_list *list, uint8_t func, uint32_t peer, uint8_t *data, size_t bytes) {
  struct plan_op *op = ops_next(list);
  if (op == NULL) return false;
  op->func = func;
  op->dtype = ncclInt8;
  op->peer = peer;
  op->count = bytes;
  if (func == FUNC_SEND) op->in = data;
  else op->out = data;
  return true;
}

/* Gather and scatter: messages to and from the root. */
static bool list_add_p2p_expansion(struct op_list *list, const struct replay_comm *comm, uint32_t rank,
                                   const struct record_call *call, struct op_memory at, size_t bytes) {
  const bool gathers = call->func == FUNC_GATHER;
  const bool done =
      rank == call->peer && (gathers ? at.in == at.out + rank * bytes : at.in + rank * bytes == at.out);
  bool good = done || list_add_message(list, gathers ? FUNC_SEND : FUNC_RECV, call->peer,
                                       gathers ? at.in : at.out, bytes);
  for (uint32_t peer = 0; rank == call->peer && peer < comm->rank_count && good; peer++) {
    if (peer == rank && done) continue;
    good = list_add_message(list, gathers ? FUNC_RECV : FUNC_SEND, peer,
                            (gathers ? at.out : at.in) + peer * bytes, bytes);
  }
  return good;
}

static uint8_t kernel_op(const struct record_call *call) {
  if (call->op == ncclAvg) return call->dtype >= ncclFloat16 ? OP_PRE_MUL_SUM : OP_SUM_POST_DIV;
  return call->op < ncclAvg ? call->op : (uint8_t)OP_PRE_MUL_SUM;
}

static bool list_add(struct op_list *list, const struct replay *replay, const struct replay_comm *comm,
                     uint32_t rank, const struct replay_op *said, uint8_t *memory) {
  const struct record_call *call = &said->call;
  const struct op_memory at = op_memory(replay, said, memory);
  const size_t bytes = (size_t)call->count * kernel_type_bytes(call->dtype);
  const bool reduces = func_reduces(call->func);
  if (call->func == FUNC_GATHER || call->func == FUNC_SCATTER)
    return list_add_p2p_expansion(list, comm, rank, call, at, bytes);
  if (is_message(call->func))
    return list_add_message(list, call->func, call->peer, call->func == FUNC_SEND ? at.in : at.out, bytes);
  struct plan_op *op = ops_next(list);
  if (op == NULL) return false;
  op->func = call->func;
  op->dtype = reduces ? call->dtype : (uint8_t)ncclInt8;
  op->op = reduces ? kernel_op(call) : (uint8_t)OP_SUM;
  op->op_arg = op->op == OP_SUM_POST_DIV ? (uint64_t)comm->rank_count << 1 : 0;
  op->peer = call->peer;
  op->count = reduces ? call->count : bytes;
  op->in = at.in;
  op->out = call->func == FUNC_REDUCE && call->peer != rank ? NULL : at.out;
  return true;
}

static bool list_fill(struct op_list *list, const struct replay *replay, const struct replay_comm *comm,
                      uint32_t rank, const struct replay_op *ops, uint32_t count, uint8_t *memory) {
  for (uint32_t i = 0; i < count; i++) {
    const uint32_t from = list->count;
    if (!list_add(list, replay, comm, rank, &ops[i], memory)) return false;
    for (uint32_t k = from; k < list->count; k++) list->ops[k].sequence = i; /* from the launch's first on */
  }
  return true;
}

/* ---- possible limits ---- */

static const uint8_t channel_tries[] = {0, 1, 2, 4, 8, 16, 24, 32, 64, 3, 6, 12};
#define FITS (sizeof channel_tries * 8)

/* The n-th guess: channels, those of a message, whether chunks were shortened, and how the transport was
 * chosen. */
static void fit_limits(struct plan_request *request, const struct record_plan *row, uint32_t channels,
                       uint32_t fit, struct tune_file *file) {
  struct plan_limits *limits = &request->settings.limits;
  const uint32_t element_bytes = row != NULL && row->element_bytes > 0 ? row->element_bytes : 1;
  const uint32_t guess = channel_tries[fit % sizeof channel_tries];
  const uint32_t family = fit / (uint32_t)sizeof channel_tries;
  limits->channel_count = guess > 0 ? guess : row != NULL && row->channels > 0 ? row->channels : 2;
  if (guess == 0 && row != NULL && is_message(row->func)) limits->channel_count = channels;
  if (limits->channel_count > PLAN_CHANNELS_MAX) limits->channel_count = PLAN_CHANNELS_MAX;
  if (limits->channel_count > request->graph->channel_count)
    limits->channel_count = request->graph->channel_count;
  limits->p2p_channel_count = 1;
  while (limits->p2p_channel_count < limits->channel_count) limits->p2p_channel_count *= 2;
  limits->p2p_channels_per_peer = limits->p2p_channel_count < 2 ? 1 : 2;
  if ((family & 1) != 0) limits->p2p_channels_per_peer = limits->p2p_channel_count;
  if (row == NULL) return;
  const uint64_t chunk_bytes = (uint64_t)row->chunk_elements * element_bytes;
  if ((family & 2) != 0 && chunk_bytes > 0 && chunk_bytes <= 1u << 30)
    limits->chunk_bytes = (uint32_t)chunk_bytes;
  if (is_message(row->func) && row->proto == PROTO_SIMPLE && chunk_bytes > 0 &&
      chunk_bytes <= limits->step_bytes[PROTO_SIMPLE])
    limits->p2p_chunk_bytes = (uint32_t)chunk_bytes;
  const bool messages = is_message(row->func); /* messages are first assumed to be chosen by their sizes */
  for (uint32_t func = 0; func < FUNC_COUNT && (messages || (family & 4) == 0); func++) {
    request->settings.algo_mask[func] = 1u << row->algo;
    if (!messages || (family & 4) != 0) request->settings.proto_mask[func] = 1u << row->proto;
    if (is_message(row->func) || is_message((uint8_t)func))
      request->settings.algo_mask[func] = 1u << ALGO_RING;
  }
  if (is_message(row->func) || (family & 4) != 0) return;
  file->count = 1;
  file->rules[0] = (struct tune_rule){
      .to_bytes = UINT64_MAX,
      .channel_count = guess == 0 && row->channels <= limits->channel_count ? row->channels : 0,
      .line = 1,
      .func = row->func,
      .algo = row->algo,
      .proto = row->proto};
  request->settings.tune_file = file;
}

/* What the records hold; how data reached outputs is tried only for GPUs, whose kernels differ in it. */
static void limits_known(const struct replay_comm *comm, struct plan_limits *limits) {
  *limits = comm->inputs.settings.limits;
  if (comm->transport == TRANSPORT_SLOTS) return;
  limits->direct = true;
  limits->cores = comm->transport == TRANSPORT_CORES;
}

void replay_limits(const struct replay_comm *comm, struct plan_limits *limits) {
  if (comm->known) {
    limits_known(comm, limits);
    return;
  }
  plan_limits_default(limits);
  limits->algos_last = 0;
  limits->direct = comm->transport != TRANSPORT_SLOTS;
  limits->cores = comm->transport == TRANSPORT_CORES;
  if (comm->slots != 0) limits->slots = comm->slots;
  for (uint32_t proto = 0; proto < PROTO_COUNT; proto++)
    if (comm->step_bytes[proto] != 0) limits->step_bytes[proto] = comm->step_bytes[proto];
  if (comm->net) limits->reserved_bytes = RESERVED_BYTES;
  if (comm->net && comm->step_bytes[PROTO_SIMPLE] == 0) limits->step_bytes[PROTO_SIMPLE] += RESERVED_BYTES;
  const uint32_t most = limits->step_bytes[PROTO_SIMPLE] - limits->reserved_bytes;
  if (comm->net && limits->p2p_chunk_bytes > NET_CHUNK_BYTES) limits->p2p_chunk_bytes = NET_CHUNK_BYTES;
  if (comm->message_chunk_bytes != 0) limits->p2p_chunk_bytes = comm->message_chunk_bytes;
  if (limits->p2p_chunk_bytes > most) limits->p2p_chunk_bytes = most;
}

static uint32_t net_protos(const struct replay_comm *comm) {
  return comm->net ? 1u << PROTO_SIMPLE | 1u << PROTO_LL : (1u << PROTO_COUNT) - 1;
}

static void request_begin(struct plan_request *request, const struct replay_comm *comm, uint32_t rank,
                          const struct op_list *list) {
  plan_request_begin(request, comm->rank_count, &comm->graph);
  request->rank = rank;
  request->groups = request->p2p_domains = comm->net ? comm->graph.node : NULL;
  request->ops = list->ops;
  request->op_count = list->count;
  request->settings.p2p_ll_threshold = LL_THRESHOLD;
  replay_limits(comm, &request->settings.limits);
  for (uint32_t func = 0; func < FUNC_COUNT; func++) request->settings.proto_mask[func] = net_protos(comm);
}

/* The channels of a message with a peer, given by its first part's. */
struct message_channels {
  uint32_t peer, first, most, count; /* `most` of them, of `count`, cyclic */
  bool sends;
};

static bool channels_have(const struct message_channels *channels, uint8_t used, uint32_t peer, uint8_t conn,
                          uint32_t channel) {
  const uint8_t name = (uint8_t)(CONN_MESSAGE | (channels->sends ? RECORD_LINK_SENDS : 0));
  if (used != 1 || peer != channels->peer || conn != name) return true;
  return channel < channels->count &&
         (channel + channels->count - channels->first) % channels->count < channels->most;
}

/* All that a rank has recorded of messages with the peer in this direction is there. */
static bool message_fits(const struct rank_state *state, const struct message_channels *channels) {
  const struct record_view *view = state != NULL ? state->view : NULL;
  for (uint32_t k = 0; view != NULL && k < view->link_rows; k++) {
    const struct record_link *row = &view->links[k];
    if (!channels_have(channels, row->used, row->peer, row->conn, row->channel)) return false;
  }
  for (uint32_t k = 0; view != NULL && k < view->proxy_rows; k++) {
    const struct record_proxy *row = &view->proxies[k];
    if (!channels_have(channels, row->used, row->peer, row->conn, row->channel)) return false;
  }
  return true;
}

/* Messages use channels on which both ends have recorded any; if there are none, any channel. */
static bool messages_fit(const struct plan *plan, const struct plan_limits *limits,
                         const struct replay_comm *comm) {
  for (uint32_t i = 0; i < plan->work_count; i++) {
    const struct work *work = &plan->works[i];
    const bool sends = work->send_count > 0;
    const uint32_t peer = sends ? work->send_peer[0] : work->recv_count > 0 ? work->recv_peer[0] : work->rank;
    if (work->conn_index != CONN_MESSAGE || peer == work->rank || work->part_offset != 0) continue;
    struct message_channels channels = {peer, work->channel_index, limits->p2p_channels_per_peer,
                                        limits->p2p_channel_count, sends};
    if (!message_fits(comm->ranks[work->rank].state, &channels)) return false;
    channels.peer = work->rank;
    channels.sends = !sends;
    if (!message_fits(comm->ranks[peer].state, &channels)) return false;
  }
  return true;
}

static bool plan_fits(const struct plan *plan, const struct record_plan *row, bool borrowed) {
  const struct work *work = &plan->works[0];
  const bool messages = borrowed && is_message(row->func) && is_message(work->func);
  return plan->work_count > 0 && (work->func == row->func || messages) && work->algo == row->algo &&
         work->proto == row->proto && work->chunk_steps == row->chunk_steps &&
         work->slice_steps == row->slice_steps && work->chunk_count == row->chunk_elements &&
         (uint32_t)__builtin_popcountll(plan->channel_mask) == row->channels &&
         (borrowed || (plan->work_count == row->works && plan_digest(plan) == row->digest));
}

static void remark_unlike(struct replay *replay, const struct replay_comm *comm, uint32_t rank,
                          const struct record_plan *row, const struct plan *plan) {
  const struct work *work = &plan->works[0];
  if (plan->work_count == 0) return;
  replay_remark(
      replay,
      "a plan of rank %u of comm '%s' comes out another than it was: %s %s %s, %u channels, %u works, "
      "chunks of %u; here %s %s, %d channels, %u works, chunks of %zu",
      rank, comm->name, record_func_name(row->func), record_algo_name(row->algo),
      record_proto_name(row->proto), row->channels, row->works, row->chunk_elements,
      record_algo_name(work->algo), record_proto_name(work->proto), __builtin_popcountll(plan->channel_mask),
      plan->work_count, work->chunk_count);
}

/* The first guess that matches, beginning with the previous match; else the first that gives a plan. */
static ncclResult_t plan_try(struct replay *replay, struct replay_comm *comm, const struct replay_rank *of,
                             const struct replay_launch *launch, const struct op_list *list,
                             struct plan *plan) {
  union {
    struct tune_file file;
    uint8_t bytes[sizeof(struct tune_file) + sizeof(struct tune_rule)];
  } rules;
  const struct record_plan *row = launch->plan;
  const uint32_t rank = of->rank;
  const bool messages = list->count > 0 && is_message(list->ops[0].func);
  uint32_t *const before = &comm->fit[messages];
  struct plan_request request;
  ncclResult_t result = ncclSuccess;
  uint32_t good = UINT32_MAX;
  for (uint32_t i = 0; i < FITS + 1; i++) {
    const uint32_t fit = i < FITS ? (i == 0 ? *before : i == *before ? 0 : i) : good;
    if (fit == UINT32_MAX) return result;
    memset(&rules, 0, sizeof rules);
    request_begin(&request, comm, rank, list);
    fit_limits(&request, row, comm->channels, fit, &rules.file);
    if (row != NULL && row->algo == ALGO_CUSTOM) request.custom = replay->custom;
    result = plan_build(&request, plan);
    if (result != ncclSuccess) continue;
    if (good == UINT32_MAX) good = fit;
    if ((row == NULL || plan_fits(plan, row, launch->borrowed)) &&
        messages_fit(plan, &request.settings.limits, comm)) {
      comm->refitted |= messages && *before != fit;
      *before = fit;
      return result;
    }
    if (i == FITS || comm->unlike) break;
    plan_free(plan);
  }
  if (!comm->unlike) *before = good;
  comm->unlike = true;
  if (!launch->borrowed && row != NULL) remark_unlike(replay, comm, rank, row, plan);
  return result;
}

static const char *library_of(const struct replay_rank *rank) {
  return rank->state != NULL ? rank->state->file->header.library : "?";
}

static ncclResult_t plan_differs(const struct replay_comm *comm, const struct replay_rank *rank,
                                 const struct record_plan *row, const struct plan *plan) {
  const struct work *work = &plan->works[0];
  if (plan->work_count == 0)
    return log_fail(ncclInvalidArgument, "plan %u of rank %u of comm '%s' comes out empty", row->number,
                    rank->rank, comm->name);
  return log_fail(
      ncclInvalidArgument,
      "plan %u of rank %u of comm '%s' comes out different from the job's: it was %s %s, %u channels, %u "
      "works, chunks of %u; here %s %s, %d channels, %u works, chunks of %zu: this release of tutti plans "
      "differently; use the one that wrote the records (\"%.32s\")",
      row->number, rank->rank, comm->name, record_algo_name(row->algo), record_proto_name(row->proto),
      row->channels, row->works, row->chunk_elements, record_algo_name(work->algo),
      record_proto_name(work->proto), __builtin_popcountll(plan->channel_mask), plan->work_count,
      work->chunk_count, library_of(rank));
}

/* From the recorded inputs. Other calls than the recorded ones, as injected events make, have no row. */
static ncclResult_t plan_known(struct replay *replay, struct replay_comm *comm,
                               const struct replay_rank *rank, const struct replay_launch *launch,
                               const struct op_list *list, struct plan *plan) {
  const struct plan_inputs *inputs = &comm->inputs;
  struct plan_request request = {.rank = rank->rank,
                                 .rank_count = comm->rank_count,
                                 .custom = inputs->custom_digest != 0 ? replay->custom : NULL,
                                 .graph = &comm->graph,
                                 .settings = inputs->settings,
                                 .groups = inputs->groups,
                                 .p2p_domains = inputs->p2p_domains,
                                 .ops = list->ops,
                                 .op_count = list->count};
  const struct record_plan *row = launch->plan;
  limits_known(comm, &request.settings.limits);
  if (request.custom != NULL && custom_digest(request.custom) != inputs->custom_digest)
    return log_fail(ncclInvalidArgument, "--plan: comm '%s' ran another schedule than that of this file",
                    comm->name);
  TRY(plan_build(&request, plan));
  if (row == NULL || launch->borrowed || comm->transport != TRANSPORT_SLOTS ||
      plan_fits(plan, row, launch->borrowed))
    return ncclSuccess;
  const ncclResult_t result = plan_differs(comm, rank, row, plan);
  plan_free(plan);
  return result;
}

ncclResult_t replay_plan(struct replay *replay, struct replay_comm *comm, const struct replay_rank *rank,
                         const struct replay_op *ops, const struct replay_launch *launch, uint8_t *memory,
                         struct plan *plan) {
  struct op_list list = {NULL, 0, 0};
  const struct record_plan *row = launch->plan;
  ncclResult_t result = ncclSuccess;
  if (row != NULL && row->algo == ALGO_CUSTOM && replay->custom == NULL)
    result = log_fail(ncclInvalidArgument,
                      "comm '%s' ran a schedule from a file, which is not in these traces: name it by --plan",
                      comm->name);
  if (result == ncclSuccess && !list_fill(&list, replay, comm, rank->rank, ops, launch->op_count, memory))
    result = log_no_memory("%u operations", launch->op_count);
  if (result == ncclSuccess)
    result = comm->known ? plan_known(replay, comm, rank, launch, &list, plan)
                         : plan_try(replay, comm, rank, launch, &list, plan);
  os_free(list.ops);
  return result;
}
