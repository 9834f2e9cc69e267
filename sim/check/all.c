/* all.c: the matrix of `tutti check --all`, divided among threads by rank count and collective. Sizes come
 * from the plan: one plan is made to find its chunks, then counts around their boundaries are tried. Steps
 * are tiny, so that boundaries are at few elements. */
#include "check/all.h"

#include <stdio.h>
#include <string.h>

#include "base/os.h"
#include "check/part.h"
#include "core/plan/rules.h"
#include "machine.h"
#include "schedule/algo.h"
#include "schedule/chunk.h"
#include "schedule/pat.h"

enum { WHOLE_EVERY = 61, SIZES_MAX = 24, TURNS_RANKS_MAX = 16, SIZES_RANKS_MAX = 32, GRAPHS = 5 };

/* One share of the matrix. */
struct job {
  uint32_t rank_count;
  uint8_t func;
};

struct all {
  os_mutex mutex;
  uint32_t first, next_rank_count, next_func;
  bool stop;
  uint64_t work_done; /* for the progress report */
  struct progress *progress;
  struct check_all_report *report;
  ncclResult_t result;
};

/* A thread's state. */
struct all_thread {
  struct all *all;
  struct check_engine *engine;
  struct check_setup setup;
  struct parts parts;
  struct check_all_report found; /* of this thread */
  uint32_t turn;                 /* varies the parameters that are not combined with all others */
  struct graph graphs[GRAPHS];   /* of graph_ranks ranks: one node; nodes of 1, 2, 4, 8 */
  uint32_t graph_ranks;
  ncclResult_t result;
};

static const uint8_t all_funcs[] = {FUNC_ALL_REDUCE, FUNC_ALL_GATHER, FUNC_REDUCE_SCATTER,
                                    FUNC_BROADCAST,  FUNC_REDUCE,     FUNC_SEND_RECV,
                                    FUNC_ALL_TO_ALL, FUNC_SCATTER,    FUNC_GATHER};
enum { FUNCS = sizeof all_funcs };

static bool job_take(struct all *all, struct job *job) {
  os_mutex_lock(&all->mutex);
  const bool any = !all->stop && all->next_rank_count >= all->first;
  if (any) {
    job->rank_count = all->next_rank_count;
    job->func = all_funcs[all->next_func++];
    if (all->next_func == FUNCS) {
      all->next_func = 0;
      all->next_rank_count -= 1;
    }
  }
  os_mutex_unlock(&all->mutex);
  return any;
}

/* A job's share of the work, for the progress report: there are as many plans as sizes, and a plan's work
 * grows with its ranks. */
static uint64_t job_work(uint32_t rank_count) { return (uint64_t)rank_count * rank_count; }

static void job_end(struct all *all, const struct job *job) {
  os_mutex_lock(&all->mutex);
  all->work_done += job_work(job->rank_count);
  progress_say(all->progress, all->work_done, os_time_ns());
  os_mutex_unlock(&all->mutex);
}

/* ---- one plan ---- */

static void count_report(struct check_all_report *found, const struct check_report *report) {
  found->step_count += report->step_count;
  found->slice_count += report->slice_count;
  found->connection_count += report->connection_count;
}

static bool run_whole(struct all_thread *thread, struct check_report *report) {
  if (!check_run(thread->engine, &thread->setup.input, report)) return false;
  count_report(&thread->found, report);
  return true;
}

static void note_failure(struct all_thread *thread, const struct check_call *call, uint32_t nodes,
                         const struct check_report *report) {
  thread->found.failed = true;
  thread->found.failure.call = *call;
  thread->found.failure.nodes = nodes;
  thread->found.failure.gpus = call->rank_count / nodes;
  thread->found.report = *report;
}

static ncclResult_t prove_call(struct all_thread *thread, const struct check_call *call, uint32_t nodes) {
  struct check_report report;
  bool proved = true;
  const bool messages = call->func > FUNC_ALL_REDUCE || call->group_count > 1;
  TRY(check_setup_make(&thread->setup, call));
  thread->found.plan_count += 1;
  if (messages) thread->found.program_count += thread->setup.plans[0].batch_count > 0;
  else TRY(parts_prove(thread->engine, &thread->setup, call, &thread->parts, &proved, &report));
  if (proved && (messages || call->rank_count == 1 || thread->found.plan_count % WHOLE_EVERY == 0)) {
    thread->found.whole_count += !messages;
    thread->found.run_count += messages;
    proved = run_whole(thread, &report);
  }
  if (!proved) note_failure(thread, call, nodes, &report);
  return ncclSuccess;
}

