/* profiler.c: one plugin a process, which stays loaded. Events are made as version 5 has them; before it,
 * where calls have no events, the parent of an operation is the group's. */
#include "core/plugins/profiler_abi.h"

#include <string.h>

#include "base/array.h"
#include "base/log.h"
#include "base/os.h"
#include "base/plugin_file.h"

/* A call that was queued. */
struct noted {
  struct profiler_call call;
  void *api, *operation; /* events; NULL: none */
};

struct profiler {
  struct profiler_comm comm;
  void *context;
  int mask;
  void *group_api, *group, *launch; /* of the open group */
  bool in_group;
  uint64_t operations; /* collectives so far */
  struct noted *calls;
  uint32_t count, capacity;
};

/* ---- the process's plugin ---- */

static os_mutex load_mutex = OS_MUTEX_INITIALIZER;
static const struct table *plugin; /* NULL: there is none */
static int plugin_version;
static char plugin_from[PLUGIN_FROM_BYTES];
static bool plugin_sought;

static void plugin_load(void) {
  const struct plugin_kind *kind = &plugin_kinds[PLUGIN_PROFILER];
  void *library = plugin_file_find(kind, plugin_from);
  if (library == NULL) return;
  const struct table *table = (const struct table *)plugin_file_table(library, kind, &plugin_version);
  const char *missing = NULL;
  if (table != NULL)
    missing = table->name == NULL    ? "name"
              : table->init == NULL  ? "init"
              : table->start == NULL ? "startEvent"
              : table->stop == NULL  ? "stopEvent"
              : table->state == NULL ? "recordEventState"
              : table->end == NULL   ? "finalize"
                                     : NULL;
  if (table == NULL || missing != NULL) {
    plugin_file_refuse(kind, library, plugin_from, missing);
    return;
  }
  plugin = table;
  log_info(kind->subsystem, "Profiler plugin %s: '%s', version %d of the interface", plugin_from, table->name,
           plugin_version);
}

static bool plugin_is_there(void) {
  os_mutex_lock(&load_mutex);
  if (!plugin_sought) plugin_load();
  plugin_sought = true;
  os_mutex_unlock(&load_mutex);
  return plugin != NULL;
}

struct profiler *profiler_open(const struct profiler_comm *comm) {
  ncclResult_t result;
  if (!plugin_is_there()) return NULL;
  struct profiler *profiler = (struct profiler *)os_alloc(sizeof *profiler);
  if (profiler == NULL) {
    log_no_memory("rank %u of comm '%s': events for the profiler plugin", comm->rank, comm->name);
    return NULL;
  }
  profiler->comm = *comm;
  const int nodes = (int)comm->node_count, ranks = (int)comm->rank_count, rank = (int)comm->rank;
  if (plugin_version < 4) result = ((init_1)plugin->init)(&profiler->context, &profiler->mask);
  else if (plugin_version == 4)
    result = ((init_4)plugin->init)(&profiler->context, &profiler->mask, comm->name, comm->comm_id, nodes,
                                    ranks, rank, plugin_file_log);
  else
    result = ((init_5)plugin->init)(&profiler->context, comm->comm_id, &profiler->mask, comm->name, nodes,
                                    ranks, rank, plugin_file_log);
  if (result == ncclSuccess) return profiler;
  log_warn(
      "rank %u of comm '%s': profiler plugin '%s' (%s) is left out: its init fails with %d; see its own "
      "messages, or set NCCL_PROFILER_PLUGIN=none",
      comm->rank, comm->name, plugin->name, plugin_from, (int)result);
  os_free(profiler);
  return NULL;
}

void profiler_close(struct profiler *profiler) {
  if (profiler == NULL) return;
  profiler_group_end(profiler);
  plugin->end(profiler->context);
  os_free(profiler->calls);
  os_free(profiler);
}

/* ---- events ---- */

/* NULL: the plugin does not want this event, or cannot take it. */
static void *event_start(struct profiler *profiler, int type, void *parent, const union event_about *about) {
  void *event = NULL;
  if ((profiler->mask & type) == 0) return NULL;
  union event_any form;
  void *described = profiler_describe(plugin_version, &profiler->comm, type, parent, about, &form);
  if (described == NULL) return NULL;
  return plugin->start(profiler->context, &event, described) == ncclSuccess ? event : NULL;
}

static void event_stop(void **event) {
  if (*event != NULL) plugin->stop(*event);
  *event = NULL;
}

static void group_begin(struct profiler *profiler, bool captured) {
  union event_about about;
  memset(&about, 0, sizeof about);
  about.group_api.captured = captured;
  about.group_api.depth = 1;
  profiler->in_group = true;
  profiler->group_api = event_start(profiler, EVENT_GROUP_API, NULL, &about);
  if (profiler->group_api != NULL) plugin->state(profiler->group_api, STATE_GROUP_STARTED, NULL);
}

