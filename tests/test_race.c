/* test_race.c: the check for races of the emulated runtime. Each case is a program with a missing order,
 * which must be reported with both calls, and the same program with the order, which must not be. Runs in
 * both modes, each in a child process. */
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
#include <nccl.h>

#include "backends/emu/cudart/race.h"
#include "base/os.h"
#include "skip.h"

#define RANKS 2
#define COUNT 1024
#define BYTES (COUNT * sizeof(float))

/* Two ranks with two communicators, and on each device two non-blocking streams, a blocking one, an event. */
struct scene {
  ncclComm_t one[RANKS], two[RANKS];
  cudaStream_t a[RANKS], b[RANKS], blocking[RANKS];
  cudaEvent_t event[RANKS];
  float *in[RANKS], *out[RANKS], *host;
};

static void scene_open(struct scene *s) {
  assert_int_equal(ncclCommInitAll(s->one, RANKS, NULL), 0);
  assert_int_equal(ncclCommInitAll(s->two, RANKS, NULL), 0);
  assert_int_equal(cudaMallocHost((void **)&s->host, BYTES), 0);
  for (int r = RANKS; r-- > 0;) {
    cudaSetDevice(r);
    assert_int_equal(cudaStreamCreateWithFlags(&s->a[r], cudaStreamNonBlocking), 0);
    assert_int_equal(cudaStreamCreateWithFlags(&s->b[r], cudaStreamNonBlocking), 0);
    assert_int_equal(cudaStreamCreate(&s->blocking[r]), 0);
    assert_int_equal(cudaEventCreate(&s->event[r]), 0);
    assert_int_equal(cudaMalloc((void **)&s->in[r], BYTES), 0);
    assert_int_equal(cudaMalloc((void **)&s->out[r], BYTES), 0);
  }
}

static void scene_close(struct scene *s) {
  for (int r = 0; r < RANKS; r++) ncclCommAbort(s->one[r]), ncclCommAbort(s->two[r]);
  for (int r = 0; r < RANKS; r++) {
    cudaSetDevice(r);
    cudaDeviceSynchronize();
    if (s->a[r] != NULL) cudaStreamDestroy(s->a[r]);
    cudaStreamDestroy(s->b[r]);
    cudaStreamDestroy(s->blocking[r]);
    cudaEventDestroy(s->event[r]);
    cudaFree(s->in[r]);
    if (s->out[r] != NULL) cudaFree(s->out[r]);
  }
  cudaFreeHost(s->host);
  cudaSetDevice(0);
  cudaGetLastError();
}

/* ---- what the cases do ---- */

static void all_reduce(ncclComm_t *comms, float *const *in, float *const *out, cudaStream_t *streams) {
  ncclGroupStart();
  for (int r = 0; r < RANKS; r++)
    ncclAllReduce(in[r], out[r], COUNT, ncclFloat, ncclSum, comms[r], streams[r]);
  ncclGroupEnd();
}

/* `later` waits for `earlier`. */
static void order(struct scene *s, cudaStream_t earlier, cudaStream_t later) {
  cudaEventRecord(s->event[0], earlier);
  cudaStreamWaitEvent(later, s->event[0], 0);
}

static void finish(struct scene *s) {
  for (int r = 0; r < RANKS; r++) cudaStreamSynchronize(s->a[r]), cudaStreamSynchronize(s->b[r]);
}

static void fill_then_reduce(struct scene *s, bool right) {
  cudaMemsetAsync(s->in[0], 0, BYTES, s->b[0]);
  if (right) order(s, s->b[0], s->a[0]);
  all_reduce(s->one, s->in, s->out, s->a);
}

static void fill_output_then_reduce(struct scene *s, bool right) {
  cudaMemsetAsync(s->out[0], 0, BYTES, s->b[0]);
  if (right) cudaStreamSynchronize(s->b[0]);
  all_reduce(s->one, s->in, s->out, s->a);
}

static void reduce_then_copy(struct scene *s, bool right) {
  all_reduce(s->one, s->in, s->out, s->a);
  if (right) order(s, s->a[0], s->b[0]);
  cudaMemcpyAsync(s->host, s->out[0], BYTES, cudaMemcpyDeviceToHost, s->b[0]);
}

static void reduce_then_host_copy(struct scene *s, bool right) {
  all_reduce(s->one, s->in, s->out, s->a);
  if (right) cudaStreamSynchronize(s->a[0]);
  cudaMemcpy(s->host, s->out[0], BYTES, cudaMemcpyDeviceToHost);
}

