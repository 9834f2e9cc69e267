/* test_stream_help.c: threads mode, where whoever waits carries streams out: work that nobody waits for is
 * done all the same; one thread that drives several streams and ranks never hangs, in whatever order it
 * waits; code of the user's and kernels that wait for each other get on beside that. */
/* sanitizers: address thread */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "backends/emu/include/cuda_runtime.h"
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

/* One thread, all ranks, waiting in every order; with several operations on each stream. */
static void test_one_thread(void **state) {
  (void)state;
  for (int round = 0; round < ROUNDS; round++) {
    const uint32_t count = round % 3 == 0 ? 1 : round % 3 == 1 ? 100 : COUNT;
    fill();
    for (int again = 0; again <= round % 5; again++) enqueue(count);
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

/* Nobody who fed the streams waits for them: their own threads take the work. A thread that asks for events
 * carries out nothing of others. */
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

/* A host function that waits for the thread which waits for another stream: that thread may not carry it
 * out. */
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
    for (int again = 0; again < 40; again++)
      ncclAllReduce(world.memory[rank], world.memory[rank], (size_t)(1 + again * 20), ncclFloat, ncclMax,
                    world.comms[rank], world.streams[rank]);
    if (cudaStreamSynchronize(world.streams[rank]) != cudaSuccess) return argument;
  }
  return NULL;
}

/* A thread a rank, more of them than cores. */
static void test_thread_a_rank(void **state) {
  (void)state;
  os_thread threads[RANKS];
  fill();
  for (int rank = 0; rank < RANKS; rank++)
    assert_true(os_thread_start(&threads[rank], rank_thread, (void *)(intptr_t)rank));
  for (int rank = 0; rank < RANKS; rank++) os_thread_join(threads[rank]);
  check(781);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_one_thread),         cmocka_unit_test(test_nobody_waits),
      cmocka_unit_test(test_events_and_queries), cmocka_unit_test(test_host_function),
      cmocka_unit_test(test_thread_a_rank),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
