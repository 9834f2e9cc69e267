/* test_cudart.c: the emulated CUDA runtime: order of streams, events across devices, captures and graphs,
 * memory, errors. Runs everything twice, each in a child process: guarded and with threads. The error codes
 * of captures are those of CUDA 13 on a GPU for the same calls. */
/* sanitizers: address thread */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include <cuda_runtime.h>

#include "backends/emu/cudart/stream.h"
#include "base/os.h"
#include "tutti.h"

#define OK(call) assert_int_equal((call), cudaSuccess)
#define FAILS(code, call) assert_int_equal((call), (code))

/* ---- a test kernel: ends when `needed` launches of its rendezvous have begun ---- */

struct rendezvous {
  uint32_t arrived, needed;
};
struct fake_kernel {
  struct emu_kernel kernel;
  struct rendezvous *rendezvous;
  int error;
};
struct emu_kernel_run {
  struct emu_actor actor;
  struct fake_kernel *fake;
  void (*ended)(void *argument, int error);
  void *argument;
  bool started;
  struct emu_kernel_run *next;
};
static struct emu_kernel_run *runs;
static int kernels_alive;
static uint64_t run_serial;

static bool met(void *argument) {
  const struct rendezvous *rendezvous = (const struct rendezvous *)argument;
  return rendezvous->arrived >= rendezvous->needed;
}
static bool run_enabled(struct emu_actor *actor) {
  const struct emu_kernel_run *run = (const struct emu_kernel_run *)(const void *)actor;
  return run->started && met(run->fake->rendezvous);
}
static void run_actor_run(struct emu_actor *actor) {
  struct emu_kernel_run *run = (struct emu_kernel_run *)(void *)actor;
  emu_actor_remove(actor);
  run->started = false;
  run->ended(run->argument, run->fake->error);
}
static const struct emu_actor_ops run_actor_ops = {run_enabled, run_actor_run};

static struct emu_kernel_run *fake_enqueue(struct emu_kernel *kernel) {
  struct emu_kernel_run *run = (struct emu_kernel_run *)os_alloc(sizeof *run);
  if (run == NULL) return NULL;
  run->fake = (struct fake_kernel *)(void *)kernel;
  emu_actor_init(&run->actor, &run_actor_ops, emu_key(200, 0, 0, ++run_serial));
  run->next = runs;
  runs = run;
  return run;
}
static bool fake_ready(struct emu_kernel_run *run) {
  (void)run;
  return true;
}
static void fake_start(struct emu_kernel_run *run, void (*ended)(void *argument, int error), void *argument) {
  run->ended = ended;
  run->argument = argument;
  run->started = true;
  run->fake->rendezvous->arrived++;
  for (struct emu_kernel_run *other = runs; other != NULL; other = other->next) emu_actor_wake(&other->actor);
}
static int fake_execute(struct emu_kernel_run *run) {
  emu_lock();
  run->fake->rendezvous->arrived++;
  emu_changed();
  emu_wait(met, run->fake->rendezvous, 0);
  emu_unlock();
  return run->fake->error;
}
static void fake_retire(struct emu_kernel_run *run) {
  struct emu_kernel_run **link = &runs;
  while (*link != run) link = &(*link)->next;
  *link = run->next;
  os_free(run);
}
static void fake_release(struct emu_kernel *kernel) {
  kernels_alive--;
  os_free(kernel);
}
static const struct emu_kernel_ops fake_ops = {.enqueue = fake_enqueue,
                                               .ready = fake_ready,
                                               .start = fake_start,
                                               .execute = fake_execute,
                                               .retire = fake_retire,
                                               .release = fake_release};

static void launch_joined(cudaStream_t stream, struct rendezvous *rendezvous, int error, cudaStream_t other) {
  struct fake_kernel *fake = (struct fake_kernel *)os_alloc(sizeof *fake);
  assert_non_null(fake);
  emu_lock();
  kernels_alive++;
  fake->kernel.ops = &fake_ops;
  fake->kernel.reference_count = 1;
  fake->rendezvous = rendezvous;
  fake->error = error;
  struct emu_stream *others[2] = {emu_stream_find(stream), other == NULL ? NULL : emu_stream_find(other)};
  int result = emu_stream_launch(others[0], &fake->kernel, others, other == NULL ? 1 : 2);
  emu_kernel_drop(&fake->kernel);
  emu_unlock();
  assert_int_equal(result, 0);
}
static void launch(cudaStream_t stream, struct rendezvous *rendezvous) {
  launch_joined(stream, rendezvous, 0, NULL);
}

/* ---- a log for host functions ---- */

static char journal[64];
static uint32_t journal_count; /* only host functions of ordered streams write, so never two at once */
static void note(void *letter) { journal[journal_count++] = (char)(intptr_t)letter; }
static void journal_clear(void) {
  memset(journal, 0, sizeof journal);
  journal_count = 0;
}
static void put(cudaStream_t stream, char letter) {
  OK(cudaLaunchHostFunc(stream, note, (void *)(intptr_t)letter));
}

static struct rendezvous open_at(uint32_t needed) {
  struct rendezvous rendezvous = {0, needed};
  return rendezvous;
}
/* From the host: counts as one more launch. */
static void arrive(struct rendezvous *rendezvous) {
  emu_lock();
  rendezvous->arrived++;
  for (struct emu_kernel_run *run = runs; run != NULL; run = run->next) {
    if (run->started) emu_actor_wake(&run->actor);
  }
  emu_changed();
  emu_unlock();
}

/* ---- streams ---- */

static void test_default_stream_orders_blocking_streams(void **state) {
  (void)state;
  cudaStream_t first, second, free_stream;
  OK(cudaStreamCreate(&first));
  OK(cudaStreamCreate(&second));
  OK(cudaStreamCreateWithFlags(&free_stream, cudaStreamNonBlocking));
  struct rendezvous rendezvous = open_at(2);
  launch(free_stream, &rendezvous);
  for (int i = 0; i < 20; i++) {
    journal_clear();
    put(first, 'a');
    put(0, 'b');
    put(second, 'c');
    put(0, 'd');
    put(cudaStreamPerThread, 'e');
    put(cudaStreamLegacy, 'f');
    OK(cudaStreamSynchronize(0));
    assert_string_equal(journal, "abcdef");
  }
  FAILS(cudaErrorNotReady, cudaStreamQuery(free_stream)); /* none of the above waits for it */
  OK(cudaGetLastError());
  arrive(&rendezvous);
  OK(cudaDeviceSynchronize());
  OK(cudaStreamQuery(free_stream));
  OK(cudaStreamDestroy(first));
  OK(cudaStreamDestroy(second));
  OK(cudaStreamDestroy(free_stream));
}

