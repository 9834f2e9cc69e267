/* request_lifecycle.c: communicators, groups, operators, registrations, graphs, events and memory are used
 * before they are ready, after their end, or ended twice. */
#define CLASS "request lifecycle"
#include <sys/wait.h>

#include <pthread.h>

#include "bugs.h"

static const size_t BYTES = N * sizeof(float);

static ncclComm_t init(const struct job *job) {
  ncclComm_t comm;
  NCCL(ncclCommInitRank(&comm, job->size, job->id, job->rank));
  return comm;
}

static void wait_until_ready(ncclComm_t comm) {
  ncclResult_t state;
  do NCCL(ncclCommGetAsyncError(comm, &state));
  while (state == ncclInProgress);
  NCCL(state);
}

/* ---- communicators ---- */

CASE_BARE(used_after_destroy, 2,
          .says = {"ncclAllReduce", "destroyed|no communicator|not a communicator|is not"},
          .processes = true) {
  ncclComm_t own = init(job);
  sum(in, out, N, own, stream);
  CUDA(cudaStreamSynchronize(stream));
  if (!bug) sum(in, out, N, own, stream);
  NCCL(ncclCommDestroy(own));
  if (bug) sum(in, out, N, own, stream);
}

CASE_BARE(used_after_abort, 2, .says = {"ncclAllReduce", "abort|destroyed|is not"}) {
  ncclComm_t own = init(job);
  sum(in, out, N, own, stream);
  CUDA(cudaStreamSynchronize(stream));
  NCCL(ncclCommAbort(own));
  if (bug) sum(in, out, N, own, stream);
}

CASE_BARE(used_after_finalize, 2, .says = {"ncclBroadcast", "finali", "rank [01]"}, .processes = true) {
  ncclComm_t own = init(job);
  if (bug) NCCL(ncclCommFinalize(own));
  NCCL(ncclBroadcast(in, out, N, ncclFloat, 0, own, stream));
  if (!bug) NCCL(ncclCommFinalize(own));
  NCCL(ncclCommDestroy(own));
}

CASE_BARE(used_after_revoke, 2, .says = {"ncclAllGather", "revoked", "rank [01]"}) {
  ncclComm_t own = init(job);
  if (bug) NCCL(ncclCommRevoke(own, NCCL_REVOKE_DEFAULT));
  NCCL(ncclAllGather(in, out, N, ncclFloat, own, stream));
  CUDA(cudaStreamSynchronize(stream));
  if (!bug) NCCL(ncclCommRevoke(own, NCCL_REVOKE_DEFAULT));
  NCCL(ncclCommDestroy(own));
}

CASE_BARE(destroyed_twice, 2, .says = {"ncclCommDestroy", "destroyed|is not|already"}, .processes = true) {
  ncclComm_t own = init(job);
  NCCL(ncclCommDestroy(own));
  if (bug) NCCL(ncclCommDestroy(own)); /* once by its owner, once at exit */
}

CASE_BARE(destroyed_after_abort, 2, .says = {"ncclCommDestroy", "abort|destroyed|is not|already"}) {
  ncclComm_t own = init(job);
  NCCL(ncclCommAbort(own));
  if (bug) NCCL(ncclCommDestroy(own));
}

CASE_BARE(finalized_twice, 2, .says = {"ncclCommFinalize", "finali", "rank [01]"}) {
  ncclComm_t own = init(job);
  NCCL(ncclCommFinalize(own));
  if (bug) NCCL(ncclCommFinalize(own));
  NCCL(ncclCommDestroy(own));
}

CASE_BARE(split_after_destroy, 2, .says = {"ncclCommSplit", "destroyed|is not|no communicator"}) {
  ncclComm_t own = init(job), child = NULL;
  if (bug) NCCL(ncclCommDestroy(own));
  NCCL(ncclCommSplit(own, 0, rank, &child, NULL));
  if (!bug) NCCL(ncclCommDestroy(own));
  NCCL(ncclCommDestroy(child));
}

