/* export_flight.c: one dump per rank, as PyTorch's Flight Recorder writes them (version 2.10), with
 * additional keys: each entry's operator, root and plan, and in `steps` what its channels wait for. Readers
 * skip keys that they do not know. */
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/os.h"
#include "files/export.h"
#include "files/pickle.h"
#include "trace/record_text.h"

#define FLIGHT_VERSION "2.10"
/* PyTorch's analyser takes adjacent entries with one number as parts of one operation, messages and
 * collectives alike; so messages are numbered from here. */
enum { MESSAGES_FROM = 1 << 20 };
enum { RANKS_MOST = 1 << 20 }; /* more than any job has: the file is damaged */

/* ---- a process group ---- */

static json_t *ranks_text(const struct job *job, const struct record_comm *comm) {
  const uint32_t rank_count = comm->rank_count <= RANKS_MOST ? comm->rank_count : RANKS_MOST;
  const size_t capacity = (size_t)rank_count * 12 + 3;
  char *text = (char *)os_alloc(capacity);
  size_t used = 0;
  uint32_t missing = job->rank_count; /* ranks without a file, whose numbers are unknown */
  if (text == NULL) return NULL;
  for (uint32_t rank = 0; rank < rank_count; rank++) {
    const uint32_t known = job_rank_of(job, comm, rank);
    used += (size_t)snprintf(text + used, capacity - used, "%s%" PRIu32, rank == 0 ? "[" : ", ",
                             known != UINT32_MAX ? known : missing++);
  }
  snprintf(text + used, capacity - used, "]");
  json_t *value = json_string(text);
  os_free(text);
  return value;
}

/* Text of a file, which is untrusted. */
static json_t *plain_text(const char *text, size_t capacity) {
  char plain[160];
  size_t used = 0;
  for (; used < capacity && used + 1 < sizeof plain && text[used] != '\0'; used++)
    plain[used] = text[used] >= ' ' && text[used] < 127 ? text[used] : '?';
  plain[used] = '\0';
  return json_string(plain);
}

static json_t *comm_name(const struct record_comm *comm) { return plain_text(comm->name, sizeof comm->name); }

static json_t *group_config(const struct job *job, const struct record_comm *comm) {
  return json_pack("{so so so}", "name", comm_name(comm), "desc", comm_name(comm), "ranks",
                   ranks_text(job, comm));
}

/* Numbers of collectives, from 1; -1: none. */
static json_t *group_status(const struct member *member) {
  const struct record_comm *comm = member_comm(member);
  const json_int_t last = (json_int_t)member->state.called - 1;
  const json_int_t ended = (json_int_t)member->state.done - 1;
  const bool starts = comm->counts != 0 && comm->started > comm->ended;
  return json_pack("{sI sI sI}", "last_enqueued_collective", last >= 0 ? last + 1 : -1,
                   "last_started_collective",
                   starts       ? ended + 2
                   : ended >= 0 ? ended + 1
                                : -1,
                   "last_completed_collective", ended >= 0 ? ended + 1 : -1);
}

/* ---- an entry ---- */

static void name_of(const struct member *member, const struct record_call *call, char out[64]) {
  static const char *const names[] = {"broadcast",  "reduce",  "all_gather", "reduce_scatter",
                                      "all_reduce", "send",    "send",       "recv",
                                      "all_to_all", "scatter", "gather"};
  const uint32_t rank = member_comm(member)->rank;
  const char *name = call->func < sizeof names / sizeof names[0] ? names[call->func] : "unknown";
  if (call->func == FUNC_SEND) snprintf(out, 64, "nccl:send %u->%u", rank, call->peer);
  else if (call->func == FUNC_RECV) snprintf(out, 64, "nccl:recv %u<-%u", rank, call->peer);
  else snprintf(out, 64, "nccl:%s", name);
}

static const char *type_of(uint8_t dtype) {
  static const char *const names[] = {"Char", "Byte",  "Int",    "UInt32",   "Long",          "UInt64",
                                      "Half", "Float", "Double", "BFloat16", "Float8_e4m3fn", "Float8_e5m2"};
  return dtype < sizeof names / sizeof names[0] ? names[dtype] : "Undefined";
}

/* Elements of input and output at each rank. */
static void sizes_of(const struct record_call *call, uint32_t rank_count, uint64_t *in, uint64_t *out) {
  const uint64_t all = call->count * rank_count;
  const bool gathers = call->func == FUNC_ALL_GATHER || call->func == FUNC_GATHER;
  const bool scatters = call->func == FUNC_REDUCE_SCATTER || call->func == FUNC_SCATTER;
  const bool both = call->func == FUNC_ALL_TO_ALL;
  *in = scatters || both ? all : call->count;
  *out = gathers || both ? all : call->count;
}

