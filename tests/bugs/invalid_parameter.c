/* invalid_parameter.c: one argument of one call is wrong in itself: no comparison with other ranks is needed.
 */
#define CLASS "invalid parameter"
#include <limits.h>
#include <stdint.h>

#include "bugs.h"

#define SAYS(...) .says = {__VA_ARGS__}

static const size_t BYTES = N * sizeof(float);

/* ---- numbers ---- */

CASE(root_negative, 2, SAYS("ncclBroadcast", "root -1", "rank [01]"), .processes = true) {
  NCCL(ncclBroadcast(in, out, N, ncclFloat, bug ? -1 : 0, comm, stream));
}

CASE(root_equals_size, 2, SAYS("ncclReduce", "root 2", "rank [01]")) {
  NCCL(ncclReduce(in, out, N, ncclFloat, ncclSum, bug ? size : size - 1, comm, stream));
}

CASE(root_of_the_world, 4, SAYS("ncclGather", "root 3", "rank [01]")) {
  ncclComm_t half = new_split(job, comm, rank / 2);
  NCCL(ncclGather(in, out, N, ncclFloat, bug ? 3 : 1, half, stream));
}

CASE(dtype_unknown, 2, SAYS("ncclAllReduce", "type 12", "rank [01]")) {
  NCCL(ncclAllReduce(in, out, N, bug ? (ncclDataType_t)ncclNumTypes : ncclFloat, ncclSum, comm, stream));
}

CASE(op_unknown, 2, SAYS("ncclAllReduce", "operator|op ", "rank [01]")) {
  NCCL(ncclAllReduce(in, out, N, ncclFloat, bug ? (ncclRedOp_t)77 : ncclSum, comm, stream));
}

CASE(op_and_dtype_exchanged, 2, SAYS("ncclReduceScatter", "operator|type", "rank [01]")) {
  const int type = bug ? (int)ncclMax : (int)ncclFloat, op = bug ? (int)ncclFloat : (int)ncclMax;
  NCCL(ncclReduceScatter(in, out, N, (ncclDataType_t)type, (ncclRedOp_t)op, comm, stream));
}

CASE(count_minus_one, 2, SAYS("ncclAllReduce", "count", "rank [01]")) {
  const long remaining = bug ? -1 : N; /* becomes a size_t */
  sum(in, out, (size_t)remaining, comm, stream);
}

CASE(count_overflows, 2, SAYS("ncclAllGather", "count", "rank [01]")) {
  NCCL(ncclAllGather(in, out, bug ? SIZE_MAX / 4 + 2 : N, ncclFloat, comm, stream)); /* in bytes it wraps */
}

CASE(peer_negative, 2, SAYS("ncclSend", "-1", "rank 0")) {
  if (rank == 0) NCCL(ncclSend(in, N, ncclFloat, bug ? rank - 1 : 1, comm, stream)); /* no predecessor */
  else NCCL(ncclRecv(out, N, ncclFloat, 0, comm, stream));
}

CASE(peer_equals_size, 2, SAYS("ncclSend", "2", "rank 1"), .processes = true) {
  NCCL(ncclGroupStart());
  NCCL(ncclSend(in, N, ncclFloat, bug ? rank + 1 : (rank + 1) % size, comm, stream)); /* no wrap-around */
  NCCL(ncclRecv(out, N, ncclFloat, (rank + size - 1) % size, comm, stream));
  NCCL(ncclGroupEnd());
}

/* ---- buffers ---- */

CASE(sendbuff_null, 2, SAYS("ncclAllReduce", "sendbuff is NULL", "rank [01]")) {
  sum(bug ? NULL : in, out, N, comm, stream);
}

CASE(recvbuff_null_at_root, 2, SAYS("ncclReduce", "recvbuff is NULL", "rank 1")) {
  NCCL(ncclReduce(in, rank == 1 && !bug ? out : NULL, N, ncclFloat, ncclSum, 1, comm, stream));
}

CASE(sixteen_times_the_allocation, 4, SAYS("ncclAllReduce", "bytes left in its allocation", "rank [0-3]"),
     .processes = true) {
  float *memory = new_floats(job, N);
  sum(memory, memory, bug ? 16 * N : N, comm, stream);
}

