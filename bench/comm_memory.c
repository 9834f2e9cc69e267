/* comm_memory.c: the bytes that the library holds for one rank, by tutti_comm_memory(): after the
 * communicator is made, after one all-reduce, and after every rank has also sent to every other. Prints the
 * three numbers of the rank that holds most. NCCL_PROTO and the like select the connections.
 *
 *   comm_memory RANKS */
#include <stdio.h>
#include <stdlib.h>

#include <cuda_runtime.h>
#include <tutti.h>

enum { RANKS_MAX = 64, COUNT = 1024 };

static void check(int good, const char *what) {
  if (good) return;
  fprintf(stderr, "comm_memory: %s: %s\n", what, ncclGetLastError(NULL));
  exit(1);
}

static ncclComm_t comms[RANKS_MAX];
static float *send[RANKS_MAX], *recv[RANKS_MAX];
static int ranks;

static unsigned long long most_bytes(void) {
  uint64_t most = 0, bytes;
  for (int rank = 0; rank < ranks; rank++) {
    check(cudaSetDevice(rank) == cudaSuccess, "cudaSetDevice");
    check(cudaDeviceSynchronize() == cudaSuccess, "cudaDeviceSynchronize");
    check(tutti_comm_memory(comms[rank], &bytes) == ncclSuccess, "tutti_comm_memory");
    if (bytes > most) most = bytes;
  }
  return most;
}

static void all_reduce(void) {
  ncclGroupStart();
  for (int rank = 0; rank < ranks; rank++)
    ncclAllReduce(send[rank], recv[rank], COUNT, ncclFloat, ncclSum, comms[rank], NULL);
  check(ncclGroupEnd() == ncclSuccess, "ncclAllReduce");
}

static void all_to_all(void) {
  ncclGroupStart();
  for (int rank = 0; rank < ranks; rank++)
    for (int peer = 0; peer < ranks; peer++) {
      ncclSend(send[rank] + peer * COUNT, COUNT, ncclFloat, peer, comms[rank], NULL);
      ncclRecv(recv[rank] + peer * COUNT, COUNT, ncclFloat, peer, comms[rank], NULL);
    }
  check(ncclGroupEnd() == ncclSuccess, "ncclSend and ncclRecv");
}

int main(int argc, char **argv) {
  tutti_emu_config_t config = {.size = sizeof config};
  unsigned long long made, reduced, exchanged;
  ranks = argc == 2 ? atoi(argv[1]) : 0;
  if (ranks < 1 || ranks > RANKS_MAX) {
    fprintf(stderr, "usage: comm_memory RANKS (at most %d)\n", RANKS_MAX);
    return 2;
  }
  config.device_count = (uint32_t)ranks;
  check(tutti_emu_configure(&config) == ncclSuccess, "tutti_emu_configure");
  check(ncclCommInitAll(comms, ranks, NULL) == ncclSuccess, "ncclCommInitAll");
  for (int rank = 0; rank < ranks; rank++) {
    const size_t bytes = (size_t)ranks * COUNT * sizeof(float);
    check(cudaSetDevice(rank) == cudaSuccess && cudaMalloc((void **)&send[rank], bytes) == cudaSuccess &&
              cudaMalloc((void **)&recv[rank], bytes) == cudaSuccess,
          "cudaMalloc");
  }
  made = most_bytes();
  all_reduce();
  reduced = most_bytes();
  all_to_all();
  exchanged = most_bytes();
  printf("%llu %llu %llu\n", made, reduced, exchanged);
  for (int rank = 0; rank < ranks; rank++) ncclCommDestroy(comms[rank]);
  return 0;
}
