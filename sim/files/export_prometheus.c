/* export_prometheus.c: one family of metrics after another, each with its HELP and TYPE. Names end in _total
 * if they only grow while a process lives. */
#include <inttypes.h>
#include <string.h>

#include "base/os.h"
#include "files/export.h"

struct metric {
  const char *name, *type, *help;
  double (*value)(const struct member *member, int64_t now_ns);
  bool needs_counts; /* only for devices that count ended operations */
};

static double value_called(const struct member *member, int64_t now_ns) {
  (void)now_ns;
  return (double)member_comm(member)->calls;
}
static double value_launched(const struct member *member, int64_t now_ns) {
  (void)now_ns;
  return (double)member_comm(member)->launched;
}
static double value_started(const struct member *member, int64_t now_ns) {
  (void)now_ns;
  return (double)member_comm(member)->started;
}
static double value_ended(const struct member *member, int64_t now_ns) {
  (void)now_ns;
  return (double)member_comm(member)->ended;
}
static double value_error(const struct member *member, int64_t now_ns) {
  (void)now_ns;
  return member_comm(member)->error;
}
static double value_pending(const struct member *member, int64_t now_ns) {
  (void)now_ns;
  return (double)(member->state.called - member->state.done);
}

static uint32_t element_bytes(uint8_t dtype) {
  static const uint8_t bytes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return dtype < sizeof bytes ? bytes[dtype] : 0;
}

static double value_bytes(const struct member *member, int64_t now_ns) {
  const struct record_view *view = member->state.view;
  double sum = 0;
  (void)now_ns;
  for (uint64_t number = view->first; number < view->end; number++) {
    const union record *record = record_at(view, number);
    if (record->kind == RECORD_CALL) sum += (double)record->call.count * element_bytes(record->call.dtype);
  }
  return sum;
}

static double value_errors(const struct member *member, int64_t now_ns) {
  const struct record_view *view = member->state.view;
  double count = 0;
  (void)now_ns;
  for (uint64_t number = view->first; number < view->end; number++)
    count += record_at(view, number)->kind == RECORD_ERROR;
  return count;
}

/* The last call, launch or end. */
static int64_t progress_ns(const struct member *member) {
  const struct record_view *view = member->state.view;
  uint64_t last = view->comm->moved_ticks;
  for (uint64_t number = view->end; number > view->first; number--) {
    const union record *record = record_at(view, number - 1);
    if (record->kind != RECORD_CALL && record->kind != RECORD_LAUNCH) continue;
    if (record->call.ticks > last) last = record->call.ticks;
    break;
  }
  return member_time_ns(member, last != 0 ? last : view->comm->born);
}

static double value_progress(const struct member *member, int64_t now_ns) {
  const int64_t since = now_ns - progress_ns(member);
  return since > 0 ? (double)since / 1e9 : 0;
}

static const struct metric metrics[] = {
    {"tutti_operations_called_total", "counter", "Operations that the rank has called.", value_called, false},
    {"tutti_kernels_launched_total", "counter", "Kernels that the rank has launched.", value_launched, true},
    {"tutti_kernels_started_total", "counter", "Kernels that have started on the device.", value_started,
     true},
    {"tutti_kernels_ended_total", "counter", "Kernels that have ended on the device.", value_ended, true},
    {"tutti_operations_pending", "gauge", "Operations called, and not known to have ended.", value_pending,
     true},
    {"tutti_recorded_bytes", "gauge", "Bytes of the calls that the rank's ring of records still holds.",
     value_bytes, false},
    {"tutti_recorded_errors", "gauge", "Refused calls that the rank's ring of records still holds.",
     value_errors, false},
    {"tutti_comm_error", "gauge", "ncclResult_t that the communicator broke with; 0: it has not.",
     value_error, false},
    {"tutti_seconds_since_progress", "gauge",
     "Seconds since the rank's last call, launch or end of a kernel.", value_progress, false},
};

/* Label values escape backslash, quote and line break. */
static void label_print(FILE *out, const char *name, const char *text, size_t capacity) {
  fprintf(out, "%s=\"", name);
  for (size_t i = 0; i < capacity && text[i] != '\0'; i++) {
    if (text[i] == '\n') fputs("\\n", out);
    else if (text[i] == '"' || text[i] == '\\') fprintf(out, "\\%c", text[i]);
    else fputc((unsigned char)text[i] < 0x80 ? text[i] : '?', out);
  }
  fputc('"', out);
}

/* Two series of a family must not have the same labels: a communicator may have been created twice. */
static void series_print(FILE *out, const struct metric *metric, const struct member *member, double value) {
  const struct record_comm *comm = member_comm(member);
  fprintf(out, "%s{", metric->name);
  label_print(out, "comm", comm->name, sizeof comm->name);
  fprintf(out, ",id=\"%" PRIx64 "\",rank=\"%u\",ranks=\"%u\",", comm->comm_id, comm->rank, comm->rank_count);
  label_print(out, "host", member->state.file->header.host, sizeof member->state.file->header.host);
  fprintf(out, ",process=\"%u\",device=\"%u\",place=\"%u\"} %.17g\n", member->state.file->header.process,
          comm->device, member->place, value);
}

void export_prometheus(const struct job *job, int64_t now_ns, FILE *out) {
  for (size_t i = 0; i < sizeof metrics / sizeof metrics[0]; i++) {
    const struct metric *metric = &metrics[i];
    fprintf(out, "# HELP %s %s\n# TYPE %s %s\n", metric->name, metric->help, metric->name, metric->type);
    for (uint32_t k = 0; k < job->count; k++)
      if (!metric->needs_counts || rank_knows_ends(&job->members[k].state))
        series_print(out, metric, &job->members[k], metric->value(&job->members[k], now_ns));
  }
}