CASE(recvbuff_of_one_part, 4, SAYS("ncclAllGather", "recvbuff", "bytes left in its allocation", "rank [0-3]"),
     .processes = true) {
  float *memory = new_floats(job, bug ? N : (size_t)size * N); /* it receives a part of each rank */
  NCCL(ncclAllGather(in, memory, N, ncclFloat, comm, stream));
}

CASE(sendbuff_of_one_part, 2, SAYS("ncclReduceScatter", "sendbuff", "bytes left")) {
  float *memory = new_floats(job, bug ? N : 2 * N);
  NCCL(ncclReduceScatter(memory, out, N, ncclFloat, ncclSum, comm, stream));
}

CASE(gather_buffer_of_one_part, 3, SAYS("ncclGather", "recvbuff", "bytes left", "rank 2")) {
  float *memory = new_floats(job, bug ? N : (size_t)size * N);
  NCCL(ncclGather(in, memory, N, ncclFloat, 2, comm, stream));
}

CASE(offset_reaches_past_the_end, 2, SAYS("bytes left", "rank [01]")) {
  float *memory = new_floats(job, 2 * N);
  sum(memory + (bug ? N + 1 : N), out, N, comm, stream);
}

CASE(count_in_bytes_on_all_ranks, 2, SAYS("bytes left", "rank [01]")) {
  float *memory = new_floats(job, N);
  sum(memory, memory, bug ? N * sizeof(float) : N, comm, stream);
}

CASE(receive_buffer_too_small, 2, SAYS("ncclRecv", "bytes left", "rank 1")) {
  float *memory = new_floats(job, N / 2);
  const size_t count = bug ? N : N / 2;
  if (rank == 0) NCCL(ncclSend(in, count, ncclFloat, 1, comm, stream));
  else NCCL(ncclRecv(memory, count, ncclFloat, 0, comm, stream));
}

CASE(memory_of_malloc, 2, SAYS("ncclAllReduce", "not memory of a device|host", "rank [01]"),
     .processes = true) {
  float *host = (float *)calloc(N, sizeof(float));
  sum(bug ? host : in, out, N, comm, stream);
  CUDA(cudaStreamSynchronize(stream));
  free(host);
}

CASE(variable_on_the_stack, 2, SAYS("not memory of a device|host", "rank [01]")) {
  float loss[N] = {0};
  NCCL(ncclReduce(bug ? loss : in, out, N, ncclFloat, ncclSum, 0, comm, stream));
  CUDA(cudaStreamSynchronize(stream));
}

CASE(memory_of_another_device, 2, SAYS("memory of device", "rank [01]")) {
  CUDA(cudaSetDevice(bug ? 5 : rank)); /* the device was changed for another reason */
  float *memory = new_floats(job, N);
  CUDA(cudaSetDevice(rank));
  sum(memory, memory, N, comm, stream);
}

CASE_ALL(buffers_in_another_order, 2, SAYS("memory of device", "rank [01]")) {
  NCCL(ncclGroupStart());
  for (int i = 0; i < size; i++)
    sum(job->ins[bug ? size - 1 - i : i], job->outs[i], N, job->comms[i], job->streams[i]);
  NCCL(ncclGroupEnd());
}

CASE(buffers_overlap, 2, SAYS("overlap", "rank [01]"), .processes = true) {
  sum(in, in + (bug ? N / 2 : N), N, comm, stream);
}

CASE(all_gather_in_place_at_wrong_part, 2, SAYS("ncclAllGather", "overlap", "rank 1")) {
  NCCL(ncclAllGather(out + (bug ? 0 : rank) * N, out, N, ncclFloat, comm, stream));
}

CASE(reduce_scatter_in_place_at_wrong_part, 2, SAYS("ncclReduceScatter", "overlap", "rank 1")) {
  NCCL(ncclReduceScatter(in, in + (bug ? 0 : rank) * N, N, ncclFloat, ncclSum, comm, stream));
}

CASE(all_to_all_in_place, 2, SAYS("ncclAlltoAll", "overlap", "rank [01]")) {
  NCCL(ncclAlltoAll(in, bug ? in : out, N, ncclFloat, comm, stream));
}

CASE(send_and_receive_one_buffer, 2, SAYS("overlap|race", "rank [01]")) {
  NCCL(ncclGroupStart());
  NCCL(ncclSend(in, N, ncclFloat, 1 - rank, comm, stream));
  NCCL(ncclRecv(bug ? in : out, N, ncclFloat, 1 - rank, comm, stream));
  NCCL(ncclGroupEnd());
}

