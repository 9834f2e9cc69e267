/* test_stream_help.c: threads mode, where waiting threads run the work of streams: work that no thread waits
 * for is still done; one thread that drives several streams and ranks never hangs, in whatever order it
 * waits; host functions and kernels that wait for each other also make progress. */
/* sanitizers: address thread */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "backends/emu/cudart/include/cuda_runtime.h"
#include "base/os.h"
#include "tutti.h"

#define RANKS 4
#define COUNT 1000
#define ROUNDS 60

static struct {
  ncclComm_t comms[RANKS];
  cudaStream_t streams[RANKS];
  float *memory[RANKS];
} world;

static int setup(void **state) {
  (void)state;
  tutti_emu_config_t config;
  memset(&config, 0, sizeof config);
  config.size = sizeof config;
  config.threads = 1;
  config.device_count = RANKS;
  if (tutti_emu_configure(&config) != ncclSuccess) return 1;
  if (ncclCommInitAll(world.comms, RANKS, NULL) != ncclSuccess) return 1;
  for (int i = 0; i < RANKS; i++) {
    cudaSetDevice(i);
    if (cudaStreamCreate(&world.streams[i]) != cudaSuccess) return 1;
    if (cudaMalloc((void **)&world.memory[i], COUNT * sizeof(float)) != cudaSuccess) return 1;
  }
  return 0;
}

static int teardown(void **state) {
  (void)state;
  for (int i = 0; i < RANKS; i++) {
    ncclCommDestroy(world.comms[i]);
    cudaStreamDestroy(world.streams[i]);
    cudaFree(world.memory[i]);
  }
  return 0;
}

static void fill(void) {
  for (int rank = 0; rank < RANKS; rank++)
    for (int i = 0; i < COUNT; i++) world.memory[rank][i] = (float)(rank + 1);
}

static void enqueue(uint32_t count) {
  assert_int_equal(ncclGroupStart(), ncclSuccess);
  for (int rank = 0; rank < RANKS; rank++)
    assert_int_equal(ncclAllReduce(world.memory[rank], world.memory[rank], count, ncclFloat, ncclMax,
                                   world.comms[rank], world.streams[rank]),
                     ncclSuccess);
  assert_int_equal(ncclGroupEnd(), ncclSuccess);
}

static void check(uint32_t count) {
  for (int rank = 0; rank < RANKS; rank++)
    for (uint32_t i = 0; i < count; i++) assert_true(world.memory[rank][i] == RANKS);
}

/* One thread, all ranks, waiting in every order, with several operations on each stream. */
static void test_one_thread(void **state) {
  (void)state;
  for (int round = 0; round < ROUNDS; round++) {
    const uint32_t count = round % 3 == 0 ? 1 : round % 3 == 1 ? 100 : COUNT;
    fill();
    for (int second = 0; second <= round % 5; second++) enqueue(count);
    for (int i = 0; i < RANKS; i++) {
      const int rank = (i * (1 + 2 * (round % 2)) + round) % RANKS;
      assert_int_equal(cudaStreamSynchronize(world.streams[rank]), cudaSuccess);
    }
    check(count);
  }
}

static void *watch(void *argument) {
  cudaEvent_t *events = (cudaEvent_t *)argument;
  for (int rank = 0; rank < RANKS; rank++)
    while (cudaEventQuery(events[rank]) == cudaErrorNotReady) os_sleep_ms(1);
  return NULL;
}

/* No thread that enqueued work waits for it: the streams' own threads run it. A thread that queries events
 * runs no work of others. */
static void test_nobody_waits(void **state) {
  (void)state;
  for (int round = 0; round < 3; round++) {
    cudaEvent_t events[RANKS];
    os_thread watcher;
    fill();
    enqueue(COUNT);
    for (int rank = 0; rank < RANKS; rank++) {
      cudaSetDevice(rank);
      assert_int_equal(cudaEventCreate(&events[rank]), cudaSuccess);
      assert_int_equal(cudaEventRecord(events[rank], world.streams[rank]), cudaSuccess);
    }
    assert_true(os_thread_start(&watcher, watch, events));
    os_thread_join(watcher);
    check(COUNT);
    for (int rank = 0; rank < RANKS; rank++) cudaEventDestroy(events[rank]);
  }
}

