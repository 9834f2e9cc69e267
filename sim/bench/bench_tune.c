/* bench_tune.c: `tutti bench --tune FILE`: asks the library for the options of the collective, runs the table
 * once for each, forced through the environment, keeps the fastest for each size, and writes rules that the
 * library reads (core/plan/tune_file.h). Lines for other collectives and other numbers of ranks and nodes are
 * kept; a file that cannot be parsed is not changed. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "bench/bench.h"
#include "core/plan/names.h"
#include "core/plan/tune_file.h"

enum { LINE_BYTES = 256, CHANNEL_STEPS = 7 /* 64, 32, ... 1 */ };

/* One option, and its time at each size. */
struct attempt {
  tutti_tuning_option_t option;
  uint32_t channels; /* 0: the library's default number */
  double *times_us;  /* by row; NAN: not timed */
};

struct tuning {
  struct bench *bench;
  uint8_t func;
  tutti_tuning_options_t options;
  struct attempt attempts[TUTTI_TUNING_OPTIONS_MAX * CHANNEL_STEPS];
  size_t attempt_count;
};

/* A size keeps the option of the previous size if that is hardly slower, because small differences are noise.
 */
static const double margin = 1.02;

/* ---- measuring */

/* Only the collective's time: processes also use other calls to agree on times and places. */
static void option_set(const struct tuning *tuning, const struct attempt *attempt) {
  char algo[64], proto[64];
  snprintf(algo, sizeof algo, "%s:%s", names_func[tuning->func], attempt->option.algo);
  snprintf(proto, sizeof proto, "%s:%s", names_func[tuning->func], attempt->option.proto);
  setenv("NCCL_ALGO", algo, 1);
  setenv("NCCL_PROTO", proto, 1);
  bench_channels_set(attempt->channels);
  api->settings_reset(); /* the library in use reads its settings again */
}

/* The rows as they were before a pass. */
static void rows_clear(struct bench *bench) {
  for (size_t index = 0; index < bench->row_count; index++) {
    memset(bench->rows[index].halves, 0, sizeof bench->rows[index].halves);
    bench->rows[index].reported = 0;
  }
  bench->barrier_arrived = 0;
}

static void attempt_report(const struct bench *bench, const struct attempt *attempt, const char *text) {
  fprintf(stderr, "tutti bench: %s by %s %s", bench->collective->name, attempt->option.algo,
          attempt->option.proto);
  if (attempt->channels) fprintf(stderr, " over %u channels", attempt->channels);
  fprintf(stderr, ": %s\n", text);
}

static enum exit_code attempt_time(struct tuning *tuning, struct attempt *attempt) {
  struct bench *bench = tuning->bench;
  attempt->times_us = (double *)os_alloc(bench->row_count * sizeof attempt->times_us[0]);
  if (!attempt->times_us) {
    fprintf(stderr, "tutti bench: %zu sizes" LOG_OUT_OF_MEMORY "\n", bench->row_count);
    return EXIT_ENVIRONMENT;
  }
  option_set(tuning, attempt);
  rows_clear(bench);
  bench->forced = &attempt->option;
  const enum exit_code code = bench_pass(bench);
  bench->forced = NULL;
  if (code != EXIT_GOOD) return code;
  if (bench->failed) {
    attempt_report(bench, attempt, bench->failure);
    return bench->is_environment ? EXIT_ENVIRONMENT : EXIT_WRONG;
  }
  if (bench->flags.verbose) attempt_report(bench, attempt, "timed");
  for (size_t index = 0; index < bench->row_count; index++)
    attempt->times_us[index] = bench->rows[index].halves[0].time_us;
  return EXIT_GOOD;
}

/* Without --channels the library's default number, else that number, half of it and so on. */
static enum exit_code options_time(struct tuning *tuning) {
  const uint32_t given = (uint32_t)tuning->bench->flags.channel_count;
  for (int index = 0; index < tuning->options.option_count; index++) {
    uint32_t channels = given;
    do {
      struct attempt *attempt = &tuning->attempts[tuning->attempt_count++];
      attempt->option = tuning->options.options[index];
      attempt->channels = channels;
      const enum exit_code code = attempt_time(tuning, attempt);
      if (code != EXIT_GOOD) return code;
      channels /= 2;
    } while (channels > 0);
  }
  return EXIT_GOOD;
}

