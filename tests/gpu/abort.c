/* abort.c: rank 0 calls a collective that rank 1 does not call, so its kernel spins, and a thread waits for
 * it. Another thread aborts: the waiting thread continues, and the process goes on with new communicators.
 * The same with the kernel in a graph. */
#include <pthread.h>
#include <unistd.h>

#include "need.h"

struct caller {
  ncclComm_t comm;
  cudaStream_t stream;
  float *data;
  int in_graph;
  int called; /* the kernel has been launched; atomic */
};

enum { COUNT = 1 << 20 };

static void call_alone(struct caller *me) {
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  if (me->in_graph) NEED(cudaStreamBeginCapture(me->stream, cudaStreamCaptureModeThreadLocal));
  NEED(ncclAllReduce(me->data, me->data, COUNT, ncclFloat, ncclSum, me->comm, me->stream));
  if (!me->in_graph) return;
  NEED(cudaStreamEndCapture(me->stream, &graph));
  NEED(cudaGraphInstantiate(&exec, graph, 0));
  NEED(cudaGraphDestroy(graph));
  NEED(cudaGraphLaunch(exec, me->stream));
  NEED(cudaGraphExecDestroy(exec)); /* destroyed when its launch has ended */
}

/* The result of the wait depends on the backend: on a GPU an aborted kernel ends like any other. */
static void *caller_run(void *argument) {
  struct caller *me = (struct caller *)argument;
  need_device(0);
  call_alone(me);
  __atomic_store_n(&me->called, 1, __ATOMIC_RELEASE);
  cudaStreamSynchronize(me->stream);
  cudaGetLastError();
  return NULL;
}

static void abort_once(int rank_count, int in_graph) {
  struct caller caller = {NULL, NULL, NULL, in_graph, 0};
  ncclComm_t comms[RANKS_MAX];
  pthread_t thread;
  need_comms(comms, rank_count);
  need_device(0);
  NEED(cudaStreamCreateWithFlags(&caller.stream, cudaStreamNonBlocking));
  NEED(cudaMalloc((void **)&caller.data, COUNT * sizeof(float)));
  caller.comm = comms[0];
  NEED(pthread_create(&thread, NULL, caller_run, &caller));
  while (!__atomic_load_n(&caller.called, __ATOMIC_ACQUIRE)) usleep(1000);
  usleep(200000); /* so that the kernel usually spins; the test is also valid without */
  for (int rank = 0; rank < rank_count; rank++) NEED(ncclCommAbort(comms[rank]));
  NEED(pthread_join(thread, NULL));
  NEED(cudaFree(caller.data));
  NEED(cudaStreamDestroy(caller.stream));
}

int main(void) {
  const int rank_count = need_ranks();
  if (rank_count < 2) {
    puts("abort: needs two devices");
    return 0;
  }
  for (int in_graph = 0; in_graph < 2; in_graph++) {
    abort_once(rank_count, in_graph);
    need_fresh_start(rank_count);
  }
  printf("abort: a spinning kernel of %d ranks was freed, by itself and in a graph: ok\n", rank_count);
  return 0;
}
