/* runner.c: see runner.h. One loop waits for outputs, ends of children, signals and time limits. */
#include "run/runner.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <glob.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/child.h"
#include "base/os.h"
#include "explain/diagnose.h"
#include "files/records.h"

enum { IDLE_MS = 100, NS_PER_MS = 1000000, ARGUMENTS_MOST = 8 };

/* ---- folders */

static int entry_remove(const char *path, const struct stat *status, int type, struct FTW *place) {
  (void)status, (void)type, (void)place;
  return remove(path) == 0 || errno == ENOENT ? 0 : -1;
}

void run_forget_records(struct run_end *end) {
  if (end->folder[0] != '\0') nftw(end->folder, entry_remove, 16, FTW_DEPTH | FTW_PHYS);
  end->folder[0] = '\0';
}

static bool folder_make(struct runner *runner) {
  const char *base = os_env("TMPDIR");
  const int bytes = snprintf(runner->folder, sizeof runner->folder, "%s/tutti-run.XXXXXX",
                             base != NULL && *base != '\0' ? base : "/tmp");
  if (bytes < (int)sizeof runner->folder && mkdtemp(runner->folder) != NULL) return true;
  fprintf(stderr, "tutti run: no folder for records in %s: %s; set TMPDIR\n", base != NULL ? base : "/tmp",
          strerror(errno));
  runner->folder[0] = '\0';
  return false;
}

static const char records_are_fine[] =
    "the records show nothing wrong; what failed is the program's own check, or its exit status";

/* What the records of a run say: the sentence of `tutti explain`. */
static void records_look(struct run_end *end, bool failed) {
  char pattern[PATH_MAX + 16];
  glob_t found;
  struct records records;
  struct diagnosis diagnosis;
  snprintf(pattern, sizeof pattern, "%s/*.trace", end->folder);
  if (glob(pattern, 0, NULL, &found) != 0) return;
  end->recorded = true;
  if (failed && records_read("run", RECORDS_DIAGNOSED, (int)found.gl_pathc, found.gl_pathv, &records)) {
    if (diagnose_files(records.files, records.count, &diagnosis))
      snprintf(end->sentence, sizeof end->sentence, "%s",
               diagnosis.kind != DIAGNOSIS_FINE ? diagnosis.sentence : records_are_fine);
    records_free(&records);
  }
  globfree(&found);
}

/* ---- begin and end */

bool runner_open(struct runner *runner, uint32_t jobs) {
  static const int handled[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGCHLD};
  sigset_t set;
  sigemptyset(&set);
  for (size_t i = 0; i < sizeof handled / sizeof handled[0]; i++) sigaddset(&set, handled[i]);
  runner->child_count = jobs;
  runner->children = (struct run_child *)os_alloc(jobs * sizeof *runner->children);
  sigprocmask(SIG_BLOCK, &set, &runner->mask);
  runner->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  prctl(PR_SET_CHILD_SUBREAPER, 1); /* what a run leaves behind becomes a child of this process */
  if (runner->children != NULL && runner->signals >= 0) return folder_make(runner);
  fprintf(stderr, "tutti run: signals and memory: %s\n", strerror(errno));
  return false;
}

static void child_end(struct run_child *child) {
  if (child->pid > 0) kill(-child->pid, SIGKILL);
}

/* Frees the place of a child that has ended and is reaped. */
static struct run_end *child_take(struct runner *runner, struct run_child *child) {
  struct run_end *end = child->end;
  close(child->output_fd);
  memset(child, 0, sizeof *child);
  runner->running -= 1;
  return end;
}

void runner_close(struct runner *runner) {
  for (uint32_t i = 0; runner->children != NULL && i < runner->child_count; i++) {
    struct run_child *child = &runner->children[i];
    if (child->pid == 0) continue;
    child_end(child);
    waitpid(child->pid, NULL, 0);
    struct run_end *end = child_take(runner, child);
    run_forget_records(end);
    os_free(end);
  }
  child_leftovers_end(NULL);
  if (runner->folder[0] != '\0') rmdir(runner->folder);
  if (runner->signals >= 0) close(runner->signals);
  sigprocmask(SIG_SETMASK, &runner->mask, NULL);
  os_free(runner->children);
}

