/* clang-format off */
/* vmm.c: buffers in memory of cuMemCreate, which programs map piece by piece in ranges of addresses, and
 * unmap and map anew while ranks of other processes have it mapped. The program starts one process per rank;
 * results are checked after each call.
 *
 *     vmm [MODE [NUMBER [RANKS]]]
 *
 *     direct    buffers of one piece
 *     pieces    buffers over several pieces, which begin anywhere in one
 *     remap     NUMBER turns: other memory at the same addresses, and addresses without memory beside them
 *     sleep     NUMBER turns: all memory is given back, and other memory is mapped at the same addresses
 *     freed     memory is back when it was unmapped, without a call of the library
 *     graph     memory that a graph shows is in use until the graph is destroyed
 *     noexport  memory of which no handle may be made
 *     fabric    memory of which fabric handles alone may be made
 *     threads   ranks of one process, whose devices may access their own memory only; NUMBER turns of other
 *               memory, and of the same memory mapped again, then a graph over which memory is replaced
 *     alloc     memory of ncclMemAlloc: handles of it, access of all devices, refusals, memory that is back
 *     alloc-graph  ranks of one process show it in graphs
 *     alloc-used   as used, with such memory
 *     used      over fibres, after NUMBER turns of sleep: ends when a kernel uses another process's memory
 *
 * Without arguments, all but used and alloc-used, and fabric only if the driver has such handles. Prints what
 * is wrong, or what was run and `ok`. */
/* clang-format on */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dirent.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "calls.h"
#include "driver.h"
#include "rendezvous.h"

enum { COUNT_MOST = 400000, PIECES = 3, TOO_FEW_DEVICES = 77, NO_DRIVER = 78 };
#define GRAIN ((size_t)2 << 20)

/* A range of addresses, and what is mapped in it. */
struct buffer {
  CUdeviceptr range;
  CUmemGenericAllocationHandle pieces[PIECES];
  int count, device;
  CUmemAllocationHandleType types;
};

static struct {
  int rank, size, round;
  size_t count; /* elements of a rank's part */
  ncclComm_t comm;
  cudaStream_t stream;
  struct buffer in_buffer, out_buffer;
  int *in, *out, *host;
} run;

static CUresult memory_create(const struct buffer *buffer, CUmemGenericAllocationHandle *handle) {
  CUmemAllocationProp properties;
  memset(&properties, 0, sizeof properties);
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = buffer->types;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = buffer->device;
  return driver.create(handle, GRAIN, &properties, 0);
}

/* Its handle is there. */
static void piece_show(struct buffer *buffer, int piece) {
  const CUdeviceptr address = buffer->range + (CUdeviceptr)piece * GRAIN;
  CUmemAccessDesc access;
  memset(&access, 0, sizeof access);
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = buffer->device;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  NEED(driver.map(address, GRAIN, 0, buffer->pieces[piece], 0));
  NEED(driver.set_access(address, GRAIN, &access, 1));
}

static void piece_map(struct buffer *buffer, int piece) {
  NEED(memory_create(buffer, &buffer->pieces[piece]));
  piece_show(buffer, piece);
}

static void piece_unmap(struct buffer *buffer, int piece) {
  NEED(driver.unmap(buffer->range + (CUdeviceptr)piece * GRAIN, GRAIN));
  NEED(driver.release(buffer->pieces[piece]));
}

static void buffer_open(struct buffer *buffer, int device, int count, CUmemAllocationHandleType types) {
  *buffer = (struct buffer){.count = count, .device = device, .types = types};
  NEED(driver.reserve(&buffer->range, (PIECES + 1) * GRAIN, 0, 0, 0));
  for (int piece = 0; piece < count; piece++) piece_map(buffer, piece);
}

static void buffer_close(struct buffer *buffer) {
  for (int piece = 0; piece < buffer->count; piece++) piece_unmap(buffer, piece);
  NEED(driver.unreserve(buffer->range, (PIECES + 1) * GRAIN));
}

static int *buffer_at(const struct buffer *buffer, size_t offset) {
  return (int *)(uintptr_t)(buffer->range + offset);
}

/* ---- processes ---- */

static void barrier(void) { rendezvous_barrier(run.size); }

