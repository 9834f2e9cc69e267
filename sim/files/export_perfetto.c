/* export_perfetto.c: a job's records for Perfetto: a process per rank, with threads for each communicator:
 * its calls, its device, and each channel that waits. Slices have recorded starts and ends; an operation that
 * has not ended has no end. The end of a kernel is not recorded, so an ended kernel is an instant. Times are
 * relative to the job's first. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "base/os.h"
#include "files/export.h"
#include "perfetto.h"
#include "trace/record_text.h"

/* Threads of a communicator, from its number times THREADS on. */
enum { THREADS = 2000, THREAD_CALLS = 0, THREAD_DEVICE = 1, THREAD_LANES = 10, THREAD_LINKS = 1000 };

struct picture {
  const struct job *job;
  struct perfetto perfetto;
};

static struct perfetto_place place_of(const struct member *member, int thread) {
  const struct perfetto_place place = {member->rank, (int64_t)(member->place % 1000) * THREADS + thread};
  return place;
}

static int64_t since_ps(const struct picture *picture, int64_t at_ns) {
  const int64_t most = INT64_MAX / 2000, since = at_ns - picture->job->first_ns;
  return 1000 * (since > most ? most : since < -most ? -most : since);
}

static void slice_begin(struct picture *picture, const char *name, const struct member *member, int thread,
                        int64_t from_ns, int64_t to_ns) {
  perfetto_slice(&picture->perfetto, name, place_of(member, thread), since_ps(picture, from_ns),
                 since_ps(picture, to_ns));
}

static void hang_begin(struct picture *picture, const char *name, const struct member *member, int thread,
                       int64_t from_ns) {
  perfetto_slice_open(&picture->perfetto, name, place_of(member, thread), since_ps(picture, from_ns));
}

static void slice_end(struct picture *picture) { perfetto_slice_end(&picture->perfetto); }

static void point(struct picture *picture, const char *name, const struct member *member, int thread,
                  int64_t at_ns) {
  perfetto_point(&picture->perfetto, name, place_of(member, thread), since_ps(picture, at_ns));
}

static void thread_name(struct picture *picture, const struct member *member, int thread, const char *format,
                        ...) __attribute__((format(printf, 4, 5)));
static void thread_name(struct picture *picture, const struct member *member, int thread, const char *format,
                        ...) {
  char what[64], name[160];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(what, sizeof what, format, arguments);
  va_end(arguments);
  snprintf(name, sizeof name, "comm '%.48s': %s", member_comm(member)->name, what);
  perfetto_thread_name(&picture->perfetto, place_of(member, thread), name);
}

static void arrow(struct picture *picture, const char *name, const struct member *from, int from_thread,
                  int64_t from_ns, const struct member *to, int to_thread, int64_t to_ns) {
  perfetto_arrow(&picture->perfetto, name, place_of(from, from_thread), since_ps(picture, from_ns),
                 place_of(to, to_thread), since_ps(picture, to_ns));
}

/* ---- calls and launches ---- */

static void call_put(struct picture *picture, const struct member *member, const struct record_call *call,
                     const struct record_launch *launch) {
  struct json *json = &picture->perfetto.json;
  const int64_t from = member_time_ns(member, call->ticks);
  char name[64];
  snprintf(name, sizeof name, "%s #%u%s", record_func_name(call->func), call->sequence,
           launch != NULL ? "" : " (not launched)");
  if (launch != NULL)
    slice_begin(picture, name, member, THREAD_CALLS, from, member_time_ns(member, launch->ticks));
  else hang_begin(picture, name, member, THREAD_CALLS, from);
  json_number(json, "count", (int64_t)call->count);
  json_text(json, "type", record_type_name(call->dtype));
  json_text(json, "operator", record_op_name(call->op));
  json_number(json, "root_or_peer", call->peer);
  slice_end(picture);
}

static const struct record_plan *plan_of(const struct member *member, uint32_t number) {
  const struct record_view *view = member->state.view;
  if (view->plan_rows == 0) return NULL;
  const struct record_plan *plan = &view->plans[number % view->plan_rows];
  return plan->used == 1 && plan->number == number ? plan : NULL;
}

static void launch_put(struct picture *picture, const struct member *member,
                       const struct record_launch *launch) {
  const struct record_comm *comm = member_comm(member);
  const struct record_plan *plan = plan_of(member, launch->plan);
  const int64_t at = member_time_ns(member, launch->ticks);
  const bool stands = comm->counts != 0 && !launch->captured && launch->number >= comm->ended;
  char name[96];
  snprintf(name, sizeof name, "launch %" PRIu64 ", from #%u%s%s%s%s", launch->number, launch->sequence,
           plan != NULL ? ", " : "", plan != NULL ? record_algo_name(plan->algo) : "",
           plan != NULL ? " " : "", plan != NULL ? record_proto_name(plan->proto) : "");
  if (!stands) {
    point(picture, name, member, THREAD_DEVICE, at);
    return;
  }
  hang_begin(picture, name, member, THREAD_DEVICE, at);
  json_text(&picture->perfetto.json, "state",
            launch->number < comm->started ? "started, not ended" : "not started");
  slice_end(picture);
}

