/* nonblocking.c: non-blocking communicators. Creating, using and finalizing them returns ncclInProgress, and
 * the program polls. Then one rank calls a collective that the others do not call; the program times out,
 * aborts, and continues with new communicators. */
#include <stdio.h>
#include <stdlib.h>

#include <cuda_runtime.h>
#include <nccl.h>

#define CUDACHECK(call)                                                                          \
  do {                                                                                           \
    cudaError_t error_ = (call);                                                                 \
    if (error_ != cudaSuccess) {                                                                 \
      fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(error_)); \
      exit(1);                                                                                   \
    }                                                                                            \
  } while (0)
#define NCCLCHECK(call)                                                                               \
  do {                                                                                                \
    ncclResult_t result_ = (call);                                                                    \
    if (result_ != ncclSuccess) {                                                                     \
      fprintf(stderr, "%s:%d: %s: %s (%s)\n", __FILE__, __LINE__, #call, ncclGetErrorString(result_), \
              ncclGetLastError(NULL));                                                                \
      exit(1);                                                                                        \
    }                                                                                                 \
  } while (0)
/* The same for calls that may still be in progress. */
#define NCCLSTARTED(call)                                \
  do {                                                   \
    ncclResult_t started_ = (call);                      \
    if (started_ != ncclInProgress) NCCLCHECK(started_); \
  } while (0)

enum { RANKS_MAX = 4, COUNT = 3000, POLLS_BEFORE_ABORT = 1000 };

struct rank {
  ncclComm_t comm;
  cudaStream_t stream;
  int *data; /* COUNT values */
};

static struct rank all[RANKS_MAX];
static int ranks, polls;

static void wait_until_ready(void) {
  for (int rank = 0; rank < ranks; rank++) {
    ncclResult_t state = ncclInProgress;
    while (state == ncclInProgress) {
      NCCLCHECK(ncclCommGetAsyncError(all[rank].comm, &state));
      polls += 1;
    }
    NCCLCHECK(state);
  }
}

static void comms_open(void) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclUniqueId id;
  config.blocking = 0;
  NCCLCHECK(ncclGetUniqueId(&id));
  NCCLCHECK(ncclGroupStart());
  for (int rank = 0; rank < ranks; rank++) {
    CUDACHECK(cudaSetDevice(rank));
    NCCLSTARTED(ncclCommInitRankConfig(&all[rank].comm, ranks, id, rank, &config));
  }
  NCCLSTARTED(ncclGroupEnd());
  wait_until_ready();
}

/* Sums rank + i over the ranks; returns the number of wrong values. */
static int sum_and_check(void) {
  static int host[COUNT];
  int wrong = 0;
  for (int rank = 0; rank < ranks; rank++) {
    for (int i = 0; i < COUNT; i++) host[i] = rank + i;
    CUDACHECK(cudaMemcpy(all[rank].data, host, sizeof host, cudaMemcpyHostToDevice));
  }
  NCCLCHECK(ncclGroupStart());
  for (int rank = 0; rank < ranks; rank++)
    NCCLSTARTED(ncclAllReduce(all[rank].data, all[rank].data, COUNT, ncclInt, ncclSum, all[rank].comm,
                              all[rank].stream));
  NCCLSTARTED(ncclGroupEnd());
  wait_until_ready();
  for (int rank = 0; rank < ranks; rank++) {
    CUDACHECK(cudaSetDevice(rank));
    CUDACHECK(cudaStreamSynchronize(all[rank].stream));
    CUDACHECK(cudaMemcpy(host, all[rank].data, sizeof host, cudaMemcpyDeviceToHost));
    for (int i = 0; i < COUNT; i++) wrong += host[i] != ranks * i + ranks * (ranks - 1) / 2;
  }
  return wrong;
}

static void comms_close(void) {
  for (int rank = 0; rank < ranks; rank++) NCCLSTARTED(ncclCommFinalize(all[rank].comm));
  wait_until_ready();
  for (int rank = 0; rank < ranks; rank++) NCCLCHECK(ncclCommDestroy(all[rank].comm));
}

/* Rank 0 calls what no other rank calls, and the program waits until the communicator reports an error or a
 * timeout. True if the call had not succeeded by then. Aborting frees the stream. */
static int hang_and_abort(void) {
  cudaError_t state = cudaErrorNotReady;
  ncclResult_t error = ncclSuccess;
  NCCLSTARTED(ncclAllReduce(all[0].data, all[0].data, COUNT, ncclInt, ncclSum, all[0].comm, all[0].stream));
  CUDACHECK(cudaSetDevice(0));
  for (int i = 0; i < POLLS_BEFORE_ABORT && state == cudaErrorNotReady; i++) {
    NCCLCHECK(ncclCommGetAsyncError(all[0].comm, &error));
    if (error != ncclSuccess && error != ncclInProgress) break;
    state = cudaStreamQuery(all[0].stream);
  }
  for (int rank = 0; rank < ranks; rank++) NCCLCHECK(ncclCommAbort(all[rank].comm));
  cudaStreamSynchronize(all[0].stream);
  return state != cudaSuccess;
}

int main(void) {
  int wrong = 0, hung;
  CUDACHECK(cudaGetDeviceCount(&ranks));
  if (ranks > RANKS_MAX) ranks = RANKS_MAX;
  for (int rank = 0; rank < ranks; rank++) {
    CUDACHECK(cudaSetDevice(rank));
    CUDACHECK(cudaStreamCreateWithFlags(&all[rank].stream, cudaStreamNonBlocking));
    CUDACHECK(cudaMalloc((void **)&all[rank].data, COUNT * sizeof(int)));
  }
  comms_open();
  wrong += sum_and_check();
  comms_close();

  comms_open();
  hung = ranks == 1 || hang_and_abort();

  comms_open();
  wrong += sum_and_check();
  comms_close();
  for (int rank = 0; rank < ranks; rank++) {
    CUDACHECK(cudaSetDevice(rank));
    CUDACHECK(cudaStreamDestroy(all[rank].stream));
    CUDACHECK(cudaFree(all[rank].data));
  }
  printf("%d ranks without blocking: 2 sums, %d wrong; a collective that one rank alone called %s\n", ranks,
         wrong, hung ? "was aborted" : "did not wait");
  puts(wrong == 0 && hung ? "ok" : "FAILED");
  return wrong != 0 || !hung;
}
