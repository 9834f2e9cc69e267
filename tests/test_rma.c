/* test_rma.c: ncclPutSignal, ncclSignal and ncclWaitSignal: what arrives, and when; wrong calls and their
 * sentences; waits that nothing ends; races. Runs in both modes of the emulator, each in a child process. */
/* sanitizers: address thread */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include <cuda_runtime.h>
#include <nccl.h>

#include "backends/emu/cudart/race.h"
#include "base/os.h"
#include "skip.h"

#define RANKS 3
#define COUNT 256
#define BYTES (COUNT * sizeof(int))

/* Each rank has a window of RANKS parts, one for each source, two streams and a buffer to put from. */
static struct {
  ncclComm_t comms[RANKS];
  cudaStream_t streams[RANKS], others[RANKS];
  int *windows[RANKS], *local[RANKS];
  ncclWindow_t handles[RANKS];
} s;

static bool guarded;
static bool by_copies; /* collectives run on copy engines */

static void expect_ok_at(ncclResult_t result, int line) {
  if (result != ncclSuccess) fail_msg("line %d: %d: %s", line, result, ncclGetLastError(NULL));
}
#define OK(call) expect_ok_at((call), __LINE__)

static void expect_says(const char *part) {
  if (strstr(ncclGetLastError(NULL), part) == NULL)
    fail_msg("\"%s\" is not in: %s", part, ncclGetLastError(NULL));
}

static void expect_error(ncclResult_t result, ncclResult_t code, const char *part) {
  if (result != code) fail_msg("%d in place of %d: %s", result, code, ncclGetLastError(NULL));
  expect_says(part);
}

static int value_of(int from, int to, int place) { return from * 10000 + to * 1000 + place; }

static void open_comms(void) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclUniqueId id;
  config.CTAPolicy = by_copies ? NCCL_CTA_POLICY_ZERO : NCCL_CTA_POLICY_DEFAULT;
  OK(ncclGetUniqueId(&id));
  OK(ncclGroupStart());
  for (int r = 0; r < RANKS; r++) {
    cudaSetDevice(r);
    OK(ncclCommInitRankConfig(&s.comms[r], RANKS, id, r, &config));
  }
  OK(ncclGroupEnd());
}

static void open_all(void) {
  memset(&s, 0, sizeof s);
  open_comms();
  for (int r = 0; r < RANKS; r++) {
    cudaSetDevice(r);
    assert_int_equal(cudaStreamCreateWithFlags(&s.streams[r], cudaStreamNonBlocking), 0);
    assert_int_equal(cudaStreamCreateWithFlags(&s.others[r], cudaStreamNonBlocking), 0);
    assert_int_equal(cudaMalloc((void **)&s.windows[r], RANKS * BYTES), 0);
    assert_int_equal(cudaMalloc((void **)&s.local[r], RANKS * BYTES), 0);
    for (int to = 0; to < RANKS; to++)
      for (int i = 0; i < COUNT; i++) s.local[r][to * COUNT + i] = value_of(r, to, i);
    OK(ncclCommWindowRegister(s.comms[r], s.windows[r], RANKS * BYTES, &s.handles[r],
                              by_copies ? NCCL_WIN_COLL_SYMMETRIC : NCCL_WIN_DEFAULT));
  }
}

static void finish(void) {
  for (int r = 0; r < RANKS; r++) {
    assert_int_equal(cudaStreamSynchronize(s.streams[r]), 0);
    assert_int_equal(cudaStreamSynchronize(s.others[r]), 0);
  }
}

static void free_all(bool aborts) {
  for (int r = 0; r < RANKS; r++) {
    if (s.comms[r] == NULL) continue;
    if (!aborts) OK(ncclCommWindowDeregister(s.comms[r], s.handles[r]));
    if (aborts) OK(ncclCommAbort(s.comms[r]));
    else OK(ncclCommDestroy(s.comms[r]));
  }
  for (int r = 0; r < RANKS; r++) {
    cudaStreamDestroy(s.streams[r]);
    cudaStreamDestroy(s.others[r]);
    cudaFree(s.windows[r]);
    cudaFree(s.local[r]);
  }
  cudaGetLastError();
}

