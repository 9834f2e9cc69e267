/* parameter_matching.c: the ranks make the same calls in the same order, and one rank passes another
 * argument. */
#define CLASS "parameter matching"
#include "bugs.h"

/* ---- collectives ---- */

CASE(dtype_int32_or_float32, 4, .says = {"different datatypes", "rank 1 .*int32", "parameter_matching.c:"},
     .processes = true) {
  const ncclDataType_t type = bug && rank == 1 ? ncclInt32 : ncclFloat32;
  NCCL(ncclAllReduce(in, out, N, type, ncclSum, comm, stream));
}

CASE(half_twice_as_many, 4, .says = {"different (datatypes|counts)", "rank 2 "}, .processes = true) {
  const bool half = bug && rank == 2; /* the same bytes */
  NCCL(ncclAllReduce(in, out, half ? 2 * N : N, half ? ncclHalf : ncclFloat, ncclSum, comm, stream));
}

CASE(dtype_bfloat16_or_half, 2, .says = {"different datatypes", "rank 1 "}) {
  const ncclDataType_t autocast = bug && rank == 1 ? ncclFloat16 : ncclBfloat16;
  NCCL(ncclReduceScatter(in, out, N, autocast, ncclSum, comm, stream));
}

CASE(dtype_of_fp8_format, 2, .says = {"different datatypes", "rank 0 "}) {
  NCCL(ncclAllGather(in, out, N, bug && rank == 0 ? ncclFloat8e5m2 : ncclFloat8e4m3, comm, stream));
}

CASE(dtype_signed_or_unsigned, 2, .says = {"different datatypes", "rank 1 "}) {
  NCCL(ncclAllReduce(in, out, N, bug && rank == 1 ? ncclInt64 : ncclUint64, ncclMax, comm, stream));
}

CASE(op_max_or_sum, 4, .says = {"different reduction operators", "rank 3 .*max"}, .processes = true) {
  NCCL(ncclAllReduce(in, out, N, ncclFloat, bug && rank == 3 ? ncclMax : ncclSum, comm, stream));
}

CASE(op_avg_or_sum, 4, .says = {"different reduction operators", "rank 0 .*avg"}) {
  /* One rank already divides its gradients by the number of ranks. */
  NCCL(ncclAllReduce(in, out, N, ncclFloat, bug && rank != 0 ? ncclSum : ncclAvg, comm, stream));
}

CASE(op_of_reduce, 2, .says = {"different reduction operators", "rank 1 .*prod"}) {
  NCCL(ncclReduce(in, out, N, ncclFloat, bug && rank == 1 ? ncclProd : ncclSum, 0, comm, stream));
}

CASE(op_of_reduce_scatter, 3, .says = {"different reduction operators", "rank 2 .*min"}) {
  NCCL(ncclReduceScatter(in, out, N, ncclFloat, bug && rank == 2 ? ncclMin : ncclMax, comm, stream));
}

CASE(op_premultiplied_or_sum, 2, .says = {"different reduction operators", "rank 1 "}) {
  float scale = 0.5f;
  ncclRedOp_t scaled;
  NCCL(ncclRedOpCreatePreMulSum(&scaled, &scale, ncclFloat, ncclScalarHostImmediate, comm));
  NCCL(ncclAllReduce(in, out, N, ncclFloat, bug && rank == 1 ? ncclSum : scaled, comm, stream));
  NCCL(ncclRedOpDestroy(scaled, comm));
}

CASE(root_of_broadcast, 4, .says = {"different roots", "rank 1 .*root 1"}, .processes = true) {
  NCCL(ncclBroadcast(in, out, N, ncclFloat, bug && rank == 1 ? rank : 0, comm, stream));
}

CASE(root_of_reduce, 4, .says = {"different roots", "rank 3 .*root 3"}) {
  /* "the last rank" counts the ranks of the job on one rank, and those of the communicator elsewhere */
  NCCL(ncclReduce(in, out, N, ncclFloat, ncclSum, bug && rank == 3 ? 3 : 2, comm, stream));
}

CASE(root_is_own_rank, 4, .says = {"different roots", "root"}) {
  NCCL(ncclBroadcast(in, in, N, ncclFloat, bug ? rank : 0, comm,
                     stream)); /* every rank believes to be the root */
}

