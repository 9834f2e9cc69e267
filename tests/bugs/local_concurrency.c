/* local_concurrency.c: within one rank, an operation of a stream, of the host or of a graph reads or writes
 * memory that another one uses, and nothing orders the two. Copies and fills stand for a program's kernels.
 */
#define CLASS "local concurrency"
#include "bugs.h"

#define RACE(...) .says = {"race", "local_concurrency.c:[0-9]+ .*local_concurrency.c:[0-9]+", __VA_ARGS__}

static const size_t BYTES = N * sizeof(float);

#define copy(to, from, stream) CUDA(cudaMemcpyAsync(to, from, BYTES, cudaMemcpyDeviceToDevice, stream))
#define fill(memory, stream) CUDA(cudaMemsetAsync(memory, 0, BYTES, stream))

/* ---- the result is used too early ---- */

CASE(result_copied_on_other_stream, 2, RACE("ncclAllReduce", "cudaMemcpyAsync"), .processes = true) {
  cudaStream_t compute = new_stream(job);
  sum(in, out, N, comm, stream);
  if (!bug) order(job, stream, compute);
  copy(in + N, out, compute);
}

CASE(result_read_by_host, 2, RACE("ncclAllReduce", "cudaMemcpy"), .processes = true) {
  float *loss = (float *)malloc(BYTES);
  sum(in, out, N, comm, stream);
  if (!bug) CUDA(cudaStreamSynchronize(stream));
  CUDA(cudaMemcpy(loss, out, BYTES,
                  cudaMemcpyDeviceToHost)); /* the default stream does not wait for `stream` */
  free(loss);
}

CASE(result_of_reduce_scatter, 2, RACE("ncclReduceScatter", "cudaMemcpyAsync")) {
  cudaStream_t optimizer = new_stream(job);
  NCCL(ncclReduceScatter(in, out, N, ncclFloat, ncclSum, comm, stream));
  if (!bug) order(job, stream, optimizer);
  copy(out + 2 * N, out, optimizer);
}

CASE(received_too_early, 2, RACE("ncclRecv", "cudaMemcpyAsync"), .processes = true) {
  cudaStream_t compute = new_stream(job);
  if (rank == 0) NCCL(ncclSend(in, N, ncclFloat, 1, comm, stream));
  else NCCL(ncclRecv(out, N, ncclFloat, 0, comm, stream));
  if (!bug) order(job, stream, compute);
  if (rank == 1) copy(in, out, compute);
}

CASE(prefetched_parameters, 2, RACE("ncclAllGather", "cudaMemcpyAsync")) {
  cudaStream_t compute = new_stream(job);
  cudaEvent_t gathered[2] = {new_event(job), new_event(job)};
  for (int layer = 0; layer < 2; layer++) {
    NCCL(ncclAllGather(in, out + layer * 4 * N, N, ncclFloat, comm, stream));
    CUDA(cudaEventRecord(gathered[layer], stream));
  }
  for (int layer = 0; layer < 2; layer++) {
    CUDA(cudaStreamWaitEvent(compute, gathered[bug ? 0 : layer], 0)); /* always the first layer's event */
    copy(in + (4 + layer) * N, out + layer * 4 * N, compute);
  }
}

CASE(event_recorded_before_the_call, 2, RACE("ncclAllReduce", "cudaMemcpyAsync")) {
  cudaStream_t compute = new_stream(job);
  cudaEvent_t done = new_event(job);
  if (bug) CUDA(cudaEventRecord(done, stream));
  sum(in, out, N, comm, stream);
  if (!bug) CUDA(cudaEventRecord(done, stream));
  CUDA(cudaStreamWaitEvent(compute, done, 0));
  copy(in + N, out, compute);
}

CASE(event_waited_for_before_its_record, 2, RACE("ncclAllReduce", "cudaMemcpyAsync")) {
  cudaStream_t compute = new_stream(job);
  cudaEvent_t done = new_event(job);
  if (bug) CUDA(cudaStreamWaitEvent(compute, done, 0)); /* nothing is recorded yet: it does not wait */
  sum(in, out, N, comm, stream);
  CUDA(cudaEventRecord(done, stream));
  if (!bug) CUDA(cudaStreamWaitEvent(compute, done, 0));
  copy(in + N, out, compute);
}