static void default_stream(struct scene *s, bool right) {
  all_reduce(s->one, s->in, s->out, right ? s->blocking : s->a);
  cudaMemcpy(s->host, s->out[0], BYTES, cudaMemcpyDeviceToHost);
}

static void on_default_stream(struct scene *s, bool right) {
  cudaStream_t none[RANKS] = {NULL, NULL};
  all_reduce(s->one, s->in, s->out, none);
  cudaMemsetAsync(s->in[0], 0, BYTES, right ? s->blocking[0] : s->b[0]);
  cudaDeviceSynchronize();
}

/* cudaMemset of device memory does not wait for the fill. */
static void memset_returns_early(struct scene *s, bool right) {
  cudaMemset(s->in[0], 0, BYTES);
  if (right) cudaDeviceSynchronize();
  all_reduce(s->one, s->in, s->out, s->a);
}

static void free_early(struct scene *s, bool right) {
  all_reduce(s->one, s->in, s->out, s->a);
  if (right) cudaStreamSynchronize(s->a[0]);
  if (cudaFree(s->out[0]) == 0) s->out[0] = NULL;
}

static void free_on_another_stream(struct scene *s, bool right) {
  all_reduce(s->one, s->in, s->out, s->a);
  if (cudaFreeAsync(s->out[0], right ? s->a[0] : s->b[0]) == 0) s->out[0] = NULL;
}

static void use_before_allocated(struct scene *s, bool right) {
  void *fresh;
  cudaMallocAsync(&fresh, BYTES, s->a[0]);
  if (right) order(s, s->a[0], s->b[0]);
  cudaMemsetAsync(fresh, 0, BYTES, s->b[0]);
  cudaFreeAsync(fresh, s->b[0]);
}

static void message(struct scene *s, ncclComm_t *comms, cudaStream_t *streams) {
  ncclGroupStart();
  ncclSend(s->in[0], COUNT, ncclFloat, 1, comms[0], streams[0]);
  ncclRecv(s->out[1], COUNT, ncclFloat, 0, comms[1], streams[1]);
  ncclGroupEnd();
}

static void send_then_fill(struct scene *s, bool right) {
  message(s, s->one, s->a);
  cudaMemsetAsync(s->in[0], 0, BYTES, right ? s->a[0] : s->b[0]);
}

static void receive_then_copy(struct scene *s, bool right) {
  message(s, s->one, s->a);
  cudaMemcpyAsync(s->host, s->out[1], BYTES, cudaMemcpyDeviceToHost, right ? s->a[1] : s->b[1]);
}

static void two_communicators_write(struct scene *s, bool right) {
  all_reduce(s->one, s->in, s->out, s->a);
  all_reduce(s->two, s->in, s->out, right ? s->a : s->b);
}

static void output_is_input(struct scene *s, bool right) {
  float *more[RANKS];
  for (int r = 0; r < RANKS; r++) cudaSetDevice(r), cudaMalloc((void **)&more[r], BYTES);
  all_reduce(s->one, s->in, s->out, s->a);
  for (int r = 0; right && r < RANKS; r++) {
    cudaEventRecord(s->event[r], s->a[r]);
    cudaStreamWaitEvent(s->b[r], s->event[r], 0);
  }
  all_reduce(s->two, s->out, more, s->b);
  finish(s);
  for (int r = 0; r < RANKS; r++) cudaFree(more[r]);
}

static void pinned_memory(struct scene *s, bool right) {
  cudaMemcpyAsync(s->host, s->in[0], BYTES, cudaMemcpyDeviceToHost, s->a[0]);
  if (right) cudaStreamSynchronize(s->a[0]);
  cudaMemcpyAsync(s->out[1], s->host, BYTES, cudaMemcpyHostToDevice, s->b[1]);
}

static void halves(struct scene *s, bool right) {
  cudaMemsetAsync(s->in[0], 0, BYTES / 2, s->a[0]);
  cudaMemsetAsync((char *)s->in[0] + BYTES / 2 - !right, 0, BYTES / 2, s->b[0]);
}

static void columns(struct scene *s, bool right) {
  cudaMemset2DAsync(s->in[0], 64, 0, 32, BYTES / 64, s->a[0]);
  cudaMemset2DAsync((char *)s->in[0] + 32 - !right, 64, 0, 32, BYTES / 64, s->b[0]);
}