/* ---- starting */

/* The command line of a run: the program, or `tutti launch` with it. */
static char **arguments_make(const struct runner *runner, char *own, char *count) {
  static char launch[] = "launch", flag[] = "-n";
  size_t given = 0, used = 0;
  while (runner->arguments[given] != NULL) given++;
  char **arguments = (char **)os_alloc((given + ARGUMENTS_MOST) * sizeof *arguments);
  if (arguments == NULL) return NULL;
  if (runner->rank_count > 0) {
    snprintf(count, 16, "%u", runner->rank_count);
    arguments[used++] = own;
    arguments[used++] = launch;
    arguments[used++] = flag;
    arguments[used++] = count;
  }
  memcpy(arguments + used, runner->arguments, (given + 1) * sizeof *arguments);
  return arguments;
}

static int child_run(const struct runner *runner, struct run_child *child) {
  char seed[48], emu[DRAW_TEXT_BYTES + 16], trace[PATH_MAX + 64], own[PATH_MAX], count[16];
  static const char events[] = "TUTTI_EVENTS", moves[] = "TUTTI_MOVES"; /* runs would write to one file */
  const char *const extras[] = {seed, trace, events, moves, emu, NULL};
  int both[2], why = 0;
  const ssize_t length = readlink("/proc/self/exe", own, sizeof own - 1);
  own[length > 0 ? length : 0] = '\0';
  snprintf(seed, sizeof seed, "TUTTI_SEED=%llu", (unsigned long long)child->end->draw.seed);
  snprintf(trace, sizeof trace, "TUTTI_TRACE=%s/tutti.%%h.%%p.%%r.trace", child->end->folder);
  memcpy(emu, "TUTTI_EMU=", sizeof "TUTTI_EMU=");
  draw_emu_text(&child->end->draw, runner->own_emu, emu + strlen(emu), DRAW_TEXT_BYTES);
  if (emu[strlen("TUTTI_EMU=")] == '\0') emu[strlen("TUTTI_EMU")] = '\0'; /* not set */
  char **arguments = arguments_make(runner, own, count);
  const int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (arguments == NULL || nothing < 0 || pipe2(both, O_CLOEXEC) != 0) {
    if (nothing >= 0) close(nothing);
    os_free(arguments);
    return ENOMEM;
  }
  const struct child_plan plan = {arguments, extras, nothing, both[1], both[1], &runner->mask, 0, 0, true};
  why = child_start(&plan, &child->pid);
  close(both[1]);
  close(nothing);
  os_free(arguments);
  child->output_fd = both[0];
  if (why == 0) fcntl(both[0], F_SETFL, O_NONBLOCK);
  else close(both[0]);
  return why;
}

bool runner_start(struct runner *runner, const struct draw *draw, uint64_t index) {
  struct run_child *child = runner->children;
  while (child->pid != 0) child++;
  child->end = (struct run_end *)os_alloc(sizeof *child->end);
  int why = child->end == NULL ? ENOMEM : 0;
  if (why == 0) {
    child->end->draw = *draw;
    snprintf(child->end->folder, sizeof child->end->folder, "%.*s/seed%llu.%llu", PATH_MAX - 64,
             runner->folder, (unsigned long long)draw->seed, (unsigned long long)++runner->begun);
    why = mkdir(child->end->folder, 0700) != 0 ? errno : child_run(runner, child);
  }
  if (why == 0) {
    child->index = index;
    child->begin_ns = os_time_ns();
    runner->running += 1;
    return true;
  }
  fprintf(stderr, "tutti run: %s cannot be run: %s\n", runner->arguments[0], strerror(why));
  if (child->end != NULL) run_forget_records(child->end);
  os_free(child->end);
  memset(child, 0, sizeof *child);
  return false;
}

/* ---- waiting */