static void run_open(void) {
  if (!driver_load()) exit(NO_DRIVER);
  if (!rendezvous_device(run.size, run.rank)) exit(TOO_FEW_DEVICES);
  NEED(cudaStreamCreateWithFlags(&run.stream, cudaStreamNonBlocking));
  rendezvous_comm(&run.comm, run.size, run.rank);
  run.host = (int *)malloc(COUNT_MOST * RANKS_MAX * sizeof *run.host);
  NEED(run.host == NULL);
}

/* ---- values ---- */

static int value(int rank, size_t i) { return (int)(i % 1009) * 31 + rank * 7 + run.round * 1013; }

static int sum_at(size_t i) {
  int sum = 0;
  for (int rank = 0; rank < run.size; rank++) sum += value(rank, i);
  return sum;
}

static int expected(enum call call, size_t i) {
  const int peer = (int)(i / run.count), before = (run.rank + run.size - 1) % run.size;
  switch (call) {
    case ALL_REDUCE: return sum_at(i);
    case REDUCE_SCATTER: return sum_at((size_t)run.rank * run.count + i);
    case ALL_GATHER: return value(peer, i % run.count);
    case BROADCAST: return value(run.size - 1, i);
    case ALL_TO_ALL: return value(peer, (size_t)run.rank * run.count + i % run.count);
    default: return value(before, i);
  }
}

static size_t out_count(enum call call) {
  return call == ALL_GATHER || call == ALL_TO_ALL ? run.count * (size_t)run.size : run.count;
}

static size_t in_count(enum call call) {
  return call == REDUCE_SCATTER || call == ALL_TO_ALL ? run.count * (size_t)run.size : run.count;
}

static void fill(enum call call) {
  run.round += 1;
  for (size_t i = 0; i < in_count(call); i++) run.host[i] = value(run.rank, i);
  NEED(cudaMemcpyAsync(run.in, run.host, in_count(call) * sizeof(int), cudaMemcpyHostToDevice, run.stream));
  NEED(cudaMemsetAsync(run.out, 0xee, out_count(call) * sizeof(int), run.stream));
  NEED(cudaStreamSynchronize(run.stream));
}

static void call_start(enum call call) {
  const struct call_arguments arguments = {run.in,   run.out,      run.count, ncclUint32, run.rank,
                                           run.size, run.size - 1, run.comm,  run.stream};
  const bool grouped = call == EXCHANGE;
  if (grouped) NEED(ncclGroupStart());
  call_make(call, &arguments);
  if (grouped) NEED(ncclGroupEnd());
}

static void call_check(enum call call) {
  const size_t count = out_count(call);
  NEED(cudaMemcpyAsync(run.host, run.out, count * sizeof(int), cudaMemcpyDeviceToHost, run.stream));
  NEED(cudaStreamSynchronize(run.stream));
  for (size_t i = 0; i < count; i++) {
    if (run.host[i] == expected(call, i)) continue;
    printf("wrong: %s on rank %d, round %d: element %zu is %d, not %d\n", call_names[call], run.rank,
           run.round, i, run.host[i], expected(call, i));
    exit(1);
  }
}

static void call_checked(enum call call) {
  fill(call);
  call_start(call);
  call_check(call);
}

static const enum call called[] = {REDUCE_SCATTER, ALL_REDUCE, ALL_GATHER, BROADCAST, ALL_TO_ALL, EXCHANGE};
enum { CALLED = sizeof called / sizeof *called };

/* A peer maps a buffer at its second use. */
static void calls_make(int uses) {
  for (int c = 0; c < CALLED; c++)
    for (int use = 0; use < uses; use++) call_checked(called[c]);
}

/* ---- memory ---- */

static size_t free_bytes(void) {
  size_t bytes = 0, total = 0;
  NEED(cudaMemGetInfo(&bytes, &total));
  return bytes;
}

/* Until the memory of this device is back; no peer may wait in a collective meanwhile. */
static void await_free(size_t bytes) {
  while (free_bytes() < bytes) usleep(50);
}

static int entries(const char *path) {
  DIR *folder = opendir(path);
  int count = 0;
  NEED(folder == NULL);
  while (readdir(folder) != NULL) count += 1;
  closedir(folder);
  return count;
}

