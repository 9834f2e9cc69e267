/* copies.c: collectives that copy engines carry out (NCCL_CTA_POLICY_ZERO) with outputs in symmetric windows:
 *
 *   copies [MODE [RANKS]]
 *
 * Ranks are processes, or with mode `together` all in one. Without a mode: `data`, `kernels` and
 * `together`. */
#include "rendezvous.h"

#define CANNOT_RUN 77
enum { COUNT = 3000, ROUNDS = 3, FUNCS = 5 };

/* One rank of this process. */
struct rank {
  int rank;
  ncclComm_t comm;
  cudaStream_t stream;
  ncclWindow_t window;
  int *memory; /* the window: outputs begin at COUNT elements */
  int *local;  /* inputs, in no window */
  int *seen;   /* of the host: what the stream has read of the output */
};

static struct {
  int size, count; /* count: ranks of this process */
  struct rank ranks[RANKS_MAX];
} run;

static size_t blocks_bytes(int blocks) { return (size_t)blocks * COUNT * sizeof(int); }

static void rank_open(struct rank *self) {
  need_device(self->rank);
  NEED(cudaStreamCreateWithFlags(&self->stream, cudaStreamNonBlocking));
  NEED(ncclMemAlloc((void **)&self->memory, blocks_bytes(run.size + 1)));
  NEED(cudaMalloc((void **)&self->local, blocks_bytes(run.size)));
  NEED(cudaMallocHost((void **)&self->seen, blocks_bytes(run.size)));
  NEED(ncclCommWindowRegister(self->comm, self->memory, blocks_bytes(run.size + 1), &self->window,
                              NCCL_WIN_COLL_SYMMETRIC));
}

static void open_all(int first, int count) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.CTAPolicy = NCCL_CTA_POLICY_ZERO;
  run.count = count;
  if (first == 0) {
    NEED(ncclGetUniqueId(&rendezvous->id));
    __atomic_store_n(&rendezvous->id_is_set, 1, __ATOMIC_RELEASE);
  }
  while (__atomic_load_n(&rendezvous->id_is_set, __ATOMIC_ACQUIRE) == 0) usleep(50);
  NEED(ncclGroupStart());
  for (int i = 0; i < count; i++) {
    run.ranks[i].rank = first + i;
    need_device(first + i);
    NEED(ncclCommInitRankConfig(&run.ranks[i].comm, run.size, rendezvous->id, first + i, &config));
  }
  NEED(ncclGroupEnd());
  for (int i = 0; i < count; i++) rank_open(&run.ranks[i]);
}

static void close_all(int aborts) {
  for (int i = 0; i < run.count; i++) {
    struct rank *self = &run.ranks[i];
    need_device(self->rank);
    if (aborts) NEED(ncclCommAbort(self->comm));
    const cudaError_t ended = cudaStreamSynchronize(self->stream);
    NEED(aborts ? cudaSuccess : ended); /* another rank may have aborted first */
    if (!aborts) NEED(ncclCommWindowDeregister(self->comm, self->window));
  }
  for (int i = 0; i < run.count; i++) {
    struct rank *self = &run.ranks[i];
    need_device(self->rank);
    if (!aborts) NEED(ncclCommDestroy(self->comm));
    NEED(ncclMemFree(self->memory));
    NEED(cudaFree(self->local));
    NEED(cudaFreeHost(self->seen));
    NEED(cudaStreamDestroy(self->stream));
  }
}

/* ---- the collectives ---- */

enum func { BROADCAST, ALL_GATHER, ALL_TO_ALL, GATHER, SCATTER };

struct call {
  enum func func;
  int root, in_place;
  size_t at; /* element of the window where the output begins */
};

static int value_of(int round, int from, int block, int i) {
  return ((round * 8 + from) * 8 + block) * COUNT + i;
}

/* Where the rank's input begins: its block of the output if the call is in place. */
static int *input_of(const struct rank *self, const struct call *call) {
  int *out = self->memory + call->at;
  if (!call->in_place) return self->local;
  if (call->func == ALL_GATHER || (call->func == GATHER && call->root == self->rank))
    return out + self->rank * COUNT;
  if (call->func == SCATTER) return self->memory + call->at;
  return call->func == BROADCAST && call->root == self->rank ? out : self->local;
}

/* Where its output begins: of a scatter in place, its block of what the root has there. */
static int *output_of(const struct rank *self, const struct call *call) {
  const int by_rank = call->func == SCATTER && call->in_place;
  return self->memory + call->at + (by_rank ? self->rank * COUNT : 0);
}

