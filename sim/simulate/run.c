/* run.c: see run.h. A track is a stream of a rank. Each plan that differs becomes rows of lanes and links
 * once; a kernel's rows are copied into its track's part of the engine's net when it begins. */
#include "simulate/run.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/log.h"
#include "base/os.h"
#include "simulate/call.h"
#include "simulate/demand.h"

#define RUN_LINKS_MAX (1u << 28)

/* A plan: of one rank, for calls that are alike. */
struct shape {
  uint32_t comm, place, call; /* call: one of those that are alike */
  uint32_t next;              /* of one hash, WALK_NONE */
  uint64_t uses;              /* kernels */
  uint64_t streams;           /* a bit a stream on which they are */
  struct plan plan;
  uint32_t first_lane, lane_count, first_block, block_count; /* in run.rows */
};

struct track {
  uint32_t rank, stream;
  uint32_t step; /* of the rank: the one that runs, or is next */
  uint32_t done; /* steps of this track that have ended */
  uint32_t first_lane, lane_room, first_block, block_room;
  uint64_t begin_ps, end_ps; /* of the kernel that runs; of the last that has ended */
  uint64_t *ends;            /* of all steps, where others wait for them */
  uint32_t next_ready;       /* WALK_NONE */
  bool ready, running;
  uint32_t stand; /* a lane's, when nothing moves: place in stands + 1 */
};

/* The n-th kernel of a communicator's collectives: when its ranks came. */
struct arrival {
  uint64_t sum_ps, last_ps;
  uint32_t count;
};
struct arrivals {
  uint32_t *next; /* by place: the number of its next one */
  struct arrival *rows;
  uint32_t row_room;
};

/* When a kernel ran. */
struct interval {
  uint64_t begin_ps, end_ps;
};
/* Of a rank with several streams. */
struct intervals {
  struct interval *rows;
  uint32_t count, room;
};

struct stand {
  uint32_t peer; /* of the job */
  const char *wants;
  char link[64];
};

struct run {
  const struct run_request *request;
  const struct workload *workload;
  struct run_report *report;
  struct graph *graphs; /* by communicator; empty where the cluster's serves, or none is needed */
  struct shape *shapes;
  uint32_t shape_count, shape_room;
  uint32_t *buckets; /* of shapes */
  uint32_t bucket_mask;
  uint32_t **shape_of;   /* by rank and step */
  uint32_t *first_shape; /* by rank; one entry more */
  struct walk_net rows;  /* of all plans, one after another: ranks, links and connections of the job */
  uint32_t lane_room, block_room, link_room;
  uint8_t *pieces;     /* by connection of the rows that run: into which steps are cut */
  double *demand_gbps; /* by link: the most that kernels ask for at a time */
  struct fold fold;    /* whose net's rows take the place of these, where ranks are alike */
  bool folded;
  struct interval **times; /* by rank that runs and step, where it is folded */
  struct track *tracks;
  uint32_t track_count, first_ready, last_ready;
  uint32_t *first_track; /* by rank; one entry more */
  bool awaited[WORKLOAD_STREAMS_MAX];
  struct walk_net net;
  uint32_t *conn_buckets, conn_mask, conn_room;
  uint32_t *conn_comms, *conn_next; /* by connection: whose it is; of one hash */
  struct plan *plans;               /* by rank of the job: limits alone, for the engine */
  struct plan_op *ops;
  uint32_t op_room;
  struct stand *stands;
  uint32_t stand_count;
  uint32_t *kind_of;           /* by call */
  struct arrivals *arrivals;   /* by communicator */
  struct intervals *intervals; /* by rank */
  bool failed;                 /* memory was out while it ran */
};

static uint64_t later(uint64_t a, uint64_t b) { return a > b ? a : b; }

static ncclResult_t no_memory(const struct run *run) {
  return log_fail(ncclSystemError, "%s: no memory for the plans of %u ranks; take fewer", run->workload->name,
                  run->workload->rank_count);
}

/* ---- plans ---- */

/* The graph of a communicator that is a part of the job. */
static ncclResult_t graph_get(struct run *run, uint32_t comm_index, const struct graph **graph) {
  const struct cluster *cluster = run->request->cluster;
  const struct workload_comm *comm = &run->workload->comms[comm_index];
  const struct paths_rules rules = PATHS_RULES_DEFAULT;
  struct graph_request request;
  bool whole = comm->rank_count == cluster->ranks;
  for (uint32_t i = 0; whole && i < comm->rank_count; i++) whole = workload_rank_of(comm, i) == i;
  *graph = whole ? &cluster->graph : &run->graphs[comm_index];
  if ((*graph)->rank_count > 0) return ncclSuccess;
  struct graph_place *places = (struct graph_place *)os_alloc(comm->rank_count * sizeof *places);
  if (!places) return no_memory(run);
  for (uint32_t i = 0; i < comm->rank_count; i++) {
    const uint32_t rank = workload_rank_of(comm, i);
    places[i].node = rank / cluster->gpus;
    places[i].gpu = rank % cluster->gpus;
  }
  memset(&request, 0, sizeof request);
  request.topology = &cluster->topology;
  request.places = places;
  request.rank_count = comm->rank_count;
  request.channels_min = request.channels_max = cluster->graph.channel_count;
  request.cross_nic = 2;
  request.rules = rules;
  const ncclResult_t result = graph_build(&request, &run->graphs[comm_index]);
  os_free(places);
  return result;
}

/* What one operation of a group is to planning. */
static void op_call(const struct run *run, const struct graph *graph, const struct workload_op *op,
                    uint32_t place, struct check_call *call) {
  const struct run_request *request = run->request;
  const uint8_t way = op->func < FUNC_SEND_RECV || op->func == FUNC_ALL_TO_ALL ? op->func : FUNC_ALL_REDUCE;
  call_fill(graph, op->func, op->dtype, (size_t)op->count, request->channels, call);
  if (request->kernels) call_limits_kernels(&call->limits);
  call->op = op->op;
  call->root = op->peer;
  call->algo_mask = request->algo_mask[way];
  call->proto_mask = request->proto_mask[way];
  call->tune_file = request->tune_file;
  call->place = place;
}

