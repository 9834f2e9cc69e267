/* order_program.c: one rank of a launch: sums of which nearly every order gives other bits, compared with a
 * plain loop over the ranks from rank 0 on. Reductions of floats, halves, bfloat16 and fp8, by every
 * operator that rounds, from one element to some 100,000, apart and in place. Prints
 * `rank R elements E wrong W`; with an error, the error's sentence. Status 0: no element is wrong; 1: some
 * are; 3: a call failed. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime.h>
#include <nccl.h>
#include <tutti.h>

#include "kernels/kernels.h"

enum { COUNT_MOST = 100003, RANKS_MOST = 8 };

#define NEED(call)                                                                    \
  do {                                                                                \
    if ((int)(call) != 0) {                                                           \
      printf("rank %d failed: %s: %s\n", launch.rank, #call, ncclGetLastError(NULL)); \
      return 3;                                                                       \
    }                                                                                 \
  } while (0)

static tutti_launch_t launch = {.size = sizeof launch};

static uint64_t input_bits(uint8_t type, int rank, size_t index) {
  static const double parts[] = {1e8, 1, -1e8, 0.3333, -1, 448, -447, 3.14159e-3};
  uint64_t z = (uint64_t)rank * UINT64_C(0x9e3779b97f4a7c15) + index * UINT64_C(0xbf58476d1ce4e5b9);
  z = (z ^ (z >> 30)) * UINT64_C(0x94d049bb133111eb);
  return kernel_from_double(type, parts[z % 8] * (1 + (double)(z >> 40) / (1 << 26)));
}

/* An average is scaled before it is added up, as all that a rank's factor multiplies. */
static uint64_t folded(uint8_t type, ncclRedOp_t op, size_t index) {
  const uint8_t sum = op == ncclAvg ? OP_PRE_MUL_SUM : op == ncclProd ? OP_PROD : OP_SUM;
  const uint64_t share = kernel_from_double(type, 1.0 / launch.rank_count);
  uint64_t result = 0;
  for (int rank = 0; rank < launch.rank_count; rank++) {
    uint64_t operand = input_bits(type, rank, index);
    if (op == ncclAvg) kernel_pre_op(type, sum, share, &operand, &operand, 1);
    if (rank == 0) result = operand;
    else kernel_reduce(type, sum, &result, &result, &operand, 1);
  }
  return result;
}

static uint64_t elements, wrong;

static void compare(uint8_t type, ncclRedOp_t op, const unsigned char *out, size_t first, size_t count) {
  const size_t bytes = kernel_type_bytes(type);
  for (size_t i = 0; i < count; i++) {
    const uint64_t wanted = folded(type, op, first + i);
    elements += 1;
    wrong += memcmp(out + i * bytes, &wanted, bytes) != 0;
  }
}

struct buffers {
  unsigned char *in, *out, *host;
  cudaStream_t stream;
  ncclComm_t comm;
};

static int one(struct buffers *b, uint32_t kind, uint8_t type, ncclRedOp_t op, size_t count, bool in_place) {
  const size_t bytes = kernel_type_bytes(type), own = (size_t)launch.rank * count;
  const size_t inputs = kind == 1 ? count * (size_t)launch.rank_count : count;
  const int root = launch.rank_count - 1;
  unsigned char *out = !in_place ? b->out : kind == 1 ? b->in + own * bytes : b->in;
  for (size_t i = 0; i < inputs; i++) {
    const uint64_t bits = input_bits(type, launch.rank, i);
    memcpy(b->host + i * bytes, &bits, bytes);
  }
  NEED(cudaMemcpy(b->in, b->host, inputs * bytes, cudaMemcpyHostToDevice));
  if (kind == 0) NEED(ncclAllReduce(b->in, out, count, (ncclDataType_t)type, op, b->comm, b->stream));
  if (kind == 1) NEED(ncclReduceScatter(b->in, out, count, (ncclDataType_t)type, op, b->comm, b->stream));
  if (kind == 2) NEED(ncclReduce(b->in, out, count, (ncclDataType_t)type, op, root, b->comm, b->stream));
  NEED(cudaStreamSynchronize(b->stream));
  if (kind == 2 && launch.rank != root) return 0;
  NEED(cudaMemcpy(b->host, out, count * bytes, cudaMemcpyDeviceToHost));
  compare(type, op, b->host, kind == 1 ? own : 0, count);
  return 0;
}

static int all(struct buffers *b) {
  static const uint8_t types[] = {ncclFloat32, ncclFloat16, ncclBfloat16, ncclFloat8e4m3, ncclFloat64};
  static const ncclRedOp_t ops[] = {ncclSum, ncclAvg, ncclProd};
  static const size_t counts[] = {1, 37, 5000, COUNT_MOST};
  for (uint32_t i = 0; i < 3 * 4 * 5; i++) {
    const size_t count = counts[i / 3 % 4];
    const int status = one(b, i % 3, types[i / 12], ops[i / 4 % 3],
                           i % 3 == 1 ? count / (size_t)launch.rank_count + 1 : count, i % 2 != 0);
    if (status != 0) return status;
  }
  return 0;
}

int main(void) {
  ncclUniqueId id;
  struct buffers b;
  const size_t bytes = (COUNT_MOST + RANKS_MOST) * sizeof(double);
  NEED(tutti_launch_read(&launch));
  NEED(cudaSetDevice(launch.local_rank));
  NEED(tutti_launch_id(&launch, &id));
  NEED(ncclCommInitRank(&b.comm, launch.rank_count, id, launch.rank));
  NEED(cudaStreamCreate(&b.stream));
  NEED(cudaMalloc((void **)&b.in, bytes));
  NEED(cudaMalloc((void **)&b.out, bytes));
  b.host = (unsigned char *)malloc(bytes);
  if (b.host == NULL) return 3;
  const int status = all(&b);
  if (status != 0) return status;
  printf("rank %d elements %llu wrong %llu\n", launch.rank, (unsigned long long)elements,
         (unsigned long long)wrong);
  free(b.host);
  NEED(cudaFree(b.in));
  NEED(cudaFree(b.out));
  NEED(cudaStreamDestroy(b.stream));
  NEED(ncclCommDestroy(b.comm));
  return wrong != 0;
}
