/* launch.c: the launchers' variables, one row each, and the addresses where ranks can meet. Rejects malformed
 * numbers. Communicates with nothing but PMIx. */
#include "base/launch.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/log.h"
#include "base/os.h"
#include "base/param.h"
#include "base/pmix.h"
#include "base/sock.h"

/* The variables of a launcher. */
struct launcher {
  const char *name;
  const char *rank, *count, *count_else; /* count_else: second name of the number of ranks, or NULL */
  const char *local_rank, *local_count;  /* or NULL */
  bool (*speaks)(const struct launcher *launcher);
};

static bool is_set(const char *name) {
  const char *text = name ? os_env(name) : NULL;
  return text && *text;
}

static bool speaks_at_all(const struct launcher *launcher) {
  return is_set(launcher->rank) || is_set(launcher->count);
}

/* Its names are short and common, so a single one proves nothing. */
static bool torchrun_speaks(const struct launcher *launcher) {
  return is_set(launcher->rank) && is_set(launcher->count) &&
         (is_set(launcher->local_rank) || is_set("MASTER_ADDR"));
}

static bool hydra_speaks(const struct launcher *launcher) {
  return is_set(launcher->rank) && is_set(launcher->local_rank);
}

/* The shell of a batch script has a rank and a count too, but is not a launched rank: only steps have numbers
 * below the special ones. */
static bool slurm_speaks(const struct launcher *launcher) {
  const char *step = os_env("SLURM_STEP_ID"), *environment = os_env("ENVIRONMENT");
  if (!is_set(launcher->rank)) return false;
  if (!step) step = os_env("SLURM_STEPID");
  if (step && *step) return strtoull(step, NULL, 10) < 0xfffffff0ull;
  return !environment || strcmp(environment, "BATCH") != 0;
}

static bool rank_speaks(const struct launcher *launcher) { return is_set(launcher->rank); }