static const char *state_of(const struct member *member, uint64_t sequence,
                            const struct record_launch *launch) {
  const struct record_comm *comm = member_comm(member);
  if (launch == NULL || comm->counts == 0) return "scheduled";
  if (sequence < member->state.done) return "completed";
  return launch->number < comm->started ? "started" : "scheduled";
}

static json_t *steps_of(const struct member *member, const struct record_call *call) {
  static const char *const waits[] = {"nothing", "offer", "data", "slot", "lines", "list"};
  json_t *steps = json_array();
  for (uint32_t row = 0; row < member->state.view->lane_rows; row++) {
    const struct record_lane *lane = &member->state.view->lanes[row];
    if (lane->used != 1 || lane->sequence != call->sequence || lane->wait > WAITS_LIST) continue;
    json_array_append_new(
        steps, json_pack("{si si ss si si sI sI}", "channel", (int)lane->channel, "lane", (int)lane->lane,
                         "waits_for", waits[lane->wait], "peer", (int)lane->peer, "step", (int)lane->step,
                         "have", (json_int_t)lane->have, "need", (json_int_t)lane->need));
  }
  return steps;
}

/* "train.py:31 (step)". */
static json_t *python_frame(const char *place) {
  char file[sizeof((struct record_caller *)NULL)->file], name[sizeof file] = "";
  int line = 0;
  if (sscanf(place, "%47[^:]:%d (%47[^)]", file, &line, name) < 2) return json_array();
  return json_pack("[{so so si}]", "name", plain_text(name, sizeof name), "filename",
                   plain_text(file, sizeof file), "line", line);
}

/* The caller, as far as it was recorded: its file and offset, or the line of Python. */
static json_t *frames_of(const struct member *member, const struct record_place *place) {
  const struct record_caller *caller =
      place != NULL && place->caller != 0 ? record_caller_of(member->state.file, place->caller) : NULL;
  char where[32];
  if (caller == NULL) return json_array();
  if (caller->offset == 0) return python_frame(caller->file);
  snprintf(where, sizeof where, "+0x%" PRIx64, caller->offset);
  return json_pack("[{ss so si}]", "name", where, "filename", plain_text(caller->file, sizeof caller->file),
                   "line", 0);
}

/* Data that PyTorch's dumps do not have. */
static void entry_extend(json_t *entry, const struct member *member, const struct record_call *call,
                         const struct record_launch *launch) {
  const struct record_view *view = member->state.view;
  const struct record_plan *plan =
      launch != NULL && view->plan_rows > 0 ? &view->plans[launch->plan % view->plan_rows] : NULL;
  json_object_set_new(entry, "op", json_string(record_op_name(call->op)));
  json_object_set_new(entry, "root", json_integer(call->peer));
  if (plan != NULL && plan->used == 1 && plan->number == launch->plan)
    json_object_set_new(entry, "plan",
                        json_pack("{ss ss si}", "algo", record_algo_name(plan->algo), "proto",
                                  record_proto_name(plan->proto), "channels", (int)plan->channels));
  json_object_set_new(entry, "steps", steps_of(member, call));
}

static json_t *entry_make(const struct member *member, const struct record_call *call,
                          const struct record_place *place, const struct record_launch *launch) {
  const struct record_comm *comm = member_comm(member);
  const uint64_t sequence = widen(comm->calls, call->sequence);
  const bool message = is_message(call->func);
  uint64_t in, out;
  char name[64];
  name_of(member, call, name);
  sizes_of(call, comm->rank_count, &in, &out);
  const char *type = type_of(call->dtype);
  json_t *entry = json_pack(
      "{si si s[oo] sI sI sI ss sI s[[I]] s[s] s[[I]] s[s] ss sn sn sb si sb so}", "record_id", 0, "pg_id",
      (int)member->place, "process_group", comm_name(comm), comm_name(comm), "collective_seq_id",
      (json_int_t)call->collective + !message, "p2p_seq_id",
      message ? (json_int_t)(sequence - call->collective) + MESSAGES_FROM : 0, "op_id",
      (json_int_t)sequence + 1, "profiling_name", name, "time_created_ns",
      (json_int_t)member_time_ns(member, call->ticks), "input_sizes", (json_int_t)in, "input_dtypes", type,
      "output_sizes", (json_int_t)out, "output_dtypes", type, "state", state_of(member, sequence, launch),
      "time_discovered_started_ns", "time_discovered_completed_ns", "retired", 0, "timeout_ms", 0, "is_p2p",
      message, "frames", frames_of(member, place));
  if (entry != NULL) entry_extend(entry, member, call, launch);
  return entry;
}