static ncclResult_t put(int from, int to, cudaStream_t stream) {
  return ncclPutSignal(s.local[from] + to * COUNT, COUNT, ncclInt, to, s.handles[from], (size_t)from * BYTES,
                       0, 0, 0, s.comms[from], stream);
}

static ncclResult_t await(int rank, int peer, int count, cudaStream_t stream) {
  ncclWaitSignalDesc_t desc = {.opCnt = count, .peer = peer, .sigIdx = 0, .ctx = 0};
  return ncclWaitSignal(1, &desc, s.comms[rank], stream);
}

static void expect_part(int from, int to) {
  for (int i = 0; i < COUNT; i++) assert_int_equal(s.windows[to][from * COUNT + i], value_of(from, to, i));
}

/* ---- what arrives ---- */

static void test_one_put(void **state) {
  (void)state;
  open_all();
  OK(await(1, 0, 1, s.streams[1])); /* the wait comes first */
  int *copy;
  assert_int_equal(cudaMallocHost((void **)&copy, BYTES), 0);
  assert_int_equal(cudaMemcpyAsync(copy, s.windows[1], BYTES, cudaMemcpyDeviceToHost, s.streams[1]), 0);
  OK(put(0, 1, s.streams[0]));
  finish();
  expect_part(0, 1);
  for (int i = 0; i < COUNT; i++) assert_int_equal(copy[i], value_of(0, 1, i));
  cudaFreeHost(copy);
  free_all(false);
}

/* Every rank to every rank, itself included, in one group, which waits before it puts. */
static void test_all_to_all(void **state) {
  (void)state;
  open_all();
  for (int round = 0; round < 3; round++) {
    OK(ncclGroupStart());
    for (int r = 0; r < RANKS; r++) {
      ncclWaitSignalDesc_t descs[RANKS];
      for (int peer = 0; peer < RANKS; peer++) descs[peer] = (ncclWaitSignalDesc_t){1, peer, 0, 0};
      OK(ncclWaitSignal(RANKS, descs, s.comms[r], s.streams[r]));
      for (int to = 0; to < RANKS; to++) OK(put(r, to, s.streams[r]));
    }
    OK(ncclGroupEnd());
    finish();
    for (int from = 0; from < RANKS; from++)
      for (int to = 0; to < RANKS; to++) expect_part(from, to);
    for (int r = 0; r < RANKS; r++) memset(s.windows[r], 0, RANKS * BYTES);
  }
  free_all(false);
}

/* The last signal means that all the data is there. */
static void test_many_puts(void **state) {
  (void)state;
  open_all();
  for (int i = 0; i < COUNT; i++)
    OK(ncclPutSignal(s.local[0] + COUNT + i, 1, ncclInt, 1, s.handles[0], (size_t)i * sizeof(int), 0, 0, 0,
                     s.comms[0], s.streams[0]));
  OK(await(1, 0, COUNT - 100, s.streams[1]));
  OK(await(1, 0, 100, s.others[1]));
  assert_int_equal(cudaStreamSynchronize(s.others[1]), 0);
  expect_part(0, 1);
  finish();
  free_all(false);
}

/* Signals carry no data, a put of nothing is one, and a wait takes what earlier waits left. */
static void test_signals(void **state) {
  (void)state;
  open_all();
  OK(ncclSignal(2, 0, 0, 0, s.comms[0], s.streams[0]));
  OK(ncclPutSignal(NULL, 0, ncclInt, 2, s.handles[0], 0, 0, 0, 0, s.comms[0], s.streams[0]));
  OK(ncclSignal(2, 0, 0, 0, s.comms[2], s.streams[2]));
  OK(await(2, 2, 1, s.streams[2]));
  OK(await(2, 0, 1, s.streams[2]));
  OK(await(2, 0, 0, s.streams[2]));
  OK(ncclWaitSignal(0, NULL, s.comms[2], s.streams[2]));
  OK(await(2, 0, 1, s.streams[2]));
  finish();
  OK(await(2, 0, 1, s.streams[2]));
  assert_int_equal(cudaStreamQuery(s.streams[2]), cudaErrorNotReady);
  OK(ncclSignal(2, 0, 0, 0, s.comms[0], s.streams[0]));
  finish();
  for (int i = 0; i < RANKS * COUNT; i++) assert_int_equal(s.windows[2][i], 0);
  free_all(false);
}

