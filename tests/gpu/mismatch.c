/* mismatch.c: ranks call the same collective with different counts that use the same protocol. Every rank's
 * communicator must return ncclInvalidUsage when polled; they are aborted, and the process goes on with new
 * ones.
 *
 *     mismatch [broadcast]     of a broadcast, ranks other than the root and rank 1 see no difference */
#include <string.h>
#include <unistd.h>

#include "need.h"

enum { COUNT = 1000, POLLS_MAX = 10000 };

int main(int argc, char **argv) {
  const int broadcast = argc > 1 && strcmp(argv[1], "broadcast") == 0;
  setenv("NCCL_CHECK_MODE", "LOCAL", 0); /* the kernels are to find the difference */
  const int rank_count = need_ranks();
  ncclComm_t comms[RANKS_MAX];
  cudaStream_t streams[RANKS_MAX];
  float *data[RANKS_MAX];
  if (rank_count < 2) {
    puts("mismatch: needs two devices");
    return 0;
  }
  need_comms(comms, rank_count);
  NEED(ncclGroupStart());
  for (int rank = 0; rank < rank_count; rank++) {
    need_device(rank);
    NEED(cudaStreamCreateWithFlags(&streams[rank], cudaStreamNonBlocking));
    NEED(cudaMalloc((void **)&data[rank], COUNT * sizeof(float)));
    const size_t count = rank == 1 ? COUNT / 2 : COUNT;
    float *own = data[rank];
    if (broadcast) NEED(ncclBroadcast(own, own, count, ncclFloat, 0, comms[rank], streams[rank]));
    else NEED(ncclAllReduce(own, own, count, ncclFloat, ncclSum, comms[rank], streams[rank]));
  }
  NEED(ncclGroupEnd());
  for (int rank = 0; rank < rank_count; rank++) {
    ncclResult_t state = ncclSuccess;
    for (int poll = 0; poll < POLLS_MAX && state == ncclSuccess; poll++) {
      cudaStreamQuery(streams[rank]); /* an emulated GPU makes progress when queried */
      NEED(ncclCommGetAsyncError(comms[rank], &state));
      if (state == ncclSuccess) usleep(1000);
    }
    NEED(state != ncclInvalidUsage);
  }
  for (int rank = 0; rank < rank_count; rank++) NEED(ncclCommAbort(comms[rank]));
  for (int rank = 0; rank < rank_count; rank++) {
    need_device(rank);
    cudaStreamSynchronize(streams[rank]); /* the result after aborted kernels depends on the backend */
    cudaGetLastError();
    NEED(cudaFree(data[rank]));
    NEED(cudaStreamDestroy(streams[rank]));
  }
  need_fresh_start(rank_count);
  printf("mismatch: %d ranks with different counts were told: ok\n", rank_count);
  return 0;
}