/* The data begins `before` bytes before the second piece. */
static void buffers_open(int pieces, size_t before, CUmemAllocationHandleType types) {
  int device = 0;
  NEED(cudaGetDevice(&device));
  buffer_open(&run.in_buffer, device, pieces, types);
  buffer_open(&run.out_buffer, device, pieces, types);
  run.in = buffer_at(&run.in_buffer, before > 0 ? GRAIN - before : 0);
  run.out = buffer_at(&run.out_buffer, before > 0 ? GRAIN - before - 8 : 0);
}

static void buffers_close(void) {
  buffer_close(&run.in_buffer);
  buffer_close(&run.out_buffer);
}

#define POSIX CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

static void direct(void) {
  run.count = 1200;
  buffers_open(1, 0, POSIX);
  calls_make(4);
  buffers_close();
}

static void pieces(void) {
  run.count = 2000;
  buffers_open(2, 4012, POSIX);
  calls_make(3);
  buffers_close();
  run.count = COUNT_MOST;
  buffers_open(PIECES, 8012, POSIX);
  for (int use = 0; use < 3; use++) call_checked(ALL_GATHER);
  for (int use = 0; use < 3; use++) call_checked(ALL_REDUCE);
  buffers_close();
}

/* ---- other memory at the same addresses ---- */

static void piece_replace(struct buffer *buffer, int piece) {
  piece_unmap(buffer, piece);
  piece_map(buffer, piece);
}

static void remap(int turns) {
  run.count = 2000;
  buffers_open(2, 4012, POSIX);
  calls_make(2);
  for (int turn = 0; turn < turns; turn++) {
    piece_replace(&run.out_buffer, turn % 2);
    if (turn % 3 == 0) piece_replace(&run.in_buffer, 1);
    calls_make(2);
  }
  /* Only what is in the first piece is used from now on. */
  piece_unmap(&run.in_buffer, 1);
  piece_unmap(&run.out_buffer, 1);
  run.in_buffer.count = run.out_buffer.count = 1;
  run.in = buffer_at(&run.in_buffer, 0);
  run.out = buffer_at(&run.out_buffer, 4);
  calls_make(3);
  buffers_close();
}

static void sleep_turn(size_t most) {
  for (int piece = 0; piece < 2; piece++) {
    piece_unmap(&run.in_buffer, piece);
    piece_unmap(&run.out_buffer, piece);
  }
  await_free(most);
  barrier();
  for (int piece = 0; piece < 2; piece++) {
    piece_map(&run.in_buffer, piece);
    piece_map(&run.out_buffer, piece);
  }
  calls_make(3);
  barrier();
}

static void sleep_turns(int turns) {
  run.count = 2000;
  buffers_open(2, 4012, POSIX);
  calls_make(3);
  barrier();
  const size_t most = free_bytes() + 4 * GRAIN;
  const int descriptors = entries("/proc/self/fd");
  for (int turn = 0; turn < turns; turn++) sleep_turn(most);
  /* What is mapped of others may be more or less than at the beginning. */
  const int most_descriptors = descriptors + 4 * (run.size - 1);
  if (entries("/proc/self/fd") > most_descriptors) {
    printf("wrong: rank %d had %d descriptors, and has %d\n", run.rank, descriptors,
           entries("/proc/self/fd"));
    exit(1);
  }
  buffers_close();
}

static void freed(void) {
  run.count = 1200;
  buffers_open(1, 0, POSIX);
  calls_make(3);
  barrier();
  const size_t before = free_bytes();
  buffers_close();
  await_free(before + 2 * GRAIN);
  barrier();
}

/* Other memory is shown, freed, and back. */
static void graph_turn(size_t before) {
  calls_make(3);
  barrier();
  if (getenv("SIMT_MEMORY") != NULL && free_bytes() + 4 * GRAIN > before) {
    puts("wrong: a graph's buffer was unmapped before the graph was destroyed");
    exit(1);
  }
  for (int piece = 0; piece < 2; piece++) {
    piece_unmap(&run.in_buffer, piece);
    piece_unmap(&run.out_buffer, piece);
  }
  await_free(before);
  barrier();
  for (int piece = 0; piece < 2; piece++) {
    piece_map(&run.in_buffer, piece);
    piece_map(&run.out_buffer, piece);
  }
}

