/* bench.c: the verb `bench`: nccl-tests' programs in one, on the emulator or on GPUs. Parses flags, makes the
 * rows, sets up the emulator, starts the host threads, collects their results and chooses the exit code.
 * bench_rank.c runs the rows. */
#include "bench/bench.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/log.h"
#include "base/param.h"
#include "base/share.h"
#include "tutti.h"

enum { EMULATED_DEVICES = 8 }; /* by default */

/* ---- what threads share */

void bench_fail(struct bench *bench, bool is_environment, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  os_mutex_lock(&bench->mutex);
  if (!bench->failed) {
    bench->is_environment = is_environment;
    vsnprintf(bench->failure, sizeof bench->failure, format, arguments);
  }
  bench->failed = true;
  os_cond_broadcast(&bench->changed);
  os_mutex_unlock(&bench->mutex);
  va_end(arguments);
}

bool bench_has_failed(struct bench *bench) {
  os_mutex_lock(&bench->mutex);
  bool failed = bench->failed;
  os_mutex_unlock(&bench->mutex);
  return failed;
}

bool bench_barrier(struct bench *bench) {
  os_mutex_lock(&bench->mutex);
  uint64_t round = bench->barrier_round;
  if (++bench->barrier_arrived == bench->flags.thread_count) {
    bench->barrier_arrived = 0;
    bench->barrier_round++;
    os_cond_broadcast(&bench->changed);
  }
  while (round == bench->barrier_round && !bench->failed) os_cond_wait(&bench->changed, &bench->mutex);
  bool is_good = !bench->failed;
  os_mutex_unlock(&bench->mutex);
  return is_good;
}

static void half_add(struct bench_half *half, const struct bench_half *part, bool is_first_part,
                     bool is_first_thread) {
  half->is_run = part->is_run;
  half->wrong += part->wrong;
  half->out_of_bounds += part->out_of_bounds;
  half->time_total += part->time_us;
  if (is_first_part || part->time_us < half->time_least) half->time_least = part->time_us;
  if (is_first_part || part->time_us > half->time_most) half->time_most = part->time_us;
  if (is_first_thread) half->time_first = part->time_us;
}

static void half_finish(struct bench *bench, struct bench_row *row, struct bench_half *half) {
  double choices[] = {half->time_first, half->time_total / (double)bench->flags.thread_count,
                      half->time_least, half->time_most};
  half->time_us = choices[bench->flags.average];
  bench->wrong += half->wrong;
  bench->out_of_bounds += half->out_of_bounds;
  if (!half->is_run || isnan(half->time_us)) return;
  bench->busbw_total += bench_busbw(bench, row, half);
  bench->busbw_count++;
}

void bench_row_report(struct bench *bench, struct bench_row *row, const struct bench_half *parts,
                      bool is_first_thread) {
  os_mutex_lock(&bench->mutex);
  bool is_first_part = row->reported == 0;
  for (int index = 0; index < 2; index++)
    half_add(&row->halves[index], &parts[index], is_first_part, is_first_thread);
  if (++row->reported == bench->flags.thread_count) {
    for (int index = 0; index < 2; index++) half_finish(bench, row, &row->halves[index]);
    if (!bench->flags.tune_path) {
      progress_clear(&bench->progress);
      bench_table_row(bench, row);
    }
  }
  os_mutex_unlock(&bench->mutex);
}

bool bench_has_out_of_place(const struct bench *bench) { return !bench->flags.in_place; }
bool bench_has_in_place(const struct bench *bench) {
  return bench->collective->in_place != IN_PLACE_NONE && !bench->flags.tune_path;
}

/* ---- who waits */

/* A call's share of the work, for the progress report: its bytes, plus a constant. */
static uint64_t call_work(const struct bench_row *row) { return row->bytes + 65536; }

