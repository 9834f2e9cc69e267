/* resource_leak.c: the program ends, and something that it made with NCCL's calls still exists. */
#define CLASS "resource leak"
#include "bugs.h"

static ncclComm_t init(const struct job *job) {
  ncclComm_t comm;
  NCCL(ncclCommInitRank(&comm, job->size, job->id, job->rank));
  return comm;
}

CASE_BARE(communicator_never_destroyed, 2,
          .says = {"never destroyed", "ranks? [01]", "ncclCommInitRank|resource_leak.c"}, .processes = true) {
  ncclComm_t own = init(job);
  sum(in, out, N, own, stream);
  CUDA(cudaStreamSynchronize(stream));
  if (!bug) NCCL(ncclCommDestroy(own));
}

CASE_BARE(one_rank_never_destroys, 3, .says = {"never destroyed", "rank 2"}) {
  ncclComm_t own = init(job);
  sum(in, out, N, own, stream);
  CUDA(cudaStreamSynchronize(stream));
  if (!(bug && rank == 2)) NCCL(ncclCommDestroy(own));
}

CASE(child_never_destroyed, 2, .says = {"never destroyed", "ncclCommSplit|resource_leak.c"},
     .processes = true) {
  ncclComm_t child;
  NCCL(ncclCommSplit(comm, 0, rank, &child, NULL));
  sum(in, out, N, child, stream);
  CUDA(cudaStreamSynchronize(stream));
  if (!bug) NCCL(ncclCommDestroy(child));
}

CASE(children_of_each_epoch, 2, .says = {"never destroyed", "ncclCommSplit|resource_leak.c"}) {
  ncclComm_t child = NULL;
  for (int epoch = 0; epoch < 3; epoch++) {
    if (!bug && child) NCCL(ncclCommDestroy(child));
    NCCL(ncclCommSplit(comm, 0, rank, &child, NULL)); /* the last one is lost */
  }
  NCCL(ncclCommDestroy(child));
}

CASE_BARE(parent_of_shrink, 2, .says = {"never destroyed"}) {
  int lost[] = {1};
  ncclComm_t own = init(job), survivors = NULL;
  if (rank == 0) NCCL(ncclCommShrink(own, lost, 1, &survivors, NULL, NCCL_SHRINK_DEFAULT));
  if (survivors) NCCL(ncclCommDestroy(survivors));
  if (!bug || rank != 0) NCCL(ncclCommDestroy(own)); /* replaced by the smaller one, and forgotten */
}

CASE_BARE(finalized_but_not_destroyed, 2, .says = {"never destroyed", "ranks? [01]"}) {
  ncclComm_t own = init(job);
  sum(in, out, N, own, stream);
  NCCL(ncclCommFinalize(own));
  if (!bug) NCCL(ncclCommDestroy(own));
}

CASE_BARE(leaked_on_error_path, 2, .says = {"never destroyed", "ranks? [01]"}) {
  ncclComm_t own = init(job);
  const ncclResult_t result = ncclBroadcast(in, NULL, N, ncclFloat, 0, own, stream);
  if (bug && result != ncclSuccess) return; /* the error is handled, the communicator is not */
  NCCL(ncclCommDestroy(own));
}

CASE_BARE(init_all_destroys_the_first, 1, .says = {"never destroyed", "rank 1"}) {
  ncclComm_t comms[2];
  NCCL(ncclCommInitAll(comms, 2, NULL));
  for (int i = 0; i < (bug ? 1 : 2); i++) NCCL(ncclCommDestroy(comms[i]));
}

CASE_BARE(nonblocking_never_destroyed, 2, .says = {"never destroyed", "ranks? [01]"}) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclResult_t state = ncclInProgress;
  ncclComm_t own;
  config.blocking = 0;
  (void)ncclCommInitRankConfig(&own, size, job->id, rank, &config);
  while (state == ncclInProgress) NCCL(ncclCommGetAsyncError(own, &state));
  NCCL(state);
  if (!bug) NCCL(ncclCommDestroy(own));
}

CASE(registration_never_removed, 2, .says = {"ncclCommDeregister|never deregistered", "ranks? [01]"},
     .processes = true) {
  void *handle;
  NCCL(ncclCommRegister(comm, in, SIZE * sizeof(float), &handle));
  sum(in, out, N, comm, stream);
  CUDA(cudaStreamSynchronize(stream));
  if (!bug) NCCL(ncclCommDeregister(comm, handle));
}

CASE(one_registration_of_two, 2, .says = {"ncclCommDeregister|never deregistered", "ranks? [01]"}) {
  void *handles[2];
  NCCL(ncclCommRegister(comm, in, SIZE * sizeof(float), &handles[0]));
  NCCL(ncclCommRegister(comm, out, SIZE * sizeof(float), &handles[1]));
  for (int i = 0; i < (bug ? 1 : 2); i++) NCCL(ncclCommDeregister(comm, handles[i]));
}

CASE(window_never_removed, 2, .says = {"ncclCommWindowDeregister|never deregistered", "ranks? [01]"}) {
  float *memory;
  ncclWindow_t window;
  NCCL(ncclMemAlloc((void **)&memory, NCCL_WIN_REQUIRED_ALIGNMENT));
  NCCL(ncclCommWindowRegister(comm, memory, NCCL_WIN_REQUIRED_ALIGNMENT, &window, NCCL_WIN_COLL_SYMMETRIC));
  sum(memory, memory, N, comm, stream);
  CUDA(cudaStreamSynchronize(stream));
  if (!bug) NCCL(ncclCommWindowDeregister(comm, window));
  NCCL(ncclMemFree(memory));
}

CASE(communication_memory_never_freed, 2, .says = {"ncclMemFree|never freed"}, .processes = true) {
  float *memory;
  NCCL(ncclMemAlloc((void **)&memory, N * sizeof(float)));
  sum(memory, memory, N, comm, stream);
  CUDA(cudaStreamSynchronize(stream));
  if (!bug) NCCL(ncclMemFree(memory));
}

CASE(communication_memory_of_each_step, 2, .says = {"ncclMemFree|never freed"}) {
  float *memory = NULL;
  for (int step = 0; step < 3; step++) {
    if (!bug) NCCL(ncclMemFree(memory));
    NCCL(ncclMemAlloc((void **)&memory, N * sizeof(float)));
    sum(memory, memory, N, comm, stream);
    CUDA(cudaStreamSynchronize(stream));
  }
  NCCL(ncclMemFree(memory));
}

CASE(registered_memory_freed_first, 2, .says = {"[Rr]egister", "rank|free"}) {
  float *memory;
  void *handle;
  CUDA(cudaMalloc((void **)&memory, N * sizeof(float)));
  NCCL(ncclCommRegister(comm, memory, N * sizeof(float), &handle));
  sum(memory, memory, N, comm, stream);
  CUDA(cudaStreamSynchronize(stream));
  if (bug) CUDA(cudaFree(memory)); /* transports may still map it */
  NCCL(ncclCommDeregister(comm, handle));
  if (!bug) CUDA(cudaFree(memory));
}