static void graph(void) {
  cudaGraph_t captured;
  cudaGraphExec_t exec;
  run.count = 2000;
  buffers_open(2, 4012, POSIX);
  calls_make(2); /* the library allocates what it needs */
  NEED(cudaStreamBeginCapture(run.stream, cudaStreamCaptureModeThreadLocal));
  call_start(ALL_GATHER);
  NEED(cudaStreamEndCapture(run.stream, &captured));
  NEED(cudaGraphInstantiate(&exec, captured, 0));
  for (int launch = 0; launch < 3; launch++) {
    fill(ALL_GATHER);
    NEED(cudaGraphLaunch(exec, run.stream));
    call_check(ALL_GATHER);
  }
  barrier();
  const size_t before = free_bytes();
  struct buffer in_graph[2] = {run.in_buffer, run.out_buffer};
  buffers_open(2, 4012, POSIX); /* at other addresses */
  for (int i = 0; i < 2; i++) buffer_close(&in_graph[i]);
  for (int turn = 0; turn < 4; turn++) graph_turn(before);
  buffers_close();
  await_free(before);
  barrier();
  NEED(cudaGraphExecDestroy(exec));
  NEED(cudaGraphDestroy(captured));
  await_free(before + 4 * GRAIN);
  barrier();
}

/* ---- memory that cannot be exported, or otherwise ---- */

static void noexport(void) {
  run.count = 2000;
  buffers_open(2, 4012, CU_MEM_HANDLE_TYPE_NONE);
  calls_make(3);
  buffers_close();
}

static void fabric(void) {
  struct buffer probe = {.types = CU_MEM_HANDLE_TYPE_FABRIC};
  CUmemGenericAllocationHandle handle;
  if (cudaGetDevice(&probe.device) != cudaSuccess || memory_create(&probe, &handle) != CUDA_SUCCESS) {
    puts("vmm: the driver makes no fabric handles");
    return;
  }
  NEED(driver.release(handle));
  run.count = 2000;
  buffers_open(2, 4012, CU_MEM_HANDLE_TYPE_FABRIC);
  calls_make(3);
  barrier();
  const size_t before = free_bytes();
  buffers_close();
  await_free(before + 4 * GRAIN);
  barrier();
}

/* ---- memory of ncclMemAlloc ---- */

static void refuse_free(void *memory, const char *says) {
  const ncclResult_t result = ncclMemFree(memory);
  const char *text = ncclGetLastError(NULL);
  if (result == ncclInvalidArgument && strstr(text, "ncclMemFree of ") && strstr(text, says)) return;
  printf("wrong: ncclMemFree of a wrong address: result %d, %s\n", (int)result, text);
  exit(1);
}

static void refuse_bytes(size_t bytes) {
  void *none = NULL;
  char says[64];
  NEED(ncclMemAlloc(&none, bytes) == ncclSuccess);
  snprintf(says, sizeof says, "has no %zu bytes of memory", bytes);
  if (strstr(ncclGetLastError(NULL), says) != NULL) return;
  printf("wrong: too much memory: %s\n", ncclGetLastError(NULL));
  exit(1);
}

/* Other libraries make descriptors of it, and map it. */
static void alloc_export(void *memory) {
  CUmemGenericAllocationHandle handle;
  CUmemFabricHandle fabric;
  int descriptor = -1;
  NEED(driver.retain(&handle, memory));
  NEED(driver.export_handle(&descriptor, handle, POSIX, 0));
  if (getenv("SIMT_FABRIC") != NULL)
    NEED(driver.export_handle(&fabric, handle, CU_MEM_HANDLE_TYPE_FABRIC, 0));
  NEED(driver.release(handle));
  NEED(close(descriptor));
}

static void alloc_access(void *memory) {
  int device = 0, possible = 0;
  NEED(cudaGetDevice(&device));
  for (int other = 0; other < need_device_count(); other++) {
    CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = other};
    unsigned long long flags = 0;
    if (other != device) NEED(cudaDeviceCanAccessPeer(&possible, other, device));
    if (other != device && !possible) continue;
    NEED(driver.get_access(&flags, &location, (CUdeviceptr)(uintptr_t)memory + GRAIN));
    NEED(flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  }
}

