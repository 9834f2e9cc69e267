/* call_ordering.c: a call is missing, comes in another order, or waits for one that cannot come before it. */
#define CLASS "call ordering"
#include "bugs.h"

static void barrier(float *one, ncclComm_t comm, cudaStream_t stream) {
  sum(one, one, 1, comm, stream);
  CUDA(cudaStreamSynchronize(stream));
}

static void send(float *from, size_t count, int peer, ncclComm_t comm, cudaStream_t stream) {
  NCCL(ncclSend(from, count, ncclFloat, peer, comm, stream));
}

static void receive(float *to, size_t count, int peer, ncclComm_t comm, cudaStream_t stream) {
  NCCL(ncclRecv(to, count, ncclFloat, peer, comm, stream));
}

/* ---- collectives: another order ---- */

CASE(swapped_functions, 4, .says = {"different functions", "rank 2 called ncclBroadcast"},
     .processes = true) {
  if (bug && rank == 2) NCCL(ncclBroadcast(in, out, N, ncclFloat, 0, comm, stream));
  sum(in, out, N, comm, stream);
  if (!(bug && rank == 2)) NCCL(ncclBroadcast(in, out, N, ncclFloat, 0, comm, stream));
}

CASE(swapped_buckets, 2, .says = {"different counts", "rank 1 .*64"}) {
  static const size_t buckets[] = {N, 64};
  for (int i = 0; i < 2; i++) { /* gradients became ready in another order */
    const int bucket = bug && rank == 1 ? 1 - i : i;
    sum(in + bucket * N, out + bucket * N, buckets[bucket], comm, stream);
  }
}

CASE(swapped_reduce_scatter_and_all_gather, 2,
     .says = {"different functions", "rank 0 called ncclAllGather"}) {
  const bool late = bug && rank == 0; /* FSDP: this rank prefetches parameters before it reduces gradients */
  if (late) NCCL(ncclAllGather(in, out, N, ncclHalf, comm, stream));
  NCCL(ncclReduceScatter(in, out, N, ncclHalf, ncclSum, comm, stream));
  if (!late) NCCL(ncclAllGather(in, out, N, ncclHalf, comm, stream));
}

CASE(swapped_in_group, 3, .says = {"different counts", "rank 1 "}) {
  NCCL(ncclGroupStart());
  for (int i = 0; i < 2; i++) {
    const int layer = bug && rank == 1 ? 1 - i : i;
    sum(in + layer * N, out + layer * N, (size_t)(100 + layer), comm, stream);
  }
  NCCL(ncclGroupEnd());
}

CASE(swapped_roots, 2, .says = {"different roots", "rank 1 "}) {
  for (int i = 0; i < size; i++) {
    const int root = bug && rank == 1 ? size - 1 - i : i;
    NCCL(ncclBroadcast(in, out + root * N, N, ncclFloat, root, comm, stream));
  }
}

CASE(group_on_one_rank, 2, .says = {"group", "rank 1 "}) {
  const bool grouped = !(bug && rank == 1);
  if (grouped) NCCL(ncclGroupStart());
  sum(in, out, N, comm, stream);
  sum(in + N, out + N, N, comm, stream);
  if (grouped) NCCL(ncclGroupEnd());
}

CASE(group_ends_elsewhere, 2, .says = {"group", "rank 0 "}) {
  NCCL(ncclGroupStart());
  sum(in, out, N, comm, stream);
  if (bug && rank == 0) NCCL(ncclGroupEnd());
  sum(in + N, out + N, N, comm, stream);
  if (!(bug && rank == 0)) NCCL(ncclGroupEnd());
}

CASE(shuffled_parameters, 4, .says = {"different counts", "rank 3 "}, .processes = true) {
  static const size_t sizes[] = {7, 19, 33, 64};
  for (int i = 0; i < 4; i++) /* a set instead of a list: each process iterates in an order of its own */
    sum(in, out, sizes[bug && rank == 3 ? (i + 2) % 4 : i], comm, stream);
}

/* ---- collectives: missing, or one too many ---- */

CASE(last_call_missing, 4, .says = {"rank 2 "}, .processes = true) {
  for (int step = 0; step < 3; step++)
    if (!(bug && step == 2 && rank == 2)) sum(in, out, N, comm, stream);
}

CASE(missing_in_loop, 3, .says = {"different (counts|functions|numbers|places)", "rank 1 "}) {
  for (int step = 0; step < 3; step++) {
    if (bug && step == 1 && rank == 1) continue; /* nothing to report in this step */
    sum(in, out, (size_t)(N - step), comm, stream);
  }
}