CASE_BARE(queried_after_destroy, 2,
          .says = {"ncclCommUserRank|ncclCommCount", "destroyed|is not|no communicator"}) {
  ncclComm_t own = init(job);
  int number = 0;
  if (!bug) NCCL(ncclCommUserRank(own, &number));
  NCCL(ncclCommDestroy(own));
  if (bug) NCCL(ncclCommUserRank(own, &number));
}

CASE_BARE(destroyed_by_another_rank, 2, .says = {"rank [01]|destroyed|is not"}) {
  static ncclComm_t shared[2]; /* both threads believe to own the handle of rank 0 */
  ncclComm_t own = shared[rank] = init(job);
  sum(in, out, N, own, stream);
  CUDA(cudaStreamSynchronize(stream));
  NCCL(ncclCommDestroy(shared[bug ? 0 : rank]));
}

CASE_BARE(destroyed_while_others_run, 3, .says = {"rank 2 "}, .processes = true) {
  ncclComm_t own = init(job);
  const int steps = bug && rank == 2 ? 1 : 2;
  for (int step = 0; step < steps; step++) sum(in, out, N, own, stream);
  CUDA(cudaStreamSynchronize(stream));
  NCCL(ncclCommDestroy(own));
}

CASE_BARE(nonblocking_not_polled, 2,
          .says = {"ncclAllReduce", "not ready|still being|in progress|ncclInProgress|poll"},
          .processes = true) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclComm_t own;
  config.blocking = 0;
  if (bug && rank == 1) sleep(2); /* the last rank is late */
  (void)ncclCommInitRankConfig(&own, size, job->id, rank, &config);
  if (!bug) wait_until_ready(own);
  const ncclResult_t result = ncclAllReduce(in, out, N, ncclFloat, ncclSum, own, stream);
  if (bug || result != ncclInProgress) NCCL(result);
  wait_until_ready(own);
  CUDA(cudaStreamSynchronize(stream));
  NCCL(ncclCommDestroy(own));
}

CASE_BARE(nonblocking_destroyed_at_once, 2, .says = {"ncclCommDestroy", "still being made|poll"}) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclComm_t own;
  config.blocking = 0;
  if (rank == 1 && bug) sleep(2);
  (void)ncclCommInitRankConfig(&own, size, job->id, rank, &config);
  if (!bug || rank == 1) wait_until_ready(own);
  NCCL(ncclCommDestroy(own));
}

CASE(nonblocking_split_not_polled, 2, .says = {"ncclBroadcast", "not ready|still being|poll|NULL"}) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclComm_t child = NULL;
  config.blocking = 0;
  const bool late = bug && rank == 1;
  if (!late) (void)ncclCommSplit(comm, 0, rank, &child, &config);
  if (late) sleep(2); /* rank 0's call ends the program before */
  if (late) (void)ncclCommSplit(comm, 0, rank, &child, &config);
  if (!bug || rank == 1) wait_until_ready(child);
  NCCL(ncclBroadcast(in, out, N, ncclFloat, 0, child, stream));
  CUDA(cudaStreamSynchronize(stream));
  NCCL(ncclCommDestroy(child));
}

CASE_BARE(id_reused, 2, .says = {"ncclCommInitRank", "unique id has made a communicator"}) {
  ncclComm_t own = init(job), second;
  NCCL(ncclCommDestroy(own));
  if (bug) {
    NCCL(ncclCommInitRank(&second, size, job->id, rank));
    NCCL(ncclCommDestroy(second));
  }
}

CASE(used_in_forked_child, 2, .says = {"fork|child"}, .processes = true) {
  int status = 0;
  sum(in, out, N, comm, stream);
  CUDA(cudaStreamSynchronize(stream));
  if (rank != 0) return;
  fflush(NULL);
  const pid_t worker = fork(); /* a data loader that logs the loss itself */
  if (worker == 0) {
    if (bug) {
      const ncclResult_t result = ncclAllReduce(in, out, N, ncclFloat, ncclSum, comm, stream);
      if (result != ncclSuccess) fprintf(stderr, "in the child: %s\n", ncclGetLastError(NULL));
      _exit(result != ncclSuccess);
    }
    _exit(0);
  }
  waitpid(worker, &status, 0);
  if (status != 0) exit(1);
}

