/* diagnosis_case.c: draws runs, and executes those that need one process: one thread per rank makes its
 * calls, then a thread waits for the streams. */
#include "diagnosis_case.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cuda_runtime.h>
#include <nccl.h>
#include <tutti.h>

#include "base/hash.h"
#include "base/os.h"
#include "base/turns.h"
#include "must.h"
#include "trace/record_read.h"
#include "trace/recorder.h"

#define DEADLINE_MS 40000
#define STILL_LOOKS 20
#define STILL_NS 1000000u /* how long each polling thread sleeps */
#define ELEMENTS_MOST 40000u

const char *const injected_names[INJECTED_KINDS] = {
    "nothing",  "absent",     "destroyed", "behind",       "collective", "count",      "type",
    "operator", "root",       "order",     "communicator", "send_alone", "recv_alone", "message_count",
    "refused",  "open_group", "blocked",   "cycle",        "slow",       "freeze",     "stale",
    "corrupt",  "drop",       "stop",      "cut",          "reset",      "hold",       "refuse",
    "linger",   "died",       "no_file",   "not_met",      "slow_link",  "graph"};

/* ---- drawing ---- */

static uint32_t draw(struct trial *trial, uint32_t low, uint32_t high) {
  return low + (uint32_t)(hash_draw(&trial->random) % (high - low + 1));
}

static bool step_reduces(const struct step *step) {
  return step->kind == STEP_ALL_REDUCE || step->kind == STEP_REDUCE || step->kind == STEP_REDUCE_SCATTER;
}
static bool step_is_rooted(const struct step *step) {
  return step->kind == STEP_BROADCAST || step->kind == STEP_REDUCE;
}

static uint32_t draw_count(struct trial *trial) {
  static const uint32_t scales[] = {16, 1000, 8000, ELEMENTS_MOST};
  const uint32_t most = scales[draw(trial, 0, 3)];
  return draw(trial, 1, trial->rank_count > 8 && most > 4000 ? 4000 : most);
}

static struct step draw_step(struct trial *trial, bool shifts) {
  static const uint8_t types[] = {ncclInt8, ncclInt32, ncclFloat, ncclDouble};
  const struct step step = {.kind = (uint8_t)draw(trial, 0, shifts ? STEP_SHIFT : STEP_REDUCE),
                            .dtype = types[draw(trial, 0, 3)],
                            .op = (uint8_t)draw(trial, ncclSum, ncclMin),
                            .peer = draw(trial, 0, trial->rank_count - 1),
                            .count = draw_count(trial)};
  return step;
}

static bool steps_differ(const struct step *a, const struct step *b) {
  return a->kind != b->kind || a->count != b->count || a->dtype != b->dtype ||
         (step_reduces(a) && a->op != b->op) || (step_is_rooted(a) && a->peer != b->peer);
}

/* A call that differs from the others' at this place. */
static void draw_wrong(struct trial *trial) {
  struct step *right = &trial->steps[trial->place], *wrong = &trial->wrong;
  if (trial->fault == INJECTED_OPERATOR && !step_reduces(right)) right->kind = STEP_ALL_REDUCE;
  if (trial->fault == INJECTED_ROOT && !step_is_rooted(right)) right->kind = STEP_BROADCAST;
  if (right->kind == STEP_SHIFT) right->kind = STEP_ALL_GATHER;
  *wrong = *right;
  switch (trial->fault) {
    case INJECTED_COLLECTIVE: wrong->kind = (uint8_t)((right->kind + draw(trial, 1, 4)) % STEP_SHIFT); break;
    case INJECTED_COUNT: wrong->count += draw(trial, 1, 2 * right->count); break;
    case INJECTED_TYPE: wrong->dtype = right->dtype == ncclDouble ? ncclFloat : ncclDouble; break;
    case INJECTED_OPERATOR: wrong->op = (uint8_t)((right->op + draw(trial, 1, 3)) % ncclAvg); break;
    case INJECTED_ROOT:
      wrong->peer = (right->peer + draw(trial, 1, trial->rank_count - 1)) % trial->rank_count;
      break;
    case INJECTED_COMMUNICATOR: wrong->comm = 1; break;
    default: break;
  }
}