static void test_stream_handles(void **state) {
  (void)state;
  cudaStream_t stream;
  unsigned flags;
  int priority, device, least, greatest;
  OK(cudaSetDevice(2));
  OK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  OK(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest));
  OK(cudaSetDevice(0));
  OK(cudaStreamGetFlags(stream, &flags));
  OK(cudaStreamGetPriority(stream, &priority));
  OK(cudaStreamGetDevice(stream, &device));
  assert_int_equal(flags, cudaStreamNonBlocking);
  assert_int_equal(priority, greatest);
  assert_int_equal(device, 2);
  FAILS(cudaErrorInvalidValue, cudaStreamCreateWithFlags(&stream, 8));
  OK(cudaStreamDestroy(stream));
  FAILS(cudaErrorInvalidResourceHandle, cudaStreamSynchronize(stream));
  FAILS(cudaErrorInvalidResourceHandle, cudaStreamDestroy(stream));
  FAILS(cudaErrorInvalidResourceHandle, cudaStreamDestroy(0));
  FAILS(cudaErrorInvalidResourceHandle, cudaGetLastError());
  OK(cudaGetLastError());
}

static void test_destroyed_while_busy(void **state) {
  (void)state;
  cudaStream_t stream, other;
  cudaEvent_t event;
  struct rendezvous rendezvous = open_at(2);
  OK(cudaStreamCreate(&stream));
  OK(cudaStreamCreate(&other));
  OK(cudaEventCreate(&event));
  journal_clear();
  launch(stream, &rendezvous);
  put(stream, 'a');
  OK(cudaEventRecord(event, stream));
  OK(cudaStreamWaitEvent(other, event, 0));
  OK(cudaEventDestroy(event));
  put(other, 'b');
  OK(cudaStreamDestroy(stream));
  FAILS(cudaErrorInvalidResourceHandle, cudaEventQuery(event));
  arrive(&rendezvous);
  OK(cudaStreamSynchronize(other));
  assert_string_equal(journal, "ab");
  OK(cudaStreamDestroy(other));
  OK(cudaDeviceSynchronize());
}

static cudaStream_t callback_stream;
static void callback(cudaStream_t stream, cudaError_t status, void *argument) {
  assert_ptr_equal(stream, callback_stream);
  assert_int_equal(status, cudaSuccess);
  note(argument);
  FAILS(cudaErrorNotPermitted, cudaStreamSynchronize(stream));
}

static void test_callbacks(void **state) {
  (void)state;
  journal_clear();
  OK(cudaStreamCreate(&callback_stream));
  OK(cudaStreamAddCallback(callback_stream, callback, (void *)(intptr_t)'x', 0));
  put(callback_stream, 'y');
  OK(cudaStreamSynchronize(callback_stream));
  assert_string_equal(journal, "xy");
  FAILS(cudaErrorInvalidValue, cudaStreamAddCallback(callback_stream, callback, NULL, 1));
  FAILS(cudaErrorInvalidValue, cudaLaunchHostFunc(callback_stream, NULL, NULL));
  OK(cudaStreamDestroy(callback_stream));
  cudaGetLastError();
}

/* ---- events ---- */

static void test_events_across_devices(void **state) {
  (void)state;
  enum { DEVICES = 4 };
  cudaStream_t streams[DEVICES];
  cudaEvent_t events[DEVICES];
  for (int i = 0; i < DEVICES; i++) {
    OK(cudaSetDevice(i));
    OK(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
    OK(cudaEventCreateWithFlags(&events[i], cudaEventDisableTiming));
  }
  struct rendezvous rendezvous = open_at(2);
  journal_clear();
  launch(streams[0], &rendezvous);
  for (int i = 0; i < DEVICES; i++) {
    if (i > 0) OK(cudaStreamWaitEvent(streams[i], events[i - 1], 0));
    put(streams[i], (char)('0' + i));
    OK(cudaEventRecord(events[i], streams[i]));
  }
  FAILS(cudaErrorNotReady, cudaEventQuery(events[3]));
  FAILS(cudaErrorInvalidResourceHandle, cudaEventRecord(events[0], streams[1]));
  arrive(&rendezvous);
  OK(cudaEventSynchronize(events[3]));
  OK(cudaEventQuery(events[0]));
  assert_string_equal(journal, "0123");
  for (int i = 0; i < DEVICES; i++) {
    OK(cudaStreamDestroy(streams[i]));
    OK(cudaEventDestroy(events[i]));
  }
  OK(cudaSetDevice(0));
  cudaGetLastError();
}

static void test_elapsed_time(void **state) {
  (void)state;
  cudaEvent_t start, end, untimed;
  float ms = -1;
  OK(cudaEventCreate(&start));
  OK(cudaEventCreate(&end));
  OK(cudaEventCreateWithFlags(&untimed, cudaEventDisableTiming));
  FAILS(cudaErrorInvalidResourceHandle, cudaEventElapsedTime(&ms, start, end));
  OK(cudaEventQuery(start)); /* never recorded: nothing to wait for */
  OK(cudaStreamWaitEvent(0, start, 0));
  OK(cudaEventRecord(start, 0));
  OK(cudaEventRecord(untimed, 0));
  OK(cudaEventRecord(end, 0));
  OK(cudaEventSynchronize(end));
  OK(cudaEventElapsedTime(&ms, start, end));
  assert_true(ms >= 0);
  FAILS(cudaErrorInvalidResourceHandle, cudaEventElapsedTime(&ms, start, untimed));
  OK(cudaEventDestroy(start));
  OK(cudaEventDestroy(end));
  OK(cudaEventDestroy(untimed));
  cudaGetLastError();
}

/* ---- kernels ---- */

static void test_kernels_on_several_streams(void **state) {
  (void)state;
  enum { RANKS = 6 };
  cudaStream_t streams[RANKS];
  struct rendezvous rendezvous[3] = {open_at(RANKS), open_at(RANKS), open_at(RANKS)};
  for (int i = 0; i < RANKS; i++) {
    OK(cudaSetDevice(i));
    OK(cudaStreamCreate(&streams[i]));
    for (int round = 0; round < 3; round++) launch(streams[i], &rendezvous[round]);
  }
  for (int i = 0; i < RANKS; i++) {
    OK(cudaStreamSynchronize(streams[i]));
    OK(cudaStreamDestroy(streams[i]));
  }
  OK(cudaSetDevice(0));
  assert_int_equal(kernels_alive, 0);
}

static void test_kernel_joins_streams(void **state) {
  (void)state;
  cudaStream_t first, second;
  struct rendezvous gate = open_at(2), free_pass = open_at(0);
  OK(cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking));
  OK(cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking));
  journal_clear();
  launch(second, &gate);
  put(second, 'a');
  launch_joined(first, &free_pass, 0, second);
  put(first, 'b');
  FAILS(cudaErrorNotReady, cudaStreamQuery(first));
  arrive(&gate);
  OK(cudaStreamSynchronize(first));
  OK(cudaStreamSynchronize(second));
  assert_string_equal(journal, "ab");
  struct rendezvous gate_too = open_at(2);
  launch_joined(first, &gate_too, 0, second);
  FAILS(cudaErrorNotReady, cudaStreamQuery(second)); /* runs after the kernel */
  arrive(&gate_too);
  OK(cudaStreamSynchronize(second));
  OK(cudaStreamDestroy(first));
  OK(cudaStreamDestroy(second));
}

