/* trace_diff.c: events are compared as they are, because they contain only what two equal runs have in
 * common. Records are compared without what differs from run to run: times, addresses, numbers of processes
 * and of plans (a plan is compared by its contents), and without states that are only momentary: lanes,
 * connections, proxies. Communicators are matched by name, size, rank and how often they were created. */
#include "files/trace_diff.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "files/archive.h"
#include "base/log.h"
#include "base/os.h"
#include "files/records.h"
#include "json.h"
#include "trace/record_text.h"
#include "trace/trace.h"

enum { LINE_BYTES = 512 };

/* ---- events ---- */

struct events {
  const char *path;
  struct trace_reader reader;
};

/* The next record's text, "" at the end; false if the file is truncated. */
static bool event_next(struct events *events, char line[LINE_BYTES]) {
  struct trace_record record;
  bool torn = false;
  line[0] = '\0';
  if (trace_reader_next(&events->reader, &record, &torn)) trace_record_text(&record, line, LINE_BYTES);
  if (!torn) return true;
  fprintf(stderr, "tutti trace diff: %s: record %" PRIu64 " is cut off\n", events->path,
          events->reader.record_index);
  return false;
}

static bool as_json; /* set by trace_diff */

static void side_print_json(struct json *json, const char *name, const char *path, const char *line) {
  json_open(json, name, '{');
  json_text(json, "file", path);
  if (line[0] != '\0') json_text(json, "line", line);
  json_close(json, '}');
}

static enum exit_code sides_print_json(const char *what, const char *left_path, const char *left,
                                       const char *right_path, const char *right) {
  struct json json = {.out = stdout};
  json_open(&json, NULL, '{');
  json_bool(&json, "same", false);
  json_text(&json, "what", what);
  side_print_json(&json, "a", left_path, left);
  side_print_json(&json, "b", right_path, right);
  json_close(&json, '}');
  return EXIT_WRONG;
}

static enum exit_code sides_print(const char *what, const char *left_path, const char *left,
                                  const char *right_path, const char *right) {
  if (as_json) return sides_print_json(what, left_path, left, right_path, right);
  printf("%s\n  %s: %s\n  %s: %s\n", what, left_path, left[0] != '\0' ? left : "(no more)", right_path,
         right[0] != '\0' ? right : "(no more)");
  return EXIT_WRONG;
}

static bool is_events(const struct archive *archive) {
  return archive->byte_count >= 8 && memcmp(archive->bytes, TRACE_MAGIC, 8) == 0;
}

static bool events_open(struct events *events, const struct archive *archive) {
  if (trace_reader_open(&events->reader, archive->bytes, archive->byte_count) == ncclSuccess) return true;
  fprintf(stderr, "tutti trace diff: %s: %s\n", events->path, log_own_error());
  return false;
}

static enum exit_code events_diff(const char *left_path, const struct archive *left, const char *right_path,
                                  const struct archive *right) {
  struct events a = {.path = left_path}, b = {.path = right_path};
  if (!events_open(&a, left) || !events_open(&b, right)) return EXIT_INPUT;
  for (uint64_t number = 0;; number++) {
    char one[LINE_BYTES], other[LINE_BYTES], what[64];
    if (!event_next(&a, one) || !event_next(&b, other)) return EXIT_INPUT;
    snprintf(what, sizeof what, "event %" PRIu64 " differs", number);
    if (strcmp(one, other) != 0) return sides_print(what, left_path, one, right_path, other);
    if (one[0] == '\0') return EXIT_GOOD;
  }
}

/* ---- records ---- */

/* How often a communicator with this name, size and rank was created before this one. */
static uint32_t ordinal_of(const struct record_file *file, uint32_t number) {
  const struct record_comm *comm = file->views[number].comm;
  uint32_t ordinal = 0;
  for (uint32_t i = 0; i < number; i++) {
    const struct record_comm *other = file->views[i].comm;
    ordinal += other->rank == comm->rank && other->rank_count == comm->rank_count &&
               memcmp(other->name, comm->name, sizeof comm->name) == 0;
  }
  return ordinal;
}