static void progress_start(struct bench *bench) {
  char what[96];
  uint64_t work = 0;
  const struct bench_flags *flags = &bench->flags;
  const uint64_t halves = (uint64_t)bench_has_out_of_place(bench) + (uint64_t)bench_has_in_place(bench);
  const int64_t calls = flags->warmup_count + flags->iteration_count + flags->check_count;
  for (size_t i = 0; i < bench->row_count; i++) work += (uint64_t)calls * call_work(&bench->rows[i]) * halves;
  snprintf(what, sizeof what, "%s%s%s%s%s", bench->collective->name, bench->forced ? " by " : "",
           bench->forced ? bench->forced->algo : "", bench->forced ? " " : "",
           bench->forced ? bench->forced->proto : "");
  progress_open(&bench->progress, "bench", NULL, stderr, false, os_time_ns());
  if (!bench_is_speaker(bench) || bench->options) bench->progress.out = NULL;
  progress_begin(&bench->progress, what, work, os_time_ns());
  bench->work_done = 0;
}

void bench_progress(struct bench *bench, const struct bench_row *row, int64_t call_count) {
  os_mutex_lock(&bench->mutex);
  bench->work_done += (uint64_t)call_count * call_work(row);
  progress_say(&bench->progress, bench->work_done, os_time_ns());
  os_mutex_unlock(&bench->mutex);
}

/* ---- several processes */

uint32_t bench_own_count(const struct bench *bench) {
  return (uint32_t)(bench->flags.thread_count * bench->flags.ranks_per_thread);
}
uint32_t bench_own_first(const struct bench *bench) {
  return (uint32_t)bench->launch.rank * bench_own_count(bench);
}
/* The device of rank `index` of this process. Processes may see the same GPUs, or only their own; with
 * NCCL_MULTI_RANK_GPU_ENABLE=1 ranks share GPUs when there are not enough. */
uint32_t bench_own_device(const struct bench *bench, uint32_t index) {
  const uint32_t own = bench_own_count(bench), first = (uint32_t)bench->launch.local_rank * own;
  const uint32_t gpus = (uint32_t)bench->gpu_count, blocks = gpus / own;
  if (gpus == 0) return first + index;
  return blocks > 0 ? first % (blocks * own) + index : (first + index) % gpus;
}
bool bench_is_speaker(const struct bench *bench) { return bench->launch.rank == 0; }

static bool bench_places_make(struct bench *bench) {
  if (!bench->places)
    bench->places = (struct bench_place *)os_alloc((size_t)bench->flags.rank_count * sizeof bench->places[0]);
  if (!bench->places) return false;
  for (uint32_t index = 0; index < bench_own_count(bench); index++) {
    struct bench_place *place = &bench->places[bench_own_first(bench) + index];
    place->pid = os_pid();
    place->device = (int32_t)bench_own_device(bench, index);
    os_host_name(place->host, sizeof place->host);
  }
  return true;
}

/* The emulated devices of this host: enough for all its processes. */
static uint32_t device_count(const struct bench *bench) {
  const int processes = bench->launch.local_count > 0 ? bench->launch.local_count : bench->launch.rank_count;
  return (uint32_t)processes * bench_own_count(bench);
}

/* ---- the rows */

/* The values that one flag selects: [first, first + count). */
struct range {
  int first, count;
};

/* A name of a table, or `all`; false after one sentence. */
static bool name_parse(const char *flag, const char *text, const char *const *names, size_t name_count,
                       struct range *range) {
  range->first = 0;
  range->count = (int)name_count;
  if (!strcmp(text, "all")) return true;
  range->count = 1;
  for (size_t index = 0; index < name_count; index++) {
    range->first = (int)index;
    if (!strcmp(names[index], text)) return true;
  }
  verb_no_such("bench", flag, text, names, name_count);
  return false;
}

static bool root_parse(const struct bench *bench, struct range *range) {
  const char *text = bench->flags.root;
  int rank_count = (int)bench->flags.rank_count;
  range->first = bench->collective->has_root ? 0 : -1;
  range->count = bench->collective->has_root ? rank_count : 1;
  if (!strcmp(text, "all") || !strcmp(text, "-1")) return true;
  char *end;
  long root = strtol(text, &end, 10);
  if (end == text || *end || root < 0 || root >= rank_count) {
    fprintf(stderr, "tutti bench: --root %s: must be 0 to %d, or all\n", text, rank_count - 1);
    return false;
  }
  if (!bench->collective->has_root) return true;
  range->first = (int)root;
  range->count = 1;
  return true;
}

