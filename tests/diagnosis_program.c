/* diagnosis_program.c: executes runs with a fault given by a number (diagnosis_case.h), each in a process of
 * its own, and compares the diagnosis of their records with the injected fault and its root cause.
 *
 *   diagnosis_program FIRST COUNT [OPTION VALUE...]
 *
 *   --jobs N       runs in parallel (default 2)
 *   --keep FOLDER  keeps the records there, as SEED.RANK
 *   --replay PATH  a program called as `PATH replay FILES` for each run; it exits with 0 if the replay
 * reached the recorded state
 *
 * Prints a line for each wrong diagnosis, `seed N: ...`, and a table: runs per diagnosis, found, right,
 * precision, recall. Status: 0 if each precision and recall is 0.95 or more. */
#include <fcntl.h>
#include <glob.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "base/os.h"
#include "explain/diagnose.h"
#include "diagnosis_case.h"

#define LABEL_BYTES 32
#define LABELS_MOST 40
#define RANK_ANY (DIAGNOSIS_NOBODY - 1)
#define GOOD 0.95
#define DEADLINE_SECONDS 60

static struct {
  uint64_t first, count;
  uint32_t jobs;
  const char *keep, *replay;
  char folder[256], programs[4096]; /* where records go; the directory of rank_program */
} wanted = {.jobs = 2};

/* The run is set by TUTTI_EMU. */
static bool fault_is_emu(enum injected fault) {
  return (fault >= INJECTED_FREEZE && fault < INJECTED_DIED) || fault == INJECTED_SLOW_LINK;
}

/* ---- the expected diagnosis ---- */

struct meant {
  char label[LABEL_BYTES];
  uint32_t rank, last; /* the root cause is one of these; RANK_ANY: any rank */
  uint32_t also;       /* or this rank */
};

/* The diagnosis's name; with more detail for mismatches, failed inits and slow links. */
static void label_of(const struct diagnosis *diagnosis, char out[LABEL_BYTES]) {
  const bool special = diagnosis->kind == DIAGNOSIS_MISMATCH ||
                       (diagnosis->detail != NULL && strcmp(diagnosis->detail, "rendezvous") == 0);
  const bool link = diagnosis->kind == DIAGNOSIS_SLOW && strcmp(diagnosis->detail, "link") == 0;
  snprintf(out, LABEL_BYTES, "%s",
           link      ? "slow link"
           : special ? diagnosis->detail
                     : diagnosis_name(diagnosis->kind));
}

static const char *const labels_meant[INJECTED_KINDS] = {
    "fine",     "not arrived",  "not arrived", "not arrived",  "collective", "count",      "type",
    "operator", "root",         "order",       "communicator", "alone",      "alone",      "count",
    "refused",  "not launched", "not started", "cycle",        "slow",       "channel",    "counter",
    "counter",  "proxy",        "proxy",       "failed",       "failed",     "fine",       "proxy",
    "proxy",    "died",         "absent",      "rendezvous",   "slow link",  "not arrived"};

/* The two ranks of `fault '...' happens ... from rank A to rank B`, in the run's log. */
static bool log_read(const char *path, uint32_t *from, uint32_t *to) {
  size_t bytes = 0;
  char *text = os_file_read(path, &bytes);
  if (text == NULL) return false;
  const char *line = strstr(text, "fault '");
  const char *at = line != NULL ? strstr(line, "from rank ") : NULL;
  const bool found = at != NULL && sscanf(at, "from rank %" SCNu32 " to rank %" SCNu32, from, to) == 2;
  os_free(text);
  return found;
}

/* The outcome that the ranks report: none, a deadlock, or another error. */
static void heard_of(const struct record_file *files, uint32_t count, bool *failed, bool *other) {
  *failed = *other = false;
  for (uint32_t i = 0; i < count; i++)
    for (uint32_t k = 0; k < files[i].view_count; k++) {
      const struct record_comm *comm = files[i].views[k].comm;
      *failed = *failed || comm->error != 0;
      *other = *other || (comm->error != 0 && strncmp(comm->reason, "deadlock", 8) != 0);
    }
}

