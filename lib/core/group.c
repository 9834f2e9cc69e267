/* group.c: the open group of each thread, and its outermost end: first communicators are created, then each
 * communicator's operations become one plan, and all plans are launched. The first failure is returned from
 * the outermost end, and then nothing of the group remains: no communicator, no queued operation. Does not
 * know what operations mean; plan.c does. */
#include "core/group.h"

#include <stdio.h>
#include <string.h>

#include "base/array.h"
#include "base/callsite.h"
#include "base/log.h"
#include "base/open_group.h"
#include "base/os.h"
#include "core/api.h"
#include "core/collective.h"
#include "core/connect.h"
#include "core/plan/plan_cache.h"
#include "core/plugins/profiler.h"
#include "core/plugins/tuner.h"
#include "core/comm/handles.h"
#include "core/comm/leaks.h"
#include "core/comm/record.h"
#include "core/comm/use.h"
#include "core/remote/remote.h"
#include "core/life.h"
#include "core/rma.h"
#include "core/suspend.h"

#define SIM_INFO_MAGIC 0x74685283u

struct group {
  uint32_t depth;
  uint32_t number; /* 0: the implicit group of a single call */
  bool watched;    /* the end of the thread is */
  ncclResult_t first_error;
  struct group_job *jobs;
  struct ncclComm **last_comm, *comms; /* with queued operations, by id */
  uint64_t last_id;                    /* of the last of them, or a larger one */
  struct suspend_job *suspends; /* no two pointers that are cleared together: gcc would align all to 16 */
  const void *end_caller;       /* of ncclGroupEnd */
  struct ncclComm *followed;    /* communicator of the last call, if the call cache followed it */
};

static _Thread_local struct group group;

/* ---- Queuing ---- */

bool group_is_open(void) { return group.depth > 0; }
uint32_t group_number(void) { return group.number; }

void group_enter(void) {
  if (group.depth == 0) {
    group.first_error = ncclSuccess;
    group.number = 0;
    group.jobs = NULL;
    group.suspends = NULL;
    group.comms = group.followed = NULL;
    group.last_comm = &group.comms;
  }
  group.depth += 1;
}

ncclResult_t group_add_job(const struct rendezvous_call *call, ncclComm_t *result) {
  struct group_job *job = (struct group_job *)os_alloc(sizeof *job);
  if (!job) return log_no_memory("%s: noting the call", call->call);
  job->call = *call;
  job->result = result;
  struct group_job **place = &group.jobs; /* jobs are few, and thread-local memory is scarce */
  while (*place) place = &(*place)->next;
  *place = job;
  return ncclSuccess;
}

void group_add_suspend(struct suspend_job *job) {
  struct suspend_job **place = &group.suspends;
  while (*place) place = &(*place)->next;
  *place = job;
}

static bool queue_reserve(struct comm_queue *queue, uint32_t op_count) {
  return array_grow(&queue->ops, &queue->op_capacity, (uint64_t)queue->op_count + op_count,
                    sizeof *queue->ops) &&
         array_grow(&queue->calls, &queue->call_capacity, (uint64_t)queue->call_count + 1,
                    sizeof *queue->calls) &&
         array_grow(&queue->streams, &queue->stream_capacity, (uint64_t)queue->stream_count + 1,
                    sizeof *queue->streams);
}

static void queue_add_stream(struct comm_queue *queue, device_stream stream) {
  for (uint32_t i = 0; i < queue->stream_count; i++) {
    if (queue->streams[i] == stream) return;
  }
  queue->streams[queue->stream_count++] = stream;
}

static bool group_owns(const struct ncclComm *comm) {
  return !comm->queue.queued || comm->queue.group == (const void *)&group;
}

ncclResult_t group_check_owner(const struct ncclComm *comm, const char *call) {
  if (group_owns(comm)) return ncclSuccess;
  return log_fail(
      ncclInvalidUsage,
      "%s: rank %u of comm '%s' has calls in a group that another thread has open; let one thread "
      "at a time use a communicator, from ncclGroupStart to ncclGroupEnd",
      call, comm->rank, comm->name);
}

/* In the same order on all ranks, whatever the order of the group's calls is: kernels of several
 * communicators that share a stream or multiprocessors would otherwise wait for each other. */
