/* workload_chakra.c: Chakra traces (goal/chakra.h) as a workload: computations on one stream, the collectives
 * of each process group on a stream of its own, sends and receives on two more. Dependences on the same
 * stream become its order; those on another stream become waits. */
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/array.h"
#include "base/log.h"
#include "base/os.h"
#include "collective.h"
#include "goal/chakra.h"
#include "simulate/workload.h"

enum { PS_A_US = 1000000, BARRIER_BYTES = 4 };
#define NODES_MAX (1u << 24) /* of all ranks */

struct event {
  uint64_t id;
  uint64_t us, bytes;
  uint32_t type, peer, group;    /* group: index of its name in the job */
  uint32_t first_dep, dep_count; /* in the rank's deps */
  uint32_t kind;                 /* enum chakra_kind */
  uint32_t stream, position;     /* position: steps on the stream, including it; 0: not placed yet */
  bool entered;                  /* being placed: if it is reached again, nodes wait in a cycle */
};

struct chakra_rank {
  const char *path;
  struct event *events;
  uint64_t *deps;   /* ids, then indices in events */
  uint32_t *sorted; /* indices sorted by id */
  uint32_t event_count, event_capacity, dep_count, dep_capacity;
};

/* A process group: the ranks that name it. */
struct group {
  char name[CHAKRA_NAME_BYTES];
  uint32_t comm, stream, rank_count;
  uint32_t *ranks;
};

struct chakra_jobs {
  struct workload *workload;
  struct chakra_rank *ranks;
  uint32_t rank_count, rank; /* rank: the current one */
  struct group *groups;
  uint32_t group_count, group_capacity;
  uint64_t event_count;
  uint32_t compute, sends, receives; /* streams */
  const struct group *world;         /* the first group with all ranks; NULL: there is none */
  uint32_t *stack;
};

static ncclResult_t no_memory(const char *path) { return log_no_memory("%s: its nodes", path); }

/* ---- reading ---- */

/* The group's number; adds the current rank to it. */
static ncclResult_t group_join(struct chakra_jobs *jobs, const char *name, uint32_t *number) {
  const char *path = jobs->ranks[jobs->rank].path;
  for (*number = 0; *number < jobs->group_count; *number += 1)
    if (!strcmp(jobs->groups[*number].name, name)) break;
  if (*number == jobs->group_count) {
    if (!array_grow(&jobs->groups, &jobs->group_capacity, (uint64_t)jobs->group_count + 1,
                    sizeof *jobs->groups))
      return no_memory(path);
    struct group *fresh = &jobs->groups[jobs->group_count++];
    memset(fresh, 0, sizeof *fresh);
    memcpy(fresh->name, name, sizeof fresh->name);
    fresh->ranks = (uint32_t *)os_alloc(jobs->rank_count * sizeof *fresh->ranks);
    if (!fresh->ranks) return no_memory(path);
  }
  struct group *group = &jobs->groups[*number];
  if (group->rank_count == 0 || group->ranks[group->rank_count - 1] != jobs->rank)
    group->ranks[group->rank_count++] = jobs->rank;
  return ncclSuccess;
}

static ncclResult_t node_fail(const struct chakra_jobs *jobs, const struct chakra_node *node,
                              const char *what) {
  return log_fail(ncclInvalidArgument, "%s: node %" PRIu64 ": %s", jobs->ranks[jobs->rank].path, node->id,
                  what);
}