/* A fault of the emulator may find no target, come too late to matter, or be detected at once. */
static void meant_of_fault(const struct trial *trial, const struct record_file *files, uint32_t count,
                           const char *log_path, struct meant *meant) {
  uint32_t from = RANK_ANY, to = RANK_ANY;
  bool failed, other;
  heard_of(files, count, &failed, &other);
  const bool happened = log_read(log_path, &from, &to);
  meant->rank = meant->last = from;
  meant->also = trial->fault == INJECTED_STOP || trial->fault >= INJECTED_DROP ? to : from;
  const bool slow = trial->fault == INJECTED_SLOW_LINK;
  if (!happened || (!failed && !slow)) snprintf(meant->label, LABEL_BYTES, "fine"), meant->rank = RANK_ANY;
  else if (other) snprintf(meant->label, LABEL_BYTES, "failed"), meant->rank = RANK_ANY;
  if (trial->fault == INJECTED_STOP) meant->rank = RANK_ANY; /* whichever of its connections is diagnosed */
}

static void meant_of(const struct trial *trial, const struct record_file *files, uint32_t count,
                     const char *log_path, struct meant *meant) {
  const uint32_t here = trial->process_count > 0 ? trial->rank_count / trial->process_count : 1;
  snprintf(meant->label, LABEL_BYTES, "%s", labels_meant[trial->fault]);
  meant->also = RANK_ANY;
  meant->rank = meant->last = trial->process_count > 0 ? trial->root_cause / here * here : trial->root_cause;
  if (trial->fault == INJECTED_NOTHING || trial->fault == INJECTED_CYCLE) meant->rank = RANK_ANY;
  if (trial->fault == INJECTED_DIED) meant->last = meant->rank + here - 1;
  /* If it is absent from a message, that message has no partner. */
  if (strcmp(meant->label, "not arrived") == 0 && trial->steps[trial->place].kind == STEP_SHIFT)
    snprintf(meant->label, LABEL_BYTES, "alone");
  /* Either of two ranks may be right, and either end of a message. */
  const bool mismatch = trial->fault >= INJECTED_COLLECTIVE && trial->fault <= INJECTED_ORDER;
  if ((trial->rank_count == 2 && mismatch) || trial->fault == INJECTED_MESSAGE_COUNT)
    meant->also = trial->other;
  if (trial->fault == INJECTED_RECV_ALONE) meant->rank = meant->last = trial->other;
  if (fault_is_emu(trial->fault)) meant_of_fault(trial, files, count, log_path, meant);
}

/* ---- executing a run ---- */

static void run_environment(const struct trial *trial, const char *pattern, const char *log_path) {
  char emu[256], seed[24];
  snprintf(emu, sizeof emu, "mode=%s,devices=%u,nodes=%u,net=%d", trial->threads ? "threads" : "guarded",
           trial->rank_count, trial->node_count, trial->node_count > 1);
  if (fault_is_emu(trial->fault))
    snprintf(emu + strlen(emu), sizeof emu - strlen(emu), ",fault=%s,fault_at=%u",
             trial->fault == INJECTED_SLOW_LINK ? "slow" : injected_names[trial->fault], trial->fault_at);
  if (trial->fault == INJECTED_SEND_ALONE) /* the message must be larger than the slots */
    snprintf(emu + strlen(emu), sizeof emu - strlen(emu), ",slots=2,chunk=1000");
  snprintf(seed, sizeof seed, "%" PRIu64, trial->seed + 1);
  setenv("TUTTI_EMU", emu, 1);
  setenv("TUTTI_SEED", seed, 1);
  setenv("TUTTI_TRACE", pattern, 1);
  setenv("NCCL_DEBUG", "INFO", 1);
  setenv("NCCL_DEBUG_SUBSYS", "NET,COLL", 1);
  setenv("NCCL_DEBUG_FILE", log_path, 1);
  setenv("TUTTI_STALL_SECONDS", "1", 1);
  setenv("NCCL_CHECK_MODE", "LOCAL", 1); /* calls that differ hang here */
}

static void quiet(void) {
  const int nothing = open("/dev/null", O_WRONLY);
  if (nothing < 0) return;
  dup2(nothing, STDOUT_FILENO);
  dup2(nothing, STDERR_FILENO);
  close(nothing);
}

