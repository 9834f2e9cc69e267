/* lsa.cu: kernels of a program that use nccl_device.h: they add up the memory of all ranks, and write to it.
 *
 *   lsa [MODE [RANKS]]
 *
 * Ranks are processes, or with mode `together` all in one. Without a mode: `data` and `together`. In mode
 * `late` one rank alone makes a device communicator. */
#include <nccl_device.h>

#include "rendezvous.h"

#ifdef NCCL_DEVICE_CODE
#include "simt/kernels.h"
#endif

#define CANNOT_RUN 77
enum { COUNT = 5000, BLOCKS = 3, THREADS = 64, ROUNDS = 3, OWN_BARRIERS = 2 };
enum { GIN_COUNT = 403, GIN_SIGNALS = 3, GIN_COUNTERS = 1 };

/* What kernels take. */
struct memory {
  ncclWindow_t in, out;
  ncclDevComm comm;
  ncclDevResourceHandle_t words;  /* a word for each rank that says hello */
  ncclLsaBarrierHandle_t barrier; /* of the program's own */
};

/* Each rank adds up its share of the elements, and writes the sums to all. */
extern "C" __global__ void lsa_sum(const __grid_constant__ struct memory memory) {
  const ncclDevComm &comm = memory.comm;
  ncclLsaBarrierSession<ncclCoopCta> barrier{ncclCoopCta(), comm, ncclTeamTagLsa(), blockIdx.x};
  barrier.sync(ncclCoopCta(), cuda::memory_order_acquire);
  const int first = (int)threadIdx.x + THREADS * (comm.lsaRank + (int)blockIdx.x * comm.lsaSize);
  for (int i = first; i < COUNT; i += THREADS * BLOCKS * comm.lsaSize) {
    int sum = 0;
    for (int peer = 0; peer < comm.lsaSize; peer++)
      sum += ((const int *)ncclGetLsaPointer(memory.in, 0, peer))[i];
    for (int peer = 0; peer < comm.lsaSize; peer++)
      ((int *)ncclGetPeerPointer(memory.out, sizeof(int), ncclTeamLsa(comm), peer))[i] = sum;
  }
  barrier.sync(ncclCoopCta(), cuda::memory_order_acq_rel);
}

/* A warp tells each rank its number, by the device communicator's own memory, and waits for all others. */
extern "C" __global__ void lsa_hello(const __grid_constant__ struct memory memory) {
  const ncclDevComm &comm = memory.comm;
  const ncclTeam world = ncclTeamWorld(comm);
  ncclLsaBarrierSession<ncclCoopWarp> barrier{ncclCoopWarp(), comm, world, memory.barrier, 1};
  for (int i = (int)threadIdx.x; i < comm.nRanks; i += 32) {
    const int peer = comm.nRanks - 1 - i; /* another thread arrives there */
    const ncclSymPtr<int> words = ncclGetResourceBuffer(comm, memory.words);
    (words + comm.rank).peerPtr(world, peer)[0] = 1000 * comm.rank + peer;
  }
  barrier.arrive(ncclCoopWarp(), cuda::memory_order_release);
  barrier.wait(ncclCoopWarp(), cuda::memory_order_acquire);
  const int *words = (const int *)ncclGetResourceBufferLocalPointer(comm, memory.words);
  for (int peer = (int)threadIdx.x; peer < comm.nRanks; peer += 32)
    ((int *)ncclGetLocalPointer(memory.out, 0))[1 + peer] = words[peer];
}

/* All-to-all by puts: a block's threads put the block for each rank together, with a signal behind it; then
 * single threads put values, add to words of windows, and get. `out` begins with those words. */