/* A send or receive alone, in bytes, as the library plans it. */
static uint32_t message_fill(const struct check_call *call, struct plan_op *ops) {
  memset(ops, 0, sizeof *ops);
  ops->func = call->func;
  ops->dtype = ncclInt8;
  ops->op = OP_SUM;
  ops->peer = call->root;
  ops->count = call->count * check_type_bytes(call->dtype);
  ops->sequence = call->place;
  uint64_t in, out;
  check_call_addresses(call, 0, &in, &out);
  if (call->func == FUNC_SEND) ops->in = (const void *)(uintptr_t)in;
  else ops->out = (void *)(uintptr_t)out;
  return 1;
}

static ncclResult_t plan_make(struct run *run, struct shape *shape) {
  const struct workload_call *call = &run->workload->calls[shape->call];
  const struct workload_comm *comm = &run->workload->comms[shape->comm];
  const struct graph *graph;
  struct plan_request request;
  struct check_call row;
  TRY(graph_get(run, shape->comm, &graph));
  const uint64_t most = (2 * (uint64_t)comm->rank_count + 2) * call->op_count;
  if (most > run->op_room) {
    struct plan_op *ops =
        most > UINT32_MAX / 2 ? NULL : (struct plan_op *)os_realloc(run->ops, (size_t)most * sizeof *ops);
    if (!ops) return no_memory(run);
    run->ops = ops;
    run->op_room = (uint32_t)most;
  }
  uint32_t count = 0;
  for (uint32_t i = call->op_count; i-- > 0;) { /* the first one last: the request is of it */
    op_call(run, graph, &run->workload->ops[call->first_op + i], i, &row);
  }
  check_call_request(&row, &request);
  for (uint32_t i = 0; i < call->op_count; i++) {
    op_call(run, graph, &run->workload->ops[call->first_op + i], i, &row);
    count += row.func == FUNC_SEND || row.func == FUNC_RECV
                 ? message_fill(&row, &run->ops[count])
                 : check_call_ops(&row, shape->place, &run->ops[count]);
    request.algo_mask[row.func] = row.algo_mask;
    request.proto_mask[row.func] = row.proto_mask;
  }
  request.rank = shape->place;
  request.ops = run->ops;
  request.op_count = count;
  return plan_build(&request, &shape->plan);
}

/* ---- connections of all plans ---- */

static uint64_t conn_hash(const struct walk_conn *conn, uint32_t comm) {
  const uint64_t ends = (uint64_t)conn->sender << 32 | conn->receiver;
  const uint64_t rest = (uint64_t)comm << 32 | (uint64_t)conn->channel << 16 | (uint64_t)conn->index << 4;
  return hash_mix(hash_mix(HASH_SEED, ends), rest | conn->proto);
}

static bool conns_grow(struct run *run) {
  const uint32_t room = run->conn_room ? 2 * run->conn_room : 1024, mask = 2 * room - 1;
  struct walk_conn *conns = (struct walk_conn *)os_realloc(run->rows.conns, room * sizeof *conns);
  if (conns) run->rows.conns = conns;
  uint32_t *comms = (uint32_t *)os_realloc(run->conn_comms, room * sizeof *comms);
  if (comms) run->conn_comms = comms;
  uint32_t *nexts = (uint32_t *)os_realloc(run->conn_next, room * sizeof *nexts);
  if (nexts) run->conn_next = nexts;
  uint32_t *buckets = (uint32_t *)os_realloc(run->conn_buckets, (size_t)(mask + 1) * sizeof *buckets);
  if (buckets) run->conn_buckets = buckets;
  if (!conns || !comms || !nexts || !buckets || room > RUN_LINKS_MAX) return false;
  memset(buckets, 0xff, (size_t)(mask + 1) * sizeof *buckets);
  run->conn_room = room;
  run->conn_mask = mask;
  for (uint32_t i = 0; i < run->rows.conn_count; i++) {
    uint32_t *bucket = &buckets[conn_hash(&conns[i], comms[i]) & mask];
    nexts[i] = *bucket;
    *bucket = i;
  }
  return true;
}

/* The connection's number among all: communicators have their own, and each protocol its own slots. */
static bool conn_find(struct run *run, const struct walk_conn *key, uint32_t comm, uint32_t *number) {
  if (run->rows.conn_count == run->conn_room && !conns_grow(run)) return false;
  uint32_t *bucket = &run->conn_buckets[conn_hash(key, comm) & run->conn_mask];
  for (*number = *bucket; *number != WALK_NONE; *number = run->conn_next[*number]) {
    struct walk_conn *conn = &run->rows.conns[*number];
    if (conn->sender != key->sender || conn->receiver != key->receiver || conn->channel != key->channel ||
        conn->index != key->index || conn->proto != key->proto || run->conn_comms[*number] != comm)
      continue;
    conn->sends = conn->sends || key->sends;
    return true;
  }
  *number = run->rows.conn_count++;
  run->rows.conns[*number] = *key;
  run->conn_comms[*number] = comm;
  run->conn_next[*number] = *bucket;
  *bucket = *number;
  return true;
}

/* ---- rows of all plans ---- */

static bool room_make(void **rows, uint32_t count, uint32_t *room, size_t row_bytes) {
  if (count <= *room) return true;
  uint32_t more = *room > 0 ? *room : 1024;
  while (more < count) more *= 2;
  void *made = os_realloc(*rows, more * row_bytes);
  if (!made) return false;
  *rows = made;
  *room = more;
  return true;
}

static ncclResult_t rows_reserve(struct run *run, const struct walk_net *more) {
  struct walk_net *rows = &run->rows;
  const uint64_t links = (uint64_t)rows->link_count + more->link_count;
  if (links >= RUN_LINKS_MAX || (uint64_t)rows->lane_count + more->lane_count >= RUN_LINKS_MAX)
    return log_fail(ncclInvalidUsage, "%s: more than %u links of plans that differ; take a part of it",
                    run->workload->name, RUN_LINKS_MAX);
  return room_make((void **)&rows->lanes, rows->lane_count + more->lane_count, &run->lane_room,
                   sizeof *rows->lanes) &&
                 room_make((void **)&rows->blocks, rows->block_count + more->block_count, &run->block_room,
                           sizeof *rows->blocks) &&
                 room_make((void **)&rows->links, (uint32_t)links, &run->link_room, sizeof *rows->links)
             ? ncclSuccess
             : no_memory(run);
}

