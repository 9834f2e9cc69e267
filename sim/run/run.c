/* run.c: the verb `run`: runs a program under the emulator once for each seed, until one run fails; finds
 * the simplest settings with which it fails in the same way; and reports the failure with its diagnosis and
 * the command that repeats it. Which failure is reported depends on the seeds alone, not on how many runs are
 * under way at a time. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "base/array.h"
#include "base/child.h"
#include "base/os.h"
#include "progress.h"
#include "run/report.h"
#include "verb.h"

enum { RANKS_MOST = 4096, JOBS_MOST = 1024, SEEDS_MOST = 1000000, SHRINK_TIMEOUTS = 5, OTHER_SEEDS = 2 };
enum { LINES_SHOWN = 20, COMMAND_BYTES = 8192, LINE_BYTES = 512 };
#define NS_PER_SECOND 1000000000ull
#define SHRINK_SECONDS 60

struct run_flags {
  int64_t jobs, timeout_seconds, rank_count;
  const char *seeds, *junit;
  bool keep_going, no_shrink, json, verbose;
};

#define AT(member) offsetof(struct run_flags, member)
static const struct option_row rows[] = {
    {'s', "seeds", "SEEDS", OPTION_TEXT, AT(seeds), 0, 0,
     "seeds to run: numbers and ranges, as 1-1000 or 3,7,20-29 (default 1-100)"},
    {'j', "jobs", "N", OPTION_INT, AT(jobs), 1, JOBS_MOST, "runs at a time (default: the cores to use)"},
    {'n', "ranks", "N", OPTION_INT, AT(rank_count), 1, RANKS_MOST,
     "each run is a job of N processes, as `tutti launch -n N` starts them"},
    {'t', "timeout", "SECONDS", OPTION_INT, AT(timeout_seconds), 1, 86400,
     "a run that takes longer is ended, and has failed (default 60)"},
    {'k', "keep-going", NULL, OPTION_FLAG, AT(keep_going), 0, 0,
     "run all seeds, and report each failure; only the first one is shrunk"},
    {0, "no-shrink", NULL, OPTION_FLAG, AT(no_shrink), 0, 0,
     "do not look for simpler settings that fail in the same way"},
    {0, "junit", "FILE", OPTION_TEXT, AT(junit), 0, 0,
     "write the results as JUnit XML, a test case for each seed that was run"},
    {'J', "json", NULL, OPTION_FLAG, AT(json), 0, 0, "print JSON"},
    {'v', "verbose", NULL, OPTION_FLAG, AT(verbose), 0, 0, "print the settings and the time of each run"},
};
static const struct option_set options = {"run", rows, sizeof rows / sizeof rows[0], true, false, false};

struct run {
  struct run_flags flags;
  struct runner runner;
  struct sweep sweep;
  struct progress progress;
  uint64_t begin_ns, first_failed; /* first_failed: an index; UINT64_MAX: none */
  bool recorded;                   /* a run has made a record */
};

/* ---- seeds */

static bool seeds_refuse(const char *text) {
  fprintf(stderr,
          "tutti run: --seeds %s: must be numbers and ranges, as 1-1000 or 3,7,20-29; %d seeds at most\n",
          text, SEEDS_MOST);
  return false;
}

/* A number of up to 18 digits; *text then points behind it. */
static bool seed_read(const char **text, uint64_t *seed) {
  const size_t digits = strspn(*text, "0123456789");
  if (digits == 0 || digits > 18) return false;
  *seed = strtoull(*text, NULL, 10);
  *text += digits;
  return true;
}

static bool seeds_read(struct run *run, const char *text) {
  struct sweep *sweep = &run->sweep;
  uint64_t capacity = 0;
  for (const char *at = text;; at++) {
    uint64_t first, last;
    if (!seed_read(&at, &first)) return seeds_refuse(text);
    last = first;
    if (*at == '-' && (at++, !seed_read(&at, &last))) return seeds_refuse(text);
    if (last < first || last - first >= SEEDS_MOST - sweep->count) return seeds_refuse(text);
    if (!array_grow_long(&sweep->results, &capacity, sweep->count + last - first + 1,
                         sizeof *sweep->results)) {
      fprintf(stderr, "tutti run: the seeds: out of memory\n");
      return false;
    }
    for (uint64_t seed = first;; seed++) {
      sweep->results[sweep->count++] =
          (struct run_result){draw_settings(seed, sweep->own_emu), 0, RUN_NOT_RUN, NULL};
      if (seed == last) break;
    }
    if (*at == '\0') return true;
    if (*at != ',') return seeds_refuse(text);
  }
}

