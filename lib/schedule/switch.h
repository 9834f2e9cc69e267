/* switch.h: collectives over a switch that adds what its members send and multicasts results to them: within
 * a node (NVLS), within each node with trees between nodes (NVLSTree), or in the network (CollNetDirect,
 * CollNetChain). A switch is one additional lane: a work with ROLE_SWITCH and without user memory on the rank
 * that hosts it, in the same batch as that rank's own work. Its links are its members in rank order, so sums
 * are added in that order and all ranks get the same bits. All works of these algorithms use CONN_SWITCH; a
 * host has a link to itself (work_link_conn). Nothing is stored directly into outputs.
 *
 * A head completes one shard of a chunk for its node. Every rank of a node is a head: head_index is its index
 * in the node and head_count the number of heads (on a switch: its host's). In a chain one rank represents
 * its node, and `root` is that rank. In NVLSTree `root` is the root of the head's tree.
 *
 * Links of a rank, the same on both sides unless noted:
 *   NVLS           the switch
 *   NVLSTree       the switch, the tree's children, the parent
 *   CollNetDirect  the other ranks of the node, the switch of the heads with this head_index
 *   CollNetChain   ROLE_UP: from the next rank, to the previous one; ROLE_DOWN: the reverse; the switch is
 *                  the previous one of the root
 *
 * Whether a machine has such a switch is decided elsewhere. */
#ifndef TUTTI_SCHEDULE_SWITCH_H
#define TUTTI_SCHEDULE_SWITCH_H

#include "schedule/chunk.h"
#include "schedule/work.h"

struct switch_iter {
  uint32_t step_index, step_count; /* within the loop */
  size_t done, chunk_count;        /* elements of the part before this loop; chunk of this loop */
};

PRIM_FN bool switch_is_algo(uint8_t algo) {
  return algo == ALGO_NVLS || algo == ALGO_NVLS_TREE || algo == ALGO_COLLNET_DIRECT ||
         algo == ALGO_COLLNET_CHAIN;
}

/* Consecutive chunks of a part in one loop: one shard per head. */
PRIM_FN uint32_t switch_loop_chunks(const struct work *work) {
  return work->func == FUNC_ALL_REDUCE && work->algo != ALGO_COLLNET_CHAIN ? work->head_count : 1;
}

/* Every head but the root of its tree has a link to a parent. */
PRIM_FN bool switch_has_parent(const struct work *work) {
  return work->algo == ALGO_NVLS_TREE && work->root != work->rank;
}

PRIM_FN uint32_t switch_node_count(const struct work *work) { return work->rank_count / work->head_count; }

/* Steps of one loop of the switch itself: one shard up and one down per head, or one block per member. */
PRIM_FN uint32_t switch_lane_steps(const struct work *work) {
  if (work->algo == ALGO_COLLNET_CHAIN) return 1;
  if (work->func != FUNC_ALL_REDUCE) return work->recv_count;
  return work->algo == ALGO_COLLNET_DIRECT ? 1 : 2u * work->head_count;
}

/* Steps of one loop on a rank. */
PRIM_FN uint32_t switch_rank_steps(const struct work *work) {
  const uint32_t heads = work->head_count, reduces = work->func == FUNC_REDUCE_SCATTER;
  if (work->algo == ALGO_COLLNET_CHAIN) return 1;
  if (work->algo == ALGO_COLLNET_DIRECT)
    return work->func == FUNC_ALL_REDUCE ? 2 * heads : switch_node_count(work) * heads + reduces;
  return work->func == FUNC_ALL_REDUCE ? 2 * heads + 1 + switch_has_parent(work) : heads + reduces;
}

PRIM_FN void switch_loop_begin(struct switch_iter *it, const struct work *work) {
  it->step_index = 0;
  it->chunk_count = chunk_of_loop(work->part_count - it->done, work->chunk_count, switch_loop_chunks(work),
                                  work->last_chunk_count);
}

PRIM_FN void switch_begin(struct switch_iter *it, const struct work *work) {
  it->done = 0;
  it->step_count = work->role == ROLE_SWITCH ? switch_lane_steps(work) : switch_rank_steps(work);
  switch_loop_begin(it, work);
}

/* ---- which elements ---- */