/* ---- the matrix ---- */

/* Adds a size once. */
static void size_add(size_t *sizes, uint32_t *count, size_t size) {
  for (uint32_t i = 0; i < *count; i++)
    if (sizes[i] == size) return;
  if (*count < SIZES_MAX) sizes[(*count)++] = size;
}

/* Counts around the boundaries of slices, chunks, loops and of the last loop's rounding. */
static uint32_t sizes_of(const struct work *work, uint32_t rank_count, uint32_t type_bytes, size_t *sizes) {
  const size_t scale = work->element_bytes == type_bytes ? 1 : type_bytes; /* plans may count bytes */
  const size_t chunk = size_max(1, work->chunk_count / scale);
  const size_t loop = chunk * algo_loop_chunks(work);
  const size_t list[] = {1,
                         2,
                         chunk - 1,
                         chunk,
                         chunk + 1,
                         chunk / 2 + 1,
                         work->algo == ALGO_PAT ? chunk / 4 : 1, /* so that blocks share slots */
                         work->algo == ALGO_PAT ? chunk / 2 : 1,
                         loop - 1,
                         loop,
                         loop + 1,
                         loop + chunk,
                         2 * loop - 1,
                         2 * loop + 1,
                         rank_count - 1,
                         rank_count + 1,
                         2 * loop + loop / 2 + 1};
  uint32_t count = 0;
  for (uint32_t i = 0; i < sizeof list / sizeof *list; i++)
    if (list[i] > 0) size_add(sizes, &count, list[i]);
  return count;
}

/* The sizes of one kind of plan, in place and out of place, with and without direct stores. */
static ncclResult_t prove_sizes(struct all_thread *thread, struct check_call *call, uint32_t nodes) {
  size_t sizes[SIZES_MAX];
  uint32_t count = 1;
  call->count = sizes[0] = 64;
  call->in_place = false;
  TRY(check_setup_make(&thread->setup, call));
  const struct plan *plan = &thread->setup.plans[0];
  if (plan->work_count > 0)
    count = sizes_of(&plan->works[0], call->rank_count, check_type_bytes(call->dtype), sizes);
  const uint32_t places = call->func == FUNC_ALL_TO_ALL || call->func == FUNC_SEND_RECV ? 1 : 2;
  for (uint32_t i = 0; i < count * places && !thread->found.failed; i++) {
    /* With very many ranks every second size: the next rank count has the others. */
    if (call->rank_count > SIZES_RANKS_MAX && (i / places + call->rank_count) % 2 != 0) continue;
    call->count = sizes[i / places];
    call->in_place = i % places != 0;
    call->root = (call->rank_count - 1) * (i / 2 % 2);
    TRY(prove_call(thread, call, nodes));
  }
  return ncclSuccess;
}

/* Steps, slots and their place, types and the counters' start vary from plan to plan, so that all
 * combinations occur over the run. */
static void vary(struct all_thread *thread, struct check_call *call, uint32_t channels, bool direct) {
  static const uint32_t slots[] = {8, 2, 4, 5, 3};
  static const uint32_t chunks[] = {64, 16, 48, 512, 80};
  static const uint32_t first_steps[] = {0, 1, ((uint32_t)1 << 31) - 2, UINT32_MAX};
  static const uint8_t types[] = {ncclFloat32, ncclInt8, ncclFloat64, ncclFloat16};
  const uint32_t turn = thread->turn;
  check_limits(&call->limits, slots[turn % 5], chunks[turn / 5 % 5], channels, direct);
  call->dtype = types[turn % 4];
  call->first_step = first_steps[turn / 3 % 4];
  call->inputs = turn / 2 % 3;
  call->reads_slots = turn % 7 == 3;
}

/* Parts begin at multiples of 16 KiB, so several channels need at least that much. */
static ncclResult_t prove_channels(struct all_thread *thread, struct check_call *call, uint32_t nodes,
                                   uint32_t channels, bool direct) {
  const uint32_t bytes = 1 << 15;
  check_limits(&call->limits, 8, bytes, channels, direct);
  call->dtype = ncclFloat32;
  call->first_step = 0;
  call->reads_slots = false;
  for (uint32_t i = 0; i < 4 && !thread->found.failed; i++) {
    call->count = ((size_t)bytes * channels * (i % 2 + 1) + i * 12) / 4;
    if (call->func == FUNC_ALL_GATHER || call->func == FUNC_REDUCE_SCATTER)
      call->count = call->count / call->rank_count + i;
    call->in_place = i % 2 != 0 && call->func != FUNC_ALL_TO_ALL && call->func != FUNC_SEND_RECV;
    TRY(prove_call(thread, call, nodes));
  }
  return ncclSuccess;
}