/* Two calls in another order on the root cause; a later message of another kind follows. */
static void draw_order(struct trial *trial) {
  struct step *first = &trial->steps[trial->place], *second = first + 1;
  if (first->kind == STEP_SHIFT) first->kind = STEP_ALL_REDUCE;
  if (second->kind == STEP_SHIFT) second->kind = STEP_ALL_GATHER;
  while (!steps_differ(first, second)) second->count += 1;
  trial->wrong = *second;
}

static void draw_message(struct trial *trial) {
  struct step *right = &trial->steps[trial->place];
  right->kind = STEP_SEND;
  right->peer = trial->root_cause;
  trial->wrong = *right;
  trial->wrong.kind = STEP_RECV;
  trial->wrong.peer = trial->other;
  trial->wrong.count += draw(trial, 1, right->count);
  for (uint32_t i = trial->place + 1; i < trial->step_count; i++) /* no later message can match it */
    if (trial->steps[i].kind == STEP_SHIFT) trial->steps[i].kind = STEP_ALL_GATHER;
  if (trial->fault == INJECTED_SEND_ALONE) right->dtype = ncclDouble, right->count = ELEMENTS_MOST;
}

static bool fault_is_network(enum injected fault) {
  return (fault >= INJECTED_DROP && fault < INJECTED_DIED) || fault == INJECTED_SLOW_LINK;
}

static bool fault_needs_threads(enum injected fault) {
  return fault == INJECTED_DESTROYED || fault == INJECTED_BEHIND || fault == INJECTED_OPEN_GROUP ||
         fault == INJECTED_BLOCKED || fault == INJECTED_SLOW || fault == INJECTED_REFUSED ||
         fault == INJECTED_SLOW_LINK;
}

static void draw_sizes(struct trial *trial) {
  static const uint32_t sizes[] = {2, 4, 8, 16, 32};
  const uint32_t most = sizes[draw(trial, 0, 4)];
  trial->rank_count = draw(trial, most > 2 ? most / 2 + 1 : 2, most);
  trial->node_count = 1;
  if (fault_is_network(trial->fault)) {
    trial->node_count = draw(trial, 2, 4);
    trial->rank_count = trial->node_count * draw(trial, 1, trial->fault == INJECTED_SLOW_LINK ? 4 : 8);
  }
  trial->process_count = 0;
  if (trial->fault < INJECTED_DIED || trial->fault > INJECTED_NOT_MET) return;
  trial->process_count = draw(trial, 2, 4);
  trial->rank_count = trial->process_count * draw(trial, 1, 3);
}

/* Kinds added later are drawn from numbers of their own, so that earlier runs stay the same. */
static enum injected draw_fault(struct trial *trial) {
  const uint64_t late = trial->random >> 60;
  const uint32_t fault = draw(trial, 0, INJECTED_NOT_MET);
  return late == 0 ? INJECTED_SLOW_LINK : late == 1 ? INJECTED_GRAPH : (enum injected)fault;
}

/* Slow-link detection compares connections: the same call repeatedly, as in a job. */
static void draw_slow_link(struct trial *trial) {
  struct step *first = &trial->steps[0];
  trial->step_count = 12;
  if (first->count > 1000) first->count = 1000;
  if (step_is_rooted(first)) first->kind = STEP_ALL_REDUCE; /* every link must be used */
  for (uint32_t i = 1; i < trial->step_count; i++) trial->steps[i] = *first;
  trial->fault_at = draw(trial, 1, trial->rank_count);
}