static const struct launcher launchers[] = {
    {"tutti", "TUTTI_RANK", "TUTTI_SIZE", NULL, "TUTTI_LOCAL_RANK", "TUTTI_LOCAL_SIZE", speaks_at_all},
    {"torchrun", "RANK", "WORLD_SIZE", NULL, "LOCAL_RANK", "LOCAL_WORLD_SIZE", torchrun_speaks},
    {"openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", NULL, "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", speaks_at_all},
    {"hydra", "PMI_RANK", "PMI_SIZE", NULL, "MPI_LOCALRANKID", "MPI_LOCALNRANKS", hydra_speaks},
    {"slurm", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_LOCALID", NULL, slurm_speaks},
    {"pmi", "PMI_RANK", "PMI_SIZE", NULL, NULL, NULL, rank_speaks},
};
#define LAUNCHER_COUNT (sizeof launchers / sizeof launchers[0])

/* ---- numbers */

/* Parses a decimal below `end` without anything around it. */
static bool number_parse(const char *text, int end, int *number) {
  const size_t digits = strspn(text, "0123456789");
  if (digits == 0 || digits > 9 || text[digits] != '\0') return false;
  *number = atoi(text);
  return *number < end;
}

static ncclResult_t number_read(const char *name, int least, int most, int *number) {
  const char *text = os_env(name);
  if (!text || *text == '\0')
    return log_fail(ncclInvalidUsage, "%s is not set, though the launcher's other variables are; set it too",
                    name);
  if (number_parse(text, most + 1, number) && *number >= least) return ncclSuccess;
  return log_fail(ncclInvalidUsage,
                  "%s=%.40s: must be a number from %d to %d; start the program anew, or set it", name, text,
                  least, most);
}

/* Slurm states the number of tasks of each node. */
static int slurm_local_count(int rank_count) {
  const char *tasks = os_env("SLURM_STEP_TASKS_PER_NODE"), *node = os_env("SLURM_NODEID");
  const char *nodes = os_env("SLURM_STEP_NUM_NODES");
  int index = 0;
  if (!nodes) nodes = os_env("SLURM_NNODES");
  if (nodes && strcmp(nodes, "1") == 0) return rank_count;
  if (!tasks || !node || !number_parse(node, LAUNCH_RANKS_MOST, &index)) return 0;
  return launch_tasks_of_node(tasks, (uint32_t)index);
}

int launch_tasks_of_node(const char *text, uint32_t index) {
  for (;;) {
    char *rest;
    if (*text < '0' || *text > '9') return 0;
    const unsigned long tasks = strtoul(text, &rest, 10);
    unsigned long times = 1;
    if (rest[0] == '(' && rest[1] == 'x') {
      times = strtoul(rest + 2, &rest, 10);
      if (*rest++ != ')') return 0;
    }
    if (tasks == 0 || tasks > LAUNCH_RANKS_MOST) return 0;
    if (index < times) return (int)tasks;
    index -= (uint32_t)times;
    if (*rest != ',') return 0;
    text = rest + 1;
  }
}

/* Local rank and count. Without information all ranks are assumed to be on this host. */
static ncclResult_t local_read(const struct launcher *launcher, struct launch *launch) {
  const bool has_rank = is_set(launcher->local_rank), has_count = is_set(launcher->local_count);
  const bool is_slurm = strcmp(launcher->name, "slurm") == 0;
  launch->local_rank = launch->rank;
  launch->local_count = launch->rank_count;
  if (has_count) TRY(number_read(launcher->local_count, 1, launch->rank_count, &launch->local_count));
  else if (is_slurm) launch->local_count = slurm_local_count(launch->rank_count);
  else if (has_rank && strcmp(launcher->name, "torchrun") == 0) launch->local_count = 0;
  if (has_rank) {
    const int most = launch->local_count > 0 ? launch->local_count : launch->rank_count;
    return number_read(launcher->local_rank, 0, most - 1, &launch->local_rank);
  }
  if (launch->local_count == launch->rank_count) return ncclSuccess;
  return log_fail(
      ncclInvalidUsage,
      "%s: rank %d of %d has no number on its host, though only %d ranks are said to be there; set %s",
      launcher->name, launch->rank, launch->rank_count, launch->local_count,
      launcher->local_rank ? launcher->local_rank : "TUTTI_LOCAL_RANK");
}

static ncclResult_t row_read(const struct launcher *launcher, struct launch *launch) {
  const char *count = launcher->count;
  if (launcher->count_else && !is_set(count)) count = launcher->count_else;
  TRY(number_read(count, 1, LAUNCH_RANKS_MOST, &launch->rank_count));
  TRY(number_read(launcher->rank, 0, launch->rank_count - 1, &launch->rank));
  launch->launcher = launcher->name;
  return local_read(launcher, launch);
}

/* Warns about another launcher with different numbers: probably an outer one, which started this launcher's
 * processes, but its variables may also be left over. */
static void others_compare(const struct launcher *chosen, const struct launch *launch) {
  for (size_t i = 0; i < LAUNCHER_COUNT; i++) {
    const struct launcher *other = &launchers[i];
    const char *rank = os_env(other->rank), *count = os_env(other->count);
    int other_rank, other_count;
    if (other == chosen || !other->speaks(other) || !rank || !count) continue;
    if (!number_parse(rank, LAUNCH_RANKS_MOST, &other_rank)) continue;
    if (!number_parse(count, LAUNCH_RANKS_MOST + 1, &other_count)) continue;
    if (other_rank == launch->rank && other_count == launch->rank_count) continue;
    log_warn(
        "%s=%d of %s=%d says otherwise than %s=%d of %s=%d; %s is followed: unset its variables if that "
        "is wrong",
        other->rank, other_rank, other->count, other_count, chosen->rank, launch->rank, chosen->count,
        launch->rank_count, chosen->name);
  }
}

/* PMIx only: the environment has the rank, PMIx has the numbers of ranks. */
static ncclResult_t pmix_read(struct launch *launch) {
  TRY(number_read("PMIX_RANK", 0, LAUNCH_RANKS_MOST, &launch->rank));
  TRY(pmix_counts(&launch->rank_count, &launch->local_rank, &launch->local_count));
  launch->launcher = "pmix";
  if (launch->rank < launch->rank_count && launch->local_rank < launch->rank_count) return ncclSuccess;
  return log_fail(ncclInvalidUsage, "PMIX_RANK=%d, but PMIx says that there are %d ranks", launch->rank,
                  launch->rank_count);
}

ncclResult_t launch_read(struct launch *launch) {
  struct launch found = {0, 1, 0, 1, "none"};
  for (size_t i = 0; i < LAUNCHER_COUNT; i++) {
    if (!launchers[i].speaks(&launchers[i])) continue;
    TRY(row_read(&launchers[i], &found));
    others_compare(&launchers[i], &found);
    *launch = found;
    return ncclSuccess;
  }
  if (is_set("PMIX_RANK") && is_set("PMIX_NAMESPACE")) TRY(pmix_read(&found));
  *launch = found;
  return ncclSuccess;
}

/* ---- where ranks meet */

static bool elsewhere(const char *text) { return text && *text && !sock_text_is_loopback(text); }

/* torchrun's names are common; a program that sets them itself may have more ranks than it says. */
static bool row_is_local(const struct launcher *launcher) {
  const char *count = os_env(launcher->count),
             *local = launcher->local_count ? os_env(launcher->local_count) : NULL;
  int ranks, here;
  if (!is_set(launcher->count)) count = launcher->count_else ? os_env(launcher->count_else) : NULL;
  if (!count || !number_parse(count, LAUNCH_RANKS_MOST + 1, &ranks) || ranks < 2) return false;
  if (strcmp(launcher->name, "slurm") == 0) return slurm_local_count(ranks) == ranks;
  if (strcmp(launcher->name, "torchrun") == 0 && !is_set("MASTER_ADDR")) return false;
  return local && number_parse(local, LAUNCH_RANKS_MOST + 1, &here) && here == ranks;
}

bool launch_is_local(void) {
  if (elsewhere(param_text(PARAM_COMM_ID)) || elsewhere(param_text(PARAM_TUTTI_RENDEZVOUS)) ||
      elsewhere(os_env("MASTER_ADDR")))
    return false;
  for (size_t i = 0; i < LAUNCHER_COUNT; i++)
    if (launchers[i].speaks(&launchers[i])) return row_is_local(&launchers[i]);
  return false;
}

/* Includes the terminating zero, so that "a", "bc" differs from "ab", "c". */
static uint64_t text_mix(uint64_t hash, const char *text) {
  if (!text) text = "?";
  return hash_bytes(hash, text, strlen(text) + 1);
}

/* Hydra gives a job no name; identifies it by the process at the other end of the PMI socket, or the parent.
 */
static uint64_t hydra_job(void) {
  const char *text = os_env("PMI_FD");
  struct ucred peer;
  socklen_t bytes = sizeof peer;
  int fd;
  if (text && number_parse(text, 1 << 20, &fd) &&
      getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &bytes) == 0 && peer.pid > 0) {
    return (uint64_t)peer.pid;
  }
  return (uint64_t)getppid();
}

