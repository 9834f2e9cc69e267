/* bench_tune.c: `tutti bench --tune FILE`: runs the table once for each way to carry the collective, forced
 * through the environment, keeps the fastest of each size, and writes rules that the library reads
 * (core/plan/tune_file.h). Promises that lines of other collectives and other numbers of ranks stay as they
 * were, and that a file that cannot be understood is not touched. */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/param.h"
#include "bench/bench.h"
#include "core/plan/names.h"
#include "core/plan/plan.h"
#include "core/plan/tune.h"
#include "core/plan/tune_file.h"

enum { LINE_BYTES = 256 };

struct tune_best {
  struct tune_rule rule;
  double time_us; /* NAN: no way has been timed */
};

struct tuning {
  struct bench *bench;
  uint8_t func;
  struct tune_best *best; /* by row */
  struct graph graph;
  struct plan_request request; /* asks the rules alone */
};

/* ---- measuring */

static bool is_possible(const struct tuning *tuning, uint8_t algo, uint8_t proto) {
  struct tune_candidate rows[TUNE_CANDIDATES];
  tune_candidates(&tuning->request, tuning->func, 1 << 20, rows);
  return rows[algo * PROTO_COUNT + proto].forbidden == NULL;
}

static void way_set(uint8_t algo, uint8_t proto, uint32_t channels) {
  char count[16];
  snprintf(count, sizeof count, "%u", channels);
  setenv("NCCL_ALGO", names_algo[algo], 1);
  setenv("NCCL_PROTO", names_proto[proto], 1);
  setenv("NCCL_MIN_CTAS", count, 1);
  setenv("NCCL_MAX_CTAS", count, 1);
  param_reset();
}

/* The rows as they were before a pass. */
static void rows_clear(struct bench *bench) {
  for (size_t index = 0; index < bench->row_count; index++) {
    memset(bench->rows[index].halves, 0, sizeof bench->rows[index].halves);
    bench->rows[index].reported = 0;
  }
  bench->barrier_arrived = 0;
}

static void way_keep(struct tuning *tuning, uint8_t algo, uint8_t proto, uint32_t channels) {
  for (size_t index = 0; index < tuning->bench->row_count; index++) {
    const double time_us = tuning->bench->rows[index].halves[0].time_us;
    struct tune_best *best = &tuning->best[index];
    if (isnan(time_us) || (!isnan(best->time_us) && time_us >= best->time_us)) continue;
    best->time_us = time_us;
    best->rule.algo = algo;
    best->rule.proto = proto;
    best->rule.channel_count = channels;
  }
}

static enum exit_code way_time(struct tuning *tuning, uint8_t algo, uint8_t proto, uint32_t channels) {
  struct bench *bench = tuning->bench;
  way_set(algo, proto, channels);
  rows_clear(bench);
  const enum exit_code code = bench_pass(bench);
  if (code != EXIT_GOOD) return code;
  if (bench->failed) {
    fprintf(stderr, "tutti bench: %s with %s %s on %u channels: %s\n", bench->collective->name,
            names_algo[algo], names_proto[proto], channels, bench->failure);
    return bench->is_environment ? EXIT_ENVIRONMENT : EXIT_WRONG;
  }
  if (bench->flags.verbose)
    fprintf(stderr, "tutti bench: timed %s %s on %u channels\n", names_algo[algo], names_proto[proto],
            channels);
  way_keep(tuning, algo, proto, channels);
  return EXIT_GOOD;
}

/* Without --channels the emulator's own number alone, else that, half of it and so on. */
static enum exit_code ways_time(struct tuning *tuning) {
  const int64_t given = tuning->bench->flags.channel_count;
  const uint32_t most = given > 0 ? (uint32_t)given : 2, least = given > 0 ? 1 : 2;
  for (uint8_t index = 0; index < TUNE_CANDIDATES; index++) {
    const uint8_t algo = index / PROTO_COUNT, proto = index % PROTO_COUNT;
    if (!is_possible(tuning, algo, proto)) continue;
    for (uint32_t channels = most; channels >= least; channels /= 2) {
      const enum exit_code code = way_time(tuning, algo, proto, channels);
      if (code != EXIT_GOOD) return code;
    }
  }
  return EXIT_GOOD;
}

/* ---- the file */

static bool rules_same(const struct tune_rule *a, const struct tune_rule *b) {
  return a->algo == b->algo && a->proto == b->proto && a->channel_count == b->channel_count;
}

/* Neighbouring sizes with one way become one rule; the last holds up to the size that would follow. */
static void rules_write(FILE *out, const struct tuning *tuning) {
  const struct bench *bench = tuning->bench;
  for (size_t first = 0, end; first < bench->row_count; first = end) {
    struct tune_rule rule = tuning->best[first].rule;
    char line[LINE_BYTES];
    for (end = first + 1; end < bench->row_count; end++)
      if (!rules_same(&tuning->best[end].rule, &rule)) break;
    const size_t last = bench->rows[end - 1].bytes;
    rule.from_bytes = bench->rows[first].bytes;
    rule.to_bytes = end < bench->row_count ? bench->rows[end].bytes
                                           : (uint64_t)bench_next_size(&bench->flags, (int64_t)last);
    tune_rule_text(&rule, line, sizeof line);
    fprintf(out, "%s # %.1f us\n", line, tuning->best[first].time_us);
  }
}

/* True for a line whose rule the new ones take the place of. */
static bool line_is_replaced(const struct tuning *tuning, const struct tune_file *file, uint32_t line) {
  for (uint32_t index = 0; index < file->count; index++) {
    const struct tune_rule *rule = &file->rules[index];
    if (rule->line != line) continue;
    return rule->func == tuning->func &&
           (rule->rank_count == 0 || rule->rank_count == tuning->graph.rank_count) && rule->node_count <= 1;
  }
  return false;
}