static void group_insert(struct ncclComm *comm) {
  struct ncclComm **place = group.last_comm;
  if (group.comms == NULL || comm->comm_id >= group.last_id) group.last_id = comm->comm_id;
  else
    for (place = &group.comms; *place != NULL && (*place)->comm_id <= comm->comm_id;)
      place = &(*place)->queue.next;
  comm->queue.next = *place;
  *place = comm;
  if (comm->queue.next == NULL) group.last_comm = &comm->queue.next;
}

static void group_list(struct ncclComm *comm) {
  struct comm_queue *queue = &comm->queue;
  if (queue->queued) return;
  queue->queued = true;
  queue->group = &group;
  queue->first_sequence = comm->sequence;
  queue->first_collective = comm->recorder.collectives;
  match_begin(comm);
  group_insert(comm);
}

ncclResult_t group_add_ops(const struct collective_call *call, const struct plan_op *ops, uint32_t op_count) {
  struct ncclComm *comm = call->comm;
  struct comm_queue *queue = &comm->queue;
  if (!queue_reserve(queue, op_count)) {
    return log_no_memory("rank %u of comm '%s': %u operations in the group", comm->rank, comm->name,
                         queue->op_count + op_count);
  }
  comm_own(comm);
  group_list(comm);
  for (uint32_t i = 0; i < op_count; i++) {
    queue->ops[queue->op_count] = ops[i];
    queue->ops[queue->op_count++].sequence = comm->sequence;
  }
  queue->calls[queue->call_count++] = collective_uses(call, comm->sequence);
  __atomic_store_n(&comm->sequence, comm->sequence + 1, __ATOMIC_RELAXED);
  queue_add_stream(queue, call->stream);
  return ncclSuccess;
}

bool group_follow(const struct collective_call *call, bool known) {
  struct ncclComm *comm = call->comm;
  if (known && !group_owns(comm)) return false;
  if (known && group.followed == comm && call_cache_follow_on(&comm->call_cache, call)) return true;
  group.followed = known && call_cache_follow(call) ? comm : NULL;
  if (group.followed) group_list(comm);
  return group.followed;
}

static ncclResult_t call_note(const struct collective_call *call) {
  TRY(collective_note(call));
  return call_cache_note_call(call);
}

/* Queues the calls that were followed. */
static ncclResult_t comm_unfollow(struct ncclComm *comm) {
  const uint32_t count = comm->call_cache.followed;
  comm->call_cache.followed = 0;
  for (uint32_t i = 0; i < count; i++) {
    const struct collective_call call = call_cache_followed(comm, i);
    TRY(call_note(&call));
  }
  return ncclSuccess;
}

ncclResult_t group_note(const struct collective_call *call) {
  TRY(comm_check_handle(call->comm, call->name));
  TRY(group_check_owner(call->comm, call->name));
  TRY(comm_unfollow(call->comm));
  return call_note(call);
}

ncclResult_t group_hold(const struct collective_call *call) {
  struct ncclComm *comm = call->comm;
  TRY(comm_unfollow(comm));
  group.followed = NULL;
  comm_own(comm);
  group_list(comm);
  call_cache_leave_group(&comm->call_cache);
  return ncclSuccess;
}

static void queue_clear(struct ncclComm *comm) {
  struct comm_queue *queue = &comm->queue;
  queue->plan.work_count = 0;
  queue->op_count = queue->call_count = queue->stream_count = 0;
  comm->one_sided.call_count = comm->one_sided.await_count = 0;
  queue->queued = false;
  queue->next = NULL;
  if (comm->recorder.comm != NULL) comm->recorder.comm->open_group = 0;
  call_cache_end_group(comm);
}

void group_forget(struct ncclComm *comm) {
  if (!comm->queue.queued || group.depth == 0) return;
  struct ncclComm **link = &group.comms;
  while (*link && *link != comm) link = &(*link)->queue.next;
  if (!*link) return;
  *link = comm->queue.next;
  group.followed = NULL;
  if (group.last_comm == &comm->queue.next) group.last_comm = link;
  queue_clear(comm);
  use_end(comm);
}

/* ---- Making communicators ---- */

/* Splits of one parent are identified by their number. Failed splits count too, so that all ranks have the
 * same count. */