extern "C" __global__ void lsa_gin(const __grid_constant__ struct memory memory) {
  const ncclDevComm &comm = memory.comm;
  const ncclCoopCta block;
  const ncclTeam world = ncclTeamWorld(comm);
  const ncclGin gin{comm, 0};
  const int n = comm.nRanks;
  const size_t bytes = GIN_COUNT * sizeof(int), words = 2 * sizeof(uint64_t);
  uint64_t before = 0;
  {
    ncclGinBarrierSession<ncclCoopCta> barrier{block, gin, ncclTeamTagWorld(), 0};
    before = gin.readSignal(1);
    barrier.sync(block, cuda::memory_order_acquire, ncclGinFenceLevel::None);
  }
  for (int peer = 0; peer < n; peer++)
    gin.put(world, peer, memory.out, words + (size_t)comm.rank * bytes, memory.in, (size_t)peer * bytes,
            bytes, ncclGin_WeakSignalInc{1}, ncclGin_WeakCounterInc{0}, block);
  gin.waitSignal(block, 1, before + (uint64_t)n);
  const int *blocks = (const int *)ncclGetLocalPointer(memory.out, words);
  int bits = 0;
  for (int i = (int)threadIdx.x; i < n * GIN_COUNT; i += THREADS) bits |= blocks[i];
  if (bits == -1) gin.resetSignal(0); /* never: the values are positive */
  gin.flush(block);
  gin.waitCounter(block, 0, (uint64_t)n);
  const int next = (comm.rank + 1) % n;
  const size_t end = words + (size_t)n * bytes;
  if (block.thread_rank() == 0) {
    gin.putValue(world, next, memory.out, end, comm.rank + 70, ncclGin_VASignalAdd{memory.out, 0, 5});
    gin.signal(world, next, ncclGin_SignalAdd{2, 3});
  }
  gin.waitSignal(block, memory.out, 0, 5);
  gin.waitSignal(block, 2, 3);
  ncclBarrierSession<ncclCoopCta> barrier{block, ncclTeamTagWorld(), gin, 1};
  barrier.sync(block, cuda::memory_order_acq_rel);
  gin.get(world, next, memory.in, (size_t)comm.rank * bytes, memory.out, end + sizeof(int), bytes, block);
  barrier.sync(block, cuda::memory_order_acq_rel);
  if (block.thread_rank() == 0) {
    gin.resetSignal(memory.out, 0);
    gin.resetSignal(2);
    gin.resetCounter(0);
  }
}

#ifdef NCCL_DEVICE_CODE
static void call_gin(void **parameters) { lsa_gin(*(const struct memory *)parameters[0]); }
static void call_sum(void **parameters) { lsa_sum(*(const struct memory *)parameters[0]); }
static void call_hello(void **parameters) { lsa_hello(*(const struct memory *)parameters[0]); }
static const struct simt_kernel rows[] = {
    {"lsa_sum", (const void *)lsa_sum, call_sum, {sizeof(struct memory)}},
    {"lsa_gin", (const void *)lsa_gin, call_gin, {sizeof(struct memory)}},
    {"lsa_hello", (const void *)lsa_hello, call_hello, {sizeof(struct memory)}}};
static void kernels_offer(void) { simt_program_offer(rows, sizeof rows / sizeof *rows); }
#else
static void kernels_offer(void) {}
#endif

/* One rank of this process. */
struct rank {
  int rank;
  ncclComm_t comm;
  cudaStream_t stream;
  struct memory memory;
  int *in, *out;
  int seen[COUNT + 1];
};

static struct {
  int size, count; /* count: ranks of this process */
  struct rank ranks[RANKS_MAX];
} run;

#define EACH_RANK(self) for (struct rank *self = run.ranks; self < run.ranks + run.count; self++)

static void comms_open(int first, int count) {
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
    NEED(ncclCommInitRank(&run.ranks[i].comm, run.size, rendezvous->id, first + i));
  }
  NEED(ncclGroupEnd());
}

static void window_open(struct rank *self, int **memory, ncclWindow_t *window) {
  const size_t bytes = (COUNT + 1) * sizeof(int);
  need_device(self->rank);
  NEED(ncclMemAlloc((void **)memory, bytes));
  NEED(ncclCommWindowRegister(self->comm, *memory, bytes, window, NCCL_WIN_COLL_SYMMETRIC));
}