PRIM_FN void switch_step_shard(const struct switch_iter *it, const struct work *work, uint32_t head,
                               struct step *step) {
  const size_t begin = head * it->chunk_count, rest = work->part_count - it->done;
  step->chunk_index = head;
  step->in_offset += begin;
  step->out_offset += begin;
  step->count = rest > begin ? size_min(it->chunk_count, rest - begin) : 0;
}

/* The block of a rank: in the output of an all-gather, in the input of a reduce-scatter. */
PRIM_FN void switch_step_block(const struct work *work, uint32_t rank, struct step *step) {
  step->chunk_index = rank;
  if (work->func == FUNC_ALL_GATHER) step->out_offset += rank * work->count;
  else step->in_offset += rank * work->count;
}

/* ---- which operation ---- */

PRIM_FN uint32_t switch_links(uint32_t count) { return (1u << count) - 1; }

PRIM_FN void switch_step_send(uint32_t links, struct step *step) {
  step->flags = STEP_COPY_IN | STEP_SEND;
  step->send_links = links;
}

PRIM_FN void switch_step_keep(uint32_t links, struct step *step) {
  step->flags = STEP_RECV | STEP_KEEP;
  step->recv_links = links;
}

/* From some links to others; values from several links are added. */
PRIM_FN void switch_step_pass(uint32_t from, uint32_t reduce, uint32_t to, struct step *step) {
  step->flags = STEP_RECV | reduce | STEP_SEND;
  step->recv_links = from;
  step->send_links = to;
}

/* ---- the switch ---- */

/* All-reduce in a node: each head gets the sum of its shard; then every member gets what each head sends. */
PRIM_FN void switch_lane_shards(const struct switch_iter *it, const struct work *work, struct step *step) {
  const bool up = it->step_index < work->head_count;
  const uint32_t head = up ? it->step_index : it->step_index - work->head_count;
  const uint32_t all = switch_links(work->recv_count);
  switch_step_shard(it, work, head, step);
  if (up) switch_step_pass(all, STEP_REDUCE, 1u << head, step);
  else switch_step_pass(1u << head, 0, all, step);
}

/* One step per member: its block to all others, or the sum of all blocks for that member. */
PRIM_FN void switch_lane_block(const struct switch_iter *it, const struct work *work, struct step *step) {
  const uint32_t all = switch_links(work->recv_count), member = 1u << it->step_index;
  switch_step_block(work, work->recv_peer[it->step_index], step);
  if (work->func == FUNC_ALL_GATHER) switch_step_pass(member, 0, all & ~member, step);
  else switch_step_pass(all, STEP_REDUCE, member, step);
}

PRIM_FN void switch_lane_step(const struct switch_iter *it, const struct work *work, struct step *step) {
  const uint32_t all = switch_links(work->recv_count);
  if (work->func != FUNC_ALL_REDUCE) {
    switch_lane_block(it, work, step);
  } else if (work->algo == ALGO_NVLS || work->algo == ALGO_NVLS_TREE) {
    switch_lane_shards(it, work, step);
  } else {
    if (work->algo == ALGO_COLLNET_DIRECT) switch_step_shard(it, work, work->head_index, step);
    switch_step_pass(all, STEP_REDUCE, all, step);
  }
}

/* ---- ranks: a switch in the node ---- */

/* The head's own shard: the node's sum goes up to the tree's root and the result comes down. */
PRIM_FN void switch_head_step(const struct work *work, bool up, struct step *step) {
  const bool parent = switch_has_parent(work);
  const uint32_t below = switch_links(work->recv_count - (uint32_t)parent);
  const uint32_t above = switch_links(work->recv_count) & ~below;
  if (up) switch_step_pass(below, STEP_REDUCE, parent ? above : below, step);
  else switch_step_pass(above, 0, below, step);
  if (!parent) step->flags |= STEP_POST_OP;
}

/* All shards to the switch; then the own shard along the tree; then all shards from the switch. */
PRIM_FN void switch_node_all_reduce_step(const struct switch_iter *it, const struct work *work,
                                         struct step *step) {
  const uint32_t heads = work->head_count, i = it->step_index, rest = it->step_count - i;
  const bool sends = i < heads, receives = rest <= heads;
  switch_step_shard(it, work, sends ? i : receives ? heads - rest : work->head_index, step);
  if (sends) switch_step_send(1, step);
  else if (receives) switch_step_keep(1, step);
  else switch_head_step(work, i == heads, step);
}