void profiler_call_begin(struct profiler *profiler, const struct profiler_call *call) {
  union event_about about;
  memset(&about, 0, sizeof about);
  if (!array_grow(&profiler->calls, &profiler->capacity, profiler->count + UINT64_C(1),
                  sizeof *profiler->calls))
    return; /* the event is lost */
  if (!profiler->in_group) group_begin(profiler, call->captured);
  struct noted *noted = &profiler->calls[profiler->count++];
  *noted = (struct noted){*call, NULL, NULL};
  if (func_is_p2p(call->func)) {
    about.p2p_api.func = profiler_funcs[call->func];
    about.p2p_api.count = call->count;
    about.p2p_api.dtype = profiler_dtype(call->dtype);
    about.p2p_api.stream = call->stream;
    about.p2p_api.captured = call->captured;
    noted->api = event_start(profiler, EVENT_P2P_API, profiler->group_api, &about);
  } else {
    about.coll_api.func = profiler_funcs[call->func];
    about.coll_api.count = call->count;
    about.coll_api.dtype = profiler_dtype(call->dtype);
    about.coll_api.root = (int)call->peer;
    about.coll_api.stream = call->stream;
    about.coll_api.captured = call->captured;
    noted->api = event_start(profiler, EVENT_COLL_API, profiler->group_api, &about);
  }
}

void profiler_call_end(struct profiler *profiler, bool queued) {
  if (profiler->count == 0) return;
  struct noted *noted = &profiler->calls[profiler->count - 1];
  if (noted->api != NULL) plugin->stop(noted->api); /* it stays the parent of the operation */
  if (!queued) profiler->count -= 1;
}

/* The works of an operation say how it was planned. */
static const struct work *operation_work(const struct plan *plan, uint64_t sequence, uint8_t *channels) {
  const struct work *found = NULL;
  uint64_t mask = 0;
  for (uint32_t i = 0; i < plan->work_count; i++) {
    const struct work *work = &plan->works[i];
    if (work->op_sequence + plan->first_sequence != sequence) continue;
    found = work;
    mask |= UINT64_C(1) << (work->channel_index % 64);
  }
  *channels = (uint8_t)__builtin_popcountll(mask);
  return found;
}

static void operation_start(struct profiler *profiler, struct noted *noted, const struct plan *plan) {
  const struct profiler_call *call = &noted->call;
  union event_about about;
  uint8_t channels;
  memset(&about, 0, sizeof about);
  const struct work *work = operation_work(plan, call->sequence, &channels);
  void *parent = plugin_version < 5 ? profiler->group : noted->api;
  if (func_is_p2p(call->func)) {
    about.p2p = (struct p2p_event){profiler_funcs[call->func],
                                   call->func == FUNC_SEND ? (void *)(uintptr_t)call->in : call->out,
                                   profiler_dtype(call->dtype),
                                   call->count,
                                   (int)call->peer,
                                   channels,
                                   profiler->group};
    noted->operation = event_start(profiler, EVENT_P2P, parent, &about);
    return;
  }
  about.coll = (struct coll_event){profiler->operations++,
                                   profiler_funcs[call->func],
                                   call->in,
                                   call->out,
                                   call->count,
                                   (int)call->peer,
                                   profiler_dtype(call->dtype),
                                   channels,
                                   0,
                                   work != NULL ? profiler_algos[work->algo] : "",
                                   work != NULL ? profiler_protos[work->proto] : "",
                                   profiler->group};
  noted->operation = event_start(profiler, EVENT_COLL, parent, &about);
}

void profiler_launch_begin(struct profiler *profiler, const struct plan *plan, void *stream) {
  union event_about about;
  memset(&about, 0, sizeof about);
  if (profiler->group_api != NULL) plugin->state(profiler->group_api, STATE_GROUP_ENDS, NULL);
  profiler->group = event_start(profiler, EVENT_GROUP, profiler->group_api, &about);
  for (uint32_t i = 0; i < profiler->count; i++) operation_start(profiler, &profiler->calls[i], plan);
  about.launch.stream = stream;
  profiler->launch = event_start(profiler, EVENT_LAUNCH, profiler->group_api, &about);
}

void profiler_launch_end(struct profiler *profiler) {
  event_stop(&profiler->launch);
  for (uint32_t i = 0; i < profiler->count; i++) event_stop(&profiler->calls[i].operation);
  event_stop(&profiler->group);
}

void profiler_group_end(struct profiler *profiler) {
  profiler_launch_end(profiler); /* nothing, unless the launch failed */
  event_stop(&profiler->group_api);
  profiler->in_group = false;
  profiler->count = 0;
}