static pid_t rank_program(const struct trial *trial, uint32_t process, const char *id) {
  const uint32_t here = trial->rank_count / trial->process_count;
  const bool dies = process == trial->root_cause / here && trial->fault != INJECTED_NOT_MET;
  char path[4200], rank[16], size[16], count[16], at[16];
  snprintf(path, sizeof path, "%s/rank_program", wanted.programs);
  snprintf(rank, sizeof rank, "%u", process * here);
  snprintf(size, sizeof size, "%u", trial->rank_count);
  snprintf(count, sizeof count, "%u", here);
  snprintf(at, sizeof at, "%u", 1 + trial->place);
  char *const arguments[] = {path,
                             "--rank",
                             rank,
                             "--here",
                             count,
                             "--size",
                             size,
                             "--id",
                             (char *)(uintptr_t)id,
                             "--ops",
                             "all_reduce",
                             "--iterations",
                             "9",
                             dies ? "--kill-at" : NULL,
                             at,
                             NULL};
  const pid_t child = fork();
  if (child != 0) return child;
  quiet();
  execv(path, arguments);
  _exit(126);
}

/* The files that can be read; the caller frees them. */
static struct record_file *files_open(const glob_t *paths, uint32_t *count) {
  struct record_file *files = calloc(paths->gl_pathc + 1, sizeof *files);
  *count = 0;
  for (size_t i = 0; files != NULL && i < paths->gl_pathc; i++) {
    size_t bytes = 0;
    char *memory = os_file_read(paths->gl_pathv[i], &bytes);
    if (memory == NULL) continue;
    if (record_file_read(paths->gl_pathv[i], memory, bytes, NULL, &files[*count]) == ncclSuccess) *count += 1;
    else os_free(memory);
  }
  return files;
}

static void files_close(struct record_file *files, uint32_t count) {
  for (uint32_t i = 0; i < count; i++) {
    os_free((void *)(uintptr_t)files[i].bytes);
    record_file_free(&files[i]);
  }
  free(files);
}

/* Every rank that exists has recorded that it waits in init. */
static bool rendezvous_is_noted(const struct trial *trial, const glob_t *paths) {
  uint32_t count, views = 0;
  struct diagnosis diagnosis;
  struct record_file *files = files_open(paths, &count);
  for (uint32_t i = 0; i < count; i++) views += files[i].view_count;
  const bool noted = views == trial->rank_count - trial->rank_count / trial->process_count &&
                     diagnose_files(files, count, &diagnosis) && diagnosis.detail != NULL &&
                     strcmp(diagnosis.detail, "rendezvous") == 0;
  files_close(files, count);
  return noted;
}

static void rendezvous_wait(const struct trial *trial, const char *pattern) {
  bool noted = false;
  for (int looks = 0; looks < 50 * DEADLINE_SECONDS && !noted; looks++) {
    glob_t found;
    os_sleep_ms(20);
    noted = glob(pattern, 0, NULL, &found) == 0 && rendezvous_is_noted(trial, &found);
    globfree(&found);
  }
}

/* The file of this rank. */
static void file_remove(const char *pattern, uint32_t rank) {
  glob_t paths;
  if (glob(pattern, 0, NULL, &paths) != 0) return;
  for (size_t i = 0; i < paths.gl_pathc; i++) {
    struct record_file file;
    size_t bytes = 0;
    char *memory = os_file_read(paths.gl_pathv[i], &bytes);
    if (memory == NULL || record_file_read("file", memory, bytes, NULL, &file) != ncclSuccess) continue;
    for (uint32_t k = 0; k < file.view_count; k++)
      if (file.views[k].comm->rank == rank) unlink(paths.gl_pathv[i]);
    record_file_free(&file);
    os_free(memory);
  }
  globfree(&paths);
}

/* Runs in a process of its own, so that the ranks' processes are its children. */
_Noreturn static void processes_run(const struct trial *trial, const char *stem) {
  const uint32_t root_cause = trial->root_cause / (trial->rank_count / trial->process_count);
  pid_t children[8] = {0};
  char id[340], pattern[340];
  snprintf(id, sizeof id, "%s-id", stem);
  snprintf(pattern, sizeof pattern, "%s.*", stem);
  for (uint32_t i = 0; i < trial->process_count; i++) {
    if (trial->fault == INJECTED_NOT_MET && i == root_cause && i > 0) continue;
    children[i] = rank_program(trial, i, id);
  }
  if (trial->fault == INJECTED_NOT_MET) {
    rendezvous_wait(trial, pattern);
    for (uint32_t i = 0; i < trial->process_count; i++) /* so that no rank sees another one end */
      if (children[i] > 0) kill(children[i], SIGSTOP);
    for (uint32_t i = 0; i < trial->process_count; i++)
      if (children[i] > 0) kill(children[i], SIGKILL);
  }
  for (uint32_t i = 0; i < trial->process_count; i++)
    if (children[i] > 0) waitpid(children[i], NULL, 0);
  unlink(id);
  if (trial->fault == INJECTED_NO_FILE) {
    file_remove(pattern, trial->root_cause);
  }
  _exit(0);
}