CASE(barrier_of_rank_zero, 2, .says = {"rank [01] "}, .processes = true) {
  sum(in, out, N, comm, stream);
  if (!bug || rank == 0) barrier(out, comm, stream); /* before it writes the checkpoint */
}

CASE(loss_logged_on_rank_zero, 4, .says = {"rank [0-3]"}) {
  for (int step = 0; step < 3; step++) {
    NCCL(ncclReduceScatter(in, out, N, ncclFloat, ncclSum, comm, stream));
    if (!bug || rank == 0) sum(in, out, 1, comm, stream); /* the average for the log */
  }
}

CASE(early_stop_on_local_loss, 3, .says = {"rank 1 "}) {
  const int steps = bug && rank == 1 ? 2 : 4; /* the decision was not shared */
  for (int step = 0; step < steps; step++) sum(in, out, N, comm, stream);
}

CASE(uneven_batches, 2, .says = {"rank 1 "}, .processes = true) {
  const int batches = bug ? 3 - rank : 3;
  for (int batch = 0; batch < batches; batch++) {
    NCCL(ncclAllGather(in, out, N, ncclFloat, comm, stream));
    CUDA(cudaStreamSynchronize(stream));
  }
}

CASE(checkpoint_broadcast_twice, 2, .says = {"rank [01] "}) {
  NCCL(ncclBroadcast(in, out, N, ncclFloat, 0, comm, stream));
  if (bug && rank == 0) NCCL(ncclBroadcast(in, out, N, ncclFloat, 0, comm, stream)); /* it retries alone */
  sum(in, out, N, comm, stream);
}

CASE(overflow_skips_on_one_rank, 2, .says = {"rank 1 "}) {
  for (int step = 0; step < 3; step++) {
    const bool skip = bug && rank == 1 && step == 1; /* its own gradients had no finite norm */
    if (!skip) sum(in, out, N, comm, stream);
    NCCL(ncclAllGather(in, out, N, ncclFloat, comm, stream));
  }
}

CASE(returns_early, 4, .says = {"rank 3 "}, .processes = true) {
  sum(in, out, N, comm, stream);
  if (bug && rank == 3) return; /* "no work for this rank" */
  NCCL(ncclAllGather(in, out, N, ncclFloat, comm, stream));
  sum(in, out, N, comm, stream);
}

CASE(finalizes_early, 3, .says = {"rank 0 "}) {
  sum(in, out, N, comm, stream);
  if (bug && rank == 0) {
    NCCL(ncclCommFinalize(comm));
    return;
  }
  sum(in, out, bug ? N : 2 * N, comm, stream);
}

CASE_ALL(one_communicator_left_out, 4, .says = {"rank 3 "}) {
  NCCL(ncclGroupStart());
  for (int i = 0; i < (bug ? size - 1 : size); i++)
    sum(job->ins[i], job->outs[i], N, job->comms[i], job->streams[i]);
  NCCL(ncclGroupEnd());
  for (int i = 0; i < size; i++) CUDA(cudaStreamSynchronize(job->streams[i]));
}

CASE(split_without_one_rank, 3, .says = {"rank 2 "}) {
  ncclComm_t made = NULL;
  if (bug && rank == 2) {
    sum(in, out, N, comm, stream); /* it should pass NCCL_SPLIT_NOCOLOR */
    CUDA(cudaStreamSynchronize(stream));
    return;
  }
  NCCL(ncclCommSplit(comm, rank == 2 ? NCCL_SPLIT_NOCOLOR : 0, rank, &made, NULL));
  if (made) sum(in, out, N, keep_comm(job, made), stream);
  sum(in, out, N, comm, stream);
}

/* ---- communicators ---- */

CASE(wrong_communicator, 4, .says = {"rank [0-3]"}) {
  ncclComm_t pair = new_split(job, comm, rank / 2);
  sum(in, out, N, bug && rank == 1 ? comm : pair, stream); /* the world instead of its tensor-parallel pair */
  CUDA(cudaStreamSynchronize(stream));
}

CASE(tensor_group_instead_of_data_group, 4, .says = {"rank [0-3]"}) {
  ncclComm_t tensor = new_split(job, comm, rank / 2), data = new_split(job, comm, rank % 2);
  sum(in, out, N, tensor, stream);
  sum(out, in, N, bug && rank == 3 ? tensor : data, stream);
  CUDA(cudaStreamSynchronize(stream));
}

CASE(crossed_communicators_with_waits, 2, .says = {"rank 0 ", "rank 1 ", "comm"}, .processes = true) {
  ncclComm_t other = new_copy(job, comm);
  const bool swap = bug && rank == 1;
  sum(in, out, N, swap ? other : comm, stream);
  CUDA(cudaStreamSynchronize(stream));
  sum(in, out, N, swap ? comm : other, stream);
  CUDA(cudaStreamSynchronize(stream));
}