static void test_kernel_error_is_sticky_until_reported(void **state) {
  (void)state;
  cudaStream_t stream;
  struct rendezvous free_pass = open_at(0);
  OK(cudaStreamCreate(&stream));
  launch_joined(stream, &free_pass, cudaErrorLaunchTimeout, NULL);
  FAILS(cudaErrorLaunchTimeout, cudaStreamSynchronize(stream));
  OK(cudaStreamSynchronize(stream));
  FAILS(cudaErrorLaunchTimeout, cudaPeekAtLastError());
  FAILS(cudaErrorLaunchTimeout, cudaGetLastError());
  OK(cudaGetLastError());
  launch_joined(stream, &free_pass, cudaErrorLaunchTimeout, NULL);
  FAILS(cudaErrorLaunchTimeout, cudaDeviceSynchronize());
  OK(cudaDeviceSynchronize());
  OK(cudaStreamDestroy(stream));
  cudaGetLastError();
}

/* ---- captures and graphs ---- */

static void test_capture_and_replay(void **state) {
  (void)state;
  enum { COUNT = 1000 };
  cudaStream_t stream, side;
  cudaEvent_t fork_event, join_event;
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  int *device[2], host[2][COUNT], source[COUNT];
  for (int i = 0; i < 2; i++) OK(cudaMalloc((void **)&device[i], sizeof source));
  OK(cudaStreamCreate(&stream));
  OK(cudaStreamCreate(&side));
  OK(cudaEventCreate(&fork_event));
  OK(cudaEventCreate(&join_event));
  OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  OK(cudaMemcpyAsync(device[0], source, sizeof source, cudaMemcpyHostToDevice, stream));
  OK(cudaEventRecord(fork_event, stream));
  OK(cudaStreamWaitEvent(side, fork_event, 0));
  enum cudaStreamCaptureStatus status;
  OK(cudaStreamIsCapturing(side, &status));
  assert_int_equal(status, cudaStreamCaptureStatusActive);
  OK(cudaMemcpyAsync(device[1], device[0], sizeof source, cudaMemcpyDeviceToDevice, side));
  OK(cudaMemcpyAsync(host[1], device[1], sizeof source, cudaMemcpyDeviceToHost, side));
  OK(cudaMemcpyAsync(host[0], device[0], sizeof source, cudaMemcpyDefault, stream));
  OK(cudaEventRecord(join_event, side));
  OK(cudaStreamWaitEvent(stream, join_event, 0));
  OK(cudaMemsetAsync(device[0], 0, sizeof source, stream));
  unsigned long long id = 0;
  const cudaGraphNode_t *dependencies;
  size_t count = 0;
  OK(cudaStreamGetCaptureInfo(stream, &status, &id));
  OK(cudaStreamGetCaptureInfo(stream, &status, &id, &graph, &dependencies, &count));
  OK(cudaStreamGetCaptureInfo(stream, &status, &id, &graph, &dependencies, NULL, &count));
  assert_true(id != 0 && count == 1);
  OK(cudaStreamEndCapture(stream, &graph));
  OK(cudaGraphGetNodes(graph, NULL, &count));
  assert_int_equal(count, 5);
  OK(cudaGraphGetRootNodes(graph, NULL, &count));
  assert_int_equal(count, 1);
  OK(cudaGraphInstantiate(&exec, graph, 0));
  OK(cudaGraphExecDestroy(exec));
  OK(cudaGraphInstantiate(&exec, graph, NULL, NULL, 0));
  OK(cudaGraphDestroy(graph));
  for (int round = 1; round <= 3; round++) {
    for (int i = 0; i < COUNT; i++) source[i] = i * round;
    OK(cudaGraphLaunch(exec, round == 2 ? side : stream));
    OK(cudaStreamSynchronize(round == 2 ? side : stream));
    assert_memory_equal(host[0], source, sizeof source);
    assert_memory_equal(host[1], source, sizeof source);
  }
  OK(cudaGraphExecDestroy(exec));
  for (int i = 0; i < 2; i++) OK(cudaFree(device[i]));
  OK(cudaEventDestroy(fork_event));
  OK(cudaEventDestroy(join_event));
  OK(cudaStreamDestroy(stream));
  OK(cudaStreamDestroy(side));
}

static void capture_collective(cudaStream_t *streams, cudaEvent_t *events, int ranks,
                               struct rendezvous *rendezvous) {
  OK(cudaStreamBeginCapture(streams[0], cudaStreamCaptureModeRelaxed));
  OK(cudaEventRecord(events[0], streams[0]));
  for (int i = 0; i < ranks; i++) {
    OK(cudaSetDevice(i));
    if (i > 0) OK(cudaStreamWaitEvent(streams[i], events[0], 0));
    launch(streams[i], rendezvous);
    if (i > 0) OK(cudaEventRecord(events[i], streams[i]));
  }
  for (int i = 1; i < ranks; i++) OK(cudaStreamWaitEvent(streams[0], events[i], 0));
}