CASE(event_recorded_on_wrong_stream, 2, RACE("ncclAllReduce", "cudaMemcpyAsync")) {
  cudaStream_t compute = new_stream(job);
  cudaEvent_t done = new_event(job);
  sum(in, out, N, comm, stream);
  CUDA(cudaEventRecord(done, bug ? compute : stream));
  CUDA(cudaStreamWaitEvent(compute, done, 0));
  copy(in + N, out, compute);
}

CASE(wait_in_the_wrong_direction, 2, RACE("ncclAllReduce", "cudaMemcpyAsync")) {
  cudaStream_t compute = new_stream(job);
  sum(in, out, N, comm, stream);
  if (bug) order(job, compute, stream);
  else order(job, stream, compute);
  copy(in + N, out, compute);
}

CASE(synchronized_other_stream, 2, RACE("ncclBroadcast", "cudaMemcpy")) {
  cudaStream_t compute = new_stream(job);
  float *host = (float *)malloc(BYTES);
  NCCL(ncclBroadcast(in, out, N, ncclFloat, 0, comm, stream));
  CUDA(cudaStreamSynchronize(bug ? compute : stream));
  CUDA(cudaMemcpy(host, out, BYTES, cudaMemcpyDeviceToHost));
  free(host);
}

CASE(synchronized_other_device, 2, RACE("ncclAllReduce", "cudaMemcpyAsync")) {
  sum(in, out, N, comm, stream);
  if (bug) CUDA(cudaSetDevice((rank + 1) % size + 2)); /* left over from another function */
  CUDA(cudaDeviceSynchronize());
  CUDA(cudaSetDevice(rank));
  copy(in + N, out, new_stream(job));
}

CASE(query_instead_of_wait, 2, RACE("ncclAllReduce", "cudaMemcpy"), .seeds = true) {
  float *host = (float *)malloc(BYTES);
  sum(in, out, N, comm, stream);
  if (bug) (void)cudaStreamQuery(stream); /* it returns cudaErrorNotReady */
  else CUDA(cudaStreamSynchronize(stream));
  CUDA(cudaMemcpy(host, out, BYTES, cudaMemcpyDeviceToHost));
  free(host);
}

CASE(copied_to_host_without_wait, 2, RACE("cudaMemcpyAsync")) {
  cudaStream_t download = new_stream(job);
  float *host;
  CUDA(cudaMallocHost((void **)&host, BYTES));
  sum(in, out, N, comm, stream);
  if (!bug) order(job, stream, download);
  CUDA(cudaMemcpyAsync(host, out, BYTES, cudaMemcpyDeviceToHost, download));
  CUDA(cudaStreamSynchronize(download));
  CUDA(cudaStreamSynchronize(stream));
  CUDA(cudaFreeHost(host));
}

/* ---- the input is not ready ---- */

CASE(input_still_being_written, 2, RACE("cudaMemsetAsync", "ncclAllReduce"), .processes = true) {
  cudaStream_t compute = new_stream(job);
  fill(in, compute); /* the backward pass */
  if (!bug) order(job, compute, stream);
  sum(in, out, N, comm, stream);
}

CASE(batch_still_being_uploaded, 2, RACE("cudaMemcpyAsync", "ncclBroadcast")) {
  cudaStream_t upload = new_stream(job);
  float *batch;
  CUDA(cudaMallocHost((void **)&batch, BYTES));
  memset(batch, 0, BYTES);
  CUDA(cudaMemcpyAsync(in, batch, BYTES, cudaMemcpyHostToDevice, upload));
  if (!bug) order(job, upload, stream);
  NCCL(ncclBroadcast(in, out, N, ncclFloat, 0, comm, stream));
  CUDA(cudaDeviceSynchronize());
  CUDA(cudaFreeHost(batch));
}

CASE(last_bucket_not_waited_for, 2, RACE("cudaMemsetAsync", "ncclAllReduce")) {
  cudaStream_t backward = new_stream(job);
  for (int bucket = 0; bucket < 3; bucket++) {
    if (bug && bucket == 2) order(job, backward, stream); /* before the bucket's last gradient */
    fill(in + bucket * N, backward);
    if (!(bug && bucket == 2)) order(job, backward, stream);
    sum(in + bucket * N, out + bucket * N, N, comm, stream);
  }
}

