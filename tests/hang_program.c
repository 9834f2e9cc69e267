/* hang_program.c: four ranks, threads of one process, one of which does not do what the others do; then the
 * process kills itself, as a user kills a hung job. `tutti explain` reads the records that it leaves.
 *
 *   hang_program SCENARIO [SECONDS]     TUTTI_TRACE says where the file goes
 *
 * Ends by SIGKILL, SECONDS (0) after all ranks wait that should wait; with status 2 for an unknown scenario,
 * 3 if a call fails that should not, 124 if the ranks do not come to wait. */
#include <pthread.h>
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

#include "base/os.h"
#include "base/turns.h"
#include "must.h"
#include "trace/record_read.h"
#include "trace/recorder.h"

#define RANKS 4
#define ELEMENTS (4u << 20)
#define DEADLINE_MS 30000
#define STILL_LOOKS 20
#define STILL_NS 1000000u /* how long each polling thread sleeps */

struct rank {
  int rank;
  ncclComm_t comm, other; /* of the same ranks */
  cudaStream_t stream;
  float *in, *out;
};

static void sum(const struct rank *self, size_t count) {
  MUST(ncclAllReduce(self->in, self->out, count, ncclFloat, ncclSum, self->comm, self->stream));
}

static void sums(const struct rank *self, int calls) {
  for (int i = 0; i < calls; i++) sum(self, 1024);
}

static _Atomic int called; /* ranks that have made all their calls */

static void until_all_have_called(void *argument) {
  (void)argument;
  while (called < RANKS) os_sleep_ms(1);
}

/* The rank's next calls begin when every rank has made all others: later calls would be refused once ranks
 * have found that they disagree. */
static void hold(const struct rank *self) {
  MUST(cudaLaunchHostFunc(self->stream, until_all_have_called, NULL));
}

/* ---- scenarios ---- */

static void fine(struct rank *self) { sums(self, 3); }

static void absent(struct rank *self) { sums(self, self->rank == 2 ? 2 : 3); }

static void destroyed(struct rank *self) {
  sums(self, 2);
  MUST(cudaStreamSynchronize(self->stream));
  if (self->rank == 1) MUST(ncclCommDestroy(self->comm));
  else sum(self, 1024);
}

static void collective(struct rank *self) {
  hold(self);
  sums(self, 2);
  if (self->rank != 1) sum(self, 1024);
  else MUST(ncclBroadcast(self->in, self->out, 1024, ncclFloat, 0, self->comm, self->stream));
}

static void count(struct rank *self) {
  hold(self);
  sums(self, 2);
  sum(self, self->rank == 3 ? 1000 : 1024);
}

static void type(struct rank *self) {
  hold(self);
  sums(self, 2);
  MUST(ncclAllReduce(self->in, self->out, 1024, self->rank == 0 ? ncclDouble : ncclFloat, ncclSum, self->comm,
                     self->stream));
}

static void operator_differs(struct rank *self) {
  hold(self);
  MUST(ncclAllReduce(self->in, self->out, 64, ncclFloat, self->rank == 2 ? ncclMax : ncclSum, self->comm,
                     self->stream));
}

static void root(struct rank *self) {
  hold(self);
  MUST(ncclBroadcast(self->in, self->out, ELEMENTS, ncclFloat, self->rank == 3 ? 1 : 0, self->comm,
                     self->stream));
  sum(self, 64);
}

static void order(struct rank *self) {
  hold(self);
  if (self->rank == 2) sum(self, 1024);
  MUST(ncclAllGather(self->in, self->out, 512, ncclFloat, self->comm, self->stream));
  if (self->rank != 2) sum(self, 1024);
}

static void send_alone(struct rank *self) {
  hold(self);
  sums(self, 1);
  if (self->rank == 0) MUST(ncclSend(self->in, ELEMENTS, ncclFloat, 3, self->comm, self->stream));
}

static void recv_alone(struct rank *self) {
  hold(self);
  sums(self, 1);
  if (self->rank == 1) MUST(ncclRecv(self->out, 256, ncclFloat, 2, self->comm, self->stream));
}

static void message_count(struct rank *self) {
  hold(self);
  sums(self, 1);
  if (self->rank == 0) MUST(ncclSend(self->in, ELEMENTS, ncclFloat, 3, self->comm, self->stream));
  if (self->rank == 3) MUST(ncclRecv(self->out, 1024, ncclFloat, 0, self->comm, self->stream));
}