/* Puts for one peer keep their order on several streams: the second waits for the first. */
static void test_order_of_streams(void **state) {
  (void)state;
  cudaEvent_t event;
  open_all();
  cudaSetDevice(0);
  assert_int_equal(cudaEventCreate(&event), 0);
  OK(await(0, 2, 1, s.streams[0])); /* keeps the first put back */
  OK(put(0, 1, s.streams[0]));
  OK(ncclSignal(1, 0, 0, 0, s.comms[0], s.others[0]));
  OK(await(1, 0, 1, s.streams[1]));
  assert_int_equal(cudaStreamQuery(s.streams[1]), cudaErrorNotReady);
  assert_int_equal(cudaStreamQuery(s.others[0]), cudaErrorNotReady);
  OK(ncclSignal(0, 0, 0, 0, s.comms[2], s.streams[2]));
  OK(await(1, 0, 1, s.streams[1]));
  finish();
  expect_part(0, 1);
  cudaEventDestroy(event);
  free_all(false);
}

/* Beside collectives, alone and in their groups. */
static void test_with_collectives(void **state) {
  (void)state;
  open_all();
  for (int round = 0; round < 4; round++) {
    OK(ncclGroupStart());
    for (int r = 0; r < RANKS; r++) {
      const int next = (r + 1) % RANKS, last = (r + RANKS - 1) % RANKS;
      OK(await(r, last, 1, s.streams[r]));
      OK(ncclAllReduce(s.local[r] + r * COUNT, s.local[r] + r * COUNT, COUNT, ncclInt, ncclMax, s.comms[r],
                       s.streams[r]));
      OK(put(r, next, s.streams[r]));
    }
    OK(ncclGroupEnd());
    finish();
    for (int r = 0; r < RANKS; r++) expect_part(r, (r + 1) % RANKS);
  }
  free_all(false);
}

/* A group that fails, or is simulated, leaves no signal behind, nor a wait. */
static void test_failed_group(void **state) {
  (void)state;
  open_all();
  OK(ncclGroupStart());
  OK(put(0, 1, s.streams[0]));
  OK(await(0, 1, 1, s.streams[0]));
  expect_error(ncclSignal(RANKS, 0, 0, 0, s.comms[0], s.streams[0]), ncclInvalidArgument,
               "peer 3 is no rank");
  assert_int_equal(ncclGroupEnd(), ncclInvalidArgument);
  ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
  OK(ncclGroupStart());
  OK(put(0, 1, s.streams[0]));
  OK(ncclGroupSimulateEnd(&info));
  OK(await(1, 0, 1, s.streams[1]));
  assert_int_equal(cudaStreamQuery(s.streams[1]), cudaErrorNotReady);
  OK(put(0, 1, s.streams[0]));
  finish();
  free_all(false);
}

/* ---- wrong calls ---- */