/* The input before the device communicator is made, the output after it. */
static void memory_open(void) {
  ncclDevResourceRequirements_t words[RANKS_MAX], barriers[RANKS_MAX];
  EACH_RANK(self) {
    need_device(self->rank);
    NEED(cudaStreamCreateWithFlags(&self->stream, cudaStreamNonBlocking));
    window_open(self, &self->in, &self->memory.in);
  }
  NEED(ncclGroupStart());
  EACH_RANK(self) {
    const int i = (int)(self - run.ranks);
    ncclDevCommRequirements_t required = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
    NEED(ncclLsaBarrierCreateRequirement(ncclTeamWorld(self->comm), OWN_BARRIERS, &self->memory.barrier,
                                         &barriers[i]));
    memset(&words[i], 0, sizeof words[i]);
    words[i].next = &barriers[i];
    words[i].bufferSize = (size_t)run.size * sizeof(int);
    words[i].outBufferHandle = &self->memory.words;
    required.lsaBarrierCount = BLOCKS;
    required.worldGinBarrierCount = 1;
    required.barrierCount = 2;
    required.ginSignalCount = GIN_SIGNALS;
    required.ginCounterCount = GIN_COUNTERS;
    required.ginConnectionType = NCCL_GIN_CONNECTION_FULL;
    required.resourceRequirementsList = &words[i];
    need_device(self->rank);
    NEED(ncclDevCommCreate(self->comm, &required, &self->memory.comm));
  }
  NEED(ncclGroupEnd());
  NEED(ncclGroupStart());
  EACH_RANK(self) window_open(self, &self->out, &self->memory.out);
  NEED(ncclGroupEnd());
}

static void memory_close(void) {
  EACH_RANK(self) {
    need_device(self->rank);
    NEED(ncclDevCommDestroy(self->comm, &self->memory.comm));
    NEED(ncclCommWindowDeregister(self->comm, self->memory.in));
    NEED(ncclCommWindowDeregister(self->comm, self->memory.out));
  }
  EACH_RANK(self) {
    need_device(self->rank);
    NEED(ncclCommDestroy(self->comm));
    NEED(ncclMemFree(self->in));
    NEED(ncclMemFree(self->out));
    NEED(cudaStreamDestroy(self->stream));
  }
}

static void launch(struct rank *self, const void *kernel, int blocks, int threads) {
  void *parameters[] = {&self->memory};
  need_device(self->rank);
  NEED(cudaLaunchKernel(kernel, dim3(blocks), dim3(threads), parameters, 0, self->stream));
}

static void output_read(struct rank *self) {
  need_device(self->rank);
  NEED(cudaMemcpyAsync(self->seen, self->out, sizeof self->seen, cudaMemcpyDeviceToHost, self->stream));
  NEED(cudaStreamSynchronize(self->stream));
}

static int value_of(int round, int rank, int i) { return (round + 1) * (rank + 1) * 7 + i; }

static void sums_run(int round) {
  static int host[COUNT];
  EACH_RANK(self) {
    for (int i = 0; i < COUNT; i++) host[i] = value_of(round, self->rank, i);
    need_device(self->rank);
    NEED(cudaMemcpyAsync(self->in, host, sizeof host, cudaMemcpyHostToDevice, self->stream));
    NEED(cudaStreamSynchronize(self->stream));
  }
  EACH_RANK(self) launch(self, (const void *)lsa_sum, BLOCKS, THREADS);
  EACH_RANK(self) {
    output_read(self);
    for (int i = 0; i < COUNT; i++) {
      int sum = 0;
      for (int rank = 0; rank < run.size; rank++) sum += value_of(round, rank, i);
      if (self->seen[1 + i] == sum) continue;
      fprintf(stderr, "rank %d: element %d of round %d is %d, not %d\n", self->rank, i, round,
              self->seen[1 + i], sum);
      exit(1);
    }
  }
}

