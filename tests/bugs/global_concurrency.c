/* global_concurrency.c: ranks access each other's memory, or run graphs and communicators side by side, and
 * what they take for a barrier is none. */
#define CLASS "global concurrency"
#include "bugs.h"

#define RACE(...) .says = {"race", "global_concurrency.c:[0-9]+ .*global_concurrency.c:[0-9]+", __VA_ARGS__}

static const size_t BYTES = N * sizeof(float);

/* The window of each rank, as one-sided libraries exchange it. */
static float *windows[RANKS];

static void barrier(float *one, ncclComm_t comm, cudaStream_t stream) { sum(one, one, 1, comm, stream); }

/* All ranks know all windows. */
static void exchange(float *window, int rank, float *one, ncclComm_t comm, cudaStream_t stream) {
  windows[rank] = window;
  barrier(one, comm, stream);
  CUDA(cudaStreamSynchronize(stream));
}

/* No rank leaves before all have done. */
static void leave(float *one, ncclComm_t comm, cudaStream_t stream) {
  barrier(one, comm, stream);
  CUDA(cudaStreamSynchronize(stream));
}

static void put(float *to, int peer, const float *from, int rank, cudaStream_t stream) {
  CUDA(cudaMemcpyPeerAsync(to, peer, from, rank, BYTES, stream));
}

static void fill(float *memory, cudaStream_t stream) { CUDA(cudaMemsetAsync(memory, 0, BYTES, stream)); }

/* ---- memory of other ranks ---- */

CASE(put_without_barrier, 2, RACE("cudaMemcpyPeerAsync")) {
  exchange(out, rank, in + N, comm, stream);
  if (rank == 0) put(windows[1], 1, in, rank, stream);
  if (!bug) barrier(in + N, comm, stream);
  if (rank == 1) CUDA(cudaMemcpyAsync(in, out, BYTES, cudaMemcpyDeviceToDevice, stream));
  leave(in + N, comm, stream);
}

CASE(get_before_owner_has_written, 2, RACE("cudaMemcpyPeerAsync", "cudaMemsetAsync")) {
  exchange(out, rank, in + N, comm, stream);
  if (rank == 1) fill(out, stream);
  if (!bug) barrier(in + N, comm, stream);
  if (rank == 0) CUDA(cudaMemcpyPeerAsync(in, 0, windows[1], 1, BYTES, stream));
  leave(in + N, comm, stream);
}

CASE(two_ranks_put_to_one_place, 3, RACE("cudaMemcpyPeerAsync")) {
  exchange(out, rank, in + N, comm, stream);
  if (rank > 0) put(windows[0] + (bug ? 0 : rank) * N, 0, in, rank, stream);
  leave(in + N, comm, stream);
}

CASE(broadcast_is_no_barrier, 3, RACE("cudaMemcpyPeerAsync|cudaMemsetAsync")) {
  exchange(out, rank, in + N, comm, stream);
  if (rank == 2) fill(out, stream);
  /* the root does not wait for the others */
  if (bug) NCCL(ncclBroadcast(in + 2 * N, in + 2 * N, 1, ncclFloat, 0, comm, stream));
  else barrier(in + N, comm, stream);
  if (rank == 0) put(windows[2], 2, in, rank, stream);
  leave(in + N, comm, stream);
}

CASE(reduce_is_no_barrier, 3, RACE("cudaMemcpyPeerAsync|cudaMemsetAsync")) {
  exchange(out, rank, in + N, comm, stream);
  if (rank == 2) fill(out, stream);
  /* only the root has heard from the others */
  if (bug) NCCL(ncclReduce(in + 2 * N, in + 2 * N, 1, ncclFloat, ncclSum, 0, comm, stream));
  else barrier(in + N, comm, stream);
  if (rank == 1) put(windows[2], 2, in, rank, stream);
  leave(in + N, comm, stream);
}

CASE(message_orders_one_direction, 2, RACE("cudaMemcpyPeerAsync|cudaMemsetAsync")) {
  exchange(out, rank, in + N, comm, stream);
  const int from = bug ? 0 : 1; /* the receiver comes after the sender, the sender not after the receiver */
  if (rank == 1) fill(out, stream);
  if (rank == from) NCCL(ncclSend(in + N, 1, ncclFloat, 1 - from, comm, stream));
  else NCCL(ncclRecv(in + N, 1, ncclFloat, from, comm, stream));
  if (rank == 0) put(windows[1], 1, in, rank, stream);
  leave(in + 2 * N, comm, stream);
}