/* All nodes of a collective must run at the same time, three times, and with two launches in flight. */
static void test_graph_runs_devices_together(void **state) {
  (void)state;
  enum { RANKS = 5 };
  cudaStream_t streams[RANKS];
  cudaEvent_t events[RANKS];
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  struct rendezvous rendezvous = open_at(RANKS);
  for (int i = 0; i < RANKS; i++) {
    OK(cudaSetDevice(i));
    OK(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
    OK(cudaEventCreateWithFlags(&events[i], cudaEventDisableTiming));
  }
  capture_collective(streams, events, RANKS, &rendezvous);
  OK(cudaStreamEndCapture(streams[0], &graph));
  OK(cudaGraphInstantiateWithFlags(&exec, graph, 0));
  OK(cudaGraphDestroy(graph));
  for (int round = 1; round <= 3; round++) {
    OK(cudaGraphLaunch(exec, streams[0]));
    OK(cudaGraphLaunch(exec, streams[round % RANKS]));
    OK(cudaStreamSynchronize(streams[0]));
    OK(cudaStreamSynchronize(streams[round % RANKS]));
    assert_int_equal(rendezvous.arrived, 2 * RANKS * round);
    emu_lock();
    rendezvous.needed = (uint32_t)(2 * RANKS * round + RANKS);
    emu_unlock();
  }
  emu_lock();
  rendezvous.arrived = 0;
  rendezvous.needed = RANKS + 1;
  emu_unlock();
  OK(cudaGraphLaunch(exec, streams[1]));
  OK(cudaGraphExecDestroy(exec)); /* while the graph runs */
  FAILS(cudaErrorInvalidValue, cudaGraphLaunch(exec, streams[1]));
  assert_int_not_equal(kernels_alive, 0);
  arrive(&rendezvous);
  OK(cudaStreamSynchronize(streams[1]));
  assert_int_equal(kernels_alive, 0);
  for (int i = 0; i < RANKS; i++) {
    OK(cudaStreamDestroy(streams[i]));
    OK(cudaEventDestroy(events[i]));
  }
  OK(cudaSetDevice(0));
  cudaGetLastError();
}

static void test_graph_by_hand(void **state) {
  (void)state;
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  cudaGraphNode_t a, b, c, d;
  enum cudaGraphNodeType type;
  char *device, host[16];
  journal_clear();
  OK(cudaMalloc((void **)&device, sizeof host));
  struct cudaHostNodeParams first = {note, (void *)(intptr_t)'1'}, second = {note, (void *)(intptr_t)'2'};
  struct cudaMemsetParams fill = {device, 0, 'z', 1, sizeof host, 1};
  OK(cudaGraphCreate(&graph, 0));
  OK(cudaGraphAddHostNode(&b, graph, NULL, 0, &second));
  OK(cudaGraphAddHostNode(&a, graph, NULL, 0, &first));
  OK(cudaGraphAddMemsetNode(&c, graph, &b, 1, &fill));
  OK(cudaGraphAddMemcpyNode1D(&d, graph, &c, 1, host, device, sizeof host, cudaMemcpyDeviceToHost));
  OK(cudaGraphAddDependencies(graph, &a, &b, 1));
  OK(cudaGraphNodeGetType(c, &type));
  assert_int_equal(type, cudaGraphNodeTypeMemset);
  OK(cudaGraphInstantiate(&exec, graph, 0));
  OK(cudaGraphLaunch(exec, 0));
  OK(cudaStreamSynchronize(0));
  assert_string_equal(journal, "12");
  assert_memory_equal(host, "zzzzzzzzzzzzzzzz", 16);
  OK(cudaGraphExecDestroy(exec));
  OK(cudaGraphAddDependencies(graph, &d, &a, NULL, 1)); /* now a cycle */
  FAILS(cudaErrorInvalidValue, cudaGraphInstantiate(&exec, graph, 0));
  FAILS(cudaErrorInvalidValue, cudaGraphAddDependencies(graph, &d, &d, 1));
  OK(cudaGraphDestroy(graph));
  FAILS(cudaErrorInvalidValue, cudaGraphDestroy(graph));
  OK(cudaFree(device));
  cudaGetLastError();
}

/* A program adds nodes beside the streams that are captured. The graph is the capture's until that ends. */
static void test_graph_node_in_capture(void **state) {
  (void)state;
  cudaGraph_t graph, ended;
  cudaGraphExec_t exec;
  const cudaGraphNode_t *last;
  cudaGraphNode_t added;
  cudaStream_t stream;
  enum cudaStreamCaptureStatus status;
  unsigned long long id;
  size_t count;
  journal_clear();
  struct cudaHostNodeParams second = {note, (void *)(intptr_t)'2'};
  OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  put(stream, '1');
  OK(cudaStreamGetCaptureInfo(stream, &status, &id, &graph, &last, &count));
  OK(cudaGraphAddHostNode(&added, graph, last, 1, &second));
  FAILS(cudaErrorInvalidValue, cudaGraphInstantiate(&exec, graph, 0));
  FAILS(cudaErrorInvalidValue, cudaGraphDestroy(graph));
  OK(cudaStreamEndCapture(stream, &ended));
  OK(cudaGraphInstantiate(&exec, ended, 0));
  OK(cudaGraphLaunch(exec, stream));
  OK(cudaStreamSynchronize(stream));
  assert_string_equal(journal, "12");
  OK(cudaGraphExecDestroy(exec));
  OK(cudaGraphDestroy(ended));
  OK(cudaStreamDestroy(stream));
  cudaGetLastError();
}

static void test_graph_launch_in_capture(void **state) {
  (void)state;
  cudaStream_t stream;
  cudaGraph_t inner, outer;
  cudaGraphExec_t inner_exec, outer_exec;
  size_t count;
  OK(cudaStreamCreate(&stream));
  OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  put(stream, 'b');
  put(stream, 'c');
  OK(cudaStreamEndCapture(stream, &inner));
  OK(cudaGraphInstantiate(&inner_exec, inner, 0));
  OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  put(stream, 'a');
  OK(cudaGraphLaunch(inner_exec, stream));
  put(stream, 'd');
  OK(cudaStreamEndCapture(stream, &outer));
  OK(cudaGraphExecDestroy(inner_exec));
  OK(cudaGraphGetNodes(outer, NULL, &count));
  assert_int_equal(count, 4);
  OK(cudaGraphInstantiate(&outer_exec, outer, 0));
  journal_clear();
  OK(cudaGraphLaunch(outer_exec, stream));
  OK(cudaGraphLaunch(outer_exec, stream));
  OK(cudaStreamSynchronize(stream));
  assert_string_equal(journal, "abcdabcd");
  OK(cudaGraphExecDestroy(outer_exec));
  OK(cudaGraphDestroy(inner));
  OK(cudaGraphDestroy(outer));
  OK(cudaStreamDestroy(stream));
}

struct capture_world {
  cudaStream_t a, b, free_stream;
  cudaEvent_t event, other;
  char *device, host[64];
};
static struct capture_world w;

/* Calls made while stream `a` captures, with their results and the result of ending the capture. */
static int call_synchronize(void) { return (int)cudaStreamSynchronize(w.a); }
static int call_query(void) { return (int)cudaStreamQuery(w.a); }
static int call_device(void) { return (int)cudaDeviceSynchronize(); }
static int call_malloc(void) {
  void *p;
  return (int)cudaMalloc(&p, 64);
}
static int call_malloc_host(void) {
  void *p;
  return (int)cudaMallocHost(&p, 64);
}
static int call_free(void) { return (int)cudaFree(w.device); }
static int call_memcpy(void) { return (int)cudaMemcpy(w.device, w.host, 64, cudaMemcpyHostToDevice); }
static int call_legacy(void) { return (int)cudaMemsetAsync(w.device, 0, 4, 0); }
static int call_legacy_sync(void) { return (int)cudaStreamSynchronize(0); }
static int call_other_sync(void) { return (int)cudaStreamSynchronize(w.b); }
static int call_free_query(void) { return (int)cudaStreamQuery(w.free_stream); }
static int call_other_work(void) { return (int)cudaMemsetAsync(w.device, 0, 4, w.b); }
static int call_isolation(void) {
  cudaEventRecord(w.event, w.b);
  return (int)cudaStreamWaitEvent(w.a, w.event, 0);
}
static int call_unmatched(void) {
  cudaGraph_t graph;
  cudaEventRecord(w.event, w.a);
  cudaStreamWaitEvent(w.b, w.event, 0);
  return (int)cudaStreamEndCapture(w.b, &graph);
}
static int call_unjoined(void) {
  cudaEventRecord(w.event, w.a);
  cudaStreamWaitEvent(w.b, w.event, 0);
  return (int)cudaMemsetAsync(w.device, 0, 4, w.b);
}
static int call_joined_without_work(void) {
  cudaEventRecord(w.event, w.a);
  return (int)cudaStreamWaitEvent(w.b, w.event, 0);
}
static int call_event_query(void) {
  cudaEventRecord(w.event, w.a);
  return (int)cudaEventQuery(w.event);
}
static int call_event_unrelated(void) { return (int)cudaEventQuery(w.other); }
static int call_callback(void) { return (int)cudaStreamAddCallback(w.a, callback, NULL, 0); }
static int call_begin_twice(void) { return (int)cudaStreamBeginCapture(w.a, cudaStreamCaptureModeGlobal); }
static int call_merge(void) {
  cudaGraph_t graph;
  cudaStreamBeginCapture(w.b, cudaStreamCaptureModeGlobal);
  cudaEventRecord(w.event, w.b);
  int error = (int)cudaStreamWaitEvent(w.a, w.event, 0);
  FAILS(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(w.b, &graph));
  return error;
}
static int call_create(void) {
  cudaStream_t stream;
  size_t a, b;
  OK(cudaMemGetInfo(&a, &b));
  OK(cudaStreamCreate(&stream));
  return (int)cudaStreamDestroy(stream);
}
static int call_wait_unrecorded(void) { return (int)cudaStreamWaitEvent(w.a, w.other, 0); }
static int call_legacy_record(void) { return (int)cudaEventRecord(w.other, 0); }
static int call_legacy_wait(void) {
  cudaEventRecord(w.event, w.a);
  return (int)cudaStreamWaitEvent(0, w.event, 0);
}
static int call_register(void) { return (int)cudaHostRegister(w.host, sizeof w.host, 0); }
static int call_legacy_status(void) {
  enum cudaStreamCaptureStatus status;
  return (int)cudaStreamIsCapturing(0, &status);
}
static int call_destroy_joined(void) {
  cudaStream_t stream;
  OK(cudaStreamCreate(&stream));
  cudaEventRecord(w.event, w.a);
  cudaStreamWaitEvent(stream, w.event, 0);
  OK(cudaMemsetAsync(w.device, 0, 4, stream));
  return (int)cudaStreamDestroy(stream);
}
static const struct {
  int (*call)(void);
  int expected, end;
} capture_rows[] = {
    {call_synchronize, 900, 901}, {call_query, 900, 901},
    {call_device, 900, 901},      {call_malloc, 900, 901},
    {call_malloc_host, 900, 901}, {call_free, 900, 901},
    {call_memcpy, 906, 901},      {call_legacy, 906, 901},
    {call_legacy_sync, 906, 901}, {call_other_sync, 900, 901},
    {call_free_query, 900, 901},  {call_other_work, 0, 0},
    {call_isolation, 905, 901},   {call_unmatched, 903, 901},
    {call_unjoined, 0, 904},      {call_joined_without_work, 0, 0},
    {call_event_query, 907, 901}, {call_event_unrelated, 900, 901},
    {call_callback, 900, 901},    {call_begin_twice, 401, 0},
    {call_merge, 902, 901},       {call_create, 0, 0},
    {call_wait_unrecorded, 0, 0}, {call_legacy_record, 906, 901},
    {call_legacy_wait, 906, 901}, {call_register, 900, 901},
    {call_legacy_status, 906, 0}, {call_destroy_joined, 0, 904},
};

static void test_capture_errors(void **state) {
  (void)state;
  OK(cudaStreamCreate(&w.a));
  OK(cudaStreamCreate(&w.b));
  OK(cudaStreamCreateWithFlags(&w.free_stream, cudaStreamNonBlocking));
  OK(cudaEventCreate(&w.event));
  OK(cudaEventCreate(&w.other));
  OK(cudaMalloc((void **)&w.device, 64));
  for (size_t i = 0; i < sizeof capture_rows / sizeof *capture_rows; i++) {
    cudaGraph_t graph = NULL;
    OK(cudaStreamBeginCapture(w.a, cudaStreamCaptureModeGlobal));
    OK(cudaMemsetAsync(w.device, 0, 4, w.a));
    if (capture_rows[i].call() != capture_rows[i].expected) fail_msg("row %zu: call", i);
    if (capture_rows[i].end == 901) {
      FAILS(cudaErrorStreamCaptureInvalidated, cudaMemsetAsync(w.device, 0, 4, w.a));
    }
    int end = (int)cudaStreamEndCapture(w.a, &graph);
    if (end != capture_rows[i].end) fail_msg("row %zu: end returned %d", i, end);
    assert_true((graph != NULL) == (end == 0));
    if (graph != NULL) OK(cudaGraphDestroy(graph));
    enum cudaStreamCaptureStatus status;
    OK(cudaStreamIsCapturing(w.b, &status));
    assert_int_equal(status, cudaStreamCaptureStatusNone);
  }
  cudaGraph_t graph;
  FAILS(cudaErrorIllegalState, cudaStreamEndCapture(w.a, &graph));
  FAILS(cudaErrorStreamCaptureUnsupported, cudaStreamBeginCapture(0, cudaStreamCaptureModeGlobal));
  FAILS(cudaErrorInvalidValue, cudaStreamBeginCapture(w.a, (enum cudaStreamCaptureMode)7));
  /* An event recorded in a capture that has ended. */
  OK(cudaStreamBeginCapture(w.a, cudaStreamCaptureModeRelaxed));
  OK(cudaEventRecord(w.event, w.a));
  OK(cudaStreamSynchronize(w.b)); /* relaxed mode: no call is refused */
  OK(cudaStreamEndCapture(w.a, &graph));
  OK(cudaGraphDestroy(graph));
  FAILS(cudaErrorInvalidValue, cudaEventQuery(w.event));
  FAILS(cudaErrorInvalidValue, cudaStreamWaitEvent(w.b, w.event, 0));
  /* The synchronous copy does not affect a stream that does not wait for the legacy stream. */
  OK(cudaStreamBeginCapture(w.free_stream, cudaStreamCaptureModeGlobal));
  OK(cudaMemcpy(w.device, w.host, 64, cudaMemcpyHostToDevice));
  OK(cudaStreamDestroy(w.free_stream));
  enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  OK(cudaThreadExchangeStreamCaptureMode(&mode));
  OK(cudaStreamBeginCapture(w.a, cudaStreamCaptureModeGlobal));
  OK(cudaStreamSynchronize(w.b));
  OK(cudaThreadExchangeStreamCaptureMode(&mode));
  OK(cudaStreamDestroy(w.a));
  OK(cudaStreamDestroy(w.b));
  OK(cudaEventDestroy(w.event));
  OK(cudaEventDestroy(w.other));
  OK(cudaFree(w.device));
  cudaGetLastError();
}

static void *other_thread(void *argument) {
  (void)argument;
  cudaGraph_t graph;
  FAILS(cudaErrorStreamCaptureUnsupported, cudaStreamSynchronize(w.free_stream));
  FAILS(cudaErrorStreamCaptureWrongThread, cudaStreamEndCapture(w.a, &graph));
  OK(cudaStreamSynchronize(w.free_stream)); /* the capture has ended nevertheless */
  return NULL;
}

static void test_capture_ended_by_another_thread(void **state) {
  (void)state;
  cudaGraph_t graph;
  os_thread thread;
  OK(cudaStreamCreate(&w.a));
  OK(cudaStreamCreateWithFlags(&w.free_stream, cudaStreamNonBlocking));
  OK(cudaStreamBeginCapture(w.a, cudaStreamCaptureModeGlobal));
  assert_true(os_thread_start(&thread, other_thread, NULL));
  os_thread_join(thread);
  FAILS(cudaErrorIllegalState, cudaStreamEndCapture(w.a, &graph));
  OK(cudaStreamDestroy(w.a));
  OK(cudaStreamDestroy(w.free_stream));
  cudaGetLastError();
}

/* ---- memory ---- */

static void test_memory_errors(void **state) {
  (void)state;
  char *device, host[64] = "host";
  void *other = host;
  OK(cudaMalloc((void **)&device, 4096));
  FAILS(cudaErrorInvalidValue, cudaMemcpy(host, device, 8, cudaMemcpyHostToDevice));
  FAILS(cudaErrorInvalidValue, cudaMemcpy(device, host, 8, cudaMemcpyDeviceToHost));
  FAILS(cudaErrorInvalidValue, cudaMemcpy(host, host + 8, 8, cudaMemcpyDeviceToDevice));
  FAILS(cudaErrorInvalidValue, cudaMemcpy(device + 4090, host, 8, cudaMemcpyHostToDevice));
  assert_non_null(strstr(ncclGetLastError(NULL), "2 bytes past"));
  FAILS(cudaErrorInvalidValue, cudaMemset(host, 0, 4));
  FAILS(cudaErrorInvalidValue, cudaMemset(device + 4090, 0, 8));
  FAILS(cudaErrorInvalidValue, cudaFree(host));
  FAILS(cudaErrorInvalidValue, cudaFree(device + 256));
  FAILS(cudaErrorInvalidValue, cudaFreeHost(device));
  OK(cudaFree(NULL));
  OK(cudaFreeHost(NULL));
  OK(cudaMalloc(&other, 0));
  assert_null(other);
  FAILS(cudaErrorMemoryAllocation, cudaMalloc(&other, (size_t)1 << 50));
  FAILS(cudaErrorHostMemoryNotRegistered, cudaHostUnregister(host));
  FAILS(cudaErrorInvalidValue, cudaHostGetDevicePointer(&other, host, 0));
  FAILS(cudaErrorInvalidDevice, cudaSetDevice(99));
  FAILS(cudaErrorInvalidDevice, cudaGetLastError());
  OK(cudaFree(device));
  FAILS(cudaErrorInvalidValue, cudaFree(device));
  assert_non_null(strstr(ncclGetLastError(NULL), "freed already"));
  cudaGetLastError();
}

static void test_pointer_attributes(void **state) {
  (void)state;
  struct cudaPointerAttributes attributes;
  char *device, *pinned, *managed, host[64];
  OK(cudaSetDevice(3));
  OK(cudaMalloc((void **)&device, 100));
  OK(cudaSetDevice(0));
  OK(cudaMallocHost((void **)&pinned, 100));
  OK(cudaMallocManaged((void **)&managed, 100, cudaMemAttachGlobal));
  OK(cudaPointerGetAttributes(&attributes, device + 99));
  assert_int_equal(attributes.type, cudaMemoryTypeDevice);
  assert_int_equal(attributes.device, 3);
  assert_ptr_equal(attributes.devicePointer, device + 99);
  assert_null(attributes.hostPointer);
  OK(cudaPointerGetAttributes(&attributes, device + 100));
  assert_int_equal(attributes.type, cudaMemoryTypeUnregistered);
  OK(cudaPointerGetAttributes(&attributes, pinned));
  assert_int_equal(attributes.type, cudaMemoryTypeHost);
  assert_ptr_equal(attributes.hostPointer, pinned);
  OK(cudaPointerGetAttributes(&attributes, managed));
  assert_int_equal(attributes.type, cudaMemoryTypeManaged);
  OK(cudaPointerGetAttributes(&attributes, host));
  assert_int_equal(attributes.type, cudaMemoryTypeUnregistered);
  assert_int_equal(attributes.device, cudaInvalidDeviceId);
  assert_null(attributes.devicePointer);
  assert_ptr_equal(attributes.hostPointer, host);
  OK(cudaHostRegister(host, sizeof host, 0));
  FAILS(cudaErrorHostMemoryAlreadyRegistered, cudaHostRegister(host + 8, 8, 0));
  OK(cudaPointerGetAttributes(&attributes, host + 63));
  assert_int_equal(attributes.type, cudaMemoryTypeHost);
  OK(cudaHostUnregister(host));
  OK(cudaFree(device));
  OK(cudaFreeHost(pinned));
  OK(cudaFree(managed));
  cudaGetLastError();
}

static void test_copies(void **state) {
  (void)state;
  char *a, *b, source[256], target[256], pattern[256];
  cudaStream_t stream;
  size_t pitch, before, after, total;
  for (int i = 0; i < 256; i++) pattern[i] = source[i] = (char)i;
  OK(cudaStreamCreate(&stream));
  OK(cudaMemGetInfo(&before, &total));
  OK(cudaMalloc((void **)&a, 256));
  OK(cudaSetDevice(1));
  OK(cudaMallocAsync((void **)&b, 256, stream));
  struct rendezvous gate = open_at(2);
  launch(stream, &gate);
  OK(cudaMemcpyAsync(a, source, 256, cudaMemcpyHostToDevice, stream));
  memset(source, 0, sizeof source); /* the pageable source has been read */
  arrive(&gate);
  OK(cudaMemcpyPeerAsync(b, 0, a, 0, 256, stream));
  FAILS(cudaErrorInvalidValue, cudaMemcpyPeerAsync(b, 1, a, 0, 256, stream));
  OK(cudaMemcpyAsync(target, b, 256, cudaMemcpyDeviceToHost, stream)); /* the target has been written */
  assert_memory_equal(target, pattern, 256);
  OK(cudaMemset2D(a, 16, 7, 2, 16));
  OK(cudaMemcpy2D(target, 2, a, 16, 2, 16, cudaMemcpyDeviceToHost));
  for (int i = 0; i < 32; i++) assert_int_equal(target[i], 7);
  OK(cudaMemcpy(target, a, 256, cudaMemcpyDefault));
  assert_int_equal(target[3], 3);
  FAILS(cudaErrorInvalidPitchValue, cudaMemcpy2D(target, 1, a, 16, 2, 16, cudaMemcpyDeviceToHost));
  OK(cudaFreeAsync(b, stream));
  OK(cudaStreamSynchronize(stream));
  OK(cudaFree(a));
  OK(cudaMallocPitch((void **)&a, &pitch, 100, 3));
  assert_true(pitch >= 100);
  OK(cudaFree(a));
  OK(cudaSetDevice(0));
  OK(cudaStreamDestroy(stream));
  OK(cudaMemGetInfo(&after, &total));
  assert_int_equal(before, after);
  cudaGetLastError();
}

/* ---- devices ---- */

static void test_devices(void **state) {
  (void)state;
  int count, value, device;
  struct cudaDeviceProp properties;
  char bus[32];
  OK(cudaGetDeviceCount(&count));
  assert_true(count >= 6);
  OK(cudaGetDeviceProperties(&properties, 1));
  assert_string_equal(properties.name, "tutti emulated GPU");
  OK(cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, 1));
  assert_int_equal(value, properties.multiProcessorCount);
  OK(cudaDeviceGetPCIBusId(bus, sizeof bus, 5));
  OK(cudaDeviceGetByPCIBusId(&device, bus));
  assert_int_equal(device, 5);
  OK(cudaDeviceCanAccessPeer(&value, 0, 0));
  assert_int_equal(value, 0);
  OK(cudaDeviceEnablePeerAccess(1, 0));
  FAILS(cudaErrorPeerAccessAlreadyEnabled, cudaDeviceEnablePeerAccess(1, 0));
  OK(cudaDeviceDisablePeerAccess(1));
  FAILS(cudaErrorPeerAccessNotEnabled, cudaDeviceDisablePeerAccess(1));
  FAILS(cudaErrorPeerAccessUnsupported, cudaDeviceEnablePeerAccess(0, 0));
  FAILS(cudaErrorInvalidValue, cudaDeviceGetAttribute(&value, (enum cudaDeviceAttr)9999, 0));
  OK(cudaRuntimeGetVersion(&value));
  assert_int_equal(value, CUDART_VERSION);
  assert_string_equal(cudaGetErrorName(cudaErrorStreamCaptureImplicit), "cudaErrorStreamCaptureImplicit");
  assert_string_equal(cudaGetErrorString(cudaSuccess), "no error");
  assert_string_equal(cudaGetErrorName((cudaError_t)5555), "unrecognized error code");
  cudaGetLastError();
}