static void stream_destroyed(struct scene *s, bool right) {
  all_reduce(s->one, s->in, s->out, s->a);
  if (right) cudaStreamSynchronize(s->a[0]);
  cudaStreamDestroy(s->a[0]);
  s->a[0] = NULL;
  cudaMemcpy(s->host, s->out[0], BYTES, cudaMemcpyDeviceToHost);
}

/* The wait names the event's record of the iteration before. */
static void loop(struct scene *s, bool right) {
  for (int i = 0; i < 200; i++) {
    all_reduce(s->one, s->in, s->out, s->a);
    if (right || i < 150) order(s, s->a[0], s->b[0]);
    cudaMemcpyAsync(s->host, s->out[0], BYTES, cudaMemcpyDeviceToHost, s->b[0]);
    order(s, s->b[0], s->a[0]);
  }
}

/* ---- what is seen to have ended ---- */

static void ask_until_over(struct scene *s, bool right) {
  all_reduce(s->one, s->in, s->out, s->a);
  cudaEventRecord(s->event[0], s->a[0]);
  if (right)
    while (cudaEventQuery(s->event[0]) == cudaErrorNotReady) continue;
  cudaMemcpyAsync(s->host, s->out[0], BYTES, cudaMemcpyDeviceToHost, s->b[0]);
}

static void ask_stream_until_over(struct scene *s, bool right) {
  all_reduce(s->one, s->in, s->out, s->a);
  if (right)
    while (cudaStreamQuery(s->a[0]) == cudaErrorNotReady) continue;
  cudaMemcpyAsync(s->host, s->out[0], BYTES, cudaMemcpyDeviceToHost, s->b[0]);
}

static void set_flag(void *argument) { __atomic_store_n((int *)argument, 1, __ATOMIC_RELEASE); }

/* The program learns from a host function that the stream has come to it. */
static void host_function(struct scene *s, bool right) {
  static int flag;
  flag = 0;
  all_reduce(s->one, s->in, s->out, s->a);
  if (right) cudaLaunchHostFunc(s->a[0], set_flag, &flag);
  while (right && !__atomic_load_n(&flag, __ATOMIC_ACQUIRE)) {
    cudaMemsetAsync(s->host, 0, BYTES, s->b[1]); /* moves the guarded world, and shows nothing of stream a */
    cudaStreamSynchronize(s->b[1]);
  }
  cudaMemcpyAsync(s->host, s->out[0], BYTES, cudaMemcpyDeviceToHost, s->b[0]);
}

static void destroyed_communicator(struct scene *s, bool right) {
  ncclComm_t comms[RANKS];
  ncclCommInitAll(comms, RANKS, NULL);
  all_reduce(comms, s->in, s->out, s->a);
  for (int r = 0; right && r < RANKS; r++) ncclCommDestroy(comms[r]);
  cudaMemcpy(s->host, s->out[0], BYTES, cudaMemcpyDeviceToHost);
  for (int r = 0; !right && r < RANKS; r++) ncclCommDestroy(comms[r]);
}

/* ---- ranks ---- */

/* Rank 1 copies what device 0 has written before the call that brings rank 1 its data. */
static void after_rank_0(struct scene *s, int root) {
  cudaMemsetAsync(s->in[0], 0, BYTES, s->a[0]);
  ncclGroupStart();
  for (int r = 0; r < RANKS; r++)
    ncclBroadcast(s->out[r], s->out[r], COUNT, ncclFloat, root, s->one[r], s->a[r]);
  ncclGroupEnd();
  cudaMemcpyPeerAsync(s->out[1], 1, s->in[0], 0, BYTES, s->a[1]);
}
static void order_of_root(struct scene *s, bool right) { after_rank_0(s, right ? 0 : 1); }

/* A send is not after its receiver. */
static void order_of_message(struct scene *s, bool right) {
  const int writer = right ? 0 : 1, reader = 1 - writer;
  cudaMemsetAsync(s->in[writer], 0, BYTES / 2, s->a[writer]);
  ncclGroupStart();
  ncclSend((char *)s->in[0] + BYTES / 2, COUNT / 2, ncclFloat, 1, s->one[0], s->a[0]);
  ncclRecv(s->out[1], COUNT / 2, ncclFloat, 0, s->one[1], s->a[1]);
  ncclGroupEnd();
  cudaMemcpyPeerAsync((char *)s->out[reader] + BYTES / 2, reader, s->in[writer], writer, BYTES / 2,
                      s->a[reader]);
}