static ncclResult_t event_take(void *context, const struct chakra_node *node) {
  struct chakra_jobs *jobs = (struct chakra_jobs *)context;
  struct chakra_rank *own = &jobs->ranks[jobs->rank];
  struct event event;
  memset(&event, 0, sizeof event);
  event.id = node->id;
  event.kind = (uint32_t)node->kind;
  event.us = node->duration_us;
  event.bytes = node->comm_size;
  event.type = (uint32_t)node->comm_type;
  event.first_dep = own->dep_count;
  event.dep_count = node->dep_count;
  if (++jobs->event_count > NODES_MAX) return node_fail(jobs, node, "more than 16777216 nodes of all ranks");
  if (node->kind == CHAKRA_COLL && node->comm_type > CHAKRA_BARRIER)
    return node_fail(jobs, node, "a collective's comm_type must be 0 to 9");
  if (node->kind == CHAKRA_COLL) TRY(group_join(jobs, node->group, &event.group));
  if (node->kind == CHAKRA_SEND) event.peer = node->comm_dst;
  if (node->kind == CHAKRA_RECV) event.peer = node->comm_src;
  if (event.peer >= jobs->rank_count)
    return node_fail(jobs, node, "its message is to or from no rank of these");
  if (event.bytes > WORKLOAD_COUNT_MAX) return node_fail(jobs, node, "comm_size must be at most 2^40");
  if (event.us > WORKLOAD_PS_MAX / PS_A_US) return node_fail(jobs, node, "it takes more than 100000 seconds");
  if (!array_grow(&own->events, &own->event_capacity, (uint64_t)own->event_count + 1, sizeof event))
    return no_memory(own->path);
  own->events[own->event_count++] = event;
  for (uint32_t i = 0; i < node->dep_count; i++) {
    if (!array_grow(&own->deps, &own->dep_capacity, (uint64_t)own->dep_count + 1, sizeof *own->deps))
      return no_memory(own->path);
    own->deps[own->dep_count++] = node->deps[i];
  }
  return ncclSuccess;
}

static const struct event *sorting; /* qsort passes no context */
static int place_compare(const void *left, const void *right) {
  const uint64_t a = sorting[*(const uint32_t *)left].id, b = sorting[*(const uint32_t *)right].id;
  return a < b ? -1 : a > b;
}

static uint32_t event_find(const struct chakra_rank *own, uint64_t id) {
  uint32_t low = 0, high = own->event_count;
  while (low < high) {
    const uint32_t middle = low + (high - low) / 2;
    if (own->events[own->sorted[middle]].id < id) low = middle + 1;
    else high = middle;
  }
  return low < own->event_count && own->events[own->sorted[low]].id == id ? own->sorted[low] : UINT32_MAX;
}

/* Converts ids to indices. */
static ncclResult_t deps_resolve(struct chakra_rank *own) {
  own->sorted = (uint32_t *)os_alloc((own->event_count + (size_t)1) * sizeof *own->sorted);
  if (!own->sorted) return no_memory(own->path);
  for (uint32_t i = 0; i < own->event_count; i++) own->sorted[i] = i;
  sorting = own->events;
  qsort(own->sorted, own->event_count, sizeof *own->sorted, place_compare);
  for (uint32_t i = 1; i < own->event_count; i++)
    if (own->events[own->sorted[i]].id == own->events[own->sorted[i - 1]].id)
      return log_fail(ncclInvalidArgument, "%s: two nodes have the id %" PRIu64, own->path,
                      own->events[own->sorted[i]].id);
  for (uint32_t i = 0; i < own->dep_count; i++) {
    const uint32_t place = event_find(own, own->deps[i]);
    if (place == UINT32_MAX)
      return log_fail(ncclInvalidArgument, "%s: a node waits for node %" PRIu64 ", which is not there",
                      own->path, own->deps[i]);
    own->deps[i] = place;
  }
  return ncclSuccess;
}

static ncclResult_t rank_file_read(struct chakra_jobs *jobs, uint32_t rank) {
  FILE *file = fopen(jobs->ranks[rank].path, "rbe");
  if (!file)
    return log_fail(ncclSystemError, "%s cannot be read: %s", jobs->ranks[rank].path, strerror(errno));
  jobs->rank = rank;
  ncclResult_t result = chakra_read(jobs->ranks[rank].path, file, event_take, jobs);
  fclose(file);
  return result == ncclSuccess ? deps_resolve(&jobs->ranks[rank]) : result;
}

/* ---- calls ---- */

/* The communicator of a group, with its name, and its stream. */
static ncclResult_t group_settle(struct chakra_jobs *jobs, struct group *group) {
  struct workload *workload = jobs->workload;
  char name[48], stream[48];
  const bool all = group == jobs->world;
  snprintf(name, sizeof name, "pg-%.40s", group->name);
  snprintf(stream, sizeof stream, "of-%.40s", group->name[0] ? name : "world");
  for (char *at = name; *at; at++)
    if ((unsigned char)*at <= ' ' || *at == '#') *at = '_';
  for (char *at = stream; *at; at++)
    if ((unsigned char)*at <= ' ' || *at == '#') *at = '_';
  group->comm = 0;
  if (!all && workload_find_comm(workload, name) != WORKLOAD_NONE)
    return log_fail(ncclInvalidArgument, "process groups that are called %s alike", name);
  if (!all) TRY(workload_add_comm(workload, name, group->ranks, group->rank_count, &group->comm));
  group->stream = workload_find_stream(workload, stream);
  if (group->stream == WORKLOAD_NONE && workload->stream_count == WORKLOAD_STREAMS_MAX)
    group->stream = WORKLOAD_STREAMS_MAX - 1; /* more groups than streams: they share */
  if (group->stream == WORKLOAD_NONE) TRY(workload_add_stream(workload, stream, &group->stream));
  return ncclSuccess;
}