static bool row_lists(const struct bench *bench, struct range *types, struct range *ops,
                      struct range *roots) {
  const char *names[ncclNumTypes], *op_names[ORACLE_OP_COUNT];
  struct bench reducing = *bench;
  reducing.collective = collective_at(0); /* a collective with operators, for their names */
  for (int index = 0; index < ncclNumTypes; index++) names[index] = bench_type_name((ncclDataType_t)index);
  for (int index = 0; index < ORACLE_OP_COUNT; index++) {
    op_names[index] = bench_op_name(&reducing, (enum oracle_op)index);
  }
  if (!name_parse("datatype", bench->flags.type, names, ncclNumTypes, types)) return false;
  if (!name_parse("op", bench->flags.op, op_names, ORACLE_OP_COUNT, ops)) return false;
  if (!bench->collective->has_op) ops->count = 1;
  return root_parse(bench, roots);
}

int64_t bench_next_size(const struct bench_flags *flags, int64_t size) {
  if (flags->step_factor == FLAG_UNSET) return size + flags->step_bytes;
  return size > 0 ? size * flags->step_factor : 1;
}

/* The buffer of all parts is used in place, too. */
static void buffers_grow(struct bench *bench, const struct bench_row *row) {
  const size_t part_bytes = row->bytes / (size_t)bench->flags.rank_count;
  const enum in_place_rule rule = bench->collective->in_place;
  const size_t send_bytes = rule == IN_PLACE_SEND_AT_RANK ? part_bytes : row->bytes;
  const size_t receive_bytes = rule == IN_PLACE_RECEIVE_AT_RANK ? part_bytes : row->bytes;
  if (send_bytes > bench->send_bytes) bench->send_bytes = send_bytes;
  if (receive_bytes > bench->receive_bytes) bench->receive_bytes = receive_bytes;
}

/* Adds the rows of one type, operator and root, one for each size. Only counts them if there is no table yet.
 */
static void rows_add(struct bench *bench, int type, int op, int root) {
  const struct bench_flags *flags = &bench->flags;
  size_t type_bytes = oracle_type_bytes((ncclDataType_t)type);
  for (int64_t size = flags->min_bytes; size <= flags->max_bytes; size = bench_next_size(flags, size)) {
    size_t index = bench->row_count++;
    if (!bench->rows) continue;
    struct bench_row *row = &bench->rows[index];
    row->type = (ncclDataType_t)type;
    row->op = (enum oracle_op)op;
    row->root = root;
    row->count = collective_count(bench->collective, (size_t)size, type_bytes, (uint32_t)flags->rank_count);
    row->bytes = collective_bytes(bench->collective, row->count, type_bytes, (uint32_t)flags->rank_count);
    buffers_grow(bench, row);
  }
}

static void rows_enumerate(struct bench *bench, struct range types, struct range ops, struct range roots) {
  bench->row_count = 0;
  for (int64_t cycle = 0; cycle < bench->flags.cycle_count; cycle++) {
    for (int type = types.first; type < types.first + types.count; type++) {
      for (int pair = 0; pair < ops.count * roots.count; pair++) {
        rows_add(bench, type, ops.first + pair / roots.count, roots.first + pair % roots.count);
      }
    }
  }
}

static enum exit_code rows_make(struct bench *bench) {
  struct range types, ops, roots;
  if (!row_lists(bench, &types, &ops, &roots)) return EXIT_USAGE;
  rows_enumerate(bench, types, ops, roots);
  bench->rows = (struct bench_row *)os_alloc(bench->row_count * sizeof bench->rows[0]);
  if (!bench->rows) {
    fprintf(stderr, "tutti bench: a table of %zu rows" LOG_OUT_OF_MEMORY "\n", bench->row_count);
    return EXIT_ENVIRONMENT;
  }
  rows_enumerate(bench, types, ops, roots);
  return EXIT_GOOD;
}