/* Rank 1 receives the buffer and sends it back into the same memory, over the other communicator. */
static void echo(struct scene *s, bool right) {
  ncclGroupStart();
  ncclSend(s->in[0], COUNT, ncclFloat, 1, s->one[0], s->a[0]);
  ncclRecv(s->out[1], COUNT, ncclFloat, 0, s->one[1], s->a[1]);
  ncclGroupEnd();
  ncclGroupStart();
  ncclRecv(s->in[0], COUNT, ncclFloat, 1, s->two[0], s->b[0]);
  ncclSend(right ? s->out[1] : s->in[1], COUNT, ncclFloat, 0, s->two[1], right ? s->a[1] : s->b[1]);
  ncclGroupEnd();
}

/* A rank's launches run one after another on any streams; the streams of a group's calls are joined. After
 * the error the group would be refused, and the fill of its input would really run beside the first call. */
static void one_rank_two_streams(struct scene *s, bool right) {
  all_reduce(s->one, s->in, s->out, s->a);
  all_reduce(right ? s->one : s->two, s->out, s->in, s->b);
  if (!right) return;
  ncclGroupStart();
  for (int r = 0; r < RANKS; r++) {
    ncclAllReduce(s->in[r], s->in[r], COUNT / 2, ncclFloat, ncclSum, s->one[r], s->a[r]);
    ncclAllReduce(s->out[r], s->out[r], COUNT / 2, ncclFloat, ncclSum, s->one[r], s->b[r]);
  }
  ncclGroupEnd();
  cudaMemsetAsync(s->in[0], 0, BYTES, s->b[0]);
}

struct rank_thread {
  os_thread thread;
  struct scene *scene;
  int rank;
  bool right;
};

/* Whether the two calls of rank 0 are ordered shows only when rank 1 has called. */
static void *rank_thread(void *argument) {
  const struct rank_thread *own = (const struct rank_thread *)argument;
  struct scene *s = own->scene;
  const int r = own->rank;
  cudaSetDevice(r);
  if (r == 0) cudaMemsetAsync(s->out[0], 0, BYTES, own->right ? s->a[0] : s->b[0]);
  for (int i = 0; i < 20; i++)
    ncclAllReduce(s->in[r], s->out[r], COUNT, ncclFloat, ncclSum, s->one[r], s->a[r]);
  cudaStreamSynchronize(s->a[r]);
  return NULL;
}

/* The calling thread keeps no rank, because the guarded world would wait for it. */
static void thread_each(struct scene *s, bool right) {
  struct rank_thread threads[RANKS];
  for (int r = 0; r < RANKS; r++) ncclCommAbort(s->two[r]), s->two[r] = NULL;
  for (int r = 0; r < RANKS; r++) {
    threads[r] = (struct rank_thread){.scene = s, .rank = r, .right = right};
    assert_true(os_thread_start(&threads[r].thread, rank_thread, &threads[r]));
  }
  for (int r = 0; r < RANKS; r++) os_thread_join(threads[r].thread);
}

/* ---- graphs ---- */

static void graph_by_hand(struct scene *s, bool right) {
  struct cudaMemsetParams fill;
  memset(&fill, 0, sizeof fill);
  fill.dst = s->in[0];
  fill.elementSize = 1;
  fill.width = BYTES;
  fill.height = 1;
  cudaGraph_t graph;
  cudaGraphNode_t first, second;
  cudaGraphExec_t exec;
  cudaGraphCreate(&graph, 0);
  cudaGraphAddMemsetNode(&first, graph, NULL, 0, &fill);
  cudaGraphAddMemcpyNode1D(&second, graph, &first, right ? 1 : 0, s->out[0], s->in[0], BYTES,
                           cudaMemcpyDeviceToDevice);
  if (cudaGraphInstantiate(&exec, graph, 0) == 0) cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
}

/* Two branches of a capture. */
static void graph_captured(struct scene *s, bool right) {
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  cudaStreamBeginCapture(s->a[0], cudaStreamCaptureModeRelaxed);
  order(s, s->a[0], s->b[0]);
  cudaMemsetAsync(s->in[0], 0, BYTES, s->b[0]);
  if (right) order(s, s->b[0], s->a[0]);
  cudaMemsetAsync(s->in[0], 1, BYTES, s->a[0]);
  order(s, s->b[0], s->a[0]);
  cudaStreamEndCapture(s->a[0], &graph);
  if (cudaGraphInstantiate(&exec, graph, 0) == 0) cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
}