void trial_draw(struct trial *trial, uint64_t seed) {
  memset(trial, 0, sizeof *trial);
  trial->seed = seed;
  trial->random = seed * 0x9e3779b97f4a7c15u + 1;
  trial->fault = draw_fault(trial);
  trial->threads = draw(trial, 0, 1) != 0;
  if (fault_needs_threads(trial->fault)) trial->threads = true;
  if (trial->fault >= INJECTED_FREEZE && trial->fault != INJECTED_GRAPH)
    trial->threads = trial->fault >= INJECTED_DIED;
  draw_sizes(trial);
  trial->step_count = draw(trial, 3, 8);
  if (trial->fault == INJECTED_SLOW) trial->step_count = 12;
  trial->place = draw(trial, 0, trial->step_count - 2);
  trial->root_cause = draw(trial, 0, trial->rank_count - 1);
  trial->other = (trial->root_cause + draw(trial, 1, trial->rank_count - 1)) % trial->rank_count;
  trial->half = (hash_draw(&trial->random) & ~(UINT64_C(1) << trial->root_cause)) | UINT64_C(1)
                                                                                        << trial->other;
  for (uint32_t i = 0; i < trial->step_count; i++)
    trial->steps[i] = draw_step(trial, trial->fault != INJECTED_SLOW && trial->fault != INJECTED_GRAPH);
  trial->steps[trial->step_count - 1].kind = STEP_ALL_REDUCE; /* all ranks wait for a missing one */
  if (trial->fault == INJECTED_BEHIND) trial->steps[trial->place].kind = STEP_ALL_REDUCE;
  trial->fault_at = draw(trial, 1, draw(trial, 0, 1) ? 20 : 120);
  if (trial->fault >= INJECTED_COLLECTIVE && trial->fault <= INJECTED_COMMUNICATOR &&
      trial->fault != INJECTED_ORDER)
    draw_wrong(trial);
  if (trial->fault == INJECTED_ORDER) draw_order(trial);
  if (trial->fault == INJECTED_SLOW_LINK) draw_slow_link(trial);
  if (trial->fault == INJECTED_NOT_MET && trial->root_cause < trial->rank_count / trial->process_count)
    trial->root_cause = trial->rank_count - 1; /* the first process makes the id */
  if (trial->fault >= INJECTED_SEND_ALONE && trial->fault <= INJECTED_MESSAGE_COUNT) draw_message(trial);
}

/* ---- a rank's calls ---- */

struct rank {
  const struct trial *trial;
  uint32_t rank;
  ncclComm_t comms[2];
  cudaStream_t stream, second;
  uint8_t *in, *out;
};

/* Messages from every rank to the next. */
static void shift(const struct rank *self, const struct step *step, ncclComm_t comm) {
  const int count = (int)self->trial->rank_count, rank = (int)self->rank;
  ncclGroupStart();
  ncclSend(self->in, step->count, (ncclDataType_t)step->dtype, (rank + 1) % count, comm, self->stream);
  ncclRecv(self->out, step->count, (ncclDataType_t)step->dtype, (rank + count - 1) % count, comm,
           self->stream);
  ncclGroupEnd();
}

/* Errors are ignored: a communicator may have failed by now. */
static void step_call(const struct rank *self, const struct step *step, cudaStream_t stream) {
  const ncclDataType_t type = (ncclDataType_t)step->dtype;
  const ncclRedOp_t op = (ncclRedOp_t)step->op;
  ncclComm_t comm = self->comms[step->comm];
  const int peer = (int)step->peer;
  switch ((enum step_kind)step->kind) {
    case STEP_ALL_REDUCE: ncclAllReduce(self->in, self->out, step->count, type, op, comm, stream); break;
    case STEP_ALL_GATHER: ncclAllGather(self->in, self->out, step->count, type, comm, stream); break;
    case STEP_REDUCE_SCATTER:
      ncclReduceScatter(self->in, self->out, step->count, type, op, comm, stream);
      break;
    case STEP_BROADCAST: ncclBroadcast(self->in, self->out, step->count, type, peer, comm, stream); break;
    case STEP_REDUCE: ncclReduce(self->in, self->out, step->count, type, op, peer, comm, stream); break;
    case STEP_SHIFT: shift(self, step, comm); break;
    case STEP_SEND: ncclSend(self->in, step->count, type, peer, comm, stream); break;
    case STEP_RECV: ncclRecv(self->out, step->count, type, peer, comm, stream); break;
    case STEP_KINDS: break;
  }
}

static void never_ends(void *argument) {
  (void)argument;
  for (;;) os_sleep_ms(1000);
}

/* All ranks use both communicators, some in the other order. */
static void cycle_step(const struct rank *self, const struct step *step) {
  const bool swaps = (self->trial->half >> self->rank & 1) != 0;
  for (uint8_t i = 0; i < 2; i++) {
    struct step each = *step;
    each.kind = STEP_ALL_REDUCE; /* each waits for all */
    each.comm = swaps ? 1 - i : i;
    step_call(self, &each, self->stream);
  }
}

/* What the others do while one rank is absent and another waits for it. */
static void behind_step(struct rank *self, uint32_t place) {
  const struct trial *trial = self->trial;
  step_call(self, &trial->steps[place], self->stream);
  if (self->rank == trial->other) return;
  struct step second = trial->steps[0];
  second.kind = STEP_ALL_REDUCE;
  second.comm = 1;
  step_call(self, &second, self->second);
}

