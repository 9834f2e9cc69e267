/* run_fold.c: which ranks have the same calls, and the demand on links at a time. */
#include "simulate/run_impl.h"

#include <string.h>

#include "base/hash.h"
#include "simulate/demand.h"

/* ---- demand on links at a time ---- */

/* By link: the demand of one plan, and of the plan with the greatest demand of a stream; and the links that
 * have any. */
struct turns {
  double *own, *most;
  uint32_t *links, *stream_links;
  uint32_t link_count, stream_link_count;
};

static void turns_add(const struct run *run, const struct shape *shape, struct turns *turns) {
  const struct cluster *cluster = run->request->cluster;
  for (uint32_t i = shape->first_lane; i < shape->first_lane + shape->lane_count; i++) {
    const struct sim_lane *lane = &run->rows.lanes[i];
    for (uint32_t k = 0; k < lane->work->send_count; k++) {
      const struct sim_conn *conn =
          &run->rows.conns[run->rows.links[lane->first_link + lane->work->recv_count + k]];
      struct cluster_route route;
      cluster_route_find(cluster, conn, &route);
      if (route.network) continue; /* a proxy may send after its kernel has ended */
      const double gbps = cluster_most_gbps(cluster, &route, conn->proto, conn->sender) * (1 + conn->shows);
      for (uint32_t hop = 0; gbps > 0 && hop < route.link_count; hop++) {
        if (turns->own[route.links[hop]] == 0) turns->links[turns->link_count++] = route.links[hop];
        turns->own[route.links[hop]] += gbps;
      }
    }
  }
  for (; turns->link_count > 0; turns->link_count--) {
    const uint32_t link = turns->links[turns->link_count - 1];
    if (turns->most[link] == 0) turns->stream_links[turns->stream_link_count++] = link;
    if (turns->own[link] > turns->most[link]) turns->most[link] = turns->own[link];
    turns->own[link] = 0;
  }
}

/* Kernels of a stream run one after another, and a lane moves data only while its kernel runs. */
static void turns_fill(const struct run *run, struct turns *turns) {
  for (uint32_t rank = 0; rank < run->workload->rank_count; rank++)
    for (uint32_t stream = 0; stream < run->workload->stream_count; stream++) {
      for (uint32_t i = run->first_shape[rank]; i < run->first_shape[rank + 1]; i++)
        if (run->shapes[i].streams >> stream & 1) turns_add(run, &run->shapes[i], turns);
      for (; turns->stream_link_count > 0; turns->stream_link_count--) {
        const uint32_t link = turns->stream_links[turns->stream_link_count - 1];
        run->demand_gbps[link] += turns->most[link];
        turns->most[link] = 0;
      }
    }
}

static bool turns_find(const struct run *run) {
  const size_t links = (size_t)run->request->cluster->link_count + 1;
  struct turns turns;
  memset(&turns, 0, sizeof turns);
  turns.own = (double *)os_alloc(links * sizeof(double));
  turns.most = (double *)os_alloc(links * sizeof(double));
  turns.links = (uint32_t *)os_alloc(links * sizeof(uint32_t));
  turns.stream_links = (uint32_t *)os_alloc(links * sizeof(uint32_t));
  const bool whole = turns.own && turns.most && turns.links && turns.stream_links;
  if (whole) turns_fill(run, &turns);
  os_free(turns.own);
  os_free(turns.most);
  os_free(turns.links);
  os_free(turns.stream_links);
  return whole;
}

/* All traffic over the network together. */
static bool network_find(const struct run *run) {
  const struct cluster *cluster = run->request->cluster;
  struct demand demand;
  bool whole = demand_make(cluster, &demand);
  for (uint32_t i = 0; whole && i < run->rows.conn_count; i++) {
    const struct sim_conn *conn = &run->rows.conns[i];
    struct cluster_route route;
    if (!conn->sends || conn->sender / cluster->gpus == conn->receiver / cluster->gpus) continue;
    cluster_route_find(cluster, conn, &route);
    whole = demand_add(&demand, &route, cluster_most_gbps(cluster, &route, conn->proto, conn->sender));
  }
  whole = whole && demand_sum(&demand, run->demand_gbps);
  demand_free(&demand);
  return whole;
}

ncclResult_t run_demand_find(struct run *run) {
  run->demand_gbps =
      (double *)os_alloc(((size_t)run->request->cluster->link_count + 1) * sizeof *run->demand_gbps);
  return run->demand_gbps && turns_find(run) && network_find(run) ? ncclSuccess : run_no_memory(run);
}

/* ---- ranks that are alike ---- */

bool run_has_rank(const struct run *run, uint32_t rank) {
  return !run->folded || run->fold.rank_of[rank] == rank;
}

/* What a rank does in a step, except for the plan. */
static uint32_t step_plan(const struct run *run, uint32_t rank, uint32_t step) {
  const uint32_t shape = run->shape_of[rank][step];
  return shape == SIM_NONE ? SIM_NONE : shape - run->first_shape[rank];
}