CASE(device_used_in_forked_child, 2, .says = {"fork", "child"}) {
  int status = 0;
  if (rank != 0) return;
  fflush(NULL);
  const pid_t worker = fork(); /* a data loader that moves its batch to the device itself */
  if (worker == 0) {
    float *batch = NULL;
    _exit(bug && cudaMalloc((void **)&batch, BYTES) != cudaSuccess);
  }
  waitpid(worker, &status, 0);
  if (status != 0) exit(1);
}

CASE(destroyed_in_forked_child, 2, .says = {"fork|child"}) {
  int status = 0;
  if (rank != 0) return;
  fflush(NULL);
  const pid_t worker = fork();
  if (worker == 0) {
    const ncclResult_t result = bug ? ncclCommDestroy(comm) : ncclSuccess; /* destructors run there, too */
    if (result != ncclSuccess) fprintf(stderr, "in the child: %s\n", ncclGetLastError(NULL));
    _exit(result != ncclSuccess);
  }
  waitpid(worker, &status, 0);
  if (status != 0) exit(1);
}

/* ---- groups ---- */

CASE(group_never_ended, 2, .says = {"group|ncclGroupEnd", "rank [01]|ncclGroupEnd|request_lifecycle.c"},
     .processes = true) {
  NCCL(ncclGroupStart());
  sum(in, out, N, comm, stream);
  if (!bug) NCCL(ncclGroupEnd());
  CUDA(cudaStreamSynchronize(stream)); /* nothing was launched */
}

CASE(group_left_by_return, 2, .says = {"group"}) {
  NCCL(ncclGroupStart());
  const ncclResult_t result = ncclBroadcast(in, bug ? NULL : out, N, ncclFloat, 0, comm, stream);
  if (result != ncclSuccess) return; /* the error is reported by the caller, the group stays open */
  NCCL(ncclGroupEnd());
}

CASE(group_ended_twice, 2, .says = {"ncclGroupEnd", "no open group"}) {
  NCCL(ncclGroupStart());
  sum(in, out, N, comm, stream);
  NCCL(ncclGroupEnd());
  if (bug) NCCL(ncclGroupEnd());
}

CASE(group_ended_but_not_started, 2, .says = {"ncclGroupEnd", "no open group"}) {
  if (!bug) NCCL(ncclGroupStart());
  sum(in, out, N, comm, stream);
  NCCL(ncclGroupEnd());
}

CASE(nested_group_ended_once, 2, .says = {"group"}) {
  NCCL(ncclGroupStart());
  NCCL(ncclGroupStart());
  sum(in, out, N, comm, stream);
  NCCL(ncclGroupEnd());
  if (!bug) NCCL(ncclGroupEnd());
}

CASE(destroyed_in_open_group, 2, .says = {"group", "rank [01]"}) {
  ncclComm_t child = NULL;
  NCCL(ncclCommSplit(comm, 0, rank, &child, NULL));
  NCCL(ncclGroupStart());
  sum(in, out, N, child, stream);
  if (bug) NCCL(ncclCommDestroy(child));
  NCCL(ncclGroupEnd());
  CUDA(cudaStreamSynchronize(stream));
  if (!bug) NCCL(ncclCommDestroy(child));
}

static void *destroy_comm(void *argument) {
  NCCL(ncclCommDestroy((ncclComm_t)argument));
  return NULL;
}

static void on_other_thread(void *(*run)(void *), void *argument) {
  pthread_t thread;
  if (pthread_create(&thread, NULL, run, argument) != 0) exit(3);
  pthread_join(thread, NULL);
}