static void *device_thread(void *argument) {
  int device = (int)(intptr_t)argument;
  char *memory, host[100];
  OK(cudaSetDevice(device));
  OK(cudaMalloc((void **)&memory, sizeof host));
  for (int i = 0; i < 50; i++) {
    OK(cudaMemsetAsync(memory, i, sizeof host, cudaStreamPerThread));
    OK(cudaMemcpyAsync(host, memory, sizeof host, cudaMemcpyDeviceToHost, cudaStreamPerThread));
    for (size_t k = 0; k < sizeof host; k++) assert_int_equal(host[k], i);
  }
  OK(cudaFree(memory));
  return NULL;
}

static void test_threads_with_a_device_each(void **state) {
  (void)state;
  enum { THREADS = 4 };
  os_thread threads[THREADS];
  for (intptr_t i = 0; i < THREADS; i++) assert_true(os_thread_start(&threads[i], device_thread, (void *)i));
  for (int i = 0; i < THREADS; i++) os_thread_join(threads[i]);
}

/* ---- repeatability ---- */

enum { DRIVERS = 3, LETTERS = 12 };
static pthread_barrier_t drivers_ready;

/* Threads that own ranks: the scheduler makes no progress while one of them is outside of a waiting call. */
static void *driver_thread(void *argument) {
  int device = (int)(intptr_t)argument;
  struct emu_owner *owner = NULL;
  cudaStream_t streams[2];
  cudaEvent_t event;
  emu_lock();
  emu_owner_set(&owner);
  emu_unlock();
  pthread_barrier_wait(&drivers_ready);
  OK(cudaSetDevice(device));
  for (int i = 0; i < 2; i++) OK(cudaStreamCreate(&streams[i]));
  OK(cudaEventCreate(&event));
  for (int i = 0; i < LETTERS / 2; i++) {
    for (int k = 0; k < 2; k++) put(streams[k], (char)('a' + 2 * device + k));
    if (i == 2) OK(cudaEventRecord(event, streams[0]));
    if (i == 3) OK(cudaStreamWaitEvent(streams[1], event, 0));
  }
  OK(cudaDeviceSynchronize());
  for (int i = 0; i < 2; i++) OK(cudaStreamDestroy(streams[i]));
  OK(cudaEventDestroy(event));
  emu_lock();
  emu_owner_clear(&owner);
  emu_changed();
  emu_unlock();
  return NULL;
}

