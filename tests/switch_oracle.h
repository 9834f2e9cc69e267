/* switch_oracle.h: runs the plans of all ranks together on symbols instead of numbers, with all works, roles
 * and connections that they name. A value records its element, whose contributions it has, the order in which
 * they were added, and whether the operator's last stage was applied; a contribution that is added twice, an
 * element added to another one, or a value used after its last stage, fails at once. The ends of a connection
 * are joined by a queue of few slots.
 *
 * Works are sequential and share only queues with one producer and one consumer, so one order of events
 * covers all: a case that ends here ends in every order, with the same values. */
#ifndef TUTTI_TESTS_SWITCH_ORACLE_H
#define TUTTI_TESTS_SWITCH_ORACLE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "core/plan/plan.h"
#include "schedule/algo.h"

#define ORACLE_RANKS_MAX 32
#define ORACLE_CHANNELS_MAX 3
#define ORACLE_CHUNK_MAX 8
#define ORACLE_ELEMENTS_MAX 1200 /* elements of a rank's larger buffer */
#define ORACLE_LANES_MAX (ORACLE_RANKS_MAX * 3)

struct oracle_value {
  uint32_t element, ranks, fold; /* number; set; hash of the order of the additions */
  bool post;
};

struct oracle_message {
  size_t count;
  struct oracle_value values[ORACLE_CHUNK_MAX];
};

/* slots[i mod 2] holds message i. */
struct oracle_queue {
  uint32_t sent, received;
  struct oracle_message slots[2];
};

struct oracle_lane {
  const struct work *work;
  struct algo_iter iter;
  struct step step;
  bool has_step;
};

struct oracle_case {
  uint8_t func, algo;
  const struct graph *graph;
  size_t count;      /* elements of four bytes that a rank contributes */
  uint32_t chunk;    /* elements */
  uint32_t slots;    /* 1 or 2 */
  uint32_t in_place; /* set of ranks */
  uint32_t channel;  /* that carries it: earlier operations use the channels before */
};

struct oracle {
  const struct oracle_case *test;
  struct plan plans[ORACLE_RANKS_MAX];
  struct oracle_lane lanes[ORACLE_LANES_MAX];
  uint32_t lane_count;
  struct oracle_queue queues[ORACLE_RANKS_MAX][ORACLE_RANKS_MAX]
                            [2]; /* sender, receiver, back from a switch */
  struct oracle_value memory[ORACLE_RANKS_MAX][2][ORACLE_ELEMENTS_MAX];
  struct oracle_value *in[ORACLE_RANKS_MAX], *out[ORACLE_RANKS_MAX];
  uint8_t writes[ORACLE_RANKS_MAX][ORACLE_ELEMENTS_MAX];
};

static inline void oracle_fail(const struct oracle *o, uint32_t rank, uint32_t role, const char *what) {
  const struct oracle_case *t = o->test;
  fail_msg(
      "algorithm %u function %u, %u ranks on %u nodes, count %zu chunk %u slots %u in_place %#x "
      "channel %u: rank %u role %u: %s",
      t->algo, t->func, t->graph->rank_count, t->graph->node_count, t->count, t->chunk, t->slots, t->in_place,
      t->channel, rank, role, what);
}

static inline void oracle_expect(const struct oracle *o, const struct work *work, bool good,
                                 const char *what) {
  if (!good) oracle_fail(o, work->rank, work->role, what);
}

/* ---- plans ---- */

static inline struct plan_request oracle_request(const struct oracle_case *t, uint32_t rank,
                                                 const struct plan_op *op) {
  struct plan_request request;
  memset(&request, 0, sizeof request);
  request.rank = rank;
  request.rank_count = t->graph->rank_count;
  request.graph = t->graph;
  request.settings.limits.slots = t->slots;
  for (uint8_t proto = 0; proto < PROTO_COUNT; proto++) request.settings.limits.step_bytes[proto] = 128;
  request.settings.limits.chunk_bytes = t->chunk * 4;
  request.settings.limits.p2p_chunk_bytes = 128;
  request.settings.limits.channel_count = t->channel + 1;
  request.settings.limits.p2p_channel_count = request.settings.limits.p2p_channels_per_peer = 1;
  request.settings.limits.flag_bits = 32;
  request.settings.limits.direct = true;
  request.settings.limits.algos = ~0u;
  request.settings.limits.links = STEP_LINKS_MAX;
  request.ops = op;
  request.op_count = t->channel + 1;
  for (uint32_t i = 0; i < FUNC_COUNT; i++) {
    request.settings.algo_mask[i] = 1u << t->algo;
    request.settings.proto_mask[i] = (1u << PROTO_COUNT) - 1;
  }
  return request;
}

