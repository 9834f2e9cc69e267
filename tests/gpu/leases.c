/* clang-format off */
/* leases.c: memory that a program frees and allocates again while ranks of other processes have it mapped.
 * The program starts one process per rank; results are checked after each call.
 *
 *     leases [MODE [NUMBER [SEED [RANKS]]]]
 *
 *     reuse     NUMBER turns: each call finds other memory at the addresses that an earlier call has used
 *     full      NUMBER turns: a rank uses up its device's memory, frees what it had cached, allocates again
 *     unused    over fibres, NUMBER turns: a device is nearly full, and memory that is shown but was not used
 *               for a while is free as soon as the program frees it
 *     repeat    NUMBER turns: calls that repeat, whose launches the library keeps, until one finds other
 *               memory at the addresses
 *     evict     NUMBER turns: more buffers than a rank shows at a time, and the first one again
 *     stress    NUMBER rounds of allocations, collectives and frees, at random; then all memory is back
 *     graph     memory that a graph shows is in use until the graph is destroyed
 *     holder    a process ends while it has another one's memory mapped
 *     owner     a process ends while another one has its memory mapped
 *
 * Without arguments, reuse, stress and graph; reuse alone if ranks share a device (the others count its
 * memory). Where memory of the device is counted for all processes
 * (a GPU, or SIMT_MEMORY) it must come back without a call of the library.
 * Prints what is wrong, or what was run and `ok`. */
/* clang-format on */
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#include "calls.h"
#include "rendezvous.h"

enum {
  COUNT = 1200, /* elements of a rank's part */
  PARTS = COUNT * RANKS_MAX,
  SLOTS = 4, /* buffers in stress */
  CACHED = 4,
  TOO_FEW_DEVICES = 77
};
#define GRAIN ((size_t)2 << 20) /* other processes map allocations of this size and more */
#define BYTES (GRAIN + (GRAIN >> 1))

static struct {
  int rank, size, round;
  uint64_t random, common; /* the rank's own, and one that is the same on all ranks */
  ncclComm_t comm;
  cudaStream_t stream;
  int *in, *out;
  int host[PARTS];
  int reused; /* allocations that got the address of the one before */
} run;

/* ---- processes ---- */

static void barrier(void) { rendezvous_barrier(run.size); }

static void run_open(void) {
  if (!rendezvous_device(run.size, run.rank)) exit(TOO_FEW_DEVICES);
  NEED(cudaStreamCreateWithFlags(&run.stream, cudaStreamNonBlocking));
  rendezvous_comm(&run.comm, run.size, run.rank);
}

/* ---- values ---- */

static uint32_t next(uint64_t *state, uint32_t below) {
  *state = *state * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)(*state >> 33) % below;
}

static int value(int rank, size_t i) { return (int)(i % 1009) * 31 + rank * 7 + run.round * 1013; }

static int sum_at(size_t i) {
  int sum = 0;
  for (int rank = 0; rank < run.size; rank++) sum += value(rank, i);
  return sum;
}

static int expected(enum call call, size_t i) {
  const int peer = (int)(i / COUNT), before = (run.rank + run.size - 1) % run.size;
  switch (call) {
    case ALL_REDUCE: return sum_at(i);
    case REDUCE_SCATTER: return sum_at((size_t)run.rank * COUNT + i);
    case ALL_GATHER: return value(peer, i % COUNT);
    case BROADCAST: return value(run.size - 1, i);
    case ALL_TO_ALL: return value(peer, (size_t)run.rank * COUNT + i % COUNT);
    default: return value(before, i);
  }
}

static size_t out_count(enum call call) {
  return call == ALL_GATHER || call == ALL_TO_ALL ? COUNT * (size_t)run.size : COUNT;
}

static void fill(void) {
  run.round += 1;
  for (size_t i = 0; i < PARTS; i++) run.host[i] = value(run.rank, i);
  NEED(cudaMemcpyAsync(run.in, run.host, sizeof run.host, cudaMemcpyHostToDevice, run.stream));
  NEED(cudaMemsetAsync(run.out, 0xee, sizeof run.host, run.stream));
}

static void call_start(enum call call) {
  const struct call_arguments arguments = {run.in,   run.out,      COUNT,    ncclUint32, run.rank,
                                           run.size, run.size - 1, run.comm, run.stream};
  const bool grouped = call == EXCHANGE;
  if (grouped) NEED(ncclGroupStart());
  call_make(call, &arguments);
  if (grouped) NEED(ncclGroupEnd());
}

