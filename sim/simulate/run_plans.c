/* run_plans.c: the plans of a workload's calls: one for all equal calls of a rank; their rows of lanes, links
 * and connections are stored one after another. */
#include "simulate/run_impl.h"

#include <string.h>

#include "base/array.h"
#include "base/hash.h"

/* ---- plans ---- */

/* The graph of a communicator that has only some of the job's ranks. */
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
  if (!places) return run_no_memory(run);
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

/* One operation of a group, in planning's form. */
static void op_call(const struct plan_request *request, const struct workload_op *op, uint32_t place,
                    struct check_call *call) {
  call_fill(request->graph, op->func, op->dtype, (size_t)op->count, 0, call);
  call->job = request;
  call->op = op->op;
  call->root = op->peer;
  call->place = place;
}

/* A single send or receive, in bytes, as the library plans it. */
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
  if (!array_grow(&run->ops, &run->op_capacity, most, sizeof *run->ops)) return run_no_memory(run);
  uint32_t count = 0;
  planning_request(run->request->job, graph, &request);
  for (uint32_t i = 0; i < call->op_count; i++) {
    op_call(&request, &run->workload->ops[call->first_op + i], i, &row);
    count += row.func == FUNC_SEND || row.func == FUNC_RECV
                 ? message_fill(&row, &run->ops[count])
                 : check_call_ops(&row, shape->place, &run->ops[count]);
  }
  request.rank = shape->place;
  request.ops = run->ops;
  request.op_count = count;
  return plan_build(&request, &shape->plan);
}

/* ---- connections of all plans ---- */

static uint64_t conn_hash(const struct sim_conn *conn, uint32_t comm) {
  const uint64_t ends = (uint64_t)conn->sender << 32 | conn->receiver;
  const uint64_t rest = (uint64_t)comm << 32 | (uint64_t)conn->channel << 16 | (uint64_t)conn->index << 4;
  return hash_mix(hash_mix(HASH_SEED, ends), rest | conn->proto);
}

static bool conns_grow(struct run *run) {
  const uint32_t capacity = run->conn_capacity ? 2 * run->conn_capacity : 1024, mask = 2 * capacity - 1;
  if (capacity > RUN_LINKS_MAX || !array_resize(&run->rows.conns, capacity, sizeof *run->rows.conns) ||
      !array_resize(&run->conn_comms, capacity, sizeof *run->conn_comms) ||
      !array_resize(&run->conn_next, capacity, sizeof *run->conn_next) ||
      !array_resize(&run->conn_buckets, (uint64_t)mask + 1, sizeof *run->conn_buckets))
    return false;
  const struct sim_conn *conns = run->rows.conns;
  uint32_t *buckets = run->conn_buckets, *comms = run->conn_comms, *nexts = run->conn_next;
  memset(buckets, 0xff, (size_t)(mask + 1) * sizeof *buckets);
  run->conn_capacity = capacity;
  run->conn_mask = mask;
  for (uint32_t i = 0; i < run->rows.conn_count; i++) {
    uint32_t *bucket = &buckets[conn_hash(&conns[i], comms[i]) & mask];
    nexts[i] = *bucket;
    *bucket = i;
  }
  return true;
}

