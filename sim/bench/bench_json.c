/* bench_json.c: the results as JSON. Keys and nesting are those of nccl-tests' file version 3, with two more:
 * "modelled" marks times of the cost model, "tutti" holds the emulator's settings and counters. */
#include <math.h>
#include <string.h>

#include "bench/bench.h"
#include "json.h"
#include "tutti.h"

/* The settings that are needed to repeat the run: NCCL_* and TUTTI_* of the environment, except the secret.
 */
static void print_env(struct json *json) {
  json_open(json, "env", '{');
  for (const char *const *entry = os_environ(); *entry; entry++) {
    const char *equals = strchr(*entry, '=');
    if (!equals || (strncmp(*entry, "NCCL_", 5) && strncmp(*entry, "TUTTI_", 6))) continue;
    if (strncmp(*entry, "TUTTI_SECRET=", 13) == 0) continue;
    char name[128];
    snprintf(name, sizeof name, "%.*s", (int)(equals - *entry), *entry);
    json_text(json, name, equals + 1);
  }
  json_close(json, '}');
}

static void print_devices(struct json *json, const struct bench *bench) {
  json_open(json, "devices", '[');
  for (int64_t rank = 0; bench->places && rank < bench->flags.rank_count; rank++) {
    const struct bench_place *place = &bench->places[rank];
    char name[256];
    api_device_name(place->device, name, sizeof name);
    json_open(json, NULL, '{');
    json_number(json, "rank", rank);
    json_number(json, "group", 0);
    json_number(json, "pid", place->pid);
    json_text(json, "host", place->host);
    json_number(json, "device", place->device);
    json_text(json, "name", name);
    json_close(json, '}');
  }
  json_close(json, ']');
}

static void print_config(struct json *json, const struct bench *bench) {
  const struct bench_flags *flags = &bench->flags;
  json_open(json, "config", '{');
  json_text(json, "collective", bench->collective->name);
  json_number(json, "nthreads", flags->thread_count);
  json_number(json, "ngpus", flags->ranks_per_thread);
  json_number(json, "minbytes", flags->min_bytes);
  json_number(json, "maxbytes", flags->max_bytes);
  if (flags->step_factor != FLAG_UNSET) json_number(json, "stepfactor", flags->step_factor);
  else json_number(json, "stepbytes", flags->step_bytes);
  json_number(json, "warmup_iters", flags->warmup_count);
  json_number(json, "iters", flags->iteration_count);
  json_number(json, "agg_iters", flags->aggregate_count);
  json_number(json, "check", flags->check_count);
  json_number(json, "blocking", flags->is_blocking);
  json_number(json, "cudagraph", flags->graph_launches);
  json_number(json, "local_register", flags->registration);
  json_number(json, "average", flags->average);
  json_close(json, '}');
}

/* A half that was not run, or not checked, has null instead of a number. */
static void print_half(struct json *json, const char *name, const struct bench *bench,
                       const struct bench_row *row, const struct bench_half *half) {
  bool is_timed = half->is_run && !isnan(half->time_us);
  json_open(json, name, '{');
  json_decimal(json, "time", is_timed ? half->time_us : NAN);
  json_decimal(json, "alg_bw", is_timed ? bench_algbw(row, half) : NAN);
  json_decimal(json, "bus_bw", is_timed ? bench_busbw(bench, row, half) : NAN);
  if (half->is_run && bench->flags.check_count) json_number(json, "nwrong", (int64_t)half->wrong);
  else json_decimal(json, "nwrong", NAN);
  json_close(json, '}');
}

static void print_results(struct json *json, const struct bench *bench) {
  json_open(json, "results", '[');
  for (size_t index = 0; index < bench->row_count; index++) {
    const struct bench_row *row = &bench->rows[index];
    if (row->reported < bench->flags.thread_count) break; /* the run failed here */
    json_open(json, NULL, '{');
    json_number(json, "size", (int64_t)row->bytes);
    json_number(json, "count", (int64_t)row->count);
    json_text(json, "type", bench_type_name(row->type));
    json_text(json, "redop", bench_op_name(bench, row->op));
    json_number(json, "root", row->root);
    print_half(json, "out_of_place", bench, row, &row->halves[0]);
    print_half(json, "in_place", bench, row, &row->halves[1]);
    json_close(json, '}');
  }
  json_close(json, ']');
}

static void print_ours(struct json *json, const struct bench *bench) {
  json_open(json, "tutti", '{');
  if (api->tutti_version) json_text(json, "version", api->tutti_version());
  if (api->tutti_backend) json_text(json, "backend", api->tutti_backend());
  if (bench->flags.gpu) json_text(json, "library", api_library_path());
  json_text(json, "mode", bench->is_modelled ? "guarded" : bench->flags.gpu ? "gpu" : "threads");
  json_number(json, "ranks", bench->flags.rank_count);
  json_number(json, "processes", bench->launch.rank_count);
  json_text(json, "launcher", bench->launch.launcher);
  if (bench->is_modelled) {
    tutti_emu_stats_t stats;
    memset(&stats, 0, sizeof stats);
    stats.size = sizeof stats;
    bool has_stats = tutti_emu_stats(&stats) == ncclSuccess;
    char trace_hash[24];
    snprintf(trace_hash, sizeof trace_hash, "0x%016llx", (unsigned long long)stats.trace_hash);
    json_number(json, "seed", (int64_t)bench->flags.seed);
    if (*bench->model) json_text(json, "model", bench->model);
    if (has_stats) json_number(json, "events", (int64_t)stats.events);
    if (has_stats) json_number(json, "steps", (int64_t)stats.steps);
    if (has_stats) json_text(json, "trace_hash", trace_hash);
  }
  if (bench->failed) json_text(json, "failure", bench->failure);
  json_close(json, '}');
}

void bench_json_print(FILE *out, const struct bench *bench, const char *end_time) {
  struct json json;
  memset(&json, 0, sizeof json);
  json.out = out;
  int nccl_version = 0;
  api->ncclGetVersion(&nccl_version);
  json_open(&json, NULL, '{');
  json_number(&json, "version", 3);
  json_text(&json, "start_time", bench->start_time);
  json_text(&json, "args", bench->command);
  print_env(&json);
  json_number(&json, "nccl_version", nccl_version);
  print_devices(&json, bench);
  print_config(&json, bench);
  json_bool(&json, "modelled", bench->is_modelled);
  print_results(&json, bench);
  json_open(&json, "out_of_bounds", '{');
  json_number(&json, "count", (int64_t)bench->out_of_bounds);
  json_bool(&json, "okay", bench->out_of_bounds == 0);
  json_close(&json, '}');
  json_open(&json, "average_bus_bandwidth", '{');
  json_decimal(&json, "bandwidth", bench_average_busbw(bench));
  json_close(&json, '}');
  print_ours(&json, bench);
  json_text(&json, "end_time", end_time);
  json_close(&json, '}');
}
