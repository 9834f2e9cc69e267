/* hang.c: jobs that hang, for `tutti explain` (hang.sh). All GPUs are ranks of one process; the last one does
 * something else than the others. Then the process waits until it is killed.
 *
 *   hang SCENARIO SECONDS      kills itself after SECONDS at the latest; TUTTI_TRACE names its trace file
 *   hang                       starts itself with each scenario, and expects that it is killed */
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "need.h"

enum { COUNT = 1 << 18 };

static struct {
  int count;
  ncclComm_t comms[RANKS_MAX];
  cudaStream_t streams[RANKS_MAX];
  float *data[RANKS_MAX];
} ranks;

static void ranks_open(void) {
  ranks.count = need_ranks();
  need_comms(ranks.comms, ranks.count);
  for (int rank = 0; rank < ranks.count; rank++) {
    need_device(rank);
    NEED(cudaStreamCreateWithFlags(&ranks.streams[rank], cudaStreamNonBlocking));
    NEED(cudaMalloc((void **)&ranks.data[rank], COUNT * sizeof(float)));
  }
}

/* An all-reduce of the first `callers` ranks; the last rank has a count of its own. */
static void sum(int callers, size_t count, size_t last_count) {
  NEED(ncclGroupStart());
  for (int rank = 0; rank < callers; rank++)
    NEED(ncclAllReduce(ranks.data[rank], ranks.data[rank], rank == ranks.count - 1 ? last_count : count,
                       ncclFloat, ncclSum, ranks.comms[rank], ranks.streams[rank]));
  NEED(ncclGroupEnd());
}

static void sums(int calls) {
  for (int i = 0; i < calls; i++) sum(ranks.count, i == 0 ? 1000 : COUNT, i == 0 ? 1000 : COUNT);
}

static void fine(void) {
  sums(3);
  for (int rank = 0; rank < ranks.count; rank++) NEED(cudaStreamSynchronize(ranks.streams[rank]));
  puts("hang: all that was called has ended");
  fflush(stdout);
}

static void absent(void) {
  sums(2);
  sum(ranks.count - 1, COUNT, COUNT);
}

static void count(void) {
  sums(2);
  sum(ranks.count, COUNT, COUNT / 2);
}

static void alone(void) {
  sums(2);
  NEED(ncclSend(ranks.data[0], COUNT, ncclFloat, 1, ranks.comms[0], ranks.streams[0]));
}

static void CUDART_CB hang_host(void *argument) {
  (void)argument;
  pause();
}

/* The last rank's kernel waits behind other work on its stream. */
static void blocked(void) {
  sums(2);
  need_device(ranks.count - 1);
  NEED(cudaLaunchHostFunc(ranks.streams[ranks.count - 1], hang_host, NULL));
  sum(ranks.count, COUNT, COUNT);
}

static const struct scenario {
  const char *name;
  void (*run)(void);
} scenarios[] = {
    {"fine", fine}, {"absent", absent}, {"count", count}, {"alone", alone}, {"blocked", blocked}};
enum { SCENARIOS = sizeof scenarios / sizeof scenarios[0] };

/* Queries make emulated GPUs progress, and make the library report what kernels have detected. */
static void wait_seconds(int seconds) {
  for (int i = 0; i < seconds * 100; i++) {
    for (int rank = 0; rank < ranks.count; rank++) {
      ncclResult_t state;
      cudaStreamQuery(ranks.streams[rank]);
      NEED(ncclCommGetAsyncError(ranks.comms[rank], &state));
    }
    usleep(10000);
  }
}

static int hang_for(const char *name, int seconds) {
  for (int i = 0; i < SCENARIOS; i++) {
    if (strcmp(scenarios[i].name, name) != 0) continue;
    ranks_open();
    if (ranks.count < 2) return 0;
    scenarios[i].run();
    wait_seconds(seconds);
    raise(SIGKILL);
  }
  fprintf(stderr, "hang: there is no scenario %s\n", name);
  return 2;
}

static int was_killed(const char *program, const char *name) {
  int status = 0;
  const pid_t child = fork();
  if (child == 0) {
    setenv("TUTTI_TRACE", "off", 1);
    execl(program, program, name, "0", (char *)NULL);
    _exit(127);
  }
  return child > 0 && waitpid(child, &status, 0) == child && WIFSIGNALED(status) &&
         WTERMSIG(status) == SIGKILL;
}

int main(int argument_count, char **arguments) {
  int killed = 0;
  setenv("NCCL_CHECK_MODE", "LOCAL", 0); /* calls that differ hang here */
  if (argument_count == 3) return hang_for(arguments[1], atoi(arguments[2]));
  for (int i = 0; i < SCENARIOS; i++) killed += was_killed(arguments[0], scenarios[i].name);
  printf("hang: %d of %d scenarios hung until they were killed: %s\n", killed, SCENARIOS,
         killed == SCENARIOS ? "ok" : "not ok");
  return killed != SCENARIOS;
}
