/* planted_program.c: a rank of a job of several processes with one fault, drawn from a number, for the
 * accuracy of `tutti explain` (bench/verdicts.py). The same number gives the same job.
 *
 *   planted_program NUMBER          a rank; started by `tutti launch`, in the folder of the run
 *   planted_program NUMBER plan     prints the job: its ranks, its settings, the fault and who has it */
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cuda_runtime.h>
#include <nccl.h>
#include <tutti.h>

enum fault {
  NOTHING,
  LATE, /* the rank sleeps for a moment, and goes on */
  NEVER,
  NO_JOIN,
  COLLECTIVE,
  COUNT,
  ROOT,
  TYPE,
  OPERATOR,
  EXIT_0,
  EXIT_3,
  ABORT,
  KILLED,
  STOPPED,
  BUSY, /* computes after the call, for ever */
  SEND_ALONE,
  RECV_ALONE,
  CROSSED,    /* two communicators in another order than the others */
  WRONG_COMM, /* a call on the other communicator */
  BOTH_SEND,
  FAULTS
};
static const char *const fault_names[FAULTS] = {
    "nothing", "late",       "never",      "no join", "collective", "count",    "root",
    "type",    "operator",   "exit 0",     "exit 3",  "abort",      "killed",   "stopped",
    "busy",    "send alone", "recv alone", "crossed", "wrong comm", "both send"};

enum { STEPS_MOST = 6, BYTES = 8 << 20, MESSAGE = BYTES / 4 };
enum kind { ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, BROADCAST, REDUCE, SHIFT, KINDS };
struct step {
  enum kind kind;
  size_t count;
  int root;
  ncclDataType_t type;
  ncclRedOp_t op;
};

static struct {
  uint64_t random;
  enum fault fault;
  int ranks, rank, other, place, step_count; /* the rank that has the fault, and before which step */
  bool threads, local, waits, exits,
      keep_going; /* waits: after each step; exits: on an error, else it stays */
  struct step steps[STEPS_MOST];
} job;

static uint64_t draw(uint64_t bound) {
  uint64_t z = (job.random += 0x9e3779b97f4a7c15);
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
  z = (z ^ z >> 27) * 0x94d049bb133111eb;
  return (z ^ z >> 31) % bound;
}

static void step_draw(struct step *step) {
  step->kind = (enum kind)draw(KINDS);
  step->count = 1 + draw(2000);
  step->root = (int)draw((uint64_t)job.ranks);
  step->type = draw(2) ? ncclFloat : ncclInt32;
  step->op = draw(2) ? ncclSum : ncclMax;
}

/* The step at the fault has what the fault changes. */
static void fault_fit(struct step *step) {
  if (job.fault == ROOT) step->kind = draw(2) ? BROADCAST : REDUCE;
  if (job.fault == OPERATOR) step->kind = draw(2) ? ALL_REDUCE : REDUCE_SCATTER;
  if (job.fault == CROSSED || (step->kind == SHIFT && job.fault >= COLLECTIVE)) step->kind = ALL_REDUCE;
}

static void job_draw(uint64_t number) {
  job.random = number * 0x2545f4914f6cdd1d;
  job.fault = (enum fault)draw(FAULTS);
  job.ranks = 2 + (int)draw(3);
  job.rank = (int)draw((uint64_t)job.ranks);
  job.other = (job.rank + 1 + (int)draw((uint64_t)job.ranks - 1)) % job.ranks;
  job.step_count = 3 + (int)draw(STEPS_MOST - 2);
  job.place = (int)draw((uint64_t)job.step_count - 1);
  job.threads = draw(3) == 0;
  job.local = draw(2) == 0;
  job.waits = draw(3) > 0;
  job.exits = draw(2) == 0;
  job.keep_going = draw(2) == 0;
  for (int i = 0; i < job.step_count; i++) step_draw(&job.steps[i]);
  fault_fit(&job.steps[job.place]);
}

static void job_print(void) {
  printf("fault=%s;ranks=%d;rank=%d;other=%d;keep_going=%d;mode=%s;check=%s\n", fault_names[job.fault],
         job.ranks, job.rank, job.other, job.keep_going, job.threads ? "threads" : "guarded",
         job.local ? "LOCAL" : "");
}

/* ---- a rank ---- */

static struct {
  int rank;
  ncclComm_t comms[2];
  cudaStream_t stream;
  char *in, *out;
} self;

static void must(bool good, const char *call) {
  if (good) return;
  printf("rank %d: %s: %s\n", self.rank, call, ncclGetLastError(NULL));
  fflush(stdout);
  if (job.exits) exit(1);
  for (;;) pause();
}
#define MUST(call) must((int)(call) == 0, #call)

static void mark(const char *name) {
  FILE *file = fopen(name, "w");
  if (file != NULL) fprintf(file, "%d\n", (int)getpid());
  if (file != NULL) fclose(file);
}

static void shift(const struct step *step, ncclComm_t comm) {
  MUST(ncclGroupStart());
  MUST(ncclSend(self.in, step->count, step->type, (self.rank + 1) % job.ranks, comm, self.stream));
  MUST(ncclRecv(self.out, step->count, step->type, (self.rank + job.ranks - 1) % job.ranks, comm,
                self.stream));
  MUST(ncclGroupEnd());
}