static void test_events_and_queries(void **state) {
  (void)state;
  cudaEvent_t events[RANKS];
  fill();
  for (int rank = 0; rank < RANKS; rank++) {
    cudaSetDevice(rank);
    assert_int_equal(cudaEventCreate(&events[rank]), cudaSuccess);
  }
  enqueue(COUNT);
  for (int rank = 0; rank < RANKS; rank++) cudaEventRecord(events[rank], world.streams[rank]);
  while (cudaEventQuery(events[2]) == cudaErrorNotReady) continue;
  for (int rank = 0; rank < RANKS; rank++) assert_int_equal(cudaEventSynchronize(events[rank]), cudaSuccess);
  check(COUNT);
  for (int rank = 0; rank < RANKS; rank++) cudaEventDestroy(events[rank]);
}

static void raise_flag(void *argument) { __atomic_store_n((int *)argument, 1, __ATOMIC_RELEASE); }
static void await_flag(void *argument) {
  while (__atomic_load_n((int *)argument, __ATOMIC_ACQUIRE) == 0) os_sleep_ms(1);
}

/* A host function that waits for the thread that waits for another stream: that thread must not run the
 * function. */
static void test_host_function(void **state) {
  (void)state;
  int flag = 0;
  cudaStream_t other;
  cudaSetDevice(0);
  assert_int_equal(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), cudaSuccess);
  fill();
  assert_int_equal(cudaLaunchHostFunc(other, await_flag, &flag), cudaSuccess);
  enqueue(COUNT);
  for (int rank = 0; rank < RANKS; rank++)
    assert_int_equal(cudaStreamSynchronize(world.streams[rank]), cudaSuccess);
  assert_int_equal(cudaStreamQuery(other), cudaErrorNotReady);
  assert_int_equal(cudaLaunchHostFunc(world.streams[0], raise_flag, &flag), cudaSuccess);
  assert_int_equal(cudaStreamSynchronize(other), cudaSuccess);
  assert_int_equal(cudaStreamDestroy(other), cudaSuccess);
  check(COUNT);
}

static void *rank_thread(void *argument) {
  const int rank = (int)(intptr_t)argument;
  for (int round = 0; round < ROUNDS; round++) {
    for (int second = 0; second < 40; second++)
      ncclAllReduce(world.memory[rank], world.memory[rank], (size_t)(1 + second * 20), ncclFloat, ncclMax,
                    world.comms[rank], world.streams[rank]);
    if (cudaStreamSynchronize(world.streams[rank]) != cudaSuccess) return argument;
  }
  return NULL;
}

/* One thread per rank, more threads than cores. */
static void test_thread_a_rank(void **state) {
  (void)state;
  os_thread threads[RANKS];
  fill();
  for (int rank = 0; rank < RANKS; rank++)
    assert_true(os_thread_start(&threads[rank], rank_thread, (void *)(intptr_t)rank));
  for (int rank = 0; rank < RANKS; rank++) os_thread_join(threads[rank]);
  check(781);
}

/* ---- waiting threads that come and go ---- */

#define LONG_COUNT 200000 /* larger than many slots */
#define VISITORS 3

static struct {
  float *memory[RANKS];
  cudaEvent_t ends[RANKS];
  int over; /* atomic */
} crowd;

static uint32_t draw(uint32_t *state, uint32_t below) {
  *state = *state * 1664525u + 1013904223u;
  return (*state >> 8) % below;
}

/* Enqueues work for one rank, waits for it in every way or not at all, and leaves it to others. The sizes of
 * operations are the same on all ranks; other work on the stream is not. */