CASE(barrier_of_the_wrong_group, 4, RACE("cudaMemcpyPeerAsync|cudaMemsetAsync")) {
  ncclComm_t pair = new_split(job, comm, rank / 2);
  exchange(out, rank, in + N, comm, stream);
  if (rank == 2) fill(out, stream);
  barrier(in + N, bug ? pair : comm, stream);
  if (rank == 0) put(windows[2], 2, in, rank, stream);
  leave(in + N, comm, stream);
}

CASE(barrier_on_another_stream, 2, RACE("cudaMemcpyPeerAsync|cudaMemsetAsync")) {
  cudaStream_t second = new_stream(job);
  exchange(out, rank, in + N, comm, stream);
  if (rank == 1) fill(out, stream);
  barrier(in + N, comm, bug ? second : stream);
  if (rank == 0) put(windows[1], 1, in, rank, bug ? second : stream);
  order(job, second, stream);
  leave(in + N, comm, stream);
}

CASE(owner_reuses_window_too_early, 2, RACE("cudaMemcpyPeerAsync", "cudaMemsetAsync")) {
  exchange(out, rank, in + N, comm, stream);
  if (rank == 0) CUDA(cudaMemcpyPeerAsync(in, 0, windows[1], 1, BYTES, stream));
  if (!bug) barrier(in + N, comm, stream);
  if (rank == 1) fill(out, stream); /* the next step's input */
  leave(in + N, comm, stream);
}

CASE(owner_frees_window_too_early, 2, .says = {"race|freed", "cudaMemcpyPeerAsync|cudaFree"}) {
  float *window;
  CUDA(cudaMalloc((void **)&window, BYTES));
  exchange(window, rank, in + N, comm, stream);
  if (rank == 0) {
    CUDA(cudaMemcpyPeerAsync(in, 0, windows[1], 1, BYTES, stream));
    if (bug) barrier(in + N, comm, stream);
  }
  if (rank == 1 && bug) {
    CUDA(cudaFree(window));
    barrier(in + N, comm, stream);
  }
  leave(in + N, comm, stream);
  if (rank == 0 || !bug) CUDA(cudaFree(window));
}

/* ---- graphs of several ranks ---- */

static cudaGraphExec_t end_capture(cudaStream_t stream) {
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  CUDA(cudaStreamEndCapture(stream, &graph));
  CUDA(cudaGraphInstantiate(&exec, graph, 0));
  CUDA(cudaGraphDestroy(graph));
  return exec;
}

static cudaGraphExec_t capture_sum(const float *in, float *out, size_t count, ncclComm_t comm,
                                   cudaStream_t stream) {
  CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  sum(in, out, count, comm, stream);
  return end_capture(stream);
}

CASE(capture_on_one_rank, 2, .says = {"rank [01]", "graph|captur|different"}, .processes = true) {
  /* One rank captures its step and launches it later; the other has run the call at once. */
  if (!bug || rank == 0) {
    cudaGraphExec_t exec = capture_sum(in, out, N, comm, stream);
    sum(in, out, 2 * N, comm, stream);
    CUDA(cudaGraphLaunch(exec, stream));
    CUDA(cudaStreamSynchronize(stream));
    CUDA(cudaGraphExecDestroy(exec));
    return;
  }
  sum(in, out, N, comm, stream);
  sum(in, out, 2 * N, comm, stream);
}

CASE(replays_in_another_order, 2, .says = {"rank [01]", "graph|different|do not agree"}, .processes = true) {
  cudaGraphExec_t small = capture_sum(in, out, 64, comm, stream);
  cudaGraphExec_t large = capture_sum(in, out, 2 * N, comm, stream);
  const bool swap = bug && rank == 1; /* batch sizes are chosen by each rank */
  CUDA(cudaGraphLaunch(swap ? large : small, stream));
  CUDA(cudaGraphLaunch(swap ? small : large, stream));
  CUDA(cudaStreamSynchronize(stream));
  CUDA(cudaGraphExecDestroy(small));
  CUDA(cudaGraphExecDestroy(large));
}

CASE(other_graph_on_one_rank, 2, .says = {"rank [01]", "graph|different|do not agree"}) {
  cudaGraphExec_t decode = capture_sum(in, out, 64, comm, stream);
  cudaGraphExec_t prefill = capture_sum(in, out, 2 * N, comm, stream);
  CUDA(cudaGraphLaunch(bug && rank == 0 ? prefill : decode, stream));
  CUDA(cudaStreamSynchronize(stream));
  CUDA(cudaGraphExecDestroy(decode));
  CUDA(cudaGraphExecDestroy(prefill));
}

