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

#define RUN_LINKS_MAX (1u << 28)

/* A plan: of one rank, for calls that are alike. */
struct shape {
  uint32_t comm, place, call; /* call: one of those that are alike */
  uint32_t next;              /* of one hash, WALK_NONE */
  uint64_t uses;              /* kernels */
  struct plan plan;
  struct walk_net net; /* of it alone, ranks of the communicator; its links name connections of all */
  uint32_t first_link; /* of its links among all */
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

/* When a rank with several streams had kernels. */
struct interval {
  uint64_t begin_ps, end_ps;
};
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
  uint32_t **shape_of; /* by rank and step */
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
  struct walk_conn *conns = (struct walk_conn *)os_realloc(run->net.conns, room * sizeof *conns);
  if (conns) run->net.conns = conns;
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
  for (uint32_t i = 0; i < run->net.conn_count; i++) {
    uint32_t *bucket = &buckets[conn_hash(&conns[i], comms[i]) & mask];
    nexts[i] = *bucket;
    *bucket = i;
  }
  return true;
}

/* The connection's number among all: communicators have their own, and each protocol its own slots. */
static bool conn_find(struct run *run, const struct walk_conn *key, uint32_t comm, uint32_t *number) {
  if (run->net.conn_count == run->conn_room && !conns_grow(run)) return false;
  uint32_t *bucket = &run->conn_buckets[conn_hash(key, comm) & run->conn_mask];
  for (*number = *bucket; *number != WALK_NONE; *number = run->conn_next[*number]) {
    struct walk_conn *conn = &run->net.conns[*number];
    if (conn->sender != key->sender || conn->receiver != key->receiver || conn->channel != key->channel ||
        conn->index != key->index || conn->proto != key->proto || run->conn_comms[*number] != comm)
      continue;
    conn->sends = conn->sends || key->sends;
    return true;
  }
  *number = run->net.conn_count++;
  run->net.conns[*number] = *key;
  run->conn_comms[*number] = comm;
  run->conn_next[*number] = *bucket;
  *bucket = *number;
  return true;
}