static void job_count_split(struct group_job *job) {
  if (job->call.kind == RENDEZVOUS_SPLIT) job->call.key[1] = ++job->call.parent->split_count;
}

static ncclResult_t job_begin(struct group_job *job) {
  const struct rendezvous_call *call = &job->call;
  job_count_split(job);
  TRY(rendezvous_join(call));
  if (call->kind == RENDEZVOUS_INIT) TRY(comm_open(call->comm));
  return rendezvous_arrive(call);
}

static ncclResult_t jobs_check_blocking(const struct group_job *jobs) {
  const struct group_job *first = NULL;
  for (const struct group_job *job = jobs; job; job = job->next) {
    if (!job->call.comm) continue;
    if (!first) first = job;
    if (job->call.comm->config.blocking == first->call.comm->config.blocking) continue;
    return log_fail(ncclInvalidArgument,
                    "%s: one group makes blocking and non-blocking communicators; give both the same "
                    "config.blocking, or use two groups",
                    job->call.call);
  }
  return ncclSuccess;
}

static ncclResult_t jobs_run(struct group_job *jobs) {
  ncclResult_t result = ncclSuccess;
  TRY(jobs_check_blocking(jobs));
  for (struct group_job *job = jobs; job; job = job->next) {
    if (result == ncclSuccess) result = job_begin(job);
    else job_count_split(job);
  }
  TRY(result);
  for (struct group_job *job = jobs; job; job = job->next) {
    if (job->call.comm && job->call.comm->config.blocking)
      TRY(rendezvous_wait(job->call.comm, job->call.call));
  }
  return ncclSuccess;
}

static void job_report(const struct ncclComm *comm, const char *call) {
  log_info(LOG_INIT, "%s comm %p rank %u nranks %u cudaDev %u commId 0x%llx name '%s' - Init COMPLETE", call,
           (const void *)comm, comm->rank, comm->rank_count, comm->device_index,
           (unsigned long long)comm->comm_id, comm->name);
}

void group_request(const struct ncclComm *comm, const struct plan_op *ops, uint32_t op_count,
                   struct plan_request *request) {
  const struct remote *remote = comm->shared->remote;
  *request = (struct plan_request){.rank = comm->rank,
                                   .rank_count = comm->rank_count,
                                   .custom = comm->custom,
                                   .graph = &comm->shared->graph,
                                   .settings = comm->settings.plan,
                                   .groups = remote ? remote->groups : NULL,
                                   .p2p_domains = remote ? remote->p2p_domains : NULL,
                                   .ops = ops,
                                   .op_count = op_count};
}

/* Opens the profiler plugin of a communicator that is ready. */
static void comm_open_profiler(struct ncclComm *comm) {
  const struct profiler_comm about = {comm->name, comm->comm_id, comm->rank, comm->rank_count,
                                      comm->shared->graph.node_count};
  if (comm->profiler_sought) return;
  comm->profiler_sought = true;
  comm->profiler = profiler_open(&about);
}

/* Opens the tuner plugin of a communicator that is ready; the record then names what the plugin chose. */
static void comm_open_tuner(struct ncclComm *comm) {
  const struct graph *graph = &comm->shared->graph;
  struct tuner_comm about = {.name = comm->name,
                             .comm_id = comm->comm_id,
                             .rank = comm->rank,
                             .rank_count = comm->rank_count,
                             .node_count = graph->node_count,
                             .node_ranks_min = graph->node_ranks_max,
                             .node_ranks_max = graph->node_ranks_max};
  if (comm->settings.tuner == 0 || comm->settings.plan.tuner != NULL || comm->rank_count == 1) return;
  for (uint32_t node = 0; !graph->nodes_even && node < graph->node_count; node++) {
    uint32_t count = 0;
    for (uint32_t rank = 0; rank < graph->rank_count; rank++) count += graph->node[rank] == node;
    if (count < about.node_ranks_min) about.node_ranks_min = count;
  }
  comm->settings.plan.tuner = tuner_open(&about);
}

static void comm_record_met(struct ncclComm *comm) {
  struct plan_request request;
  group_request(comm, NULL, 0, &request);
  record_met(comm, &request);
}

/* Returns the communicators to the caller, or drops them. A communicator that is still in its rendezvous is
 * returned too: it is a non-blocking one. */
