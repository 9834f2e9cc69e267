/* net.c: see net.h. */
#include "steps/net.h"

#include <string.h>

#include "base/log.h"
#include "base/os.h"
#include "schedule/fused.h"

static bool work_is_sound(const struct work *work, uint32_t rank, uint32_t rank_count, uint32_t slots) {
  const bool with_itself = work->conn_index == CONN_SWITCH; /* a rank hosts its own switch */
  bool sound = work->recv_count <= STEP_LINKS_MAX && work->send_count <= STEP_LINKS_MAX &&
               work->slice_steps > 0 && work->chunk_steps >= work->slice_steps &&
               work->chunk_steps % work->slice_steps == 0 && work->chunk_steps <= slots &&
               work->rank == rank && work->proto < PROTO_COUNT && work->element_bytes > 0 &&
               ((work->flags & WORK_FUSED) == 0 || work->fused_count <= FUSED_PARTS_MAX);
  for (uint32_t i = 0; sound && i < work->recv_count; i++)
    sound = work->recv_peer[i] < rank_count && (with_itself || work->recv_peer[i] != rank);
  for (uint32_t i = 0; sound && i < work->send_count; i++)
    sound = work->send_peer[i] < rank_count && (with_itself || work->send_peer[i] != rank);
  return sound;
}

/* Connections by their key: open addressing over conns' numbers plus one. */
struct conn_table {
  uint32_t *slots;
  uint32_t mask;
};

static uint32_t conn_hash(const struct sim_conn *conn) {
  const uint64_t ends = ((uint64_t)conn->sender << 32 | conn->receiver) * UINT64_C(0x9e3779b97f4a7c15);
  const uint64_t mixed = ends + ((uint64_t)conn->channel << 16 | conn->index) * UINT64_C(0x85ebca6b);
  return (uint32_t)((mixed ^ mixed >> 31) * UINT64_C(0xbf58476d1ce4e5b9) >> 33);
}

static uint32_t conn_find(struct sim_net *net, struct conn_table *table, const struct sim_conn *key) {
  uint32_t at = conn_hash(key) & table->mask;
  for (; table->slots[at] != 0; at = (at + 1) & table->mask) {
    const struct sim_conn *conn = &net->conns[table->slots[at] - 1];
    if (conn->sender == key->sender && conn->receiver == key->receiver && conn->channel == key->channel &&
        conn->index == key->index)
      return table->slots[at] - 1;
  }
  net->conns[net->conn_count] = *key;
  table->slots[at] = ++net->conn_count;
  return net->conn_count - 1;
}

/* The lanes, blocks and links of the plans; each work of a batch is one lane. */
static ncclResult_t net_count(struct sim_net *net) {
  for (uint32_t rank = net->first_rank; rank < net->first_rank + net->plan_count; rank++) {
    const struct plan *plan = &net->plans[rank - net->first_rank];
    for (uint32_t b = 0; b < plan->batch_count; b++) {
      const struct plan_batch *batch = &plan->batches[b];
      net->block_count += b == 0 || batch->channel_index != plan->batches[b - 1].channel_index;
      net->lane_count += batch->work_count;
      for (uint32_t i = 0; i < batch->work_count; i++) {
        const struct work *work = &plan->works[batch->first_work + i];
        net->link_count += (uint32_t)work->recv_count + work->send_count;
        if (!work_is_sound(work, rank, net->rank_count, plan->limits.slots))
          return log_fail(ncclInvalidUsage,
                          "rank %u has a work on channel %u that no executor takes: its links, steps a chunk "
                          "or element size are out of range; `tutti check` says more",
                          rank, batch->channel_index);
      }
    }
  }
  return ncclSuccess;
}

static void lane_set(struct sim_net *net, struct conn_table *table, struct sim_lane *lane) {
  const struct work *work = lane->work;
  const uint32_t links = (uint32_t)work->recv_count + work->send_count;
  for (uint32_t i = 0; i < links; i++) {
    const bool sends = i >= work->recv_count;
    const uint32_t peer = sends ? work->send_peer[i - work->recv_count] : work->recv_peer[i];
    const struct sim_conn key = {sends ? lane->rank : peer,
                                 sends ? peer : lane->rank,
                                 work->channel_index,
                                 (uint16_t)work_link_conn(work, peer, sends),
                                 work->proto,
                                 false,
                                 false};
    const uint32_t number = conn_find(net, table, &key);
    struct sim_conn *conn = &net->conns[number];
    if (sends && !conn->sends) conn->proto = work->proto;
    conn->sends = conn->sends || sends;
    conn->shows = conn->shows || (sends && (work->flags & WORK_SHOWS_INPUT) != 0);
    net->links[lane->first_link + i] = number;
  }
}

