/* clang-format off */
/* puts.c: one-sided calls between processes, one a rank. Every rank puts into the windows of all others, and
 * results are checked after each round.
 *
 *     puts [MODE [RANKS [SENTENCE]]]
 *
 *     data      windows of cudaMalloc, cuMemCreate and ncclMemAlloc: several sizes and offsets, signals
 *               alone, groups, waits for several peers
 *     renew     windows are deregistered, freed and registered anew: memory is back, other memory is used
 *     wrong     offsets, small allocations, windows that are deregistered: refused with a sentence
 *     freed     a window whose memory is freed while it is registered: refused, and its owner is told
 *     late      a window that is deregistered after a put into it was noted in a group
 *     suspend   windows outlive a suspension
 *     killed    the last rank is killed while others wait for its signal
 *     leave     communicators are destroyed while others still have windows mapped
 *     apart     the ranks' settings let none put into another one's memory: refused with the sentence
 *     left      the last rank leaves while others wait for its signal: an error names it
 *     stuck     over fibres: a wait for a signal that never comes; ends when all ranks abort
 *
 * Without arguments, all but the last three. Prints what is wrong, or what was run and `ok`. */
/* clang-format on */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#include "driver.h"
#include "rendezvous.h"

enum { CANNOT_RUN = 77, ROUNDS = 6, POLLS_MOST = 20000 };
#define GRAIN ((size_t)2 << 20)
#define WINDOW_BYTES (2 * GRAIN)
#define PART_BYTES (WINDOW_BYTES / RANKS_MAX) /* of each rank that puts */

enum kind { MALLOC, CREATE, ALLOC, KINDS };

static struct {
  int rank, size;
  const char *sentence;
  ncclComm_t comm;
  cudaStream_t stream, other;
  uint8_t *local, *host;
} run;

struct buffer {
  enum kind kind;
  uint8_t *memory;
  ncclWindow_t window;
};

static void barrier(void) { rendezvous_barrier(run.size); }

/* ---- memory ---- */

/* Two allocations, one behind the other. */
static void *created(void) {
  CUmemAllocationProp properties;
  CUmemAccessDesc access;
  CUdeviceptr range = 0;
  int device = 0;
  NEED(cudaGetDevice(&device));
  memset(&properties, 0, sizeof properties);
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device;
  memset(&access, 0, sizeof access);
  access.location = properties.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  NEED(driver.reserve(&range, WINDOW_BYTES, 0, 0, 0));
  for (CUdeviceptr at = range; at < range + WINDOW_BYTES; at += GRAIN) {
    CUmemGenericAllocationHandle handle;
    NEED(driver.create(&handle, GRAIN, &properties, 0));
    NEED(driver.map(at, GRAIN, 0, handle, 0));
    NEED(driver.set_access(at, GRAIN, &access, 1));
    NEED(driver.release(handle));
  }
  return (void *)(uintptr_t)range;
}

static void buffer_open(struct buffer *buffer, enum kind kind) {
  void *memory = NULL;
  buffer->kind = kind;
  if (kind == CREATE) memory = created();
  else if (kind == MALLOC) NEED(cudaMalloc(&memory, WINDOW_BYTES));
  else NEED(ncclMemAlloc(&memory, WINDOW_BYTES));
  buffer->memory = (uint8_t *)memory;
  NEED(ncclCommWindowRegister(run.comm, memory, WINDOW_BYTES, &buffer->window, NCCL_WIN_DEFAULT));
}

static void memory_free(const struct buffer *buffer) {
  const CUdeviceptr range = (CUdeviceptr)(uintptr_t)buffer->memory;
  if (buffer->kind == MALLOC) NEED(cudaFree(buffer->memory));
  if (buffer->kind == ALLOC) NEED(ncclMemFree(buffer->memory));
  if (buffer->kind != CREATE) return;
  for (size_t at = 0; at < WINDOW_BYTES; at += GRAIN) NEED(driver.unmap(range + at, GRAIN));
  NEED(driver.unreserve(range, WINDOW_BYTES));
}