/* Copies what a plan alone has behind the rows of the others; ranks are the job's from here on. */
static ncclResult_t rows_add(struct run *run, struct shape *shape, const struct walk_net *net) {
  const struct workload_comm *comm = &run->workload->comms[shape->comm];
  struct walk_net *rows = &run->rows;
  TRY(rows_reserve(run, net));
  shape->first_lane = rows->lane_count;
  shape->lane_count = net->lane_count;
  shape->first_block = rows->block_count;
  shape->block_count = net->block_count;
  for (uint32_t i = 0; i < net->block_count; i++) {
    struct walk_block *block = &rows->blocks[rows->block_count++];
    *block = net->blocks[i];
    block->rank = workload_rank_of(comm, shape->place);
    block->first_lane += shape->first_lane;
  }
  for (uint32_t i = 0; i < net->lane_count; i++) {
    const struct work *work = net->lanes[i].work;
    struct walk_lane *lane = &rows->lanes[rows->lane_count++];
    *lane = net->lanes[i];
    lane->rank = workload_rank_of(comm, shape->place);
    lane->block += shape->first_block;
    lane->first_link = rows->link_count;
    for (uint32_t k = 0; k < (uint32_t)work->recv_count + work->send_count; k++) {
      struct walk_conn key = net->conns[net->links[net->lanes[i].first_link + k]];
      key.sender = workload_rank_of(comm, key.sender);
      key.receiver = workload_rank_of(comm, key.receiver);
      key.proto = work->proto;
      key.sends = k >= work->recv_count;
      if (!conn_find(run, &key, shape->comm, &rows->links[rows->link_count++])) return no_memory(run);
    }
  }
  return ncclSuccess;
}

/* ---- calls that are alike ---- */

/* `peers`: with whom messages are is a part of it. */
static uint32_t op_peer(const struct workload_op *op, bool peers) {
  return peers || (op->func != FUNC_SEND && op->func != FUNC_RECV) ? op->peer : 0;
}

static uint64_t ops_hash(const struct workload *workload, const struct workload_call *call, bool peers,
                         uint64_t hash) {
  for (uint32_t i = 0; i < call->op_count; i++) {
    const struct workload_op *op = &workload->ops[call->first_op + i];
    hash = hash_mix(hash_mix(hash, op->count), (uint64_t)op->func << 48 | (uint64_t)op->dtype << 40 |
                                                   (uint64_t)op->op << 32 | op_peer(op, peers));
  }
  return hash;
}

static bool calls_same(const struct workload *workload, const struct workload_call *a,
                       const struct workload_call *b, bool peers) {
  if (a->op_count != b->op_count || a->comm != b->comm) return false;
  for (uint32_t i = 0; i < a->op_count; i++) {
    const struct workload_op *x = &workload->ops[a->first_op + i], *y = &workload->ops[b->first_op + i];
    if (x->func != y->func || x->dtype != y->dtype || x->op != y->op || x->count != y->count ||
        op_peer(x, peers) != op_peer(y, peers))
      return false;
  }
  return true;
}

static bool shapes_grow(struct run *run) {
  const uint32_t room = run->shape_room ? 2 * run->shape_room : 256, mask = 2 * room - 1;
  struct shape *shapes = (struct shape *)os_realloc(run->shapes, room * sizeof *shapes);
  if (shapes) run->shapes = shapes;
  uint32_t *buckets = (uint32_t *)os_realloc(run->buckets, (size_t)(mask + 1) * sizeof *buckets);
  if (buckets) run->buckets = buckets;
  if (!shapes || !buckets) return false;
  memset(buckets, 0xff, (size_t)(mask + 1) * sizeof *buckets);
  run->shape_room = room;
  run->bucket_mask = mask;
  for (uint32_t i = 0; i < run->shape_count; i++) {
    const uint64_t hash = ops_hash(run->workload, &run->workload->calls[shapes[i].call], true,
                                   (uint64_t)shapes[i].comm << 32 | shapes[i].place);
    shapes[i].next = buckets[hash & mask];
    buckets[hash & mask] = i;
  }
  return true;
}

/* The plan for the rank's call; WALK_NONE where it only computes. */
static ncclResult_t shape_find(struct run *run, uint32_t rank, uint32_t call_index, uint32_t *number) {
  const struct workload_call *call = &run->workload->calls[call_index];
  *number = WALK_NONE;
  if (call->op_count == 0) return ncclSuccess;
  const uint32_t place = workload_place_of(&run->workload->comms[call->comm], rank);
  if (run->shape_count == run->shape_room && !shapes_grow(run)) return no_memory(run);
  const uint64_t hash = ops_hash(run->workload, call, true, (uint64_t)call->comm << 32 | place);
  uint32_t *bucket = &run->buckets[hash & run->bucket_mask];
  for (*number = *bucket; *number != WALK_NONE; *number = run->shapes[*number].next) {
    const struct shape *shape = &run->shapes[*number];
    if (shape->place == place && shape->comm == call->comm &&
        calls_same(run->workload, call, &run->workload->calls[shape->call], true))
      return ncclSuccess;
  }
  struct shape *shape = &run->shapes[run->shape_count];
  memset(shape, 0, sizeof *shape);
  shape->comm = call->comm;
  shape->place = place;
  shape->call = call_index;
  TRY(plan_make(run, shape));
  *number = run->shape_count++;
  shape->next = *bucket;
  *bucket = *number;
  return ncclSuccess;
}

static ncclResult_t shapes_make(struct run *run) {
  const struct workload *workload = run->workload;
  run->first_shape = (uint32_t *)os_alloc((workload->rank_count + (size_t)1) * sizeof *run->first_shape);
  if (!run->first_shape) return no_memory(run);
  for (uint32_t rank = 0; rank < workload->rank_count; rank++) {
    const struct workload_rank *own = &workload->ranks[rank];
    run->first_shape[rank] = run->shape_count;
    run->shape_of[rank] = (uint32_t *)os_alloc((own->step_count + (size_t)1) * sizeof **run->shape_of);
    if (!run->shape_of[rank]) return no_memory(run);
    for (uint32_t i = 0; i < own->step_count; i++) {
      uint32_t *number = &run->shape_of[rank][i];
      TRY(shape_find(run, rank, own->steps[i].call, number));
      if (*number == WALK_NONE) continue;
      run->shapes[*number].uses += 1;
      run->shapes[*number].streams |= UINT64_C(1) << workload->calls[own->steps[i].call].stream;
    }
  }
  run->first_shape[workload->rank_count] = run->shape_count;
  for (uint32_t i = 0; i < run->shape_count; i++) { /* rows of plans no longer move */
    struct shape *shape = &run->shapes[i];
    struct walk_net net;
    TRY(walk_net_make_rank(&shape->plan, shape->place, run->workload->comms[shape->comm].rank_count, &net));
    const ncclResult_t result = rows_add(run, shape, &net);
    walk_net_free(&net);
    TRY(result);
  }
  run->report->plan_count = run->shape_count;
  return ncclSuccess;
}