static void *feed(void *argument) {
  const int rank = (int)(intptr_t)argument;
  uint32_t sizes = 7, own = (uint32_t)rank + 1;
  cudaSetDevice(rank);
  for (int round = 0; round < 40; round++) {
    const size_t count = draw(&sizes, 4) == 0 ? LONG_COUNT : 1 + draw(&sizes, 3000);
    if (ncclAllReduce(crowd.memory[rank], crowd.memory[rank], count, ncclFloat, ncclMax, world.comms[rank],
                      world.streams[rank]) != ncclSuccess)
      return argument;
    cudaEventRecord(crowd.ends[rank], world.streams[rank]);
    const uint32_t option = draw(&own, 6);
    if (option == 0) cudaStreamSynchronize(world.streams[rank]);
    else if (option == 1) cudaEventSynchronize(crowd.ends[rank]);
    else if (option == 2) cudaStreamQuery(world.streams[rank]);
    else if (option == 3) os_sleep_ms(draw(&own, 4));
  }
  return NULL;
}

/* Waits on any stream, runs its work for a moment, and leaves. */
static void *visit(void *argument) {
  uint32_t own = (uint32_t)(intptr_t)argument;
  while (!__atomic_load_n(&crowd.over, __ATOMIC_RELAXED)) {
    const uint32_t rank = draw(&own, RANKS), option = draw(&own, 4);
    if (option == 0) cudaStreamSynchronize(world.streams[rank]);
    else if (option == 1) cudaStreamQuery(world.streams[rank]);
    else if (option == 2) cudaEventQuery(crowd.ends[rank]);
    else os_sleep_ms(draw(&own, 3));
  }
  return NULL;
}

/* No stream may be left without a thread: otherwise a hang is reported after TUTTI_STALL_SECONDS. */
static void test_visitors(void **state) {
  (void)state;
  os_thread feeders[RANKS], visitors[VISITORS];
  crowd.over = 0;
  for (int rank = 0; rank < RANKS; rank++) {
    cudaSetDevice(rank);
    assert_int_equal(cudaMalloc((void **)&crowd.memory[rank], LONG_COUNT * sizeof(float)), cudaSuccess);
    assert_int_equal(cudaEventCreate(&crowd.ends[rank]), cudaSuccess);
    for (int i = 0; i < LONG_COUNT; i++) crowd.memory[rank][i] = (float)((i + rank) % RANKS);
  }
  for (int i = 0; i < VISITORS; i++)
    assert_true(os_thread_start(&visitors[i], visit, (void *)(intptr_t)(100 + i)));
  for (int rank = 0; rank < RANKS; rank++)
    assert_true(os_thread_start(&feeders[rank], feed, (void *)(intptr_t)rank));
  for (int rank = 0; rank < RANKS; rank++) os_thread_join(feeders[rank]);
  /* No more work is enqueued: only the streams' own threads and the visitors remain. */
  for (int rank = 0; rank < RANKS; rank++) {
    ncclResult_t error = ncclSuccess;
    while (cudaEventQuery(crowd.ends[rank]) == cudaErrorNotReady) os_sleep_ms(1);
    assert_int_equal(ncclCommGetAsyncError(world.comms[rank], &error), ncclSuccess);
    assert_int_equal(error, ncclSuccess);
  }
  __atomic_store_n(&crowd.over, 1, __ATOMIC_RELAXED);
  for (int i = 0; i < VISITORS; i++) os_thread_join(visitors[i]);
  for (int rank = 0; rank < RANKS; rank++) {
    for (int i = 0; i < LONG_COUNT; i++) assert_true(crowd.memory[rank][i] == RANKS - 1);
    cudaEventDestroy(crowd.ends[rank]);
    cudaFree(crowd.memory[rank]);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_one_thread),         cmocka_unit_test(test_nobody_waits),
      cmocka_unit_test(test_events_and_queries), cmocka_unit_test(test_host_function),
      cmocka_unit_test(test_thread_a_rank),      cmocka_unit_test(test_visitors),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