static bool order_alike(const void *context, uint32_t one, uint32_t other) {
  const struct run *run = (const struct run *)context;
  const struct workload *workload = run->workload;
  if (one == other) return true;
  if (one >= workload->rank_count || other >= workload->rank_count)
    return one >= workload->rank_count && other >= workload->rank_count;
  const struct workload_rank *a = &workload->ranks[one], *b = &workload->ranks[other];
  bool alike = a->step_count == b->step_count;
  for (uint32_t i = 0; alike && i < a->step_count; i++) {
    const struct workload_call *x = &workload->calls[a->steps[i].call],
                               *y = &workload->calls[b->steps[i].call];
    alike = step_plan(run, one, i) == step_plan(run, other, i) && x->stream == y->stream &&
            x->wait_stream == y->wait_stream && a->steps[i].wait == b->steps[i].wait &&
            x->after_ps == y->after_ps && x->at_ps == y->at_ps;
  }
  return alike;
}

static uint64_t order_colour(const struct run *run, uint32_t rank) {
  uint64_t hash = HASH_SEED;
  if (rank >= run->workload->rank_count) return hash;
  const struct workload_rank *own = &run->workload->ranks[rank];
  for (uint32_t i = 0; i < own->step_count; i++) {
    const struct workload_call *call = &run->workload->calls[own->steps[i].call];
    hash = hash_mix(hash, (uint64_t)step_plan(run, rank, i) << 32 | own->steps[i].wait);
    hash = hash_mix(hash, (uint64_t)call->stream << 32 | call->wait_stream);
    hash = hash_mix(hash_mix(hash, call->after_ps), call->at_ps);
  }
  return hash_mix(hash, own->step_count);
}

/* The last call of a communicator by a rank: its stream, and its number there from 1. */
struct last_call {
  uint32_t rank_after, stream, number; /* rank_after: the rank plus one */
};

/* Whether each call of a communicator waits for the previous one, by the stream's order or by an explicit
 * wait. Otherwise the times decide which of two kernels reaches a connection first. `last`: by communicator.
 */
static bool calls_wait_in_turn(const struct run *run, struct last_call *last) {
  for (uint32_t rank = 0; rank < run->workload->rank_count; rank++) {
    const struct workload_rank *own = &run->workload->ranks[rank];
    uint32_t so_far[WORKLOAD_STREAMS_MAX] = {0};
    for (uint32_t i = 0; i < own->step_count; i++) {
      const struct workload_call *call = &run->workload->calls[own->steps[i].call];
      struct last_call *before = &last[call->comm];
      so_far[call->stream] += 1;
      if (call->op_count == 0) continue;
      const bool waits = call->wait_stream == before->stream && own->steps[i].wait >= before->number;
      if (before->rank_after == rank + 1 && before->stream != call->stream && !waits) return false;
      *before = (struct last_call){rank + 1, call->stream, so_far[call->stream]};
    }
  }
  return true;
}

/* The rows of the fold replace those of all plans. */
static bool shapes_fold(struct run *run) {
  const struct sim_net *net = &run->fold.net;
  run->times = (struct interval **)os_alloc(run->workload->rank_count * sizeof *run->times);
  if (!run->times) return false;
  for (uint32_t i = 0, lane = 0; i < run->shape_count; i++) {
    struct shape *shape = &run->shapes[i];
    const uint32_t end = shape->first_lane + shape->lane_count;
    shape->first_lane = lane;
    while (lane < net->lane_count && run->fold.lane_of[lane] < end) lane += 1;
    shape->lane_count = lane - shape->first_lane;
    shape->first_block = shape->lane_count > 0 ? net->lanes[shape->first_lane].block : 0;
    shape->block_count = shape->lane_count > 0 ? net->lanes[lane - 1].block + 1 - shape->first_block : 0;
  }
  return true;
}

/* Only without callbacks, and if ranks are alike. */
ncclResult_t run_fold(struct run *run) {
  const uint32_t ranks = run->request->cluster->ranks;
  uint32_t *plan = (uint32_t *)os_alloc((run->rows.lane_count + (size_t)1) * sizeof *plan);
  uint64_t *colour = (uint64_t *)os_alloc(ranks * sizeof *colour);
  struct last_call *last = (struct last_call *)os_alloc(run->workload->comm_count * sizeof *last);
  const struct fold_turns turns = {plan, run->demand_gbps, colour, order_alike, run};
  const bool whole = plan && colour && last;
  if (whole && calls_wait_in_turn(run, last)) {
    for (uint32_t rank = 0; rank < ranks; rank++) colour[rank] = order_colour(run, rank);
    for (uint32_t rank = 0; rank < run->workload->rank_count; rank++)
      for (uint32_t i = run->first_shape[rank]; i < run->first_shape[rank + 1]; i++)
        for (uint32_t k = 0; k < run->shapes[i].lane_count; k++)
          plan[run->shapes[i].first_lane + k] = i - run->first_shape[rank];
    run->folded = fold_make(run->request->cluster, &run->rows, &turns, &run->fold);
  }
  os_free(plan);
  os_free(colour);
  os_free(last);
  return whole && (!run->folded || shapes_fold(run)) ? ncclSuccess : run_no_memory(run);
}