static void call_make(const struct rank *self, const struct call *call) {
  const int *in = input_of(self, call);
  int *out = output_of(self, call);
  need_device(self->rank);
  if (call->func == BROADCAST)
    NEED(ncclBroadcast(in, out, COUNT, ncclInt, call->root, self->comm, self->stream));
  if (call->func == ALL_GATHER) NEED(ncclAllGather(in, out, COUNT, ncclInt, self->comm, self->stream));
  if (call->func == ALL_TO_ALL) NEED(ncclAlltoAll(in, out, COUNT, ncclInt, self->comm, self->stream));
  if (call->func == GATHER) NEED(ncclGather(in, out, COUNT, ncclInt, call->root, self->comm, self->stream));
  if (call->func == SCATTER) NEED(ncclScatter(in, out, COUNT, ncclInt, call->root, self->comm, self->stream));
}

/* The rank's input of the round, and nothing of earlier ones in its output. */
static void input_set(const struct rank *self, const struct call *call, int round) {
  int *in = input_of(self, call);
  const int blocks = in == self->local || call->func == SCATTER ? run.size : 1;
  static int host[RANKS_MAX * COUNT];
  for (int i = 0; i < blocks * COUNT; i++) host[i] = value_of(round, self->rank, i / COUNT, i % COUNT);
  need_device(self->rank);
  NEED(cudaMemsetAsync(self->memory + call->at, 0xee, blocks_bytes(run.size), self->stream));
  NEED(cudaMemcpyAsync(in, host, blocks_bytes(blocks), cudaMemcpyHostToDevice, self->stream));
  NEED(cudaStreamSynchronize(self->stream));
}

/* The stream reads the output: the next call must not write into it before. */
static void output_read(const struct rank *self, const struct call *call) {
  need_device(self->rank);
  const int blocks = call->func == BROADCAST || call->func == SCATTER ? 1 : run.size;
  NEED(cudaMemcpyAsync(self->seen, output_of(self, call), blocks_bytes(blocks), cudaMemcpyDeviceToHost,
                       self->stream));
}

static void output_check(const struct rank *self, const struct call *call, int round) {
  const int single = call->func == BROADCAST || call->func == SCATTER;
  const int blocks = call->func == GATHER && call->root != self->rank ? 0 : single ? 1 : run.size;
  NEED(cudaStreamSynchronize(self->stream));
  for (int i = 0; i < blocks * COUNT; i++) {
    const int from = single ? call->root : i / COUNT;
    const int block = call->func == ALL_TO_ALL || call->func == SCATTER ? self->rank : 0;
    if (self->seen[i] == value_of(round, from, block, i % COUNT)) continue;
    fprintf(stderr, "rank %d: function %d root %d: element %d of round %d is %d, not %d\n", self->rank,
            (int)call->func, call->root, i, round, self->seen[i], value_of(round, from, block, i % COUNT));
    exit(1);
  }
}

static void call_run(const struct call *call) {
  for (int round = 0; round < ROUNDS; round++) {
    for (int i = 0; i < run.count; i++) input_set(&run.ranks[i], call, round);
    NEED(ncclGroupStart());
    for (int i = 0; i < run.count; i++) call_make(&run.ranks[i], call);
    NEED(ncclGroupEnd());
    for (int i = 0; i < run.count; i++) output_read(&run.ranks[i], call);
    for (int i = 0; i < run.count; i++) output_check(&run.ranks[i], call, round);
  }
}

/* A signal of the program's between collectives is the program's. */
static void signal_next(int puts) {
  for (int i = 0; i < run.count; i++) {
    const struct rank *self = &run.ranks[i];
    ncclWaitSignalDesc_t desc = {1, (self->rank + run.size - 1) % run.size, 0, 0};
    need_device(self->rank);
    if (puts) NEED(ncclSignal((self->rank + 1) % run.size, 0, 0, 0, self->comm, self->stream));
    else NEED(ncclWaitSignal(1, &desc, self->comm, self->stream));
  }
}

/* One group of several calls, and of a reduction, which takes a kernel. */
static void group_run(void) {
  const struct call gather = {ALL_GATHER, 0, 0, 0};
  const struct call bcast = {BROADCAST, run.size - 1, 0, (size_t)run.size * COUNT};
  for (int i = 0; i < run.count; i++) input_set(&run.ranks[i], &gather, 5);
  NEED(ncclGroupStart());
  for (int i = 0; i < run.count; i++) {
    const struct rank *self = &run.ranks[i];
    call_make(self, &gather);
    NEED(ncclAllReduce(self->local + COUNT, self->local + COUNT, COUNT, ncclInt, ncclSum, self->comm,
                       self->stream));
    call_make(self, &bcast);
  }
  NEED(ncclGroupEnd());
  for (int i = 0; i < run.count; i++) {
    output_read(&run.ranks[i], &gather);
    output_check(&run.ranks[i], &gather, 5);
  }
  /* Of the broadcast one block is there. */
  for (int i = 0; i < run.count; i++) {
    const struct rank *self = &run.ranks[i];
    need_device(self->rank);
    NEED(cudaMemcpyAsync(self->seen, self->memory + bcast.at, blocks_bytes(1), cudaMemcpyDeviceToHost,
                         self->stream));
    output_check(self, &bcast, 5);
  }
}