/* Hash of everything that launchers say about a job and that is equal on all ranks. */
static uint64_t job_hash(const struct launch *launch) {
  static const char *const names[] = {"TUTTI_JOB",      "SLURM_JOB_ID",        "SLURM_STEP_ID",
                                      "PMIX_NAMESPACE", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT",
                                      "MASTER_ADDR",    "MASTER_PORT"};
  uint64_t hash = text_mix(HASH_SEED, launch->launcher);
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) hash = text_mix(hash, os_env(names[i]));
  const bool is_hydra = strcmp(launch->launcher, "hydra") == 0 || strcmp(launch->launcher, "pmi") == 0;
  if (is_hydra && launch->local_count == launch->rank_count) hash = hash_mix(hash, hydra_job());
  return hash_mix(hash, (uint64_t)launch->rank_count);
}

static const char *text_or(const char *text) { return text != NULL ? text : "0"; }

/* Slurm's number names an allocation, in which other launchers may start several jobs: so theirs go first. A
 * name that does not fit is cut: the numbers that differ come first. */
void launch_job(char out[LAUNCH_JOB_BYTES]) {
  const char *tutti = os_env("TUTTI_JOB"), *torch = os_env("TORCHELASTIC_RUN_ID");
  const char *pmix = os_env("PMIX_NAMESPACE"), *slurm = os_env("SLURM_JOB_ID");
  out[0] = '\0';
  if (tutti != NULL) snprintf(out, LAUNCH_JOB_BYTES, "%s", tutti);
  else if (torch != NULL)
    snprintf(out, LAUNCH_JOB_BYTES, "torchrun.%s.%s.%s.%s", text_or(os_env("TORCHELASTIC_RESTART_COUNT")),
             text_or(os_env("MASTER_PORT")), text_or(os_env("MASTER_ADDR")), torch);
  else if (pmix != NULL) snprintf(out, LAUNCH_JOB_BYTES, "mpi.%s", pmix);
  else if (slurm != NULL && os_env("SLURM_PROCID") != NULL)
    snprintf(out, LAUNCH_JOB_BYTES, "slurm.%s.%s", slurm, text_or(os_env("SLURM_STEP_ID")));
}