CASE(destroyed_by_thread_with_group_open_elsewhere, 2,
     .says = {"ncclCommDestroy at request_lifecycle.c:[0-9]+ .destroy_comm.: rank [01] of comm",
              "has ncclAllReduce of another thread, called at request_lifecycle.c:[0-9]+",
              "in a group that is still open"},
     .processes = true) {
  ncclComm_t child = NULL;
  NCCL(ncclCommSplit(comm, 0, rank, &child, NULL));
  NCCL(ncclGroupStart());
  sum(in, out, N, child, stream);
  if (bug) on_other_thread(destroy_comm, child);
  NCCL(ncclGroupEnd());
  CUDA(cudaStreamSynchronize(stream));
  if (!bug) on_other_thread(destroy_comm, child);
}

static void *abort_comm(void *argument) {
  NCCL(ncclCommAbort((ncclComm_t)argument));
  return NULL;
}

CASE(aborted_by_thread_with_group_open_elsewhere, 2,
     .says = {"ncclCommAbort at request_lifecycle.c:[0-9]+ .abort_comm.: rank [01] of comm",
              "has ncclAllReduce of another thread, called at request_lifecycle.c:[0-9]+",
              "in a group that is still open"}) {
  ncclComm_t child = NULL;
  NCCL(ncclCommSplit(comm, 0, rank, &child, NULL));
  NCCL(ncclGroupStart());
  sum(in, out, N, child, stream);
  if (bug) on_other_thread(abort_comm, child);
  NCCL(ncclGroupEnd());
  CUDA(cudaStreamSynchronize(stream));
  if (!bug) on_other_thread(abort_comm, child);
}

/* Whichever of the two comes first, the other one's error names both. */
CASE(destroyed_while_a_thread_calls, 2,
     .says = {"ncclAllReduce", "ncclCommDestroy", "another thread|destroyed"}) {
  ncclComm_t child = NULL;
  NCCL(ncclCommSplit(comm, 0, rank, &child, NULL));
  pthread_t thread;
  if (bug && pthread_create(&thread, NULL, destroy_comm, child) != 0) exit(3);
  for (int step = 0; step < (bug ? 1000000 : 100); step++) sum(in, out, N, child, stream);
  CUDA(cudaStreamSynchronize(stream));
  if (bug) pthread_join(thread, NULL);
  else on_other_thread(destroy_comm, child);
}

CASE(split_used_within_its_group, 2, .says = {"ncclAllReduce", "NULL|communicator"}) {
  ncclComm_t child = NULL;
  NCCL(ncclGroupStart());
  NCCL(ncclCommSplit(comm, 0, rank, &child, NULL));
  if (bug) sum(in, out, N, child, stream); /* it exists after ncclGroupEnd() */
  NCCL(ncclGroupEnd());
  if (!bug) sum(in, out, N, child, stream);
  CUDA(cudaStreamSynchronize(stream));
  NCCL(ncclCommDestroy(child));
}

/* ---- operators ---- */

CASE(operator_used_after_destroy, 2, .says = {"ncclAllReduce", "operator", "rank [01]"}) {
  float scale = 0.5f;
  ncclRedOp_t scaled;
  NCCL(ncclRedOpCreatePreMulSum(&scaled, &scale, ncclFloat, ncclScalarHostImmediate, comm));
  if (bug) NCCL(ncclRedOpDestroy(scaled, comm));
  NCCL(ncclAllReduce(in, out, N, ncclFloat, scaled, comm, stream));
  if (!bug) NCCL(ncclRedOpDestroy(scaled, comm));
}

CASE(operator_destroyed_twice, 2, .says = {"ncclRedOpDestroy", "operator"}) {
  float scale = 2;
  ncclRedOp_t scaled;
  NCCL(ncclRedOpCreatePreMulSum(&scaled, &scale, ncclFloat, ncclScalarHostImmediate, comm));
  NCCL(ncclRedOpDestroy(scaled, comm));
  if (bug) NCCL(ncclRedOpDestroy(scaled, comm));
}

CASE(operator_of_another_communicator, 2, .says = {"operator", "rank [01]"}) {
  ncclComm_t other = new_copy(job, comm);
  float scale = 2;
  ncclRedOp_t scaled;
  NCCL(ncclRedOpCreatePreMulSum(&scaled, &scale, ncclFloat, ncclScalarHostImmediate, comm));
  NCCL(ncclAllReduce(in, out, N, ncclFloat, scaled, bug ? other : comm, stream));
  NCCL(ncclRedOpDestroy(scaled, comm));
}