/* The connection's number: communicators have their own connections, and each protocol its own slots. */
static bool conn_find(struct run *run, const struct sim_conn *key, uint32_t comm, uint32_t *number) {
  if (run->rows.conn_count == run->conn_capacity && !conns_grow(run)) return false;
  uint32_t *bucket = &run->conn_buckets[conn_hash(key, comm) & run->conn_mask];
  for (*number = *bucket; *number != SIM_NONE; *number = run->conn_next[*number]) {
    struct sim_conn *conn = &run->rows.conns[*number];
    if (conn->sender != key->sender || conn->receiver != key->receiver || conn->channel != key->channel ||
        conn->index != key->index || conn->proto != key->proto || run->conn_comms[*number] != comm)
      continue;
    conn->sends = conn->sends || key->sends;
    conn->shows = conn->shows || key->shows;
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

static ncclResult_t rows_reserve(struct run *run, const struct sim_net *more) {
  struct sim_net *rows = &run->rows;
  const uint64_t links = (uint64_t)rows->link_count + more->link_count;
  if (links >= RUN_LINKS_MAX || (uint64_t)rows->lane_count + more->lane_count >= RUN_LINKS_MAX)
    return log_fail(ncclInvalidUsage, "%s: more than %u links of plans that differ; take a part of it",
                    run->workload->name, RUN_LINKS_MAX);
  return array_grow(&rows->lanes, &run->lane_capacity, rows->lane_count + more->lane_count,
                    sizeof *rows->lanes) &&
                 array_grow(&rows->blocks, &run->block_capacity, rows->block_count + more->block_count,
                            sizeof *rows->blocks) &&
                 array_grow(&rows->links, &run->link_capacity, (uint32_t)links, sizeof *rows->links)
             ? ncclSuccess
             : run_no_memory(run);
}

/* Appends the rows of a single plan to those of the others; from here on ranks are the job's. */
static ncclResult_t rows_add(struct run *run, struct shape *shape, const struct sim_net *net) {
  const struct workload_comm *comm = &run->workload->comms[shape->comm];
  struct sim_net *rows = &run->rows;
  TRY(rows_reserve(run, net));
  shape->first_lane = rows->lane_count;
  shape->lane_count = net->lane_count;
  shape->first_block = rows->block_count;
  shape->block_count = net->block_count;
  for (uint32_t i = 0; i < net->block_count; i++) {
    struct sim_block *block = &rows->blocks[rows->block_count++];
    *block = net->blocks[i];
    block->rank = workload_rank_of(comm, shape->place);
    block->first_lane += shape->first_lane;
  }
  for (uint32_t i = 0; i < net->lane_count; i++) {
    const struct work *work = net->lanes[i].work;
    struct sim_lane *lane = &rows->lanes[rows->lane_count++];
    *lane = net->lanes[i];
    lane->rank = workload_rank_of(comm, shape->place);
    lane->block += shape->first_block;
    lane->first_link = rows->link_count;
    for (uint32_t k = 0; k < (uint32_t)work->recv_count + work->send_count; k++) {
      struct sim_conn key = net->conns[net->links[net->lanes[i].first_link + k]];
      key.sender = workload_rank_of(comm, key.sender);
      key.receiver = workload_rank_of(comm, key.receiver);
      key.proto = work->proto;
      key.sends = k >= work->recv_count;
      if (!conn_find(run, &key, shape->comm, &rows->links[rows->link_count++])) return run_no_memory(run);
    }
  }
  return ncclSuccess;
}

/* ---- calls that are alike ---- */

/* `peers`: the peers of messages must be equal, too. */
static uint32_t op_peer(const struct workload_op *op, bool peers) {
  return peers || (op->func != FUNC_SEND && op->func != FUNC_RECV) ? op->peer : 0;
}

uint64_t run_ops_hash(const struct workload *workload, const struct workload_call *call, bool peers,
                      uint64_t hash) {
  for (uint32_t i = 0; i < call->op_count; i++) {
    const struct workload_op *op = &workload->ops[call->first_op + i];
    hash = hash_mix(hash_mix(hash, op->count), (uint64_t)op->func << 48 | (uint64_t)op->dtype << 40 |
                                                   (uint64_t)op->op << 32 | op_peer(op, peers));
  }
  return hash;
}

bool run_calls_same(const struct workload *workload, const struct workload_call *a,
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
  const uint32_t capacity = run->shape_capacity ? 2 * run->shape_capacity : 256, mask = 2 * capacity - 1;
  if (!array_resize(&run->shapes, capacity, sizeof *run->shapes) ||
      !array_resize(&run->buckets, (uint64_t)mask + 1, sizeof *run->buckets))
    return false;
  struct shape *shapes = run->shapes;
  uint32_t *buckets = run->buckets;
  memset(buckets, 0xff, (size_t)(mask + 1) * sizeof *buckets);
  run->shape_capacity = capacity;
  run->bucket_mask = mask;
  for (uint32_t i = 0; i < run->shape_count; i++) {
    const uint64_t hash = run_ops_hash(run->workload, &run->workload->calls[shapes[i].call], true,
                                       (uint64_t)shapes[i].comm << 32 | shapes[i].place);
    shapes[i].next = buckets[hash & mask];
    buckets[hash & mask] = i;
  }
  return true;
}

/* The plan for the rank's call; SIM_NONE if it only computes. */
static ncclResult_t shape_find(struct run *run, uint32_t rank, uint32_t call_index, uint32_t *number) {
  const struct workload_call *call = &run->workload->calls[call_index];
  *number = SIM_NONE;
  if (call->op_count == 0) return ncclSuccess;
  const uint32_t place = workload_place_of(&run->workload->comms[call->comm], rank);
  if (run->shape_count == run->shape_capacity && !shapes_grow(run)) return run_no_memory(run);
  const uint64_t hash = run_ops_hash(run->workload, call, true, (uint64_t)call->comm << 32 | place);
  uint32_t *bucket = &run->buckets[hash & run->bucket_mask];
  for (*number = *bucket; *number != SIM_NONE; *number = run->shapes[*number].next) {
    const struct shape *shape = &run->shapes[*number];
    if (shape->place == place && shape->comm == call->comm &&
        run_calls_same(run->workload, call, &run->workload->calls[shape->call], true))
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

ncclResult_t run_shapes_make(struct run *run) {
  const struct workload *workload = run->workload;
  run->first_shape = (uint32_t *)os_alloc((workload->rank_count + (size_t)1) * sizeof *run->first_shape);
  if (!run->first_shape) return run_no_memory(run);
  for (uint32_t rank = 0; rank < workload->rank_count; rank++) {
    const struct workload_rank *own = &workload->ranks[rank];
    run->first_shape[rank] = run->shape_count;
    run->shape_of[rank] = (uint32_t *)os_alloc((own->step_count + (size_t)1) * sizeof **run->shape_of);
    if (!run->shape_of[rank]) return run_no_memory(run);
    for (uint32_t i = 0; i < own->step_count; i++) {
      uint32_t *number = &run->shape_of[rank][i];
      TRY(shape_find(run, rank, own->steps[i].call, number));
      if (*number == SIM_NONE) continue;
      run->shapes[*number].uses += 1;
      run->shapes[*number].streams |= UINT64_C(1) << workload->calls[own->steps[i].call].stream;
    }
  }
  run->first_shape[workload->rank_count] = run->shape_count;
  for (uint32_t i = 0; i < run->shape_count; i++) { /* from here on the rows do not move */
    struct shape *shape = &run->shapes[i];
    struct sim_net net;
    TRY(sim_net_make_rank(&shape->plan, shape->place, run->workload->comms[shape->comm].rank_count, &net));
    const ncclResult_t result = rows_add(run, shape, &net);
    sim_net_free(&net);
    TRY(result);
  }
  run->report->plan_count = run->shape_count;
  return ncclSuccess;
}

ncclResult_t run_plans_make(struct run *run) {
  const uint32_t ranks = run->request->cluster->ranks;
  run->plans = (struct plan *)os_alloc(ranks * sizeof *run->plans);
  if (!run->plans) return run_no_memory(run);
  for (uint32_t rank = 0; rank < ranks; rank++) plan_limits_default(&run->plans[rank].limits);
  run->rows.rank_count = run->rows.plan_count = ranks;
  run->rows.plans = run->plans;
  return ncclSuccess;
}