PRIM_FN void switch_step_own_block(const struct work *work, uint32_t links, struct step *step) {
  switch_step_block(work, work->rank, step);
  switch_step_send(links, step);
  if ((work->flags & WORK_IN_PLACE) == 0) step->flags |= STEP_KEEP;
}

PRIM_FN void switch_node_all_gather_step(const struct switch_iter *it, const struct work *work,
                                         struct step *step) {
  const uint32_t i = it->step_index;
  if (i == 0) {
    switch_step_own_block(work, 1, step);
  } else {
    switch_step_block(work, i <= work->rank ? i - 1 : i, step);
    switch_step_keep(1, step);
  }
}

/* The sum that the switch computed for this rank only. */
PRIM_FN void switch_step_result(uint32_t links, struct step *step) {
  switch_step_keep(links, step);
  step->flags |= STEP_POST_OP;
}

PRIM_FN void switch_node_reduce_scatter_step(const struct switch_iter *it, const struct work *work,
                                             struct step *step) {
  const bool sends = it->step_index < work->head_count;
  switch_step_block(work, sends ? it->step_index : work->rank, step);
  if (sends) switch_step_send(1, step);
  else switch_step_result(1, step);
}

/* ---- ranks: a switch of the network, and all ranks of a node linked to each other ---- */

PRIM_FN uint32_t switch_others(const struct work *work) { return switch_links(work->head_count - 1u); }
PRIM_FN uint32_t switch_network(const struct work *work) { return 1u << (work->head_count - 1); }

/* The turn-th other head of the node, counted up or down from this one. */
PRIM_FN uint32_t switch_head_up(const struct work *work, uint32_t turn) {
  const uint32_t head = work->head_index + 1u + turn;
  return head >= work->head_count ? head - work->head_count : head;
}
PRIM_FN uint32_t switch_head_down(const struct work *work, uint32_t turn) {
  const uint32_t index = work->head_index;
  return index > turn ? index - 1 - turn : index + work->head_count - 1 - turn;
}
PRIM_FN uint32_t switch_head_link(const struct work *work, uint32_t head) {
  return 1u << (head < work->head_index ? head : head - 1);
}

/* Adds this head's shard of the node's ranks and sends it to the network. */
PRIM_FN void switch_step_gather_up(const struct work *work, struct step *step) {
  switch_step_send(switch_network(work), step);
  step->recv_links = switch_others(work);
  step->own_index = work->head_index;
  if (work->head_count > 1) step->flags |= STEP_RECV | STEP_REDUCE;
}

/* Keeps what came from the network and sends it to the other ranks of the node. */
PRIM_FN void switch_step_scatter_down(const struct work *work, struct step *step) {
  switch_step_keep(switch_network(work), step);
  step->send_links = switch_others(work);
  if (work->head_count > 1) step->flags |= STEP_SEND;
}

PRIM_FN void switch_net_all_reduce_step(const struct switch_iter *it, const struct work *work,
                                        struct step *step) {
  const uint32_t others = work->head_count - 1u, i = it->step_index;
  uint32_t head = work->head_index;
  if (i < others) {
    head = switch_head_up(work, i);
    switch_step_send(switch_head_link(work, head), step);
  } else if (i == others) {
    switch_step_gather_up(work, step);
  } else if (i == others + 1) {
    switch_step_scatter_down(work, step);
    step->flags |= STEP_POST_OP;
  } else {
    head = switch_head_down(work, i - others - 2);
    switch_step_keep(switch_head_link(work, head), step);
  }
  switch_step_shard(it, work, head, step);
}

/* One turn per node, this one first: this head's block of that node goes to the other ranks of this node, and
 * their blocks arrive. */
