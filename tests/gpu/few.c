/* few.c: operations of few bytes, which GPUs run in a single pass in registers. Lengths just below and above
 * a line, a warp's lines and a block's; buffers aligned only to their elements; in place and not; three types
 * common in training and one that is not. Each function is called twice back to back; at last many lengths
 * are in one group, so that a block has several works. All values are checked.
 *
 *     few [KIND]     KIND: the number of one type, from 0 on */
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "need.h"

enum { BYTES = 1 << 20, PARTS = 40, SHIFT = 1 };
enum call { ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, BROADCAST, CALLS };
static const char *const call_names[CALLS] = {"all_reduce", "all_gather", "reduce_scatter", "broadcast"};
static const size_t counts[] = {1, 2, 3, 4, 5, 63, 64, 65, 255, 512, 1023, 1024, 1030, 2500, 4100, 9000};

static const struct kind {
  ncclDataType_t type;
  size_t bytes;
} kinds[] = {{ncclFloat, 4}, {ncclHalf, 2}, {ncclBfloat16, 2}, {ncclInt32, 4}};

static int rank_count;
static ncclComm_t comms[RANKS_MAX];
static cudaStream_t streams[RANKS_MAX];
static uint8_t *ins[RANKS_MAX], *outs[RANKS_MAX], host[BYTES];

/* A number below 128 as the bits of an element. */
static uint32_t element_of(ncclDataType_t type, uint32_t value) {
  const float number = (float)value;
  uint32_t bits, power = 0;
  memcpy(&bits, &number, sizeof bits);
  if (type == ncclInt32) return value;
  if (type == ncclFloat || value == 0) return bits;
  if (type == ncclBfloat16) return bits >> 16;
  while (value >> (power + 1) != 0) power += 1;
  return (power + 15) << 10 | (value - (1u << power)) << (10 - power);
}

static uint32_t value_of(int rank, size_t index) { return (uint32_t)(index * 5 + index / 7 + rank) % 13; }

static uint32_t value_expected(enum call call, int rank, size_t count, size_t index) {
  uint32_t sum = 0;
  if (call == ALL_GATHER) return value_of((int)(index / count), index % count);
  if (call == BROADCAST) return value_of(rank_count - 1, index);
  if (call == REDUCE_SCATTER) index += (size_t)rank * count;
  for (int r = 0; r < rank_count; r++) sum += value_of(r, index);
  return sum;
}

static size_t count_in(enum call call, size_t count) {
  return call == REDUCE_SCATTER ? count * (size_t)rank_count : count;
}

static size_t count_out(enum call call, size_t count) {
  return call == ALL_GATHER ? count * (size_t)rank_count : count;
}

static void call_on(int r, enum call call, const struct kind *kind, size_t count, const void *in, void *out) {
  switch (call) {
    case ALL_REDUCE: NEED(ncclAllReduce(in, out, count, kind->type, ncclSum, comms[r], streams[r])); break;
    case ALL_GATHER: NEED(ncclAllGather(in, out, count, kind->type, comms[r], streams[r])); break;
    case REDUCE_SCATTER:
      NEED(ncclReduceScatter(in, out, count, kind->type, ncclSum, comms[r], streams[r]));
      break;
    default: NEED(ncclBroadcast(in, out, count, kind->type, rank_count - 1, comms[r], streams[r])); break;
  }
}

static void values_fill(int r, const struct kind *kind, uint8_t *to, size_t count) {
  for (size_t i = 0; i < count; i++) {
    const uint32_t element = element_of(kind->type, value_of(r, i));
    memcpy(host + i * kind->bytes, &element, kind->bytes);
  }
  need_device(r);
  NEED(cudaMemcpyAsync(to, host, count * kind->bytes, cudaMemcpyHostToDevice, streams[r]));
  NEED(cudaStreamSynchronize(streams[r]));
}