CASE(crossed_communicators_on_one_stream, 2, .says = {"rank 0 ", "rank 1 ", "comm"}) {
  ncclComm_t other = new_copy(job, comm);
  const bool swap = bug && rank == 1;
  sum(in, out, N, swap ? other : comm, stream);
  sum(in, out, N, swap ? comm : other, stream);
  CUDA(cudaStreamSynchronize(stream));
}

CASE(crossed_streams, 2, .says = {"rank 0 ", "rank 1 ", "comm"}) {
  ncclComm_t other = new_copy(job, comm);
  cudaStream_t second = new_stream(job);
  const bool swap = bug && rank == 1;
  sum(in, out, N, swap ? other : comm, stream);
  order(job, stream, second); /* the streams are ordered, and in the opposite way on the other rank */
  sum(in + N, out + N, N, swap ? comm : other, second);
  CUDA(cudaStreamSynchronize(second));
}

CASE(crossed_ring_of_pairs, 3, .says = {"rank 0 ", "rank 1 ", "comm"}) {
  /* Every rank is in two pairs and begins with its left one: each waits for the next. */
  ncclComm_t pairs[3];
  for (int i = 0; i < 3; i++) {
    const bool within = rank == i || rank == (i + 1) % 3;
    NCCL(ncclCommSplit(comm, within ? 0 : NCCL_SPLIT_NOCOLOR, rank, &pairs[i], NULL));
    if (within) keep_comm(job, pairs[i]);
  }
  const int left = (rank + 2) % 3, right = rank;
  const int first = bug || left < right ? left : right, second = left + right - first;
  sum(in, out, N, pairs[first], stream);
  CUDA(cudaStreamSynchronize(stream));
  sum(in, out, N, pairs[second], stream);
  CUDA(cudaStreamSynchronize(stream));
}

CASE(message_and_collective_crossed, 2, .says = {"rank 0 ", "rank 1 "}, .processes = true) {
  float *large = new_floats(job, LARGE);
  if (rank == 0) send(large, LARGE, 1, comm, stream);
  if (rank == 1 && !bug) receive(large, LARGE, 0, comm, stream);
  sum(in, in, N, comm, stream);
  if (rank == 1 && bug) receive(large, LARGE, 0, comm, stream);
}

/* ---- messages: unmatched ---- */

CASE(send_without_receive, 2, .says = {"rank 0 ", "never received|Send"}, .processes = true) {
  if (rank == 0) send(in, N, 1, comm, stream);
  else if (!bug) receive(out, N, 0, comm, stream);
}

CASE(receive_without_send, 2, .says = {"rank 1 ", "never sent|Recv|receive"}, .processes = true) {
  if (rank == 1) receive(out, N, 0, comm, stream);
  else if (!bug) send(in, N, 1, comm, stream);
}

CASE(one_send_too_many, 2, .says = {"rank 0 ", "never received|Send|send"}) {
  for (int i = 0; i < (bug && rank == 0 ? 3 : 2); i++)
    if (rank == 0) send(in, N, 1, comm, stream);
    else receive(out, N, 0, comm, stream);
}

CASE(sends_to_wrong_peer, 4, .says = {"rank 1 "}) {
  const int next = (rank + (bug && rank == 1 ? 2 : 1)) % size;
  NCCL(ncclGroupStart());
  send(in, N, next, comm, stream);
  receive(out, N, (rank + size - 1) % size, comm, stream);
  NCCL(ncclGroupEnd());
}

CASE(receives_from_wrong_peer, 3, .says = {"rank 2 "}, .processes = true) {
  const int previous = (rank + size - 1) % size;
  NCCL(ncclGroupStart());
  send(in, N, (rank + 1) % size, comm, stream);
  receive(out, N, bug && rank == 2 ? 0 : previous, comm, stream);
  NCCL(ncclGroupEnd());
}

CASE(peer_is_global_rank, 4, .says = {"rank", "out of range|outside|is not|no rank"}) {
  /* Ranks of a communicator that was split begin at 0. */
  ncclComm_t half = new_split(job, comm, rank / 2);
  const int peer = bug ? rank ^ 1 : (rank ^ 1) % 2;
  NCCL(ncclGroupStart());
  send(in, N, peer, half, stream);
  receive(out, N, peer, half, stream);
  NCCL(ncclGroupEnd());
}

CASE(gather_by_messages_misses_one, 4, .says = {"rank 3 "}) {
  if (rank != 0) {
    if (!(bug && rank == 3)) send(in, N, 0, comm, stream); /* its part is empty */
    return;
  }
  NCCL(ncclGroupStart());
  for (int peer = 1; peer < size; peer++) receive(out + peer * N, N, peer, comm, stream);
  NCCL(ncclGroupEnd());
}