/* What the node calls; false if it only computes. */
static bool op_of(const struct chakra_jobs *jobs, const struct event *event, struct workload_op *op) {
  static const uint8_t funcs[] = {FUNC_ALL_REDUCE,     FUNC_REDUCE,    FUNC_ALL_GATHER, FUNC_GATHER,
                                  FUNC_SCATTER,        FUNC_BROADCAST, FUNC_ALL_TO_ALL, FUNC_REDUCE_SCATTER,
                                  FUNC_REDUCE_SCATTER, FUNC_ALL_REDUCE};
  memset(op, 0, sizeof *op);
  op->dtype = ncclUint8;
  op->count = event->bytes;
  op->peer = event->peer;
  if (event->kind == CHAKRA_SEND) op->func = FUNC_SEND;
  else if (event->kind == CHAKRA_RECV) op->func = FUNC_RECV;
  else if (event->kind == CHAKRA_COLL) {
    const uint32_t comm = jobs->groups[event->group].comm;
    const uint32_t ranks = jobs->workload->comms[comm].rank_count;
    const size_t each = event->bytes % 4 == 0 ? 4 : 1;
    uint64_t bytes = chakra_coll_bytes(event->type, event->bytes, ranks);
    if (event->type == CHAKRA_BARRIER && bytes < BARRIER_BYTES) bytes = BARRIER_BYTES;
    op->func = funcs[event->type];
    op->dtype = each == 4 ? ncclFloat32 : ncclUint8;
    op->count = collective_count(collective_find(workload_func_name(op->func)), (size_t)bytes, each, ranks);
  } else return false;
  return true;
}

/* The dependences on other streams: the last step of each. */
static void waits_of(const struct chakra_rank *own, const struct event *event,
                     uint32_t waits[WORKLOAD_STREAMS_MAX]) {
  memset(waits, 0, WORKLOAD_STREAMS_MAX * sizeof *waits);
  for (uint32_t i = 0; i < event->dep_count; i++) {
    const struct event *other = &own->events[own->deps[event->first_dep + i]];
    if (other->stream != event->stream && other->position > waits[other->stream])
      waits[other->stream] = other->position;
  }
}

/* A call waits for one stream; for each further one an empty step is inserted before it. */
static ncclResult_t event_add(struct chakra_jobs *jobs, uint32_t rank, struct event *event) {
  struct workload *workload = jobs->workload;
  uint32_t waits[WORKLOAD_STREAMS_MAX], number;
  struct workload_op op;
  struct workload_call call = {.wait_stream = WORKLOAD_NONE};
  const bool calls = op_of(jobs, event, &op);
  event->stream = event->kind == CHAKRA_COLL   ? jobs->groups[event->group].stream
                  : event->kind == CHAKRA_SEND ? jobs->sends
                  : event->kind == CHAKRA_RECV ? jobs->receives
                                               : jobs->compute;
  call.stream = event->stream;
  waits_of(&jobs->ranks[rank], event, waits);
  for (uint32_t stream = 0; stream < workload->stream_count; stream++) {
    if (waits[stream] == 0) continue;
    if (call.wait_stream != WORKLOAD_NONE) {
      TRY(workload_add_call(workload, &call, &number));
      TRY(workload_add_waiting(workload, rank, number, waits[call.wait_stream]));
    }
    call.wait_stream = stream;
  }
  call.first_op = workload->op_count;
  call.op_count = calls;
  call.comm = event->kind == CHAKRA_COLL ? jobs->groups[event->group].comm : 0;
  if (!calls) call.after_ps = event->us * PS_A_US;
  if (calls) TRY(workload_add_op(workload, &op));
  TRY(workload_add_call(workload, &call, &number));
  TRY(workload_add_waiting(workload, rank, number,
                           call.wait_stream == WORKLOAD_NONE ? 0 : waits[call.wait_stream]));
  event->position = workload->ranks[rank].stream_steps[event->stream];
  return ncclSuccess;
}