/* ---- the sweep */

static void progress_show(void *argument) {
  struct run *run = (struct run *)argument;
  const uint64_t done = run->sweep.passed + run->sweep.failed, now_ns = os_time_ns();
  const double seconds = (double)(now_ns - run->begin_ns) / 1e9;
  snprintf(run->progress.what, sizeof run->progress.what, "%.1f runs a second, %" PRIu64 " failed",
           seconds > 0 ? (double)done / seconds : 0, run->sweep.failed);
  progress_say(&run->progress, done, now_ns);
}

static void result_say(const struct run *run, const struct run_end *end) {
  char keys[DRAW_TEXT_BYTES], reason[LINE_BYTES];
  draw_keys_text(&end->draw, keys, sizeof keys);
  run_end_text(end, run->sweep.timeout_ns, reason, sizeof reason);
  fprintf(stderr, "tutti run: seed %" PRIu64 ": %s in %.2f s, %s%s\n", end->draw.seed,
          run_passed(end) ? "passed" : reason, (double)end->ns / 1e9,
          keys[0] != '\0' ? "TUTTI_EMU=" : "default settings", keys);
}

/* Takes the result of a run. */
static void result_take(struct run *run, struct run_end *end, uint64_t index) {
  struct run_result *result = &run->sweep.results[index];
  result->ns = end->ns;
  run->recorded = run->recorded || end->recorded;
  if (run->flags.verbose) {
    progress_clear(&run->progress);
    result_say(run, end);
  }
  if (run_passed(end)) {
    result->state = RUN_PASSED;
    run->sweep.passed += 1;
    os_free(end);
    return;
  }
  result->state = RUN_FAILED;
  result->failure = end;
  run->sweep.failed += 1;
  if (index < run->first_failed) run->first_failed = index;
  if (!run->flags.keep_going) runner_drop_above(&run->runner, run->first_failed);
}

/* True after a sentence: further runs would be like this one. */
static bool is_useless(struct run *run, const struct run_end *end) {
  const char *program = run->sweep.arguments[0];
  char lines[LINE_BYTES];
  const int code = WIFEXITED(end->status) ? WEXITSTATUS(end->status) : -1;
  const bool unknown = run->sweep.rank_count > 0 && (code == 126 || code == 127); /* of `tutti launch` */
  if (end->recorded || run->recorded || end->timed_out || (code != 0 && !unknown)) return false;
  progress_clear(&run->progress);
  run_last_lines(&end->output, 1, lines, sizeof lines);
  if (unknown) fprintf(stderr, "tutti run: %s cannot be run: %s\n", program, lines);
  else
    fprintf(
        stderr,
        "tutti run: %s made no communicator of tutti, so seeds change nothing: it calls no NCCL, or is not "
        "linked with tutti's libnccl (`tutti doctor %s` says which one it loads)\n",
        program, program);
  return true;
}

/* The runs with lower seeds than a failed one go on to their ends, so that the first failure is always the
 * same. EXIT_GOOD unless the program cannot be run, or has nothing to do with the library. */
static enum exit_code sweep_run(struct run *run) {
  uint64_t next = 0, index = 0;
  for (;;) {
    const bool more = run->flags.keep_going || run->first_failed == UINT64_MAX;
    while (more && next < run->sweep.count && run->runner.running < run->runner.child_count) {
      if (!runner_start(&run->runner, &run->sweep.results[next].draw, next)) return EXIT_USAGE;
      next += 1;
    }
    struct run_end *end = runner_wait(&run->runner, &index, progress_show, run);
    if (end == NULL) return EXIT_GOOD;
    const bool useless = is_useless(run, end);
    result_take(run, end, index);
    if (useless) return EXIT_USAGE;
  }
}