/* Address of an element as if it had the four bytes of its type: for plans, which only compare addresses. */
static inline uint8_t *oracle_address(struct oracle *o, uint32_t rank, const struct oracle_value *element) {
  return (uint8_t *)o->memory[rank] + 4 * (element - o->memory[rank][0]);
}

/* Small operations of one size take a channel each, in turn. */
static inline void oracle_plan(struct oracle *o, uint32_t rank) {
  struct plan_op ops[ORACLE_CHANNELS_MAX];
  for (uint32_t i = 0; i <= o->test->channel; i++)
    ops[i] = (struct plan_op){.func = o->test->func,
                              .dtype = ncclFloat32,
                              .op = OP_SUM_POST_DIV,
                              .count = o->test->count,
                              .in = oracle_address(o, rank, o->in[rank]),
                              .out = oracle_address(o, rank, o->out[rank]),
                              .sequence = i};
  const struct plan_request request = oracle_request(o->test, rank, ops);
  if (plan_build(&request, &o->plans[rank]) != ncclSuccess) oracle_fail(o, rank, 0, "has no plan");
}

/* A rank's works of an operation on a channel run in parallel: a batch, including the switch. */
static inline void oracle_add_lanes(struct oracle *o, uint32_t rank, uint32_t channel) {
  const struct plan *plan = &o->plans[rank];
  uint32_t batches = 0;
  for (uint32_t b = 0; b < plan->batch_count; b++) {
    const struct plan_batch *batch = &plan->batches[b];
    if (batch->channel_index != channel) continue;
    batches += 1;
    for (uint32_t i = batch->first_work; i < batch->first_work + batch->work_count; i++) {
      const struct work *work = &plan->works[i];
      struct oracle_lane *lane = &o->lanes[o->lane_count++];
      const bool is_switch = work->role == ROLE_SWITCH;
      oracle_expect(o, work, (plan->buffers[i].in == NULL) == is_switch, "has memory that it must not have");
      oracle_expect(o, work, (work->flags & (WORK_DIRECT_SEND | WORK_DIRECT_RECV)) == 0, "stores directly");
      lane->work = work;
      algo_begin(&lane->iter, work);
      lane->has_step = algo_next(&lane->iter, work, &lane->step);
    }
  }
  if (batches != (o->test->count > 0)) oracle_fail(o, rank, 0, "has not just one batch");
}

/* ---- steps ---- */

static inline struct oracle_queue *oracle_queue_of(struct oracle *o, const struct work *work, uint32_t peer,
                                                   bool sends) {
  const uint32_t conn = work_link_conn(work, peer, sends);
  oracle_expect(o, work, conn == CONN_SWITCH || (conn == CONN_FROM_SWITCH && peer == work->rank),
                "uses another algorithm's connection");
  return sends ? &o->queues[work->rank][peer][conn - CONN_SWITCH]
               : &o->queues[peer][work->rank][conn - CONN_SWITCH];
}

static inline bool oracle_ready(struct oracle *o, const struct oracle_lane *lane) {
  const struct work *work = lane->work;
  for (uint32_t i = 0; i < STEP_LINKS_MAX; i++) {
    if (lane->step.recv_links >> i & 1) {
      oracle_expect(o, work, i < work->recv_count, "receives from a link that it lacks");
      const struct oracle_queue *queue = oracle_queue_of(o, work, work->recv_peer[i], false);
      if (queue->sent == queue->received) return false;
    }
    if (lane->step.send_links >> i & 1) {
      oracle_expect(o, work, i < work->send_count, "sends to a link that it lacks");
      const struct oracle_queue *queue = oracle_queue_of(o, work, work->send_peer[i], true);
      if (queue->sent - queue->received == o->test->slots) return false;
    }
  }
  return true;
}

/* Adds a value; the first one is copied. */
static inline void oracle_add(const struct oracle *o, const struct work *work, struct oracle_value *sum,
                              struct oracle_value value) {
  oracle_expect(o, work, value.ranks != 0, "takes what was never written");
  if (sum->ranks == 0) {
    *sum = value;
    return;
  }
  oracle_expect(o, work, sum->element == value.element, "adds one element to another");
  oracle_expect(o, work, (sum->ranks & value.ranks) == 0, "adds a contribution twice");
  oracle_expect(o, work, !sum->post && !value.post, "adds a final value");
  sum->ranks |= value.ranks;
  sum->fold = sum->fold * 31 + value.fold;
}