/* False: it did not hang in time, or a call failed that should not fail. */
static bool run_make(const struct trial *trial, const char *stem, const char *log_path) {
  int status = 0;
  char pattern[340];
  const pid_t child = fork();
  if (child == 0) {
    snprintf(pattern, sizeof pattern, "%s.%%r", stem);
    run_environment(trial, pattern, log_path);
    alarm(DEADLINE_SECONDS);
    quiet();
    if (trial->process_count > 0) processes_run(trial, stem);
    trial_run(trial);
  }
  if (child < 0 || waitpid(child, &status, 0) != child) return false;
  return trial->process_count > 0 ? WIFEXITED(status) && WEXITSTATUS(status) == 0
                                  : WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
}

/* ---- comparing the diagnosis ---- */

struct result {
  uint64_t seed;
  char meant[LABEL_BYTES], found[LABEL_BYTES];
  bool right, replayed, told; /* told: print the text */
  char text[DIAGNOSIS_TEXT_BYTES + 128];
};

static void files_check(const struct trial *trial, const glob_t *paths, const char *log_path,
                        struct result *result) {
  uint32_t count;
  struct diagnosis diagnosis;
  struct meant meant;
  struct record_file *files = files_open(paths, &count);
  diagnose_files(files, count, &diagnosis);
  meant_of(trial, files, count, log_path, &meant);
  label_of(&diagnosis, result->found);
  memcpy(result->meant, meant.label, LABEL_BYTES);
  const bool rank = meant.rank == RANK_ANY || diagnosis.rank == meant.also ||
                    (diagnosis.rank >= meant.rank && diagnosis.rank <= meant.last);
  result->right = rank && strcmp(result->meant, result->found) == 0;
  result->told = !result->right;
  snprintf(result->text, sizeof result->text, "%s at rank %d of %u, %s (%u): %s, and not %s: %s",
           injected_names[trial->fault], (int)meant.rank, trial->rank_count,
           trial->threads ? "threads" : "guarded", trial->place, result->found, result->meant,
           diagnosis.sentence);
  files_close(files, count);
}