/* Places the event after all that it waits for, otherwise in the order of the file. */
static ncclResult_t event_enter(struct chakra_jobs *jobs, uint32_t rank, uint32_t first) {
  struct chakra_rank *own = &jobs->ranks[rank];
  uint32_t depth = 0;
  jobs->stack[depth++] = first;
  while (depth > 0) {
    struct event *event = &own->events[jobs->stack[depth - 1]];
    uint32_t i = 0;
    while (i < event->dep_count && own->events[own->deps[event->first_dep + i]].position > 0) i++;
    if (event->position > 0 || i == event->dep_count) {
      if (event->position == 0) TRY(event_add(jobs, rank, event));
      depth -= 1;
      continue;
    }
    const uint32_t next = (uint32_t)own->deps[event->first_dep + i];
    event->entered = true;
    if (own->events[next].entered)
      return log_fail(ncclInvalidArgument,
                      "%s: node %" PRIu64 " waits for node %" PRIu64 ", and that one, through others, for it",
                      own->path, event->id, own->events[next].id);
    jobs->stack[depth++] = next;
  }
  return ncclSuccess;
}

static ncclResult_t jobs_fill(struct chakra_jobs *jobs) {
  struct workload *workload = jobs->workload;
  uint32_t most = 0;
  jobs->compute = 0;
  TRY(workload_add_stream(workload, "send", &jobs->sends));
  TRY(workload_add_stream(workload, "recv", &jobs->receives));
  for (uint32_t i = 0; i < jobs->group_count && !jobs->world; i++)
    if (jobs->groups[i].rank_count == jobs->rank_count) jobs->world = &jobs->groups[i];
  for (uint32_t i = 0; i < jobs->group_count; i++) TRY(group_settle(jobs, &jobs->groups[i]));
  for (uint32_t i = 0; i < jobs->rank_count; i++)
    if (jobs->ranks[i].event_count > most) most = jobs->ranks[i].event_count;
  jobs->stack = (uint32_t *)os_alloc((most + (size_t)2) * sizeof *jobs->stack);
  if (!jobs->stack) return no_memory(workload->name);
  for (uint32_t rank = 0; rank < jobs->rank_count; rank++)
    for (uint32_t i = 0; i < jobs->ranks[rank].event_count; i++) TRY(event_enter(jobs, rank, i));
  return ncclSuccess;
}

static ncclResult_t jobs_read(struct chakra_jobs *jobs, char **paths) {
  jobs->ranks = (struct chakra_rank *)os_alloc(jobs->rank_count * sizeof *jobs->ranks);
  if (!jobs->ranks) return no_memory(paths[0]);
  for (uint32_t i = 0; i < jobs->rank_count; i++) {
    const uint32_t rank = chakra_rank_of(paths[i]);
    if (rank >= jobs->rank_count || jobs->ranks[rank].path)
      return log_fail(ncclInvalidArgument, "%s: %u files are expected to end in .0.et to .%u.et, each once",
                      paths[i], jobs->rank_count, jobs->rank_count - 1);
    jobs->ranks[rank].path = paths[i];
  }
  for (uint32_t rank = 0; rank < jobs->rank_count; rank++) TRY(rank_file_read(jobs, rank));
  return jobs_fill(jobs);
}

ncclResult_t workload_chakra(int path_count, char **paths, struct workload *workload) {
  struct chakra_jobs jobs;
  memset(&jobs, 0, sizeof jobs);
  jobs.workload = workload;
  jobs.rank_count = (uint32_t)path_count;
  ncclResult_t result = workload_make(paths[0], jobs.rank_count, workload);
  if (result == ncclSuccess) result = jobs_read(&jobs, paths);
  for (uint32_t i = 0; jobs.ranks && i < jobs.rank_count; i++) {
    os_free(jobs.ranks[i].events);
    os_free(jobs.ranks[i].deps);
    os_free(jobs.ranks[i].sorted);
  }
  for (uint32_t i = 0; i < jobs.group_count; i++) os_free(jobs.groups[i].ranks);
  os_free(jobs.ranks);
  os_free(jobs.groups);
  os_free(jobs.stack);
  return result;
}