/* All channel counts and transports, for one algorithm and protocol on one machine. */
static ncclResult_t prove_variants(struct all_thread *thread, struct check_call *call, uint32_t nodes) {
  const uint32_t variants = (call->proto_mask & 1u << PROTO_SIMPLE) != 0 ? 2 : 1;
  /* With many ranks only one variant is proved; the next rank count has the next one. */
  const uint32_t turns = call->rank_count > TURNS_RANKS_MAX ? 1 : 2;
  for (uint32_t i = 0; i < turns * variants && !thread->found.failed; i++) {
    vary(thread, call, 1, i % variants == 0);
    thread->turn += 1;
    TRY(prove_sizes(thread, call, nodes));
    if (!thread->found.failed) TRY(prove_channels(thread, call, nodes, 2 + i, i % variants == 0));
  }
  return ncclSuccess;
}

/* Broadcasts of one group: two, one from each root, and more than there are roots. */
static ncclResult_t prove_groups(struct all_thread *thread, struct check_call *call) {
  static const size_t sizes[] = {1, 63, 64, 65, 200, 20000};
  const uint32_t groups[] = {2, call->rank_count, call->rank_count + 2};
  for (uint32_t i = 0; i < 18 && !thread->found.failed; i++) {
    if (call->rank_count > TURNS_RANKS_MAX && i % 6 != call->rank_count % 6) continue;
    vary(thread, call, 1 + i % 3, true);
    thread->turn += 1;
    if (call->limits.slots < 2) continue;
    call->group_count = groups[i / 6];
    call->count = sizes[i % 6];
    if (call->rank_count > TURNS_RANKS_MAX && call->count > 200) call->count = 333;
    call->in_place = i % 2 != 0;
    call->root = i % call->rank_count;
    TRY(prove_call(thread, call, 1));
  }
  return ncclSuccess;
}

/* One algorithm and protocol on nodes of `gpus` ranks, if the rules allow it. */
static ncclResult_t prove_shape(struct all_thread *thread, const struct check_call *job, uint32_t gpus,
                                uint8_t algo, uint8_t proto) {
  struct check_call call = *job;
  const uint32_t nodes = job->rank_count / gpus;
  struct graph *graph = &thread->graphs[nodes == 1 ? 0 : 1 + pat_bit_index(gpus)];
  if (thread->found.failed) return ncclSuccess;
  if (graph->memory == NULL) TRY(machine_graph(NULL, nodes, gpus, graph));
  call.graph = graph;
  call.algo_mask = 1u << algo;
  call.proto_mask = 1u << proto;
  call.p2p_ll_threshold = proto == PROTO_LL ? 1 << 20 : 0;
  if (check_call_forbid(&call, algo, proto)) return ncclSuccess;
  /* LL and LL128 of one step size run the same program: the same variants, so that it is run once. */
  if (proto != PROTO_SIMPLE) thread->turn = job->rank_count * 7;
  TRY(prove_variants(thread, &call, nodes));
  const bool fuses = job->func == FUNC_BROADCAST && algo == ALGO_RING && proto != PROTO_LL128;
  return fuses && nodes == 1 && job->rank_count > 1 ? prove_groups(thread, &call) : ncclSuccess;
}

/* The nodes that an algorithm sees: one; for trees and switches also nodes of 1, 2, 4 and 8 ranks, for rings
 * nodes of one rank. */
static bool shape_is_tried(const struct job *job, uint8_t algo, uint32_t gpus) {
  if (gpus == job->rank_count) return true;
  if (gpus > 8 || (gpus & (gpus - 1)) != 0 || job->rank_count % gpus != 0) return false;
  if (algo == ALGO_RING) return gpus == 1 && job->func <= FUNC_ALL_REDUCE;
  return algo == ALGO_TREE ? gpus <= 4 : algo != ALGO_PAT;
}

static void graphs_free(struct all_thread *thread) {
  for (uint32_t i = 0; i < GRAPHS; i++) graph_free(&thread->graphs[i]);
  memset(thread->graphs, 0, sizeof thread->graphs);
}

