/* test_call_cache.c: threads mode, where a repeated call, or a repeated group of calls, takes the fast path
 * of the call cache: results, and that calls are refused, captured, mismatched and counted as on the full
 * path. Two ranks, one thread each. */
/* sanitizers: address thread */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backends/emu/cudart/include/cuda_runtime.h"
#include "base/os.h"
#include "base/param.h"
#include "core/comm/comm.h"
#include "tutti.h"

#define RANKS 2
#define BUFFERS 12 /* more than the cache holds */
#define COUNT_MOST 6000

struct rank {
  os_thread thread;
  int rank;
  uint32_t wrong;
  ncclComm_t comm;
  cudaStream_t stream;
  float *in[BUFFERS], *out[BUFFERS];
  void (*body)(struct rank *self);
};

static struct rank ranks[RANKS];
static uint32_t arrived; /* of both ranks; only increases */

static void meet(void) {
  const uint32_t mine = __atomic_fetch_add(&arrived, 1, __ATOMIC_ACQ_REL) / RANKS;
  while (__atomic_load_n(&arrived, __ATOMIC_ACQUIRE) < (mine + 1) * RANKS) os_sleep_ms(0);
}

static void expect(struct rank *self, bool good, const char *what) {
  if (good) return;
  print_error("rank %d: %s: %s\n", self->rank, what, ncclGetLastError(NULL));
  self->wrong += 1;
}
#define EXPECT(condition) expect(self, condition, #condition)

static void sync(struct rank *self) { EXPECT(cudaStreamSynchronize(self->stream) == cudaSuccess); }

static void *rank_body(void *argument) {
  struct rank *self = (struct rank *)argument;
  EXPECT(cudaSetDevice(self->rank) == cudaSuccess);
  self->body(self);
  return NULL;
}

static void on_both(void (*body)(struct rank *self)) {
  for (int i = 0; i < RANKS; i++) {
    ranks[i].body = body;
    ranks[i].wrong = 0;
    assert_true(os_thread_start(&ranks[i].thread, rank_body, &ranks[i]));
  }
  for (int i = 0; i < RANKS; i++) os_thread_join(ranks[i].thread);
  for (int i = 0; i < RANKS; i++) assert_int_equal(ranks[i].wrong, 0);
}

static int begin(void **state) {
  tutti_emu_config_t config;
  (void)state;
  memset(&config, 0, sizeof config);
  config.size = sizeof config;
  config.threads = 1;
  config.device_count = RANKS;
  if (tutti_emu_configure(&config) != ncclSuccess) return 1;
  ncclComm_t comms[RANKS];
  if (ncclCommInitAll(comms, RANKS, NULL) != ncclSuccess) return 1;
  for (int i = 0; i < RANKS; i++) {
    ranks[i].rank = i;
    ranks[i].comm = comms[i];
    cudaSetDevice(i);
    if (cudaStreamCreate(&ranks[i].stream) != cudaSuccess) return 1;
    for (int k = 0; k < BUFFERS; k++) {
      if (cudaMalloc((void **)&ranks[i].in[k], 2 * COUNT_MOST * sizeof(float)) != cudaSuccess) return 1;
      if (cudaMalloc((void **)&ranks[i].out[k], 2 * COUNT_MOST * sizeof(float)) != cudaSuccess) return 1;
    }
  }
  return 0;
}

static int end(void **state) {
  (void)state;
  for (int i = 0; i < RANKS; i++) {
    if (ranks[i].comm != NULL) ncclCommDestroy(ranks[i].comm);
    cudaStreamDestroy(ranks[i].stream);
    for (int k = 0; k < BUFFERS; k++) {
      cudaFree(ranks[i].in[k]);
      cudaFree(ranks[i].out[k]);
    }
  }
  return 0;
}

/* ---- results ---- */

static float value(int rank, int turn, size_t index) {
  return (float)((rank + 1) * 100 + turn % 50) + (float)(index % 7);
}