static void test_guarded_runs_repeat(void **state) {
  (void)state;
  if (emu_options()->mode != EMU_GUARDED) return;
  char first[sizeof journal];
  bool seeds_differ = false;
  for (int round = 0; round < 12; round++) {
    tutti_emu_config_t config;
    os_thread threads[DRIVERS];
    memset(&config, 0, sizeof config);
    config.size = sizeof config;
    config.seed = round < 8 ? 7 : (uint64_t)round;
    assert_int_equal(tutti_emu_configure(&config), ncclSuccess);
    journal_clear();
    assert_int_equal(pthread_barrier_init(&drivers_ready, NULL, DRIVERS), 0);
    for (intptr_t i = 0; i < DRIVERS; i++)
      assert_true(os_thread_start(&threads[i], driver_thread, (void *)i));
    for (int i = 0; i < DRIVERS; i++) os_thread_join(threads[i]);
    pthread_barrier_destroy(&drivers_ready);
    assert_int_equal(journal_count, DRIVERS * LETTERS);
    if (round == 0) memcpy(first, journal, sizeof first);
    if (round < 8) assert_string_equal(journal, first);
    else if (strcmp(journal, first) != 0) seeds_differ = true;
  }
  assert_true(seeds_differ);
}

#ifdef __SANITIZE_THREAD__
/* the sanitizer has a thread of its own, so the scheduler cannot know that no other thread will call */
enum { OTHERS_MAY_COME = 1 };
#else
enum { OTHERS_MAY_COME = 0 };
#endif