/* ---- memory */

/* What the buffers of a rank that is no root hold, in the row with the longest: its input and its output, or
 * both in one. */
static size_t rank_bytes(const struct bench *bench) {
  size_t most = 0;
  for (size_t index = 0; index < bench->row_count; index++) {
    const struct bench_row *row = &bench->rows[index];
    const uint32_t ranks = (uint32_t)bench->flags.rank_count;
    const struct oracle_case c = {bench->collective->id,
                                  row->type,
                                  row->op,
                                  ranks,
                                  row->root > 0 ? (uint32_t)row->root : 0,
                                  row->count,
                                  0};
    const uint32_t rank = (c.root + 1) % ranks;
    const size_t both =
        (oracle_send_count(&c, rank) + oracle_receive_count(&c, rank)) * oracle_type_bytes(c.type);
    const size_t bytes = bench_has_out_of_place(bench) ? both : row->bytes;
    if (bytes > most) most = bytes;
  }
  return most;
}

static bool touches_buffers(const struct bench_flags *flags) {
  return flags->check_count + flags->iteration_count + flags->warmup_count > 0;
}

/* The kernel would end this process, or another one, in the middle of the run. */
static bool memory_suffices(const struct bench *bench) {
  const double gb = 1e9, needed = (double)rank_bytes(bench) * device_count(bench);
  const char *whose;
  const double left = (double)share_memory_left(&whose);
  if (bench->flags.verbose)
    fprintf(stderr, "tutti bench: the buffers of %u ranks take %.1f GB of memory; %.1f GB are left\n",
            device_count(bench), needed / gb, left / gb);
  if (needed <= left || !touches_buffers(&bench->flags)) return true;
  fprintf(
      stderr,
      "tutti bench: the buffers of %u ranks take %.1f GB of memory, and %.1f GB are left %s, or take fewer "
      "ranks, smaller sizes or --in-place\n",
      device_count(bench), needed / gb, left / gb, whose);
  return false;
}

/* ---- the emulator */

static void environment_set(struct bench *bench) {
  struct bench_flags *flags = &bench->flags;
  if (flags->proto) setenv("NCCL_PROTO", flags->proto, 1);
  if (flags->algo) setenv("NCCL_ALGO", flags->algo, 1);
  setenv("NCCL_DEBUG", "NONE", 0); /* a failure is reported once, by this program */
  param_reset();
  if (!flags->seed) flags->seed = strtoull(param_text(PARAM_TUTTI_SEED), NULL, 0);
}

static enum exit_code emulator_configure(struct bench *bench) {
  struct bench_flags *flags = &bench->flags;
  setenv("TUTTI_BACKEND", "emu", 0); /* also if there is a GPU: this program has the emulated runtime */
  param_reset();
  if (strcmp(tutti_backend(), "emu")) {
    fprintf(stderr,
            "tutti bench: the backend is %s, and without --gpu the emulator runs; set TUTTI_BACKEND=emu, or "
            "give --gpu\n",
            tutti_backend());
    return EXIT_ENVIRONMENT;
  }
  tutti_emu_config_t config;
  memset(&config, 0, sizeof config);
  config.size = sizeof config;
  config.seed = flags->seed;
  config.threads = flags->threads;
  config.device_count = device_count(bench);
  config.slots = (uint32_t)flags->slots;
  config.chunk_bytes = (uint32_t)flags->chunk_bytes;
  config.channel_count = (uint32_t)flags->channel_count;
  config.flag_bits = (uint32_t)flags->flag_bits;
  config.depth = (uint32_t)flags->depth;
  config.lag_percent = (uint32_t)flags->lag_percent;
  config.trace_path = flags->trace_path;
  ncclResult_t configured = tutti_emu_configure(&config);
  if (configured != ncclSuccess) {
    fprintf(stderr, "tutti bench: the emulator refuses its settings: %s\n", ncclGetLastError(NULL));
    return configured == ncclInvalidArgument ? EXIT_USAGE : EXIT_ENVIRONMENT;
  }
  return EXIT_GOOD;
}