/* ---- shrinking */

static bool same_failure(const struct run_end *one, const struct run_end *other) {
  char first[LINE_BYTES], second[LINE_BYTES];
  if (run_passed(other) || one->timed_out != other->timed_out) return false;
  if (!one->timed_out && one->status != other->status) return false;
  run_report_line(&one->output, first, sizeof first);
  run_report_line(&other->output, second, sizeof second);
  return strcmp(first, second) == 0;
}

/* True if a run with these settings fails as `failure` did. */
static bool fails_with(struct run *run, const struct run_end *failure, const struct draw *draw) {
  struct run_end *end = runner_once(&run->runner, draw);
  if (end == NULL) return false;
  const bool same = same_failure(failure, end);
  run->sweep.shrunk.tries += 1;
  run_forget_records(end);
  os_free(end);
  return same;
}

/* Runs that hang take their whole time, so the search ends after some time. */
static void settings_shrink(struct run *run, const struct run_end *failure, uint64_t until_ns) {
  struct run_shrunk *shrunk = &run->sweep.shrunk;
  struct draw simpler;
  for (uint32_t step = 0; draw_simpler(&shrunk->draw, step, &simpler); step++) {
    if (run->runner.ended_by != 0 || os_time_ns() > until_ns) return;
    while (memcmp(&simpler, &shrunk->draw, sizeof simpler) != 0 && fails_with(run, failure, &simpler)) {
      shrunk->draw = simpler;
      draw_simpler(&shrunk->draw, step, &simpler);
    }
  }
}

static void failure_shrink(struct run *run) {
  struct run_shrunk *shrunk = &run->sweep.shrunk;
  const struct run_end *failure = run->sweep.results[run->first_failed].failure;
  const uint64_t until_ns =
      os_time_ns() + SHRINK_TIMEOUTS * run->sweep.timeout_ns + SHRINK_SECONDS * NS_PER_SECOND;
  shrunk->draw = failure->draw;
  if (run->flags.no_shrink || run->runner.ended_by != 0) return;
  progress_begin(&run->progress, "looking for simpler settings", 0, os_time_ns());
  shrunk->repeats = fails_with(run, failure, &failure->draw);
  if (shrunk->repeats) settings_shrink(run, failure, until_ns);
  if (!shrunk->repeats || !draw_is_default(&shrunk->draw)) return;
  struct draw other = shrunk->draw;
  shrunk->always = true;
  for (uint32_t i = 0; i < OTHER_SEEDS && shrunk->always && run->runner.ended_by == 0; i++) {
    other.seed += 1;
    shrunk->always = os_time_ns() < until_ns && fails_with(run, failure, &other);
  }
}

/* ---- the report */

static void failure_print(const struct run *run, const struct run_end *end, const struct draw *draw) {
  char reason[LINE_BYTES], keys[DRAW_TEXT_BYTES], command[COMMAND_BYTES], lines[RUN_TAIL_BYTES];
  draw_keys_text(&end->draw, keys, sizeof keys);
  run_end_text(end, run->sweep.timeout_ns, reason, sizeof reason);
  printf("seed %" PRIu64 " failed: %s after %.2f s, with %s%s\n", end->draw.seed, reason,
         (double)end->ns / 1e9, keys[0] != '\0' ? "TUTTI_EMU=" : "the default settings", keys);
  run_last_lines(&end->output, LINES_SHOWN, lines, sizeof lines);
  if (lines[0] == '\0') printf("  (it printed nothing)\n");
  for (char *line = lines, *rest = NULL; (line = strtok_r(line, "\n", &rest)) != NULL; line = NULL)
    printf("  | %.*s\n", LINE_BYTES, line);
  if (end->sentence[0] != '\0') printf("diagnosis: %s\n", end->sentence);
  else if (!end->recorded) printf("diagnosis: none, as it ended before it made a communicator\n");
  sweep_command(&run->sweep, draw, command, sizeof command);
  printf("reproduce: %s\n", command);
  if (end->recorded) printf("records:   %s\n", end->folder);
}