/* Nothing will ever end this kernel: in guarded mode the wait reports it. */
static void test_wait_that_cannot_end(void **state) {
  (void)state;
  if (emu_options()->mode != EMU_GUARDED || OTHERS_MAY_COME) return;
  struct rendezvous gate = open_at(2);
  cudaStream_t stream;
  OK(cudaStreamCreate(&stream));
  launch(stream, &gate);
  FAILS(cudaErrorLaunchTimeout, cudaStreamSynchronize(stream));
  FAILS(cudaErrorLaunchTimeout, cudaGetLastError());
  arrive(&gate);
  OK(cudaStreamSynchronize(stream));
  OK(cudaStreamDestroy(stream));
}

/* ---- out of memory ---- */

/* Uses one of everything; stops at the first error. */
static cudaError_t all_of_it(void) {
  cudaStream_t stream = NULL;
  cudaEvent_t event = NULL;
  cudaGraph_t graph = NULL;
  cudaGraphExec_t exec = NULL;
  void *memory = NULL;
  static char host[64];
  cudaError_t error = cudaStreamCreate(&stream);
  if (error == cudaSuccess) error = cudaEventCreate(&event);
  if (error == cudaSuccess) error = cudaMalloc(&memory, 64);
  if (error == cudaSuccess) error = cudaMemcpyAsync(memory, host, 64, cudaMemcpyHostToDevice, stream);
  if (error == cudaSuccess) error = cudaEventRecord(event, stream);
  if (error == cudaSuccess) error = cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);
  if (error == cudaSuccess) {
    error = cudaMemsetAsync(memory, 0, 64, stream);
    if (error == cudaSuccess) error = cudaMemsetAsync(memory, 1, 64, stream);
    cudaError_t end = cudaStreamEndCapture(stream, &graph);
    if (error == cudaSuccess) error = end;
  }
  if (error == cudaSuccess) error = cudaGraphInstantiateWithFlags(&exec, graph, 0);
  if (error == cudaSuccess) error = cudaGraphLaunch(exec, stream);
  if (stream != NULL) OK(cudaStreamSynchronize(stream));
  if (exec != NULL) OK(cudaGraphExecDestroy(exec));
  if (graph != NULL) OK(cudaGraphDestroy(graph));
  if (event != NULL) OK(cudaEventDestroy(event));
  if (memory != NULL) OK(cudaFree(memory));
  if (stream != NULL) OK(cudaStreamDestroy(stream));
  return error;
}

