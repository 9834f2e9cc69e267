/* run.c: see run.h. A track is a stream of a rank. Each different plan is converted to rows of lanes and
 * links once; a kernel's rows are copied into its track's part of the engine's net when it begins. */
#include "base/array.h"
#include "simulate/run_impl.h"

#include <stdlib.h>
#include <string.h>

static uint64_t later(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* ---- tracks ---- */

const struct workload_call *run_step_call(const struct run *run, const struct track *track) {
  return &run->workload->calls[run->workload->ranks[track->rank].steps[track->step].call];
}

bool run_track_ended(const struct run *run, const struct track *track) {
  return track->step == run->workload->ranks[track->rank].step_count;
}

/* Advances to the next step of its stream. */
static void track_seek(const struct run *run, struct track *track) {
  while (!run_track_ended(run, track) && run_step_call(run, track)->stream != track->stream) track->step += 1;
}

struct track *run_track_find(const struct run *run, uint32_t rank, uint32_t stream) {
  for (uint32_t i = run->first_track[rank]; i < run->first_track[rank + 1]; i++)
    if (run->tracks[i].stream == stream) return &run->tracks[i];
  return NULL;
}

static void track_push(struct run *run, uint32_t index) {
  struct track *track = &run->tracks[index];
  if (track->ready || track->running) return;
  track->ready = true;
  track->next_ready = SIM_NONE;
  if (run->last_ready != SIM_NONE) run->tracks[run->last_ready].next_ready = index;
  else run->first_ready = index;
  run->last_ready = index;
}

static ncclResult_t rank_tracks_make(struct run *run, uint32_t rank) {
  const struct workload_rank *own = &run->workload->ranks[rank];
  if (!run_has_rank(run, rank)) return ncclSuccess;
  run->report->run_count += 1;
  if (run->folded) {
    run->times[rank] = (struct interval *)os_alloc((own->step_count + (size_t)1) * sizeof **run->times);
    if (!run->times[rank]) return run_no_memory(run);
  }
  for (uint32_t stream = 0; own->step_count > 0 && stream < run->workload->stream_count; stream++) {
    if (own->stream_steps[stream] == 0) continue;
    struct track *track = &run->tracks[run->track_count++];
    track->rank = rank;
    track->stream = stream;
    if (run->awaited[stream]) {
      track->ends = (uint64_t *)os_alloc(own->stream_steps[stream] * sizeof *track->ends);
      if (!track->ends) return run_no_memory(run);
    }
    track->first_lane = run->net.lane_count;
    track->first_block = run->net.block_count;
    for (uint32_t i = 0; i < own->step_count; i++) {
      const uint32_t number = run->shape_of[rank][i];
      if (number == SIM_NONE || run->workload->calls[own->steps[i].call].stream != stream) continue;
      const struct shape *shape = &run->shapes[number];
      if (shape->lane_count > track->lane_capacity) track->lane_capacity = shape->lane_count;
      if (shape->block_count > track->block_capacity) track->block_capacity = shape->block_count;
    }
    run->net.lane_count += track->lane_capacity;
    run->net.block_count += track->block_capacity;
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
  if (!run->tracks || !run->first_track) return run_no_memory(run);
  for (uint32_t rank = 0; rank < workload->rank_count; rank++) {
    run->first_track[rank] = run->track_count;
    TRY(rank_tracks_make(run, rank));
  }
  run->first_track[workload->rank_count] = run->track_count;
  return ncclSuccess;
}

/* The rows from which kernels are made. */
static const struct sim_net *run_rows(const struct run *run) {
  return run->folded ? &run->fold.net : &run->rows;
}

/* The engine's net: connections and links are those of the rows. */
static ncclResult_t net_make(struct run *run) {
  const struct sim_net *rows = run_rows(run);
  struct sim_net *net = &run->net;
  net->rank_count = rows->rank_count;
  net->plan_count = rows->plan_count;
  net->plans = rows->plans;
  net->links = rows->links;
  net->link_count = rows->link_count;
  net->conns = rows->conns;
  net->conn_count = rows->conn_count;
  net->lanes = (struct sim_lane *)os_alloc((net->lane_count + (size_t)1) * sizeof *net->lanes);
  net->blocks = (struct sim_block *)os_alloc((net->block_count + (size_t)1) * sizeof *net->blocks);
  return net->lanes && net->blocks ? ncclSuccess : run_no_memory(run);
}

/* ---- callbacks of the engine ---- */

/* Copies the plan's rows. */
static void track_load(struct run *run, const struct track *track, const struct shape *shape,
                       struct engine_kernel *kernel) {
  const struct sim_net *rows = run_rows(run);
  struct sim_net *net = &run->net;
  for (uint32_t i = 0; i < shape->block_count; i++) {
    struct sim_block *block = &net->blocks[track->first_block + i];
    *block = rows->blocks[shape->first_block + i];
    block->track = (uint32_t)(track - run->tracks);
    block->first_lane = block->first_lane - shape->first_lane + track->first_lane;
  }
  for (uint32_t i = 0; i < shape->lane_count; i++) {
    struct sim_lane *lane = &net->lanes[track->first_lane + i];
    *lane = rows->lanes[shape->first_lane + i];
    lane->block = lane->block - shape->first_block + track->first_block;
  }
  kernel->lane_count = shape->lane_count;
  kernel->block_count = shape->block_count;
}

/* When what it waits for on other streams has ended; false while that is unknown. */
static bool track_free(const struct run *run, const struct track *track, uint64_t *begin_ps) {
  const struct workload_call *call = run_step_call(run, track);
  const uint32_t wait = run->workload->ranks[track->rank].steps[track->step].wait;
  *begin_ps = track->end_ps;
  if (run_turn_of(run, track, begin_ps)) return false;
  if (wait == 0 || call->wait_stream == track->stream) return true;
  const struct track *other = run_track_find(run, track->rank, call->wait_stream);
  if (!other) return true;
  if (other->done < wait) return false;
  *begin_ps = later(*begin_ps, other->ends[wait - 1]);
  return true;
}

/* Records when a rank reached a collective. */
static void arrival_add(struct run *run, const struct shape *shape, uint64_t begin_ps) {
  struct arrivals *arrivals = &run->arrivals[shape->comm];
  const uint32_t ranks = run->workload->comms[shape->comm].rank_count;
  if (!arrivals->next) arrivals->next = (uint32_t *)os_alloc(ranks * sizeof *arrivals->next);
  run->failed = run->failed || !arrivals->next;
  if (!arrivals->next) return;
  const uint32_t number = arrivals->next[shape->place]++;
  if (number >= arrivals->row_capacity) {
    const uint32_t before = arrivals->row_capacity;
    if (!array_grow(&arrivals->rows, &arrivals->row_capacity, (uint64_t)number + 1, sizeof *arrivals->rows)) {
      run->failed = true;
      return;
    }
    memset(&arrivals->rows[before], 0, (arrivals->row_capacity - before) * sizeof *arrivals->rows);
  }
  struct arrival *row = &arrivals->rows[number];
  row->sum_ps += begin_ps;
  row->last_ps = later(row->last_ps, begin_ps);
  row->count += 1;
}

/* A rank's time in kernels: kernels of several streams may overlap, and are merged at the end. */
static void busy_add(struct run *run, const struct track *track, uint64_t end_ps) {
  struct intervals *intervals = &run->intervals[track->rank];
  if (run->first_track[track->rank + 1] - run->first_track[track->rank] == 1) {
    run->report->busy_ps[track->rank] += end_ps - track->begin_ps;
    return;
  }
  if (!array_grow(&intervals->rows, &intervals->capacity, (uint64_t)intervals->count + 1,
                  sizeof *intervals->rows)) {
    run->failed = true;
    return;
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

/* How long all ranks together waited in collectives for the last one to arrive. */
static uint64_t arrivals_late_ps(const struct run *run) {
  uint64_t late_ps = 0;
  for (uint32_t i = 0; i < run->workload->comm_count; i++)
    for (uint32_t k = 0; k < run->arrivals[i].row_capacity; k++) {
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
  while (run->first_ready != SIM_NONE) {
    const uint32_t index = run->first_ready;
    struct track *track = &run->tracks[index];
    uint64_t begin_ps;
    run->first_ready = track->next_ready;
    if (run->first_ready == SIM_NONE) run->last_ready = SIM_NONE;
    track->ready = false;
    if (run_track_ended(run, track) || !track_free(run, track, &begin_ps)) continue;
    const struct workload_call *call = run_step_call(run, track);
    const uint32_t number = run->shape_of[track->rank][track->step];
    memset(kernel, 0, sizeof *kernel);
    kernel->track = index;
    kernel->first_lane = track->first_lane;
    kernel->first_block = track->first_block;
    const uint64_t after_ps = compute_ps(run, call);
    kernel->begin_ps = track->begin_ps = later(begin_ps + after_ps, call->at_ps);
    if (number != SIM_NONE) track_load(run, track, &run->shapes[number], kernel);
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

/* Adds an ended step of a rank to the statistics. */
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

/* Results of ranks that ran also apply to those that they represent. */
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
  if (run->step_ends[track->rank]) run->step_ends[track->rank][track->step] = end_ps;
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
  if (!run->awaited[track->stream] && !run->step_ends[track->rank]) track_push(run, index);
  else
    for (uint32_t i = run->first_track[track->rank]; i < run->first_track[track->rank + 1]; i++)
      track_push(run, i);
}

/* ---- all of it ---- */

/* Calls that are alike, whatever the peers, have one row. */
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
    return run_no_memory(run);
  }
  for (uint32_t i = 0; i < workload->call_count; i++) {
    const struct workload_call *call = &workload->calls[i];
    uint32_t at = (uint32_t)run_ops_hash(workload, call, false, call->comm) & mask;
    while (buckets[at] &&
           !run_calls_same(workload, call, &workload->calls[run->report->kinds[buckets[at] - 1].call], false))
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
  run->first_ready = run->last_ready = SIM_NONE;
  run->graphs = (struct graph *)os_alloc((workload->comm_count + (size_t)1) * sizeof *run->graphs);
  run->arrivals = (struct arrivals *)os_alloc((workload->comm_count + (size_t)1) * sizeof *run->arrivals);
  run->intervals = (struct intervals *)os_alloc(workload->rank_count * sizeof *run->intervals);
  run->shape_of = (uint32_t **)os_alloc(workload->rank_count * sizeof *run->shape_of);
  run->report->busy_ps = (uint64_t *)os_alloc(workload->rank_count * sizeof *run->report->busy_ps);
  run->report->compute_ps = (uint64_t *)os_alloc(workload->rank_count * sizeof *run->report->compute_ps);
  if (!run->graphs || !run->arrivals || !run->intervals || !run->shape_of || !run->report->busy_ps ||
      !run->report->compute_ps)
    return run_no_memory(run);
  TRY(kinds_make(run));
  TRY(run_shapes_make(run));
  TRY(run_plans_make(run));
  TRY(run_turns_find(run));
  TRY(run_demand_find(run));
  if (!run->request->exact && !run->request->watch) TRY(run_fold(run));
  TRY(tracks_make(run));
  TRY(net_make(run));
  run->stuck = (struct stuck_lane *)os_alloc((run->track_count + (size_t)1) * sizeof *run->stuck);
  return run->stuck ? ncclSuccess : run_no_memory(run);
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
  run_turns_free(run);
  os_free(run->net.lanes);
  os_free(run->net.blocks);
  fold_free(&run->fold);
  sim_net_free(&run->rows);
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
  os_free(run->stuck);
  os_free(run->kind_of);
  os_free(run->demand_gbps);
  os_free(run->pieces);
}

/* Fills run->pieces. */
static ncclResult_t pieces_find(struct run *run) {
  const struct sim_net *rows = run_rows(run);
  run->pieces = (uint8_t *)os_alloc(rows->conn_count + (size_t)1);
  if (!run->pieces) return run_no_memory(run);
  memset(run->pieces, 1, rows->conn_count);
  for (uint32_t i = 0; i < rows->lane_count; i++) {
    const struct work *work = rows->lanes[i].work;
    const uint8_t own = (uint8_t)engine_pieces(work);
    for (uint32_t k = 0; k < (uint32_t)work->recv_count + work->send_count; k++) {
      const uint32_t conn = rows->links[rows->lanes[i].first_link + k];
      if (own > run->pieces[conn]) run->pieces[conn] = own;
    }
  }
  return ncclSuccess;
}

/* For all kernels of the ranks that run. */
static uint64_t run_slices(const struct run *run) {
  struct sim_net net = *run_rows(run);
  struct sim_lane *lanes = net.lanes;
  uint64_t sum = 0;
  for (uint32_t i = 0; i < run->shape_count; i++) {
    net.lanes = &lanes[run->shapes[i].first_lane];
    net.lane_count = run->shapes[i].lane_count;
    sum += run->shapes[i].uses * slices_count(&net);
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
                                       .stuck = run_stuck_add};
  const struct engine_request engine = {.cluster = run->request->cluster,
                                        .net = &run->net,
                                        .fold = run->folded ? &run->fold : NULL,
                                        .hear = watch ? watch->hear : NULL,
                                        .context = watch ? watch->context : NULL,
                                        .see_message = watch ? watch->see_message : NULL,
                                        .on_stuck = watch ? watch->on_stuck : NULL,
                                        .tell = progress ? progress_report : NULL,
                                        .report_context = progress,
                                        .supply = &supply};
  struct engine_report engine_report;
  if (watch && watch->net) watch->net(watch->context, &run->net);
  if (progress && progress->out) progress_begin(progress, run->workload->name, run_slices(run), os_time_ns());
  ncclResult_t result = engine_run(&engine, &engine_report);
  report->slice_count = engine_report.slice_count;
  report->message_count = engine_report.message_count;
  report->event_count = engine_report.event_count;
  for (uint32_t i = 0; i < run->track_count; i++)
    report->stalled = report->stalled || !run_track_ended(run, &run->tracks[i]);
  busy_join(run);
  if (run->folded && !report->stalled) steps_spread(run);
  report->late_ps = arrivals_late_ps(run);
  if (result == ncclSuccess && run->failed) result = run_no_memory(run);
  if (result == ncclSuccess && report->stalled) run_stuck_report(run);
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
  run_report_free(report); /* the report of a stall needs all ranks */
  whole.exact = true;
  return run_once(&whole, report, &folded);
}

void run_report_free(struct run_report *report) {
  os_free(report->kinds);
  os_free(report->busy_ps);
  os_free(report->compute_ps);
  memset(report, 0, sizeof *report);
}