/* Applies the fault to one rank's step; true: the rank's program ends here. */
static bool wrong_step(struct rank *self, uint32_t place) {
  const struct trial *trial = self->trial;
  const struct step *right = &trial->steps[place];
  struct step bad = *right;
  switch (trial->fault) {
    case INJECTED_ABSENT:
    case INJECTED_BEHIND: return true;
    case INJECTED_DESTROYED:
      cudaStreamSynchronize(self->stream);
      ncclCommDestroy(self->comms[0]);
      return true;
    case INJECTED_REFUSED:
      if (step_reduces(right)) bad.op = 77;
      else bad.kind = STEP_BROADCAST, bad.peer = 4711;
      step_call(self, &bad, self->stream);
      return true;
    case INJECTED_OPEN_GROUP: ncclGroupStart(); break;
    case INJECTED_BLOCKED: MUST(cudaLaunchHostFunc(self->stream, never_ends, NULL)); break;
    default: step_call(self, &trial->wrong, self->stream); return false;
  }
  step_call(self, right, self->stream);
  return false;
}

static bool fault_is_wrong_step(enum injected fault) {
  return fault != INJECTED_NOTHING && fault < INJECTED_CYCLE && fault != INJECTED_MESSAGE_COUNT &&
         fault != INJECTED_SEND_ALONE && fault != INJECTED_RECV_ALONE;
}

/* Two ranks, one of which need not be affected. */
static void message_step(const struct rank *self, const struct step *step) {
  const struct trial *trial = self->trial;
  if (self->rank == trial->other && trial->fault != INJECTED_RECV_ALONE) step_call(self, step, self->stream);
  if (self->rank == trial->root_cause && trial->fault != INJECTED_SEND_ALONE)
    step_call(self, &trial->wrong, self->stream);
}

/* True: the rank's program ends here. */
static bool rank_step(struct rank *self, uint32_t i) {
  const struct trial *trial = self->trial;
  const bool root_cause = self->rank == trial->root_cause, here = i == trial->place;
  if (trial->fault == INJECTED_SLOW) {
    if (root_cause) os_sleep_ms(4 + trial->rank_count);
    step_call(self, &trial->steps[i], self->stream);
    return trial->half % 3 != 0 && cudaStreamSynchronize(self->stream) != cudaSuccess;
  }
  if (trial->fault == INJECTED_ORDER && root_cause && i == trial->place + 1) {
    step_call(self, &trial->steps[i - 1], self->stream);
    return false;
  }
  if (here && fault_is_wrong_step(trial->fault) && root_cause) return wrong_step(self, i);
  if (here && trial->steps[i].kind == STEP_SEND) message_step(self, &trial->steps[i]);
  else if (here && trial->fault == INJECTED_CYCLE) cycle_step(self, &trial->steps[i]);
  else if (here && trial->fault == INJECTED_BEHIND) behind_step(self, i);
  else step_call(self, &trial->steps[i], self->stream);
  return here && trial->fault == INJECTED_BEHIND;
}

/* All calls as one graph. */
static void graph_run(struct rank *self) {
  const struct trial *trial = self->trial;
  const uint32_t launches = 1 + trial->place - (self->rank == trial->root_cause);
  cudaGraph_t captured;
  cudaGraphExec_t graph;
  MUST(cudaStreamBeginCapture(self->stream, cudaStreamCaptureModeThreadLocal));
  for (uint32_t i = 0; i < trial->step_count; i++) step_call(self, &trial->steps[i], self->stream);
  MUST(cudaStreamEndCapture(self->stream, &captured));
  MUST(cudaGraphInstantiate(&graph, captured, 0));
  for (uint32_t i = 0; i < launches; i++) MUST(cudaGraphLaunch(graph, self->stream));
}

static pthread_barrier_t all_called;

static void *rank_thread(void *argument) {
  struct rank *self = (struct rank *)argument;
  MUST(cudaSetDevice((int)self->rank));
  if (self->trial->fault == INJECTED_GRAPH) graph_run(self);
  else
    for (uint32_t i = 0; i < self->trial->step_count; i++)
      if (rank_step(self, i)) break;
  pthread_barrier_wait(&all_called);
  for (;;) os_sleep_ms(1000);
  return NULL;
}