PRIM_FN void switch_net_all_gather_step(const struct switch_iter *it, const struct work *work,
                                        struct step *step) {
  const uint32_t heads = work->head_count, turn = it->step_index / heads, i = it->step_index % heads;
  const uint32_t own = work->rank / heads, node = turn == 0 ? own : turn <= own ? turn - 1 : turn;
  if (i > 0) {
    const uint32_t head = switch_head_down(work, i - 1);
    switch_step_block(work, node * heads + head, step);
    switch_step_keep(switch_head_link(work, head), step);
  } else if (turn == 0) {
    switch_step_own_block(work, switch_links(heads), step);
  } else {
    switch_step_block(work, node * heads + work->head_index, step);
    switch_step_scatter_down(work, step);
  }
}

/* One turn per node: the results for its ranks are added up within this node, head by head, and sent. */
PRIM_FN void switch_net_reduce_scatter_step(const struct switch_iter *it, const struct work *work,
                                            struct step *step) {
  const uint32_t heads = work->head_count, node = it->step_index / heads, i = it->step_index % heads;
  uint32_t rank = node * heads + work->head_index;
  if (it->step_index + 1 == it->step_count) {
    rank = work->rank;
    switch_step_result(switch_network(work), step);
  } else if (i + 1 == heads) {
    switch_step_gather_up(work, step);
  } else {
    const uint32_t head = switch_head_up(work, i);
    rank = node * heads + head;
    switch_step_send(switch_head_link(work, head), step);
  }
  switch_step_block(work, rank, step);
}

/* ---- ranks: a chain in each node ---- */

/* The sum goes up the chain to the node's root and to the switch; the result comes down the chain. */
PRIM_FN void switch_chain_step(const struct work *work, struct step *step) {
  step->recv_links = switch_links(work->recv_count);
  step->send_links = switch_links(work->send_count);
  if (work->role == ROLE_UP) {
    step->flags = STEP_COPY_IN | STEP_SEND;
    if (work->recv_count > 0) step->flags |= STEP_RECV | STEP_REDUCE;
    return;
  }
  step->flags = STEP_RECV | STEP_KEEP;
  if (work->send_count > 0) step->flags |= STEP_SEND;
  if (work->root == work->rank) step->flags |= STEP_POST_OP;
}

PRIM_FN void switch_rank_step(const struct switch_iter *it, const struct work *work, struct step *step) {
  const bool network = work->algo == ALGO_COLLNET_DIRECT;
  if (work->algo == ALGO_COLLNET_CHAIN) {
    switch_chain_step(work, step);
    return;
  }
  switch (work->func) {
    case FUNC_ALL_GATHER:
      if (network) switch_net_all_gather_step(it, work, step);
      else switch_node_all_gather_step(it, work, step);
      break;
    case FUNC_REDUCE_SCATTER:
      if (network) switch_net_reduce_scatter_step(it, work, step);
      else switch_node_reduce_scatter_step(it, work, step);
      break;
    default:
      if (network) switch_net_all_reduce_step(it, work, step);
      else switch_node_all_reduce_step(it, work, step);
      break;
  }
}

PRIM_FN bool switch_next(struct switch_iter *it, const struct work *work, struct step *step) {
  if (it->step_index == it->step_count) {
    it->done += it->chunk_count * switch_loop_chunks(work);
    if (it->done < work->part_count) switch_loop_begin(it, work);
  }
  if (it->done >= work->part_count) return false;
  step->recv_links = step->send_links = step->own_index = step->chunk_index = 0;
  step->in_offset = step->out_offset = work->part_offset + it->done;
  step->count = it->chunk_count;
  if (work->role == ROLE_SWITCH) switch_lane_step(it, work, step);
  else switch_rank_step(it, work, step);
  it->step_index += 1;
  return true;
}

/* Whether the other end of a rank's link to `peer` is the switch that the peer hosts, not the peer itself.
 * The host of a switch is never also a neighbour. */
PRIM_FN bool switch_is_behind(const struct work *work, uint32_t peer, bool sends) {
  const uint32_t *peers = sends ? work->send_peer : work->recv_peer;
  const bool outward = sends ? work->role == ROLE_UP : work->role == ROLE_DOWN;
  if (!switch_is_algo(work->algo) || work->role == ROLE_SWITCH) return false;
  if (work->algo == ALGO_COLLNET_CHAIN) return work->root == work->rank && outward;
  return peers[work->algo == ALGO_COLLNET_DIRECT ? work->head_count - 1 : 0] == peer;
}

#endif