static void values_check(int r, enum call call, const struct kind *kind, size_t count, const uint8_t *from) {
  need_device(r);
  NEED(cudaMemcpyAsync(host, from, count_out(call, count) * kind->bytes, cudaMemcpyDeviceToHost, streams[r]));
  NEED(cudaStreamSynchronize(streams[r]));
  for (size_t i = 0; i < count_out(call, count); i++) {
    const uint32_t expected = element_of(kind->type, value_expected(call, r, count, i));
    uint32_t found = 0;
    memcpy(&found, host + i * kind->bytes, kind->bytes);
    if (found == expected) continue;
    fprintf(stderr, "few: %s of %zu elements of type %d: rank %d, element %zu is %x instead of %x\n",
            call_names[call], count, (int)kind->type, r, i, found, expected);
    exit(1);
  }
}

/* A rank's input; if the call is in place, it is where the function expects it in the output. */
static uint8_t *input_of(int r, enum call call, const struct kind *kind, size_t count, bool in_place,
                         size_t shift) {
  uint8_t *const out = outs[r] + shift * kind->bytes;
  if (!in_place || call == REDUCE_SCATTER) return ins[r] + shift * kind->bytes;
  return call == ALL_GATHER ? out + (size_t)r * count * kind->bytes : out;
}

static uint8_t *output_of(int r, enum call call, const struct kind *kind, size_t count, bool in_place,
                          size_t shift) {
  if (!in_place || call != REDUCE_SCATTER) return outs[r] + shift * kind->bytes;
  return ins[r] + (shift + (size_t)r * count) * kind->bytes;
}

/* In place, two calls would add twice, so there is one. */
static void test_call(enum call call, const struct kind *kind, size_t count, bool in_place, size_t shift) {
  for (int r = 0; r < rank_count; r++)
    values_fill(r, kind, input_of(r, call, kind, count, in_place, shift), count_in(call, count));
  for (int turn = 0; turn < (in_place ? 1 : 2); turn++) {
    NEED(ncclGroupStart());
    for (int r = 0; r < rank_count; r++)
      call_on(r, call, kind, count, input_of(r, call, kind, count, in_place, shift),
              output_of(r, call, kind, count, in_place, shift));
    NEED(ncclGroupEnd());
  }
  for (int r = 0; r < rank_count; r++)
    values_check(r, call, kind, count, output_of(r, call, kind, count, in_place, shift));
}

/* A group of several lengths, each with its own buffers. */
static void test_group(const struct kind *kind) {
  const size_t capacity = BYTES / PARTS / 16 * 16;
  for (int r = 0; r < rank_count; r++)
    for (size_t i = 0; i < PARTS; i++) values_fill(r, kind, ins[r] + i * capacity, 1 + i * 97);
  for (int turn = 0; turn < 3; turn++) {
    NEED(ncclGroupStart());
    for (int r = 0; r < rank_count; r++)
      for (size_t i = 0; i < PARTS; i++)
        call_on(r, ALL_REDUCE, kind, 1 + i * 97, ins[r] + i * capacity, outs[r] + i * capacity);
    NEED(ncclGroupEnd());
  }
  for (int r = 0; r < rank_count; r++)
    for (size_t i = 0; i < PARTS; i++) values_check(r, ALL_REDUCE, kind, 1 + i * 97, outs[r] + i * capacity);
}

int main(int argc, char **argv) {
  const int only = argc > 1 ? atoi(argv[1]) : -1;
  rank_count = need_ranks();
  need_comms(comms, rank_count);
  for (int r = 0; r < rank_count; r++) {
    need_device(r);
    NEED(cudaStreamCreateWithFlags(&streams[r], cudaStreamNonBlocking));
    NEED(cudaMalloc((void **)&ins[r], BYTES));
    NEED(cudaMalloc((void **)&outs[r], BYTES));
  }
  for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
    if (only >= 0 && k != (size_t)only) continue;
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
      for (int option = 0; option < 4; option++)
        for (enum call call = ALL_REDUCE; call < CALLS; call++)
          test_call(call, &kinds[k], counts[c], option % 2 == 1, option / 2 == 1 ? SHIFT : 0);
    test_group(&kinds[k]);
  }
  for (int r = 0; r < rank_count; r++) {
    need_device(r);
    NEED(cudaFree(ins[r]));
    NEED(cudaFree(outs[r]));
    NEED(cudaStreamDestroy(streams[r]));
    NEED(ncclCommDestroy(comms[r]));
  }
  printf("few: %d ranks, functions of few lines: ok\n", rank_count);
  return 0;
}