CASE(scatter_by_messages_forgets_one, 4, .says = {"rank 3 "}) {
  if (rank != 0) {
    receive(out, N, 0, comm, stream);
    return;
  }
  NCCL(ncclGroupStart());
  for (int peer = 1; peer < (bug ? size - 1 : size); peer++) send(in + peer * N, N, peer, comm, stream);
  NCCL(ncclGroupEnd());
}

CASE(send_to_self_alone, 2, .says = {"itself|to self|own"}) {
  const int peer = bug ? rank : 1 - rank;
  NCCL(ncclGroupStart());
  send(in, N, peer, comm, stream);
  if (!bug) receive(out, N, peer, comm, stream);
  NCCL(ncclGroupEnd());
}

/* ---- messages: order ---- */

CASE(both_send_first, 2, .says = {"rank 0 ", "rank 1 "}, .processes = true) {
  float *large = new_floats(job, LARGE);
  if (bug || rank == 0) send(large, LARGE, 1 - rank, comm, stream);
  receive(large, LARGE, 1 - rank, comm, stream);
  if (!bug && rank == 1) send(large, LARGE, 0, comm, stream);
  CUDA(cudaStreamSynchronize(stream));
}

CASE(both_receive_first, 2, .says = {"rank 0 ", "rank 1 "}, .processes = true) {
  if (!bug && rank == 0) send(in, N, 1, comm, stream);
  receive(out, N, 1 - rank, comm, stream);
  if (bug || rank == 1) send(in, N, 1 - rank, comm, stream);
}

CASE(ring_shift_without_group, 4, .says = {"rank 0 ", "rank 1 "}) {
  float *large = new_floats(job, 2 * LARGE);
  if (!bug) NCCL(ncclGroupStart());
  send(large, LARGE, (rank + 1) % size, comm, stream);
  receive(large + LARGE, LARGE, (rank + size - 1) % size, comm, stream);
  if (!bug) NCCL(ncclGroupEnd());
}

CASE(all_to_all_without_group, 3, .says = {"rank [0-2] "}) {
  if (!bug) NCCL(ncclGroupStart());
  for (int peer = 0; peer < size; peer++) {
    if (peer == rank) continue;
    receive(out + peer * N, N, peer, comm, stream);
    send(in + peer * N, N, peer, comm, stream);
  }
  if (!bug) NCCL(ncclGroupEnd());
}

CASE(receives_grouped_before_sends, 2, .says = {"rank 0 ", "rank 1 "}) {
  NCCL(ncclGroupStart());
  receive(out, N, 1 - rank, comm, stream);
  if (bug) {
    NCCL(ncclGroupEnd());
    NCCL(ncclGroupStart());
  }
  send(in, N, 1 - rank, comm, stream);
  NCCL(ncclGroupEnd());
}

CASE(pipeline_backward_before_forward, 2, .says = {"rank 0 ", "rank 1 "}) {
  /* 1F1B: stage 0 sends two micro-batches, then waits for a gradient; stage 1 is configured for one. */
  if (rank == 0) {
    receive(out, N, 1, comm, stream);
    send(in, N, 1, comm, stream);
  } else {
    if (bug) receive(out, N, 0, comm, stream);
    send(in, N, 0, comm, stream);
    if (!bug) receive(out, N, 0, comm, stream);
  }
}

CASE(messages_in_other_order, 2, .says = {"different counts", "rank [01] "}) {
  static const size_t sizes[] = {N, N / 2}; /* the activation, and the mask */
  for (int i = 0; i < 2; i++)
    if (rank == 0) send(in, sizes[i], 1, comm, stream);
    else receive(out, sizes[bug ? 1 - i : i], 0, comm, stream);
}

CASE(ring_attention_one_step_short, 3, .says = {"rank 1 "}) {
  for (int step = 0; step < (bug && rank == 1 ? size - 2 : size - 1); step++) {
    NCCL(ncclGroupStart());
    send(step % 2 ? out : in, N, (rank + 1) % size, comm, stream);
    receive(step % 2 ? in : out, N, (rank + size - 1) % size, comm, stream);
    NCCL(ncclGroupEnd());
  }
}

CASE(pipeline_flush_missing, 3, .says = {"rank [12] "}) {
  static const int batches = 3;
  for (int batch = 0; batch < batches; batch++) {
    if (rank > 0) receive(out, N, rank - 1, comm, stream);
    if (rank < size - 1 && !(bug && rank == 1 && batch == batches - 1)) send(in, N, rank + 1, comm, stream);
  }
}