static void hello_run(void) {
  EACH_RANK(self) launch(self, (const void *)lsa_hello, 1, 32);
  EACH_RANK(self) {
    output_read(self);
    for (int rank = 0; rank < run.size; rank++) NEED(self->seen[1 + rank] != 1000 * rank + self->rank);
  }
}

/* Behind two words of 64 bits come the blocks of all ranks, the value of the rank before, and what the next
 * rank has for this one. */
static void gin_check(struct rank *self) {
  const int before = (self->rank + run.size - 1) % run.size, next = (self->rank + 1) % run.size;
  const int *blocks = self->seen + 4, *behind = blocks + run.size * GIN_COUNT;
  for (int rank = 0; rank < run.size; rank++)
    for (int i = 0; i < GIN_COUNT; i++)
      NEED(blocks[rank * GIN_COUNT + i] != value_of(ROUNDS - 1, rank, self->rank * GIN_COUNT + i));
  NEED(self->seen[0] != 0 || behind[0] != before + 70);
  for (int i = 0; i < GIN_COUNT; i++)
    NEED(behind[1 + i] != value_of(ROUNDS - 1, next, self->rank * GIN_COUNT + i));
}

static void gin_run(void) {
  EACH_RANK(self) {
    need_device(self->rank);
    NEED(cudaMemsetAsync(self->out, 0, (COUNT + 1) * sizeof(int), self->stream));
    NEED(cudaStreamSynchronize(self->stream));
  }
  rendezvous_barrier(run.size / run.count);
  EACH_RANK(self) launch(self, (const void *)lsa_gin, 1, THREADS);
  EACH_RANK(self) {
    output_read(self);
    gin_check(self);
  }
}

/* The host sees the same memory. */
static void pointers_check(void) {
  EACH_RANK(self) {
    const int next = (self->rank + 1) % run.size;
    void *by_team = NULL, *by_rank = NULL;
    int value = 0;
    need_device(self->rank);
    NEED(ncclGetLsaDevicePointer(self->memory.in, 8 * sizeof(int), next, &by_team));
    NEED(ncclGetPeerDevicePointer(self->memory.in, 8 * sizeof(int), next, &by_rank));
    NEED(by_team == NULL || by_team != by_rank);
    NEED(cudaMemcpyAsync(&value, by_team, sizeof value, cudaMemcpyDeviceToHost, self->stream));
    NEED(cudaStreamSynchronize(self->stream));
    NEED(value != value_of(ROUNDS - 1, next, 8));
    NEED(ncclGetLsaDevicePointer(self->memory.in, 0, run.size, &by_team) != ncclInvalidArgument);
    NEED(ncclGetPeerDevicePointer((ncclWindow_t)(void *)self, 0, 0, &by_team) != ncclInvalidUsage);
  }
}

static int team_is(ncclTeam_t team, int size, int rank, int stride) {
  return team.nRanks == size && team.rank == rank && team.stride == stride;
}

static void teams_check(void) {
  EACH_RANK(self) {
    const ncclTeam_t world = ncclTeamWorld(self->comm), lsa = ncclTeamLsa(self->comm);
    ncclCommProperties_t properties = NCCL_COMM_PROPERTIES_INITIALIZER;
    NEED(!team_is(world, run.size, self->rank, 1) || !team_is(lsa, run.size, self->rank, 1));
    NEED(!team_is(ncclTeamRail(self->comm), 1, 0, run.size));
    NEED(ncclTeamRankToWorld(self->comm, lsa, 1) != 1 ||
         ncclTeamRankToLsa(self->comm, world, run.size) != -1);
    NEED(ncclCommQueryProperties(self->comm, &properties));
    NEED(properties.rank != self->rank || properties.nRanks != run.size || properties.nLsaTeams != 1);
    NEED(!properties.deviceApiSupport || properties.multimemSupport ||
         properties.ginType != NCCL_GIN_TYPE_PROXY);
  }
  const ncclTeam_t twelve = {12, 7, 1}, inner = ncclTeamInnerFactor(twelve, 4);
  const ncclTeam_t outer = ncclTeamOuterFactor(twelve, 4);
  NEED(!team_is(inner, 4, 3, 1) || !team_is(outer, 3, 1, 4));
  NEED(ncclTeamRankToTeam(twelve, outer, 2) != 11 || !ncclTeamRankIsMember(outer, twelve, 3));
  NEED(ncclTeamRankIsMember(outer, twelve, 4) || ncclTeamRankIsMember(inner, twelve, 8));
  for (int i = 0, rank = 0; rank < 12; rank++)
    if (!ncclTeamRankIsMember(outer, twelve, rank))
      NEED(ncclTeamRankInDifference(twelve, outer, i++) != rank);
  for (int i = 0, rank = 0; rank < 12; rank++)
    if (!ncclTeamRankIsMember(inner, twelve, rank))
      NEED(ncclTeamRankInDifference(twelve, inner, i++) != rank);
}