CASE(root_of_gather, 3, .says = {"different roots", "rank 2 .*root 2"}) {
  NCCL(ncclGather(in, out, N, ncclFloat, bug && rank == 2 ? 2 : 0, comm, stream));
}

CASE(root_of_scatter, 3, .says = {"different roots", "rank 1 .*root 1"}) {
  NCCL(ncclScatter(in, out, N, ncclFloat, bug && rank == 1 ? 1 : 0, comm, stream));
}

CASE(root_of_bcast_in_group, 2, .says = {"different roots", "rank 1 "}) {
  NCCL(ncclGroupStart());
  for (int layer = 0; layer < 3; layer++)
    NCCL(ncclBcast(in + layer * N, N, ncclFloat, bug && rank == 1 && layer == 2, comm, stream));
  NCCL(ncclGroupEnd());
}

CASE(count_off_by_one, 4, .says = {"different counts", "rank 1 .*255"}, .processes = true) {
  sum(in, out, bug && rank == 1 ? N - 1 : N, comm, stream);
}

CASE(count_of_last_batch, 3, .says = {"different counts", "rank 2 .*100"}) {
  for (int step = 0; step < 4; step++) /* drop_last was forgotten: the last batch of one rank is shorter */
    sum(in, out, bug && step == 3 && rank == 2 ? 100 : N, comm, stream);
}

CASE(count_of_frozen_layers, 2, .says = {"different counts", "rank 1 "}) {
  static const size_t layers[] = {64, 128, 32};
  size_t bucket = 0;
  for (int layer = 0; layer < 3; layer++) /* a layer without gradients is not in one rank's bucket */
    if (!(bug && rank == 1 && layer == 2)) bucket += layers[layer];
  sum(in, out, bucket, comm, stream);
}

CASE(count_total_in_reduce_scatter, 4, .says = {"different counts", "rank 0 .*512"}) {
  const size_t total = 2 * N; /* the call takes the count of one part */
  NCCL(ncclReduceScatter(in, out, bug && rank == 0 ? total : total / (size_t)size, ncclFloat, ncclSum, comm,
                         stream));
}

CASE(count_of_all_gather, 2, .says = {"different counts", "rank 1 "}) {
  const size_t tokens = bug ? (size_t)(100 + rank) : 101; /* sequences were not padded to the longest */
  NCCL(ncclAllGather(in, out, tokens, ncclFloat, comm, stream));
}

CASE(count_of_broadcast, 3, .says = {"different counts", "rank 0 "}) {
  /* the root sends its object's size, the others receive into what they allocated */
  NCCL(ncclBroadcast(in, out, bug && rank == 0 ? 200 : N, ncclUint8, 0, comm, stream));
}

CASE(count_of_reduce, 2, .says = {"different counts", "rank 1 "}) {
  NCCL(ncclReduce(in, out, bug && rank == 1 ? 2 * N : N, ncclFloat, ncclSum, 0, comm, stream));
}

CASE(count_zero_on_one_rank, 3, .says = {"different counts", "rank 1 .*\\(0 "}, .processes = true) {
  sum(in, out, bug && rank == 1 ? 0 : N, comm, stream); /* its batch was empty */
}

CASE(count_of_all_to_all, 4, .says = {"different counts", "rank 2 "}) {
  NCCL(ncclAlltoAll(in, out, bug && rank == 2 ? N / 2 : N, ncclFloat, comm, stream));
}

CASE(count_rounded_up, 4, .says = {"different counts", "rank 3 "}) {
  const size_t hidden = 4 * N - 2, part = (hidden + 3) / 4;
  const size_t own = bug && rank == 3 ? hidden - 3 * part : part; /* the rest instead of a padded part */
  NCCL(ncclAllGather(in, out, own, ncclFloat, comm, stream));
}

CASE(count_in_bytes, 2, .says = {"different counts", "rank 0 .*1024"}) {
  sum(in, out, bug && rank == 0 ? N * sizeof(float) : N, comm, stream);
}

CASE(count_in_split, 4, .says = {"different counts", "100 float"}) {
  ncclComm_t pair = new_split(job, comm, rank / 2);
  sum(in, out, bug && rank == 3 ? 100 : N, pair, stream);
}

CASE(count_in_third_of_group, 2, .says = {"different counts", "rank 1 ", "number 3 of its group"}) {
  NCCL(ncclGroupStart());
  for (int layer = 0; layer < 3; layer++)
    sum(in + layer * N, out + layer * N, bug && rank == 1 && layer == 2 ? N / 2 : N, comm, stream);
  NCCL(ncclGroupEnd());
}