static void test_wrong_arguments(void **state) {
  (void)state;
  ncclWaitSignalDesc_t desc = {.opCnt = -1, .peer = 1};
  open_all();
  const ncclComm_t comm = s.comms[0];
  const cudaStream_t stream = s.streams[0];
  const ncclWindow_t win = s.handles[0];
#define PUT(buffer, count, type, peer, window, offset, index, context, flags) \
  ncclPutSignal(buffer, count, type, peer, window, offset, index, context, flags, comm, stream)
  expect_error(PUT(s.local[0], 1, ncclInt, -1, win, 0, 0, 0, 0), ncclInvalidArgument, "peer -1 is no rank");
  expect_error(PUT(s.local[0], 1, ncclInt, 1, win, 0, 1, 0, 0), ncclInvalidArgument, "sigIdx is 1");
  expect_error(PUT(s.local[0], 1, ncclInt, 1, win, 0, 0, 2, 0), ncclInvalidArgument, "ctx is 2");
  expect_error(PUT(s.local[0], 1, ncclInt, 1, win, 0, 0, 0, 4), ncclInvalidArgument, "flags is 4");
  expect_error(PUT(NULL, 1, ncclInt, 1, win, 0, 0, 0, 0), ncclInvalidArgument, "localbuff is NULL");
  expect_error(PUT(s.local[0], 1, (ncclDataType_t)99, 1, win, 0, 0, 0, 0), ncclInvalidArgument, "datatype");
  expect_error(PUT(s.local[0], SIZE_MAX, ncclInt, 1, win, 0, 0, 0, 0), ncclInvalidArgument, "address space");
  expect_error(PUT(s.local[0], 1, ncclInt, 1, NULL, 0, 0, 0, 0), ncclInvalidArgument, "peerWin is NULL");
  expect_error(PUT(s.local[0], 1, ncclInt, 1, s.handles[1], 0, 0, 0, 0), ncclInvalidUsage, "has no window");
  expect_error(PUT(s.local[0], 1, ncclInt, 1, win, RANKS * BYTES, 0, 0, 0), ncclInvalidArgument,
               "peerWinOffset 3072 and 4 bytes do not fit into the 3072 bytes of rank 1's window");
  expect_error(PUT(s.local[0], 2, ncclInt, 1, win, RANKS * BYTES - 4, 0, 0, 0), ncclInvalidArgument,
               "peerWinOffset 3068 and 8 bytes");
  expect_error(PUT(s.local[0], 1, ncclInt, 1, win, SIZE_MAX, 0, 0, 0), ncclInvalidArgument, "peerWinOffset");
  expect_error(ncclWaitSignal(1, NULL, comm, stream), ncclInvalidArgument, "signalDescs is NULL");
  expect_error(ncclWaitSignal(1, &desc, comm, stream), ncclInvalidArgument, "opCnt is negative");
  desc = (ncclWaitSignalDesc_t){.opCnt = 1, .peer = RANKS};
  expect_error(ncclWaitSignal(1, &desc, comm, stream), ncclInvalidArgument, "peer 3 is no rank");
  desc = (ncclWaitSignalDesc_t){.opCnt = 1, .peer = 1, .sigIdx = 7};
  expect_error(ncclWaitSignal(1, &desc, comm, stream), ncclInvalidArgument, "sigIdx is 7");
  OK(PUT(s.local[0] + COUNT, 1, ncclInt, 1, win, RANKS * BYTES - 4, 0, 0, 0));
  finish();
  assert_int_equal(s.windows[1][RANKS * COUNT - 1], value_of(0, 1, 0));
  free_all(false);
}

/* Windows are counted: the peer's may be smaller, of the host, not there yet, or not there any more. */
static void test_windows(void **state) {
  (void)state;
  ncclWindow_t own[3], theirs;
  open_all();
  for (int i = 0; i < 3; i++) OK(ncclCommWindowRegister(s.comms[0], s.windows[0], BYTES, &own[i], 0));
  assert_true(own[0] != own[1]);
  OK(ncclCommWindowRegister(s.comms[1], s.windows[1], 8, &theirs, 0));
  expect_error(ncclPutSignal(s.local[0], 4, ncclInt, 1, own[0], 0, 0, 0, 0, s.comms[0], s.streams[0]),
               ncclInvalidArgument, "do not fit into the 8 bytes of rank 1's window");
  OK(ncclPutSignal(s.local[0], 2, ncclInt, 1, own[0], 0, 0, 0, 0, s.comms[0], s.streams[0]));
  finish();
  OK(ncclCommWindowDeregister(s.comms[1], theirs));
  expect_error(ncclPutSignal(s.local[0], 2, ncclInt, 1, own[0], 0, 0, 0, 0, s.comms[0], s.streams[0]),
               ncclInvalidUsage, "this is window number 2 of each rank, and rank 1 has deregistered it");
  int *on_host;
  assert_int_equal(cudaMallocHost((void **)&on_host, 8), 0);
  OK(ncclCommWindowRegister(s.comms[1], on_host, 8, &theirs, 0));
  assert_null(theirs);
  expect_error(ncclPutSignal(s.local[0], 1, ncclInt, 1, own[1], 0, 0, 0, 0, s.comms[0], s.streams[0]),
               ncclInvalidUsage, "memory of the host");
  if (guarded)
    expect_error(ncclPutSignal(s.local[0], 1, ncclInt, 1, own[2], 0, 0, 0, 0, s.comms[0], s.streams[0]),
                 ncclInvalidUsage, "rank 1 has not registered so many");
  for (int i = 0; i < 3; i++) OK(ncclCommWindowDeregister(s.comms[0], own[i]));
  cudaFreeHost(on_host);
  free_all(false);
}

