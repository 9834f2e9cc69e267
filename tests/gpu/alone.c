/* alone.c: a communicator of one rank: every collective is a copy, in place nothing, and only an operator
 * that scales its input needs a kernel. One call, groups, streams that join, and graphs, which are replayed.
 */
#include "need.h"

enum { COUNT = 70001, STREAMS = 2 };

static ncclComm_t comm;
static cudaStream_t streams[STREAMS];
static float *in, *out;

static void set(float base) {
  static float host[COUNT];
  for (int i = 0; i < COUNT; i++) host[i] = base + (float)(i % 100);
  NEED(cudaMemcpy(in, host, sizeof host, cudaMemcpyHostToDevice));
  NEED(cudaMemset(out, 0xff, sizeof host));
  NEED(cudaDeviceSynchronize());
}

static void check(const char *what, const float *memory, float base, float factor) {
  static float host[COUNT];
  for (int i = 0; i < STREAMS; i++) NEED(cudaStreamSynchronize(streams[i]));
  NEED(cudaMemcpy(host, memory, sizeof host, cudaMemcpyDeviceToHost));
  for (int i = 0; i < COUNT; i++) {
    const float right = factor * (base + (float)(i % 100));
    if (host[i] == right) continue;
    fprintf(stderr, "alone: %s: element %d is %g instead of %g\n", what, i, (double)host[i], (double)right);
    exit(1);
  }
}

static void call(int which, void *to, cudaStream_t stream) {
  switch (which) {
    case 0: NEED(ncclAllReduce(in, to, COUNT, ncclFloat, ncclSum, comm, stream)); break;
    case 1: NEED(ncclAllReduce(in, to, COUNT, ncclFloat, ncclAvg, comm, stream)); break;
    case 2: NEED(ncclReduce(in, to, COUNT, ncclFloat, ncclMax, 0, comm, stream)); break;
    case 3: NEED(ncclBroadcast(in, to, COUNT, ncclFloat, 0, comm, stream)); break;
    case 4: NEED(ncclAllGather(in, to, COUNT, ncclFloat, comm, stream)); break;
    case 5: NEED(ncclReduceScatter(in, to, COUNT, ncclFloat, ncclMin, comm, stream)); break;
    default:
      NEED(ncclGroupStart());
      NEED(ncclSend(in, COUNT, ncclFloat, 0, comm, stream));
      NEED(ncclRecv(to, COUNT, ncclFloat, 0, comm, stream));
      NEED(ncclGroupEnd());
      break;
  }
}

static void calls(void) {
  for (int which = 0; which < 7; which++) {
    set((float)which);
    call(which, out, streams[which % STREAMS]);
    check("out of place", out, (float)which, 1);
    call(which, which == 6 ? out : (void *)in, streams[0]);
    check("in place", in, (float)which, 1);
  }
}

/* Two streams join for the group, whose calls have no order and therefore write apart. */
static void group(void) {
  set(3);
  NEED(ncclGroupStart());
  call(3, out, streams[0]);
  NEED(ncclAllReduce(in, out + COUNT, COUNT, ncclFloat, ncclSum, comm, streams[1]));
  NEED(ncclGroupEnd());
  check("a group's first call", out, 3, 1);
  check("a group's second call", out + COUNT, 3, 1);
}

static void scaled(void) {
  float factor = 2;
  ncclRedOp_t op;
  NEED(ncclRedOpCreatePreMulSum(&op, &factor, ncclFloat, ncclScalarHostImmediate, comm));
  set(5);
  NEED(ncclAllReduce(in, out, COUNT, ncclFloat, op, comm, streams[0]));
  check("a scaled sum", out, 5, 2);
  NEED(ncclRedOpDestroy(op, comm));
}

static void graph(void) {
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  NEED(cudaStreamBeginCapture(streams[0], cudaStreamCaptureModeThreadLocal));
  call(0, out, streams[0]);
  NEED(cudaStreamEndCapture(streams[0], &graph));
  NEED(cudaGraphInstantiate(&exec, graph, 0));
  for (int round = 0; round < 3; round++) {
    set((float)round);
    NEED(cudaGraphLaunch(exec, streams[0]));
    check("a graph", out, (float)round, 1);
    set((float)(round + 10));
    call(0, out, streams[1]);
    check("a call between replays", out, (float)(round + 10), 1);
  }
  NEED(cudaGraphExecDestroy(exec));
  NEED(cudaGraphDestroy(graph));
}

int main(void) {
  NEED(cudaSetDevice(0));
  NEED(ncclCommInitAll(&comm, 1, NULL));
  for (int i = 0; i < STREAMS; i++) NEED(cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
  NEED(cudaMalloc((void **)&in, COUNT * sizeof *in));
  NEED(cudaMalloc((void **)&out, 2 * COUNT * sizeof *out));
  calls();
  group();
  scaled();
  graph();
  NEED(ncclCommDestroy(comm));
  NEED(cudaFree(in));
  NEED(cudaFree(out));
  for (int i = 0; i < STREAMS; i++) NEED(cudaStreamDestroy(streams[i]));
  printf("alone: a communicator of one rank: ok\n");
  return 0;
}