/* The status of `PATH replay FILES`. */
static int replay(const glob_t *paths) {
  const char **arguments = calloc(paths->gl_pathc + 3, sizeof *arguments);
  int status = -1;
  if (arguments == NULL) return -1;
  arguments[0] = wanted.replay;
  arguments[1] = "replay";
  for (size_t i = 0; i < paths->gl_pathc; i++) arguments[i + 2] = paths->gl_pathv[i];
  const pid_t child = fork();
  if (child == 0) {
    quiet();
    alarm(DEADLINE_SECONDS);
    execv(wanted.replay, (char *const *)(uintptr_t)arguments);
    _exit(126);
  }
  waitpid(child, &status, 0);
  free(arguments);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void seed_try(uint64_t seed, struct result *result) {
  struct trial trial;
  char stem[300], log_path[340], pattern[340];
  glob_t paths;
  memset(result, 0, sizeof *result);
  result->seed = seed;
  trial_draw(&trial, seed);
  snprintf(stem, sizeof stem, "%s/%" PRIu64, wanted.folder, seed);
  snprintf(log_path, sizeof log_path, "%s-log", stem);
  snprintf(pattern, sizeof pattern, "%s.*", stem);
  const bool made = run_make(&trial, stem, log_path);
  glob(pattern, 0, NULL, &paths);
  if (made) files_check(&trial, &paths, log_path, result);
  if (!made) {
    result->told = true;
    snprintf(result->text, sizeof result->text, "%s of %u ranks: was not made", injected_names[trial.fault],
             trial.rank_count);
  }
  const int replayed = made && wanted.replay != NULL ? replay(&paths) : 0;
  result->replayed = replayed == 0;
  if (!result->replayed) fprintf(stderr, "seed %" PRIu64 ": replay ended with %d\n", seed, replayed);
  for (size_t i = 0; i < paths.gl_pathc && wanted.keep == NULL; i++) unlink(paths.gl_pathv[i]);
  unlink(log_path);
  globfree(&paths);
}

/* ---- the table ---- */

static struct row {
  char label[LABEL_BYTES];
  uint32_t meant, found, right;
} rows[LABELS_MOST];
static uint32_t row_count;

static struct row *row_of(const char *label) {
  for (uint32_t i = 0; i < row_count; i++)
    if (strcmp(rows[i].label, label) == 0) return &rows[i];
  if (row_count == LABELS_MOST) return &rows[0];
  snprintf(rows[row_count].label, LABEL_BYTES, "%s", label);
  return &rows[row_count++];
}

static double share(uint32_t part, uint32_t all) { return all > 0 ? (double)part / all : 1; }

static bool table_print(uint32_t runs, uint32_t made, uint32_t replayed) {
  bool good = made == runs;
  uint32_t right = 0;
  printf("%-14s %6s %6s %6s %10s %7s\n", "verdict", "meant", "found", "right", "precision", "recall");
  for (uint32_t i = 0; i < row_count; i++) {
    const struct row *row = &rows[i];
    const double precision = share(row->right, row->found), recall = share(row->right, row->meant);
    printf("%-14s %6u %6u %6u %10.3f %7.3f\n", row->label, row->meant, row->found, row->right, precision,
           recall);
    good = good && precision >= GOOD && recall >= GOOD;
    right += row->right;
  }
  printf("%u runs, %u made, %u right", runs, made, right);
  if (wanted.replay != NULL) printf(", %u replayed", replayed);
  puts("");
  return good && (wanted.replay == NULL || replayed == made);
}

static void worker(uint32_t job, int out) {
  struct result result;
  for (uint64_t i = job; i < wanted.count; i += wanted.jobs) {
    seed_try(wanted.first + i, &result);
    if (write(out, &result, sizeof result) != (ssize_t)sizeof result) _exit(1);
  }
  _exit(0);
}

static bool all_try(void) {
  int ends[2];
  struct result result;
  uint32_t runs = 0, made = 0, replayed = 0;
  if (pipe(ends) != 0) return false;
  for (uint32_t job = 0; job < wanted.jobs; job++)
    if (fork() == 0) worker(job, ends[1]);
  close(ends[1]);
  while (read(ends[0], &result, sizeof result) ==
         (ssize_t)sizeof result) { /* smaller than PIPE_BUF, so written at once */
    runs += 1;
    if (result.told) printf("seed %" PRIu64 ": %s\n", result.seed, result.text);
    if (result.meant[0] == '\0') continue;
    made += 1;
    replayed += result.replayed;
    row_of(result.meant)->meant += 1;
    row_of(result.found)->found += 1;
    row_of(result.meant)->right += result.right;
    fflush(stdout);
  }
  for (uint32_t job = 0; job < wanted.jobs; job++) wait(NULL);
  return table_print(runs, made, replayed) && runs == wanted.count;
}

int main(int argc, char **argv) {
  if (argc < 3 || argc % 2 == 0) return 2;
  wanted.first = strtoull(argv[1], NULL, 10);
  wanted.count = strtoull(argv[2], NULL, 10);
  for (int i = 3; i + 1 < argc; i += 2) {
    if (strcmp(argv[i], "--jobs") == 0) wanted.jobs = (uint32_t)strtoul(argv[i + 1], NULL, 10);
    else if (strcmp(argv[i], "--keep") == 0) wanted.keep = argv[i + 1];
    else if (strcmp(argv[i], "--replay") == 0) wanted.replay = argv[i + 1];
    else return 2;
  }
  snprintf(wanted.programs, sizeof wanted.programs, "%s", argv[0]);
  char *slash = strrchr(wanted.programs, '/');
  if (slash != NULL) *slash = '\0';
  else snprintf(wanted.programs, sizeof wanted.programs, ".");
  snprintf(wanted.folder, sizeof wanted.folder, "%s",
           wanted.keep != NULL ? wanted.keep : "/tmp/verdicts.XXXXXX");
  if (wanted.keep == NULL && mkdtemp(wanted.folder) == NULL) return 3;
  const bool good = all_try();
  if (wanted.keep == NULL) rmdir(wanted.folder);
  return good ? 0 : 1;
}
