/* message_race.c: the order of calls depends on what happens to end first, or on which thread is faster: on
 * cudaEventQuery(), cudaStreamQuery(), ncclCommGetAsyncError(), callbacks, tickets. Some orders work. */
#define CLASS "message race"
#include <pthread.h>
#include <stdatomic.h>

#include "bugs.h"

#define RACES(...) .seeds = true, .says = {__VA_ARGS__}

enum { WORK = 64 * 1024 }; /* elements of a copy that takes some time */

/* Two computations on streams of their own, and an event behind each. */
struct pair {
  cudaStream_t streams[2];
  cudaEvent_t done[2];
};

static struct pair compute_two(struct job *job) {
  struct pair pair;
  float *memory = new_floats(job, 4 * WORK);
  for (int i = 0; i < 2; i++) {
    pair.streams[i] = new_stream(job);
    pair.done[i] = new_event(job);
    for (int k = 0; k < 3; k++)
      CUDA(cudaMemcpyAsync(memory + i * WORK, memory + (2 + i) * WORK, WORK * sizeof(float),
                           cudaMemcpyDeviceToDevice, pair.streams[i]));
    CUDA(cudaEventRecord(pair.done[i], pair.streams[i]));
  }
  return pair;
}

/* Which of two events is first: wait-any. */
static int first_done(const struct pair *pair) {
  for (;;)
    for (int i = 0; i < 2; i++) {
      const cudaError_t error = cudaEventQuery(pair->done[i]);
      if (error == cudaSuccess) return i;
      if (error != cudaErrorNotReady) CUDA(error);
    }
}

/* ---- the order in which computations end ---- */

CASE(buckets_reduced_as_they_become_ready, 2, RACES("different counts", "rank [01] ")) {
  struct pair ready = compute_two(job);
  const int first = bug ? first_done(&ready) : 0;
  for (int i = 0; i < 2; i++) {
    const int bucket = i == 0 ? first : 1 - first;
    CUDA(cudaStreamWaitEvent(stream, ready.done[bucket], 0));
    sum(in + bucket * 2 * N, out + bucket * 2 * N, (size_t)(N + bucket), comm, stream);
  }
}

CASE(messages_sent_as_they_become_ready, 2, RACES("different counts", "rank [01] ")) {
  if (rank == 0) {
    struct pair ready = compute_two(job);
    const int first = bug ? first_done(&ready) : 0;
    for (int i = 0; i < 2; i++) {
      const int part = i == 0 ? first : 1 - first;
      NCCL(ncclSend(in + part * 2 * N, (size_t)(N + part), ncclFloat, 1, comm, stream));
    }
  } else {
    for (int part = 0; part < 2; part++)
      NCCL(ncclRecv(out + part * 2 * N, (size_t)(N + part), ncclFloat, 0, comm, stream));
  }
}

CASE(requests_received_by_load, 3, RACES("different counts|rank [0-2]")) {
  /* A server takes the request of whoever is believed to be first; both clients then wait for one answer. */
  if (rank != 0) {
    NCCL(ncclSend(in, (size_t)(N + rank), ncclFloat, 0, comm, stream));
    return;
  }
  struct pair ready = compute_two(job);
  const int first = bug ? 1 + first_done(&ready) : 1;
  NCCL(ncclRecv(out, N + 1, ncclFloat, first, comm, stream)); /* it was sized for client 1 */
  NCCL(ncclRecv(out + 2 * N, N + 2, ncclFloat, 3 - first, comm, stream));
}

CASE(root_is_who_is_ready, 2, RACES("different roots", "rank [01] ")) {
  struct pair ready = compute_two(job);
  const int root = bug ? first_done(&ready) : 1;
  NCCL(ncclBroadcast(in, out, N, ncclFloat, root, comm, stream));
}

CASE(algorithm_by_stream_query, 2, RACES("different functions", "rank [01] ")) {
  struct pair ready = compute_two(job);
  const bool busy = bug && first_done(&ready) == 1 && rank == 0;
  if (busy) NCCL(ncclAllGather(in, out, N, ncclFloat, comm, stream));
  else sum(in, out, N, comm, stream);
}

CASE(steps_until_upload_ends, 2, RACES("rank [01] ")) {
  /* Each rank reduces until its own upload has ended. */
  struct pair upload = compute_two(job);
  int steps = 2;
  if (bug) steps = 1 + first_done(&upload);
  for (int step = 0; step < steps; step++) sum(in, out, N, comm, stream);
}

