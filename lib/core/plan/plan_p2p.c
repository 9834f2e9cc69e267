/* plan_p2p.c: turns sends and receives into works, in the order of the rounds in which their ends meet; every
 * rank processes the same rounds. A message to the rank itself is a copy. */
#include <string.h>

#include "base/os.h"
#include "core/plan/plan_draft.h"
#include "core/plan/tune.h"
#include "schedule/p2p.h"

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
  if (memory == NULL) return plan_out_of_memory(request);
  queues->send_head = memory;
  queues->recv_head = memory + n;
  queues->next = memory + 2 * n;
  queues->left = 0;
  for (uint32_t peer = 0; peer < 2 * n; peer++) memory[peer] = NO_OP;
  for (uint32_t i = request->op_count; i-- > 0;) {
    const struct plan_op *op = &request->ops[i];
    if (!plan_op_is_message(op)) continue;
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

/* Between CPU cores a slice is signalled almost as fast as an LL line, and costs half the stores. */
#define CORES_LL_BYTES 512u
/* Two H200 exchange 512 KiB over LL in 12.2 us, over Simple in 13.5, and 1 MiB in 19.5 and 14.7. */
#define PAIR_LL_SHARE 2u

/* How a message is transferred; both ends compute the same. */
struct message_config {
  uint8_t proto;
  struct p2p_split split;
};

static bool peer_is_remote(const struct plan_request *request, uint32_t peer) {
  return request->groups != NULL && request->groups[peer] != request->groups[request->rank];
}

/* A message over a network costs a proxy's and the network's work per channel, so GPUs use few channels. */
static uint32_t channels_to(const struct plan_request *request, uint32_t peer) {
  const struct graph *graph = request->graph;
  const uint32_t all = request->settings.limits.p2p_channels_per_peer;
  const bool remote =
      graph != NULL && graph->node_count > 1 && graph->node[peer] != graph->node[request->rank];
  if (!remote || request->settings.limits.cores || request->settings.net_peer_channels == 0) return all;
  return all < request->settings.net_peer_channels ? all : request->settings.net_peer_channels;
}

/* Over a network the decision uses only the message's own size: the two directions between ranks may differ,
 * and neither end knows what else the other's group contains. */
static bool ll_is_worth(const struct plan_request *request, const struct plan_op *op, size_t bytes,
                        uint32_t part_count) {
  const size_t most = request->settings.p2p_ll_threshold;
  if (peer_is_remote(request, op->peer)) return bytes <= size_min(most, tune_net_message_bytes(request));
  if (request->settings.limits.cores) return bytes <= part_count * size_min(most, CORES_LL_BYTES);
  return bytes <= part_count * most * (request->rank_count == 2 ? PAIR_LL_SHARE : 1);
}

static bool speaks_ll(const struct plan_request *request, const struct plan_op *op, size_t bytes,
                      uint32_t part_count) {
  const uint32_t protos = request->settings.proto_mask[op->func];
  if (((protos >> PROTO_LL) & 1) == 0) return false;
  if (request->settings.net_plain && peer_is_remote(request, op->peer)) return false;
  return ((protos >> PROTO_SIMPLE) & 1) == 0 || ll_is_worth(request, op, bytes, part_count);
}

/* Over a network each part is a separate message for both proxies and the network, so LL uses one part. */
static struct p2p_split ll_split(const struct plan_request *request, const struct plan_op *op, size_t bytes) {
  if (peer_is_remote(request, op->peer)) return p2p_split_of(bytes, 1);
  return p2p_ll_split(bytes, request->rank_count, request->settings.limits.p2p_channel_count,
                      channels_to(request, op->peer));
}

static struct message_config message_config_of(const struct plan_request *request, const struct plan_op *op,
                                               size_t bytes) {
  const struct plan_limits *limits = &request->settings.limits;
  struct message_config config = {PROTO_LL, ll_split(request, op, bytes)};
  if (speaks_ll(request, op, bytes, config.split.part_count)) return config;
  config.proto = PROTO_SIMPLE;
  config.split = p2p_message_split(bytes, limits->p2p_chunk_bytes, request->rank_count,
                                   limits->p2p_channel_count, channels_to(request, op->peer));
  return config;
}

/* Maximum data bytes of a message's chunk. */
static size_t message_chunk_bytes(const struct plan_request *request, uint32_t peer, uint8_t proto) {
  const struct plan_limits *limits = &request->settings.limits;
  if (proto == PROTO_SIMPLE)
    return size_min(limits->p2p_chunk_bytes, limits->step_bytes[PROTO_SIMPLE] - limits->reserved_bytes);
  const size_t most = chunk_data_bytes(limits, PROTO_LL, 1);
  return peer_is_remote(request, peer) ? size_min(most, plan_net_ll_bytes(limits) / 2) : most;
}

static struct work work_of_message(const struct plan_request *request, const struct plan_op *op, size_t bytes,
                                   uint8_t proto) {
  struct work work;
  memset(&work, 0, sizeof work);
  work.func = op->func;
  work.algo = ALGO_RING;
  work.proto = proto;
  work.dtype = ncclInt8;
  work.op = OP_SUM;
  work.element_bytes = 1;
  work.chunk_steps = work.slice_steps = 1;
  work.rank = request->rank;
  work.rank_count = request->rank_count;
  work.conn_index = CONN_MESSAGE;
  work.count = bytes;
  work.op_sequence = op->sequence;
  work.chunk_count = message_chunk_bytes(request, op->peer, proto);
  work.send_count = op->func == FUNC_SEND;
  work.recv_count = op->func == FUNC_RECV;
  work.send_peer[0] = work.recv_peer[0] = op->peer;
  work.flags = work_slot_flags(&work, request);
  work.flags |= work_direct_flags(&work, request);
  return work;
}

/* One half of a message: a work on each channel that has a part. */
static ncclResult_t draft_half(struct draft *draft, const struct plan_op *op, uint32_t round,
                               uint64_t batch_id) {
  const struct plan_request *request = draft->request;
  const struct plan_limits *limits = &request->settings.limits;
  const size_t bytes = op->count * plan_type_bytes(op->dtype);
  const struct message_config config = message_config_of(request, op, bytes);
  struct work work = work_of_message(request, op, bytes, config.proto);
  for (uint32_t part = 0; part < config.split.part_count; part++) {
    p2p_part(&config.split, bytes, part, &work.part_offset, &work.part_count);
    if (work.part_count == 0 && part > 0) break;
    work.channel_index = (uint16_t)p2p_channel(round, part, limits->p2p_channel_count);
    TRY(draft_add(draft, &work, op->in, op->out, batch_id));
  }
  return ncclSuccess;
}

/* Minimum bytes per channel of a copy within the device. */
#define SELF_PART_BYTES_MIN 262144u

/* A message to the rank itself: copies, spread over all channels; none if both ends are the same memory. */
static ncclResult_t draft_self(struct draft *draft, const struct plan_op *send, const struct plan_op *recv,
                               uint64_t batch_id) {
  const uint32_t channel_count = draft->request->settings.limits.p2p_channel_count;
  const size_t bytes = send->count * plan_type_bytes(send->dtype);
  if (recv == NULL || send->in == recv->out || bytes == 0) return ncclSuccess;
  struct work work = work_of_message(draft->request, send, bytes, PROTO_SIMPLE);
  work.func = FUNC_COPY;
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

/* One sweep over the rounds takes at most one message per peer and direction; the next sweep takes the rest.
 */
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

ncclResult_t draft_p2p(struct draft *draft) {
  struct p2p_queues queues = {NULL, NULL, NULL, 0};
  bool any = false;
  for (uint32_t i = 0; i < draft->request->op_count && !any; i++)
    any = plan_op_is_message(&draft->request->ops[i]);
  if (!any) return ncclSuccess;
  TRY(queues_fill(draft->request, &queues));
  ncclResult_t result = ncclSuccess;
  while (queues.left > 0 && result == ncclSuccess) result = draft_sweep(draft, &queues);
  os_free(queues.send_head);
  return result;
}