CASE(count_in_captured_call, 2, .says = {"different counts", "rank 1 "}) {
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  sum(in, out, bug && rank == 1 ? N / 2 : N, comm, stream); /* one rank captured another batch size */
  CUDA(cudaStreamEndCapture(stream, &graph));
  CUDA(cudaGraphInstantiate(&exec, graph, 0));
  CUDA(cudaGraphLaunch(exec, stream));
  CUDA(cudaStreamSynchronize(stream));
  CUDA(cudaGraphExecDestroy(exec));
  CUDA(cudaGraphDestroy(graph));
}

CASE_ALL(count_by_one_thread, 3, .says = {"different counts", "rank 2 "}) {
  NCCL(ncclGroupStart());
  for (int i = 0; i < size; i++)
    sum(job->ins[i], job->outs[i], bug && i == 2 ? N + 1 : N, job->comms[i], job->streams[i]);
  NCCL(ncclGroupEnd());
}

CASE(count_of_a_part_of_all_gather_v, 3, .says = {"different counts", "rank 2 "}) {
  const size_t parts[] = {10, 20, bug && rank == 2 ? 31 : 30}; /* all_gather_v by broadcasts */
  size_t offset = 0;
  NCCL(ncclGroupStart());
  for (int root = 0; root < size; offset += parts[root++])
    NCCL(ncclBroadcast(in, out + offset, parts[root], ncclFloat, root, comm, stream));
  NCCL(ncclGroupEnd());
}

/* ---- functions ---- */

CASE(reduce_or_broadcast, 4, .says = {"different functions", "rank 1 called ncclReduce"}, .processes = true) {
  if (bug && rank == 1) NCCL(ncclReduce(in, out, N, ncclFloat, ncclSum, 0, comm, stream));
  else NCCL(ncclBroadcast(in, out, N, ncclFloat, 0, comm, stream));
}

CASE(all_reduce_or_reduce, 4, .says = {"different functions", "rank 0 called ncclReduce"}) {
  if (bug && rank == 0) NCCL(ncclReduce(in, out, N, ncclFloat, ncclSum, 0, comm, stream));
  else sum(in, out, N, comm, stream);
}

CASE(all_gather_or_reduce_scatter, 2, .says = {"different functions", "rank 1 called ncclReduceScatter"}) {
  /* sequence parallel: the transposed collective of the backward pass */
  if (bug && rank == 1) NCCL(ncclReduceScatter(in, out, N, ncclFloat, ncclSum, comm, stream));
  else NCCL(ncclAllGather(in, out, N, ncclFloat, comm, stream));
}

CASE(gather_or_scatter, 3, .says = {"different functions", "rank 2 called ncclScatter"}) {
  if (bug && rank == 2) NCCL(ncclScatter(in, out, N, ncclFloat, 0, comm, stream));
  else NCCL(ncclGather(in, out, N, ncclFloat, 0, comm, stream));
}

/* AlltoAll may come before or after other collectives, so that only the deadlock shows the difference. */
CASE(all_gather_or_all_to_all, 2,
     .says = {"rank 1 .*called AlltoAll .*called AllGather|rank 0 .*called AllGather .*called AlltoAll"}) {
  if (bug && rank == 1) NCCL(ncclAlltoAll(in, out, N, ncclFloat, comm, stream));
  else NCCL(ncclAllGather(in, out, N, ncclFloat, comm, stream));
}

CASE(broadcast_or_send, 2, .says = {"rank [01]"}, .processes = true) {
  /* the sender uses point to point, the receiver a collective */
  if (rank == 0 && bug) NCCL(ncclSend(in, N, ncclFloat, 1, comm, stream));
  else NCCL(ncclBroadcast(in, out, N, ncclFloat, 0, comm, stream));
}

/* ---- messages ---- */

CASE(message_count, 2, .says = {"different counts", "rank 1 "}, .processes = true) {
  if (rank == 0) NCCL(ncclSend(in, N, ncclFloat, 1, comm, stream));
  else NCCL(ncclRecv(out, bug ? N / 2 : N, ncclFloat, 0, comm, stream));
}