/* It is to be memory of cudaMalloc. */
static bool alloc_plain(void) {
  const char *setting = getenv("NCCL_CUMEM_ENABLE");
  return getenv("SIMT_NO_VMM") != NULL || (setting != NULL && strcmp(setting, "0") == 0);
}

static void alloc_open(size_t bytes) {
  CUmemGenericAllocationHandle handle;
  NEED(ncclMemAlloc((void **)&run.in, bytes));
  NEED(ncclMemAlloc((void **)&run.out, bytes));
  const bool plain = driver.retain(&handle, run.in) != CUDA_SUCCESS;
  if (!plain) NEED(driver.release(handle));
  if (plain == alloc_plain()) return;
  printf("wrong: ncclMemAlloc makes memory of %s\n", plain ? "cudaMalloc" : "cuMemCreate");
  exit(1);
}

static void alloc(void) {
  const size_t bytes = GRAIN + 100;
  void *other = NULL;
  run.count = 2000;
  if (getenv("SIMT_MEMORY") != NULL) refuse_bytes((size_t)1 << 42);
  size_t before = free_bytes();
  alloc_open(bytes);
  const bool counted = free_bytes() + 2 * bytes <= before; /* without SIMT_MEMORY it is not */
  if (!alloc_plain()) {
    alloc_export(run.in);
    alloc_access(run.out);
  }
  calls_make(3);
  barrier();
  before = free_bytes();
  barrier();
  refuse_free((char *)run.in + 8, "is not where an allocation begins");
  NEED(ncclMemFree(run.in));
  refuse_free(run.in, "which is freed already");
  NEED(ncclMemFree(run.out));
  NEED(ncclMemFree(NULL));
  NEED(cudaMalloc(&other, 64));
  refuse_free(other, "belongs to cudaFree");
  NEED(cudaFree(other));
  if (counted) await_free(before + 2 * bytes);
  barrier();
}

/* ---- ranks of one process ---- */

enum { THREADS_COUNT = 5000 };

static struct {
  int ranks, host[THREADS_COUNT];
  ncclComm_t comms[RANKS_MAX];
  cudaStream_t streams[RANKS_MAX];
  struct buffer buffers[RANKS_MAX]; /* of cuMemCreate, or ... */
  char *alloced[RANKS_MAX];         /* ... of ncclMemAlloc */
} all;

static int *threads_data(int rank) {
  if (all.alloced[rank] != NULL) return (int *)(void *)(all.alloced[rank] + GRAIN - 4012);
  return buffer_at(&all.buffers[rank], GRAIN - 4012);
}

static void threads_fill(int turn) {
  for (int rank = 0; rank < all.ranks; rank++) {
    for (int i = 0; i < THREADS_COUNT; i++) all.host[i] = i + rank + turn;
    need_device(rank); /* the device that may access its memory */
    NEED(cudaMemcpyAsync(threads_data(rank), all.host, sizeof all.host, cudaMemcpyHostToDevice,
                         all.streams[rank]));
    NEED(cudaStreamSynchronize(all.streams[rank]));
  }
}

static void threads_reduce(void) {
  NEED(ncclGroupStart());
  for (int rank = 0; rank < all.ranks; rank++)
    NEED(ncclAllReduce(threads_data(rank), threads_data(rank), THREADS_COUNT, ncclUint32, ncclSum,
                       all.comms[rank], all.streams[rank]));
  NEED(ncclGroupEnd());
}

static void threads_check(int turn) {
  for (int rank = 0; rank < all.ranks; rank++) {
    need_device(rank);
    NEED(cudaMemcpyAsync(all.host, threads_data(rank), sizeof all.host, cudaMemcpyDeviceToHost,
                         all.streams[rank]));
    NEED(cudaStreamSynchronize(all.streams[rank]));
    for (int i = 0; i < THREADS_COUNT; i++)
      NEED(all.host[i] != (i + turn) * all.ranks + all.ranks * (all.ranks - 1) / 2);
  }
}