static unsigned job_port(uint64_t job) { return 20000 + (unsigned)(job % 12000); }

#define MASTER_PORT_OFFSET 1000

static ncclResult_t master_address(struct launch_rendezvous *out) {
  const char *host = os_env("MASTER_ADDR"), *text = os_env("MASTER_PORT");
  int port;
  if (!text || !number_parse(text, 65536, &port) || port == 0)
    return log_fail(ncclInvalidUsage,
                    "MASTER_ADDR is set and MASTER_PORT=%.40s is no port; set it as torchrun does",
                    text ? text : "");
  port += port + MASTER_PORT_OFFSET < 65536 ? MASTER_PORT_OFFSET : -MASTER_PORT_OFFSET;
  const bool is_bare_ipv6 = strchr(host, ':') && *host != '[';
  const int bytes =
      snprintf(out->address, sizeof out->address, is_bare_ipv6 ? "[%s]:%d" : "%s:%d", host, port);
  if (bytes < (int)sizeof out->address) return ncclSuccess;
  return log_fail(ncclInvalidUsage, "MASTER_ADDR is %zu characters long; give a host's name", strlen(host));
}

bool launch_first_host(const char *list, char *out, size_t out_bytes) {
  size_t plain = strcspn(list, ",["), first = 0;
  const char *inside = "";
  if (list[plain] == '[') {
    inside = list + plain + 1;
    first = strcspn(inside, ",-]");
    if (first == 0 || strspn(inside, "0123456789") < first || !strchr(inside, ']')) return false;
    const char *after = strchr(inside, ']') + 1;
    if (*after != '\0' && *after != ',') return false; /* several brackets in a name are not supported */
  }
  if (plain + first == 0 || plain + first >= out_bytes) return false;
  snprintf(out, out_bytes, "%.*s%.*s", (int)plain, list, (int)first, inside);
  return strcspn(out, "]: \t") == plain + first;
}

static bool slurm_address(struct launch_rendezvous *out) {
  char host[256];
  const char *list = os_env("SLURM_STEP_NODELIST");
  if (!list) list = os_env("SLURM_JOB_NODELIST");
  if (!list) list = os_env("SLURM_NODELIST");
  if (!list || !launch_first_host(list, host, sizeof host)) return false;
  snprintf(out->address, sizeof out->address, "%s:%u", host, job_port(out->job));
  out->source = "the first host of SLURM_STEP_NODELIST";
  return true;
}

static ncclResult_t text_address(const char *text, const char *source, struct launch_rendezvous *out) {
  out->source = source;
  if (snprintf(out->address, sizeof out->address, "%s", text) < (int)sizeof out->address) return ncclSuccess;
  return log_fail(ncclInvalidUsage, "%s is %zu characters long; give host:port", source, strlen(text));
}

ncclResult_t launch_rendezvous(const struct launch *launch, struct launch_rendezvous *out) {
  memset(out, 0, sizeof *out);
  out->job = job_hash(launch);
  out->place = LAUNCH_AT_ADDRESS;
  const char *given = param_text(PARAM_COMM_ID), *ours = param_text(PARAM_TUTTI_RENDEZVOUS);
  if (*given) return text_address(given, "NCCL_COMM_ID", out);
  if (*ours) return text_address(ours, "TUTTI_RENDEZVOUS", out);
  if (is_set("MASTER_ADDR") && (is_set("MASTER_PORT") || strcmp(launch->launcher, "torchrun") == 0)) {
    out->source = "MASTER_ADDR and MASTER_PORT";
    return master_address(out);
  }
  if (launch->local_count == launch->rank_count) {
    snprintf(out->address, sizeof out->address, "127.0.0.1:%u", job_port(out->job));
    out->source = "the loopback address, as all ranks are on one host";
    return ncclSuccess;
  }
  const bool has_pmix = is_set("PMIX_RANK") && is_set("PMIX_NAMESPACE");
  const bool is_slurm = strcmp(launch->launcher, "slurm") == 0;
  if (is_slurm && !(has_pmix && pmix_is_here()) && slurm_address(out)) return ncclSuccess;
  out->place = has_pmix ? LAUNCH_BY_PMIX : LAUNCH_UNKNOWN;
  return ncclSuccess;
}
