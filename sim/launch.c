/* launch.c: the verb `launch`: starts the ranks of a program on this machine, without MPI or any other
 * launcher. No rank outlives it: ranks end when it is killed, when it is told to end, and when one of them
 * fails. It names each failed rank, and exits with the status of the first one. The ranks find each other
 * with the library (tutti_launch_id). */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/child.h"
#include "base/os.h"
#include "base/secret.h"
#include "files/trace_list.h"
#include "tutti.h"
#include "verb.h"

enum { RANKS_MOST = 4096, LINE_BYTES = 8192, VALUE_BYTES = 96, OWN_VALUES = 8 };
#define NS_PER_SECOND 1000000000ull
#define JOB_FORMAT "%016llx"

struct launch_flags {
  int64_t rank_count, grace_seconds;
  struct option_list values;
  bool prefix, keep_going, bind, verbose;
};

static const struct option_row rows[] = {
    {'n', "ranks", "N", OPTION_INT, offsetof(struct launch_flags, rank_count), 1, RANKS_MOST,
     "processes to start (default: as many as there are cores to use)"},
    {'x', "export", "NAME=VALUE", OPTION_LIST, offsetof(struct launch_flags, values), 0, 0,
     "set a variable for all ranks; may be repeated; the whole environment is passed on in any case"},
    {'p', "prefix", NULL, OPTION_FLAG, offsetof(struct launch_flags, prefix), 0, 0,
     "put the rank before each line that it prints: [3] ..., and keep lines whole"},
    {'k', "keep-going", NULL, OPTION_FLAG, offsetof(struct launch_flags, keep_going), 0, 0,
     "let the others go on when a rank fails"},
    {'g', "grace", "SECONDS", OPTION_INT, offsetof(struct launch_flags, grace_seconds), 0, 86400,
     "time between SIGTERM and SIGKILL (default 5)"},
    {'B', "bind", NULL, OPTION_FLAG, offsetof(struct launch_flags, bind), 0, 0,
     "bind each rank to its own share of the cores"},
    {'v', "verbose", NULL, OPTION_FLAG, offsetof(struct launch_flags, verbose), 0, 0,
     "report on standard error each process that is started, and how it ends"},
};
static const struct option_set options = {"launch", rows, sizeof rows / sizeof rows[0], true, false, false};

/* The output of one rank on one of its two descriptors, up to the end of a line. */
struct stream {
  int fd; /* -1: inherited, or closed */
  size_t bytes;
  char line[LINE_BYTES];
};

struct member {
  int pid;
  bool running;
  uint32_t ended_by;      /* a signal of somebody else; 0: none */
  struct stream *streams; /* two with --prefix, else NULL */
};

struct launch_job {
  struct launch_flags flags;
  char **arguments;
  struct member *members;
  uint32_t count, running;
  int signals, port_fd,
      status; /* status: of the first failure, or of the signal to end; 0 while there is none */
  unsigned port;
  uint64_t number, kill_at_ns; /* kill_at_ns 0: no rank has been sent SIGTERM */
  struct secret secret;        /* of the job, if the environment has none */
  bool failed, killed;
  sigset_t mask; /* as it was before */
  struct pollfd *polls;
};

/* ---- what ranks print */

static void line_put(const struct stream *stream, uint32_t rank, bool is_error, size_t bytes) {
  FILE *out = is_error ? stderr : stdout;
  fprintf(out, "[%u] %.*s\n", rank, (int)bytes, stream->line);
  fflush(out);
}

/* Prints the complete lines of a stream's buffer, and the rest if it is full or at its end. */
static void stream_print(struct stream *stream, uint32_t rank, bool is_error, bool is_end) {
  size_t start = 0;
  for (;;) {
    const char *end = (const char *)memchr(stream->line, '\n', stream->bytes);
    if (!end) break;
    start = (size_t)(end - stream->line);
    line_put(stream, rank, is_error, start);
    stream->bytes -= start + 1;
    memmove(stream->line, end + 1, stream->bytes);
  }
  if (stream->bytes == 0 || (!is_end && stream->bytes < sizeof stream->line)) return;
  line_put(stream, rank, is_error, stream->bytes);
  stream->bytes = 0;
}