/* ---- modes ---- */

static void each_call(int signals) {
  for (int func = 0; func < FUNCS; func++)
    for (int root = 0; root < (func == ALL_GATHER || func == ALL_TO_ALL ? 1 : run.size); root++)
      for (int in_place = 0; in_place < 2; in_place++) {
        const struct call call = {(enum func)func, root, in_place, (size_t)(func % 2) * COUNT};
        if (signals) signal_next(1);
        call_run(&call);
        if (signals) signal_next(0);
      }
}

static void data(void) {
  each_call(1);
  group_run();
  close_all(0);
}

static void calls(void) {
  each_call(0);
  close_all(0);
}

/* Outputs in no window, and calls that are captured: kernels carry them out. */
static void kernels(void) {
  const struct call call = {ALL_GATHER, 0, 0, 0};
  for (int i = 0; i < run.count; i++) {
    need_device(run.ranks[i].rank);
    NEED(ncclCommWindowDeregister(run.ranks[i].comm, run.ranks[i].window));
  }
  call_run(&call);
  for (int i = 0; i < run.count; i++) {
    struct rank *self = &run.ranks[i];
    NEED(ncclCommWindowRegister(self->comm, self->memory, blocks_bytes(run.size + 1), &self->window,
                                NCCL_WIN_DEFAULT));
  }
  call_run(&call); /* not a symmetric one */
  close_all(0);
}

/* Rank 0 is root. */
static void differ_run(const int *in, int *out, int scatters) {
  struct rank *self = &run.ranks[0];
  ncclResult_t error = scatters ? ncclScatter(in, out, COUNT, ncclInt, 0, self->comm, self->stream)
                                : ncclAllGather(in, out, COUNT, ncclInt, self->comm, self->stream);
  cudaStreamSynchronize(self->stream);
  while (error == ncclSuccess) NEED(ncclCommGetAsyncError(self->comm, &error));
  NEED(error != ncclInvalidUsage);
  NEED(strstr(ncclGetLastError(self->comm), "different places of outputs in symmetric windows") == NULL);
  rendezvous_barrier(run.size); /* ranks that ask for a window find one that still answers */
  close_all(1);
}

/* The last rank's output is elsewhere in its window. */
static void differ(void) {
  const struct rank *self = &run.ranks[0];
  differ_run(self->local, self->memory + (self->rank == run.size - 1 ? COUNT : 0), 0);
}

/* A scatter in place at its root, whose outputs elsewhere are not by rank. */
static void differ_scatter(void) {
  const struct rank *self = &run.ranks[0];
  differ_run(self->rank == 0 ? self->memory : self->local, self->memory, 1);
}

/* The last rank never calls. The others go on when the file COPIES_GATE is there. */
static void absent(void) {
  const char *gate = getenv("COPIES_GATE");
  const struct call call = {ALL_GATHER, 0, 0, 0};
  if (run.ranks[0].rank != run.size - 1) {
    call_make(&run.ranks[0], &call);
    NEED(cudaStreamQuery(run.ranks[0].stream) != cudaErrorNotReady);
    while (gate != NULL && access(gate, F_OK) != 0) usleep(1000);
  }
  rendezvous_barrier(run.size);
  close_all(1);
}

static const struct {
  const char *name;
  void (*run)(void);
  int alone, together;
} modes[] = {{"data", data, 0, 0},     {"calls", calls, 1, 0},   {"kernels", kernels, 0, 0},
             {"together", data, 0, 1}, {"differ", differ, 1, 0}, {"differ_scatter", differ_scatter, 1, 0},
             {"absent", absent, 1, 0}};
enum { MODES = sizeof modes / sizeof modes[0] };

static void rank_main(int mode, int rank) {
  if (!rendezvous_device(run.size, rank) || need_shares(run.size)) exit(CANNOT_RUN);
  open_all(modes[mode].together ? 0 : rank, modes[mode].together ? run.size : 1);
  modes[mode].run();
  exit(0);
}

int main(int argc, char **argv) {
  const char *asked = argc > 1 ? argv[1] : NULL;
  int failed = 0, found = 0;
  run.size = argc > 2 ? atoi(argv[2]) : 2;
  NEED(run.size < 2 || run.size > RANKS_MAX);
  rendezvous_open();
  for (int mode = 0; mode < MODES && failed == 0; mode++) {
    if (asked != NULL ? strcmp(asked, modes[mode].name) != 0 : modes[mode].alone) continue;
    found += 1;
    failed = rendezvous_run(modes[mode].together ? 1 : run.size, rank_main, mode, 0);
  }
  if (failed == CANNOT_RUN) puts("copies: needs as many devices as ranks: ok");
  else
    printf("copies: %s, %d ranks: %s\n", asked ? asked : "all", run.size, failed || !found ? "FAILED" : "ok");
  return failed == CANNOT_RUN ? 0 : failed || !found;
}