struct thread_start {
  struct bench *bench;
  int index;
  os_thread thread;
};

static void *thread_body(void *argument) {
  struct thread_start *start = (struct thread_start *)argument;
  bench_ranks_run(start->bench, start->index);
  return NULL;
}

/* The calling thread drives the first thread's ranks. */
static void threads_run(struct bench *bench) {
  int count = (int)bench->flags.thread_count, started = 1;
  struct thread_start *starts = (struct thread_start *)os_alloc((size_t)count * sizeof starts[0]);
  if (!starts) {
    bench_fail(bench, true, "%d threads" LOG_OUT_OF_MEMORY, count);
    return;
  }
  for (int index = 0; index < count; index++) {
    starts[index].bench = bench;
    starts[index].index = index;
  }
  while (started < count && os_thread_start(&starts[started].thread, thread_body, &starts[started]))
    started++;
  if (started < count)
    bench_fail(bench, true, "host thread %d of %d cannot be started; take fewer (-t)", started, count);
  else bench_ranks_run(bench, 0);
  for (int index = 1; index < started; index++) os_thread_join(starts[index].thread);
  os_free(starts);
}

/* ---- the end of a run */

static void time_text(char *out, size_t out_bytes) {
  time_t now = time(NULL);
  struct tm parts;
  if (!localtime_r(&now, &parts) || !strftime(out, out_bytes, "%Y-%m-%d %H:%M:%S", &parts)) *out = 0;
}

static void rate_print(const struct bench *bench) {
  FILE *out = bench->flags.json ? stderr : stdout;
  if (!bench_is_speaker(bench)) return;
  tutti_emu_stats_t stats;
  memset(&stats, 0, sizeof stats);
  stats.size = sizeof stats;
  if (tutti_emu_stats(&stats) != ncclSuccess) return;
  double seconds = (double)bench->moving_ns * 1e-9;
  double scale = seconds > 0 ? 1 / seconds : 0;
  fprintf(out, "# Emulator events %llu steps %llu seconds %.6f events/s %.4g steps/s %.4g\n",
          (unsigned long long)stats.events, (unsigned long long)stats.steps, seconds,
          (double)stats.events * scale, (double)stats.steps * scale);
}

static enum exit_code json_write(const struct bench *bench) {
  const char *path = bench->flags.json_path;
  char end_time[32];
  if (!bench_is_speaker(bench)) return EXIT_GOOD;
  time_text(end_time, sizeof end_time);
  if (bench->flags.json) bench_json_print(stdout, bench, end_time);
  if (!path) return EXIT_GOOD;
  FILE *file = fopen(path, "w");
  if (file) bench_json_print(file, bench, end_time);
  bool is_written = file && !ferror(file);
  if (file && fclose(file)) is_written = false;
  if (is_written) return EXIT_GOOD;
  fprintf(stderr, "tutti bench: --output_file %s: cannot be written: %m\n", path);
  return EXIT_ENVIRONMENT;
}

/* nccl-tests' minimum: the run fails if the average bus bandwidth is below it. */
static bool is_below_floor(const struct bench *bench) {
  const char *floor = os_env("NCCL_TESTS_MIN_BW");
  if (!floor || bench_average_busbw(bench) >= strtod(floor, NULL)) return false;
  fprintf(stderr, "tutti bench: average bus bandwidth %g is below NCCL_TESTS_MIN_BW=%s\n",
          bench_average_busbw(bench), floor);
  return true;
}

static enum exit_code run_conclude(struct bench *bench) {
  bench_table_end(bench);
  if (bench->flags.rate) rate_print(bench);
  enum exit_code code = json_write(bench);
  if (bench->flags.trace_path && tutti_emu_trace_close() != ncclSuccess) {
    fprintf(stderr, "tutti bench: the trace %s is not complete: %s\n", bench->flags.trace_path,
            ncclGetLastError(NULL));
    code = EXIT_ENVIRONMENT;
  }
  if (bench->failed) {
    fprintf(stderr, "tutti bench: %s: %s\n", bench->collective->name, bench->failure);
    return bench->is_environment ? EXIT_ENVIRONMENT : EXIT_WRONG;
  }
  if (bench->wrong || bench->out_of_bounds || is_below_floor(bench)) return EXIT_WRONG;
  return code;
}