/* Reads what is available; closes the stream at its end. */
static void stream_read(struct stream *stream, uint32_t rank, bool is_error) {
  for (;;) {
    const ssize_t got = read(stream->fd, stream->line + stream->bytes, sizeof stream->line - stream->bytes);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && errno == EAGAIN) return;
    if (got > 0) stream->bytes += (size_t)got;
    stream_print(stream, rank, is_error, got <= 0);
    if (got > 0) continue;
    close(stream->fd);
    stream->fd = -1;
    return;
  }
}

static void streams_read(struct launch_job *job, bool is_end) {
  for (uint32_t rank = 0; job->flags.prefix && rank < job->count; rank++) {
    for (int i = 0; job->members[rank].streams && i < 2; i++) {
      struct stream *stream = &job->members[rank].streams[i];
      if (stream->fd >= 0) stream_read(stream, rank, i == 1);
      if (is_end && stream->fd >= 0) stream_print(stream, rank, i == 1, true);
    }
  }
}

/* ---- starting */

/* Both ends of a rank's two pipes; the parent's are non-blocking. */
static bool streams_open(struct member *member, int *ends) {
  member->streams = (struct stream *)os_alloc(2 * sizeof *member->streams);
  if (!member->streams) return false;
  member->streams[0].fd = member->streams[1].fd = -1;
  for (int i = 0; i < 2; i++) {
    int both[2];
    if (pipe2(both, O_CLOEXEC) != 0) return false;
    member->streams[i].fd = both[0];
    ends[i] = both[1];
    if (fcntl(both[0], F_SETFL, O_NONBLOCK) != 0) return false;
  }
  return true;
}

/* False if ranks that somebody else starts may join: their secret is TUTTI_SECRET, or none. */
static bool job_is_alone(void) {
  const char *secret = os_env("TUTTI_SECRET"), *comm_id = os_env("NCCL_COMM_ID");
  return (secret == NULL || *secret == '\0') && (comm_id == NULL || *comm_id == '\0');
}

/* Sets TUTTI_RANK and the like, then the variables of -x. */
static void values_write(const struct launch_job *job, uint32_t rank, char (*texts)[VALUE_BYTES],
                         const char **extras) {
  const size_t given = job->flags.values.count;
  size_t count = 0;
  snprintf(texts[0], VALUE_BYTES, "TUTTI_RANK=%u", rank);
  snprintf(texts[1], VALUE_BYTES, "TUTTI_SIZE=%u", job->count);
  snprintf(texts[2], VALUE_BYTES, "TUTTI_LOCAL_RANK=%u", rank);
  snprintf(texts[3], VALUE_BYTES, "TUTTI_LOCAL_SIZE=%u", job->count);
  snprintf(texts[4], VALUE_BYTES, "TUTTI_RENDEZVOUS=127.0.0.1:%u", job->port);
  snprintf(texts[5], VALUE_BYTES, "TUTTI_JOB=" JOB_FORMAT, (unsigned long long)job->number);
  snprintf(texts[6], VALUE_BYTES, "TUTTI_SECRET=");
  for (size_t i = 0, used = strlen(texts[6]); i < SECRET_BYTES; i++, used += 2)
    snprintf(texts[6] + used, VALUE_BYTES - used, "%02x", job->secret.bytes[i]);
  for (; count < OWN_VALUES - 2; count++) extras[count] = texts[count];
  if (job_is_alone()) extras[count++] = texts[6];
  for (size_t i = 0; i < given; i++) {
    if (strchr(job->flags.values.texts[i], '=')) extras[count++] = job->flags.values.texts[i];
  }
  extras[count] = NULL;
}

