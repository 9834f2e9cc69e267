/* host_copy.c: the yardstick of shared memory between processes: what the copy engines of one GPU move
 * through pinned memory of the host. Prints GB/s from the GPU to the host, from the host to the GPU, and of
 * each direction while both run.
 *
 *   host_copy [BYTES [ROUNDS]] */
#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define NEED(call)                                                               \
  do {                                                                           \
    const cudaError_t error_ = (call);                                           \
    if (error_ != cudaSuccess) {                                                 \
      fprintf(stderr, "host_copy: %s: %s\n", #call, cudaGetErrorString(error_)); \
      exit(1);                                                                   \
    }                                                                            \
  } while (0)

static struct {
  void *host[2], *device[2];
  cudaStream_t stream[2];
  size_t bytes;
  int rounds;
} copy;

static double now_us(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

/* GB/s of each direction that runs: bit 0 from the GPU, bit 1 to it. */
static double rate(int directions) {
  double begin_us = 0;
  for (int round = -2; round < copy.rounds; round++) {
    if (round == 0) {
      NEED(cudaDeviceSynchronize());
      begin_us = now_us();
    }
    if ((directions & 1) != 0)
      NEED(cudaMemcpyAsync(copy.host[0], copy.device[0], copy.bytes, cudaMemcpyDeviceToHost, copy.stream[0]));
    if ((directions & 2) != 0)
      NEED(cudaMemcpyAsync(copy.device[1], copy.host[1], copy.bytes, cudaMemcpyHostToDevice, copy.stream[1]));
  }
  NEED(cudaDeviceSynchronize());
  return (double)copy.bytes * copy.rounds / (now_us() - begin_us) * 1e-3;
}

int main(int argc, char **argv) {
  copy.bytes = argc > 1 ? strtoull(argv[1], NULL, 10) : (size_t)256 << 20;
  copy.rounds = argc > 2 ? atoi(argv[2]) : 20;
  if (argc > 3 || copy.bytes == 0 || copy.rounds < 1) {
    fprintf(stderr, "usage: host_copy [BYTES [ROUNDS]]\n");
    return 2;
  }
  for (int i = 0; i < 2; i++) {
    NEED(cudaHostAlloc(&copy.host[i], copy.bytes, cudaHostAllocDefault));
    NEED(cudaMalloc(&copy.device[i], copy.bytes));
    NEED(cudaStreamCreateWithFlags(&copy.stream[i], cudaStreamNonBlocking));
  }
  printf("host_copy: %zu bytes: from the GPU %.1f GB/s, to the GPU %.1f GB/s, both at once %.1f GB/s each\n",
         copy.bytes, rate(1), rate(2), rate(3));
  return 0;
}