CASE(sent_before_it_is_computed, 2, RACE("cudaMemsetAsync", "ncclSend")) {
  cudaStream_t compute = new_stream(job);
  if (rank == 0) fill(in, compute);
  if (!bug) order(job, compute, stream);
  if (rank == 0) NCCL(ncclSend(in, N, ncclFloat, 1, comm, stream));
  else NCCL(ncclRecv(out, N, ncclFloat, 0, comm, stream));
}

CASE(default_stream_is_not_ordered, 2, RACE("cudaMemsetAsync", "ncclAllReduce")) {
  fill(in, NULL); /* the default stream; `stream` was made with cudaStreamNonBlocking */
  if (!bug) CUDA(cudaStreamSynchronize(NULL));
  sum(in, out, N, comm, stream);
}

CASE(premultiplier_still_being_written, 2, RACE("cudaMemsetAsync", "nccl")) {
  cudaStream_t compute = new_stream(job);
  float *scale = new_floats(job, 1);
  ncclRedOp_t scaled;
  NCCL(ncclRedOpCreatePreMulSum(&scaled, scale, ncclFloat, ncclScalarDevice, comm));
  CUDA(cudaMemsetAsync(scale, 0, sizeof *scale, compute));
  if (!bug) order(job, compute, stream);
  NCCL(ncclAllReduce(in, out, N, ncclFloat, scaled, comm, stream));
  NCCL(ncclRedOpDestroy(scaled, comm));
}

/* ---- a buffer is reused too early ---- */

CASE(send_buffer_overwritten, 2, RACE("ncclSend", "cudaMemsetAsync"), .processes = true) {
  cudaStream_t compute = new_stream(job);
  if (rank == 0) NCCL(ncclSend(in, N, ncclFloat, 1, comm, stream));
  else NCCL(ncclRecv(out, N, ncclFloat, 0, comm, stream));
  if (!bug) order(job, stream, compute);
  if (rank == 0) fill(in, compute); /* the next micro-batch */
}

CASE(gradients_cleared_too_early, 2, RACE("ncclAllReduce", "cudaMemsetAsync")) {
  cudaStream_t compute = new_stream(job);
  sum(in, in, N, comm, stream);
  if (!bug) order(job, stream, compute);
  fill(in, compute); /* zero_grad() */
}

CASE(double_buffer_waits_once, 2, RACE("cudaMemsetAsync", "ncclAllReduce")) {
  cudaStream_t compute = new_stream(job);
  cudaEvent_t reduced[2] = {new_event(job), new_event(job)};
  for (int step = 0; step < 4; step++) {
    float *buffer = in + step % 2 * N;
    if (step >= 2 && !(bug && step == 3)) CUDA(cudaStreamWaitEvent(compute, reduced[step % 2], 0));
    fill(buffer, compute);
    order(job, compute, stream);
    sum(buffer, buffer, N, comm, stream);
    CUDA(cudaEventRecord(reduced[step % 2], stream));
  }
}

CASE(event_recorded_on_two_streams, 2, RACE("ncclAllReduce", "cudaMemsetAsync")) {
  cudaStream_t compute = new_stream(job), second = new_stream(job);
  cudaEvent_t done = new_event(job);
  sum(in, out, N, comm, stream);
  CUDA(cudaEventRecord(done, stream));
  if (bug) CUDA(cudaEventRecord(done, second)); /* one event for two streams: the first record is lost */
  CUDA(cudaStreamWaitEvent(compute, done, 0));
  fill(out, compute);
}

CASE(halves_overlap, 2, RACE("ncclAllReduce", "cudaMemsetAsync")) {
  cudaStream_t compute = new_stream(job);
  sum(in, in, N, comm, stream);
  fill(in + (bug ? N / 2 : N), compute);
}

CASE(last_byte_overlaps, 2, RACE("ncclAllGather", "cudaMemsetAsync")) {
  cudaStream_t compute = new_stream(job);
  NCCL(ncclAllGather(in, out, N, ncclFloat, comm, stream));
  CUDA(cudaMemsetAsync((char *)(out + size * N) - (bug ? 1 : 0), 0, 64, compute));
}

CASE(column_of_matrix_overlaps, 2, RACE("ncclAllReduce", "cudaMemset2DAsync")) {
  cudaStream_t compute = new_stream(job);
  const size_t pitch = 64 * sizeof(float);
  sum(in, in, 64, comm, stream); /* the first row */
  CUDA(cudaMemset2DAsync(bug ? in : in + 64, pitch, 0, 4, 8, compute));
}