static void test_no_memory(void **state) {
  (void)state;
  OK(all_of_it());
  uint64_t live = os_alloc_live();
  bool failed = true;
  for (uint64_t k = 1; failed; k++) {
    os_alloc_fail_at(k);
    cudaError_t error = all_of_it();
    os_alloc_fail_at(0);
    failed = error != cudaSuccess;
    if (failed) assert_int_equal(error, cudaErrorMemoryAllocation);
    assert_int_equal(os_alloc_live(), live);
    assert_true(k < 200);
  }
  cudaGetLastError();
}

static int run_all(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_default_stream_orders_blocking_streams),
      cmocka_unit_test(test_stream_handles),
      cmocka_unit_test(test_destroyed_while_busy),
      cmocka_unit_test(test_callbacks),
      cmocka_unit_test(test_events_across_devices),
      cmocka_unit_test(test_elapsed_time),
      cmocka_unit_test(test_kernels_on_several_streams),
      cmocka_unit_test(test_kernel_joins_streams),
      cmocka_unit_test(test_kernel_error_is_sticky_until_reported),
      cmocka_unit_test(test_capture_and_replay),
      cmocka_unit_test(test_graph_runs_devices_together),
      cmocka_unit_test(test_graph_by_hand),
      cmocka_unit_test(test_graph_node_in_capture),
      cmocka_unit_test(test_graph_launch_in_capture),
      cmocka_unit_test(test_capture_errors),
      cmocka_unit_test(test_capture_ended_by_another_thread),
      cmocka_unit_test(test_memory_errors),
      cmocka_unit_test(test_pointer_attributes),
      cmocka_unit_test(test_copies),
      cmocka_unit_test(test_devices),
      cmocka_unit_test(test_threads_with_a_device_each),
      cmocka_unit_test(test_guarded_runs_repeat),
      cmocka_unit_test(test_wait_that_cannot_end),
      cmocka_unit_test(test_no_memory),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Exits while a kernel runs that never ends: the process must end nevertheless. */
static int leave_busy(void) {
  static struct rendezvous never = {0, 2};
  cudaStream_t streams[2];
  for (int i = 0; i < 2; i++) OK(cudaStreamCreate(&streams[i]));
  OK(cudaStreamDestroy(streams[1]));
  launch(streams[0], &never);
  OK(cudaMemsetAsync(NULL, 0, 0, streams[0]));
  return 0;
}

static int run_in_child(const char *settings, int (*run)(void)) {
  fflush(NULL);
  pid_t child = fork();
  if (child == 0) {
    setenv("TUTTI_EMU", settings, 1);
    exit(run());
  }
  int status = 1;
  if (child < 0 || waitpid(child, &status, 0) != child) return 1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

int main(void) {
  if (run_in_child("mode=guarded", run_all) != 0 || run_in_child("mode=threads", run_all) != 0) return 1;
  return run_in_child("mode=guarded", leave_busy) != 0 || run_in_child("mode=threads", leave_busy) != 0;
}