static void call_check(enum call call) {
  NEED(cudaMemcpyAsync(run.host, run.out, sizeof run.host, cudaMemcpyDeviceToHost, run.stream));
  NEED(cudaStreamSynchronize(run.stream));
  for (size_t i = 0; i < out_count(call); i++) {
    if (run.host[i] == expected(call, i)) continue;
    printf("wrong: %s on rank %d, round %d: element %zu is %d, not %d\n", call_names[call], run.rank,
           run.round, i, run.host[i], expected(call, i));
    exit(1);
  }
}

static void call_checked(enum call call) {
  fill();
  call_start(call);
  call_check(call);
}

static const enum call called[] = {REDUCE_SCATTER, ALL_REDUCE, ALL_GATHER, BROADCAST, ALL_TO_ALL, EXCHANGE};
enum { CALLED = sizeof called / sizeof *called };

/* ---- memory ---- */

static size_t free_bytes(void) {
  size_t bytes = 0, total = 0;
  NEED(cudaMemGetInfo(&bytes, &total));
  return bytes;
}

/* Until the memory of this device is back; meanwhile no peer may wait in a collective, since its process
 * unmaps nothing while a kernel runs. */
static void await_free(size_t bytes) {
  while (free_bytes() < bytes) usleep(50);
}

static void allocate(int **memory, size_t bytes) { NEED(cudaMalloc((void **)memory, bytes)); }

static void buffers_open(void) {
  allocate(&run.in, BYTES);
  allocate(&run.out, BYTES);
}

static void buffers_close(void) {
  NEED(cudaFree(run.in));
  NEED(cudaFree(run.out));
}

static void buffers_swap(void) {
  int *const in = run.in;
  run.in = run.out;
  run.out = in;
}

/* A peer maps a buffer at its second use as the output. */
static void buffers_show(void) {
  for (int use = 0; use < 6; use++) {
    call_checked(ALL_GATHER);
    buffers_swap();
  }
}

/* ---- other memory at the same addresses ---- */

static void replace(int **memory) {
  int *const before = *memory;
  NEED(cudaFree(before));
  allocate(memory, BYTES);
  if (*memory == before) run.reused += 1;
}

static void reuse(int turns) {
  buffers_open();
  for (int turn = 0; turn < turns; turn++) {
    for (int c = 0; c < CALLED; c++) {
      buffers_show();
      replace(&run.in);
      if (turn % 2 == 0) replace(&run.out);
      for (int use = 0; use < 3; use++) call_checked(called[c]);
    }
  }
  buffers_close();
  if (run.reused == 0) printf("no address was used again on rank %d\n", run.rank);
}

/* ---- a full device ---- */

/* As caching allocators do: what is cached is given back when an allocation fails, and it is tried again. */
static void full_turn(size_t bytes) {
  int *cached[CACHED], *large = NULL;
  for (int i = 0; i < CACHED; i++) allocate(&cached[i], bytes);
  for (int i = 0; i < CACHED; i += 2) {
    run.in = cached[i];
    run.out = cached[i + 1];
    buffers_show();
  }
  barrier();
  if (cudaMalloc((void **)&large, 2 * bytes) == cudaSuccess) {
    puts("wrong: the device is not full");
    exit(1);
  }
  for (int i = 0; i < CACHED; i++) NEED(cudaFree(cached[i]));
  while (cudaMalloc((void **)&large, 2 * bytes) != cudaSuccess) usleep(50);
  cudaGetLastError();
  NEED(cudaFree(large));
}

static void full(int turns) {
  buffers_open();
  buffers_show(); /* the library allocates what it needs */
  barrier();
  const size_t before = free_bytes();
  buffers_close();
  for (int turn = 0; turn < turns; turn++) {
    await_free(before + 2 * BYTES);
    barrier();
    full_turn((before + 2 * BYTES) / (CACHED + 1) / GRAIN * GRAIN);
    barrier();
  }
}

/* Peers end mappings only while their devices are idle, so no rank waits in a collective. */
static void await_unmapped(int count) {
  barrier();
  while (mapped() > count) usleep(50);
  barrier();
}

/* What is mapped when the ranks are connected, and no memory of the program is shown: an allocation so small
 * never is. */