CASE(two_communicators_write_one_buffer, 2, RACE("ncclAllReduce", "ncclBroadcast")) {
  ncclComm_t other = new_copy(job, comm);
  cudaStream_t second = new_stream(job);
  sum(in, out, N, comm, stream);
  NCCL(ncclBroadcast(in + N, bug ? out : out + N, N, ncclFloat, 0, other, second));
}

CASE(in_place_on_two_streams, 2, RACE("ncclAllReduce")) {
  ncclComm_t other = new_copy(job, comm);
  cudaStream_t second = new_stream(job);
  sum(in, in, N, comm, stream);
  if (!bug) order(job, stream, second);
  sum(in, in, N, other, second); /* 2D parallel: reduces over the other dimension */
}

CASE(freed_in_order_of_another_stream, 2, .says = {"race|free", "cudaFreeAsync|free"}, .processes = true) {
  cudaStream_t compute = new_stream(job);
  float *temporary;
  CUDA(cudaMallocAsync((void **)&temporary, BYTES, compute));
  order(job, compute, stream);
  NCCL(ncclBroadcast(in, temporary, N, ncclFloat, 0, comm, stream));
  if (!bug) order(job, stream, compute); /* PyTorch's record_stream() was forgotten */
  CUDA(cudaFreeAsync(temporary, compute));
}

CASE(allocated_in_order_of_another_stream, 2, .says = {"race|alloc", "nccl|alloc"}) {
  cudaStream_t compute = new_stream(job);
  float *temporary;
  CUDA(cudaMallocAsync((void **)&temporary, BYTES, compute));
  if (!bug) order(job, compute, stream);
  sum(in, temporary, N, comm, stream);
  order(job, stream, compute);
  CUDA(cudaFreeAsync(temporary, compute));
}

CASE(communication_memory_freed_in_use, 2, .says = {"race|free|in use", "rank|nccl"}) {
  float *memory;
  NCCL(ncclMemAlloc((void **)&memory, BYTES));
  sum(in, memory, N, comm, stream);
  if (!bug) CUDA(cudaStreamSynchronize(stream));
  NCCL(ncclMemFree(memory));
}

CASE(pinned_memory_freed_in_use, 2, .says = {"race|free|in use", "cuda"}) {
  float *host;
  CUDA(cudaMallocHost((void **)&host, BYTES));
  CUDA(cudaMemcpyAsync(host, in, BYTES, cudaMemcpyDeviceToHost, stream));
  sum(in, out, N, comm, stream);
  if (!bug) CUDA(cudaStreamSynchronize(stream));
  CUDA(cudaFreeHost(host));
}

CASE(upload_buffer_refilled, 2, RACE("cudaMemcpyAsync")) {
  cudaStream_t upload = new_stream(job), download = new_stream(job);
  float *staging;
  CUDA(cudaMallocHost((void **)&staging, BYTES));
  memset(staging, 0, BYTES);
  CUDA(cudaMemcpyAsync(in, staging, BYTES, cudaMemcpyHostToDevice, upload));
  if (!bug) order(job, upload, download);
  CUDA(cudaMemcpyAsync(staging, out, BYTES, cudaMemcpyDeviceToHost, download));
  order(job, upload, stream);
  sum(in, out + N, N, comm, stream);
  CUDA(cudaDeviceSynchronize());
  CUDA(cudaFreeHost(staging));
}

/* ---- graphs ---- */

static cudaGraphExec_t instantiate(cudaGraph_t graph) {
  cudaGraphExec_t exec;
  CUDA(cudaGraphInstantiate(&exec, graph, 0));
  CUDA(cudaGraphDestroy(graph));
  return exec;
}

static cudaGraphExec_t capture_sum(const float *in, float *out, ncclComm_t comm, cudaStream_t stream) {
  cudaGraph_t graph;
  CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  sum(in, out, N, comm, stream);
  CUDA(cudaStreamEndCapture(stream, &graph));
  return instantiate(graph);
}

CASE(graph_result_used_on_other_stream, 2, RACE("cudaGraphLaunch|ncclAllReduce", "cudaMemcpyAsync")) {
  cudaStream_t compute = new_stream(job);
  cudaGraphExec_t exec = capture_sum(in, out, comm, stream);
  CUDA(cudaGraphLaunch(exec, stream));
  if (!bug) order(job, stream, compute);
  copy(in + N, out, compute);
  CUDA(cudaDeviceSynchronize());
  CUDA(cudaGraphExecDestroy(exec));
}