static void buffer_close(const struct buffer *buffer) {
  NEED(ncclCommWindowDeregister(run.comm, buffer->window));
  memory_free(buffer);
}

static size_t free_bytes(void) {
  size_t bytes = 0, total = 0;
  NEED(cudaMemGetInfo(&bytes, &total));
  return bytes;
}

/* ---- calls ---- */

static void put(const struct buffer *buffer, int to, size_t bytes, size_t offset, cudaStream_t stream) {
  NEED(ncclPutSignal(run.local + (size_t)to * PART_BYTES, bytes, ncclUint8, to, buffer->window, offset, 0, 0,
                     0, run.comm, stream));
}

/* For `count` signals of each other rank, in one call. */
static void await_all(int count, cudaStream_t stream) {
  ncclWaitSignalDesc_t descs[RANKS_MAX];
  int used = 0;
  for (int peer = 0; peer < run.size; peer++)
    if (peer != run.rank) descs[used++] = (ncclWaitSignalDesc_t){count, peer, 0, 0};
  NEED(ncclWaitSignal(used, descs, run.comm, stream));
}

static void signal_all(cudaStream_t stream) {
  for (int peer = 0; peer < run.size; peer++)
    if (peer != run.rank) NEED(ncclSignal(peer, 0, 0, 0, run.comm, stream));
}

static uint8_t value(int round, int from, int to, size_t i) {
  return (uint8_t)((size_t)round * 31 + (size_t)from * 7 + (size_t)to * 3 + i % 251);
}

static size_t bytes_of(int round, int from, int to) {
  static const size_t sizes[] = {0, 1, 100, 4096, 65537, PART_BYTES - 4096};
  return sizes[(size_t)(round + from + 2 * to) % (sizeof sizes / sizeof *sizes)];
}

static size_t offset_of(int round, int from) { return (size_t)from * PART_BYTES + (size_t)(round * 5 % 64); }

static void local_fill(int round) {
  for (int to = 0; to < run.size; to++)
    for (size_t i = 0; i < PART_BYTES; i++)
      run.host[(size_t)to * PART_BYTES + i] = value(round, run.rank, to, i);
  NEED(cudaMemcpyAsync(run.local, run.host, WINDOW_BYTES, cudaMemcpyHostToDevice, run.stream));
}

static void part_check(int round, int from) {
  const uint8_t *part = run.host + offset_of(round, from);
  for (size_t i = 0; i < bytes_of(round, from, run.rank); i++) {
    if (part[i] == value(round, from, run.rank, i)) continue;
    printf("wrong: round %d, from rank %d to rank %d: byte %zu is %d, not %d\n", round, from, run.rank, i,
           part[i], value(round, from, run.rank, i));
    exit(1);
  }
}

/* Everybody puts into everybody's window; nobody puts into what another one still reads. */
static void round_of(const struct buffer *buffer, int round) {
  const bool grouped = round % 2 == 1;
  local_fill(round);
  if (grouped) NEED(ncclGroupStart());
  if (grouped) await_all(1, run.stream);
  for (int to = 0; to < run.size; to++)
    if (to != run.rank)
      put(buffer, to, bytes_of(round, run.rank, to), offset_of(round, run.rank), run.stream);
  if (!grouped) await_all(1, run.stream);
  if (grouped) NEED(ncclGroupEnd());
  NEED(cudaMemcpyAsync(run.host, buffer->memory, WINDOW_BYTES, cudaMemcpyDeviceToHost, run.stream));
  NEED(cudaStreamSynchronize(run.stream));
  for (int from = 0; from < run.size; from++)
    if (from != run.rank) part_check(round, from);
  signal_all(run.stream);
  await_all(1, run.stream);
}

static void drain(void) {
  NEED(cudaStreamSynchronize(run.stream));
  NEED(cudaStreamSynchronize(run.other));
  barrier();
}

/* ---- modes ---- */