static int mapped_unshown(void) {
  int *small;
  NEED(cudaMalloc((void **)&small, 4096));
  NEED(ncclAllGather(small, small + 16, 16, ncclInt, run.comm, run.stream));
  NEED(cudaStreamSynchronize(run.stream));
  NEED(cudaFree(small));
  barrier();
  return mapped();
}

/* Calls until every rank has mapped both buffers of every rank, `count` with its own. */
static void show_to_all(int count) {
  do buffers_show();
  while (!rendezvous_all(run.size, mapped() >= count));
}

static void unused_turn(bool again) {
  int *rest = NULL, *large = NULL;
  const int few = mapped_unshown(), own = 2;
  buffers_open();
  show_to_all(few + own * run.size);
  allocate(&rest, free_bytes() - GRAIN);
  await_unmapped(few + own + 1);
  if (again) {
    show_to_all(few + own * run.size + 1);
    await_unmapped(few + own + 1);
  }
  if (cudaMalloc((void **)&large, 2 * BYTES) == cudaSuccess) {
    puts("wrong: the device is not full");
    exit(1);
  }
  buffers_close();
  NEED(cudaMalloc((void **)&large, 2 * BYTES)); /* at once */
  cudaGetLastError();
  NEED(cudaFree(large));
  NEED(cudaFree(rest));
  barrier();
}

static void unused(int turns) {
  for (int turn = 0; turn < turns; turn++) unused_turn(turn % 2 == 1);
}

/* ---- many buffers ---- */

/* The first one is shown, displaced, and shown again before the peers have heard that it was displaced. */
static void evict(int turns) {
  enum { MANY = 66, USES = 20 };
  int *many[MANY];
  for (int i = 0; i < MANY; i++) allocate(&many[i], GRAIN);
  run.in = many[MANY - 1];
  for (int turn = 0; turn < turns; turn++) {
    for (int use = 0; use < USES; use++) {
      run.out = many[0];
      call_checked(ALL_GATHER);
      barrier();
    }
    for (int i = 1; i < MANY + 3; i++) {
      run.out = i < MANY - 1 ? many[i] : many[0];
      call_start(ALL_GATHER);
    }
    NEED(cudaStreamSynchronize(run.stream));
  }
  for (int i = 0; i < MANY; i++) NEED(cudaFree(many[i]));
}

/* ---- calls that repeat ---- */

/* Each time other memory, which the same call is to find. */
static void repeat_call(enum call call) {
  for (int time = 0; time < 4; time++) {
    for (int use = 0; use < 6; use++) call_checked(call);
    if (time == 0 || next(&run.random, 2) == 0) replace(&run.out);
    if (time > 0 && next(&run.random, 2) == 0) replace(&run.in);
  }
}

/* Two outputs in turns: each has a launch of its own. */
static void repeat_in_turns(enum call call) {
  int *other;
  allocate(&other, BYTES);
  for (int use = 0; use < 8; use++) {
    int *const out = run.out;
    call_checked(call);
    run.out = other;
    other = out;
  }
  NEED(cudaFree(other));
}

static void repeat(int turns) {
  buffers_open();
  for (int turn = 0; turn < turns; turn++)
    for (int c = 0; c < CALLED; c++) repeat_call(called[c]);
  for (int c = 0; c < CALLED; c++) repeat_in_turns(called[c]);
  buffers_close();
}

/* ---- stress ---- */

struct buffer {
  int *memory;
  size_t bytes;
};

static void buffer_renew(struct buffer *buffer) {
  if (buffer->memory != NULL) NEED(cudaFree(buffer->memory));
  if (next(&run.random, 2) == 0) buffer->bytes = GRAIN + next(&run.random, 4) * (GRAIN >> 1);
  while (cudaMalloc((void **)&buffer->memory, buffer->bytes) != cudaSuccess) usleep(50);
  cudaGetLastError();
}

/* Buffers that the collective does not use are freed while it is under way. */
static void stress_round(struct buffer *buffers) {
  const int in = (int)next(&run.common, SLOTS), out = (in + 1 + (int)next(&run.common, SLOTS - 1)) % SLOTS;
  const int uses = 1 + (int)next(&run.common, 3);
  for (int use = 0; use < uses; use++) {
    const enum call call = called[next(&run.common, CALLED)];
    const int other = (int)next(&run.random, SLOTS);
    run.in = buffers[in].memory;
    run.out = buffers[out].memory;
    fill();
    call_start(call);
    if (other != in && other != out) buffer_renew(&buffers[other]);
    call_check(call);
  }
  barrier(); /* a kernel that waits for its peers keeps what its process has mapped */
  if (next(&run.random, 2) == 0) buffer_renew(&buffers[in]);
  if (next(&run.random, 2) == 0) buffer_renew(&buffers[out]);
  if (next(&run.common, 4) == 0) barrier();
}