static ncclResult_t jobs_finish(struct group_job *jobs, ncclResult_t result) {
  bool pending = false;
  for (struct group_job *job = jobs, *next; job; job = next) {
    struct ncclComm *comm = job->call.comm;
    next = job->next;
    if (result != ncclSuccess && comm) comm_discard(comm);
    if (result != ncclSuccess && job->call.id.grown > 0) rendezvous_root_end(&job->call);
    if (result == ncclSuccess) {
      *job->result = comm;
      pending = pending || (comm && comm_state(comm) == COMM_RENDEZVOUS);
      if (comm && comm_state(comm) == COMM_READY) comm_own(comm);
      if (comm && comm_state(comm) == COMM_READY) comm_open_tuner(comm);
      if (comm && comm_state(comm) == COMM_READY) comm_open_profiler(comm);
      if (comm && comm_state(comm) == COMM_READY) comm_record_met(comm);
      if (comm && comm_state(comm) == COMM_READY) job_report(comm, job->call.call);
    }
    os_free(job->call.roots);
    os_free(job);
  }
  if (result != ncclSuccess) return result;
  return pending ? ncclInProgress : ncclSuccess;
}

/* ---- Launching operations ---- */

/* An all-to-all includes a message to the rank itself. */
static bool op_meets_self(const struct ncclComm *comm, const struct plan_op *op, uint8_t func) {
  return op->func == FUNC_ALL_TO_ALL || (op->func == func && op->peer == comm->rank);
}

/* The k-th send to the rank itself must have a k-th receive from itself in the same group. */
static ncclResult_t queue_check_self(const struct ncclComm *comm) {
  const struct comm_queue *queue = &comm->queue;
  uint32_t send = 0, recv = 0;
  for (;;) {
    while (send < queue->op_count && !op_meets_self(comm, &queue->ops[send], FUNC_SEND)) send++;
    while (recv < queue->op_count && !op_meets_self(comm, &queue->ops[recv], FUNC_RECV)) recv++;
    if (send == queue->op_count && recv == queue->op_count) return ncclSuccess;
    if (send == queue->op_count || recv == queue->op_count) {
      return log_fail(ncclInvalidUsage,
                      "%s: rank %u of comm '%s' %s itself, and the group has no matching %s; put "
                      "both into one group",
                      send < queue->op_count ? "ncclSend" : "ncclRecv", comm->rank, comm->name,
                      send < queue->op_count ? "sends to" : "receives from",
                      send < queue->op_count ? "ncclRecv" : "ncclSend");
    }
    if (queue->ops[send].count != queue->ops[recv].count) {
      return log_fail(ncclInvalidUsage,
                      "ncclSend: rank %u of comm '%s' sends %zu bytes to itself and receives %zu; make "
                      "both counts equal",
                      comm->rank, comm->name, queue->ops[send].count, queue->ops[recv].count);
    }
    send++, recv++;
  }
}

/* A communicator's streams in one group must belong to one graph capture or to none, because they become one
 * kernel. Different communicators may be in different graphs: one thread may capture a stream per device. */
static ncclResult_t comm_check_captures(struct ncclComm *comm) {
  uint64_t first_graph = 0;
  if (comm->queue.stream_count < 2) return ncclSuccess;
  for (uint32_t i = 0; i < comm->queue.stream_count; i++) {
    uint64_t graph = 0;
    TRY(comm->ops->device->stream_capture(comm->queue.streams[i], &graph));
    if (i == 0) first_graph = graph;
    if (graph == first_graph) continue;
    return log_fail(
        ncclInvalidUsage,
        "ncclGroupEnd: rank %u of comm '%s': its streams in this group are %s; capture all of them into one "
        "graph, or none",
        comm->rank, comm->name,
        graph && first_graph ? "captured into different graphs" : "captured only in part");
  }
  return ncclSuccess;
}

/* If only this rank fails, notifies the ranks in other processes, which would wait for it. */
static ncclResult_t comm_give_up(struct ncclComm *comm, ncclResult_t error) {
  char text[COMM_REASON_BYTES];
  if (error == ncclSuccess || !comm->shared->remote || __atomic_load_n(&comm->broken, __ATOMIC_ACQUIRE) != 0)
    return error;
  snprintf(text, sizeof text, "%s", log_own_error());
  remote_give_up(comm, error, text); /* logs the text */
  return error;
}