static void data(void) {
  struct buffer buffers[KINDS];
  signal_all(run.stream); /* before there is a window */
  await_all(1, run.stream);
  for (int kind = 0; kind < KINDS; kind++) buffer_open(&buffers[kind], (enum kind)kind);
  for (int round = 0; round < ROUNDS; round++)
    for (int kind = 0; kind < KINDS; kind++) round_of(&buffers[kind], KINDS * round + kind);
  /* The second signal is on a free stream, and still comes behind the first. */
  await_all(2, run.other);
  for (int peer = 0; peer < run.size; peer++) {
    if (peer == run.rank) continue;
    put(&buffers[0], peer, PART_BYTES, (size_t)run.rank * PART_BYTES, run.stream);
    NEED(ncclSignal(peer, 0, 0, 0, run.comm, run.stream));
  }
  drain();
  for (int kind = 0; kind < KINDS; kind++) buffer_close(&buffers[kind]);
}

static void renew(void) {
  struct buffer buffer;
  size_t most = 0;
  for (int turn = 0; turn < 3 * KINDS; turn++) {
    buffer_open(&buffer, (enum kind)(turn % KINDS));
    round_of(&buffer, turn);
    round_of(&buffer, turn + 1);
    drain();
    buffer_close(&buffer);
    /* Memory of other processes is unmapped when the device is idle, without a call. */
    if (turn == KINDS) most = free_bytes();
    for (int poll = 0; poll < POLLS_MOST && free_bytes() < most; poll++) usleep(100);
    if (getenv("SIMT_MEMORY") != NULL) NEED(free_bytes() < most);
    barrier();
  }
}

static void refused(ncclResult_t result, const char *sentence) {
  const char *said = ncclGetLastError(run.comm);
  if (result != ncclSuccess && strstr(said, sentence) != NULL) return;
  printf("wrong: rank %d: %d, %s, where it should be: %s\n", run.rank, result, said, sentence);
  exit(1);
}

static ncclResult_t put_result(ncclWindow_t window, int to, size_t bytes, size_t offset) {
  return ncclPutSignal(run.local, bytes, ncclUint8, to, window, offset, 0, 0, 0, run.comm, run.stream);
}

/* The peer's window is too small to be mapped alone. */
static void wrong_small(int to) {
  void *memory = NULL;
  ncclWindow_t window;
  NEED(cudaMalloc(&memory, 4096));
  NEED(ncclCommWindowRegister(run.comm, memory, 4096, &window, NCCL_WIN_DEFAULT));
  refused(put_result(window, to, 16, 0), "has memory for it that this process cannot map");
  barrier();
  NEED(ncclCommWindowDeregister(run.comm, window));
  NEED(cudaFree(memory));
}

static void wrong(void) {
  const int to = (run.rank + 1) % run.size;
  struct buffer buffer;
  buffer_open(&buffer, MALLOC);
  refused(put_result(buffer.window, to, 2, WINDOW_BYTES - 1), "do not fit into the");
  refused(put_result(buffer.window, to, WINDOW_BYTES + 1, 0), "do not fit into the");
  wrong_small(to);
  round_of(&buffer, 1);
  drain();
  /* The last rank alone deregisters it, then all others. A put that is refused as late as at its launch
   * breaks the communicator. */
  const bool last = run.rank == run.size - 1;
  if (last) NEED(ncclCommWindowDeregister(run.comm, buffer.window));
  barrier();
  if (to == run.size - 1) {
    ncclResult_t result = ncclSuccess;
    for (int poll = 0; poll < POLLS_MOST && result == ncclSuccess; poll++, usleep(100))
      result = put_result(buffer.window, to, 16, 0);
    refused(result, "deregistered it");
  }
  drain();
  if (!last) NEED(ncclCommWindowDeregister(run.comm, buffer.window));
  memory_free(&buffer);
  barrier();
  NEED(ncclCommAbort(run.comm));
}