/* ---- the process ---- */

static void world_make(const struct trial *trial, struct rank *ranks) {
  ncclComm_t comms[CASE_RANKS];
  ncclConfig_t named = NCCL_CONFIG_INITIALIZER;
  const bool second = trial->fault == INJECTED_CYCLE || trial->fault == INJECTED_BEHIND ||
                      trial->fault == INJECTED_COMMUNICATOR;
  const size_t bytes = (size_t)ELEMENTS_MOST * 3 * 8 * (trial->rank_count > 8 ? 4 : 8);
  MUST(ncclCommInitAll(comms, (int)trial->rank_count, NULL));
  for (uint32_t rank = 0; rank < trial->rank_count; rank++) {
    struct rank *self = &ranks[rank];
    *self = (struct rank){.trial = trial, .rank = rank, .comms = {comms[rank], NULL}};
    MUST(cudaSetDevice((int)rank));
    MUST(cudaStreamCreate(&self->stream));
    MUST(cudaStreamCreate(&self->second));
    MUST(cudaMalloc((void **)&self->in, bytes));
    MUST(cudaMalloc((void **)&self->out, bytes));
  }
  named.commName = "other";
  MUST(ncclGroupStart());
  for (uint32_t rank = 0; rank < trial->rank_count && second; rank++)
    MUST(ncclCommSplit(comms[rank], 0, (int)rank, &ranks[rank].comms[1], &named));
  MUST(ncclGroupEnd());
}

/* In threads mode every running kernel has a lane that waits; returns the sum of their marks. */
static bool all_hang(uint64_t *mark) {
  struct record_file file;
  size_t bytes = 0;
  bool hangs = true;
  char *memory = os_file_read(recorder_path(), &bytes);
  must(memory != NULL && record_file_read("own", memory, bytes, NULL, &file) == ncclSuccess, "own file");
  *mark = HASH_SEED;
  for (uint32_t i = 0; i < file.view_count; i++) {
    const struct record_view *view = &file.views[i];
    bool waits = view->comm->error != 0;
    for (uint32_t row = 0; row < view->lane_rows; row++) waits = waits || view->lanes[row].used != 0;
    const uint64_t numbers[] = {view->comm->calls, view->comm->launched, view->comm->started,
                                view->comm->ended};
    *mark = hash_bytes(*mark, numbers, sizeof numbers);
    hangs = hangs && (waits || view->comm->started == view->comm->ended);
  }
  record_file_free(&file);
  os_free(memory);
  return hangs;
}

static void threads_settle(void) {
  static struct turns turns;
  uint32_t still = 0;
  uint64_t before = 0;
  turns_note(&turns);
  for (uint32_t waited_ms = 0; waited_ms < DEADLINE_MS; waited_ms += 10) {
    uint64_t mark;
    const bool hangs = all_hang(&mark);
    const bool same = hangs && mark == before;
    before = mark;
    if (!same || still == 0) turns_note(&turns);
    still = same ? still + 1 : 0;
    if (still >= STILL_LOOKS && turns_passed(&turns, STILL_NS)) return;
    if (still >= STILL_LOOKS) still = 0;
    os_sleep_ms(10);
  }
  _exit(124);
}

/* No hang: every call completes, fast or slow. */
static bool trial_ends(const struct trial *trial) {
  return trial->fault == INJECTED_NOTHING || trial->fault == INJECTED_SLOW ||
         trial->fault == INJECTED_SLOW_LINK;
}

_Noreturn void trial_run(const struct trial *trial) {
  static struct rank ranks[CASE_RANKS];
  world_make(trial, ranks);
  pthread_barrier_init(&all_called, NULL, trial->rank_count + 1);
  for (uint32_t rank = 0; rank < trial->rank_count; rank++) {
    pthread_t thread;
    must(pthread_create(&thread, NULL, rank_thread, &ranks[rank]) == 0, "pthread_create");
  }
  pthread_barrier_wait(&all_called);
  const bool ends = trial_ends(trial);
  if (trial->threads && !ends) threads_settle();
  for (uint32_t rank = 0; rank < trial->rank_count && (ends || !trial->threads); rank++) {
    cudaStreamSynchronize(ranks[rank].stream);
    cudaStreamSynchronize(ranks[rank].second);
  }
  kill(getpid(), SIGKILL);
  _exit(3);
}