static void *register_late(void *argument) {
  ncclWindow_t *window = (ncclWindow_t *)argument;
  os_sleep_ms(20);
  return (void *)(uintptr_t)ncclCommWindowRegister(s.comms[1], s.windows[1], RANKS * BYTES, window, 0);
}

/* A put waits for the peer's registration. */
static void test_late_window(void **state) {
  (void)state;
  os_thread thread;
  ncclWindow_t own, theirs;
  if (guarded) return; /* which moves only while all threads with ranks wait */
  open_all();
  OK(ncclCommWindowRegister(s.comms[0], s.windows[0], RANKS * BYTES, &own, 0));
  assert_true(os_thread_start(&thread, register_late, &theirs));
  OK(ncclPutSignal(s.local[0] + COUNT, COUNT, ncclInt, 1, own, 0, 0, 0, 0, s.comms[0], s.streams[0]));
  os_thread_join(thread);
  finish();
  expect_part(0, 1);
  OK(ncclCommWindowDeregister(s.comms[0], own));
  OK(ncclCommWindowDeregister(s.comms[1], theirs));
  free_all(false);
}

static void test_captured(void **state) {
  (void)state;
  cudaGraph_t graph = NULL;
  open_all();
  cudaSetDevice(0);
  assert_int_equal(cudaStreamBeginCapture(s.streams[0], cudaStreamCaptureModeRelaxed), 0);
  expect_error(put(0, 1, s.streams[0]), ncclInvalidUsage, "captured into a graph");
  expect_error(await(0, 1, 1, s.streams[0]), ncclInvalidUsage, "captured into a graph");
  cudaStreamEndCapture(s.streams[0], &graph);
  if (graph != NULL) cudaGraphDestroy(graph);
  free_all(false);
}

/* ---- waits that nothing ends ---- */

static void test_never_met(void **state) {
  (void)state;
  ncclResult_t error;
  open_all();
  OK(ncclSignal(1, 0, 0, 0, s.comms[0], s.streams[0]));
  OK(await(1, 0, 3, s.streams[1]));
  assert_int_not_equal(cudaStreamSynchronize(s.streams[1]), 0);
  expect_says("deadlock");
  expect_says(
      "rank 1 ncclWaitSignal waits for 3 signals of rank 0: 1 of them have come, and rank 0 has called "
      "0 more");
  OK(ncclCommGetAsyncError(s.comms[1], &error));
  assert_int_equal(error, ncclRemoteError);
  free_all(true);
}

static void test_abort(void **state) {
  (void)state;
  open_all();
  OK(await(1, 0, 1, s.streams[1]));
  OK(await(0, 1, 1, s.streams[0]));
  OK(put(0, 2, s.streams[0])); /* behind the wait, and so never made */
  OK(ncclCommAbort(s.comms[1]));
  OK(ncclCommAbort(s.comms[0]));
  s.comms[0] = s.comms[1] = NULL;
  finish();
  for (int i = 0; i < RANKS * COUNT; i++) assert_int_equal(s.windows[2][i], 0);
  free_all(true);
}

/* ---- races ---- */

/* `play` without an order, which is reported with both calls, and with it. */
static void check_race(void (*play)(bool right), const char *first, const char *second) {
  for (int right = 0; right < 2; right++) {
    open_all();
    const uint64_t before = emu_race_count();
    play(right != 0);
    for (int r = 0; r < RANKS; r++) cudaStreamSynchronize(s.streams[r]), cudaStreamSynchronize(s.others[r]);
    if (emu_race_count() - before != (right ? 0 : 1))
      fail_msg("%s: %s", right ? "right" : "wrong", emu_race_text());
    free_all(true);
    if (right) continue;
    if (strstr(emu_race_text(), first) == NULL || strstr(emu_race_text(), second) == NULL)
      fail_msg("%s", emu_race_text());
  }
}