static void call(struct rank *self, int func, int buffer, size_t count) {
  const float *in = self->in[buffer];
  float *out = self->out[buffer];
  ncclComm_t comm = self->comm;
  cudaStream_t stream = self->stream;
  switch (func) {
    case 0: EXPECT(ncclAllReduce(in, out, count, ncclFloat, ncclSum, comm, stream) == ncclSuccess); break;
    case 1: EXPECT(ncclAllGather(in, out, count, ncclFloat, comm, stream) == ncclSuccess); break;
    case 2: EXPECT(ncclReduceScatter(in, out, count, ncclFloat, ncclSum, comm, stream) == ncclSuccess); break;
    case 3: EXPECT(ncclBroadcast(in, out, count, ncclFloat, 1, comm, stream) == ncclSuccess); break;
    case 4: EXPECT(ncclAlltoAll(in, out, count, ncclFloat, comm, stream) == ncclSuccess); break;
    default: EXPECT(ncclReduce(in, out, count, ncclFloat, ncclMax, 0, comm, stream) == ncclSuccess); break;
  }
}

static void check(struct rank *self, int func, int buffer, size_t count, int turn) {
  const float *out = self->out[buffer];
  const int rank = self->rank;
  const size_t first = (size_t)rank * count; /* of the rank's own block */
  uint32_t wrong = 0;
  if (func == 5 && rank != 0) return;
  for (size_t i = 0; i < count; i++) {
    switch (func) {
      case 0: wrong += out[i] != value(0, turn, i) + value(1, turn, i); break;
      case 1: wrong += out[i] != value(0, turn, i) || out[count + i] != value(1, turn, i); break;
      case 2: wrong += out[i] != value(0, turn, first + i) + value(1, turn, first + i); break;
      case 3: wrong += out[i] != value(1, turn, i); break;
      case 4:
        wrong += out[i] != value(0, turn, first + i) || out[count + i] != value(1, turn, first + i);
        break;
      default: wrong += out[i] != value(1, turn, i); break;
    }
  }
  if (wrong > 0)
    print_error("rank %d: function %d, %zu elements, turn %d: %u wrong\n", rank, func, count, turn, wrong);
  self->wrong += wrong;
}

/* The same calls again and again, with other data each time; sizes of every protocol and of direct stores. */
static void results_body(struct rank *self) {
  static const size_t counts[] = {2, 31, 500, COUNT_MOST};
  for (int turn = 0; turn < 60; turn++)
    for (int func = 0; func < 6; func++)
      for (size_t c = 0; c < 4; c++) {
        const int buffer = (int)((size_t)(func * 4 + turn / 20) + c) % BUFFERS;
        for (size_t i = 0; i < 2 * counts[c]; i++) self->in[buffer][i] = value(self->rank, turn, i);
        call(self, func, buffer, counts[c]);
        sync(self);
        check(self, func, buffer, counts[c], turn);
      }
}

static void test_results(void **state) {
  (void)state;
  on_both(results_body);
}

/* Many calls before one wait: each begins at the next call at the latest. */
static void many_body(struct rank *self) {
  float *sum = self->out[0];
  *sum = 1;
  for (int i = 0; i < 20; i++)
    EXPECT(ncclAllReduce(sum, sum, 1, ncclFloat, ncclSum, self->comm, self->stream) == ncclSuccess);
  sync(self);
  EXPECT(*sum == 1048576);
}

/* One input, and more outputs than the cache holds. */
static void outputs_body(struct rank *self) {
  *self->in[0] = 3;
  for (int turn = 0; turn < 5; turn++) {
    for (int k = 0; k < BUFFERS; k++) *self->out[k] = 0;
    for (int k = 0; k < BUFFERS; k++)
      EXPECT(ncclAllReduce(self->in[0], self->out[k], 1, ncclFloat, ncclSum, self->comm, self->stream) ==
             ncclSuccess);
    sync(self);
    for (int k = 0; k < BUFFERS; k++) EXPECT(*self->out[k] == 6);
    meet();
  }
}

static void test_outputs(void **state) {
  (void)state;
  on_both(outputs_body);
}