static int rank_start(struct launch_job *job, uint32_t rank) {
  struct member *member = &job->members[rank];
  char texts[OWN_VALUES][VALUE_BYTES];
  const char *extras[OWN_VALUES + OPTION_LIST_MOST + 1];
  int ends[2] = {-1, -1}, nothing = -1, why = 0;
  struct child_plan plan = {job->arguments, extras, -1, -1, -1, &job->mask, 0, 0, false};
  values_write(job, rank, texts, extras);
  if (rank > 0) plan.input = nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (rank > 0 && nothing < 0) why = errno;
  if (why == 0 && job->flags.prefix && !streams_open(member, ends)) why = errno ? errno : ENOMEM;
  plan.output = ends[0];
  plan.error = ends[1];
  if (job->flags.bind) {
    const uint32_t cores = child_core_count();
    const bool is_shared = job->count > cores;
    plan.core_index = is_shared ? rank % cores : (uint32_t)((uint64_t)cores * rank / job->count);
    plan.core_count = is_shared ? 1 : (uint32_t)((uint64_t)cores * (rank + 1) / job->count) - plan.core_index;
  }
  if (why == 0) why = child_start(&plan, &member->pid);
  if (nothing >= 0) close(nothing);
  for (int i = 0; i < 2; i++) {
    if (ends[i] >= 0) close(ends[i]);
  }
  return why;
}

/* False after one sentence. */
static bool ranks_start(struct launch_job *job) {
  for (uint32_t rank = 0; rank < job->count; rank++) {
    const int why = rank_start(job, rank);
    if (why != 0) {
      fprintf(stderr, "tutti launch: rank %u cannot be started: %s: %s\n", rank, job->arguments[0],
              strerror(why));
      job->failed = true;
      job->status = why == ENOENT ? 127 : why == EACCES || why == ENOEXEC ? 126 : EXIT_ENVIRONMENT;
      return false;
    }
    job->members[rank].running = true;
    job->running++;
    if (job->flags.verbose)
      fprintf(stderr, "tutti launch: rank %u is process %d\n", rank, job->members[rank].pid);
  }
  return true;
}

/* ---- ending */

static void ranks_signal(const struct launch_job *job, int number) {
  for (uint32_t rank = 0; rank < job->count; rank++) {
    if (job->members[rank].running) kill(job->members[rank].pid, number);
  }
}

/* From now on ranks have --grace seconds left. */
static void ranks_hurry(struct launch_job *job) {
  if (job->kill_at_ns == 0)
    job->kill_at_ns = os_time_ns() + (uint64_t)job->flags.grace_seconds * NS_PER_SECOND + 1;
}

/* For `tutti explain`: which process a signal ended, and which one, no record of its own can say. Only if it
 * is one: whoever kills several kills the job, and then the cause is elsewhere. */
static void signal_note(const struct launch_job *job) {
  const char *place = os_env("TUTTI_TRACE");
  const struct member *ended = NULL;
  char name[VALUE_BYTES];
  for (uint32_t rank = 0; rank < job->count; rank++) {
    if (job->members[rank].ended_by == 0) continue;
    if (ended != NULL) return;
    ended = &job->members[rank];
  }
  if (ended == NULL) return;
  for (size_t i = 0; i < job->flags.values.count; i++) {
    const char *text = job->flags.values.texts[i];
    if (strncmp(text, "TUTTI_TRACE=", 12) == 0) place = text + 12;
  }
  snprintf(name, sizeof name, JOB_FORMAT, (unsigned long long)job->number);
  trace_note_signal(place, ended->pid, name, ended->ended_by);
}

/* The signal that has ended a rank and is not this launcher's; 0: there is none. */
static uint32_t signal_of_others(const struct launch_job *job, int status) {
  if (!WIFSIGNALED(status)) return 0;
  const bool own = WTERMSIG(status) == SIGKILL ? job->killed : job->kill_at_ns != 0;
  return own ? 0 : (uint32_t)WTERMSIG(status);
}

static void failure_note(struct launch_job *job, uint32_t rank, int status) {
  const bool is_first = !job->failed;
  const char *after = is_first && !job->flags.keep_going && job->running > 0 && job->kill_at_ns == 0
                          ? "; ending the others"
                          : "";
  if (is_first && job->kill_at_ns == 0)
    job->status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  job->failed = true;
  const int pid = job->members[rank].pid;
  job->members[rank].ended_by = signal_of_others(job, status);
  if (job->kill_at_ns != 0 && !job->flags.verbose) return; /* it was asked to end */
  if (WIFSIGNALED(status))
    fprintf(stderr, "tutti launch: rank %u (process %d) was ended by signal %d, %s%s%s\n", rank, pid,
            WTERMSIG(status), strsignal(WTERMSIG(status)), WCOREDUMP(status) ? ", core dumped" : "", after);
  else
    fprintf(stderr, "tutti launch: rank %u (process %d) exited with status %d%s\n", rank, pid,
            WEXITSTATUS(status), after);
}