static void call(const struct step *step, ncclComm_t comm) {
  char *in = self.in, *out = self.out;
  cudaStream_t stream = self.stream;
  switch (step->kind) {
    case ALL_REDUCE: MUST(ncclAllReduce(in, out, step->count, step->type, step->op, comm, stream)); break;
    case ALL_GATHER: MUST(ncclAllGather(in, out, step->count, step->type, comm, stream)); break;
    case REDUCE_SCATTER:
      MUST(ncclReduceScatter(in, out, step->count, step->type, step->op, comm, stream));
      break;
    case BROADCAST: MUST(ncclBroadcast(in, out, step->count, step->type, step->root, comm, stream)); break;
    case REDUCE:
      MUST(ncclReduce(in, out, step->count, step->type, step->op, step->root, comm, stream));
      break;
    default: shift(step, comm); break;
  }
}

/* The step as the rank with the fault calls it. */
static struct step wrong_step(struct step step) {
  if (job.fault == COLLECTIVE) step.kind = step.kind == ALL_REDUCE ? ALL_GATHER : ALL_REDUCE;
  if (job.fault == COUNT) step.count += 1;
  if (job.fault == ROOT) step.root = (step.root + 1) % job.ranks;
  if (job.fault == TYPE) step.type = step.type == ncclFloat ? ncclInt32 : ncclFloat;
  if (job.fault == OPERATOR) step.op = step.op == ncclSum ? ncclMax : ncclSum;
  return step;
}

static volatile unsigned busy;

/* Faults that need no call; returns for the others. */
static void end(void) {
  switch (job.fault) {
    case LATE: usleep(100000); break;
    case NEVER:
      for (;;) pause();
    case EXIT_0: exit(0);
    case EXIT_3: exit(3);
    case ABORT: abort();
    case KILLED: raise(SIGKILL); break;
    case STOPPED: raise(SIGSTOP); break;
    default: break;
  }
}

static void message(bool sends, int peer) {
  if (sends) MUST(ncclSend(self.in, MESSAGE, ncclFloat, peer, self.comms[0], self.stream));
  else MUST(ncclRecv(self.out, MESSAGE, ncclFloat, peer, self.comms[0], self.stream));
}

/* What this rank does before or in place of the step at which the fault is; true: in place of it. */
static bool fault_do(const struct step *step) {
  const bool mine = self.rank == job.rank, partner = self.rank == job.other;
  const struct step wrong = wrong_step(*step);
  if (mine) mark("planted"), end();
  if (mine && (job.fault == SEND_ALONE || job.fault == RECV_ALONE))
    message(job.fault == SEND_ALONE, job.other);
  if ((mine || partner) && job.fault == BOTH_SEND) {
    message(true, mine ? job.other : job.rank);
    MUST(cudaStreamSynchronize(self.stream));
    message(false, mine ? job.other : job.rank);
  }
  if (job.fault == CROSSED)
    for (int i = 0; i < 2; i++) call(step, self.comms[i ^ mine]);
  if (mine && job.fault == WRONG_COMM) call(step, self.comms[1]);
  if (mine && job.fault == BUSY) call(step, self.comms[0]);
  while (mine && job.fault == BUSY) busy += 1;
  if (mine && job.fault >= COLLECTIVE && job.fault <= OPERATOR) call(&wrong, self.comms[0]);
  return job.fault == CROSSED ||
         (mine && (job.fault == WRONG_COMM || (job.fault >= COLLECTIVE && job.fault <= OPERATOR)));
}

static void steps(void) {
  for (int i = 0; i < job.step_count; i++) {
    if (i != job.place || !fault_do(&job.steps[i])) call(&job.steps[i], self.comms[0]);
    if (job.waits) MUST(cudaStreamSynchronize(self.stream));
  }
  MUST(cudaStreamSynchronize(self.stream));
}

static void rank_run(void) {
  tutti_launch_t launch = {.size = sizeof launch};
  ncclUniqueId id;
  char name[32];
  MUST(tutti_launch_read(&launch));
  self.rank = launch.rank;
  snprintf(name, sizeof name, "process.%d", launch.rank);
  mark(name);
  MUST(cudaSetDevice(launch.local_rank));
  MUST(tutti_launch_id(&launch, &id));
  if (job.fault == NO_JOIN && launch.rank == job.rank) {
    mark("planted");
    for (;;) pause();
  }
  MUST(ncclCommInitRank(&self.comms[0], launch.rank_count, id, launch.rank));
  MUST(ncclCommSplit(self.comms[0], 0, launch.rank, &self.comms[1], NULL));
  MUST(cudaStreamCreate(&self.stream));
  MUST(cudaMalloc((void **)&self.in, BYTES));
  MUST(cudaMalloc((void **)&self.out, BYTES));
  steps();
  for (int i = 2; i-- > 0;) MUST(ncclCommDestroy(self.comms[i]));
}

int main(int argc, char **argv) {
  if (argc < 2) return 2;
  job_draw(strtoull(argv[1], NULL, 10));
  if (argc > 2) job_print();
  else rank_run();
  return 0;
}