/* Rank 1 uses the other communicator for one call. */
static void communicator(struct rank *self) {
  hold(self);
  sums(self, 1);
  MUST(ncclAllReduce(self->in, self->out, 2048, ncclFloat, ncclSum,
                     self->rank == 1 ? self->other : self->comm, self->stream));
}

/* Rank 2 does something else before each call. */
static void slow(struct rank *self) {
  for (int i = 0; i < 20; i++) {
    if (self->rank == 2) os_sleep_ms(10);
    sum(self, 1024);
    MUST(cudaStreamSynchronize(self->stream));
  }
}

/* All ranks do the same; TUTTI_EMU slows a connection down. Runs until the process is killed. */
static void slow_forever(struct rank *self) {
  for (;;) {
    sum(self, 1024);
    MUST(cudaStreamSynchronize(self->stream));
  }
}

/* The same for a limited time. */
static void slow_link(struct rank *self) {
  for (int i = 0; i < 20; i++) {
    sum(self, 1024);
    MUST(cudaStreamSynchronize(self->stream));
  }
}

/* The body's calls, captured once. */
static cudaGraphExec_t capture(struct rank *self, void (*body)(struct rank *self)) {
  cudaGraph_t captured;
  cudaGraphExec_t step;
  MUST(cudaStreamBeginCapture(self->stream, cudaStreamCaptureModeThreadLocal));
  body(self);
  MUST(cudaStreamEndCapture(self->stream, &captured));
  MUST(cudaGraphInstantiate(&step, captured, 0));
  return step;
}

static void graph_launches(struct rank *self, cudaGraphExec_t step, int count) {
  for (int i = 0; i < count; i++) MUST(cudaGraphLaunch(step, self->stream));
}

/* A step of a job: two calls. Rank 2 launches it once less often. */
static void graph_step(struct rank *self) {
  sum(self, 1024);
  sum(self, 2048);
}

static void graph(struct rank *self) {
  graph_launches(self, capture(self, graph_step), self->rank == 2 ? 2 : 3);
}

static void open_group(struct rank *self) {
  sums(self, 2);
  if (self->rank == 3) MUST(ncclGroupStart());
  sum(self, 1024);
}

static void refused(struct rank *self) {
  sums(self, 1);
  const bool bad = self->rank == 1;
  const ncclResult_t result = ncclAllReduce(self->in, self->out, 1024, ncclFloat,
                                            bad ? (ncclRedOp_t)77 : ncclSum, self->comm, self->stream);
  must(result == (bad ? ncclInvalidArgument : ncclSuccess), "ncclAllReduce");
}

static void never_ends(void *argument) {
  (void)argument;
  for (;;) os_sleep_ms(1000);
}

static void blocked(struct rank *self) {
  sums(self, 1);
  MUST(cudaStreamSynchronize(self->stream));
  if (self->rank == 2) MUST(cudaLaunchHostFunc(self->stream, never_ends, NULL));
  sum(self, 1024);
}

/* The same step; the last time rank 2's waits behind a kernel that never ends. */
static void graph_blocked(struct rank *self) {
  const cudaGraphExec_t step = capture(self, graph_step);
  graph_launches(self, step, 2);
  if (self->rank == 2) MUST(cudaLaunchHostFunc(self->stream, never_ends, NULL));
  graph_launches(self, step, 1);
}

/* Messages around the ring and one collective on each of two communicators, between calls outside of graphs.
 */
static void graph_mixed_step(struct rank *self) {
  sum(self, 512);
  MUST(ncclGroupStart());
  MUST(ncclSend(self->in, 4096, ncclFloat, (self->rank + 1) % RANKS, self->comm, self->stream));
  MUST(ncclRecv(self->out, 4096, ncclFloat, (self->rank + RANKS - 1) % RANKS, self->comm, self->stream));
  MUST(ncclGroupEnd());
  MUST(ncclAllGather(self->in, self->out, 1024, ncclFloat, self->other, self->stream));
  MUST(ncclBroadcast(self->in, self->out, 3000, ncclFloat, 1, self->comm, self->stream));
}