/* The library's options, from communicators that are made only for this question. */
static enum exit_code options_learn(struct tuning *tuning) {
  struct bench *bench = tuning->bench;
  bench->options = &tuning->options;
  const enum exit_code code = bench_pass(bench);
  bench->options = NULL;
  if (code != EXIT_GOOD || !bench->failed) return code;
  fprintf(stderr, "tutti bench: --tune: %s\n", bench->failure);
  return bench->is_environment ? EXIT_ENVIRONMENT : EXIT_USAGE;
}

/* ---- the file */

/* The fastest attempt at a row, or `last` if that hardly takes longer; NULL: none has a time. */
static const struct attempt *row_choose(const struct tuning *tuning, size_t row, const struct attempt *last) {
  const struct attempt *best = NULL;
  for (size_t index = 0; index < tuning->attempt_count; index++) {
    const struct attempt *attempt = &tuning->attempts[index];
    if (isnan(attempt->times_us[row])) continue;
    if (!best || attempt->times_us[row] < best->times_us[row]) best = attempt;
  }
  return last && best && last->times_us[row] <= margin * best->times_us[row] ? last : best;
}

static void rule_write(FILE *out, const struct tuning *tuning, const struct attempt *attempt, size_t first,
                       size_t end) {
  const struct bench *bench = tuning->bench;
  struct tune_rule rule;
  char line[LINE_BYTES];
  memset(&rule, 0, sizeof rule);
  rule.func = tuning->func;
  rule.rank_count = (uint32_t)tuning->options.rank_count;
  rule.node_count = (uint32_t)tuning->options.node_count;
  rule.algo = (uint8_t)names_find(names_algo, ALGO_COUNT, attempt->option.algo, strlen(attempt->option.algo));
  rule.proto =
      (uint8_t)names_find(names_proto, PROTO_COUNT, attempt->option.proto, strlen(attempt->option.proto));
  rule.channel_count = attempt->channels;
  rule.from_bytes = bench->rows[first].bytes;
  rule.to_bytes = end < bench->row_count
                      ? bench->rows[end].bytes
                      : (uint64_t)bench_next_size(&bench->flags, (int64_t)bench->rows[end - 1].bytes);
  tune_rule_text(&rule, line, sizeof line);
  fprintf(out, "%s # %.1f us\n", line, attempt->times_us[first]);
}

/* Neighbouring sizes with one option become one rule; the last rule ends at the next size. */
static void rules_write(FILE *out, const struct tuning *tuning) {
  const size_t rows = tuning->bench->row_count;
  const struct attempt *chosen = NULL;
  size_t first = 0;
  for (size_t row = 0; row < rows; row++) {
    const struct attempt *next = row_choose(tuning, row, chosen);
    if (next == chosen) continue;
    if (chosen) rule_write(out, tuning, chosen, first, row);
    chosen = next;
    first = row;
  }
  if (chosen) rule_write(out, tuning, chosen, first, rows);
}

/* True for a line whose rule the new ones replace. */
static bool line_is_replaced(const struct tuning *tuning, const struct tune_file *file, uint32_t line) {
  for (uint32_t index = 0; index < file->count; index++) {
    const struct tune_rule *rule = &file->rules[index];
    if (rule->line != line) continue;
    return rule->func == tuning->func &&
           (rule->rank_count == 0 || rule->rank_count == (uint32_t)tuning->options.rank_count) &&
           (rule->node_count == 0 || rule->node_count == (uint32_t)tuning->options.node_count);
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

/* The file's current rules: the file must be valid, or not exist. */
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
            "tutti bench: --tune: %s has only one option; take all_reduce, all_gather, reduce_scatter, "
            "broadcast or reduce\n",
            bench->collective->name);
  if (func < 0 || !sizes_check(bench)) return false;
  tuning->bench = bench;
  tuning->func = (uint8_t)func;
  return true;
}

static enum exit_code tuning_run(struct tuning *tuning, const char *text, const struct tune_file *file) {
  const char *path = tuning->bench->flags.tune_path;
  unsetenv("TUTTI_TUNE_FILE"); /* it would override the forced option */
  api->settings_reset();
  enum exit_code code = options_learn(tuning);
  if (code == EXIT_GOOD) code = options_time(tuning);
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
  for (size_t index = 0; index < tuning.attempt_count; index++) os_free(tuning.attempts[index].times_us);
  os_free(file);
  os_free(text);
  return code;
}
