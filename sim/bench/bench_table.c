/* bench_table.c: the results as nccl-tests prints them: comment lines begin with #, the columns are the same
 * and in the same order. Modelled times are marked in the header and in the last line, and their column is
 * wider. */
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "bench/bench.h"
#include "core/plan/plan.h"
#include "tutti.h"

static const char *const type_names[ncclNumTypes] = {
    "int8", "uint8", "int32",  "uint32",   "int64",  "uint64",
    "half", "float", "double", "bfloat16", "f8e4m3", "f8e5m2",
};
static const char *const op_names[ORACLE_OP_COUNT] = {"sum", "prod", "max", "min", "avg", "mulsum"};

const char *bench_type_name(ncclDataType_t type) {
  return (unsigned)type < ncclNumTypes ? type_names[type] : "";
}

const char *bench_op_name(const struct bench *bench, enum oracle_op op) {
  return !bench->collective->has_op ? "none" : (unsigned)op < ORACLE_OP_COUNT ? op_names[op] : "";
}

double bench_algbw(const struct bench_row *row, const struct bench_half *half) {
  return half->time_us > 0 ? (double)row->bytes / half->time_us * 1e-3 : 0; /* NAN > 0 is false */
}

double bench_busbw(const struct bench *bench, const struct bench_row *row, const struct bench_half *half) {
  return bench_algbw(row, half) * bench->collective->factor((double)bench->flags.rank_count);
}

double bench_average_busbw(const struct bench *bench) {
  return bench->busbw_count ? bench->busbw_total / (double)bench->busbw_count : 0;
}

static int time_width(const struct bench *bench) { return bench->is_modelled ? 14 : 7; }

static void print_devices(const struct bench *bench) {
  printf("# Using devices\n");
  for (int64_t rank = 0; rank < bench->flags.rank_count; rank++) {
    const struct bench_place *place = &bench->places[rank];
    unsigned domain = 0, bus = 0, device = 0;
    char name[256], address[32] = "";
    api_device_name(place->device, name, sizeof name);
    if (api->cudaDeviceGetPCIBusId(address, sizeof address, place->device) == cudaSuccess)
      sscanf(address, "%x:%x:%x", &domain, &bus, &device);
    printf("#  Rank %2lld Group %2d Pid %6d on %10s device %2lld [%04x:%02x:%02x] %s\n", (long long)rank, 0,
           place->pid, place->host, (long long)place->device, domain, bus, device, name);
  }
}

static void print_header(const struct bench *bench) {
  int width = time_width(bench);
  const char *unit = bench->is_modelled ? "(us, modelled)" : "(us)";
  int half = width + 2 * 8 + 7;
  printf("#\n# %10s  %12s  %8s  %6s  %6s  %*s  %*s\n", "", "", "", "", "", half, "out-of-place         ",
         half, "in-place           ");
  printf("# %10s  %12s  %8s  %6s  %6s", "size", "count", "type", "redop", "root");
  for (int index = 0; index < 2; index++)
    printf("  %*s  %6s  %6s %6s", width, "time", "algbw", "busbw", "#wrong");
  printf("\n# %10s  %12s  %8s  %6s  %6s", "(B)", "(elements)", "", "", "");
  for (int index = 0; index < 2; index++) printf("  %*s  %6s  %6s %6s", width, unit, "(GB/s)", "(GB/s)", "");
  printf("\n");
}

static void print_library(const struct bench *bench) {
  int version = 0;
  api->ncclGetVersion(&version);
  if (api->tutti_version) printf("# %s\n", api->tutti_version());
  if (bench->flags.gpu) printf("# nccl-library=%d of %s\n", version, api_library_path());
}

void bench_table_begin(const struct bench *bench) {
  const struct bench_flags *flags = &bench->flags;
  if (flags->json || flags->quiet || !bench_is_speaker(bench)) return;
  print_library(bench);
  printf("# Collective test starting: %s_perf\n", bench->collective->name);
  bool is_factor = flags->step_factor != FLAG_UNSET;
  printf(
      "# nThread %lld nGpus %lld minBytes %lld maxBytes %lld step: %lld(%s) warmup iters: %lld iters: %lld "
      "agg iters: %lld validation: %lld graph: %lld\n",
      (long long)flags->thread_count, (long long)flags->ranks_per_thread, (long long)flags->min_bytes,
      (long long)flags->max_bytes, (long long)(is_factor ? flags->step_factor : flags->step_bytes),
      is_factor ? "factor" : "bytes", (long long)flags->warmup_count, (long long)flags->iteration_count,
      (long long)flags->aggregate_count, (long long)flags->check_count, (long long)flags->graph_launches);
  if (bench->is_modelled) printf("# Emulator: guarded, seed %llu\n#\n", (unsigned long long)flags->seed);
  else printf(bench->flags.gpu ? "#\n" : "# Emulator: free threads\n#\n");
  print_devices(bench);
  print_header(bench);
  fflush(stdout);
}

/* As nccl-tests: seven columns, fewer decimals the larger. */
static void print_half(const struct bench *bench, const struct bench_row *row,
                       const struct bench_half *half) {
  char time[32] = "N/A", wrong[24] = "N/A";
  int decimals = half->time_us >= 10000 ? 0 : half->time_us >= 100 ? 1 : 2;
  if (half->is_run && !isnan(half->time_us)) snprintf(time, sizeof time, "%.*f", decimals, half->time_us);
  if (half->is_run && bench->flags.check_count)
    snprintf(wrong, sizeof wrong, "%llu", (unsigned long long)half->wrong);
  printf("  %*s", time_width(bench), time);
  if (strcmp(time, "N/A")) printf("  %6.2f  %6.2f", bench_algbw(row, half), bench_busbw(bench, row, half));
  else printf("  %6s  %6s", "N/A", "N/A");
  printf(" %6s", wrong);
}

void bench_table_row(const struct bench *bench, const struct bench_row *row) {
  if (bench->flags.json || !bench_is_speaker(bench)) return;
  printf("%12zu  %12zu  %8s  %6s  %6d", row->bytes, row->count, bench_type_name(row->type),
         bench_op_name(bench, row->op), row->root);
  print_half(bench, row, &row->halves[0]);
  print_half(bench, row, &row->halves[1]);
  printf("\n");
  fflush(stdout);
}

static void print_model(const struct bench *bench) {
  struct plan_limits limits;
  plan_limits_default(&limits);
  printf("# Times are the cost model's prediction, not measurements; --threads measures.\n");
  if (*bench->model) printf("# Model: latency + bytes / bandwidth; %s\n", bench->model);
  if (bench->flags.channel_count == 0)
    printf("# The number of channels is the emulator's; --channels %u predicts for as many as GPUs take.\n",
           limits.channel_count);
}

void bench_table_end(const struct bench *bench) {
  if (bench->flags.json || bench->flags.quiet || !bench_is_speaker(bench)) return;
  printf("# Out of bounds values : %llu %s\n", (unsigned long long)bench->out_of_bounds,
         bench->out_of_bounds ? "FAILED" : "OK");
  printf("# Avg bus bandwidth    : %g%s\n#\n", bench_average_busbw(bench),
         bench->is_modelled ? " (modelled)" : "");
  if (bench->is_modelled) print_model(bench);
  printf("# Collective test concluded: %s_perf\n", bench->collective->name);
}