/* What a tuner plugin has chosen since: compared with what it chose for other ranks, and recorded. */
static ncclResult_t comm_show_answers(struct ncclComm *comm) {
  struct tuner *tuner = comm->settings.plan.tuner;
  uint32_t number = tuner_answer_new(tuner);
  if (number == UINT32_MAX) return ncclSuccess;
  for (; number != UINT32_MAX; number = tuner_answer_new(tuner))
    TRY(match_answer(comm, number, tuner_answer_at(tuner, number)));
  comm_record_met(comm);
  return ncclSuccess;
}

/* The operations of a cached plan are already checked and connected. */
static ncclResult_t comm_prepare(struct ncclComm *comm) {
  struct comm_queue *queue = &comm->queue;
  struct plan_cache **cache = &queue->plan_memory.cache;
  struct plan_request request;
  if (queue->op_count == 0) return ncclSuccess; /* one-sided calls alone */
  TRY(comm_check_captures(comm));
  if (plan_cache_find(*cache, comm->rank, queue->ops, queue->op_count, &queue->plan)) return ncclSuccess;
  TRY(queue_check_self(comm));
  comm_open_tuner(comm); /* a non-blocking init: this is its first launch */
  comm_open_profiler(comm);
  group_request(comm, queue->ops, queue->op_count, &request);
  bool keep = false;
  TRY(plan_cache_begin(cache, &request, &keep));
  TRY(plan_build_within(&request, &queue->plan_memory, &queue->plan));
  TRY(comm_show_answers(comm));
  TRY(comm_give_up(comm, connect_plan(comm, &queue->plan)));
  return keep ? plan_cache_keep(*cache, &request, queue->ops, &queue->plan) : ncclSuccess;
}

static void launch_start(void *argument) { proxy_ops_post((struct proxy_ops *)argument); }
static void launch_drop(void *argument) { proxy_ops_free((struct proxy_ops *)argument); }
static bool launch_turn(void *argument, bool last) {
  return proxy_ops_turn((struct proxy_ops *)argument, last);
}

/* Whether kernels of other ranks may access the program's memory. */
static bool plan_shows(const struct plan *plan) {
  for (uint32_t i = 0; i < plan->work_count; i++)
    if ((plan->works[i].flags & (WORK_DIRECT_RECV | WORK_SHOWS_INPUT)) != 0) return true;
  return false;
}

static ncclResult_t comm_show_memory(struct ncclComm *comm) {
  uint64_t graph = 0;
  if (!plan_shows(&comm->queue.plan)) return ncclSuccess;
  TRY(comm->ops->device->stream_capture(comm->queue.streams[0], &graph));
  remote_regions_show(comm, &comm->queue.plan, graph != 0);
  return ncclSuccess;
}

static void comm_record_launch(struct ncclComm *comm, uint64_t number) {
  const struct comm_queue *queue = &comm->queue;
  uint64_t graph = 0;
  if (comm->recorder.comm == NULL) return;
  if (comm->ops->device->stream_capture(queue->streams[0], &graph) != ncclSuccess) graph = 0;
  record_launch(comm, number, queue->plan.serial, queue->first_sequence,
                (uint32_t)(comm->sequence - queue->first_sequence), queue->stream_count, graph != 0);
}

/* If ranks are behind a network, tells the proxy what each launch will transfer. */
static ncclResult_t comm_launch(struct ncclComm *comm) {
  struct comm_queue *queue = &comm->queue;
  const struct remote *remote = comm->shared->remote;
  struct proxy_ops *ops = NULL;
  if (queue->plan.work_count == 0) return ncclSuccess;
  if (remote && remote->shows) TRY(comm_show_memory(comm));
  if (remote && remote->networked)
    TRY(proxy_ops_create(remote->proxies[comm->rank], &queue->plan, remote->remotes[comm->rank], &ops));
  const struct launch_hook hook = {launch_start, launch_drop, ops, launch_turn};
  queue->plan.hook = ops ? &hook : NULL;
  queue->plan.calls = queue->calls;
  queue->plan.call_count = queue->call_count;
  const uint64_t number = record_launched(comm);
  if (record_lacks_met(comm)) comm_record_met(comm); /* a non-blocking init: this is its first launch */
  record_plan(comm, &queue->plan);
  if (comm->profiler) profiler_launch_begin(comm->profiler, &queue->plan, queue->streams[0]);
  const ncclResult_t result =
      comm->ops->device->launch(comm->device_comm, &queue->plan, queue->streams, queue->stream_count);
  if (comm->profiler) profiler_launch_end(comm->profiler);
  if (result == ncclSuccess) call_cache_note_launch(comm, &queue->plan, queue->stream_count);
  if (result == ncclSuccess) comm_record_launch(comm, number);
  queue->plan.hook = NULL;
  queue->plan.calls = NULL;
  queue->plan.call_count = 0;
  return result;
}