static void rank_set(struct sim_net *net, struct conn_table *table, uint32_t rank, uint32_t *lane_index,
                     uint32_t *link_index) {
  const struct plan *plan = &net->plans[rank - net->first_rank];
  uint32_t turn = 0;
  for (uint32_t b = 0; b < plan->batch_count; b++, turn++) {
    const struct plan_batch *batch = &plan->batches[b];
    if (b == 0 || batch->channel_index != plan->batches[b - 1].channel_index) {
      struct sim_block *block = &net->blocks[net->block_count++];
      block->rank = rank;
      block->channel = batch->channel_index;
      block->first_lane = *lane_index;
      turn = 0;
    }
    for (uint32_t i = 0; i < batch->work_count; i++) {
      struct sim_lane *lane = &net->lanes[(*lane_index)++];
      lane->work = &plan->works[batch->first_work + i];
      lane->rank = rank;
      lane->block = net->block_count - 1;
      lane->batch = turn;
      lane->first_link = *link_index;
      *link_index += (uint32_t)lane->work->recv_count + lane->work->send_count;
      net->blocks[lane->block].lane_count += 1;
      lane_set(net, table, lane);
    }
  }
}

static ncclResult_t net_fill(struct sim_net *net) {
  struct conn_table table = {NULL, 15};
  uint32_t lane_index = 0, link_index = 0;
  while (table.mask < 2 * (size_t)net->link_count) table.mask = 2 * table.mask + 1;
  table.slots = (uint32_t *)os_alloc(((size_t)table.mask + 1) * sizeof *table.slots);
  net->blocks = (struct sim_block *)os_alloc(((size_t)net->block_count + 1) * sizeof *net->blocks);
  net->lanes = (struct sim_lane *)os_alloc(((size_t)net->lane_count + 1) * sizeof *net->lanes);
  net->links = (uint32_t *)os_alloc(((size_t)net->link_count + 1) * sizeof *net->links);
  net->conns = (struct sim_conn *)os_alloc(((size_t)net->link_count + 1) * sizeof *net->conns);
  const bool whole = table.slots && net->blocks && net->lanes && net->links && net->conns;
  net->block_count = 0;
  for (uint32_t rank = net->first_rank; whole && rank < net->first_rank + net->plan_count; rank++)
    rank_set(net, &table, rank, &lane_index, &link_index);
  os_free(table.slots);
  if (whole) return ncclSuccess;
  return log_no_memory("%u lanes and %u links of %u ranks", net->lane_count, net->link_count,
                       net->rank_count);
}

static ncclResult_t net_make(const struct plan *plans, uint32_t first_rank, uint32_t plan_count,
                             uint32_t rank_count, struct sim_net *net) {
  struct sim_net made;
  memset(&made, 0, sizeof made);
  made.plans = plans;
  made.first_rank = first_rank;
  made.plan_count = plan_count;
  made.rank_count = rank_count;
  TRY(net_count(&made));
  const ncclResult_t result = net_fill(&made);
  if (result == ncclSuccess) *net = made;
  else sim_net_free(&made);
  return result;
}

ncclResult_t sim_net_make(const struct plan *plans, uint32_t rank_count, struct sim_net *net) {
  return net_make(plans, 0, rank_count, rank_count, net);
}

ncclResult_t sim_net_make_rank(const struct plan *plan, uint32_t rank, uint32_t rank_count,
                               struct sim_net *net) {
  return net_make(plan, rank, 1, rank_count, net);
}

void sim_net_free(struct sim_net *net) {
  os_free(net->blocks);
  os_free(net->lanes);
  os_free(net->links);
  os_free(net->conns);
  memset(net, 0, sizeof *net);
}

uint32_t sim_net_list(const struct sim_net *net, uint32_t rank, uint32_t number) {
  for (uint32_t i = 0; i < net->lane_count; i++) {
    const struct sim_lane *lane = &net->lanes[i];
    if (lane->rank == rank && lane->work->algo == ALGO_CUSTOM && lane->work->role == number) return i;
  }
  return SIM_NONE;
}