/* The result of element i of the step: received values in link order, with the own value after own_index of
 * them. */
static inline struct oracle_value oracle_result(struct oracle *o, const struct oracle_lane *lane, size_t i) {
  const struct work *work = lane->work;
  const struct step *step = &lane->step;
  const bool own = (step->flags & STEP_COPY_IN) != 0;
  struct oracle_value sum = {0, 0, 0, false};
  uint32_t sources = 0;
  if (own && step->own_index == 0) oracle_add(o, work, &sum, o->in[work->rank][step->in_offset + i]);
  for (uint32_t k = 0; k < work->recv_count; k++) {
    if ((step->recv_links >> k & 1) == 0) continue;
    const struct oracle_queue *queue = oracle_queue_of(o, work, work->recv_peer[k], false);
    const struct oracle_message *message = &queue->slots[queue->received % 2];
    oracle_expect(o, work, message->count == step->count, "receives another number of elements");
    oracle_add(o, work, &sum, message->values[i]);
    sources += 1;
    if (own && step->own_index == sources) oracle_add(o, work, &sum, o->in[work->rank][step->in_offset + i]);
  }
  oracle_expect(o, work, (step->flags & STEP_REDUCE) != 0 || sources + own == 1, "adds without saying so");
  sum.post = sum.post || (step->flags & STEP_POST_OP) != 0;
  return sum;
}

static inline void oracle_check_step(const struct oracle *o, const struct oracle_lane *lane) {
  const struct step *step = &lane->step;
  const struct work *work = lane->work;
  oracle_expect(o, work, ((step->flags & STEP_RECV) != 0) == (step->recv_links != 0), "RECV has no links");
  oracle_expect(o, work, ((step->flags & STEP_SEND) != 0) == (step->send_links != 0), "SEND has no links");
  oracle_expect(o, work, step->count <= o->test->chunk, "has a chunk that is too long");
  oracle_expect(o, work,
                work->role != ROLE_SWITCH || (step->flags & (STEP_COPY_IN | STEP_KEEP | STEP_POST_OP)) == 0,
                "a switch touches memory");
}

static inline bool oracle_move(struct oracle *o, struct oracle_lane *lane) {
  const struct work *work = lane->work;
  const struct step *step = &lane->step;
  if (!lane->has_step || !oracle_ready(o, lane)) return false;
  oracle_check_step(o, lane);
  for (size_t i = 0; i < step->count; i++) {
    const struct oracle_value value = oracle_result(o, lane, i);
    if (step->flags & STEP_KEEP) {
      o->out[work->rank][step->out_offset + i] = value;
      o->writes[work->rank][step->out_offset + i] += 1;
    }
    for (uint32_t k = 0; k < work->send_count; k++) {
      if ((step->send_links >> k & 1) == 0) continue;
      struct oracle_queue *queue = oracle_queue_of(o, work, work->send_peer[k], true);
      queue->slots[queue->sent % 2].values[i] = value;
    }
  }
  for (uint32_t k = 0; k < work->recv_count; k++)
    if (step->recv_links >> k & 1) oracle_queue_of(o, work, work->recv_peer[k], false)->received += 1;
  for (uint32_t k = 0; k < work->send_count; k++) {
    if ((step->send_links >> k & 1) == 0) continue;
    struct oracle_queue *queue = oracle_queue_of(o, work, work->send_peer[k], true);
    queue->slots[queue->sent % 2].count = step->count;
    queue->sent += 1;
  }
  lane->has_step = algo_next(&lane->iter, work, &lane->step);
  return true;
}

/* ---- a case ---- */

static inline void oracle_fill(struct oracle *o, uint32_t rank) {
  const struct oracle_case *t = o->test;
  const uint32_t n = t->graph->rank_count;
  const bool together = (t->in_place >> rank & 1) != 0;
  const size_t in_elements = t->func == FUNC_REDUCE_SCATTER ? n * t->count : t->count;
  assert_true(n * t->count <= ORACLE_ELEMENTS_MAX);
  memset(o->memory[rank], 0, sizeof o->memory[rank]);
  memset(o->writes[rank], 0, sizeof o->writes[rank]);
  o->in[rank] = o->memory[rank][0];
  o->out[rank] = o->memory[rank][together ? 0 : 1];
  if (together && t->func == FUNC_ALL_GATHER) o->in[rank] += rank * t->count;
  if (together && t->func == FUNC_REDUCE_SCATTER) o->out[rank] += rank * t->count;
  for (size_t i = 0; i < in_elements; i++) {
    const size_t element = t->func == FUNC_ALL_GATHER ? rank * t->count + i : i;
    o->in[rank][i] = (struct oracle_value){(uint32_t)element, 1u << rank, rank + 1, false};
  }
}