static void stress(int rounds) {
  struct buffer buffers[SLOTS] = {{NULL, 0}};
  for (int i = 0; i < SLOTS; i++) {
    buffers[i].bytes = BYTES;
    buffer_renew(&buffers[i]);
  }
  for (int round = 0; round < rounds; round++) stress_round(buffers);
  barrier();
  const size_t before = free_bytes();
  size_t bytes = 0;
  for (int i = 0; i < SLOTS; i++) {
    NEED(cudaFree(buffers[i].memory));
    bytes += buffers[i].bytes / GRAIN * GRAIN;
  }
  await_free(before + bytes);
  barrier();
}

/* ---- graphs ---- */

static void graph_make(cudaGraph_t *captured, cudaGraphExec_t *exec) {
  NEED(cudaStreamBeginCapture(run.stream, cudaStreamCaptureModeThreadLocal));
  call_start(ALL_GATHER);
  NEED(cudaStreamEndCapture(run.stream, captured));
  NEED(cudaGraphInstantiate(exec, *captured, 0));
  for (int launch = 0; launch < 3; launch++) {
    fill();
    NEED(cudaGraphLaunch(*exec, run.stream));
    call_check(ALL_GATHER);
  }
}

/* Other memory is shown, freed, and back. */
static void graph_turn(size_t most) {
  buffers_open();
  buffers_show();
  barrier();
  if (getenv("SIMT_MEMORY") != NULL && free_bytes() + 2 * BYTES > most) {
    puts("wrong: a graph's output was unmapped before the graph was destroyed");
    exit(1);
  }
  buffers_close();
  await_free(most);
  barrier();
}

static void graph(void) {
  cudaGraph_t captured;
  cudaGraphExec_t exec;
  const size_t turns = 5;
  buffers_open();
  graph_make(&captured, &exec);
  int *const out = run.out;
  NEED(cudaFree(run.in)); /* shown to nobody */
  barrier();
  const size_t most = free_bytes();
  NEED(cudaFree(out));
  for (size_t turn = 0; turn < turns; turn++) graph_turn(most);
  NEED(cudaGraphExecDestroy(exec));
  NEED(cudaGraphDestroy(captured));
  await_free(most + BYTES);
  barrier();
}

/* ---- kernels that wait meanwhile ---- */

/* If the peer ended its mapping while its kernel waits, the driver would let it launch nothing. */
static void busy_turn(ncclComm_t second, cudaStream_t stream, int *few) {
  enum { CALLS_MEANWHILE = 30, FEW = 10 };
  buffers_open();
  buffers_show();
  int *const in = run.in, *const out = run.out;
  buffers_open();
  fill();
  if (run.rank > 0) call_start(ALL_GATHER);
  barrier();
  if (run.rank == 0) NEED(cudaFree(in));
  if (run.rank == 0) NEED(cudaFree(out));
  for (int i = 0; i < CALLS_MEANWHILE; i++) {
    NEED(ncclAllReduce(few, few, FEW, ncclInt32, ncclSum, second, stream));
    NEED(cudaStreamSynchronize(stream));
  }
  if (run.rank == 0) call_start(ALL_GATHER);
  call_check(ALL_GATHER);
  if (run.rank > 0) NEED(cudaFree(in));
  if (run.rank > 0) NEED(cudaFree(out));
  buffers_close();
}