/* ---- registrations ---- */

CASE(deregistered_twice, 2, .says = {"ncclCommDeregister", "handle|regist"}) {
  void *handle;
  NCCL(ncclCommRegister(comm, in, BYTES, &handle));
  NCCL(ncclCommDeregister(comm, handle));
  if (bug) NCCL(ncclCommDeregister(comm, handle));
}

CASE(deregistered_from_another_communicator, 2, .says = {"ncclCommDeregister", "handle|communicator"}) {
  ncclComm_t other = new_copy(job, comm);
  void *handle;
  NCCL(ncclCommRegister(comm, in, BYTES, &handle));
  NCCL(ncclCommDeregister(bug ? other : comm, handle));
}

CASE_BARE(deregistered_after_destroy, 2, .says = {"ncclCommDeregister", "destroyed|is not|no communicator"}) {
  ncclComm_t own = init(job);
  void *handle;
  NCCL(ncclCommRegister(own, in, BYTES, &handle));
  if (!bug) NCCL(ncclCommDeregister(own, handle));
  NCCL(ncclCommDestroy(own));
  if (bug) NCCL(ncclCommDeregister(own, handle));
}

/* ---- memory ---- */

CASE(buffer_freed_before_the_call, 2, .says = {"freed", "rank [01]", "ncclAllReduce"}, .processes = true) {
  float *memory;
  CUDA(cudaMalloc((void **)&memory, BYTES));
  if (bug) CUDA(cudaFree(memory));
  sum(memory, memory, N, comm, stream);
  CUDA(cudaStreamSynchronize(stream));
  if (!bug) CUDA(cudaFree(memory));
}

CASE(send_buffer_freed_before_the_call, 2, .says = {"freed", "rank 0", "ncclSend"}) {
  float *memory;
  CUDA(cudaMalloc((void **)&memory, BYTES));
  if (bug && rank == 0) CUDA(cudaFree(memory));
  if (rank == 0) NCCL(ncclSend(memory, N, ncclFloat, 1, comm, stream));
  else NCCL(ncclRecv(memory, N, ncclFloat, 0, comm, stream));
  CUDA(cudaStreamSynchronize(stream));
  CUDA(cudaFree(memory));
}

CASE(freed_twice, 2, .says = {"cudaFree", "cudaErrorInvalidValue|freed"}) {
  float *memory;
  CUDA(cudaMalloc((void **)&memory, BYTES));
  CUDA(cudaFree(memory));
  if (bug) CUDA(cudaFree(memory));
}

CASE(communication_memory_freed_twice, 2, .says = {"ncclMemFree", "fre.*(failed|already)"}) {
  float *memory;
  NCCL(ncclMemAlloc((void **)&memory, BYTES));
  NCCL(ncclMemFree(memory));
  if (bug) NCCL(ncclMemFree(memory));
}

CASE(freed_inside_allocation, 2, .says = {"cudaFree", "cudaErrorInvalidValue|inside"}) {
  float *memory;
  CUDA(cudaMalloc((void **)&memory, BYTES));
  if (bug) CUDA(cudaFree(memory + 64)); /* the pointer was advanced */
  CUDA(cudaFree(memory));
}

CASE(host_memory_freed_as_device_memory, 2, .says = {"cudaFree", "cudaErrorInvalidValue|belongs"}) {
  float *memory;
  CUDA(cudaMallocHost((void **)&memory, BYTES));
  if (bug) CUDA(cudaFree(memory));
  else CUDA(cudaFreeHost(memory));
}