enum exit_code bench_pass(struct bench *bench) {
  if (!bench_id_make(bench)) return EXIT_ENVIRONMENT;
  progress_start(bench);
  threads_run(bench);
  progress_clear(&bench->progress);
  return EXIT_GOOD;
}

static bool in_place_fits(const struct bench *bench) {
  if (!bench->flags.in_place || bench_has_in_place(bench)) return true;
  fprintf(stderr, "tutti bench: --in-place: %s\n",
          bench->flags.tune_path ? "--tune times calls out of place" : "the collective has no in-place form");
  return false;
}

static enum exit_code bench_execute(struct bench *bench) {
  enum exit_code code = in_place_fits(bench) ? rows_make(bench) : EXIT_USAGE;
  if (code == EXIT_GOOD && bench->flags.gpu && !bench_gpu_ranks_fit(bench)) code = EXIT_USAGE;
  if (code == EXIT_GOOD && !bench->flags.gpu && !memory_suffices(bench)) code = EXIT_ENVIRONMENT;
  if (code == EXIT_GOOD && !bench->flags.gpu) code = emulator_configure(bench);
  if (code != EXIT_GOOD) return code;
  bench->is_modelled = !bench->flags.threads;
  time_text(bench->start_time, sizeof bench->start_time);
  if (bench->flags.verbose) {
    fprintf(stderr, "tutti bench: %zu rows, %lld ranks, buffers of %zu and %zu bytes\n", bench->row_count,
            (long long)bench->flags.rank_count, bench->send_bytes, bench->receive_bytes);
  }
  if (!bench_places_make(bench)) {
    fprintf(stderr, "tutti bench: its ranks" LOG_OUT_OF_MEMORY "\n");
    return EXIT_ENVIRONMENT;
  }
  if (bench->flags.tune_path) return bench_tune(bench);
  if (bench->launch.rank_count == 1)
    bench_table_begin(bench); /* else after the other processes have connected */
  code = bench_pass(bench);
  return code == EXIT_GOOD ? run_conclude(bench) : code;
}

/* The command line as one line, for the JSON file. */
static char *command_join(int argc, char **argv) {
  size_t bytes = sizeof "tutti";
  for (int index = 0; index < argc; index++) bytes += strlen(argv[index]) + 1;
  char *command = (char *)os_alloc(bytes);
  if (!command) return NULL;
  strcpy(command, "tutti");
  for (int index = 0; index < argc; index++) strcat(strcat(command, " "), argv[index]);
  return command;
}

static bool launch_find(struct bench *bench) {
  bench->launch.size = sizeof bench->launch;
  if (tutti_launch_read(&bench->launch) == ncclSuccess) return true;
  fprintf(stderr, "tutti bench: %s\n", ncclGetLastError(NULL));
  return false;
}

static enum exit_code bench_start(struct bench *bench) {
  environment_set(bench);
  if (!launch_find(bench)) return EXIT_ENVIRONMENT;
  const enum exit_code code = bench_gpu_begin(bench);
  if (code != EXIT_GOOD) return code;
  const int devices = bench->gpu_count > 0 ? bench->gpu_count : EMULATED_DEVICES;
  if (!bench_flags_complete(&bench->flags, bench->launch.rank_count, devices)) return EXIT_USAGE;
  return bench_execute(bench);
}