static const struct record_view *view_find(const struct record_file *file, const struct record_comm *comm,
                                           uint32_t ordinal) {
  for (uint32_t i = 0; i < file->view_count; i++) {
    const struct record_comm *other = file->views[i].comm;
    if (other->rank != comm->rank || other->rank_count != comm->rank_count) continue;
    if (memcmp(other->name, comm->name, sizeof comm->name) != 0) continue;
    if (ordinal-- == 0) return &file->views[i];
  }
  return NULL;
}

static void call_text(const struct record_call *call, char line[LINE_BYTES]) {
  snprintf(line, LINE_BYTES,
           "call of operation #%" PRIu32 ": %s of %" PRIu64 " %s, operator %s, root or peer %" PRIu32
           ", collective %" PRIu32,
           call->sequence, record_func_name(call->func), call->count, record_type_name(call->dtype),
           record_op_name(call->op), call->peer, call->collective);
}

static void launch_text(const struct record_view *view, const struct record_launch *launch,
                        char line[LINE_BYTES]) {
  const struct record_plan *plan = view->plan_rows > 0 ? &view->plans[launch->plan % view->plan_rows] : NULL;
  const int used = snprintf(line, LINE_BYTES,
                            "launch %" PRIu64 " of %" PRIu32 " operations from #%" PRIu32 " on %u streams%s",
                            launch->number, launch->operations, launch->sequence, launch->streams,
                            launch->captured ? ", captured" : "");
  if (plan == NULL || plan->used != 1 || plan->number != launch->plan) return;
  snprintf(line + used, LINE_BYTES - (size_t)used,
           ", plan: %s %s %s, %u works, %u channels, chunks of %" PRIu32 " elements, %u slots of %" PRIu32
           " bytes, digest %016" PRIx64,
           record_func_name(plan->func), record_algo_name(plan->algo), record_proto_name(plan->proto),
           plan->works, plan->channels, plan->chunk_elements, plan->slots, plan->step_bytes, plan->digest);
}

/* The part of a record that is the same in equal runs; "" if there is none. */
static void record_line(const struct record_view *view, uint64_t number, char line[LINE_BYTES]) {
  const union record *record = record_at(view, number);
  line[0] = '\0';
  switch (record->kind) {
    case RECORD_CALL: call_text(&record->call, line); break;
    case RECORD_PLACE:
      snprintf(line, LINE_BYTES, "place of a call: stream %u, %s", record->place.stream,
               record->place.group != 0 ? "in a group" : "in no group");
      break;
    case RECORD_LAUNCH: launch_text(view, &record->launch, line); break;
    case RECORD_ERROR:
      snprintf(line, LINE_BYTES, "call refused with result %" PRIu32 " behind operation #%" PRIu64,
               record->error.result, record->error.sequence);
      break;
    case RECORD_DROP:
    case RECORD_LIFE:
      snprintf(line, LINE_BYTES, "%s %u behind operation #%" PRIu64,
               record->kind == RECORD_DROP ? "operations dropped" : "life event", record->life.life,
               record->life.sequence);
      break;
    default: break;
  }
}

/* What files record about the communicator itself. */
static void comm_line(const struct record_comm *comm, char line[LINE_BYTES]) {
  snprintf(line, LINE_BYTES,
           "settings %016" PRIx64 ", topology %016" PRIx64 ", state %" PRIu32 ", error %" PRIu32,
           comm->settings_digest, comm->topology_digest, comm->state, comm->error);
}

static enum exit_code difference_print(const struct record_comm *comm, const char *what, const char *paths[2],
                                       char lines[2][LINE_BYTES]) {
  char title[160];
  snprintf(title, sizeof title, "comm '%.47s', rank %" PRIu32 " of %" PRIu32 ": %s", comm->name, comm->rank,
           comm->rank_count, what);
  return sides_print(title, paths[0], lines[0], paths[1], lines[1]);
}

