/* tensor_parallel.c: a network of square layers whose weights are split by columns over the ranks. In each
 * layer every rank multiplies its columns with its part of the activations, and one all-reduce in place
 * adds the partial sums up. The products are computed on the host and copied; the sums are the library's.
 * The result is compared with the same network on one rank. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

enum { RANKS_MAX = 8, WIDTH = 192, LAYERS = 16 };

/* Small integers, so that a sum is exact in every order. */
static float weight(int layer, int row, int column) {
  return (float)((layer * 31 + row * 17 + column * 13) % 11 - 5);
}

/* out[WIDTH] = columns [first, last) of the layer's weights times in[first..last). */
static void multiply(int layer, int first, int last, const float *in, float *out) {
  for (int row = 0; row < WIDTH; row++) {
    float sum = 0;
    for (int column = first; column < last; column++) sum += weight(layer, row, column) * in[column];
    out[row] = sum;
  }
}

/* The operation between two layers; keeps the values small. */
static void activate(float *values) {
  for (int i = 0; i < WIDTH; i++) values[i] = (float)((int)values[i] % 7);
}

static void first_activations(float *values) {
  for (int i = 0; i < WIDTH; i++) values[i] = (float)(i % 7 - 3);
}

static void run_alone(float *values) {
  float out[WIDTH];
  first_activations(values);
  for (int layer = 0; layer < LAYERS; layer++) {
    multiply(layer, 0, WIDTH, values, out);
    memcpy(values, out, sizeof out);
    activate(values);
  }
}

struct rank {
  ncclComm_t comm;
  cudaStream_t stream;
  float *device; /* WIDTH partial sums, then sums: the all-reduce is in place */
  float host[WIDTH];
};

static void layer_run(struct rank *all, int ranks, int layer) {
  float partial[WIDTH];
  for (int rank = 0; rank < ranks; rank++) {
    multiply(layer, rank * WIDTH / ranks, (rank + 1) * WIDTH / ranks, all[rank].host, partial);
    CUDACHECK(cudaMemcpy(all[rank].device, partial, sizeof partial, cudaMemcpyHostToDevice));
  }
  NCCLCHECK(ncclGroupStart());
  for (int rank = 0; rank < ranks; rank++)
    NCCLCHECK(ncclAllReduce(all[rank].device, all[rank].device, WIDTH, ncclFloat, ncclSum, all[rank].comm,
                            all[rank].stream));
  NCCLCHECK(ncclGroupEnd());
  for (int rank = 0; rank < ranks; rank++) {
    CUDACHECK(cudaSetDevice(rank));
    CUDACHECK(cudaMemcpyAsync(all[rank].host, all[rank].device, sizeof all[rank].host, cudaMemcpyDeviceToHost,
                              all[rank].stream));
    CUDACHECK(cudaStreamSynchronize(all[rank].stream));
    activate(all[rank].host);
  }
}

int main(void) {
  static struct rank all[RANKS_MAX];
  ncclComm_t comms[RANKS_MAX];
  float alone[WIDTH];
  int ranks, wrong = 0;
  CUDACHECK(cudaGetDeviceCount(&ranks));
  if (ranks > RANKS_MAX) ranks = RANKS_MAX;
  NCCLCHECK(ncclCommInitAll(comms, ranks, NULL));
  for (int rank = 0; rank < ranks; rank++) {
    all[rank].comm = comms[rank];
    CUDACHECK(cudaSetDevice(rank));
    CUDACHECK(cudaStreamCreate(&all[rank].stream));
    CUDACHECK(cudaMalloc((void **)&all[rank].device, WIDTH * sizeof(float)));
    first_activations(all[rank].host);
  }
  for (int layer = 0; layer < LAYERS; layer++) layer_run(all, ranks, layer);

  run_alone(alone);
  for (int rank = 0; rank < ranks; rank++) {
    for (int i = 0; i < WIDTH; i++) wrong += all[rank].host[i] != alone[i];
    CUDACHECK(cudaFree(all[rank].device));
    CUDACHECK(cudaStreamDestroy(all[rank].stream));
    NCCLCHECK(ncclCommDestroy(all[rank].comm));
  }
  printf("%d layers of width %d over %d ranks, compared with one rank: %d wrong\n", LAYERS, WIDTH, ranks,
         wrong);
  puts(wrong == 0 ? "ok" : "FAILED");
  return wrong != 0;
}