/* Some kernels of the group run and some never will: breaks the communicators so that none waits. */
static void group_break(struct ncclComm *comms, ncclResult_t error) {
  for (struct ncclComm *comm = comms; comm; comm = comm->queue.next) {
    comm_set_async_error(comm, error);
    comm->ops->device->comm_abort(comm->device_comm);
  }
}

static ncclResult_t group_unfollow(struct ncclComm *comms) {
  for (struct ncclComm *comm = comms; comm; comm = comm->queue.next) TRY(comm_unfollow(comm));
  return ncclSuccess;
}

/* *begun: something of the group may have been launched. */
static ncclResult_t group_enqueue(struct ncclComm *comms, ncclResult_t (*launch)(struct ncclComm *comm),
                                  bool *begun) {
  for (struct ncclComm *comm = comms; comm; comm = comm->queue.next) {
    const ncclResult_t result = launch(comm);
    if (result == ncclSuccess) {
      *begun = *begun || (launch == comm_launch && comm->queue.next) || comm->one_sided.call_count > 0;
      continue;
    }
    if (result == ncclSystemError || result == ncclInvalidUsage) comm_give_up(comm, result);
    if (*begun) group_break(comms, result);
    return result;
  }
  return ncclSuccess;
}

static ncclResult_t group_launch(struct ncclComm *comms) {
  ncclResult_t cached;
  if (comms && !comms->queue.next && call_cache_launch_group(comms, &cached)) return cached;
  TRY(group_unfollow(comms));
  for (struct ncclComm *comm = comms; comm; comm = comm->queue.next) TRY(comm_prepare(comm));
  bool begun = false;
  TRY(group_enqueue(comms, lsa_settle, &begun));
  TRY(group_enqueue(comms, rma_launch_puts, &begun));
  TRY(group_enqueue(comms, comm_launch, &begun));
  TRY(group_enqueue(comms, rma_launch_copies, &begun));
  TRY(group_enqueue(comms, rma_launch_waits, &begun));
  for (struct ncclComm *comm = comms; comm; comm = comm->queue.next) call_cache_note_group(comm);
  return ncclSuccess;
}

static void comm_go_back(struct ncclComm *comm) {
  __atomic_store_n(&comm->sequence, comm->queue.first_sequence, __ATOMIC_RELAXED);
  recorder_drop(&comm->recorder, comm->sequence);
  comm->recorder.collectives = comm->queue.first_collective;
  match_undo(comm);
}

/* `single`: of one call, which is still under way. */
static void group_clear(struct ncclComm *comms, bool discarded, bool single) {
  for (struct ncclComm *comm = comms, *next; comm; comm = next) {
    next = comm->queue.next;
    if (discarded) comm_go_back(comm);
    if (comm->profiler) profiler_group_end(comm->profiler);
    queue_clear(comm);
    if (!single) use_end(comm); /* the last access: another thread may wait to free it */
  }
}

/* ---- The end ---- */

/* Marks all before it looks: each mark is taken off again by group_clear(). */
static ncclResult_t group_resume(struct ncclComm *comms) {
  for (struct ncclComm *comm = comms; comm; comm = comm->queue.next) use_resume(comm);
  for (struct ncclComm *comm = comms; comm; comm = comm->queue.next)
    TRY(use_check(comm, "ncclGroupEnd", group.end_caller));
  return ncclSuccess;
}

/* A communicator's calls of a group that suspends it would connect it anew. */
static ncclResult_t group_suspend(const struct group *ended) {
  if (!ended->suspends) return ncclSuccess;
  TRY(suspend_run(ended->suspends));
  for (struct ncclComm *comm = ended->comms; comm; comm = comm->queue.next)
    TRY(comm_check_awake(comm, "ncclGroupEnd"));
  return ncclSuccess;
}