/* A child has ended: a rank, or a process that a rank had started and left running. */
static void child_ended(struct launch_job *job, int pid, int status) {
  uint32_t rank = 0;
  while (rank < job->count && !(job->members[rank].running && job->members[rank].pid == pid)) rank++;
  if (rank == job->count) return;
  job->members[rank].running = false;
  job->running--;
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
    if (job->flags.verbose) fprintf(stderr, "tutti launch: rank %u has ended\n", rank);
    return;
  }
  failure_note(job, rank, status);
  if (job->flags.keep_going || job->kill_at_ns != 0) return;
  ranks_signal(job, SIGTERM);
  ranks_hurry(job);
}

static void children_reap(struct launch_job *job) {
  int status, pid;
  while ((pid = waitpid(-1, &status, WNOHANG)) > 0) child_ended(job, pid, status);
}

/* A terminal has sent its signal to the ranks as well, which are in the same process group. */
static void signal_take(struct launch_job *job, const struct signalfd_siginfo *info) {
  const int number = (int)info->ssi_signo;
  const bool is_end = number == SIGINT || number == SIGTERM || number == SIGHUP || number == SIGQUIT;
  if (number == SIGCHLD) return; /* reaped anyway */
  if (info->ssi_code <= 0) ranks_signal(job, number);
  if (!is_end) return;
  if (job->kill_at_ns != 0) job->kill_at_ns = 1; /* second signal: at once */
  else
    fprintf(stderr, "tutti launch: got %s; the ranks have %lld s to end\n", strsignal(number),
            (long long)job->flags.grace_seconds);
  ranks_hurry(job);
  if (!job->failed) job->status = 128 + number;
}

static void signals_read(struct launch_job *job) {
  struct signalfd_siginfo info;
  while (read(job->signals, &info, sizeof info) == (ssize_t)sizeof info) signal_take(job, &info);
  children_reap(job);
}

/* ---- the time between */

static int poll_wait_ms(const struct launch_job *job) {
  if (job->kill_at_ns == 0 || job->killed) return -1;
  const uint64_t now = os_time_ns();
  return now >= job->kill_at_ns ? 0 : (int)((job->kill_at_ns - now) / 1000000 + 1);
}

static void ranks_watch(struct launch_job *job) {
  while (job->running > 0) {
    nfds_t polls = 1;
    job->polls[0] = (struct pollfd){job->signals, POLLIN, 0};
    for (uint32_t rank = 0; job->flags.prefix && rank < job->count; rank++) {
      for (int i = 0; job->members[rank].streams && i < 2; i++) {
        const int fd = job->members[rank].streams[i].fd;
        if (fd >= 0) job->polls[polls++] = (struct pollfd){fd, POLLIN, 0};
      }
    }
    if (poll(job->polls, polls, poll_wait_ms(job)) < 0 && errno != EINTR && errno != EAGAIN) break;
    streams_read(job, false);
    signals_read(job);
    if (job->kill_at_ns == 0 || job->killed || os_time_ns() < job->kill_at_ns) continue;
    job->killed = true;
    ranks_signal(job, SIGKILL);
  }
}

static bool job_prepare(struct launch_job *job) {
  static const int handled[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGCHLD};
  sigset_t set;
  sigemptyset(&set);
  for (size_t i = 0; i < sizeof handled / sizeof handled[0]; i++) sigaddset(&set, handled[i]);
  job->members = (struct member *)os_alloc(job->count * sizeof *job->members);
  job->polls = (struct pollfd *)os_alloc((2 * job->count + 1) * sizeof *job->polls);
  job->number = os_entropy();
  const bool has_secret = secret_draw(&job->secret);
  sigprocmask(SIG_BLOCK, &set, &job->mask);
  job->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  const int why = child_port_hold(&job->port_fd, &job->port);
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  if (job->members && job->polls && job->signals >= 0 && why == 0 && has_secret) return true;
  fprintf(stderr, "tutti launch: %s: %s\n", why ? "no port of the loopback address" : "signals and memory",
          strerror(why ? why : errno));
  return false;
}