CASE(two_receives_to_one_buffer, 3, SAYS("overlap|race", "rank 0")) {
  NCCL(ncclGroupStart());
  for (int peer = 1; rank == 0 && peer < size; peer++)
    NCCL(ncclRecv(bug ? out : out + peer * N, N, ncclFloat, peer, comm, stream));
  if (rank != 0) NCCL(ncclSend(in, N, ncclFloat, 0, comm, stream));
  NCCL(ncclGroupEnd());
}

CASE(grouped_buckets_overlap, 2, SAYS("overlap|race", "rank [01]")) {
  NCCL(ncclGroupStart());
  sum(in, out, N, comm, stream);
  sum(in + N, out + (bug ? N - 1 : N), N, comm, stream);
  NCCL(ncclGroupEnd());
}

/* ---- streams ---- */

CASE(stream_of_another_device, 2, SAYS("stream", "device", "rank [01]"), .processes = true) {
  CUDA(cudaSetDevice(bug ? 6 : rank));
  cudaStream_t other = new_stream(job);
  CUDA(cudaSetDevice(rank));
  sum(in, out, N, comm, other);
}

CASE_ALL(streams_in_another_order, 2, SAYS("stream", "device", "rank [01]")) {
  NCCL(ncclGroupStart());
  for (int i = 0; i < size; i++)
    sum(job->ins[i], job->outs[i], N, job->comms[i], job->streams[bug ? size - 1 - i : i]);
  NCCL(ncclGroupEnd());
}

CASE(stream_uninitialized, 2, SAYS("ncclAllReduce", "stream|invalid resource handle")) {
  sum(in, out, N, comm, bug ? (cudaStream_t)0x5555 : stream);
}

/* ---- communicators ---- */

CASE(communicator_null, 2, SAYS("ncclAllReduce", "NULL")) { sum(in, out, N, bug ? NULL : comm, stream); }

CASE(communicator_uninitialized, 2, SAYS("ncclAllReduce", "communicator|is not")) {
  sum(in, out, N, bug ? (ncclComm_t)(uintptr_t)0xdeadbeef0 : comm, stream);
}

CASE(communicator_of_a_rank_without_color, 2, SAYS("NULL")) {
  ncclComm_t some = NULL;
  NCCL(ncclCommSplit(comm, rank == 0 ? 0 : NCCL_SPLIT_NOCOLOR, 0, &some, NULL));
  if (bug || some) sum(in, out, N, some, stream); /* rank 1 is not in it */
  CUDA(cudaStreamSynchronize(stream));
  NCCL(ncclCommDestroy(some));
}

CASE_BARE(rank_out_of_range, 2, SAYS("ncclCommInitRank", "rank 2|rank")) {
  ncclComm_t own;
  NCCL(ncclCommInitRank(&own, size, job->id, bug ? rank + 1 : rank)); /* counted from 1 */
  NCCL(ncclCommDestroy(own));
}

CASE_BARE(rank_joins_twice, 2, SAYS("rank|process", "twice|joined|already|two|exited"), .processes = true) {
  ncclComm_t own;
  NCCL(ncclCommInitRank(&own, size, job->id, bug ? 0 : rank)); /* every process has the same configuration */
  NCCL(ncclCommDestroy(own));
}

CASE_BARE(size_differs, 2, SAYS("ncclCommInitRank", "ranks"), .processes = true) {
  ncclComm_t own;
  NCCL(ncclCommInitRank(&own, bug && rank == 1 ? size + 1 : size, job->id, rank));
  NCCL(ncclCommDestroy(own));
}

CASE_BARE(size_counts_absent_ranks, 2, SAYS("missing: rank 2")) {
  ncclComm_t own; /* one node of the job did not start */
  NCCL(ncclCommInitRank(&own, bug ? size + 1 : size, job->id, rank));
  NCCL(ncclCommDestroy(own));
}

CASE_BARE(size_zero, 2, SAYS("ncclCommInitRank", "nranks|ranks")) {
  ncclComm_t own;
  NCCL(ncclCommInitRank(&own, bug ? 0 : size, job->id, rank));
  NCCL(ncclCommDestroy(own));
}

CASE_BARE(id_never_received, 2, SAYS("ncclCommInitRank", "id")) {
  ncclUniqueId empty; /* the broadcast of the id was forgotten */
  ncclComm_t own;
  memset(&empty, 0, sizeof empty);
  NCCL(ncclCommInitRank(&own, size, bug ? empty : job->id, rank));
  NCCL(ncclCommDestroy(own));
}