/* A window whose memory is freed: its owner is told, and puts into it are refused, not stored elsewhere. */
static void freed(void) {
  const int to = (run.rank + 1) % run.size, last = run.size - 1;
  struct buffer buffer;
  buffer_open(&buffer, MALLOC);
  round_of(&buffer, 1);
  drain();
  if (run.rank == last) memory_free(&buffer);
  barrier();
  if (to == last) {
    ncclResult_t result = ncclSuccess;
    for (int poll = 0; poll < POLLS_MOST && result == ncclSuccess; poll++, usleep(100))
      result = put_result(buffer.window, to, 16, 0);
    refused(result, "freed");
  }
  drain();
  if (run.rank == last) {
    ncclCommWindowDeregister(run.comm, buffer.window); /* refused where pointers are checked */
  } else {
    buffer_close(&buffer);
  }
  barrier();
  NEED(ncclCommAbort(run.comm));
}

/* What a group's end finds unmapped is refused, too, and breaks the communicator of all ranks. */
static void late(void) {
  const int to = (run.rank + 1) % run.size, last = run.size - 1;
  struct buffer buffer;
  buffer_open(&buffer, MALLOC);
  round_of(&buffer, 1);
  drain();
  const int before = mapped();
  if (to == last) {
    NEED(ncclGroupStart());
    NEED(put_result(buffer.window, to, 16, 0));
  }
  barrier();
  if (run.rank == last) buffer_close(&buffer);
  barrier();
  if (to == last) {
    for (int poll = 0; poll < POLLS_MOST / 10 && mapped() == before; poll++) usleep(100);
    const ncclResult_t result = ncclGroupEnd();
    if (mapped() < before) refused(result, "has freed the memory of its window, or deregistered it");
  }
  drain();
  if (run.rank != last) buffer_close(&buffer);
  barrier();
  NEED(ncclCommAbort(run.comm));
}

static void suspended(void) {
  struct buffer buffer;
  buffer_open(&buffer, ALLOC);
  for (int turn = 0; turn < 3; turn++) {
    round_of(&buffer, turn);
    drain();
    NEED(ncclCommSuspend(run.comm, NCCL_SUSPEND_MEM));
    NEED(ncclCommResume(run.comm));
  }
  round_of(&buffer, 3);
  drain();
  buffer_close(&buffer);
}

/* The others destroy their communicator, and free their windows, while rank 0 has them mapped. What it puts
 * there goes nowhere, or is refused. */
static void leave(void) {
  struct buffer buffer;
  buffer_open(&buffer, ALLOC);
  round_of(&buffer, 1);
  drain();
  if (run.rank == 0) barrier();
  if (run.rank == 0) put_result(buffer.window, run.size - 1, 16, 0);
  NEED(cudaStreamSynchronize(run.stream));
  NEED(ncclCommDestroy(run.comm));
  memory_free(&buffer);
  if (run.rank != 0) barrier();
}

static void killed(void) {
  const int last = run.size - 1;
  ncclWaitSignalDesc_t desc = {1, last, 0, 0};
  ncclResult_t state = ncclSuccess;
  struct buffer buffer;
  buffer_open(&buffer, MALLOC);
  round_of(&buffer, 1);
  drain();
  if (run.rank == last) kill(getpid(), SIGKILL);
  const ncclResult_t called = ncclWaitSignal(1, &desc, run.comm, run.stream);
  NEED(called != ncclSuccess && called != ncclRemoteError);
  for (int poll = 0; poll < POLLS_MOST && state == ncclSuccess; poll++, usleep(1000))
    NEED(ncclCommGetAsyncError(run.comm, &state));
  NEED(state != ncclRemoteError);
  NEED(ncclCommAbort(run.comm));
  NEED(cudaStreamSynchronize(run.stream));
  memory_free(&buffer);
}

static void apart(void) {
  const int to = (run.rank + 1) % run.size;
  struct buffer buffer;
  buffer_open(&buffer, ALLOC);
  refused(put_result(buffer.window, to, 16, 0), run.sentence);
  refused(ncclSignal(to, 0, 0, 0, run.comm, run.stream), run.sentence);
  drain();
  buffer_close(&buffer);
}