static ncclResult_t plans_make(struct run *run) {
  const uint32_t ranks = run->request->cluster->ranks;
  run->plans = (struct plan *)os_alloc(ranks * sizeof *run->plans);
  if (!run->plans) return no_memory(run);
  for (uint32_t rank = 0; rank < ranks; rank++) plan_limits_default(&run->plans[rank].limits);
  run->rows.rank_count = run->rows.plan_count = ranks;
  run->rows.plans = run->plans;
  return ncclSuccess;
}

/* ---- what links are asked for at a time ---- */

/* By link: what one plan asks for, what the plan of a stream that asks for most does; and links that these
 * are of. */
struct turns {
  double *own, *most;
  uint32_t *links, *stream_links;
  uint32_t link_count, stream_link_count;
};

static void turns_add(const struct run *run, const struct shape *shape, struct turns *turns) {
  const struct cluster *cluster = run->request->cluster;
  for (uint32_t i = shape->first_lane; i < shape->first_lane + shape->lane_count; i++) {
    const struct walk_lane *lane = &run->rows.lanes[i];
    for (uint32_t k = 0; k < lane->work->send_count; k++) {
      const struct walk_conn *conn =
          &run->rows.conns[run->rows.links[lane->first_link + lane->work->recv_count + k]];
      struct cluster_route route;
      cluster_route_find(cluster, conn, &route);
      if (route.network) continue; /* what proxies send may go on behind its kernel */
      const double gbps = cluster_most_gbps(cluster, &route, conn->proto, conn->sender);
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

/* Kernels of a stream follow one another, and what a lane moves itself it moves while its kernel runs. */
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

/* All that goes over the network together. */
static bool network_find(const struct run *run) {
  const struct cluster *cluster = run->request->cluster;
  struct demand demand;
  bool whole = demand_make(cluster, &demand);
  for (uint32_t i = 0; whole && i < run->rows.conn_count; i++) {
    const struct walk_conn *conn = &run->rows.conns[i];
    struct cluster_route route;
    if (!conn->sends || conn->sender / cluster->gpus == conn->receiver / cluster->gpus) continue;
    cluster_route_find(cluster, conn, &route);
    whole = demand_add(&demand, &route, cluster_most_gbps(cluster, &route, conn->proto, conn->sender));
  }
  whole = whole && demand_sum(&demand, run->demand_gbps);
  demand_free(&demand);
  return whole;
}

static ncclResult_t demand_find(struct run *run) {
  run->demand_gbps =
      (double *)os_alloc(((size_t)run->request->cluster->link_count + 1) * sizeof *run->demand_gbps);
  return run->demand_gbps && turns_find(run) && network_find(run) ? ncclSuccess : no_memory(run);
}

/* ---- ranks that are alike ---- */

static bool rank_runs(const struct run *run, uint32_t rank) {
  return !run->folded || run->fold.rank_of[rank] == rank;
}

/* What a rank does in a step, but for the plan itself. */
static uint32_t step_plan(const struct run *run, uint32_t rank, uint32_t step) {
  const uint32_t shape = run->shape_of[rank][step];
  return shape == WALK_NONE ? WALK_NONE : shape - run->first_shape[rank];
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

/* Whether each call of a communicator waits for the one before it: the stream's order has it so, or what it
 * waits for. Else which of two kernels comes first to a connection is a matter of their times. `last`: by
 * communicator. */
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

/* Rows of the fold take the place of those of all plans. */
static bool shapes_fold(struct run *run) {
  const struct walk_net *net = &run->fold.net;
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

/* Where nobody looks on, and ranks are alike. */
static ncclResult_t run_fold(struct run *run) {
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
  return whole && (!run->folded || shapes_fold(run)) ? ncclSuccess : no_memory(run);
}

/* ---- tracks ---- */

static const struct workload_call *step_call(const struct run *run, const struct track *track) {
  return &run->workload->calls[run->workload->ranks[track->rank].steps[track->step].call];
}

static bool track_ended(const struct run *run, const struct track *track) {
  return track->step == run->workload->ranks[track->rank].step_count;
}

/* From where it stands to the next step of its stream. */
static void track_seek(const struct run *run, struct track *track) {
  while (!track_ended(run, track) && step_call(run, track)->stream != track->stream) track->step += 1;
}

static struct track *track_find(const struct run *run, uint32_t rank, uint32_t stream) {
  for (uint32_t i = run->first_track[rank]; i < run->first_track[rank + 1]; i++)
    if (run->tracks[i].stream == stream) return &run->tracks[i];
  return NULL;
}

static void track_push(struct run *run, uint32_t index) {
  struct track *track = &run->tracks[index];
  if (track->ready || track->running) return;
  track->ready = true;
  track->next_ready = WALK_NONE;
  if (run->last_ready != WALK_NONE) run->tracks[run->last_ready].next_ready = index;
  else run->first_ready = index;
  run->last_ready = index;
}

static ncclResult_t rank_tracks_make(struct run *run, uint32_t rank) {
  const struct workload_rank *own = &run->workload->ranks[rank];
  if (!rank_runs(run, rank)) return ncclSuccess;
  run->report->run_count += 1;
  if (run->folded) {
    run->times[rank] = (struct interval *)os_alloc((own->step_count + (size_t)1) * sizeof **run->times);
    if (!run->times[rank]) return no_memory(run);
  }
  for (uint32_t stream = 0; own->step_count > 0 && stream < run->workload->stream_count; stream++) {
    if (own->stream_steps[stream] == 0) continue;
    struct track *track = &run->tracks[run->track_count++];
    track->rank = rank;
    track->stream = stream;
    if (run->awaited[stream]) {
      track->ends = (uint64_t *)os_alloc(own->stream_steps[stream] * sizeof *track->ends);
      if (!track->ends) return no_memory(run);
    }
    track->first_lane = run->net.lane_count;
    track->first_block = run->net.block_count;
    for (uint32_t i = 0; i < own->step_count; i++) {
      const uint32_t number = run->shape_of[rank][i];
      if (number == WALK_NONE || run->workload->calls[own->steps[i].call].stream != stream) continue;
      const struct shape *shape = &run->shapes[number];
      if (shape->lane_count > track->lane_room) track->lane_room = shape->lane_count;
      if (shape->block_count > track->block_room) track->block_room = shape->block_count;
    }
    run->net.lane_count += track->lane_room;
    run->net.block_count += track->block_room;
    track_seek(run, track);
    track_push(run, run->track_count - 1);
  }
  return ncclSuccess;
}

static ncclResult_t tracks_make(struct run *run) {
  const struct workload *workload = run->workload;
  size_t count = 0;
  for (uint32_t i = 0; i < workload->call_count; i++)
    if (workload->calls[i].wait_stream != WORKLOAD_NONE) run->awaited[workload->calls[i].wait_stream] = true;
  for (uint32_t rank = 0; rank < workload->rank_count; rank++)
    for (uint32_t stream = 0; workload->ranks[rank].stream_steps && stream < workload->stream_count; stream++)
      count += workload->ranks[rank].stream_steps[stream] > 0;
  run->tracks = (struct track *)os_alloc((count + 1) * sizeof *run->tracks);
  run->first_track = (uint32_t *)os_alloc((workload->rank_count + (size_t)1) * sizeof *run->first_track);
  if (!run->tracks || !run->first_track) return no_memory(run);
  for (uint32_t rank = 0; rank < workload->rank_count; rank++) {
    run->first_track[rank] = run->track_count;
    TRY(rank_tracks_make(run, rank));
  }
  run->first_track[workload->rank_count] = run->track_count;
  return ncclSuccess;
}

/* The rows that kernels are made of. */
static const struct walk_net *run_rows(const struct run *run) {
  return run->folded ? &run->fold.net : &run->rows;
}

/* What the engine takes a net for: connections and links are those of the rows. */
static ncclResult_t net_make(struct run *run) {
  const struct walk_net *rows = run_rows(run);
  struct walk_net *net = &run->net;
  net->rank_count = rows->rank_count;
  net->plan_count = rows->plan_count;
  net->plans = rows->plans;
  net->links = rows->links;
  net->link_count = rows->link_count;
  net->conns = rows->conns;
  net->conn_count = rows->conn_count;
  net->lanes = (struct walk_lane *)os_alloc((net->lane_count + (size_t)1) * sizeof *net->lanes);
  net->blocks = (struct walk_block *)os_alloc((net->block_count + (size_t)1) * sizeof *net->blocks);
  return net->lanes && net->blocks ? ncclSuccess : no_memory(run);
}

/* ---- what the engine asks ---- */

/* Its rows become those of the plan. */
static void track_load(struct run *run, const struct track *track, const struct shape *shape,
                       struct engine_kernel *kernel) {
  const struct walk_net *rows = run_rows(run);
  struct walk_net *net = &run->net;
  for (uint32_t i = 0; i < shape->block_count; i++) {
    struct walk_block *block = &net->blocks[track->first_block + i];
    *block = rows->blocks[shape->first_block + i];
    block->track = (uint32_t)(track - run->tracks);
    block->first_lane = block->first_lane - shape->first_lane + track->first_lane;
  }
  for (uint32_t i = 0; i < shape->lane_count; i++) {
    struct walk_lane *lane = &net->lanes[track->first_lane + i];
    *lane = rows->lanes[shape->first_lane + i];
    lane->block = lane->block - shape->first_block + track->first_block;
  }
  kernel->lane_count = shape->lane_count;
  kernel->block_count = shape->block_count;
}

/* When what it waits for on another stream has ended; false while that is not known. */
static bool track_free(const struct run *run, const struct track *track, uint64_t *begin_ps) {
  const struct workload_call *call = step_call(run, track);
  const uint32_t wait = run->workload->ranks[track->rank].steps[track->step].wait;
  *begin_ps = track->end_ps;
  if (wait == 0 || call->wait_stream == track->stream) return true;
  const struct track *other = track_find(run, track->rank, call->wait_stream);
  if (!other) return true;
  if (other->done < wait) return false;
  *begin_ps = later(*begin_ps, other->ends[wait - 1]);
  return true;
}

/* Says when a rank came to a collective. */
static void arrival_add(struct run *run, const struct shape *shape, uint64_t begin_ps) {
  struct arrivals *arrivals = &run->arrivals[shape->comm];
  const uint32_t ranks = run->workload->comms[shape->comm].rank_count;
  if (!arrivals->next) arrivals->next = (uint32_t *)os_alloc(ranks * sizeof *arrivals->next);
  run->failed = run->failed || !arrivals->next;
  if (!arrivals->next) return;
  const uint32_t number = arrivals->next[shape->place]++;
  if (number >= arrivals->row_room) {
    const uint32_t room = arrivals->row_room ? 2 * arrivals->row_room : 64;
    struct arrival *rows = (struct arrival *)os_realloc(arrivals->rows, room * sizeof *rows);
    run->failed = run->failed || !rows;
    if (!rows) return;
    memset(&rows[arrivals->row_room], 0, (room - arrivals->row_room) * sizeof *rows);
    arrivals->rows = rows;
    arrivals->row_room = room;
  }
  struct arrival *row = &arrivals->rows[number];
  row->sum_ps += begin_ps;
  row->last_ps = later(row->last_ps, begin_ps);
  row->count += 1;
}

/* A rank's time in kernels: those of several streams may overlap, and are joined at the end. */
static void busy_add(struct run *run, const struct track *track, uint64_t end_ps) {
  struct intervals *intervals = &run->intervals[track->rank];
  if (run->first_track[track->rank + 1] - run->first_track[track->rank] == 1) {
    run->report->busy_ps[track->rank] += end_ps - track->begin_ps;
    return;
  }
  if (intervals->count == intervals->room) {
    const uint32_t room = intervals->room ? 2 * intervals->room : 64;
    struct interval *rows = (struct interval *)os_realloc(intervals->rows, room * sizeof *rows);
    run->failed = run->failed || !rows;
    if (!rows) return;
    intervals->rows = rows;
    intervals->room = room;
  }
  intervals->rows[intervals->count++] = (struct interval){track->begin_ps, end_ps};
}

static int interval_compare(const void *left, const void *right) {
  const struct interval *a = (const struct interval *)left, *b = (const struct interval *)right;
  return a->begin_ps < b->begin_ps ? -1 : a->begin_ps > b->begin_ps;
}

static void busy_join(struct run *run) {
  for (uint32_t rank = 0; rank < run->workload->rank_count; rank++) {
    struct intervals *intervals = &run->intervals[rank];
    uint64_t reached_ps = 0;
    if (intervals->count == 0) continue;
    qsort(intervals->rows, intervals->count, sizeof *intervals->rows, interval_compare);
    for (uint32_t i = 0; i < intervals->count; i++) {
      const uint64_t begin_ps = later(intervals->rows[i].begin_ps, reached_ps);
      if (intervals->rows[i].end_ps <= begin_ps) continue;
      run->report->busy_ps[rank] += intervals->rows[i].end_ps - begin_ps;
      reached_ps = intervals->rows[i].end_ps;
    }
  }
}

/* For how long all ranks together waited in collectives for the last one to come. */
static uint64_t arrivals_late_ps(const struct run *run) {
  uint64_t late_ps = 0;
  for (uint32_t i = 0; i < run->workload->comm_count; i++)
    for (uint32_t k = 0; k < run->arrivals[i].row_room; k++) {
      const struct arrival *row = &run->arrivals[i].rows[k];
      late_ps += row->count * row->last_ps - row->sum_ps;
    }
  return late_ps;
}

static bool is_collective(const struct run *run, const struct workload_call *call) {
  const uint8_t func = run->workload->ops[call->first_op].func;
  return func != FUNC_SEND && func != FUNC_RECV;
}

static uint64_t compute_ps(const struct run *run, const struct workload_call *call) {
  const double compute = run->request->compute;
  return compute > 0 ? (uint64_t)((double)call->after_ps / compute + 0.5) : call->after_ps;
}

static bool supply_next(void *context, struct engine_kernel *kernel) {
  struct run *run = (struct run *)context;
  while (run->first_ready != WALK_NONE) {
    const uint32_t index = run->first_ready;
    struct track *track = &run->tracks[index];
    uint64_t begin_ps;
    run->first_ready = track->next_ready;
    if (run->first_ready == WALK_NONE) run->last_ready = WALK_NONE;
    track->ready = false;
    if (track_ended(run, track) || !track_free(run, track, &begin_ps)) continue;
    const struct workload_call *call = step_call(run, track);
    const uint32_t number = run->shape_of[track->rank][track->step];
    memset(kernel, 0, sizeof *kernel);
    kernel->track = index;
    kernel->first_lane = track->first_lane;
    kernel->first_block = track->first_block;
    const uint64_t after_ps = compute_ps(run, call);
    kernel->begin_ps = track->begin_ps = later(begin_ps + after_ps, call->at_ps);
    if (number != WALK_NONE) track_load(run, track, &run->shapes[number], kernel);
    run->report->compute_ps[track->rank] += after_ps;
    track->running = true;
    return true;
  }
  return false;
}

static void kind_add(struct run *run, uint32_t call, uint64_t spent_ps) {
  struct run_kind *kind = &run->report->kinds[run->kind_of[call]];
  if (kind->count == 0 || spent_ps < kind->least_ps) kind->least_ps = spent_ps;
  if (spent_ps > kind->most_ps) kind->most_ps = spent_ps;
  kind->count += 1;
  kind->sum_ps += spent_ps;
}

/* A step of a rank that has ended, into what is told of all of them. */
static void step_add(struct run *run, uint32_t rank, uint32_t step, const struct interval *time) {
  const uint32_t index = run->workload->ranks[rank].steps[step].call;
  const struct workload_call *call = &run->workload->calls[index];
  const uint32_t number = run->shape_of[rank][step];
  if (call->op_count == 0) return;
  if (is_collective(run, call)) arrival_add(run, &run->shapes[number], time->begin_ps);
  run->report->kernel_ps += time->end_ps - time->begin_ps;
  run->report->kernel_count += 1;
  kind_add(run, index, time->end_ps - time->begin_ps);
}

/* What ranks that ran came to is that of those that they ran for. */
static void steps_spread(struct run *run) {
  for (uint32_t rank = 0; rank < run->workload->rank_count; rank++) {
    const uint32_t ran = run->fold.rank_of[rank];
    for (uint32_t step = 0; step < run->workload->ranks[rank].step_count; step++)
      step_add(run, rank, step, &run->times[ran][step]);
    run->report->busy_ps[rank] = run->report->busy_ps[ran];
    run->report->compute_ps[rank] = run->report->compute_ps[ran];
  }
}

static void supply_ended(void *context, uint32_t index, uint64_t end_ps) {
  struct run *run = (struct run *)context;
  struct track *track = &run->tracks[index];
  const uint32_t call = run->workload->ranks[track->rank].steps[track->step].call;
  const struct run_watch *watch = run->request->watch;
  track->running = false;
  track->end_ps = end_ps;
  if (track->ends) track->ends[track->done] = end_ps;
  track->done += 1;
  run->report->end_ps = later(run->report->end_ps, end_ps);
  const struct interval time = {track->begin_ps, end_ps};
  if (run->folded) run->times[track->rank][track->step] = time;
  else step_add(run, track->rank, track->step, &time);
  if (run->workload->calls[call].op_count > 0) {
    const struct run_kernel kernel = {track->rank, track->stream, call, track->begin_ps, end_ps};
    busy_add(run, track, end_ps);
    if (watch && watch->kernel) watch->kernel(watch->context, &kernel);
  }
  track->step += 1;
  track_seek(run, track);
  if (!run->awaited[track->stream]) track_push(run, index);
  else
    for (uint32_t i = run->first_track[track->rank]; i < run->first_track[track->rank + 1]; i++)
      track_push(run, i);
}

/* ---- when nothing moves ---- */

static void supply_stands(void *context, const struct engine_stand *stand) {
  struct run *run = (struct run *)context;
  struct track *track = &run->tracks[run->net.blocks[run->net.lanes[stand->lane].block].track];
  if (track->stand != 0 || !run->stands) return;
  struct stand *kept = &run->stands[run->stand_count++];
  kept->peer = stand->peer;
  kept->wants = stand->wants;
  snprintf(kept->link, sizeof kept->link, "%s", stand->link);
  track->stand = run->stand_count;
}

__attribute__((format(printf, 2, 3))) static void say(struct run *run, const char *format, ...) {
  char *text = run->report->text;
  const size_t used = strlen(text);
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text + used, sizeof run->report->text - used, format, arguments);
  va_end(arguments);
}

/* The track of a rank on whose step for this communicator others wait: its first one that has not ended. */
static struct track *track_behind(const struct run *run, uint32_t rank, uint32_t comm) {
  struct track *found = NULL;
  uint32_t first = UINT32_MAX;
  for (uint32_t i = run->first_track[rank]; i < run->first_track[rank + 1]; i++) {
    struct track *track = &run->tracks[i];
    for (uint32_t k = track->step; k < run->workload->ranks[rank].step_count && k < first; k++) {
      const struct workload_call *call = &run->workload->calls[run->workload->ranks[rank].steps[k].call];
      if (call->stream != track->stream || call->op_count == 0 || call->comm != comm) continue;
      first = k;
      found = track;
    }
  }
  return found;
}

/* For which track this one waits; NULL: for none that will come. */
static struct track *track_waits_for(const struct run *run, const struct track *track) {
  const struct workload_call *call = step_call(run, track);
  if (track->stand != 0) return track_behind(run, run->stands[track->stand - 1].peer, call->comm);
  return track->running ? NULL : track_find(run, track->rank, call->wait_stream);
}

static void track_say(struct run *run, const struct track *track) {
  const struct workload_call *call = step_call(run, track);
  char op[160] = "compute", where[256], more[32] = "";
  if (call->op_count > 0)
    workload_say_op(run->workload, call, &run->workload->ops[call->first_op], op, sizeof op);
  if (call->op_count > 1) snprintf(more, sizeof more, " and %u more", call->op_count - 1);
  workload_say_place(run->workload, call, where, sizeof where);
  say(run, "rank %u (%s%s%s) waits for ", track->rank, where, op, more);
  if (track->stand == 0)
    say(run, "its stream %s",
        call->wait_stream < run->workload->stream_count ? run->workload->streams[call->wait_stream] : "");
  else {
    const struct stand *stand = &run->stands[track->stand - 1];
    say(run, "%s %s rank %u", stand->wants, !strcmp(stand->wants, "data") ? "from" : "of", stand->peer);
    if (stand->link[0]) say(run, " over %s, which carries nothing", stand->link);
  }
}

/* Follows waits from `track` until one comes again; NULL where the chain ends: *last is its end. */
static struct track *circle_find(const struct run *run, struct track *track, struct track **last) {
  for (uint32_t hops = 0; hops <= 2 * run->track_count; hops++) {
    *last = track;
    if (track->stand != 0 && run->stands[track->stand - 1].link[0]) return NULL;
    struct track *next = track_waits_for(run, track);
    if (!next || track_ended(run, next)) return NULL;
    track = next;
  }
  return track;
}

static void stuck_report(struct run *run) {
  enum { SHOWN = 8 };
  struct track *first = NULL, *last;
  uint32_t open = 0, length = 0;
  for (uint32_t i = 0; i < run->track_count; i++) {
    if (track_ended(run, &run->tracks[i])) continue;
    open += 1;
    if (!first && (run->tracks[i].stand != 0 || !run->tracks[i].running)) first = &run->tracks[i];
  }
  say(run, "%u of %u streams of ranks never end: ", open, run->track_count);
  if (!first) return;
  struct track *const circle = circle_find(run, first, &last);
  if (!circle) {
    track_say(run, last);
    return;
  }
  struct track *at = circle;
  do {
    if (length < SHOWN) say(run, "%s", length > 0 ? "; " : "");
    if (length++ < SHOWN) track_say(run, at);
    at = track_waits_for(run, at);
  } while (at != circle);
  say(run, "%s: a circle of %u that wait for each other", length > SHOWN ? "; ..." : "", length);
}

/* ---- all of it ---- */

/* Calls that are alike, whoever sends to whom, have one row. */
static ncclResult_t kinds_make(struct run *run) {
  const struct workload *workload = run->workload;
  uint32_t mask = 15;
  while (mask < 2 * (size_t)workload->call_count) mask = 2 * mask + 1;
  uint32_t *buckets = (uint32_t *)os_alloc((mask + (size_t)1) * sizeof *buckets);
  run->kind_of = (uint32_t *)os_alloc((workload->call_count + (size_t)1) * sizeof *run->kind_of);
  run->report->kinds =
      (struct run_kind *)os_alloc((workload->call_count + (size_t)1) * sizeof *run->report->kinds);
  if (!buckets || !run->kind_of || !run->report->kinds) {
    os_free(buckets);
    return no_memory(run);
  }
  for (uint32_t i = 0; i < workload->call_count; i++) {
    const struct workload_call *call = &workload->calls[i];
    uint32_t at = (uint32_t)ops_hash(workload, call, false, call->comm) & mask;
    while (buckets[at] &&
           !calls_same(workload, call, &workload->calls[run->report->kinds[buckets[at] - 1].call], false))
      at = (at + 1) & mask;
    if (!buckets[at]) {
      run->report->kinds[run->report->kind_count].call = i;
      buckets[at] = ++run->report->kind_count;
    }
    run->kind_of[i] = buckets[at] - 1;
  }
  os_free(buckets);
  return ncclSuccess;
}

static int kind_compare(const void *left, const void *right) {
  const struct run_kind *a = (const struct run_kind *)left, *b = (const struct run_kind *)right;
  if (a->sum_ps != b->sum_ps) return a->sum_ps > b->sum_ps ? -1 : 1;
  return a->call < b->call ? -1 : a->call > b->call;
}

static ncclResult_t run_make(struct run *run) {
  const struct workload *workload = run->workload;
  run->first_ready = run->last_ready = WALK_NONE;
  run->graphs = (struct graph *)os_alloc((workload->comm_count + (size_t)1) * sizeof *run->graphs);
  run->arrivals = (struct arrivals *)os_alloc((workload->comm_count + (size_t)1) * sizeof *run->arrivals);
  run->intervals = (struct intervals *)os_alloc(workload->rank_count * sizeof *run->intervals);
  run->shape_of = (uint32_t **)os_alloc(workload->rank_count * sizeof *run->shape_of);
  run->report->busy_ps = (uint64_t *)os_alloc(workload->rank_count * sizeof *run->report->busy_ps);
  run->report->compute_ps = (uint64_t *)os_alloc(workload->rank_count * sizeof *run->report->compute_ps);
  if (!run->graphs || !run->arrivals || !run->intervals || !run->shape_of || !run->report->busy_ps ||
      !run->report->compute_ps)
    return no_memory(run);
  TRY(kinds_make(run));
  TRY(shapes_make(run));
  TRY(plans_make(run));
  TRY(demand_find(run));
  if (!run->request->exact && !run->request->watch) TRY(run_fold(run));
  TRY(tracks_make(run));
  TRY(net_make(run));
  run->stands = (struct stand *)os_alloc((run->track_count + (size_t)1) * sizeof *run->stands);
  return run->stands ? ncclSuccess : no_memory(run);
}

static void run_free(struct run *run) {
  for (uint32_t i = 0; i < run->shape_count; i++) plan_free(&run->shapes[i].plan);
  for (uint32_t i = 0; run->graphs && i < run->workload->comm_count; i++) graph_free(&run->graphs[i]);
  for (uint32_t i = 0; i < run->workload->rank_count; i++) {
    if (run->shape_of) os_free(run->shape_of[i]);
    if (run->intervals) os_free(run->intervals[i].rows);
    if (run->times) os_free(run->times[i]);
  }
  for (uint32_t i = 0; i < run->track_count; i++) os_free(run->tracks[i].ends);
  for (uint32_t i = 0; run->arrivals && i < run->workload->comm_count; i++) {
    os_free(run->arrivals[i].next);
    os_free(run->arrivals[i].rows);
  }
  os_free(run->arrivals);
  os_free(run->intervals);
  os_free(run->times);
  os_free(run->net.lanes);
  os_free(run->net.blocks);
  fold_free(&run->fold);
  walk_net_free(&run->rows);
  os_free(run->graphs);
  os_free(run->shapes);
  os_free(run->buckets);
  os_free(run->shape_of);
  os_free(run->first_shape);
  os_free(run->tracks);
  os_free(run->first_track);
  os_free(run->conn_buckets);
  os_free(run->conn_comms);
  os_free(run->conn_next);
  os_free(run->plans);
  os_free(run->ops);
  os_free(run->stands);
  os_free(run->kind_of);
  os_free(run->demand_gbps);
  os_free(run->pieces);
}

/* Fills run->pieces. */
static ncclResult_t pieces_find(struct run *run) {
  const struct walk_net *rows = run_rows(run);
  run->pieces = (uint8_t *)os_alloc(rows->conn_count + (size_t)1);
  if (!run->pieces) return no_memory(run);
  memset(run->pieces, 1, rows->conn_count);
  for (uint32_t i = 0; i < rows->lane_count; i++) {
    const struct work *work = rows->lanes[i].work;
    const uint8_t own = (uint8_t)engine_pieces(work);
    for (uint32_t k = 0; k < (uint32_t)work->recv_count + work->send_count; k++) {
      const uint32_t conn = rows->links[rows->lanes[i].first_link + k];
      if (conn != WALK_NONE && own > run->pieces[conn]) run->pieces[conn] = own;
    }
  }
  return ncclSuccess;
}

/* Of all kernels of the ranks that run. */
static uint64_t run_slices(const struct run *run) {
  struct walk_net net = *run_rows(run);
  struct walk_lane *lanes = net.lanes;
  uint64_t sum = 0;
  for (uint32_t i = 0; i < run->shape_count; i++) {
    net.lanes = &lanes[run->shapes[i].first_lane];
    net.lane_count = run->shapes[i].lane_count;
    sum += run->shapes[i].uses * walk_net_slices(&net);
  }
  return sum;
}

static ncclResult_t run_engine(struct run *run) {
  const struct run_watch *watch = run->request->watch;
  struct progress *progress = run->request->progress;
  struct run_report *report = run->report;
  TRY(pieces_find(run));
  const struct engine_supply supply = {.context = run,
                                       .track_count = run->track_count,
                                       .pieces = run->pieces,
                                       .demand_gbps = run->demand_gbps,
                                       .next = supply_next,
                                       .ended = supply_ended,
                                       .stands = supply_stands};
  const struct engine_request engine = {.cluster = run->request->cluster,
                                        .net = &run->net,
                                        .fold = run->folded ? &run->fold : NULL,
                                        .hear = watch ? watch->hear : NULL,
                                        .context = watch ? watch->context : NULL,
                                        .hear_message = watch ? watch->hear_message : NULL,
                                        .tell = progress ? progress_tell : NULL,
                                        .tell_context = progress,
                                        .supply = &supply};
  struct engine_report engine_report;
  if (watch && watch->net) watch->net(watch->context, &run->net);
  if (progress && progress->out) progress_begin(progress, run->workload->name, run_slices(run), os_time_ns());
  ncclResult_t result = engine_run(&engine, &engine_report);
  report->slice_count = engine_report.slice_count;
  report->message_count = engine_report.message_count;
  report->event_count = engine_report.event_count;
  for (uint32_t i = 0; i < run->track_count; i++)
    report->stalled = report->stalled || !track_ended(run, &run->tracks[i]);
  busy_join(run);
  if (run->folded && !report->stalled) steps_spread(run);
  report->late_ps = arrivals_late_ps(run);
  if (result == ncclSuccess && run->failed) result = no_memory(run);
  if (result == ncclSuccess && report->stalled) stuck_report(run);
  qsort(report->kinds, report->kind_count, sizeof *report->kinds, kind_compare);
  return result;
}

/* `folded`: whether one rank ran for several. */
static ncclResult_t run_once(const struct run_request *request, struct run_report *report, bool *folded) {
  struct run run;
  memset(&run, 0, sizeof run);
  memset(report, 0, sizeof *report);
  run.request = request;
  run.workload = request->workload;
  run.report = report;
  ncclResult_t result = run_make(&run);
  if (result == ncclSuccess) result = run_engine(&run);
  *folded = run.folded;
  run_free(&run);
  return result;
}

ncclResult_t run_workload(const struct run_request *request, struct run_report *report) {
  struct run_request whole = *request;
  bool folded;
  memset(report, 0, sizeof *report);
  if (request->workload->rank_count > request->cluster->ranks)
    return log_fail(ncclInvalidUsage, "%s has %u ranks, the cluster %u; give --nodes",
                    request->workload->name, request->workload->rank_count, request->cluster->ranks);
  const ncclResult_t result = run_once(request, report, &folded);
  if (result != ncclSuccess || !folded || !report->stalled) return result;
  run_report_free(report); /* who waits for whom is told of all ranks */
  whole.exact = true;
  return run_once(&whole, report, &folded);
}

void run_report_free(struct run_report *report) {
  os_free(report->kinds);
  os_free(report->busy_ps);
  os_free(report->compute_ps);
  memset(report, 0, sizeof *report);
}