CASE_BARE(id_of_its_own, 2, SAYS("missing: rank|rank [01]"), .processes = true) {
  ncclUniqueId id = job->id;
  ncclComm_t own;
  if (bug) NCCL(ncclGetUniqueId(&id)); /* every rank makes one */
  NCCL(ncclCommInitRank(&own, size, id, rank));
  NCCL(ncclCommDestroy(own));
}

CASE_BARE(two_ranks_on_one_device, 2, SAYS("device", "rank"), .processes = true) {
  ncclComm_t own;
  if (bug) CUDA(cudaSetDevice(0)); /* cudaSetDevice(local_rank) was forgotten */
  NCCL(ncclCommInitRank(&own, size, job->id, rank));
  NCCL(ncclCommDestroy(own));
}

CASE_BARE(device_twice_in_list, 1, SAYS("ncclCommInitAll", "device")) {
  ncclComm_t comms[2];
  const int devices[] = {0, bug ? 0 : 1};
  NCCL(ncclCommInitAll(comms, 2, devices));
  for (int i = 0; i < 2; i++) NCCL(ncclCommDestroy(comms[i]));
}

CASE_BARE(device_not_there, 1, SAYS("ncclCommInitAll", "device")) {
  ncclComm_t comms[2];
  const int devices[] = {0, bug ? 99 : 1};
  NCCL(ncclCommInitAll(comms, 2, devices));
  for (int i = 0; i < 2; i++) NCCL(ncclCommDestroy(comms[i]));
}

CASE_BARE(config_not_initialized, 2, SAYS("ncclCommInitRankConfig", "config|NCCL_CONFIG_INITIALIZER")) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclComm_t own;
  if (bug) memset(&config, 0, sizeof config);
  NCCL(ncclCommInitRankConfig(&own, size, job->id, rank, &config));
  NCCL(ncclCommDestroy(own));
}

CASE_BARE(config_out_of_range, 2, SAYS("ncclCommInitRankConfig", "CTAs")) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclComm_t own;
  config.minCTAs = 8;
  config.maxCTAs = bug ? 4 : 16;
  NCCL(ncclCommInitRankConfig(&own, size, job->id, rank, &config));
  NCCL(ncclCommDestroy(own));
}

CASE(color_negative, 2, SAYS("ncclCommSplit", "color is -2")) {
  ncclComm_t child = NULL;
  NCCL(ncclCommSplit(comm, bug ? -2 : NCCL_SPLIT_NOCOLOR, 0, &child, NULL));
}

CASE(split_result_null, 2, SAYS("ncclCommSplit", "NULL")) {
  ncclComm_t child = NULL;
  NCCL(ncclCommSplit(comm, 0, rank, bug ? NULL : &child, NULL));
  NCCL(ncclCommDestroy(child));
}

CASE(shrink_excludes_itself, 2, SAYS("ncclCommShrink", "excludes itself", "rank [01]")) {
  int excluded[] = {bug ? rank : 1};
  ncclComm_t child = NULL;
  if (bug || rank == 0) NCCL(ncclCommShrink(comm, excluded, 1, &child, NULL, NCCL_SHRINK_DEFAULT));
  NCCL(ncclCommDestroy(child));
}

CASE(shrink_excludes_unknown_rank, 2, SAYS("ncclCommShrink", "excludes rank 2")) {
  int excluded[] = {bug ? 2 : 1};
  ncclComm_t child = NULL;
  if (rank == 0) NCCL(ncclCommShrink(comm, excluded, 1, &child, NULL, NCCL_SHRINK_DEFAULT));
  NCCL(ncclCommDestroy(child));
}

CASE(shrink_lists_differ, 3, SAYS("ncclCommShrink|rank", "exclude|ranks|rank")) {
  int excluded[] = {bug && rank == 0 ? 1 : 2}; /* the ranks disagree on who has failed */
  ncclComm_t child = NULL;
  if (rank != 2) NCCL(ncclCommShrink(comm, excluded, 1, &child, NULL, NCCL_SHRINK_DEFAULT));
  NCCL(ncclCommDestroy(child));
}

/* ---- operators, registrations, others ---- */