static void busy(int turns) {
  ncclComm_t second;
  cudaStream_t stream;
  int *few;
  allocate(&few, 4096);
  NEED(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  NEED(ncclCommSplit(run.comm, 0, run.rank, &second, NULL));
  for (int turn = 0; turn < turns; turn++) busy_turn(second, stream, few);
  NEED(ncclCommDestroy(second));
  NEED(cudaStreamDestroy(stream));
  NEED(cudaFree(few));
}

/* ---- memory that is freed too early ---- */

static void during(int turns) {
  buffers_open();
  for (int turn = 0; turn < turns; turn++) {
    const enum call call = called[turn % CALLED];
    for (int use = 0; use < 3; use++) call_checked(call);
    fill();
    call_start(call);
    if (run.rank == turn % run.size) call_check(call);
    NEED(cudaFree(run.out));
    allocate(&run.out, BYTES);
  }
  buffers_close();
}

/* ---- processes that end ---- */

static void await_loss(void) {
  ncclResult_t state = ncclSuccess;
  while (state == ncclSuccess) NEED(ncclCommGetAsyncError(run.comm, &state));
  if (state == ncclRemoteError) return;
  printf("wrong: rank %d was told %d\n", run.rank, state);
  exit(1);
}

/* The last rank passes memory that it has freed. */
static void freed(void) {
  buffers_open();
  buffers_show();
  barrier();
  fill();
  NEED(cudaStreamSynchronize(run.stream));
  if (run.rank == run.size - 1) NEED(cudaFree(run.out));
  call_start(ALL_GATHER);
  if (run.rank == run.size - 1) cudaStreamSynchronize(run.stream);
  await_loss();
  NEED(ncclCommAbort(run.comm));
  buffers_close();
}

/* The last rank ends; it holds the others' memory, and they hold its. */
static void lose(bool holder) {
  buffers_open();
  buffers_show();
  barrier();
  if (run.rank == run.size - 1) raise(SIGKILL);
  const size_t before = free_bytes();
  if (holder) buffers_close(); /* while the library finds out */
  await_loss();
  NEED(ncclCommAbort(run.comm));
  if (!holder) buffers_close();
  await_free(before + 2 * BYTES);
  if (getenv("SIMT_MEMORY") == NULL || run.size > 2) return;
  NEED(cudaSetDevice(run.size - 1)); /* nothing of the lost process is left */
  size_t left = 0, total = 1;
  while (left < total) NEED(cudaMemGetInfo(&left, &total));
}

/* ---- the whole ---- */

/* The signal that ends the last rank; 0: none. */
static int loss_of(const char *mode) {
  if (mode == NULL) return 0;
  if (strcmp(mode, "freed") == 0) return SIGSEGV;
  return strcmp(mode, "holder") == 0 || strcmp(mode, "owner") == 0 ? SIGKILL : 0;
}

static bool run_mode(const char *mode, int number) {
  if (strcmp(mode, "reuse") == 0) reuse(number);
  else if (strcmp(mode, "full") == 0) full(number);
  else if (strcmp(mode, "unused") == 0) unused(number);
  else if (strcmp(mode, "repeat") == 0) repeat(number);
  else if (strcmp(mode, "evict") == 0) evict(number);
  else if (strcmp(mode, "stress") == 0) stress(number);
  else if (strcmp(mode, "graph") == 0) graph();
  else if (strcmp(mode, "busy") == 0) busy(number);
  else if (strcmp(mode, "during") == 0) during(number);
  else if (strcmp(mode, "freed") == 0) freed();
  else if (loss_of(mode) != 0) lose(strcmp(mode, "holder") == 0);
  else return false;
  return true;
}

static void rank_main(const char *mode, int number) {
  run_open();
  if (mode == NULL) {
    reuse(1);
    if (!need_shares(run.size)) stress(10), graph();
  } else if (!run_mode(mode, number)) {
    fprintf(stderr, "leases: no mode is called %s\n", mode);
    exit(2);
  }
  if (loss_of(mode) == 0) NEED(ncclCommDestroy(run.comm));
  exit(0);
}

int main(int argc, char **argv) {
  const char *mode = argc > 1 ? argv[1] : NULL;
  const int number = argc > 2 ? atoi(argv[2]) : 2;
  const uint64_t seed = argc > 3 ? strtoull(argv[3], NULL, 10) : 1;
  pid_t children[RANKS_MAX];
  run.size = argc > 4 ? atoi(argv[4]) : 2;
  NEED(run.size < 2 || run.size > RANKS_MAX);
  rendezvous_open();
  for (int rank = 0; rank < run.size; rank++) {
    run.rank = rank;
    run.common = seed;
    run.random = seed * 1000003 + (uint64_t)rank;
    children[rank] = fork();
    NEED(children[rank] < 0);
    if (children[rank] == 0) rank_main(mode, number);
  }
  const int failed = rendezvous_end(children, run.size, loss_of(mode));
  if (failed == TOO_FEW_DEVICES) puts("leases: needs two devices: ok");
  else printf("leases: %s, %d ranks: %s\n", mode != NULL ? mode : "all", run.size, failed ? "FAILED" : "ok");
  return failed == TOO_FEW_DEVICES ? 0 : failed;
}