/* From the last record to the first, so that a call finds its launch. */
static void records_put(struct picture *picture, const struct member *member) {
  const struct record_launch *launch = NULL;
  struct record_iter iter = record_iter_begin(&member->state);
  for (const union record *record = record_iter_back(&iter); record != NULL;
       record = record_iter_back(&iter)) {
    if (record->kind == RECORD_LAUNCH) {
      launch = &record->launch;
      launch_put(picture, member, launch);
    } else if (record->kind == RECORD_CALL) call_put(picture, member, &record->call, launch);
    else if (record->kind == RECORD_ERROR)
      point(picture, "a call was refused", member, THREAD_CALLS, member_time_ns(member, record->error.ticks));
  }
}

/* ---- what channels wait for ---- */

static int64_t launch_time(const struct member *member, uint32_t sequence) {
  struct record_iter iter = record_iter_begin(&member->state);
  for (const union record *record = record_iter_back(&iter); record != NULL; record = record_iter_back(&iter))
    if (record->kind == RECORD_LAUNCH && (int32_t)(record->launch.sequence - sequence) <= 0)
      return member_time_ns(member, record->launch.ticks);
  return member_time_ns(member, member_comm(member)->born);
}

static const struct member *peer_find(const struct job *job, const struct member *member, uint32_t rank) {
  const struct record_comm *comm = member_comm(member);
  for (uint32_t i = 0; i < job->count; i++) {
    const struct record_comm *other = member_comm(&job->members[i]);
    if (other->comm_id == comm->comm_id && other->rank_count == comm->rank_count && other->rank == rank)
      return &job->members[i];
  }
  return NULL;
}

/* The sender's end of the connection that the lane waits for, as a slice, and the arrow from it. */
static void post_put(struct picture *picture, const struct member *waiter, const struct record_lane *lane,
                     int thread, int64_t waits_ns) {
  const struct member *peer = peer_find(picture->job, waiter, lane->peer);
  for (uint32_t row = 0; peer != NULL && row < peer->state.view->link_rows; row++) {
    const struct record_link *link = &peer->state.view->links[row];
    const int own = THREAD_LINKS + (int)row;
    char name[64];
    if (link->used != 1 || link->channel != lane->channel || link->peer != member_comm(waiter)->rank)
      continue;
    if ((link->conn & RECORD_LINK_SENDS) == 0 || row >= THREADS - THREAD_LINKS) continue;
    const int64_t from = launch_time(peer, (uint32_t)member_comm(peer)->calls - 1);
    snprintf(name, sizeof name, "has posted up to slice %" PRIu64, link->tail);
    thread_name(picture, peer, own, "channel %u to rank %u", link->channel, link->peer);
    slice_begin(picture, name, peer, own, from, picture->job->end_ns);
    slice_end(picture);
    arrow(picture, "waited for", peer, own, from, waiter, thread, waits_ns);
    return;
  }
}

static void lanes_put(struct picture *picture, const struct member *member) {
  static const char *const waits[] = {"nothing",   "an offer of", "data of",
                                      "a slot at", "LL lines of", "list"};
  const struct record_view *view = member->state.view;
  for (uint32_t row = 0; row < view->lane_rows && row < THREAD_LINKS - THREAD_LANES; row++) {
    const struct record_lane *lane = &view->lanes[row];
    const int thread = THREAD_LANES + (int)row;
    char name[96];
    if (lane->used != 1 || lane->wait == WAITS_NOT || lane->wait > WAITS_LIST) continue;
    const int64_t from = launch_time(member, lane->sequence);
    snprintf(name, sizeof name, "#%u: waits for %s rank %u", lane->sequence, waits[lane->wait], lane->peer);
    thread_name(picture, member, thread, "channel %u, lane %u", lane->channel, lane->lane);
    hang_begin(picture, name, member, thread, from);
    json_number(&picture->perfetto.json, "step", lane->step);
    json_number(&picture->perfetto.json, "have", (int64_t)lane->have);
    json_number(&picture->perfetto.json, "need", (int64_t)lane->need);
    slice_end(picture);
    if (lane->wait == WAITS_DATA || lane->wait == WAITS_LL) post_put(picture, member, lane, thread, from);
  }
}

static void counter_put(struct picture *picture, const struct member *member, const char *name, int64_t at_ns,
                        const char *series, int64_t value) {
  perfetto_counter(&picture->perfetto, name, place_of(member, THREAD_DEVICE), since_ps(picture, at_ns),
                   series, value);
}