static void graph_mixed(struct rank *self) {
  sums(self, 3);
  const cudaGraphExec_t step = capture(self, graph_mixed_step);
  graph_launches(self, step, 2);
  sums(self, 2);
  graph_launches(self, step, self->rank == 2 ? 1 : 2);
}

/* Two communicators alternate on each rank's stream, in another order on half of the ranks. */
static void cycle(struct rank *self) {
  ncclComm_t first = self->rank < 2 ? self->comm : self->other;
  ncclComm_t second = self->rank < 2 ? self->other : self->comm;
  MUST(ncclAllReduce(self->in, self->out, 1024, ncclFloat, ncclSum, first, self->stream));
  MUST(ncclAllReduce(self->in, self->out, 1024, ncclFloat, ncclSum, second, self->stream));
}

/* Rank 3 calls nothing. The host of rank 2 waits for the first communicator, and so never calls on the
 * second, where ranks 0 and 1 wait. */
static void behind(struct rank *self) {
  cudaStream_t second;
  if (self->rank < 3) sum(self, 1024);
  if (self->rank > 1) return;
  MUST(cudaStreamCreate(&second));
  MUST(ncclAllReduce(self->in, self->out, 1024, ncclFloat, ncclSum, self->other, second));
}

/* TUTTI_EMU injects the fault. */
static void fault(struct rank *self) { sum(self, ELEMENTS / 2); }

static void fault_small(struct rank *self) { sum(self, 1024); }

static void fault_graph(struct rank *self) { graph_launches(self, capture(self, fault), 3); }

/* Messages between all ranks, short ones to higher ranks and long ones to lower: both protocols in a group,
 * and another one in each direction. */
static void fault_messages(struct rank *self) {
  for (int round = 0; round < 3; round++) {
    MUST(ncclGroupStart());
    for (int peer = 0; peer < RANKS; peer++) {
      const size_t to = self->rank < peer ? 256 : 100000, from = peer < self->rank ? 256 : 100000;
      float *in = self->in + (size_t)peer * 100000, *out = self->out + (size_t)peer * 100000;
      if (peer == self->rank) continue;
      MUST(ncclSend(in, to, ncclFloat, peer, self->comm, self->stream));
      MUST(ncclRecv(out, from, ncclFloat, peer, self->comm, self->stream));
    }
    MUST(ncclGroupEnd());
  }
}

static const struct scenario {
  const char *name;
  void (*body)(struct rank *self);
  uint32_t waiting; /* ranks whose lanes wait at the end */
  bool holds;       /* a kernel never starts */
  bool second;      /* there is a second communicator */
  bool guarded;     /* the same on each run; the hang is detected by waiting for it */
} scenarios[] = {{"fine", fine, 0, false, false, false},
                 {"absent", absent, 3, false, false, false},
                 {"destroyed", destroyed, 3, false, false, false},
                 {"collective", collective, 1, false, false, false},
                 {"count", count, 1, false, false, false},
                 {"type", type, 1, false, false, false},
                 {"operator", operator_differs, 0, false, false, false},
                 {"root", root, 1, false, false, false},
                 {"order", order, 1, false, false, false},
                 {"send_alone", send_alone, 1, false, false, false},
                 {"recv_alone", recv_alone, 1, false, false, false},
                 {"message_count", message_count, 1, false, false, false},
                 {"communicator", communicator, 4, false, true, false},
                 {"slow", slow, 0, false, false, false},
                 {"slow_forever", slow_forever, 0, false, false, false},
                 {"slow_link", slow_link, 0, false, false, false},
                 {"graph", graph, 3, false, false, false},
                 {"graph_blocked", graph_blocked, 3, true, false, false},
                 {"graph_mixed", graph_mixed, 3, true, true, false},
                 {"open_group", open_group, 3, false, false, false},
                 {"refused", refused, 3, false, false, false},
                 {"blocked", blocked, 3, true, false, false},
                 {"cycle", cycle, 4, true, true, false},
                 {"behind", behind, 5, true, true, false},
                 {"fault", fault, 0, false, false, true},
                 {"fault_small", fault_small, 0, false, false, true},
                 {"fault_graph", fault_graph, 0, false, false, true},
                 {"fault_messages", fault_messages, 0, false, false, true}};

static const struct scenario *scenario;

/* ---- waiting ---- */