/* A program that gives memory back between replays, and maps other memory for the next one. */
static void threads_graph(void) {
  cudaGraphExec_t exec[RANKS_MAX];
  cudaGraph_t graph[RANKS_MAX];
  for (int rank = 0; rank < all.ranks; rank++)
    NEED(cudaStreamBeginCapture(all.streams[rank], cudaStreamCaptureModeThreadLocal));
  threads_reduce();
  for (int rank = 0; rank < all.ranks; rank++) NEED(cudaStreamEndCapture(all.streams[rank], &graph[rank]));
  for (int rank = 0; rank < all.ranks; rank++) NEED(cudaGraphInstantiate(&exec[rank], graph[rank], 0));
  for (int turn = 0; turn < 3; turn++) {
    threads_fill(turn);
    for (int rank = 0; rank < all.ranks; rank++) NEED(cudaGraphLaunch(exec[rank], all.streams[rank]));
    threads_check(turn);
    for (int rank = 0; rank < all.ranks && all.alloced[rank] == NULL; rank++)
      piece_replace(&all.buffers[rank], turn % 2);
  }
  for (int rank = 0; rank < all.ranks; rank++) {
    NEED(cudaGraphExecDestroy(exec[rank]));
    NEED(cudaGraphDestroy(graph[rank]));
  }
}

static void threads_open(int ranks, bool alloced) {
  all.ranks = ranks;
  if (!driver_load()) exit(NO_DRIVER);
  if (need_device_count() < ranks) exit(TOO_FEW_DEVICES);
  need_comms(all.comms, ranks);
  for (int rank = 0; rank < ranks; rank++) {
    need_device(rank);
    NEED(cudaStreamCreateWithFlags(&all.streams[rank], cudaStreamNonBlocking));
    if (alloced) NEED(ncclMemAlloc((void **)&all.alloced[rank], 2 * GRAIN));
    else buffer_open(&all.buffers[rank], rank, 2, POSIX);
  }
}

static void threads_close(void) {
  for (int rank = 0; rank < all.ranks; rank++) {
    if (all.alloced[rank] != NULL) NEED(ncclMemFree(all.alloced[rank]));
    else buffer_close(&all.buffers[rank]);
    NEED(cudaStreamDestroy(all.streams[rank]));
    NEED(ncclCommDestroy(all.comms[rank]));
  }
}

static void threads_alloc_graph(int ranks) {
  threads_open(ranks, true);
  threads_graph();
  threads_close();
}

static void threads(int ranks, int turns) {
  threads_open(ranks, false);
  for (int turn = 0; turn < turns; turn++) {
    threads_fill(turn);
    threads_reduce();
    threads_check(turn);
    for (int rank = 0; rank < ranks; rank++) {
      piece_replace(&all.buffers[rank], turn % 2);
      if (turn % 4 >= 2) continue;
      NEED(driver.unmap(all.buffers[rank].range + (turn + 1) % 2 * GRAIN, GRAIN));
      piece_show(&all.buffers[rank], (turn + 1) % 2);
    }
  }
  threads_graph();
  threads_close();
}

/* ---- proof of the direct access ---- */

static void on_fault(int signal) {
  (void)signal;
  _exit(0);
}

/* What this process has mapped of others' devices cannot be accessed any more. Over fibres alone: there
 * memory is a file that is named after its device. */
static void foreign_close(void) {
  char line[512], name[64];
  unsigned long begin = 0, end = 0;
  int device = 0, closed = 0;
  FILE *maps = fopen("/proc/self/maps", "r");
  NEED(maps == NULL);
  while (fgets(line, sizeof line, maps) != NULL) {
    const char *file = strstr(line, "memfd:simt-");
    if (file == NULL || sscanf(line, "%lx-%lx", &begin, &end) != 2 ||
        sscanf(file, "memfd:simt-%d%63s", &device, name) < 1 || device == run.rank)
      continue;
    NEED(mprotect((void *)begin, end - begin, PROT_NONE));
    closed += 1;
  }
  fclose(maps);
  if (closed > 0) return;
  printf("wrong: rank %d has no memory of others mapped\n", run.rank);
  exit(1);
}

/* Memory of cudaMalloc is not named after its device: more of it is mapped when it is shown, at the second
 * use. */
static void plain_used(void) {
  alloc_open(GRAIN);
  call_checked(ALL_GATHER);
  const int few = mapped();
  barrier();
  for (int use = 0; use < 2; use++) call_checked(ALL_GATHER);
  if (mapped() > few) return;
  printf("wrong: rank %d has not mapped the memory of another one\n", run.rank);
  exit(1);
}