CASE(graph_uses_freed_buffer, 2, .says = {"freed", "cudaGraphLaunch|ncclAllReduce"}) {
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  float *memory;
  CUDA(cudaMalloc((void **)&memory, BYTES));
  CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  sum(memory, memory, N, comm, stream);
  CUDA(cudaStreamEndCapture(stream, &graph));
  CUDA(cudaGraphInstantiate(&exec, graph, 0));
  if (bug) CUDA(cudaFree(memory)); /* the tensor of the capture went out of scope */
  CUDA(cudaGraphLaunch(exec, stream));
  CUDA(cudaStreamSynchronize(stream));
  if (!bug) CUDA(cudaFree(memory));
  CUDA(cudaGraphExecDestroy(exec));
  CUDA(cudaGraphDestroy(graph));
}

CASE(device_reset_before_destroy, 1, .says = {"cudaDeviceReset"}) {
  ncclComm_t child = NULL;
  NCCL(ncclCommSplit(comm, 0, rank, &child, NULL));
  if (bug) CUDA(cudaDeviceReset()); /* its communicators still have memory and streams there */
  NCCL(ncclCommDestroy(child));
}

/* ---- streams, events, graphs ---- */

CASE(stream_used_after_destroy, 2, .says = {"ncclAllReduce", "stream|invalid resource handle"}) {
  cudaStream_t own;
  CUDA(cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking));
  if (bug) CUDA(cudaStreamDestroy(own));
  sum(in, out, N, comm, own);
  if (!bug) CUDA(cudaStreamDestroy(own));
}

CASE(event_used_after_destroy, 2,
     .says = {"cuda(EventRecord|StreamWaitEvent)", "cudaErrorInvalidResourceHandle"}) {
  cudaEvent_t event;
  CUDA(cudaEventCreate(&event));
  if (bug) CUDA(cudaEventDestroy(event));
  CUDA(cudaEventRecord(event, stream));
  CUDA(cudaStreamWaitEvent(new_stream(job), event, 0));
  if (!bug) CUDA(cudaEventDestroy(event));
}

CASE(graph_used_after_destroy, 2, .says = {"cudaGraphLaunch", "cudaErrorInvalid"}) {
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  sum(in, out, N, comm, stream);
  CUDA(cudaStreamEndCapture(stream, &graph));
  CUDA(cudaGraphInstantiate(&exec, graph, 0));
  CUDA(cudaGraphDestroy(graph));
  if (bug) CUDA(cudaGraphExecDestroy(exec));
  CUDA(cudaGraphLaunch(exec, stream));
  CUDA(cudaStreamSynchronize(stream));
  if (!bug) CUDA(cudaGraphExecDestroy(exec));
}

CASE(graph_launched_after_destroy_of_its_communicator, 2,
     .says = {"cudaGraphLaunch: the graph holds a kernel of rank [01] of comm .*, which is destroyed"}) {
  ncclComm_t child = NULL;
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  NCCL(ncclCommSplit(comm, 0, rank, &child, NULL));
  CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  sum(in, out, N, child, stream);
  CUDA(cudaStreamEndCapture(stream, &graph));
  CUDA(cudaGraphInstantiate(&exec, graph, 0));
  if (bug) NCCL(ncclCommDestroy(child));
  CUDA(cudaGraphLaunch(exec, stream));
  CUDA(cudaStreamSynchronize(stream));
  CUDA(cudaGraphExecDestroy(exec));
  CUDA(cudaGraphDestroy(graph));
  if (!bug) NCCL(ncclCommDestroy(child));
}

CASE(capture_never_ended, 2, .says = {"captur|cudaErrorStreamCapture"}) {
  cudaGraph_t graph;
  CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  sum(in, out, N, comm, stream);
  if (!bug) CUDA(cudaStreamEndCapture(stream, &graph));
  CUDA(cudaStreamSynchronize(stream));
  if (!bug) CUDA(cudaGraphDestroy(graph));
}

CASE(error_of_a_peer_ignored, 2, .says = {"rank [01] .*(failed earlier|different)|different"}) {
  /* The result of the first call is not looked at; the next one is refused. */
  (void)ncclAllReduce(in, out, bug ? (size_t)(N + rank) : N, ncclFloat, ncclSum, comm, stream);
  (void)cudaStreamSynchronize(stream);
  sum(in, out, N, comm, stream);
}