/* Its links name connections of all, with ranks of the job. */
static ncclResult_t shape_connect(struct run *run, struct shape *shape) {
  const struct workload_comm *comm = &run->workload->comms[shape->comm];
  struct walk_net *net = &shape->net;
  for (uint32_t i = 0; i < net->lane_count; i++) {
    const struct work *work = net->lanes[i].work;
    for (uint32_t k = 0; k < (uint32_t)work->recv_count + work->send_count; k++) {
      uint32_t *link = &net->links[net->lanes[i].first_link + k];
      struct walk_conn key = net->conns[*link];
      key.sender = workload_rank_of(comm, key.sender);
      key.receiver = workload_rank_of(comm, key.receiver);
      key.proto = work->proto;
      key.sends = k >= work->recv_count;
      if (!conn_find(run, &key, shape->comm, link)) return no_memory(run);
    }
  }
  os_free(net->conns);
  net->conns = NULL;
  shape->first_link = run->net.link_count;
  run->net.link_count += net->link_count;
  return run->net.link_count < RUN_LINKS_MAX
             ? ncclSuccess
             : log_fail(ncclInvalidUsage, "%s: more than %u links of plans that differ; take a part of it",
                        run->workload->name, RUN_LINKS_MAX);
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
  for (uint32_t rank = 0; rank < workload->rank_count; rank++) {
    const struct workload_rank *own = &workload->ranks[rank];
    run->shape_of[rank] = (uint32_t *)os_alloc((own->step_count + (size_t)1) * sizeof **run->shape_of);
    if (!run->shape_of[rank]) return no_memory(run);
    for (uint32_t i = 0; i < own->step_count; i++) {
      uint32_t *number = &run->shape_of[rank][i];
      TRY(shape_find(run, rank, own->steps[i].call, number));
      if (*number != WALK_NONE) run->shapes[*number].uses += 1;
    }
  }
  for (uint32_t i = 0; i < run->shape_count; i++) { /* rows of plans no longer move */
    struct shape *shape = &run->shapes[i];
    TRY(walk_net_make_rank(&shape->plan, shape->place, run->workload->comms[shape->comm].rank_count,
                           &shape->net));
    TRY(shape_connect(run, shape));
  }
  run->net.links = (uint32_t *)os_alloc((run->net.link_count + (size_t)1) * sizeof *run->net.links);
  if (!run->net.links) return no_memory(run);
  for (uint32_t i = 0; i < run->shape_count; i++) {
    struct walk_net *net = &run->shapes[i].net;
    if (net->link_count > 0)
      memcpy(&run->net.links[run->shapes[i].first_link], net->links, net->link_count * sizeof *net->links);
    os_free(net->links);
    net->links = NULL;
  }
  run->report->plan_count = run->shape_count;
  return ncclSuccess;
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
      const struct walk_net *net = &run->shapes[number].net;
      if (net->lane_count > track->lane_room) track->lane_room = net->lane_count;
      if (net->block_count > track->block_room) track->block_room = net->block_count;
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

/* What the engine takes a net for. */
static ncclResult_t net_make(struct run *run) {
  const uint32_t ranks = run->request->cluster->ranks;
  struct walk_net *net = &run->net;
  net->rank_count = net->plan_count = ranks;
  net->lanes = (struct walk_lane *)os_alloc((net->lane_count + (size_t)1) * sizeof *net->lanes);
  net->blocks = (struct walk_block *)os_alloc((net->block_count + (size_t)1) * sizeof *net->blocks);
  run->plans = (struct plan *)os_alloc(ranks * sizeof *run->plans);
  if (!net->lanes || !net->blocks || !run->plans) return no_memory(run);
  for (uint32_t rank = 0; rank < ranks; rank++) plan_limits_default(&run->plans[rank].limits);
  net->plans = run->plans;
  return ncclSuccess;
}

/* ---- what the engine asks ---- */

/* Its rows become those of the plan. */
static void track_load(struct run *run, struct track *track, const struct shape *shape,
                       struct engine_kernel *kernel) {
  struct walk_net *net = &run->net;
  for (uint32_t i = 0; i < shape->net.block_count; i++) {
    struct walk_block *block = &net->blocks[track->first_block + i];
    *block = shape->net.blocks[i];
    block->rank = track->rank;
    block->track = (uint32_t)(track - run->tracks);
    block->first_lane += track->first_lane;
  }
  for (uint32_t i = 0; i < shape->net.lane_count; i++) {
    struct walk_lane *lane = &net->lanes[track->first_lane + i];
    *lane = shape->net.lanes[i];
    lane->rank = track->rank;
    lane->block += track->first_block;
    lane->first_link += shape->first_link;
  }
  kernel->lane_count = shape->net.lane_count;
  kernel->block_count = shape->net.block_count;
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
    if (number != WALK_NONE && is_collective(run, call))
      arrival_add(run, &run->shapes[number], kernel->begin_ps);
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
  if (run->workload->calls[call].op_count > 0) {
    const struct run_kernel kernel = {track->rank, track->stream, call, track->begin_ps, end_ps};
    busy_add(run, track, end_ps);
    run->report->kernel_ps += end_ps - track->begin_ps;
    run->report->kernel_count += 1;
    kind_add(run, call, end_ps - track->begin_ps);
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
  TRY(tracks_make(run));
  TRY(net_make(run));
  run->stands = (struct stand *)os_alloc((run->track_count + (size_t)1) * sizeof *run->stands);
  return run->stands ? ncclSuccess : no_memory(run);
}

static void run_free(struct run *run) {
  for (uint32_t i = 0; i < run->shape_count; i++) {
    plan_free(&run->shapes[i].plan);
    walk_net_free(&run->shapes[i].net);
  }
  for (uint32_t i = 0; run->graphs && i < run->workload->comm_count; i++) graph_free(&run->graphs[i]);
  for (uint32_t i = 0; run->shape_of && i < run->workload->rank_count; i++) os_free(run->shape_of[i]);
  for (uint32_t i = 0; i < run->track_count; i++) os_free(run->tracks[i].ends);
  for (uint32_t i = 0; run->arrivals && i < run->workload->comm_count; i++) {
    os_free(run->arrivals[i].next);
    os_free(run->arrivals[i].rows);
  }
  for (uint32_t i = 0; run->intervals && i < run->workload->rank_count; i++) os_free(run->intervals[i].rows);
  os_free(run->arrivals);
  os_free(run->intervals);
  walk_net_free(&run->net);
  os_free(run->graphs);
  os_free(run->shapes);
  os_free(run->buckets);
  os_free(run->shape_of);
  os_free(run->tracks);
  os_free(run->first_track);
  os_free(run->conn_buckets);
  os_free(run->conn_comms);
  os_free(run->conn_next);
  os_free(run->plans);
  os_free(run->ops);
  os_free(run->stands);
  os_free(run->kind_of);
}

static uint32_t run_pieces(const struct run *run) {
  uint32_t pieces = 1;
  for (uint32_t i = 0; i < run->shape_count; i++)
    for (uint32_t k = 0; k < run->shapes[i].net.lane_count; k++) {
      const uint32_t own = engine_pieces(run->shapes[i].net.lanes[k].work);
      if (own > pieces) pieces = own;
    }
  return pieces;
}

/* Of all kernels of all ranks. */
static uint64_t run_slices(const struct run *run) {
  uint64_t sum = 0;
  for (uint32_t i = 0; i < run->shape_count; i++)
    sum += run->shapes[i].uses * walk_net_slices(&run->shapes[i].net);
  return sum;
}

ncclResult_t run_workload(const struct run_request *request, struct run_report *report) {
  struct run run;
  memset(&run, 0, sizeof run);
  memset(report, 0, sizeof *report);
  run.request = request;
  run.workload = request->workload;
  run.report = report;
  const struct run_watch *watch = request->watch;
  struct progress *progress = request->progress;
  ncclResult_t result = ncclSuccess;
  if (request->workload->rank_count > request->cluster->ranks)
    return log_fail(ncclInvalidUsage, "%s has %u ranks, the cluster %u; give --nodes", run.workload->name,
                    run.workload->rank_count, request->cluster->ranks);
  result = run_make(&run);
  if (result == ncclSuccess) {
    const struct engine_supply supply = {&run,        run.track_count, run_pieces(&run),
                                         supply_next, supply_ended,    supply_stands};
    const struct engine_request engine = {.cluster = request->cluster,
                                          .net = &run.net,
                                          .hear = watch ? watch->hear : NULL,
                                          .context = watch ? watch->context : NULL,
                                          .hear_message = watch ? watch->hear_message : NULL,
                                          .tell = progress ? progress_tell : NULL,
                                          .tell_context = progress,
                                          .supply = &supply};
    struct engine_report engine_report;
    if (watch && watch->net) watch->net(watch->context, &run.net);
    if (progress && progress->out)
      progress_begin(progress, run.workload->name, run_slices(&run), os_time_ns());
    result = engine_run(&engine, &engine_report);
    report->slice_count = engine_report.slice_count;
    report->message_count = engine_report.message_count;
    report->event_count = engine_report.event_count;
    for (uint32_t i = 0; i < run.track_count; i++)
      report->stalled = report->stalled || !track_ended(&run, &run.tracks[i]);
    report->late_ps = arrivals_late_ps(&run);
    busy_join(&run);
    if (result == ncclSuccess && run.failed) result = no_memory(&run);
    if (result == ncclSuccess && report->stalled) stuck_report(&run);
    qsort(report->kinds, report->kind_count, sizeof *report->kinds, kind_compare);
  }
  run_free(&run);
  return result;
}

void run_report_free(struct run_report *report) {
  os_free(report->kinds);
  os_free(report->busy_ps);
  os_free(report->compute_ps);
  memset(report, 0, sizeof *report);
}