static void capture(struct scene *s, int r, cudaGraphExec_t *exec) {
  cudaGraph_t graph;
  cudaStreamBeginCapture(s->a[r], cudaStreamCaptureModeRelaxed);
  ncclAllReduce(s->in[r], s->out[r], COUNT, ncclFloat, ncclSum, s->one[r], s->a[r]);
  cudaMemsetAsync(s->in[r], 0, BYTES, s->a[r]);
  cudaStreamEndCapture(s->a[r], &graph);
  assert_int_equal(cudaGraphInstantiate(&exec[r], graph, 0), 0);
  cudaGraphDestroy(graph);
}

static void graph_and_stream(struct scene *s, bool right) {
  cudaGraphExec_t exec[RANKS];
  for (int r = 0; r < RANKS; r++) capture(s, r, exec);
  for (int i = 0; i < 3; i++)
    for (int r = 0; r < RANKS; r++) cudaGraphLaunch(exec[r], s->a[r]);
  if (right) order(s, s->a[0], s->b[0]);
  cudaMemcpyAsync(s->host, s->out[0], BYTES, cudaMemcpyDeviceToHost, s->b[0]);
  finish(s);
  for (int r = 0; r < RANKS; r++) cudaGraphExecDestroy(exec[r]);
}

/* ---- running them ---- */

/* Sanitizers' builds keep the frames of libtutti-cudart.so's wrappers, which sentences name instead of the
 * program's lines. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { KEEPS_WRAPPERS = 1 };
#else
enum { KEEPS_WRAPPERS = 0 };
#endif

static bool says(const char *text, const char *part) {
  char call[160];
  const char *place = KEEPS_WRAPPERS ? strstr(part, " at test_race.c") : NULL;
  snprintf(call, sizeof call, "%.*s", place != NULL ? (int)(place - part) : (int)strlen(part), part);
  return strstr(text, call) != NULL;
}

/* Once with the race, which is reported in the words of `parts`, and once without. */
static void check_case(void (*play)(struct scene *s, bool right), const char *first, const char *second) {
  for (int right = 0; right < 2; right++) {
    struct scene scene;
    scene_open(&scene);
    const uint64_t before = emu_race_count();
    play(&scene, right != 0);
    finish(&scene);
    if (emu_race_count() - before != (right ? 0 : 1))
      fail_msg("%s: %s", right ? "right" : "wrong", emu_race_text());
    scene_close(&scene);
    if (right) continue;
    const char *found = strstr(emu_race_text(), KEEPS_WRAPPERS ? "race" : first);
    if (found == NULL || !says(found, first) || !says(found, second)) fail_msg("%s", emu_race_text());
  }
}

#define CASE(play, first, second) \
  static void test_##play(void **state) { (void)state, check_case(play, first, second); }