static void put_then_copy(bool right) {
  put(0, 1, s.streams[0]);
  if (right) await(1, 0, 1, s.streams[1]);
  cudaMemcpyAsync(s.local[1], s.windows[1], BYTES, cudaMemcpyDeviceToDevice, s.streams[1]);
}

static void test_race_put_copy(void **state) {
  (void)state;
  check_race(put_then_copy, "ncclPutSignal", "cudaMemcpyAsync");
}

static void put_into_input(bool right) {
  int *in[RANKS];
  ncclGroupStart();
  for (int r = 0; r < RANKS; r++) {
    in[r] = s.windows[r];
    ncclAllReduce(in[r], s.local[r], COUNT, ncclInt, ncclSum, s.comms[r], s.streams[r]);
  }
  ncclGroupEnd();
  if (right) {
    ncclSignal(0, 0, 0, 0, s.comms[1], s.streams[1]); /* rank 1 has read it */
    await(0, 1, 1, s.others[0]);
  }
  ncclPutSignal(s.local[0] + 2 * COUNT, COUNT, ncclInt, 1, s.handles[0], 0, 0, 0, 0, s.comms[0], s.others[0]);
}

static void test_race_put_input(void **state) {
  (void)state;
  check_race(put_into_input, "ncclAllReduce", "ncclPutSignal");
}

static void reuse_local(bool right) {
  put(0, 1, s.streams[0]);
  cudaMemsetAsync(s.local[0] + COUNT, 0, BYTES, right ? s.streams[0] : s.others[0]);
}

static void test_race_local(void **state) {
  (void)state;
  check_race(reuse_local, "ncclPutSignal", "cudaMemsetAsync");
}

/* Two ranks put into the same bytes; the second in order hears of the first. */
static void two_puts(bool right) {
  ncclPutSignal(s.local[0], COUNT, ncclInt, 2, s.handles[0], 0, 0, 0, 0, s.comms[0], s.streams[0]);
  if (right) {
    await(2, 0, 1, s.streams[2]);
    ncclSignal(1, 0, 0, 0, s.comms[2], s.streams[2]);
    await(1, 2, 1, s.streams[1]);
  }
  ncclPutSignal(s.local[1], COUNT, ncclInt, 2, s.handles[1], 0, 0, 0, 0, s.comms[1], s.streams[1]);
}

static void test_race_two_puts(void **state) {
  (void)state;
  check_race(two_puts, "ncclPutSignal", "rank 1");
}

/* A wait for one of two signals knows nothing of what the second brings. */
static void wait_for_half(bool right) {
  for (int i = 0; i < 2; i++)
    ncclPutSignal(s.local[0], COUNT, ncclInt, 1, s.handles[0], (size_t)i * BYTES, 0, 0, 0, s.comms[0],
                  s.streams[0]);
  await(1, 0, right ? 2 : 1, s.streams[1]);
  cudaMemcpyAsync(s.local[1], s.windows[1], 2 * BYTES, cudaMemcpyDeviceToDevice, s.streams[1]);
}

static void test_race_half(void **state) {
  (void)state;
  check_race(wait_for_half, "ncclPutSignal", "cudaMemcpyAsync");
}

/* ---- several processes ---- */

#define PROCESSES 3
static struct {
  int id_is_set, arrived;
  ncclUniqueId id;
} * shared;

/* A process of one rank: puts to both others, waits for both, and the same with signals alone before the
 * memory is used for the next round; then what `finale` says. */