static void shrunk_print(const struct run *run, const struct run_end *failure) {
  const struct run_shrunk *shrunk = &run->sweep.shrunk;
  char keys[DRAW_TEXT_BYTES];
  draw_keys_text(&shrunk->draw, keys, sizeof keys);
  if (shrunk->tries == 0) return;
  if (!shrunk->repeats)
    printf(
        "The same settings did not fail in the same way again: the order of events is not the seed's alone "
        "(several processes, threads mode, or something outside the program).\n");
  else if (shrunk->always)
    printf(
        "It fails with the default settings too, and with other seeds: the order of events does not "
        "matter.\n");
  else if (draw_is_default(&shrunk->draw) && !draw_is_default(&failure->draw))
    printf("It fails with the default settings too, with this seed.\n");
  else if (!draw_is_default(&shrunk->draw))
    printf("It takes TUTTI_EMU=%s to fail in the same way (%u runs).\n", keys, shrunk->tries);
}

static void sweep_print(const struct run *run) {
  const struct sweep *sweep = &run->sweep;
  uint64_t defaults = 0;
  for (uint64_t i = 0; i < sweep->count; i++) {
    const struct run_result *result = &sweep->results[i];
    defaults += result->state == RUN_PASSED && draw_is_default(&result->draw);
    if (result->state != RUN_FAILED) continue;
    const bool first = i == run->first_failed;
    if (first || run->flags.keep_going)
      failure_print(run, result->failure, first ? &sweep->shrunk.draw : &result->draw);
    if (first) shrunk_print(run, result->failure);
  }
  const uint64_t left = sweep->count - sweep->passed - sweep->failed;
  printf("%" PRIu64 " seeds passed, %" PRIu64 " of them with the default settings; %" PRIu64 " failed",
         sweep->passed, defaults, sweep->failed);
  if (left > 0) printf("; %" PRIu64 " were not run", left);
  printf(" (%.1f s)\n", (double)sweep->ns / 1e9);
}

/* Only the first failure counts unless all are asked for, as others depend on what was under way. */
static void failures_drop_others(struct run *run) {
  for (uint64_t i = 0; !run->flags.keep_going && i < run->sweep.count; i++) {
    struct run_result *result = &run->sweep.results[i];
    if (i <= run->first_failed || result->state == RUN_NOT_RUN) continue;
    run->sweep.passed -= result->state == RUN_PASSED;
    run->sweep.failed -= result->state == RUN_FAILED;
    if (result->failure != NULL) run_forget_records(result->failure);
    os_free(result->failure);
    result->failure = NULL;
    result->state = RUN_NOT_RUN;
  }
}

static bool junit_write(const struct run *run) {
  if (run->flags.junit == NULL || sweep_junit(&run->sweep, run->flags.junit)) return true;
  fprintf(stderr, "tutti run: --junit %s: cannot be written: %s\n", run->flags.junit, strerror(errno));
  return false;
}

static enum exit_code run_report(struct run *run) {
  const bool written = junit_write(run);
  if (run->flags.json) sweep_json(&run->sweep);
  else sweep_print(run);
  if (run->runner.ended_by != 0) {
    fprintf(stderr, "tutti run: ended by signal %d, %s\n", run->runner.ended_by,
            strsignal(run->runner.ended_by));
    return (enum exit_code)(128 + run->runner.ended_by);
  }
  if (run->sweep.failed > 0) return EXIT_WRONG;
  return written ? EXIT_GOOD : EXIT_ENVIRONMENT;
}

static enum exit_code run_sweep(struct run *run) {
  if (!junit_write(run)) return EXIT_ENVIRONMENT; /* now, not after an hour */
  run->begin_ns = os_time_ns();
  progress_open(&run->progress, "run", "seeds", stderr, false, run->begin_ns);
  progress_begin(&run->progress, "starting", run->sweep.count, run->begin_ns);
  const enum exit_code code = sweep_run(run);
  if (code != EXIT_GOOD) return code;
  if (run->runner.ended_by == 0) failures_drop_others(run);
  if (run->first_failed != UINT64_MAX) failure_shrink(run);
  progress_clear(&run->progress);
  run->sweep.ns = os_time_ns() - run->begin_ns;
  return run_report(run);
}