static void output_add(struct run_output *output, const char *bytes, size_t count) {
  for (size_t i = 0; i < count; i++, output->bytes++) {
    if (output->bytes < RUN_HEAD_BYTES) output->head[output->bytes] = bytes[i];
    output->tail[output->bytes % RUN_TAIL_BYTES] = bytes[i];
  }
}

/* Reads what is there, at most so much that other children get their turn. */
static void output_read(struct run_child *child) {
  char bytes[65536];
  for (int turn = 0; turn < 16; turn++) {
    const ssize_t got = read(child->output_fd, bytes, sizeof bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return;
    output_add(&child->end->output, bytes, (size_t)got);
  }
}

static void signals_read(struct runner *runner) {
  struct signalfd_siginfo info;
  while (read(runner->signals, &info, sizeof info) == (ssize_t)sizeof info)
    if (info.ssi_signo != SIGCHLD) runner->ended_by = (int)info.ssi_signo;
}

/* Sleeps until something happens, at most IDLE_MS. A child's output that is at its end no longer wakes. */
static void runner_sleep(struct runner *runner) {
  struct pollfd *polls = (struct pollfd *)os_alloc((runner->child_count + 1) * sizeof *polls);
  nfds_t count = 0;
  if (polls == NULL) return;
  polls[count++] = (struct pollfd){runner->signals, POLLIN, 0};
  for (uint32_t i = 0; i < runner->child_count; i++)
    if (runner->children[i].pid != 0)
      polls[count++] = (struct pollfd){runner->children[i].output_fd, POLLIN, 0};
  poll(polls, count, IDLE_MS);
  bool readable = false;
  for (nfds_t i = 0; i < count; i++) readable = readable || (polls[i].revents & POLLIN) != 0;
  if (!readable && count > 1) poll(polls, 1, 1);
  os_free(polls);
}

/* The child has ended, or is ended because its time is over: its group is killed before it is reaped, while
 * its number belongs to nobody else. */
static bool child_done(const struct runner *runner, struct run_child *child) {
  siginfo_t info = {.si_pid = 0};
  if (child->pid == 0) return false;
  output_read(child);
  const uint64_t spent_ns = os_time_ns() - child->begin_ns;
  const bool ended =
      waitid(P_PID, (id_t)child->pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0;
  if (!ended && !child->dropped && spent_ns < runner->timeout_ns) return false;
  child->end->timed_out = !ended && !child->dropped;
  /* The records of a run that hangs say more while it waits. */
  if (child->end->timed_out) records_look(child->end, true);
  child_end(child);
  while (waitpid(child->pid, &child->end->status, 0) < 0 && errno == EINTR) continue;
  output_read(child);
  child->end->ns = spent_ns;
  return true;
}

struct run_end *runner_wait(struct runner *runner, uint64_t *index, void (*idle)(void *), void *argument) {
  while (runner->running > 0) {
    signals_read(runner);
    if (runner->ended_by != 0) return NULL;
    for (uint32_t i = 0; i < runner->child_count; i++) {
      struct run_child *child = &runner->children[i];
      if (!child_done(runner, child)) continue;
      const bool dropped = child->dropped;
      *index = child->index;
      struct run_end *end = child_take(runner, child);
      if (!dropped && !end->timed_out) records_look(end, !run_passed(end));
      if (dropped || run_passed(end)) run_forget_records(end);
      if (!dropped) return end;
      os_free(end);
    }
    if (idle != NULL) idle(argument);
    if (runner->running > 0) runner_sleep(runner);
  }
  return NULL;
}

void runner_drop_above(struct runner *runner, uint64_t index) {
  for (uint32_t i = 0; i < runner->child_count; i++)
    if (runner->children[i].pid != 0 && runner->children[i].index > index) runner->children[i].dropped = true;
}

struct run_end *runner_once(struct runner *runner, const struct draw *draw) {
  uint64_t index;
  return runner_start(runner, draw, 0) ? runner_wait(runner, &index, NULL, NULL) : NULL;
}