/* As many calls as the cache holds: soon none of them replaces another one, wherever its memory is. */
static void loop_body(struct rank *self) {
  uint64_t hashes[CALL_CACHE_CALLS];
  struct call_cache *cache = &self->comm->call_cache;
  for (int distance = 1; distance < 200; distance++) {
    for (int turn = 0; turn < 4; turn++) {
      for (int k = 0; k < CALL_CACHE_CALLS; k++)
        EXPECT(ncclAllReduce(self->in[0], self->out[0] + k * distance, 1, ncclFloat, ncclSum, self->comm,
                             self->stream) == ncclSuccess);
      if (turn == 2) memcpy(hashes, cache->hashes, sizeof hashes);
    }
    sync(self);
    EXPECT(memcmp(hashes, cache->hashes, sizeof hashes) == 0);
    for (int i = 0; i < CALL_CACHE_CALLS; i++)
      for (int k = 0; k < i; k++) EXPECT(hashes[i] != hashes[k]);
    meet();
  }
}

static void test_loop(void **state) {
  (void)state;
  on_both(loop_body);
}

static void test_many(void **state) {
  (void)state;
  for (int i = 0; i < 50; i++) on_both(many_body);
}

/* With other work on the stream in between: the order is kept. */
static void order_body(struct rank *self) {
  float *sum = self->out[0], *seen = self->out[1];
  for (int i = 0; i < 20; i++) /* the stream then has free operations */
    EXPECT(cudaMemcpyAsync(sum, self->in[0], sizeof *sum, cudaMemcpyDefault, self->stream) == cudaSuccess);
  sync(self);
  for (int i = 0; i < 50; i++) {
    EXPECT(cudaMemcpyAsync(sum, self->in[i % 2], sizeof *sum, cudaMemcpyDefault, self->stream) ==
           cudaSuccess);
    EXPECT(ncclAllReduce(sum, sum, 1, ncclFloat, ncclSum, self->comm, self->stream) == ncclSuccess);
    EXPECT(cudaMemcpyAsync(seen + i, sum, sizeof *sum, cudaMemcpyDefault, self->stream) == cudaSuccess);
  }
  sync(self);
  for (int i = 0; i < 50; i++) EXPECT(seen[i] == 2 * (float)(10 + i % 2));
}

static void test_order(void **state) {
  (void)state;
  for (int i = 0; i < RANKS; i++) ranks[i].in[0][0] = 10, ranks[i].in[1][0] = 11;
  on_both(order_body);
}

/* One thread launches for both ranks: a call that waits for the other rank must not block the thread. */
static void test_one_thread(void **state) {
  (void)state;
  for (int i = 0; i < RANKS; i++) *ranks[i].out[0] = 1;
  for (int turn = 0; turn < 15; turn++)
    for (int i = 0; i < RANKS; i++) {
      float *sum = ranks[i].out[0];
      cudaSetDevice(i);
      assert_int_equal(ncclAllReduce(sum, sum, 1, ncclFloat, ncclSum, ranks[i].comm, ranks[i].stream), 0);
    }
  for (int i = 0; i < RANKS; i++) {
    assert_int_equal(cudaStreamSynchronize(ranks[i].stream), cudaSuccess);
    assert_true(*ranks[i].out[0] == 32768);
  }
}

/* An operator whose factor is in memory reads it at each call. */
static void factor_body(struct rank *self) {
  float *sum = self->out[0], *in = self->in[0];
  for (int i = 1; i < 6; i++) {
    float factor = (float)i;
    ncclRedOp_t op;
    *in = 1;
    EXPECT(ncclRedOpCreatePreMulSum(&op, &factor, ncclFloat, ncclScalarHostImmediate, self->comm) ==
           ncclSuccess);
    EXPECT(ncclAllReduce(in, sum, 1, ncclFloat, op, self->comm, self->stream) == ncclSuccess);
    sync(self);
    EXPECT(*sum == 2 * factor);
    EXPECT(ncclRedOpDestroy(op, self->comm) == ncclSuccess);
  }
}

static void test_factor(void **state) {
  (void)state;
  on_both(factor_body);
}

/* ---- calls that must take the full path ---- */