CASE(premultiplier_null, 2, SAYS("ncclRedOpCreatePreMulSum", "NULL")) {
  float scale = 2;
  ncclRedOp_t scaled;
  NCCL(ncclRedOpCreatePreMulSum(&scaled, bug ? NULL : &scale, ncclFloat, ncclScalarHostImmediate, comm));
  NCCL(ncclRedOpDestroy(scaled, comm));
}

CASE(premultiplier_of_another_type, 2, SAYS("operator", "type|half|float", "rank [01]")) {
  float scale = 2;
  ncclRedOp_t scaled;
  NCCL(ncclRedOpCreatePreMulSum(&scaled, &scale, ncclFloat, ncclScalarHostImmediate, comm));
  NCCL(ncclAllReduce(in, out, N, bug ? ncclHalf : ncclFloat, scaled, comm, stream));
  NCCL(ncclRedOpDestroy(scaled, comm));
}

CASE(premultiplier_of_the_host, 2, SAYS("ncclRedOpCreatePreMulSum|scalar", "device|host")) {
  float *scale = bug ? (float *)calloc(1, sizeof *scale) : new_floats(job, 1);
  ncclRedOp_t scaled;
  NCCL(ncclRedOpCreatePreMulSum(&scaled, scale, ncclFloat, ncclScalarDevice, comm));
  NCCL(ncclAllReduce(in, out, N, ncclFloat, scaled, comm, stream));
  CUDA(cudaStreamSynchronize(stream));
  NCCL(ncclRedOpDestroy(scaled, comm));
  if (bug) free(scale);
}

CASE(destroys_a_built_in_operator, 2, SAYS("ncclRedOpDestroy", "operator|built")) {
  if (bug) NCCL(ncclRedOpDestroy(ncclSum, comm));
}

CASE(registers_null, 2, SAYS("ncclCommRegister", "NULL")) {
  void *handle = NULL;
  NCCL(ncclCommRegister(comm, bug ? NULL : in, BYTES, &handle));
  NCCL(ncclCommDeregister(comm, handle));
}

CASE(registers_too_much, 2, SAYS("ncclCommRegister", "bytes|allocation")) {
  float *memory = new_floats(job, N);
  void *handle = NULL;
  NCCL(ncclCommRegister(comm, memory, bug ? 100 * BYTES : BYTES, &handle));
  NCCL(ncclCommDeregister(comm, handle));
}

CASE(registers_freed_memory, 2, SAYS("ncclCommRegister", "freed|not memory|device")) {
  float *memory;
  void *handle = NULL;
  CUDA(cudaMalloc((void **)&memory, BYTES));
  if (bug) CUDA(cudaFree(memory));
  NCCL(ncclCommRegister(comm, memory, BYTES, &handle));
  NCCL(ncclCommDeregister(comm, handle));
  if (!bug) CUDA(cudaFree(memory));
}

CASE(window_flags_unknown, 2, SAYS("ncclCommWindowRegister", "[Ff]lag")) {
  ncclWindow_t window;
  NCCL(ncclCommWindowRegister(comm, in, BYTES, &window, bug ? 0x40 : NCCL_WIN_DEFAULT));
  NCCL(ncclCommWindowDeregister(comm, window));
}

CASE(async_error_null, 2, SAYS("ncclCommGetAsyncError", "NULL")) {
  ncclResult_t state;
  NCCL(ncclCommGetAsyncError(comm, bug ? NULL : &state));
}

CASE(copy_past_the_end, 2, SAYS("cudaMemcpyAsync", "cudaErrorInvalidValue|bytes")) {
  float *memory = new_floats(job, N);
  CUDA(cudaMemcpyAsync(memory, in, bug ? 2 * BYTES : BYTES, cudaMemcpyDeviceToDevice, stream));
  sum(memory, memory, N, comm, stream);
}

CASE(fill_past_the_end, 2, SAYS("cudaMemsetAsync", "cudaErrorInvalidValue|bytes")) {
  float *memory = new_floats(job, N);
  CUDA(cudaMemsetAsync(memory, 0, bug ? 2 * BYTES : BYTES, stream));
  sum(memory, memory, N, comm, stream);
}

CASE(device_out_of_range, 2, SAYS("cudaSetDevice", "cudaErrorInvalidDevice")) {
  CUDA(cudaSetDevice(bug ? rank + 8 : rank)); /* the global rank on the second node */
  sum(in, out, N, comm, stream);
}