/* Detaches the group from the thread first, because what runs now may open groups itself. */
static ncclResult_t group_run(void) {
  const struct group ended = group;
  ncclResult_t result = ended.first_error;
  group.comms = group.followed = NULL;
  group.jobs = NULL;
  group.suspends = NULL;
  if (ended.number != 0) open_group_end();
  if (result == ncclSuccess) result = jobs_run(ended.jobs);
  if (result == ncclSuccess) result = group_suspend(&ended);
  suspend_free(ended.suspends);
  const bool single = ended.number == 0;
  if (!single && result == ncclSuccess) result = group_resume(ended.comms);
  if (result == ncclSuccess) result = group_launch(ended.comms);
  group_clear(ended.comms, result != ncclSuccess, single);
  return jobs_finish(ended.jobs, result);
}

ncclResult_t group_leave(ncclResult_t result) {
  if (result != ncclSuccess && group.first_error == ncclSuccess) group.first_error = result;
  group.depth -= 1;
  return group.depth > 0 ? result : group_run();
}

/* A thread ends whose group is open. */
static void group_abandon(void *argument) {
  (void)argument;
  if (group.depth > 0) leaks_group(open_group_caller(), open_group_calls());
}

static void group_open(const void *caller) {
  static uint32_t last_number;
  group.number = __atomic_add_fetch(&last_number, 1, __ATOMIC_RELAXED);
  open_group_begin(caller);
  if (group.watched) return;
  group.watched = true;
  leaks_watch();
  os_at_thread_exit(group_abandon, NULL);
}

ncclResult_t pncclGroupStart(void) {
  group_enter();
  if (group.depth == 1) group_open(CALL_PLACE);
  log_call("ncclGroupStart()");
  return ncclSuccess;
}
API_EXPORT(GroupStart);

static ncclResult_t group_check_open(const char *call) {
  if (group.depth > 0) return ncclSuccess;
  return log_fail(ncclInvalidUsage, "%s: this thread has no open group; call ncclGroupStart before", call);
}

ncclResult_t pncclGroupEnd(void) {
  TRY(group_check_open("ncclGroupEnd"));
  log_call("ncclGroupEnd()");
  group.end_caller = CALL_PLACE;
  return group_leave(ncclSuccess);
}
API_EXPORT(GroupEnd);

/* Communicators run concurrently, so the group's time is the longest of theirs. */
static float group_time_us(struct ncclComm *comms) {
  double longest_us = 0;
  for (struct ncclComm *comm = comms; comm; comm = comm->queue.next) {
    struct plan_request request;
    group_request(comm, comm->queue.ops, comm->queue.op_count, &request);
    const double time_us = plan_time_us(&request);
    if (time_us > longest_us) longest_us = time_us;
  }
  return (float)longest_us;
}

static ncclResult_t sim_info_check(const ncclSimInfo_t *info) {
  if (info && info->magic == SIM_INFO_MAGIC && info->size >= sizeof *info) return ncclSuccess;
  return log_fail(ncclInvalidArgument,
                  "ncclGroupSimulateEnd: simInfo is %s; start it from NCCL_SIM_INFO_INITIALIZER",
                  info ? "not initialized" : "NULL");
}

ncclResult_t pncclGroupSimulateEnd(ncclSimInfo_t *simInfo) {
  TRY(group_check_open("ncclGroupSimulateEnd"));
  const ncclResult_t checked = sim_info_check(simInfo);
  if (group.depth > 1) return group_leave(checked);
  ncclResult_t result = group.first_error != ncclSuccess ? group.first_error : checked;
  if (result == ncclSuccess) result = group_unfollow(group.comms);
  if (result == ncclSuccess) simInfo->estimatedTime = group_time_us(group.comms);
  group_clear(group.comms, true, false);
  open_group_end();
  /* Communicators of a simulated group are not created; dropped as after an error, without an error. */
  jobs_finish(group.jobs, ncclInvalidUsage);
  suspend_free(group.suspends);
  group.depth = 0;
  return result;
}
API_EXPORT(GroupSimulateEnd);
