/* grow.c: two processes whose communicator grows by a third: the id is got by rank 1, the grown communicator
 * and the one that grew both work, and the grown one goes on when the other is destroyed. */
#include <sys/wait.h>

#include "rendezvous.h"

enum { FEW = 100, MANY = 1 << 20, BEFORE = 2, AFTER = 3, CALLS = 3 };

static void sum(ncclComm_t comm, int rank, int size, int count) {
  int *host = (int *)malloc((size_t)count * sizeof *host), *data;
  cudaStream_t stream;
  NEED(host == NULL);
  NEED(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  NEED(cudaMalloc((void **)&data, (size_t)count * sizeof *data));
  for (int call = 0; call < CALLS; call++) {
    for (int i = 0; i < count; i++) host[i] = i + rank + call;
    NEED(cudaMemcpyAsync(data, host, (size_t)count * sizeof *data, cudaMemcpyHostToDevice, stream));
    NEED(ncclAllReduce(data, data, (size_t)count, ncclInt, ncclSum, comm, stream));
    NEED(cudaMemcpyAsync(host, data, (size_t)count * sizeof *data, cudaMemcpyDeviceToHost, stream));
    NEED(cudaStreamSynchronize(stream));
    for (int i = 0; i < count; i++) NEED(host[i] != size * (i + call) + size * (size - 1) / 2);
  }
  NEED(cudaFree(data));
  NEED(cudaStreamDestroy(stream));
  free(host);
}

static void rank_run(int rank) {
  ncclComm_t comm = NULL, grown = NULL;
  NEED(!rendezvous_device(AFTER, rank));
  if (rank < BEFORE) {
    rendezvous_comm(&comm, BEFORE, rank);
    sum(comm, rank, BEFORE, FEW);
    sum(comm, rank, BEFORE, MANY);
  }
  rendezvous_barrier(AFTER);
  if (rank == 1) NEED(ncclCommGetUniqueId(comm, &rendezvous->id));
  rendezvous_barrier(AFTER);
  NEED(ncclCommGrow(comm, AFTER, rank == 0 ? NULL : &rendezvous->id, comm != NULL ? -1 : rank, &grown, NULL));
  sum(grown, rank, AFTER, FEW);
  sum(grown, rank, AFTER, MANY);
  if (comm != NULL) {
    sum(comm, rank, BEFORE, MANY);
    NEED(ncclCommDestroy(comm));
  }
  sum(grown, rank, AFTER, MANY);
  NEED(ncclCommDestroy(grown));
}

int main(void) {
  int bad = 0;
  setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1); /* there may be two GPUs, or one */
  rendezvous_open();
  for (int rank = 0; rank < AFTER; rank++) {
    const pid_t child = fork(); /* before CUDA is used */
    NEED(child < 0);
    if (child == 0) {
      rank_run(rank);
      exit(0);
    }
  }
  for (int rank = 0, status; rank < AFTER; rank++) {
    NEED(wait(&status) < 0);
    bad |= status;
  }
  if (bad == 0) printf("grow: two processes grew by a third: ok\n");
  return bad != 0;
}