/* Every algorithm and protocol that may carry the call, on every machine with this many ranks. */
static ncclResult_t prove_job(struct all_thread *thread, const struct job *job) {
  struct check_call call;
  memset(&call, 0, sizeof call);
  call.func = job->func;
  call.rank_count = job->rank_count;
  check_limits(&call.limits, 8, 64, 1, true);
  part_set_free(&thread->parts.seen);
  if (thread->graph_ranks != job->rank_count) graphs_free(thread);
  thread->graph_ranks = job->rank_count;
  for (uint8_t algo = 0; algo < ALGO_COUNT; algo++)
    for (uint8_t proto = 0; proto < PROTO_COUNT; proto++)
      for (uint32_t gpus = job->rank_count; gpus > 0; gpus--)
        if (shape_is_tried(job, algo, gpus)) TRY(prove_shape(thread, &call, gpus, algo, proto));
  call.rank_order = true;
  const uint8_t algo = rules_order_algo(job->func);
  for (uint8_t proto = 0; proto < PROTO_COUNT && func_reduces(job->func); proto++)
    for (uint32_t gpus = job->rank_count; gpus > 0; gpus--)
      if (shape_is_tried(job, algo, gpus)) TRY(prove_shape(thread, &call, gpus, algo, proto));
  return ncclSuccess;
}

/* ---- threads ---- */

static void thread_merge(struct all_thread *thread) {
  struct all *all = thread->all;
  const struct check_all_report *found = &thread->found;
  struct check_all_report *report = all->report;
  os_mutex_lock(&all->mutex);
  report->plan_count += found->plan_count;
  report->program_count += found->program_count + thread->parts.program_count;
  report->run_count += found->run_count + thread->parts.run_count;
  report->whole_count += found->whole_count;
  report->step_count += found->step_count + thread->parts.step_count;
  report->slice_count += found->slice_count + thread->parts.slice_count;
  report->connection_count += found->connection_count + thread->parts.connection_count;
  if (found->failed &&
      (!report->failed || found->failure.call.rank_count < report->failure.call.rank_count)) {
    report->failed = true;
    report->failure = found->failure;
    report->report = found->report;
  }
  if (thread->result != ncclSuccess) all->result = thread->result;
  os_mutex_unlock(&all->mutex);
}

static void *thread_body(void *argument) {
  struct all *all = (struct all *)argument;
  struct all_thread thread;
  struct job job;
  memset(&thread, 0, sizeof thread);
  thread.all = all;
  thread.engine = check_engine_new();
  thread.result = thread.engine ? ncclSuccess : ncclSystemError;
  while (thread.result == ncclSuccess && !thread.found.failed && job_take(all, &job)) {
    thread.result = prove_job(&thread, &job);
    job_end(all, &job);
  }
  if (thread.found.failed || thread.result != ncclSuccess) {
    os_mutex_lock(&all->mutex);
    all->stop = true;
    os_mutex_unlock(&all->mutex);
  }
  if (thread.found.failed) {
    check_case_shrink(thread.engine, &thread.setup, &thread.found.failure, &thread.found.report);
  }
  thread_merge(&thread);
  check_setup_free(&thread.setup);
  graphs_free(&thread);
  parts_free(&thread.parts);
  check_engine_free(thread.engine);
  return NULL;
}

ncclResult_t check_all(uint32_t first, uint32_t last, uint32_t threads, struct progress *progress,
                       struct check_all_report *report) {
  os_thread handles[16];
  uint32_t started = 0;
  struct all all;
  memset(&all, 0, sizeof all);
  memset(report, 0, sizeof *report);
  all.first = first;
  all.next_rank_count = last;
  all.report = report;
  all.progress = progress;
  uint64_t work = 0;
  char what[64];
  for (uint32_t ranks = first; ranks <= last; ranks++) work += FUNCS * job_work(ranks);
  snprintf(what, sizeof what, "all plans of %u to %u ranks", first, last);
  progress_begin(progress, what, work, os_time_ns());
  os_mutex_init(&all.mutex);
  while (started + 1 < threads && started < 16 && os_thread_start(&handles[started], thread_body, &all))
    started++;
  thread_body(&all);
  for (uint32_t i = 0; i < started; i++) os_thread_join(handles[i]);
  progress_clear(progress);
  os_mutex_destroy(&all.mutex);
  return all.result;
}