/* Each gets a sentence, and leaves the communicator as it was. */
static void wrong_check(void) {
  struct rank *self = run.ranks;
  ncclDevComm_t made = self->memory.comm;
  ncclDevCommRequirements_t unset, required = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
  ncclCommProperties_t properties;
  memset(&unset, 0, sizeof unset);
  memset(&properties, 0, sizeof properties);
  NEED(ncclDevCommCreate(self->comm, &unset, &made) != ncclInvalidArgument);
  NEED(ncclDevCommCreate(self->comm, NULL, &made) != ncclInvalidArgument);
  NEED(ncclDevCommCreate(self->comm, &required, NULL) != ncclInvalidArgument);
  NEED(ncclCommQueryProperties(self->comm, &properties) != ncclInvalidArgument);
  required.ginSignalCount = -1;
  NEED(ncclDevCommCreate(self->comm, &required, &made) != ncclInvalidUsage);
  required.ginSignalCount = 0;
  required.lsaMultimem = true;
  NEED(ncclDevCommCreate(self->comm, &required, &made) != ncclInvalidUsage);
  NEED(strstr(ncclGetLastError(self->comm), "multicast") == NULL);
  made.resourceWindow = self->memory.in;
  NEED(ncclDevCommDestroy(self->comm, &made) != ncclInvalidUsage);
  NEED(ncclCommSuspend(self->comm, NCCL_SUSPEND_MEM) != ncclInvalidUsage);
}

/* ---- modes ---- */

static void data(void) {
  memory_open();
  teams_check();
  for (int round = 0; round < ROUNDS; round++) {
    sums_run(round);
    hello_run();
  }
  for (int round = 0; round < 2; round++) gin_run();
  pointers_check();
  wrong_check();
  memory_close();
}

/* Rank 0 alone makes a device communicator: it is told for whom it waits. */
static void late(void) {
  struct rank *self = run.ranks;
  ncclDevCommRequirements_t required = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;
  ncclDevComm_t made;
  if (self->rank == 0) {
    NEED(ncclDevCommCreate(self->comm, &required, &made) != ncclInvalidUsage);
    NEED(strstr(ncclGetLastError(self->comm), "has not registered so many") == NULL);
  }
  rendezvous_barrier(run.size);
  NEED(ncclCommAbort(self->comm));
}

static const struct {
  const char *name;
  void (*run)(void);
  int alone, together;
} modes[] = {{"data", data, 0, 0}, {"together", data, 0, 1}, {"late", late, 1, 0}};
enum { MODES = sizeof modes / sizeof *modes };

static void rank_main(int mode, int rank) {
  kernels_offer();
  if (need_shares(run.size) && getenv("NCCL_MULTI_RANK_GPU_ENABLE") == NULL) exit(CANNOT_RUN);
  comms_open(rank, modes[mode].together ? run.size : 1);
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
  if (failed == CANNOT_RUN) puts("lsa: needs as many devices as ranks: ok");
  else printf("lsa: %s, %d ranks: %s\n", asked ? asked : "all", run.size, failed || !found ? "FAILED" : "ok");
  return failed == CANNOT_RUN ? 0 : failed || !found;
}