static int process_rank(int rank, const char *finale) {
  ncclComm_t comm;
  ncclWindow_t window;
  cudaStream_t stream;
  int *memory, *local;
  if (rank == 0) {
    OK(ncclGetUniqueId(&shared->id));
    __atomic_store_n(&shared->id_is_set, 1, __ATOMIC_RELEASE);
  }
  while (!__atomic_load_n(&shared->id_is_set, __ATOMIC_ACQUIRE)) usleep(100);
  if (cudaSetDevice(rank) != 0) return 10;
  OK(ncclCommInitRank(&comm, PROCESSES, shared->id, rank));
  if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != 0) return 11;
  if (cudaMalloc((void **)&memory, PROCESSES * BYTES) != 0) return 12;
  if (cudaMalloc((void **)&local, BYTES) != 0) return 13;
  if (strcmp(finale, "late") == 0 && rank == 1) os_sleep_ms(30);
  OK(ncclCommWindowRegister(comm, memory, PROCESSES * BYTES, &window, 0));
  for (int round = 0; round < 4; round++) {
    ncclWaitSignalDesc_t descs[PROCESSES];
    for (int i = 0; i < COUNT; i++) local[i] = value_of(rank, round, i);
    for (int peer = 0; peer < PROCESSES; peer++) {
      descs[peer] = (ncclWaitSignalDesc_t){1, peer, 0, 0};
      OK(ncclPutSignal(local, COUNT, ncclInt, peer, window, (size_t)rank * BYTES, 0, 0, 0, comm, stream));
    }
    OK(ncclWaitSignal(PROCESSES, descs, comm, stream));
    if (cudaStreamSynchronize(stream) != 0) return 14;
    for (int peer = 0; peer < PROCESSES; peer++)
      for (int i = 0; i < COUNT; i++)
        if (memory[peer * COUNT + i] != value_of(peer, round, i)) return 15;
    for (int peer = 0; peer < PROCESSES; peer++) OK(ncclSignal(peer, 0, 0, 0, comm, stream));
    OK(ncclWaitSignal(PROCESSES, descs, comm, stream));
  }
  if (cudaStreamSynchronize(stream) != 0) return 16;
  if (strcmp(finale, "stuck") == 0) {
    ncclWaitSignalDesc_t desc = {1, (rank + 1) % PROCESSES, 0, 0};
    OK(ncclWaitSignal(1, &desc, comm, stream));
    if (cudaStreamSynchronize(stream) == 0) return 17;
    /* the process's own report, or the one of the rank that told the others first */
    if (strstr(ncclGetLastError(NULL), "ncclWaitSignal waits for 1 signal of rank ") == NULL) return 18;
    OK(ncclCommAbort(comm));
  } else if (strcmp(finale, "left") == 0 && rank == 1) {
    ncclWaitSignalDesc_t desc = {1, 0, 0, 0};
    ncclResult_t error = ncclSuccess;
    OK(ncclWaitSignal(1, &desc, comm, stream));
    if (cudaStreamSynchronize(stream) == 0) return 19;
    OK(ncclCommGetAsyncError(comm, &error));
    if (error != ncclRemoteError || strstr(ncclGetLastError(NULL), "WaitSignal") == NULL) return 20;
    OK(ncclCommAbort(comm));
  } else {
    expect_error(ncclPutSignal(local, COUNT, ncclInt, (rank + 1) % PROCESSES, window, PROCESSES * BYTES, 0, 0,
                               0, comm, stream),
                 ncclInvalidArgument, "do not fit into");
    OK(ncclCommWindowDeregister(comm, window));
    OK(ncclCommDestroy(comm));
  }
  cudaFree(memory);
  cudaFree(local);
  cudaStreamDestroy(stream);
  return 0;
}

/* Zero if all processes end well. */
static int run_processes(const char *settings, const char *finale) {
  pid_t children[PROCESSES];
  int bad = 0;
  fflush(NULL);
  memset(shared, 0, sizeof *shared);
  for (int rank = 0; rank < PROCESSES; rank++) {
    children[rank] = fork();
    if (children[rank] != 0) continue;
    setenv("TUTTI_EMU", settings, 1);
    setenv("TUTTI_STALL_SECONDS", "1", 1);
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    exit(process_rank(rank, finale));
  }
  for (int rank = 0; rank < PROCESSES; rank++) {
    int status = 1;
    if (children[rank] < 0 || waitpid(children[rank], &status, 0) != children[rank]) status = 1;
    if (status != 0) fprintf(stderr, "%s, %s: rank %d: status 0x%x\n", settings, finale, rank, status);
    bad |= status;
  }
  return bad;
}

/* ---- collectives on copy engines ---- */