/* ---- a dump ---- */

static bool entries_add(json_t *entries, const struct member *member) {
  const struct record_launch *launch = NULL;
  const struct record_place *place = NULL;
  struct record_iter iter = record_iter_begin(&member->state);
  for (const union record *record = record_iter_back(&iter); record != NULL;
       record = record_iter_back(&iter)) {
    if (record->kind == RECORD_LAUNCH) launch = &record->launch;
    if (record->kind == RECORD_PLACE) place = &record->place;
    if (record->kind != RECORD_CALL) continue;
    if (record->call.count == 0 && !is_message(record->call.func)) continue;
    if (json_array_append_new(entries, entry_make(member, &record->call, place, launch)) != 0) return false;
  }
  return true;
}

static json_int_t created_of(const json_t *entry) {
  return json_integer_value(json_object_get(entry, "time_created_ns"));
}

static int entry_compare(const void *left, const void *right) {
  const json_int_t a = created_of(*(json_t *const *)left), b = created_of(*(json_t *const *)right);
  return a < b ? -1 : a > b;
}

/* In the order of calls, numbered. */
static json_t *entries_sort(json_t *entries) {
  const size_t count = json_array_size(entries);
  json_t **list = (json_t **)os_alloc((count + 1) * sizeof(json_t *));
  json_t *sorted = list != NULL ? json_array() : NULL;
  if (sorted == NULL) {
    os_free(list);
    return NULL;
  }
  /* they are in reverse order, and calls with equal times must keep their order */
  for (size_t i = 0; i < count; i++) list[i] = json_array_get(entries, count - 1 - i);
  qsort(list, count, sizeof(json_t *), entry_compare);
  for (size_t i = 0; i < count; i++) {
    json_object_set_new(list[i], "record_id", json_integer((json_int_t)i));
    json_array_append(sorted, list[i]);
  }
  os_free(list);
  return sorted;
}

/* The communicators of one rank: members [begin, end). */
static json_t *dump_make(const struct job *job, uint32_t begin, uint32_t end) {
  json_t *config = json_object(), *status = json_object(), *entries = json_array();
  bool good = config != NULL && status != NULL && entries != NULL;
  for (uint32_t i = begin; i < end && good; i++) {
    const struct member *member = &job->members[i];
    char key[sizeof member_comm(member)->name];
    snprintf(key, sizeof key, "%.*s", (int)sizeof key - 1, member_comm(member)->name);
    good = json_object_set_new(config, key, group_config(job, member_comm(member))) == 0 &&
           json_object_set_new(status, key, group_status(member)) == 0 && entries_add(entries, member);
  }
  json_t *sorted = good ? entries_sort(entries) : NULL;
  json_decref(entries);
  if (sorted != NULL)
    return json_pack("{ss ss so so so}", "version", FLIGHT_VERSION, "comm_lib", "tutti", "pg_config", config,
                     "pg_status", status, "entries", sorted);
  json_decref(config);
  json_decref(status);
  return NULL;
}

static ncclResult_t dump_write(const json_t *dump, const char *path, bool json) {
  char *bytes = NULL;
  size_t byte_count = 0;
  if (json) {
    if (json_dump_file(dump, path, JSON_INDENT(1)) == 0) return ncclSuccess;
    return log_fail(ncclSystemError, "%s: cannot be written: %s", path, strerror(errno));
  }
  TRY(pickle_write(dump, &bytes, &byte_count));
  const bool written = os_file_write(path, bytes, byte_count);
  os_free(bytes);
  if (written) return ncclSuccess;
  return log_fail(ncclSystemError, "%s: cannot be written: %s", path, strerror(errno));
}

enum exit_code export_flight(const struct job *job, const char *prefix, bool json) {
  for (uint32_t begin = 0, end; begin < job->count; begin = end) {
    char path[4096];
    for (end = begin + 1; end < job->count && job->members[end].rank == job->members[begin].rank;) end++;
    snprintf(path, sizeof path, "%s%" PRIu32, prefix, job->members[begin].rank);
    json_t *dump = dump_make(job, begin, end);
    if (dump == NULL) {
      fprintf(stderr, "tutti trace export: %s: its entries" LOG_OUT_OF_MEMORY "\n", path);
      return EXIT_ENVIRONMENT;
    }
    const ncclResult_t result = dump_write(dump, path, json);
    json_decref(dump);
    if (result == ncclSuccess) continue;
    fprintf(stderr, "tutti trace export: %s\n", log_own_error());
    return EXIT_ENVIRONMENT;
  }
  return EXIT_GOOD;
}