/* The last rank leaves without a signal that others wait for. */
static void left(void) {
  const int last = run.size - 1;
  ncclWaitSignalDesc_t desc = {1, last, 0, 0};
  ncclResult_t state = ncclSuccess;
  if (run.rank != last) NEED(ncclWaitSignal(1, &desc, run.comm, run.stream));
  barrier();
  if (run.rank == last) NEED(ncclCommDestroy(run.comm));
  if (run.rank == last) return;
  for (int poll = 0; poll < POLLS_MOST && state == ncclSuccess; poll++, usleep(1000))
    NEED(ncclCommGetAsyncError(run.comm, &state));
  refused(state, "has left the communicator");
  NEED(ncclCommAbort(run.comm));
  NEED(cudaStreamSynchronize(run.stream));
}

static void stuck(void) {
  const char *gate = getenv("PUTS_GATE");
  ncclWaitSignalDesc_t desc = {2, (run.rank + 1) % run.size, 0, 0};
  signal_all(run.stream);
  NEED(ncclWaitSignal(1, &desc, run.comm, run.stream));
  while (gate != NULL && access(gate, F_OK) != 0) usleep(1000);
  NEED(cudaStreamQuery(run.stream) != cudaErrorNotReady);
  barrier();
  NEED(ncclCommAbort(run.comm));
  NEED(cudaStreamSynchronize(run.stream));
}

/* ---- the whole ---- */

static const struct {
  const char *name;
  void (*run)(void);
  bool ends;  /* the communicator */
  bool alone; /* only if it is named */
} modes[] = {
    {"data", data, false, false},  {"renew", renew, false, false},  {"wrong", wrong, true, false},
    {"freed", freed, true, false}, {"late", late, true, false},     {"suspend", suspended, false, false},
    {"leave", leave, true, false}, {"killed", killed, true, false}, {"apart", apart, false, true},
    {"left", left, true, true},    {"stuck", stuck, true, true}};
enum { MODES = sizeof modes / sizeof *modes };

static void rank_main(int mode, int rank) {
  run.rank = rank;
  if (!driver_load()) exit(CANNOT_RUN);
  if (!rendezvous_device(run.size, run.rank)) exit(CANNOT_RUN);
  NEED(cudaStreamCreateWithFlags(&run.stream, cudaStreamNonBlocking));
  NEED(cudaStreamCreateWithFlags(&run.other, cudaStreamNonBlocking));
  NEED(cudaMalloc((void **)&run.local, WINDOW_BYTES + 1));
  run.host = (uint8_t *)malloc(WINDOW_BYTES);
  NEED(run.host == NULL);
  rendezvous_comm(&run.comm, run.size, run.rank);
  modes[mode].run();
  if (!modes[mode].ends) NEED(ncclCommDestroy(run.comm));
  exit(0);
}

int main(int argc, char **argv) {
  const char *asked = argc > 1 ? argv[1] : NULL;
  int failed = 0, found = 0;
  run.size = argc > 2 ? atoi(argv[2]) : 2;
  run.sentence = argc > 3 ? argv[3] : "";
  NEED(run.size < 2 || run.size > RANKS_MAX);
  rendezvous_open();
  for (int mode = 0; mode < MODES && failed == 0; mode++) {
    if (asked != NULL ? strcmp(asked, modes[mode].name) != 0 : modes[mode].alone) continue;
    found += 1;
    failed = rendezvous_run(run.size, rank_main, mode, modes[mode].run == killed ? SIGKILL : 0);
  }
  if (failed == CANNOT_RUN) puts("puts: needs two devices and their driver: ok");
  else
    printf("puts: %s, %d ranks: %s\n", asked != NULL ? asked : "all", run.size,
           failed || found == 0 ? "FAILED" : "ok");
  return failed == CANNOT_RUN ? 0 : failed || found == 0;
}