/* Records that only one file still has are not compared. */
static enum exit_code rings_diff(const struct record_view *left, const struct record_view *right,
                                 const char *paths[2]) {
  const uint64_t end = left->end > right->end ? left->end : right->end;
  char lines[2][LINE_BYTES], what[64];
  for (uint64_t number = left->first > right->first ? left->first : right->first; number < end; number++) {
    lines[0][0] = lines[1][0] = '\0';
    if (number < left->end) record_line(left, number, lines[0]);
    if (number < right->end) record_line(right, number, lines[1]);
    snprintf(what, sizeof what, "record %" PRIu64 " differs", number);
    if (strcmp(lines[0], lines[1]) != 0) return difference_print(left->comm, what, paths, lines);
  }
  return EXIT_GOOD;
}

static enum exit_code comms_diff(const struct record_view *left, const struct record_view *right,
                                 const char *paths[2]) {
  char lines[2][LINE_BYTES];
  comm_line(left->comm, lines[0]);
  comm_line(right->comm, lines[1]);
  if (strcmp(lines[0], lines[1]) == 0) return EXIT_GOOD;
  return difference_print(left->comm, "all records are the same; what it was made of is not, or how it ended",
                          paths, lines);
}

/* Every communicator that both files have. */
static enum exit_code pairs_diff(const struct record_file *left, const struct record_file *right,
                                 enum exit_code (*diff)(const struct record_view *left,
                                                        const struct record_view *right,
                                                        const char *paths[2])) {
  const char *paths[2] = {left->name, right->name};
  for (uint32_t i = 0; i < left->view_count; i++) {
    const struct record_view *other = view_find(right, left->views[i].comm, ordinal_of(left, i));
    const enum exit_code code = other != NULL ? diff(&left->views[i], other, paths) : EXIT_GOOD;
    if (code != EXIT_GOOD) return code;
  }
  return EXIT_GOOD;
}

/* A communicator that `other` does not have. */
static enum exit_code alone_find(const struct record_file *file, const struct record_file *other) {
  const char *paths[2] = {file->name, other->name};
  char lines[2][LINE_BYTES] = {"has it", "does not"};
  for (uint32_t i = 0; i < file->view_count; i++)
    if (view_find(other, file->views[i].comm, ordinal_of(file, i)) == NULL)
      return difference_print(file->views[i].comm, "only one file has it", paths, lines);
  return EXIT_GOOD;
}

static enum exit_code records_diff(const struct record_file *left, const struct record_file *right) {
  enum exit_code code = pairs_diff(left, right, rings_diff);
  if (code == EXIT_GOOD) code = alone_find(left, right);
  if (code == EXIT_GOOD) code = alone_find(right, left);
  return code != EXIT_GOOD ? code : pairs_diff(left, right, comms_diff);
}

static enum exit_code records_both(char *left, char *right) {
  struct records records;
  char *paths[] = {left, right};
  if (!records_read("trace diff", RECORDS_WHOLE, 2, paths, &records)) return EXIT_ENVIRONMENT;
  enum exit_code code = EXIT_INPUT;
  if (records.refused == 0 && records_mixed("trace diff", &records)) code = EXIT_USAGE;
  else if (records.refused == 0 && records.count == 2)
    code = records_diff(&records.files[0], &records.files[1]);
  else if (records.refused == 0)
    fprintf(stderr, "tutti trace diff: these logs are of %u processes; two were expected\n", records.count);
  records_free(&records);
  return code;
}

static bool archive_get(const char *path, struct archive *archive) {
  if (archive_read(path, archive) == ncclSuccess) return true;
  fprintf(stderr, "tutti trace diff: %s\n", log_own_error());
  return false;
}

static enum exit_code files_diff(char *left, char *right) {
  struct archive a, b;
  if (!archive_get(left, &a)) return EXIT_INPUT;
  if (!archive_get(right, &b)) {
    os_free(a.bytes);
    return EXIT_INPUT;
  }
  const bool events = is_events(&a) || is_events(&b);
  enum exit_code code = EXIT_GOOD;
  if (events) code = events_diff(left, &a, right, &b);
  os_free(a.bytes);
  os_free(b.bytes);
  return events ? code : records_both(left, right);
}

enum exit_code trace_diff(char *left, char *right, bool json) {
  as_json = json;
  const enum exit_code code = files_diff(left, right);
  if (json && code == EXIT_GOOD) printf("{\n  \"same\": true\n}\n");
  return code;
}