/* Counts ranks of this process that wait or have failed; *moving: a rank still makes progress. */
static uint32_t ranks_waiting(bool *moving) {
  struct record_file file;
  size_t bytes = 0;
  uint32_t waiting = 0;
  char *memory = os_file_read(recorder_path(), &bytes);
  *moving = false;
  must(memory != NULL && record_file_read("own", memory, bytes, NULL, &file) == ncclSuccess, "own file");
  for (uint32_t i = 0; i < file.view_count; i++) {
    const struct record_view *view = &file.views[i];
    bool waits = view->comm->error != 0;
    for (uint32_t row = 0; row < view->lane_rows; row++) waits = waits || view->lanes[row].used != 0;
    waiting += waits;
    const uint64_t begun = scenario->holds ? view->comm->started : view->comm->launched;
    *moving = *moving || (!waits && begun != view->comm->ended);
  }
  record_file_free(&file);
  os_free(memory);
  return waiting;
}

static pthread_barrier_t bodies_done;

static void *rank_thread(void *argument) {
  struct rank *self = (struct rank *)argument;
  MUST(cudaSetDevice(self->rank));
  scenario->body(self);
  called++;
  pthread_barrier_wait(&bodies_done);
  for (;;) os_sleep_ms(1000);
  return NULL;
}

static void ranks_make(struct rank ranks[RANKS]) {
  ncclComm_t comms[RANKS];
  ncclConfig_t named = NCCL_CONFIG_INITIALIZER;
  const tutti_emu_config_t config = {.size = sizeof config, .threads = 1, .device_count = RANKS};
  if (!scenario->guarded) MUST(tutti_emu_configure(&config));
  MUST(ncclCommInitAll(comms, RANKS, NULL));
  for (int rank = 0; rank < RANKS; rank++) {
    struct rank *self = &ranks[rank];
    self->rank = rank;
    self->comm = comms[rank];
    self->other = NULL;
    MUST(cudaSetDevice(rank));
    MUST(cudaStreamCreate(&self->stream));
    MUST(cudaMalloc((void **)&self->in, ELEMENTS * sizeof(float)));
    MUST(cudaMalloc((void **)&self->out, ELEMENTS * sizeof(float)));
  }
  named.commName = "other";
  MUST(ncclGroupStart());
  for (int rank = 0; rank < RANKS && scenario->second; rank++)
    MUST(ncclCommSplit(comms[rank], 0, rank, &ranks[rank].other, &named));
  MUST(ncclGroupEnd());
}

int main(int argc, char **argv) {
  static struct rank ranks[RANKS];
  static struct turns turns;
  setenv("NCCL_CHECK_MODE", "LOCAL", 0); /* calls that differ hang here */
  for (size_t i = 0; argc >= 2 && i < sizeof scenarios / sizeof scenarios[0]; i++)
    if (strcmp(scenarios[i].name, argv[1]) == 0) scenario = &scenarios[i];
  if (scenario == NULL) return 2;
  ranks_make(ranks);
  pthread_barrier_init(&bodies_done, NULL, RANKS + 1);
  for (int rank = 0; rank < RANKS; rank++) {
    pthread_t thread;
    must(pthread_create(&thread, NULL, rank_thread, &ranks[rank]) == 0, "pthread_create");
  }
  pthread_barrier_wait(&bodies_done);
  for (int rank = 0; rank < RANKS && scenario->guarded; rank++) cudaStreamSynchronize(ranks[rank].stream);
  if (scenario->guarded) kill(getpid(), SIGKILL);
  turns_note(&turns);
  uint32_t still = 0; /* consecutive polls that found them waiting: waits are recorded anew at times */
  for (uint32_t waited_ms = 0; waited_ms < DEADLINE_MS; waited_ms += 10) {
    bool moving = false;
    const bool hangs = ranks_waiting(&moving) >= scenario->waiting && !moving;
    if (!hangs || still == 0) turns_note(&turns);
    still = hangs ? still + 1 : 0;
    if (still >= STILL_LOOKS && turns_passed(&turns, STILL_NS)) {
      os_sleep_ms(argc > 2 ? 1000 * (unsigned)strtoul(argv[2], NULL, 10) : 0);
      kill(getpid(), SIGKILL);
    }
    if (still >= STILL_LOOKS) still = 0;
    os_sleep_ms(10);
  }
  return 124;
}