static void kept_write(FILE *out, const struct tuning *tuning, const char *text,
                       const struct tune_file *file) {
  for (uint32_t line = 1; *text; line++) {
    const size_t length = strcspn(text, "\n");
    if (!line_is_replaced(tuning, file, line)) fprintf(out, "%.*s\n", (int)length, text);
    text += length + (text[length] == '\n');
  }
}

static bool file_write(const struct tuning *tuning, const char *text, const struct tune_file *file) {
  const char *path = tuning->bench->flags.tune_path;
  char fresh[4096];
  if ((size_t)snprintf(fresh, sizeof fresh, "%s.new", path) >= sizeof fresh) return false;
  FILE *out = fopen(fresh, "w");
  if (!out) return false;
  if (text) kept_write(out, tuning, text, file);
  rules_write(out, tuning);
  const bool is_bad = ferror(out) != 0;
  if (fclose(out) == 0 && !is_bad && rename(fresh, path) == 0) return true;
  const int cause = errno;
  remove(fresh);
  errno = cause;
  return false;
}

/* What the file says now: it must be right, or not there. */
static enum exit_code file_read(const char *path, char **text, struct tune_file **file) {
  size_t length = 0;
  *text = os_file_read(path, &length);
  if (!*text && errno == ENOENT) return EXIT_GOOD;
  if (!*text) fprintf(stderr, "tutti bench: --tune %s: cannot be read: %m\n", path);
  if (*text && tune_file_parse(path, *text, length, file) == ncclSuccess) return EXIT_GOOD;
  if (*text) fprintf(stderr, "tutti bench: --tune: %s\n", log_last_error());
  return EXIT_INPUT;
}

/* ---- the run */

static bool sizes_check(const struct bench *bench) {
  for (size_t index = 0; index < bench->row_count; index++) {
    const struct bench_row *row = &bench->rows[index];
    if (row->bytes > 0 && (index == 0 || row[-1].bytes < row->bytes)) continue;
    fprintf(stderr,
            "tutti bench: --tune needs sizes above 0 that grow: one type, operator, root and cycle, "
            "and each size at least 16 bytes a rank\n");
    return false;
  }
  return true;
}

static bool tuning_begin(struct tuning *tuning, struct bench *bench) {
  memset(tuning, 0, sizeof *tuning);
  const int func =
      names_find(names_collective, FUNC_COUNT, bench->collective->name, strlen(bench->collective->name));
  if (func < 0)
    fprintf(stderr,
            "tutti bench: --tune: %s has but one way; take all_reduce, all_gather, reduce_scatter, "
            "broadcast or reduce\n",
            bench->collective->name);
  if (func < 0 || !sizes_check(bench)) return false;
  tuning->bench = bench;
  tuning->func = (uint8_t)func;
  struct plan_request *request = &tuning->request;
  request->rank_count = (uint32_t)bench->flags.rank_count;
  request->graph = &tuning->graph;
  plan_limits_default(&request->limits);
  for (uint32_t index = 0; index < FUNC_COUNT; index++)
    request->algo_mask[index] = request->proto_mask[index] = ~0u;
  return true;
}

static bool best_make(struct tuning *tuning) {
  const struct bench *bench = tuning->bench;
  tuning->best = (struct tune_best *)os_alloc(bench->row_count * sizeof tuning->best[0]);
  if (!tuning->best || graph_flat((uint32_t)bench->flags.rank_count, &tuning->graph) != ncclSuccess) {
    fprintf(stderr, "tutti bench: no memory for %zu sizes\n", bench->row_count);
    return false;
  }
  for (size_t index = 0; index < bench->row_count; index++) {
    tuning->best[index].time_us = NAN;
    tuning->best[index].rule.func = tuning->func;
    tuning->best[index].rule.rank_count = tuning->graph.rank_count;
    tuning->best[index].rule.node_count = tuning->graph.node_count;
  }
  return true;
}

static enum exit_code tuning_run(struct tuning *tuning, const char *text, const struct tune_file *file) {
  const char *path = tuning->bench->flags.tune_path;
  if (!best_make(tuning)) return EXIT_ENVIRONMENT;
  unsetenv("TUTTI_TUNE_FILE"); /* it would overrule what is forced */
  const enum exit_code code = ways_time(tuning);
  if (code != EXIT_GOOD) return code;
  if (tuning->bench->wrong || tuning->bench->out_of_bounds) {
    fprintf(stderr, "tutti bench: results were wrong; %s is left as it was\n", path);
    return EXIT_WRONG;
  }
  if (!bench_is_speaker(tuning->bench)) return EXIT_GOOD;
  if (!file_write(tuning, text, file)) {
    fprintf(stderr, "tutti bench: --tune %s: cannot be written: %m\n", path);
    return EXIT_ENVIRONMENT;
  }
  if (!tuning->bench->flags.quiet) rules_write(stdout, tuning);
  return EXIT_GOOD;
}

enum exit_code bench_tune(struct bench *bench) {
  struct tuning tuning;
  struct tune_file *file = NULL;
  char *text = NULL;
  if (!tuning_begin(&tuning, bench)) return EXIT_USAGE;
  enum exit_code code = file_read(bench->flags.tune_path, &text, &file);
  if (code == EXIT_GOOD) code = tuning_run(&tuning, text, file);
  graph_free(&tuning.graph);
  os_free(tuning.best);
  os_free(file);
  os_free(text);
  return code;
}