/* A captured call does nothing until its graph is launched, and runs at each launch. */
static void capture_body(struct rank *self) {
  float *sum = self->out[0], *other = self->out[1];
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  *sum = *other = 1;
  for (int i = 0; i < 3; i++)
    EXPECT(ncclAllReduce(sum, sum, 1, ncclFloat, ncclSum, self->comm, self->stream) == ncclSuccess);
  sync(self);
  EXPECT(cudaStreamBeginCapture(self->stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  EXPECT(ncclAllReduce(sum, sum, 1, ncclFloat, ncclSum, self->comm, self->stream) == ncclSuccess);
  EXPECT(cudaStreamEndCapture(self->stream, &graph) == cudaSuccess);
  EXPECT(*sum == 8);
  for (int i = 0; i < 2; i++) /* the same plan with other memory, which does not affect the graph */
    EXPECT(ncclAllReduce(other, other, 1, ncclFloat, ncclSum, self->comm, self->stream) == ncclSuccess);
  EXPECT(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess);
  for (int i = 0; i < 2; i++) EXPECT(cudaGraphLaunch(exec, self->stream) == cudaSuccess);
  sync(self);
  EXPECT(*sum == 32 && *other == 4);
  EXPECT(cudaGraphExecDestroy(exec) == cudaSuccess);
  EXPECT(cudaGraphDestroy(graph) == cudaSuccess);
}

static void test_capture(void **state) {
  (void)state;
  on_both(capture_body);
}

/* A destroyed stream is refused, whatever was launched on it before. */
static void stream_body(struct rank *self) {
  float *sum = self->out[0];
  cudaStream_t stream;
  EXPECT(cudaStreamCreate(&stream) == cudaSuccess);
  for (int i = 0; i < 3; i++)
    EXPECT(ncclAllReduce(sum, sum, 1, ncclFloat, ncclSum, self->comm, stream) == ncclSuccess);
  EXPECT(cudaStreamSynchronize(stream) == cudaSuccess);
  EXPECT(cudaStreamDestroy(stream) == cudaSuccess);
  meet();
  EXPECT(ncclAllReduce(sum, sum, 1, ncclFloat, ncclSum, self->comm, stream) != ncclSuccess);
}

static void test_stream(void **state) {
  (void)state;
  on_both(stream_body);
}

/* Inside a group a call waits for the group's end, and counts as one of the group. */
static void group_body(struct rank *self) {
  float *one = self->out[0], *two = self->out[1];
  *one = *two = 1;
  for (int i = 0; i < 3; i++)
    EXPECT(ncclAllReduce(one, one, 1, ncclFloat, ncclSum, self->comm, self->stream) == ncclSuccess);
  sync(self);
  const uint64_t before = self->comm->sequence;
  EXPECT(ncclGroupStart() == ncclSuccess);
  EXPECT(ncclAllReduce(one, one, 1, ncclFloat, ncclSum, self->comm, self->stream) == ncclSuccess);
  EXPECT(ncclAllReduce(two, two, 1, ncclFloat, ncclSum, self->comm, self->stream) == ncclSuccess);
  EXPECT(*one == 8);
  EXPECT(ncclGroupEnd() == ncclSuccess);
  EXPECT(ncclAllReduce(two, two, 0, ncclFloat, ncclSum, self->comm, self->stream) == ncclSuccess);
  EXPECT(ncclAllReduce(one, one, 1, ncclFloat, ncclSum, self->comm, self->stream) == ncclSuccess);
  EXPECT(self->comm->sequence == before + 3);
  sync(self);
  EXPECT(*one == 32 && *two == 2);
  EXPECT(ncclGroupStart() == ncclSuccess);
  EXPECT(ncclAllReduce(two, two, 1, ncclFloat, ncclSum, self->comm, self->stream) == ncclSuccess);
  EXPECT(ncclGroupEnd() == ncclSuccess);
  for (int i = 0; i < 3; i++) /* calls without any effect */
    EXPECT(ncclAllReduce(one, one, 0, ncclFloat, ncclSum, self->comm, self->stream) == ncclSuccess);
  sync(self);
  EXPECT(*one == 32 && *two == 4 && self->comm->sequence == before + 4);
}

static void test_group(void **state) {
  (void)state;
  on_both(group_body);
}

/* ---- groups ---- */

/* Calls that go to the backend on the full path. */
static const struct backend *backend;
static uint32_t long_launches[RANKS];

static ncclResult_t counted_launch(struct device_comm *comm, const struct plan *plan,
                                   const device_stream *streams, uint32_t stream_count) {
  for (int i = 0; i < RANKS; i++)
    if (ranks[i].comm->device_comm == comm) long_launches[i] += 1;
  return backend->device->launch(comm, plan, streams, stream_count);
}

/* The backend with its launches counted. */
struct counting {
  struct backend backend;
  struct device_ops device;
};

static void count_launches(struct counting *counting) {
  backend = ranks[0].comm->ops;
  counting->backend = *backend;
  counting->device = *backend->device;
  counting->device.launch = counted_launch;
  counting->backend.device = &counting->device;
  for (int i = 0; i < RANKS; i++) ranks[i].comm->ops = &counting->backend, long_launches[i] = 0;
}

static void exchange(struct rank *self, const float *in, float *out, size_t count) {
  EXPECT(ncclGroupStart() == ncclSuccess);
  EXPECT(ncclSend(in, count, ncclFloat, !self->rank, self->comm, self->stream) == ncclSuccess);
  EXPECT(ncclRecv(out, count, ncclFloat, !self->rank, self->comm, self->stream) == ncclSuccess);
  EXPECT(ncclGroupEnd() == ncclSuccess);
}

/* To each rank, itself included, and from each. */
static void exchange_all(struct rank *self, const float *in, float *out, size_t count) {
  EXPECT(ncclGroupStart() == ncclSuccess);
  for (int peer = 0; peer < RANKS; peer++) {
    const size_t block = (size_t)peer * count;
    EXPECT(ncclSend(in + block, count, ncclFloat, peer, self->comm, self->stream) == ncclSuccess);
    EXPECT(ncclRecv(out + block, count, ncclFloat, peer, self->comm, self->stream) == ncclSuccess);
  }
  EXPECT(ncclGroupEnd() == ncclSuccess);
}

/* Other data each time; sizes of every protocol. */
static void groups_body(struct rank *self) {
  static const size_t counts[] = {2, 31, 500, COUNT_MOST};
  float *in = self->in[0], *out = self->out[0];
  const int peer = !self->rank;
  for (size_t c = 0; c < 4; c++) {
    const size_t count = counts[c];
    const uint64_t before = self->comm->sequence;
    for (int turn = 0; turn < 20; turn++) {
      uint32_t wrong = 0;
      for (size_t i = 0; i < 2 * count; i++) in[i] = value(self->rank, turn, i), out[i] = 0;
      exchange(self, in, out, count);
      sync(self);
      for (size_t i = 0; i < count; i++) wrong += out[i] != value(peer, turn, i);
      exchange_all(self, in, out, count);
      sync(self);
      check(self, 4, 0, count, turn);
      EXPECT(wrong == 0);
    }
    EXPECT(self->comm->sequence == before + 20 * 6);
  }
}

static void test_groups(void **state) {
  struct counting counting;
  (void)state;
  count_launches(&counting);
  on_both(groups_body);
  for (int i = 0; i < RANKS; i++) {
    assert_int_equal(long_launches[i], 8); /* the first of each kind */
    ranks[i].comm->ops = backend;
  }
}

/* The same first calls, followed by other calls, more calls, or a refused call; or preceded by other calls.
 */
static void paths_body(struct rank *self) {
  float *in = self->in[0], *out = self->out[0], *other = self->out[1];
  const int peer = !self->rank;
  ncclComm_t comm = self->comm;
  cudaStream_t stream = self->stream;
  for (int turn = 0; turn < 14; turn++) {
    const int kind = turn % 7;
    const uint64_t before = comm->sequence;
    for (int i = 0; i < 4; i++) in[i] = value(self->rank, turn, (size_t)i), out[i] = other[i] = 0;
    meet();
    EXPECT(ncclGroupStart() == ncclSuccess);
    if (kind == 6) EXPECT(ncclAllReduce(in + 1, other, 1, ncclFloat, ncclSum, comm, stream) == ncclSuccess);
    EXPECT(ncclSend(in, 1, ncclFloat, peer, comm, stream) == ncclSuccess);
    if (kind == 4) EXPECT(ncclRecv(out, 1, ncclFloat, 7, comm, stream) == ncclInvalidArgument);
    EXPECT(ncclRecv(kind == 1 ? other : out, 1, ncclFloat, peer, comm, stream) == ncclSuccess);
    for (int i = 1; kind == 2 && i < 3; i++) {
      EXPECT(ncclSend(in + i, 1, ncclFloat, peer, comm, stream) == ncclSuccess);
      EXPECT(ncclRecv(out + i, 1, ncclFloat, peer, comm, stream) == ncclSuccess);
    }
    if (kind == 3) EXPECT(ncclAllReduce(in + 1, other, 1, ncclFloat, ncclSum, comm, stream) == ncclSuccess);
    if (kind == 5) EXPECT(ncclSend(in, 0, ncclFloat, peer, comm, stream) == ncclSuccess);
    if (kind == 5) EXPECT(ncclRecv(in, 0, ncclFloat, peer, comm, stream) == ncclSuccess);
    EXPECT(ncclGroupEnd() == (kind == 4 ? ncclInvalidArgument : ncclSuccess));
    sync(self);
    const float first = kind == 4 ? 0 : value(peer, turn, 0);
    const float sum = value(0, turn, 1) + value(1, turn, 1);
    EXPECT(out[0] == (kind == 1 ? 0 : first));
    EXPECT(other[0] == (kind == 1 ? first : kind == 3 || kind == 6 ? sum : 0));
    EXPECT(out[2] == (kind == 2 ? value(peer, turn, 2) : 0));
    static const uint64_t calls[] = {2, 2, 6, 3, 0, 4, 3};
    EXPECT(comm->sequence == before + calls[kind]);
  }
}

static void test_paths(void **state) {
  (void)state;
  for (int i = 0; i < 3; i++) on_both(paths_body);
}

/* Nested groups are one; more calls, and more groups, than the cache holds, and fewer each time. */
static void long_body(struct rank *self) {
  for (int turn = 0; turn < 6; turn++)
    for (int k = BUFFERS - 1; k >= 0; k--) {
      *self->in[k] = value(self->rank, turn, (size_t)k);
      for (int i = 0; i < BUFFERS; i++) *self->out[i] = 0;
      EXPECT(ncclGroupStart() == ncclSuccess);
      for (int i = 0; i <= k; i++) exchange(self, self->in[i], self->out[i], 1);
      EXPECT(ncclGroupEnd() == ncclSuccess);
      sync(self);
      EXPECT(*self->out[k] == value(!self->rank, turn, (size_t)k));
      for (int i = k + 1; i < BUFFERS; i++) EXPECT(*self->out[i] == 0);
    }
}

static void test_long(void **state) {
  (void)state;
  on_both(long_body);
}

/* Captured, and on a destroyed stream. */
static void group_not_now_body(struct rank *self) {
  float *in = self->in[0], *out = self->out[0];
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  *in = 5;
  for (int i = 0; i < 3; i++) exchange(self, in, out, 1);
  sync(self);
  *out = 0;
  EXPECT(cudaStreamBeginCapture(self->stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  exchange(self, in, out, 1);
  EXPECT(cudaStreamEndCapture(self->stream, &graph) == cudaSuccess);
  EXPECT(*out == 0);
  EXPECT(cudaGraphInstantiate(&exec, graph, 0) == cudaSuccess);
  EXPECT(cudaGraphLaunch(exec, self->stream) == cudaSuccess);
  sync(self);
  EXPECT(*out == 5);
  EXPECT(cudaGraphExecDestroy(exec) == cudaSuccess && cudaGraphDestroy(graph) == cudaSuccess);
  cudaStream_t own = self->stream;
  EXPECT(cudaStreamCreate(&self->stream) == cudaSuccess);
  for (int i = 0; i < 3; i++) exchange(self, in, out, 1);
  sync(self);
  cudaStream_t gone = self->stream;
  self->stream = own;
  EXPECT(cudaStreamDestroy(gone) == cudaSuccess);
  meet();
  EXPECT(ncclGroupStart() == ncclSuccess);
  EXPECT(ncclSend(in, 1, ncclFloat, !self->rank, self->comm, gone) != ncclSuccess);
  EXPECT(ncclRecv(out, 1, ncclFloat, !self->rank, self->comm, gone) != ncclSuccess);
  EXPECT(ncclGroupEnd() != ncclSuccess);
}

static void test_group_not_now(void **state) {
  (void)state;
  on_both(group_not_now_body);
}

/* An open group as other threads see it: its communicator has operations, its time can be predicted, and
 * ending the communicator drops it. After that each call is refused. */
static void open_body(struct rank *self) {
  float *in = self->in[0], *out = self->out[0];
  const uint64_t before = self->comm->sequence;
  ncclSimInfo_t info = NCCL_SIM_INFO_INITIALIZER;
  *in = 3;
  for (int i = 0; i < 3; i++) exchange(self, in, out, 1);
  sync(self);
  EXPECT(ncclGroupStart() == ncclSuccess);
  EXPECT(ncclSend(in, 1, ncclFloat, !self->rank, self->comm, self->stream) == ncclSuccess);
  EXPECT(ncclRecv(out, 1, ncclFloat, !self->rank, self->comm, self->stream) == ncclSuccess);
  EXPECT(ncclCommFinalize(self->comm) == ncclInvalidUsage);
  EXPECT(strstr(ncclGetLastError(self->comm), "still open") != NULL);
  EXPECT(ncclGroupSimulateEnd(&info) == ncclSuccess && info.estimatedTime > 0);
  EXPECT(self->comm->sequence == before + 6);
  *out = 0;
  exchange(self, in, out, 1);
  sync(self);
  EXPECT(*out == 3);
  meet();
  EXPECT(ncclGroupStart() == ncclSuccess);
  EXPECT(ncclSend(in, 1, ncclFloat, !self->rank, self->comm, self->stream) == ncclSuccess);
  EXPECT(ncclCommRevoke(self->comm, NCCL_REVOKE_DEFAULT) == ncclSuccess);
  EXPECT(ncclRecv(out, 1, ncclFloat, !self->rank, self->comm, self->stream) == ncclInvalidUsage);
  EXPECT(ncclGroupEnd() == ncclInvalidUsage);
  EXPECT(self->comm->sequence == before + 8);
}

static void test_open(void **state) {
  (void)state;
  on_both(open_body);
}

/* Two communicators in one group: each runs its part. */
static void two_body(struct rank *self) {
  ncclComm_t first = self->comm, second;
  EXPECT(ncclCommSplit(first, 0, self->rank, &second, NULL) == ncclSuccess);
  for (int turn = 0; turn < 6; turn++) {
    *self->in[0] = value(self->rank, turn, 0), *self->in[1] = value(self->rank, turn, 1);
    if (turn % 2 == 1) EXPECT(ncclGroupStart() == ncclSuccess);
    exchange(self, self->in[0], self->out[0], 1);
    self->comm = second;
    exchange(self, self->in[1], self->out[1], 1);
    self->comm = first;
    if (turn % 2 == 1) EXPECT(ncclGroupEnd() == ncclSuccess);
    sync(self);
    for (size_t i = 0; i < 2; i++) EXPECT(*self->out[i] == value(!self->rank, turn, i));
  }
  EXPECT(first->sequence == 12 && second->sequence == 12);
  EXPECT(ncclCommDestroy(second) == ncclSuccess);
}

static void test_two(void **state) {
  (void)state;
  on_both(two_body);
}

/* ---- refused calls ---- */

static void mismatch_body(struct rank *self) {
  float *sum = self->out[0];
  ncclResult_t error = ncclSuccess;
  for (int i = 0; i < 3; i++) {
    EXPECT(ncclAllReduce(sum, sum, 4, ncclFloat, ncclSum, self->comm, self->stream) == ncclSuccess);
    EXPECT(ncclAllReduce(sum, sum, 8, ncclFloat, ncclSum, self->comm, self->stream) == ncclSuccess);
    sync(self);
  }
  for (int i = 0; i < 3; i++) exchange(self, self->in[0], self->out[1], 1);
  sync(self);
  const size_t count = self->rank == 0 ? 4 : 8;
  ncclAllReduce(sum, sum, count, ncclFloat, ncclSum, self->comm, self->stream);
  cudaStreamSynchronize(self->stream);
  ncclCommGetAsyncError(self->comm, &error);
  EXPECT(error != ncclSuccess);
  meet();
  EXPECT(ncclAllReduce(sum, sum, count, ncclFloat, ncclSum, self->comm, self->stream) == error);
  EXPECT(strstr(ncclGetLastError(self->comm), "failed earlier") != NULL);
  EXPECT(ncclGroupStart() == ncclSuccess);
  EXPECT(ncclSend(self->in[0], 1, ncclFloat, !self->rank, self->comm, self->stream) == error);
  EXPECT(ncclGroupEnd() == error);
  meet();
  EXPECT(ncclCommAbort(self->comm) == ncclSuccess);
  self->comm = NULL;
}

static void test_mismatch(void **state) {
  (void)state;
  on_both(mismatch_body);
}

static void revoke_body(struct rank *self) {
  float *sum = self->out[0];
  for (int i = 0; i < 3; i++)
    EXPECT(ncclAllReduce(sum, sum, 1, ncclFloat, ncclSum, self->comm, self->stream) == ncclSuccess);
  sync(self);
  EXPECT(ncclCommRevoke(self->comm, NCCL_REVOKE_DEFAULT) == ncclSuccess);
  meet();
  EXPECT(ncclAllReduce(sum, sum, 1, ncclFloat, ncclSum, self->comm, self->stream) == ncclInvalidUsage);
  EXPECT(strstr(ncclGetLastError(self->comm), "revoked") != NULL);
}

static void test_revoke(void **state) {
  (void)state;
  on_both(revoke_body);
}

/* NCCL_CHECK_POINTERS checks each call: the memory may have been freed. */
static void pointers_body(struct rank *self) {
  float *sum;
  EXPECT(cudaMalloc((void **)&sum, 64) == cudaSuccess);
  for (int i = 0; i < 3; i++)
    EXPECT(ncclAllReduce(sum, sum, 1, ncclFloat, ncclSum, self->comm, self->stream) == ncclSuccess);
  sync(self);
  EXPECT(cudaFree(sum) == cudaSuccess);
  meet();
  EXPECT(ncclAllReduce(sum, sum, 1, ncclFloat, ncclSum, self->comm, self->stream) == ncclInvalidArgument);
}

static int begin_checking(void **state) {
  setenv("NCCL_CHECK_POINTERS", "1", 1);
  param_reset();
  const int result = begin(state);
  setenv("NCCL_CHECK_POINTERS", "0", 1);
  param_reset();
  return result;
}

static void test_pointers(void **state) {
  (void)state;
  on_both(pointers_body);
}

int main(void) {
  setenv("NCCL_CHECK_POINTERS", "0", 1); /* calls that are checked are not cached */
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_results, begin, end),
      cmocka_unit_test_setup_teardown(test_many, begin, end),
      cmocka_unit_test_setup_teardown(test_outputs, begin, end),
      cmocka_unit_test_setup_teardown(test_loop, begin, end),
      cmocka_unit_test_setup_teardown(test_order, begin, end),
      cmocka_unit_test_setup_teardown(test_one_thread, begin, end),
      cmocka_unit_test_setup_teardown(test_factor, begin, end),
      cmocka_unit_test_setup_teardown(test_capture, begin, end),
      cmocka_unit_test_setup_teardown(test_stream, begin, end),
      cmocka_unit_test_setup_teardown(test_group, begin, end),
      cmocka_unit_test_setup_teardown(test_groups, begin, end),
      cmocka_unit_test_setup_teardown(test_paths, begin, end),
      cmocka_unit_test_setup_teardown(test_long, begin, end),
      cmocka_unit_test_setup_teardown(test_group_not_now, begin, end),
      cmocka_unit_test_setup_teardown(test_open, begin, end),
      cmocka_unit_test_setup_teardown(test_two, begin, end),
      cmocka_unit_test_setup_teardown(test_mismatch, begin, end),
      cmocka_unit_test_setup_teardown(test_revoke, begin, end),
      cmocka_unit_test_setup_teardown(test_pointers, begin_checking, end),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