/* A switch adds its members in the order of their ranks, after the node's ranks are added in their order. For
 * trees and chains the only requirement is that all ranks see one order. */
static inline uint32_t oracle_fold(const struct oracle_case *t) {
  const struct graph *graph = t->graph;
  uint32_t all = 0;
  for (uint32_t node = 0; node < graph->node_count; node++) {
    uint32_t sum = 0;
    for (uint32_t rank = 0; rank < graph->rank_count; rank++)
      if (graph->node[rank] == node) sum = sum * 31 + rank + 1;
    all = all * 31 + sum;
  }
  return all;
}

/* Every output element was written once, with all contributions, and has the same bits on all ranks. */
static inline void oracle_check(struct oracle *o, uint32_t rank) {
  const struct oracle_case *t = o->test;
  const uint32_t n = t->graph->rank_count, everybody = n == 32 ? ~0u : (1u << n) - 1;
  const bool gathers = t->func == FUNC_ALL_GATHER;
  const bool in_order = !gathers && (t->algo == ALGO_NVLS || t->algo == ALGO_COLLNET_DIRECT);
  for (size_t i = 0; i < (gathers ? n : 1) * t->count; i++) {
    const struct oracle_value value = o->out[rank][i];
    const bool stays = gathers && i / t->count == rank && (t->in_place >> rank & 1) != 0;
    const size_t element = t->func == FUNC_REDUCE_SCATTER ? rank * t->count + i : i;
    if (o->writes[rank][i] != !stays) oracle_fail(o, rank, 0, "did not write an element exactly once");
    if (value.element != element) oracle_fail(o, rank, 0, "has another element");
    if (value.ranks != (gathers ? 1u << i / t->count : everybody)) oracle_fail(o, rank, 0, "has other ranks");
    if (value.post == gathers) oracle_fail(o, rank, 0, "did not apply the last stage once");
    if (in_order && value.fold != oracle_fold(t)) oracle_fail(o, rank, 0, "added in another order");
    if (t->func == FUNC_ALL_REDUCE && value.fold != o->out[0][i].fold)
      oracle_fail(o, rank, 0, "has other bits than rank 0");
  }
}

static inline void oracle_run_channel(struct oracle *o) {
  const uint32_t n = o->test->graph->rank_count;
  bool moved = true;
  o->lane_count = 0;
  for (uint32_t a = 0; a < n; a++)
    for (uint32_t b = 0; b < n; b++)
      for (uint32_t c = 0; c < 2; c++) o->queues[a][b][c].sent = o->queues[a][b][c].received = 0;
  for (uint32_t rank = 0; rank < n; rank++) oracle_add_lanes(o, rank, o->test->channel);
  while (moved) {
    moved = false;
    for (uint32_t i = 0; i < o->lane_count; i++)
      while (oracle_move(o, &o->lanes[i])) moved = true;
  }
  for (uint32_t i = 0; i < o->lane_count; i++)
    oracle_expect(o, o->lanes[i].work, !o->lanes[i].has_step, "waits for ever");
  for (uint32_t a = 0; a < n; a++)
    for (uint32_t b = 0; b < n; b++)
      for (uint32_t c = 0; c < 2; c++)
        if (o->queues[a][b][c].sent != o->queues[a][b][c].received)
          oracle_fail(o, b, 0, "leaves data in its queue");
}

static inline void oracle_run(struct oracle *o, const struct oracle_case *test) {
  const uint32_t n = test->graph->rank_count;
  o->test = test;
  for (uint32_t rank = 0; rank < n; rank++) oracle_fill(o, rank);
  for (uint32_t rank = 0; rank < n; rank++) oracle_plan(o, rank);
  oracle_run_channel(o);
  for (uint32_t rank = 0; rank < n; rank++) oracle_check(o, rank);
  for (uint32_t rank = 0; rank < n; rank++) plan_free(&o->plans[rank]);
}

#endif