/* A receiver's end has both counters of its FIFO. */
static void links_put(struct picture *picture, const struct member *member) {
  const struct record_view *view = member->state.view;
  for (uint32_t row = 0; row < view->link_rows; row++) {
    const struct record_link *link = &view->links[row];
    char name[128];
    if (link->used != 1 || (link->conn & RECORD_LINK_SENDS) != 0 || link->tail < link->head) continue;
    snprintf(name, sizeof name, "comm '%.48s' channel %u from rank %u: full slots", member_comm(member)->name,
             link->channel, link->peer);
    counter_put(picture, member, name, picture->job->end_ns, "slots", (int64_t)(link->tail - link->head));
  }
}

static void proxies_put(struct picture *picture, const struct member *member) {
  const struct record_view *view = member->state.view;
  for (uint32_t row = 0; row < view->proxy_rows; row++) {
    const struct record_proxy *proxy = &view->proxies[row];
    const bool sends = (proxy->conn & RECORD_LINK_SENDS) != 0;
    char name[128];
    if (proxy->used != 1) continue;
    snprintf(name, sizeof name, "comm '%.48s' proxy, channel %u, %s rank %u: messages under way",
             member_comm(member)->name, proxy->channel, sends ? "to" : "from", proxy->peer);
    counter_put(picture, member, name, picture->job->end_ns, "messages",
                (int64_t)(proxy->posted - proxy->done));
  }
}

/* ---- collectives across ranks ---- */

struct arrival {
  uint64_t comm_id;
  int64_t at_ns;
  uint32_t rank_count, collective, member;
};

static int arrival_compare(const void *left, const void *right) {
  const struct arrival *a = (const struct arrival *)left, *b = (const struct arrival *)right;
  if (a->comm_id != b->comm_id) return a->comm_id < b->comm_id ? -1 : 1;
  if (a->rank_count != b->rank_count) return a->rank_count < b->rank_count ? -1 : 1;
  if (a->collective != b->collective) return a->collective < b->collective ? -1 : 1;
  return a->at_ns < b->at_ns ? -1 : a->at_ns > b->at_ns;
}

static bool arrivals_same(const struct arrival *a, const struct arrival *b) {
  return a->comm_id == b->comm_id && a->rank_count == b->rank_count && a->collective == b->collective;
}

/* Fills `arrivals` unless it is NULL; returns their number. */
static size_t arrivals_gather(const struct job *job, struct arrival *arrivals) {
  size_t count = 0;
  for (uint32_t i = 0; i < job->count; i++) {
    const struct record_comm *comm = member_comm(&job->members[i]);
    struct record_iter iter = record_iter_begin(&job->members[i].state);
    for (const union record *record = record_iter_back(&iter); record != NULL;
         record = record_iter_back(&iter)) {
      if (record->kind != RECORD_CALL || is_message(record->call.func)) continue;
      if (arrivals != NULL)
        arrivals[count] =
            (struct arrival){comm->comm_id, member_time_ns(&job->members[i], record->call.ticks),
                             comm->rank_count, record->call.collective, i};
      count += 1;
    }
  }
  return count;
}

/* From the rank that called first to the others. */
static bool arrivals_put(struct picture *picture) {
  const struct job *job = picture->job;
  const size_t count = arrivals_gather(job, NULL);
  struct arrival *arrivals = (struct arrival *)os_alloc((count + 1) * sizeof *arrivals);
  if (arrivals == NULL) return false;
  arrivals_gather(job, arrivals);
  qsort(arrivals, count, sizeof *arrivals, arrival_compare);
  for (size_t i = 1, first = 0; i < count; i++) {
    if (!arrivals_same(&arrivals[i], &arrivals[first])) first = i;
    else
      arrow(picture, "collective", &job->members[arrivals[first].member], THREAD_CALLS, arrivals[first].at_ns,
            &job->members[arrivals[i].member], THREAD_CALLS, arrivals[i].at_ns);
  }
  os_free(arrivals);
  return true;
}

static void member_put(struct picture *picture, const struct member *member) {
  char name[128];
  snprintf(name, sizeof name, "rank %u (process %u on %.64s)", member->rank,
           member->state.file->header.process, member->state.file->header.host);
  if (member->place == 0) perfetto_process_name(&picture->perfetto, member->rank, name);
  thread_name(picture, member, THREAD_CALLS, "calls");
  thread_name(picture, member, THREAD_DEVICE, "device");
  records_put(picture, member);
  lanes_put(picture, member);
  links_put(picture, member);
  proxies_put(picture, member);
}

bool export_perfetto(const struct job *job, FILE *out) {
  struct picture picture = {.job = job};
  perfetto_begin(&picture.perfetto, out);
  for (uint32_t i = 0; i < job->count; i++) member_put(&picture, &job->members[i]);
  const bool met = arrivals_put(&picture);
  perfetto_end(&picture.perfetto);
  return met;
}
