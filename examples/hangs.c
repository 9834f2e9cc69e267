/* hangs.c: a job with a bug: one process per rank, started by any launcher. All ranks reduce a loss three
 * times; before the third one rank 2 stops, like a rank that waits for its data loader. The job hangs.
 * docs/hung-job.md shows how to find rank 2. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include <cuda_runtime.h>
#include <nccl.h>
#include <tutti.h>

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

enum { STEPS = 3, ABSENT = 2, COUNT = 1024 };

int main(void) {
  tutti_launch_t launch = {.size = sizeof launch};
  ncclUniqueId id;
  ncclComm_t comm;
  cudaStream_t stream;
  float *loss;
  NCCLCHECK(tutti_launch_read(&launch));
  CUDACHECK(cudaSetDevice(launch.local_rank));
  NCCLCHECK(tutti_launch_id(&launch, &id));
  NCCLCHECK(ncclCommInitRank(&comm, launch.rank_count, id, launch.rank));
  CUDACHECK(cudaStreamCreate(&stream));
  CUDACHECK(cudaMalloc((void **)&loss, COUNT * sizeof(float)));
  CUDACHECK(cudaMemset(loss, 0, COUNT * sizeof(float)));
  for (int step = 0; step < STEPS; step++) {
    if (step == STEPS - 1 && launch.rank == ABSENT)
      for (;;) pause(); /* the bug */
    NCCLCHECK(ncclAllReduce(loss, loss, COUNT, ncclFloat, ncclSum, comm, stream));
    CUDACHECK(cudaStreamSynchronize(stream));
  }
  CUDACHECK(cudaFree(loss));
  CUDACHECK(cudaStreamDestroy(stream));
  NCCLCHECK(ncclCommFinalize(comm));
  NCCLCHECK(ncclCommDestroy(comm));
  puts("ok");
  return 0;
}