static void used(int turns, bool alloced) {
  run.count = 2000;
  if (alloced && alloc_plain()) {
    plain_used();
    return;
  }
  if (alloced) alloc_open(GRAIN);
  else buffers_open(2, 4012, getenv("SIMT_FABRIC") != NULL ? CU_MEM_HANDLE_TYPE_FABRIC : POSIX);
  calls_make(3);
  barrier();
  const size_t most = free_bytes() + 4 * GRAIN;
  for (int turn = 0; turn < turns; turn++) sleep_turn(most);
  const bool last = run.rank == run.size - 1;
  if (last) foreign_close();
  if (last) signal(SIGSEGV, on_fault);
  fill(ALL_GATHER);
  barrier();
  call_start(ALL_GATHER);
  cudaStreamSynchronize(run.stream);
  if (!last) _exit(0); /* the other one has ended */
  printf("wrong: the kernel of rank %d did not access the memory of others\n", run.rank);
  exit(1);
}

/* ---- the whole ---- */

static bool run_mode(const char *mode, int number) {
  if (strcmp(mode, "direct") == 0) direct();
  else if (strcmp(mode, "pieces") == 0) pieces();
  else if (strcmp(mode, "remap") == 0) remap(number);
  else if (strcmp(mode, "sleep") == 0) sleep_turns(number);
  else if (strcmp(mode, "freed") == 0) freed();
  else if (strcmp(mode, "graph") == 0) graph();
  else if (strcmp(mode, "noexport") == 0) noexport();
  else if (strcmp(mode, "fabric") == 0) fabric();
  else if (strcmp(mode, "used") == 0) used(number, false);
  else if (strcmp(mode, "alloc") == 0) alloc();
  else if (strcmp(mode, "alloc-used") == 0) used(0, true);
  else return false;
  return true;
}

static void rank_main(const char *mode, int number) {
  run_open();
  if (mode == NULL) {
    direct();
    pieces();
    remap(3);
    sleep_turns(3);
    freed();
    graph();
    noexport();
    fabric();
    alloc();
  } else if (!run_mode(mode, number)) {
    fprintf(stderr, "vmm: no mode is called %s\n", mode);
    exit(2);
  }
  NEED(ncclCommDestroy(run.comm));
  exit(0);
}

/* In a process of their own, so that this one never opens a device. */
static int threads_apart(int ranks, int turns, bool alloced) {
  pid_t child = fork();
  NEED(child < 0);
  if (child == 0) {
    if (alloced) threads_alloc_graph(ranks);
    else threads(ranks, turns);
    exit(0);
  }
  return rendezvous_end(&child, 1, 0);
}

static int processes(const char *mode, int number) {
  pid_t children[RANKS_MAX];
  for (int rank = 0; rank < run.size; rank++) {
    run.rank = rank;
    children[rank] = fork();
    NEED(children[rank] < 0);
    if (children[rank] == 0) rank_main(mode, number);
  }
  return rendezvous_end(children, run.size, 0);
}

int main(int argc, char **argv) {
  const char *mode = argc > 1 ? argv[1] : NULL;
  const int number = argc > 2 ? atoi(argv[2]) : 3;
  int failed = 0;
  run.size = argc > 3 ? atoi(argv[3]) : 2;
  NEED(run.size < 2 || run.size > RANKS_MAX);
  rendezvous_open();
  const bool in_graph = mode != NULL && strcmp(mode, "alloc-graph") == 0;
  const bool apart = in_graph || (mode != NULL && strcmp(mode, "threads") == 0);
  if (mode == NULL || apart) failed = threads_apart(run.size, number, in_graph);
  if (failed == 0 && mode == NULL) failed = threads_apart(run.size, number, true);
  if (failed == TOO_FEW_DEVICES && mode == NULL) failed = 0; /* those of processes may share one */
  if (failed == 0 && !apart) failed = processes(mode, number);
  const bool left_out = failed == TOO_FEW_DEVICES || failed == NO_DRIVER;
  if (left_out) printf("vmm: needs %s: ok\n", failed == NO_DRIVER ? "a driver" : "two devices");
  else printf("vmm: %s, %d ranks: %s\n", mode != NULL ? mode : "all", run.size, failed ? "FAILED" : "ok");
  return left_out ? 0 : failed;
}