CASE(graph_input_refilled_between_replays, 2, RACE("cudaGraphLaunch|ncclAllReduce", "cudaMemsetAsync")) {
  cudaStream_t upload = new_stream(job);
  cudaGraphExec_t exec = capture_sum(in, out, comm, stream);
  for (int step = 0; step < 2; step++) {
    fill(in, upload); /* static input of a captured model */
    order(job, upload, stream);
    CUDA(cudaGraphLaunch(exec, stream));
    if (!bug) order(job, stream, upload);
  }
  CUDA(cudaDeviceSynchronize());
  CUDA(cudaGraphExecDestroy(exec));
}

CASE(two_graphs_share_a_buffer, 2, RACE("cudaGraphLaunch|ncclAllReduce")) {
  ncclComm_t other = new_copy(job, comm);
  cudaStream_t second = new_stream(job);
  cudaGraphExec_t one = capture_sum(in, out, comm, stream);
  cudaGraphExec_t two =
      capture_sum(in + N, bug ? out : out + N, other, second); /* one memory pool for both */
  CUDA(cudaGraphLaunch(one, stream));
  CUDA(cudaGraphLaunch(two, second));
  CUDA(cudaDeviceSynchronize());
  CUDA(cudaGraphExecDestroy(one));
  CUDA(cudaGraphExecDestroy(two));
}

CASE(graph_node_without_dependency, 2, RACE("cudaGraphAddMemcpyNode1D|ncclAllReduce")) {
  cudaGraph_t graph;
  cudaGraphNode_t nodes[8], added;
  size_t count = 8;
  CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  sum(in, out, N, comm, stream);
  CUDA(cudaStreamEndCapture(stream, &graph));
  CUDA(cudaGraphGetNodes(graph, nodes, &count));
  CUDA(cudaGraphAddMemcpyNode1D(&added, graph, bug ? NULL : nodes, bug ? 0 : count, in + N, out, BYTES,
                                cudaMemcpyDeviceToDevice));
  cudaGraphExec_t exec = instantiate(graph);
  CUDA(cudaGraphLaunch(exec, stream));
  CUDA(cudaDeviceSynchronize());
  CUDA(cudaGraphExecDestroy(exec));
}

CASE(forked_capture_without_order, 2, RACE("cudaMemcpyAsync", "ncclAllReduce")) {
  cudaStream_t side = new_stream(job);
  cudaGraph_t graph;
  CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  if (bug) order(job, stream, side); /* forks before the collective whose result it copies */
  sum(in, out, N, comm, stream);
  if (!bug) order(job, stream, side);
  copy(in + N, out, side);
  order(job, side, stream);
  CUDA(cudaStreamEndCapture(stream, &graph));
  cudaGraphExec_t exec = instantiate(graph);
  CUDA(cudaGraphLaunch(exec, stream));
  CUDA(cudaDeviceSynchronize());
  CUDA(cudaGraphExecDestroy(exec));
}

CASE(capture_not_joined, 2, .says = {"cudaStreamEndCapture", "cudaErrorStreamCaptureUnjoined"}) {
  cudaStream_t side = new_stream(job);
  cudaGraph_t graph;
  CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  sum(in, out, N, comm, stream);
  order(job, stream, side);
  copy(in + N, out, side);
  if (!bug) order(job, side, stream);
  CUDA(cudaStreamEndCapture(stream, &graph));
  CUDA(cudaGraphDestroy(graph));
}

CASE(synchronized_while_capturing, 2, .says = {"cudaStreamSynchronize", "cudaErrorStreamCapture"}) {
  cudaGraph_t graph;
  CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  sum(in, out, N, comm, stream);
  if (bug) CUDA(cudaStreamSynchronize(stream));
  CUDA(cudaStreamEndCapture(stream, &graph));
  CUDA(cudaGraphDestroy(graph));
}

CASE(group_half_captured, 2, .says = {"captur", "rank [01]"}) {
  cudaStream_t second = new_stream(job);
  cudaGraph_t graph;
  CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  if (!bug) order(job, stream, second);
  NCCL(ncclGroupStart());
  sum(in, out, N, comm, stream);
  sum(in + N, out + N, N, comm, second);
  NCCL(ncclGroupEnd());
  if (!bug) order(job, second, stream);
  CUDA(cudaStreamEndCapture(stream, &graph));
  CUDA(cudaGraphDestroy(graph));
}