CASE(message_larger_than_receive, 2, .says = {"different counts", "rank 0 "}) {
  if (rank == 0) NCCL(ncclSend(in, bug ? 2 * N : N, ncclFloat, 1, comm, stream));
  else NCCL(ncclRecv(out, N, ncclFloat, 0, comm, stream));
}

CASE(message_dtype, 2, .says = {"different datatypes", "rank 1 "}) {
  if (rank == 0) NCCL(ncclSend(in, N, ncclFloat, 1, comm, stream));
  else NCCL(ncclRecv(out, N, bug ? ncclInt32 : ncclFloat, 0, comm, stream));
}

CASE(message_half_or_float, 2, .says = {"different (datatypes|counts)", "rank 0 "}) {
  if (rank == 0) NCCL(ncclSend(in, bug ? 2 * N : N, bug ? ncclHalf : ncclFloat, 1, comm, stream));
  else NCCL(ncclRecv(out, N, ncclFloat, 0, comm, stream));
}

CASE(all_to_all_v_counts, 3, .says = {"different counts", "rank [02] "}, .processes = true) {
  static const size_t rows[3][3] = {{8, 16, 24}, {32, 40, 48}, {56, 64, 72}}; /* [from][to] */
  NCCL(ncclGroupStart());
  for (int peer = 0; peer < size; peer++) {
    const size_t sent = rows[rank][peer];
    const size_t received = bug && rank == 2 ? rows[rank][peer] : rows[peer][rank]; /* not transposed */
    NCCL(ncclSend(in + peer * N, sent, ncclFloat, peer, comm, stream));
    NCCL(ncclRecv(out + peer * N, received, ncclFloat, peer, comm, stream));
  }
  NCCL(ncclGroupEnd());
}

CASE(halo_width, 3, .says = {"different counts", "rank 1 "}) {
  const size_t width = bug && rank == 1 ? 8 : 16;
  const int left = (rank + size - 1) % size, right = (rank + 1) % size;
  NCCL(ncclGroupStart());
  NCCL(ncclSend(in, width, ncclFloat, left, comm, stream));
  NCCL(ncclSend(in + N, width, ncclFloat, right, comm, stream));
  NCCL(ncclRecv(out, width, ncclFloat, right, comm, stream));
  NCCL(ncclRecv(out + N, width, ncclFloat, left, comm, stream));
  NCCL(ncclGroupEnd());
}

CASE(pipeline_activation_shape, 4, .says = {"different counts", "rank 2 "}) {
  const size_t hidden = bug && rank >= 2 ? 96 : 128; /* the later stages have another configuration */
  if (rank > 0) NCCL(ncclRecv(out, hidden, ncclHalf, rank - 1, comm, stream));
  if (rank < size - 1) NCCL(ncclSend(in, hidden, ncclHalf, rank + 1, comm, stream));
}

CASE(kv_cache_blocks, 2, .says = {"different counts", "message"}) {
  /* prefill and decode disagree on the number of blocks of the second request */
  for (int request = 0; request < 3; request++) {
    const size_t blocks = bug && request == 1 && rank == 1 ? 3 : 4;
    if (rank == 0) NCCL(ncclSend(in, blocks * 64, ncclHalf, 1, comm, stream));
    else NCCL(ncclRecv(out, blocks * 64, ncclHalf, 0, comm, stream));
  }
}

CASE(message_of_size_zero, 2, .says = {"different counts", "rank 0 "}) {
  if (rank == 0) NCCL(ncclSend(in, bug ? 0 : N, ncclFloat, 1, comm, stream)); /* an expert got no token */
  else NCCL(ncclRecv(out, N, ncclFloat, 0, comm, stream));
}

CASE(expert_tokens_not_exchanged, 4, .says = {"different counts", "rank 3 "}) {
  /* mixture of experts: each rank must learn from the others how many tokens come */
  NCCL(ncclGroupStart());
  for (int peer = 0; peer < size; peer++) {
    const size_t to_peer = (size_t)(peer == 3 && rank == 1 ? 40 : 32);
    const size_t from_peer = (size_t)(!bug && rank == 3 && peer == 1 ? 40 : 32);
    NCCL(ncclSend(in + peer * N, to_peer, ncclBfloat16, peer, comm, stream));
    NCCL(ncclRecv(out + peer * N, from_peer, ncclBfloat16, peer, comm, stream));
  }
  NCCL(ncclGroupEnd());
}