static void gather_all(void) {
  ncclGroupStart();
  for (int r = 0; r < RANKS; r++)
    ncclAllGather(s.local[r], s.windows[r], COUNT, ncclInt, s.comms[r], s.streams[r]);
  ncclGroupEnd();
}

/* Each rank's stream reads the output before the next gather may write into it. */
static void test_copies(void **state) {
  int *seen[RANKS];
  (void)state;
  by_copies = true;
  open_all();
  for (int r = 0; r < RANKS; r++) assert_int_equal(cudaMallocHost((void **)&seen[r], RANKS * BYTES), 0);
  for (int round = 0; round < 4; round++) {
    for (int r = 0; r < RANKS; r++)
      for (int i = 0; i < COUNT; i++) s.local[r][i] = value_of(r, round, i);
    gather_all();
    for (int r = 0; r < RANKS; r++)
      assert_int_equal(
          cudaMemcpyAsync(seen[r], s.windows[r], RANKS * BYTES, cudaMemcpyDeviceToHost, s.streams[r]), 0);
    OK(ncclSignal(1, 0, 0, 0, s.comms[0], s.others[0])); /* signals of the program's are counted apart */
    OK(await(1, 0, 1, s.others[1]));
    finish();
    for (int r = 0; r < RANKS; r++)
      for (int i = 0; i < RANKS * COUNT; i++)
        assert_int_equal(seen[r][i], value_of(i / COUNT, round, i % COUNT));
  }
  for (int r = 0; r < RANKS; r++) cudaFreeHost(seen[r]);
  free_all(false);
  by_copies = false;
}

static void read_then_gather(bool right) {
  cudaMemcpyAsync(s.local[1] + COUNT, s.windows[1], BYTES, cudaMemcpyDeviceToDevice,
                  right ? s.streams[1] : s.others[1]);
  gather_all();
}

static void test_race_copies(void **state) {
  (void)state;
  by_copies = true;
  check_race(read_then_gather, "ncclAllGather", "cudaMemcpyAsync");
  by_copies = false;
}

/* ---- running them ---- */

static int run_all(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_one_put),
                                     cmocka_unit_test(test_all_to_all),
                                     cmocka_unit_test(test_many_puts),
                                     cmocka_unit_test(test_signals),
                                     cmocka_unit_test(test_order_of_streams),
                                     cmocka_unit_test(test_with_collectives),
                                     cmocka_unit_test(test_failed_group),
                                     cmocka_unit_test(test_wrong_arguments),
                                     cmocka_unit_test(test_windows),
                                     cmocka_unit_test(test_late_window),
                                     cmocka_unit_test(test_captured),
                                     cmocka_unit_test(test_never_met),
                                     cmocka_unit_test(test_abort),
                                     cmocka_unit_test(test_race_put_copy),
                                     cmocka_unit_test(test_race_put_input),
                                     cmocka_unit_test(test_race_local),
                                     cmocka_unit_test(test_race_two_puts),
                                     cmocka_unit_test(test_race_half),
                                     cmocka_unit_test(test_copies),
                                     cmocka_unit_test(test_race_copies)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}

static int run_in_child(const char *settings) {
  fflush(NULL);
  pid_t child = fork();
  if (child == 0) {
    setenv("TUTTI_EMU", settings, 1);
    setenv("TUTTI_STALL_SECONDS", "1", 1);
    setenv("NCCL_CHECK_POINTERS", "1", 1);
    guarded = strstr(settings, "guarded") != NULL;
    exit(run_all());
  }
  int status = 1;
  if (child < 0 || waitpid(child, &status, 0) != child) return 1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

int main(void) {
  const char *const modes[] = {"mode=guarded,devices=3", "mode=threads,devices=3"};
  for (int i = 0; i < 2; i++)
    if (run_in_child(modes[i]) != 0) return 1;
  void *memory = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 1;
  *(void **)&shared = memory;
  for (int i = 0; i < 2; i++)
    if (run_processes(modes[i], "end") != 0 || run_processes(modes[i], "late") != 0 ||
        run_processes(modes[i], "left") != 0)
      return 1;
  return run_processes(modes[0], "stuck") != 0;
}