#define CASES(X)                                                                                    \
  X(fill_then_reduce, "cudaMemsetAsync (stream 1 of device 0) at test_race.c",                      \
    "ncclAllReduce #0 of communicator 1 rank 0 (stream 0 of device 0) at test_race.c")              \
  X(fill_output_then_reduce, "cudaMemsetAsync", "writes bytes [0, 4096) of 4096 bytes on device 0") \
  X(reduce_then_copy, "ncclAllReduce #0", "cudaMemcpyAsync")                                        \
  X(reduce_then_host_copy, "ncclAllReduce #0", "cudaMemcpy (the default stream of device 0)")       \
  X(default_stream, "ncclAllReduce #0", "cudaMemcpy (the default stream of device 0)")              \
  X(on_default_stream, "(the default stream of device 0)", "cudaMemsetAsync")                       \
  X(memset_returns_early, "cudaMemset (the default stream of device 0)", "ncclAllReduce #0")        \
  X(free_early, "ncclAllReduce #0", "cudaFree at test_race.c")                                      \
  X(free_on_another_stream, "ncclAllReduce #0", "cudaFreeAsync")                                    \
  X(use_before_allocated, "cudaMallocAsync", "cudaMemsetAsync")                                     \
  X(send_then_fill, "ncclSend #0", "cudaMemsetAsync")                                               \
  X(receive_then_copy, "ncclRecv #0", "cudaMemcpyAsync")                                            \
  X(two_communicators_write, "ncclAllReduce #0", "ncclAllReduce #0")                                \
  X(output_is_input, "writes bytes", "reads them")                                                  \
  X(pinned_memory, "4096 bytes of host memory (cudaMallocHost at test_race.c", "cudaMemcpyAsync")   \
  X(halves, "bytes [2047, 2048)", "cudaMemsetAsync")                                                \
  X(columns, "cudaMemset2DAsync", "bytes [31, 32)")                                                 \
  X(stream_destroyed, "ncclAllReduce #0", "cudaMemcpy")                                             \
  X(loop, "ncclAllReduce #150", "cudaMemcpyAsync")                                                  \
  X(ask_until_over, "ncclAllReduce #0", "cudaMemcpyAsync")                                          \
  X(ask_stream_until_over, "ncclAllReduce #0", "cudaMemcpyAsync")                                   \
  X(host_function, "ncclAllReduce #0", "cudaMemcpyAsync")                                           \
  X(destroyed_communicator, "ncclAllReduce #0", "cudaMemcpy")                                       \
  X(order_of_root, "cudaMemsetAsync", "cudaMemcpyPeerAsync")                                        \
  X(order_of_message, "cudaMemsetAsync", "cudaMemcpyPeerAsync")                                     \
  X(echo, "ncclSend #0", "ncclRecv #0")                                                             \
  X(one_rank_two_streams, "ncclAllReduce #0", "ncclAllReduce #0")                                   \
  X(thread_each, "cudaMemsetAsync", "ncclAllReduce #0")                                             \
  X(graph_by_hand, "cudaGraphAddMemsetNode", "no path of the graph orders the two nodes")           \
  X(graph_captured, "cudaMemsetAsync", "cudaMemsetAsync")                                           \
  X(graph_and_stream, "ncclAllReduce #0 of communicator 1 rank 0 of a graph", "cudaMemcpyAsync")
CASES(CASE)

/* What follows an error is not a race. */
static void test_abort(void **state) {
  (void)state;
  struct scene s;
  scene_open(&s);
  const uint64_t before = emu_race_count();
  ncclAllReduce(s.in[0], s.out[0], COUNT, ncclFloat, ncclSum, s.one[0], s.a[0]);
  ncclCommAbort(s.one[0]);
  s.one[0] = NULL;
  assert_int_equal(cudaFree(s.out[0]), 0);
  s.out[0] = NULL;
  scene_close(&s);
  assert_int_equal(emu_race_count(), before);
}

static int run_all(void) {
#define TEST(play, first, second) cmocka_unit_test(test_##play),
  const struct CMUnitTest tests[] = {CASES(TEST) cmocka_unit_test(test_abort)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}

/* What a wrong call returns, and that TUTTI_RACE_CHECK=0 finds nothing wrong with it; the memory is then
 * really used without an order, which ThreadSanitizer may see with free threads. */
static int run_results(void) {
  struct scene s;
  ncclResult_t error;
  const bool checks = getenv("TUTTI_RACE_CHECK") == NULL;
  scene_open(&s);
  all_reduce(s.one, s.in, s.out, s.a);
  const cudaError_t copied = cudaMemcpyAsync(s.host, s.out[0], BYTES, cudaMemcpyDeviceToHost, s.b[0]);
  ncclCommGetAsyncError(s.one[1], &error);
  finish(&s);
  scene_close(&s);
  if (!checks) return copied != cudaSuccess || error != ncclSuccess || emu_race_count() != 0;
  return copied != cudaErrorIllegalState || error != ncclInvalidUsage || emu_race_count() != 1;
}

static int run_in_child(const char *settings, const char *check, int (*run)(void)) {
  fflush(NULL);
  pid_t child = fork();
  if (child == 0) {
    setenv("TUTTI_EMU", settings, 1);
    if (check != NULL) setenv("TUTTI_RACE_CHECK", check, 1);
    exit(run());
  }
  int status = 1;
  if (child < 0 || waitpid(child, &status, 0) != child) return 1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}

int main(void) {
  const char *const modes[] = {"mode=guarded,devices=2", "mode=threads,devices=2"};
  for (int i = 0; i < 2; i++) {
    if (run_in_child(modes[i], NULL, run_all) != 0 || run_in_child(modes[i], NULL, run_results) != 0)
      return 1;
  }
  return run_in_child(modes[0], "0", run_results);
}
