/* wrap.c: calls on both sides of a step at which flags and tags wrap (TUTTI_FIRST_STEP), every result compared
 * with what the call must give, bit for bit. First many calls of one or two elements, which leave most lines
 * of a slot as they were; then long ones, which read the lines that the short ones left.
 *
 *     wrap RANKS LONG SEEDS [SCENE...]     LONG: elements of a long call
 *
 * For a SCENE that is the name of a call, communicators are made that run 0, 1, 2, 3, ... short calls of this
 * kind before long ones; the default is each call. A SCENE that is two names, as all_gather:broadcast, runs
 * short calls of the first kind, among them one of the second kind, once in each place. For each seed, calls
 * of all kinds are mixed. The ranks are those of the launch (tutti launch) if it has several, or else RANKS
 * devices of this process. Prints the first wrong result, or what was run and `ok`. */
#include <cuda_runtime.h>
#include <nccl.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tutti.h>

#define RANKS_MAX 8
#define LONG_CALLS 10
#define PLACES 32 /* of the other call in a scene of two */

#define NEED(call)                                                             \
  do {                                                                         \
    const int status_ = (int)(call);                                           \
    if (status_ != 0) {                                                        \
      printf("failed: %s: %d (%s)\n", #call, status_, ncclGetLastError(NULL)); \
      exit(1);                                                                 \
    }                                                                          \
  } while (0)

enum call {
  ALL_REDUCE,
  REDUCE,
  REDUCE_SCATTER,
  ALL_GATHER,
  BROADCAST,
  ALL_TO_ALL,
  GATHER,
  SCATTER,
  EXCHANGE,
  CALLS
};
static const char *const call_names[CALLS] = {"all_reduce", "reduce",    "reduce_scatter",
                                              "all_gather", "broadcast", "all_to_all",
                                              "gather",     "scatter",   "exchange"};

static struct {
  int rank_count, first, end; /* ranks; those of this process */
  size_t long_count;
  struct {
    ncclComm_t comm;
    cudaStream_t stream;
    uint32_t *in, *out;
  } ranks[RANKS_MAX];
  uint32_t *host;
  tutti_launch_t launch;
  uint64_t draws;
  unsigned calls;
  int turns; /* of the emulator: a query in guarded mode waits when nothing can move */
} run;

static uint64_t mix(uint64_t state) {
  state = (state ^ (state >> 31)) * UINT64_C(0x9fb21c651e98df25);
  return state ^ (state >> 28);
}

static uint32_t draw(uint32_t below) { return (uint32_t)(mix(run.draws += 0x9e3779b9u) >> 16) % below; }

/* Calls with odd numbers are of float, for which GPUs have other kernels: numbers that any order of additions
 * sums exactly. The others are of uint32. */
static ncclDataType_t type_of(unsigned call_number) { return call_number % 2 == 1 ? ncclFloat : ncclUint32; }

static uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

static uint32_t number_at(unsigned call_number, int rank, size_t index) {
  const uint32_t bits = (uint32_t)(mix(mix(call_number * 977 + (uint64_t)rank) + index) >> 20);
  return type_of(call_number) == ncclFloat ? bits % 4096 : bits;
}

/* A number as the call's type has it. */
static uint32_t element_of(unsigned call_number, uint32_t number) {
  return type_of(call_number) == ncclFloat ? bits_of((float)number) : number;
}

static int root_of(unsigned call_number) { return (int)(call_number % (unsigned)run.rank_count); }

/* What the call must leave in element `index` of a rank's output of `count` elements a block; false: it leaves
 * it as it is. */
static bool expected_at(enum call call, unsigned number, int rank, size_t count, size_t index, uint32_t *value) {
  const int n = run.rank_count, block = (int)(index / count), root = root_of(number);
  const size_t own = (size_t)rank * count, within = index % count;
  const bool sums = call == ALL_REDUCE || call == REDUCE || call == REDUCE_SCATTER;
  const bool blocks = call == ALL_GATHER || call == ALL_TO_ALL || call == GATHER;
  if ((call == REDUCE || call == GATHER) && rank != root) return false;
  if (block >= (blocks ? n : 1)) return false;
  uint32_t sum = 0;
  for (int r = 0; sums && r < n; r++)
    sum += number_at(number, r, (call == REDUCE_SCATTER ? own : 0) + index);
  if (call == BROADCAST) sum = number_at(number, root, index);
  if (call == ALL_GATHER || call == GATHER) sum = number_at(number, block, within);
  if (call == ALL_TO_ALL) sum = number_at(number, block, own + within);
  if (call == SCATTER) sum = number_at(number, root, own + within);
  if (call == EXCHANGE) sum = number_at(number, (rank + n - 1) % n, index);
  *value = element_of(number, sum);
  return true;
}

static void issue(int r, enum call call, unsigned number, size_t count) {
  const int n = run.rank_count, root = root_of(number);
  const uint32_t *in = run.ranks[r].in;
  uint32_t *out = run.ranks[r].out;
  ncclComm_t comm = run.ranks[r].comm;
  cudaStream_t stream = run.ranks[r].stream;
  const ncclDataType_t type = type_of(number);
  switch (call) {
    case ALL_REDUCE: NEED(ncclAllReduce(in, out, count, type, ncclSum, comm, stream)); break;
    case REDUCE: NEED(ncclReduce(in, out, count, type, ncclSum, root, comm, stream)); break;
    case REDUCE_SCATTER: NEED(ncclReduceScatter(in, out, count, type, ncclSum, comm, stream)); break;
    case ALL_GATHER: NEED(ncclAllGather(in, out, count, type, comm, stream)); break;
    case BROADCAST: NEED(ncclBroadcast(in, out, count, type, root, comm, stream)); break;
    case ALL_TO_ALL: NEED(ncclAlltoAll(in, out, count, type, comm, stream)); break;
    case GATHER: NEED(ncclGather(in, out, count, type, root, comm, stream)); break;
    case SCATTER: NEED(ncclScatter(in, out, count, type, root, comm, stream)); break;
    default:
      NEED(ncclSend(in, count, type, (r + 1) % n, comm, stream));
      NEED(ncclRecv(out, count, type, (r + n - 1) % n, comm, stream));
      break;
  }
}

#define UNTOUCHED 0x5a5a5a5au

static void check(enum call call, unsigned number, size_t count, const char *story) {
  const size_t elements = count * (size_t)run.rank_count;
  for (int r = run.first; r < run.end; r++) {
    NEED(cudaSetDevice(r));
    NEED(cudaStreamSynchronize(run.ranks[r].stream));
    NEED(cudaMemcpy(run.host, run.ranks[r].out, elements * 4, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < elements; i++) {
      uint32_t value = UNTOUCHED;
      if (!expected_at(call, number, r, count, i, &value)) value = UNTOUCHED;
      if (run.host[i] == value) continue;
      printf("wrong: %s, call %u (%s of %zu elements): rank %d, element %zu is 0x%08x instead of 0x%08x\n", story,
             number, call_names[call], count, r, i, run.host[i], value);
      exit(1);
    }
  }
}

/* One rank after another. What a rank must wait for is not there yet when it looks, so that it takes what old
 * flags or tags seem to announce. The last rank's kernel is launched when the others have had some turns, which
 * is no condition for a right result. */
static void issue_late(enum call call, unsigned number, size_t count) {
  for (int i = 0; i < run.rank_count; i++) {
    const int r = (int)((number + (unsigned)i) % (unsigned)run.rank_count);
    NEED(cudaSetDevice(r));
    for (int turn = 0; turn < run.turns && i == run.rank_count - 1; turn++) {
      sched_yield();
      (void)cudaStreamQuery(run.ranks[(r + 1) % run.rank_count].stream);
    }
    if (call == EXCHANGE) NEED(ncclGroupStart());
    issue(r, call, number, count);
    if (call == EXCHANGE) NEED(ncclGroupEnd());
  }
}

static void call_run(enum call call, unsigned number, size_t count, bool late, const char *story) {
  const size_t elements = count * (size_t)run.rank_count;
  for (int r = run.first; r < run.end; r++) {
    for (size_t i = 0; i < elements; i++) run.host[i] = element_of(number, number_at(number, r, i));
    NEED(cudaSetDevice(r));
    NEED(cudaMemcpy(run.ranks[r].in, run.host, elements * 4, cudaMemcpyHostToDevice));
    NEED(cudaMemset(run.ranks[r].out, 0x5a, elements * 4));
    NEED(cudaDeviceSynchronize());
  }
  if (late) {
    issue_late(call, number, count);
  } else {
    NEED(ncclGroupStart());
    for (int r = run.first; r < run.end; r++) issue(r, call, number, count);
    NEED(ncclGroupEnd());
  }
  check(call, number, count, story);
  run.calls += 1;
}

static void comms_open(void) {
  ncclComm_t comms[RANKS_MAX];
  if (run.launch.rank_count > 1) {
    ncclUniqueId id;
    NEED(tutti_launch_id(&run.launch, &id));
    NEED(cudaSetDevice(run.first));
    NEED(ncclCommInitRank(&run.ranks[run.first].comm, run.rank_count, id, run.first));
    return;
  }
  NEED(ncclCommInitAll(comms, run.rank_count, NULL));
  for (int r = 0; r < run.rank_count; r++) run.ranks[r].comm = comms[r];
}

static void comms_close(void) {
  for (int r = run.first; r < run.end; r++) NEED(ncclCommDestroy(run.ranks[r].comm));
}

static void short_and_long(const enum call *calls, unsigned short_calls, const char *name) {
  char story[64];
  bool connected[CALLS] = {false}; /* else several ranks of one thread must launch together */
  snprintf(story, sizeof story, "%s with %u short calls first", name, short_calls);
  comms_open();
  for (unsigned number = 0; number < short_calls + LONG_CALLS; number++) {
    const enum call call = calls[number];
    const bool alike = /* every call of this kind uses the same connections */
        call != REDUCE && call != BROADCAST && call != GATHER && call != SCATTER;
    const bool late = number >= short_calls && connected[call] && run.end - run.first == run.rank_count;
    call_run(call, number, number < short_calls ? 1 + draw(2) : run.long_count, late, story);
    connected[call] = alike;
  }
  comms_close();
}

#define SHORT_MOST 64

static void scene_of_one(enum call call) {
  static const unsigned before[] = {0, 1, 2, 3, 4, 6, 8, 11, 16, 23, 32, 40};
  enum call calls[SHORT_MOST + LONG_CALLS];
  for (unsigned i = 0; i < SHORT_MOST + LONG_CALLS; i++) calls[i] = call;
  for (unsigned i = 0; i < sizeof before / sizeof before[0]; i++)
    short_and_long(calls, before[i], call_names[call]);
}

static void scene_of_two(enum call call, enum call other) {
  for (unsigned place = 0; place < PLACES; place++) {
    enum call calls[SHORT_MOST + LONG_CALLS];
    for (unsigned i = 0; i < SHORT_MOST + LONG_CALLS; i++) calls[i] = i == place ? other : call;
    short_and_long(calls, PLACES, call_names[other]);
  }
}

static void scene_of_all(uint64_t seed) {
  enum call calls[SHORT_MOST + LONG_CALLS];
  run.draws = seed * 1000003;
  for (unsigned i = 0; i < SHORT_MOST + LONG_CALLS; i++) calls[i] = (enum call)draw(CALLS);
  short_and_long(calls, 8 + draw(48), "calls of all kinds");
}

static void scene(const char *text) {
  const char *colon = strchr(text, ':');
  const size_t length = colon != NULL ? (size_t)(colon - text) : strlen(text);
  enum call first = CALLS, second = CALLS;
  for (unsigned i = 0; i < CALLS; i++) {
    if (strlen(call_names[i]) == length && strncmp(text, call_names[i], length) == 0) first = (enum call)i;
    if (colon != NULL && strcmp(colon + 1, call_names[i]) == 0) second = (enum call)i;
  }
  if (first == CALLS || (colon != NULL && second == CALLS)) {
    printf("failed: no scene %s\n", text);
    exit(2);
  }
  if (colon != NULL) scene_of_two(first, second);
  else scene_of_one(first);
}

static void ranks_open(int rank_count) {
  run.launch.size = sizeof run.launch;
  NEED(tutti_launch_read(&run.launch));
  const bool alone = run.launch.rank_count <= 1;
  run.rank_count = alone ? rank_count : run.launch.rank_count;
  run.first = alone ? 0 : run.launch.rank;
  run.end = alone ? rank_count : run.launch.rank + 1;
  const size_t bytes = run.long_count * (size_t)run.rank_count * 4;
  run.host = (uint32_t *)malloc(bytes);
  if (run.host == NULL || run.rank_count > RANKS_MAX) exit(2);
  for (int r = run.first; r < run.end; r++) {
    NEED(cudaSetDevice(r));
    NEED(cudaStreamCreateWithFlags(&run.ranks[r].stream, cudaStreamNonBlocking));
    NEED(cudaMalloc((void **)&run.ranks[r].in, bytes));
    NEED(cudaMalloc((void **)&run.ranks[r].out, bytes));
  }
}

static void ranks_close(void) {
  for (int r = run.first; r < run.end; r++) {
    NEED(cudaFree(run.ranks[r].in));
    NEED(cudaFree(run.ranks[r].out));
    NEED(cudaStreamDestroy(run.ranks[r].stream));
  }
  free(run.host);
}

int main(int argc, char **argv) {
  if (argc < 4) return 2;
  run.long_count = (size_t)atoi(argv[2]);
  const char *emu = getenv("TUTTI_EMU");
  run.turns = emu != NULL && strstr(emu, "threads") != NULL ? 200 : 2;
  ranks_open(atoi(argv[1]));
  for (int i = 4; i < argc; i++) scene(argv[i]);
  for (uint32_t call = 0; call < CALLS && argc == 4; call++) scene_of_one((enum call)call);
  for (int seed = 1; seed <= atoi(argv[3]); seed++) scene_of_all((uint64_t)seed);
  ranks_close();
  printf("%u calls: ok\n", run.calls);
  return 0;
}