CASE(one_replay_less, 3, .says = {"rank [0-2]"}) {
  cudaGraphExec_t exec = capture_sum(in, out, N, comm, stream);
  for (int step = 0; step < (bug && rank == 2 ? 1 : 2); step++) CUDA(cudaGraphLaunch(exec, stream));
  CUDA(cudaStreamSynchronize(stream));
  CUDA(cudaGraphExecDestroy(exec));
}

CASE(captured_in_another_order, 2, .says = {"different", "rank 1 "}) {
  const bool swap = bug && rank == 1;
  CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  sum(in, out, swap ? 2 * N : N, comm, stream);
  sum(in, out, swap ? N : 2 * N, comm, stream);
  cudaGraphExec_t exec = end_capture(stream);
  CUDA(cudaGraphLaunch(exec, stream));
  CUDA(cudaStreamSynchronize(stream));
  CUDA(cudaGraphExecDestroy(exec));
}

CASE(branches_of_a_graph_in_another_order, 2, .says = {"different|deadlock", "rank [01]"}) {
  ncclComm_t other = new_copy(job, comm);
  ncclComm_t first = bug && rank == 1 ? other : comm, second = first == comm ? other : comm;
  CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  sum(in, out, N, first, stream); /* a chain in the graph: each waits for the other rank's second call */
  sum(in + N, out + N, N, second, stream);
  cudaGraphExec_t exec = end_capture(stream);
  CUDA(cudaGraphLaunch(exec, stream));
  CUDA(cudaStreamSynchronize(stream));
  CUDA(cudaGraphExecDestroy(exec));
}

CASE(graph_of_a_rank_that_was_not_launched, 2, .says = {"rank [01]"}, .processes = true) {
  cudaGraphExec_t exec = capture_sum(in, out, N, comm, stream);
  if (!bug || rank == 0) CUDA(cudaGraphLaunch(exec, stream));
  CUDA(cudaStreamSynchronize(stream));
  CUDA(cudaGraphExecDestroy(exec));
}

/* ---- one thread for several ranks ---- */

CASE_ALL(waits_before_the_others_have_called, 2, .says = {"deadlock|rank 1", "rank 0"}) {
  if (!bug) NCCL(ncclGroupStart());
  for (int i = 0; i < size; i++) {
    sum(job->ins[i], job->outs[i], N, job->comms[i], job->streams[i]);
    if (bug) CUDA(cudaStreamSynchronize(job->streams[i])); /* rank 0 waits for a call that comes later */
  }
  if (!bug) NCCL(ncclGroupEnd());
}

CASE_BARE(init_without_group, 1, .says = {"rank"}) {
  ncclComm_t comms[2];
  ncclUniqueId id;
  NCCL(ncclGetUniqueId(&id));
  if (!bug) NCCL(ncclGroupStart());
  for (int i = 0; i < 2; i++) { /* one thread for both ranks: the first call waits for the second */
    CUDA(cudaSetDevice(i));
    NCCL(ncclCommInitRank(&comms[i], 2, id, i));
  }
  if (!bug) NCCL(ncclGroupEnd());
  for (int i = 0; i < 2; i++) NCCL(ncclCommDestroy(comms[i]));
  CUDA(cudaSetDevice(0));
}

CASE_ALL(split_without_group, 2, .says = {"rank"}) {
  if (!bug) NCCL(ncclGroupStart());
  for (int i = 0; i < size; i++) {
    CUDA(cudaSetDevice(i));
    NCCL(ncclCommSplit(job->comms[i], 0, i, &job->made_comms[i], NULL));
  }
  if (!bug) NCCL(ncclGroupEnd());
  job->comm_count = size;
}

CASE_ALL(messages_of_one_thread_without_group, 2, .says = {"rank 0"}) {
  float *large[2];
  for (int i = 0; i < size; i++) {
    CUDA(cudaSetDevice(i));
    large[i] = new_floats(job, LARGE);
  }
  if (!bug) NCCL(ncclGroupStart());
  NCCL(ncclSend(large[0], LARGE, ncclFloat, 1, job->comms[0], job->streams[0]));
  if (bug) CUDA(cudaStreamSynchronize(job->streams[0]));
  NCCL(ncclRecv(large[1], LARGE, ncclFloat, 0, job->comms[1], job->streams[1]));
  if (!bug) NCCL(ncclGroupEnd());
}