static void job_drop(struct launch_job *job) {
  for (uint32_t rank = 0; job->members && rank < job->count; rank++) {
    struct stream *streams = job->members[rank].streams;
    for (int i = 0; streams && i < 2; i++) {
      if (streams[i].fd >= 0) close(streams[i].fd);
    }
    os_free(streams);
  }
  os_free(job->members);
  os_free(job->polls);
  if (job->signals >= 0) close(job->signals);
  if (job->port_fd >= 0) close(job->port_fd);
  sigprocmask(SIG_SETMASK, &job->mask, NULL);
}

static int job_run(struct launch_job *job) {
  job->signals = job->port_fd = -1;
  int status = EXIT_ENVIRONMENT;
  if (job_prepare(job)) {
    if (!ranks_start(job)) {
      ranks_signal(job, SIGTERM);
      ranks_hurry(job);
    }
    ranks_watch(job);
    signal_note(job);
    child_leftovers_end(job->flags.verbose ? "launch" : NULL);
    streams_read(job, true);
    status = job->status;
  }
  job_drop(job);
  return status;
}

static bool values_check(const struct option_list *values) {
  for (size_t i = 0; i < values->count; i++) {
    const size_t name_bytes = strcspn(values->texts[i], "=");
    if (name_bytes > 0 && name_bytes < 256) continue;
    fprintf(stderr, "tutti launch: --export %s: must be NAME=VALUE\n", values->texts[i]);
    return false;
  }
  return true;
}

static enum exit_code launch_run(int argc, char **argv) {
  struct launch_job job;
  int operand;
  memset(&job, 0, sizeof job);
  job.flags.rank_count = child_core_count() < RANKS_MOST ? child_core_count() : RANKS_MOST;
  job.flags.grace_seconds = 5;
  enum exit_code code;
  if (!verb_parse(&options, argc, argv, &job.flags, &operand, &code)) return code;
  if (operand >= argc) {
    fprintf(stderr, "tutti launch: needs a program: tutti launch -n 4 ./program ... (`tutti help launch`)\n");
    return EXIT_USAGE;
  }
  if (!values_check(&job.flags.values)) return EXIT_USAGE;
  job.count = (uint32_t)job.flags.rank_count;
  job.arguments = argv + operand;
  return (enum exit_code)job_run(&job);
}

const struct verb verb_launch = {
    "launch",
    "start the ranks of a program on this machine, one process each",
    "[FLAGS] PROGRAM [ARGUMENTS]",
    "PROGRAM",
    "  tutti launch -n 4 build/examples/launched\n"
    "  tutti launch -n 2 -p -x NCCL_DEBUG=INFO tutti bench all_reduce -e 1M\n"
    "  echo only rank 0 reads this | tutti launch -n 8 --bind --grace 1 cat\n",
    "Starts N processes of PROGRAM and waits for them. Each finds its rank by tutti_launch_read, or\n"
    "in the environment:\n"
    "  TUTTI_RANK, TUTTI_SIZE             rank, and number of ranks\n"
    "  TUTTI_LOCAL_RANK, TUTTI_LOCAL_SIZE the same, as all are on this host: the device to use\n"
    "  TUTTI_RENDEZVOUS, TUTTI_JOB        the rendezvous address that tutti_launch_id uses, and this "
    "launch's id\n"
    "  TUTTI_SECRET                       a random secret, so that nobody else can join; not set if it, or\n"
    "                                     NCCL_COMM_ID, is set already\n"
    "\n"
    "Rank 0 reads standard input, the others read nothing.\n"
    "\n"
    "When a rank fails, `tutti launch` says so on standard error, sends SIGTERM to the other ranks, and "
    "SIGKILL after --grace seconds. SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are passed on to "
    "all ranks; after the first four, ranks have the same time to end. Processes that ranks have left "
    "running are ended too. When `tutti launch` itself is killed, so are its ranks.\n"
    "\n"
    "If a signal that it did not send ends one rank, it writes which signal into that rank's records "
    "(TUTTI_TRACE), so that `tutti explain` later names the rank that ended first.\n"
    "\n"
    "The exit status is that of the first rank that failed, 128 and the signal's number if a signal\n"
    "ended it; 127 and 126 when there is no such program or it cannot be run; 128 and the number of\n"
    "the signal that told `tutti launch` to end; else 0.\n",
    &options,
    launch_run,
};