static enum exit_code bench_run(int argc, char **argv) {
  struct bench bench;
  int operand;
  memset(&bench, 0, sizeof bench);
  bench.command = command_join(argc, argv);
  if (!bench.command) {
    fprintf(stderr, "tutti bench: its ranks" LOG_OUT_OF_MEMORY "\n");
    return EXIT_ENVIRONMENT;
  }
  bench_flags_initial(&bench.flags);
  os_mutex_init(&bench.mutex);
  os_cond_init(&bench.changed);
  enum exit_code code;
  if (verb_parse(&bench_options, argc, argv, &bench.flags, &operand, &code)) {
    bench.collective = verb_collective("bench", argc - operand, argv + operand);
    code = bench.collective ? bench_start(&bench) : EXIT_USAGE;
  }
  os_free(bench.rows);
  os_free(bench.places);
  os_free(bench.command);
  os_cond_destroy(&bench.changed);
  os_mutex_destroy(&bench.mutex);
  return code;
}

const struct verb verb_bench = {
    "bench",
    "run, check and time a collective, with nccl-tests' flags and table",
    "COLLECTIVE [FLAGS]",
    "COLLECTIVE",
    "  tutti bench all_reduce -b 8 -e 1M -f 2 --ranks 8\n"
    "  tutti bench reduce_scatter --ranks 5 -d all -o all -b 64K -e 64K --seed 0x2a --slots 2 --proto LL\n"
    "  tutti launch -n 2 tutti bench alltoall -g 4 -b 1M -e 16M -f 4 --threads -J alltoall.json\n"
    "  tutti bench all_reduce --ranks 4 -b 1K -e 64K -f 8 --tune my.tune\n"
    "  # needs 4 GPUs and MPI\n"
    "  mpirun -n 4 tutti bench all_reduce --gpu -b 8 -e 1G -f 4\n",
    "COLLECTIVE is all_reduce, all_gather, reduce_scatter, broadcast, reduce, sendrecv, alltoall, gather or "
    "scatter,\n"
    "with or without _perf.\n"
    "\n"
    "The ranks run on emulated GPUs. By default the emulator is guarded: it runs one seeded event at a time, "
    "so that the\n"
    "same command gives the same run. Such a run says nothing about speed, and the times in the table are\n"
    "the cost model's prediction, marked as modelled. With --threads the emulator runs freely and times are "
    "measured.\n"
    "With --gpu the ranks run on this machine's GPUs, with the libnccl.so.2 that programs load or with "
    "another one (--nccl FILE), and times are measured. With NCCL_MULTI_RANK_GPU_ENABLE=1 several ranks "
    "share a "
    "GPU if there are more ranks than GPUs.\n"
    "\n"
    "Sizes, counts and bus bandwidth follow nccl-tests: for collectives that gather or scatter, the size is "
    "that of all ranks' parts together, and each part is a multiple of 16 bytes; smaller sizes become 0.\n"
    "\n"
    "Results are compared element by element with a naive computation, and bytes outside the output must not "
    "change. Integers, moves, maxima and minima must agree exactly. For floating-point sums and products, "
    "three elements in four have inputs whose result is exact in every order, and must agree exactly as "
    "well; the others may differ by\n"
    "((1+u)^(n-1) - 1) times the sum of the terms' sizes, for n ranks and unit roundoff u of the type. "
    "sendrecv and\n"
    "alltoall have no in-place form, and print N/A there.\n"
    "\n"
    "With --tune FILE, bench instead times every possible algorithm and protocol at every size, on free "
    "threads or GPUs, and writes a rule for each size to FILE: the fastest one, or the previous size's if "
    "that takes at most 2 % longer. Rules in FILE for other collectives and other numbers of ranks and nodes "
    "are kept. With --channels N each option is timed over N channels, N/2 and so on; without it, over the "
    "library's default number. Set TUTTI_TUNE_FILE=FILE to apply the rules in a program.\n"
    "\n"
    "If a launcher (mpirun, srun, torchrun, `tutti launch`) starts several processes of it, each drives -g "
    "times -t ranks of one communicator. Rank 0's process prints; all processes check results and the errors "
    "are summed; a time is that of the slowest rank. The times are the model's there too, unless --threads "
    "is given.\n"
    "\n"
    "If NCCL_TESTS_MIN_BW is set, the exit code is 1 when the average bus bandwidth is below it.\n",
    &bench_options,
    bench_run,
};