CASE(batch_size_by_progress, 2, RACES("different counts", "rank [01] ")) {
  struct pair ready = compute_two(job);
  const size_t waiting = bug ? (size_t)(1 + first_done(&ready)) : 2; /* the requests that have arrived */
  NCCL(ncclAllGather(in, out, waiting * 64, ncclFloat, comm, stream));
}

CASE(communicators_in_order_of_readiness, 2, RACES("rank [01] ", "deadlock|different|not called")) {
  ncclComm_t comms[2] = {comm, new_copy(job, comm)};
  struct pair ready = compute_two(job);
  const int first = bug ? first_done(&ready) : 0;
  for (int i = 0; i < 2; i++) {
    const int which = i == 0 ? first : 1 - first;
    sum(in + which * N, out + which * N, N, comms[which], stream);
    CUDA(cudaStreamSynchronize(stream));
  }
}

CASE(graphs_in_order_of_readiness, 2, RACES("rank [01]", "graph|different|do not agree|deadlock")) {
  cudaGraphExec_t execs[2];
  for (int i = 0; i < 2; i++) {
    cudaGraph_t graph;
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    sum(in, out, (size_t)(N + i * N), comm, stream);
    CUDA(cudaStreamEndCapture(stream, &graph));
    CUDA(cudaGraphInstantiate(&execs[i], graph, 0));
    CUDA(cudaGraphDestroy(graph));
  }
  struct pair ready = compute_two(job);
  const int first = bug ? first_done(&ready) : 0;
  CUDA(cudaGraphLaunch(execs[first], stream));
  CUDA(cudaGraphLaunch(execs[1 - first], stream));
  CUDA(cudaStreamSynchronize(stream));
  for (int i = 0; i < 2; i++) CUDA(cudaGraphExecDestroy(execs[i]));
}

CASE(skips_the_wait_if_it_seems_done, 2, RACES("race", "ncclAllReduce")) {
  /* The check looks at the first computation, the result depends on the second. */
  struct pair ready = compute_two(job);
  const int first = bug ? first_done(&ready) : 1;
  sum(in, out, N, comm, stream);
  cudaStream_t consumer = new_stream(job);
  if (first == 1) order(job, stream, consumer);
  CUDA(cudaMemcpyAsync(in + N, out, N * sizeof(float), cudaMemcpyDeviceToDevice, consumer));
}

CASE(order_by_callbacks, 2, RACES("different counts", "rank [01] ")) {
  static atomic_int places[2];
  struct pair ready = compute_two(job);
  int first = 0;
  if (bug) {
    for (int i = 0; i < 2; i++) CUDA(cudaStreamSynchronize(ready.streams[i]));
    first = atomic_fetch_add(&places[0], 1) % 2; /* whoever comes first takes the first bucket */
  }
  for (int i = 0; i < 2; i++) {
    const int bucket = i == 0 ? first : 1 - first;
    sum(in + bucket * 2 * N, out + bucket * 2 * N, (size_t)(N + bucket), comm, stream);
  }
}

/* ---- threads ---- */

struct sender {
  struct job *job;
  ncclComm_t comm;
  cudaStream_t stream;
  int part;
};

static void *send_part(void *argument) {
  const struct sender *self = (const struct sender *)argument;
  CUDA(cudaSetDevice(self->job->rank));
  NCCL(ncclSend(self->job->ins[0] + self->part * 2 * N, (size_t)(N + self->part), ncclFloat, 1, self->comm,
                self->stream));
  return NULL;
}

CASE(two_threads_send_to_one_peer, 2, RACES("different counts", "rank [01] ")) {
  if (rank == 1) {
    for (int part = 0; part < 2; part++)
      NCCL(ncclRecv(out + part * 2 * N, (size_t)(N + part), ncclFloat, 0, comm, stream));
    return;
  }
  struct pair ready = compute_two(job);
  pthread_t threads[2];
  const int first = bug ? first_done(&ready) : 0; /* the thread of the first result starts first */
  for (int i = 0; i < 2; i++) {
    const int part = i == 0 ? first : 1 - first;
    struct sender sender = {.job = job, .comm = comm, .stream = stream, .part = part};
    if (pthread_create(&threads[i], NULL, send_part, &sender) != 0) exit(3);
    pthread_join(threads[i], NULL);
  }
}

CASE(work_taken_by_ticket, 2, RACES("different counts", "rank [01] ")) {
  static atomic_int tickets; /* shared by both ranks' threads: which rank gets which part is not determined */
  const int part = bug ? atomic_fetch_add(&tickets, 1) % 2 : 0;
  sum(in, out, (size_t)(N + part), comm, stream);
}