static void run_drop(struct run *run) {
  for (uint64_t i = 0; i < run->sweep.count; i++) os_free(run->sweep.results[i].failure);
  os_free(run->sweep.results);
}

static enum exit_code run_verb(int argc, char **argv) {
  struct run run;
  int operand;
  enum exit_code code;
  memset(&run, 0, sizeof run);
  run.flags.jobs = child_core_count() < JOBS_MOST ? child_core_count() : JOBS_MOST;
  run.flags.timeout_seconds = 60;
  run.flags.seeds = "1-100";
  run.first_failed = UINT64_MAX;
  if (!verb_parse(&options, argc, argv, &run.flags, &operand, &code)) return code;
  if (operand >= argc) {
    fprintf(stderr,
            "tutti run: needs a program: tutti run --seeds 1-1000 ./program ... (`tutti help run`)\n");
    return EXIT_USAGE;
  }
  const char *emu = os_env("TUTTI_EMU");
  if (!verb_settings_good("run")) return EXIT_USAGE;
  run.sweep.own_emu = run.runner.own_emu = emu != NULL ? emu : "";
  run.sweep.arguments = run.runner.arguments = argv + operand;
  run.sweep.rank_count = run.runner.rank_count = (uint32_t)run.flags.rank_count;
  run.sweep.timeout_ns = run.runner.timeout_ns = (uint64_t)run.flags.timeout_seconds * NS_PER_SECOND;
  run.runner.signals = -1;
  code = EXIT_USAGE;
  if (seeds_read(&run, run.flags.seeds)) {
    code = runner_open(&run.runner, (uint32_t)run.flags.jobs) ? run_sweep(&run) : EXIT_ENVIRONMENT;
    progress_clear(&run.progress);
    runner_close(&run.runner);
  }
  run_drop(&run);
  return code;
}

const struct verb verb_run = {
    "run",
    "run a program under many seeds and settings of the emulator, and shrink its first failure",
    "[FLAGS] PROGRAM [ARGUMENTS]",
    "PROGRAM",
    "  tutti run --seeds 1-40 build/examples/init_all\n"
    "  tutti run -n 4 --seeds 1-4 --junit results.xml build/examples/launched\n"
    "  TUTTI_EMU=devices=4 tutti run --seeds 1-20 --json build/examples/thread_per_rank\n",
    "Runs PROGRAM, which is linked with the emulator, once for each seed, several runs at a time. The seed "
    "chooses the order of events (TUTTI_SEED); for most seeds it also chooses settings of TUTTI_EMU that "
    "make "
    "rare orders frequent: fewer slots, shorter chunks, other numbers of channels, late data, weakly ordered "
    "memory. Seeds up to 8, and every fourth one, keep the default settings. Keys that TUTTI_EMU has in the "
    "environment stay as they are. --verbose prints the settings of each run.\n"
    "\n"
    "A run fails if its exit status is not 0, or if it takes longer than --timeout. `tutti run` then starts "
    "no "
    "further runs, waits for those with lower seeds, and reports the failure of the lowest seed, which does "
    "not "
    "depend on --jobs. It repeats that run with simpler settings as long as it fails in the same way: the "
    "same "
    "exit status, and the same first warning of the library, or else the same last line.\n"
    "\n"
    "The report has the last lines that the program printed, what `tutti explain` says of the run's records, "
    "the command that repeats the run, and the folder of its records, which is kept; those of other runs are "
    "removed. The folder is in TMPDIR, or /tmp.\n"
    "\n"
    "Each run has a process group of its own, which is ended with it, reads nothing, and may print any "
    "amount. "
    "SIGINT and SIGTERM end all runs, and print what was found so far.\n"
    "\n"
    "The exit status is 0 if all runs passed, 1 if one failed, 2 if the command line is wrong, or PROGRAM "
    "cannot be run or makes no communicator, and 128 and its number if a signal ended the sweep.\n",
    &options,
    run_verb,
};
