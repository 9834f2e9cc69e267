/* digest.c: runs every collective with every type and operator on N ranks, out of place and in place, and
 * prints a digest of each result, one line per case; ranks share devices if there are fewer:
 *
 *     collective type operator count out-of-place in-place       (in place `-` if NCCL has no such form)
 *
 * The same source is compiled against the emulated runtime and against CUDA's: with the same number of
 * channels, buffer sizes and protocol (NCCL_PROTO) the two print the same text. It checks nothing itself;
 * test_digests.sh and test_backend.sh compare the texts.
 *
 *     digest RANKS [COUNT...]     counts are elements per rank; default 1 777 20000 20011
 *
 * A count also sets the alignment of buffers: if divisible by 16, both are aligned; if odd with a last digit
 * of 1, input and output have different shifts; any other count shifts both alike. */
#include <cuda_runtime.h>
#include <nccl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RANKS_MAX 16 /* more than the programs of tests/gpu have */
#include "gpu/calls.h"

#define TYPES 12
#define SHIFT_MAX 3 /* maximum number of elements before a buffer in its allocation */

static const char *const type_names[TYPES] = {"int8", "uint8", "int32",  "uint32",   "int64",  "uint64",
                                              "half", "float", "double", "bfloat16", "f8e4m3", "f8e5m2"};
static const size_t type_bytes[TYPES] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};

struct rank {
  ncclComm_t comm;
  cudaStream_t stream;
  uint8_t *in, *out;
};

struct run {
  int rank_count;
  struct rank ranks[RANKS_MAX];
  size_t count, shift_in, shift_out;
  size_t capacity_bytes; /* of each allocation */
  size_t buffer_bytes;   /* the part that the current type needs: a multiple of 8 */
  uint8_t *host;
};

static uint64_t mix(uint64_t state) {
  state = (state ^ (state >> 31)) * UINT64_C(0x9fb21c651e98df25);
  return state ^ (state >> 28);
}

static size_t bytes_needed(const struct run *run, size_t element_bytes) {
  const size_t elements = run->count * (size_t)run->rank_count + SHIFT_MAX;
  return (elements * element_bytes + 7) / 8 * 8;
}

/* Arbitrary bits, NaN and all; the oracle is the other backend. In place, the output's buffer holds the
 * input. */
static void fill(struct run *run, uint64_t salt, bool in_place) {
  for (int r = 0; r < run->rank_count; r++) {
    const struct rank *rank = &run->ranks[r];
    for (size_t i = 0; i < run->buffer_bytes; i += 8) {
      const uint64_t word = mix(mix(salt * 977 + (uint64_t)r) + i);
      memcpy(run->host + i, &word, 8);
    }
    need_device(r);
    NEED(cudaMemcpy(in_place ? rank->out : rank->in, run->host, run->buffer_bytes, cudaMemcpyHostToDevice));
    if (!in_place) NEED(cudaMemset(rank->out, 0x5a, run->buffer_bytes));
  }
}

/* Covers all bytes of all outputs, so that a store outside of the result shows too. */
static uint64_t digest(struct run *run) {
  uint64_t hash = 0;
  for (int r = 0; r < run->rank_count; r++) {
    need_device(r);
    NEED(cudaStreamSynchronize(run->ranks[r].stream));
    NEED(cudaMemcpy(run->host, run->ranks[r].out, run->buffer_bytes, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < run->buffer_bytes; i += 8) {
      uint64_t word;
      memcpy(&word, run->host + i, 8);
      hash = mix(hash ^ word) + 1;
    }
  }
  return hash >> 16;
}

static void exchange(const struct run *run, int r, ncclDataType_t type, const uint8_t *in, uint8_t *out) {
  const int n = run->rank_count;
  NEED(ncclSend(in, run->count, type, (r + 1) % n, run->ranks[r].comm, run->ranks[r].stream));
  NEED(ncclRecv(out, run->count, type, (r + n - 1) % n, run->ranks[r].comm, run->ranks[r].stream));
}

static bool has_in_place(enum call call) { return call <= BROADCAST; }

static void issue(const struct run *run, int r, enum call call, ncclDataType_t type, ncclRedOp_t op,
                  bool in_place) {
  const struct rank *rank = &run->ranks[r];
  const size_t count = run->count, block_bytes = (size_t)r * count * type_bytes[type];
  const uint8_t *in = rank->in + run->shift_in * type_bytes[type];
  uint8_t *out = rank->out + run->shift_out * type_bytes[type];
  const int root = run->rank_count - 1;
  if (in_place) in = call == ALL_GATHER ? out + block_bytes : out;
  if (in_place && call == REDUCE_SCATTER) out += block_bytes;
  switch (call) {
    case ALL_REDUCE: NEED(ncclAllReduce(in, out, count, type, op, rank->comm, rank->stream)); break;
    case REDUCE: NEED(ncclReduce(in, out, count, type, op, root, rank->comm, rank->stream)); break;
    case REDUCE_SCATTER: NEED(ncclReduceScatter(in, out, count, type, op, rank->comm, rank->stream)); break;
    case ALL_GATHER: NEED(ncclAllGather(in, out, count, type, rank->comm, rank->stream)); break;
    case BROADCAST: NEED(ncclBroadcast(in, out, count, type, root, rank->comm, rank->stream)); break;
    case ALL_TO_ALL: NEED(ncclAlltoAll(in, out, count, type, rank->comm, rank->stream)); break;
    case GATHER: NEED(ncclGather(in, out, count, type, root, rank->comm, rank->stream)); break;
    case SCATTER: NEED(ncclScatter(in, out, count, type, root, rank->comm, rank->stream)); break;
    default: exchange(run, r, type, in, out); break;
  }
}

static uint64_t outcome(struct run *run, enum call call, ncclDataType_t type, const ncclRedOp_t *ops,
                        bool in_place) {
  run->buffer_bytes = bytes_needed(run, type_bytes[type]);
  fill(run, (uint64_t)call * 1000 + (uint64_t)type * 10, in_place);
  NEED(ncclGroupStart());
  for (int r = 0; r < run->rank_count; r++) issue(run, r, call, type, ops[r], in_place);
  NEED(ncclGroupEnd());
  return digest(run);
}

/* ops[r] is rank r's operator. */
static void one_case(struct run *run, enum call call, ncclDataType_t type, const ncclRedOp_t *ops,
                     const char *op_name) {
  printf("%s %s %s %zu %012llx", call_names[call], type_names[type], op_name, run->count,
         (unsigned long long)outcome(run, call, type, ops, false));
  if (has_in_place(call)) printf(" %012llx\n", (unsigned long long)outcome(run, call, type, ops, true));
  else printf(" -\n");
  fflush(stdout);
}

static void built_in_case(struct run *run, enum call call, ncclDataType_t type, ncclRedOp_t op,
                          const char *op_name) {
  ncclRedOp_t ops[RANKS_MAX];
  for (int r = 0; r < run->rank_count; r++) ops[r] = op;
  one_case(run, call, type, ops, op_name);
}

/* A user-defined factor: one operator per communicator. */
static void scaled_case(struct run *run, ncclDataType_t type) {
  ncclRedOp_t ops[RANKS_MAX];
  uint64_t factor = UINT64_C(0x4008400840484040); /* finite in every type */
  for (int r = 0; r < run->rank_count; r++)
    NEED(ncclRedOpCreatePreMulSum(&ops[r], &factor, type, ncclScalarHostImmediate, run->ranks[r].comm));
  one_case(run, ALL_REDUCE, type, ops, "premul");
  for (int r = 0; r < run->rank_count; r++) NEED(ncclRedOpDestroy(ops[r], run->ranks[r].comm));
}

static void all_cases(struct run *run) {
  static const char *const op_names[] = {"sum", "prod", "max", "min", "avg"};
  for (int type = 0; type < TYPES; type++) {
    for (int op = 0; op <= ncclAvg; op++)
      for (int call = ALL_REDUCE; call <= REDUCE_SCATTER; call++)
        built_in_case(run, (enum call)call, (ncclDataType_t)type, (ncclRedOp_t)op, op_names[op]);
    scaled_case(run, (ncclDataType_t)type);
  }
  for (int call = ALL_GATHER; call < CALLS; call++) {
    built_in_case(run, (enum call)call, ncclInt8, ncclSum, "-");
    built_in_case(run, (enum call)call, ncclFloat64, ncclSum, "-");
  }
}

static void open_ranks(struct run *run) {
  ncclComm_t comms[RANKS_MAX];
  need_comms(comms, run->rank_count);
  for (int r = 0; r < run->rank_count; r++) {
    struct rank *rank = &run->ranks[r];
    rank->comm = comms[r];
    need_device(r);
    NEED(cudaStreamCreate(&rank->stream));
    NEED(cudaMalloc((void **)&rank->in, run->capacity_bytes));
    NEED(cudaMalloc((void **)&rank->out, run->capacity_bytes));
  }
}

static void close_ranks(struct run *run) {
  for (int r = 0; r < run->rank_count; r++) {
    struct rank *rank = &run->ranks[r];
    need_device(r);
    NEED(cudaFree(rank->in));
    NEED(cudaFree(rank->out));
    NEED(cudaStreamDestroy(rank->stream));
    NEED(ncclCommDestroy(rank->comm));
  }
}

static void run_count(struct run *run, size_t count) {
  run->count = count;
  run->shift_in = count % 16 == 0 ? 0 : count % 10 == 1 ? 1 : SHIFT_MAX;
  run->shift_out = count % 10 == 1 ? 0 : run->shift_in;
  run->capacity_bytes = bytes_needed(run, 8);
  run->host = (uint8_t *)malloc(run->capacity_bytes);
  if (run->host == NULL) exit(1);
  open_ranks(run);
  all_cases(run);
  close_ranks(run);
  free(run->host);
}

int main(int argc, char **argv) {
  static struct run run;
  run.rank_count = argc > 1 ? atoi(argv[1]) : 2;
  if (run.rank_count < 1 || run.rank_count > RANKS_MAX) return 2;
  need_shared_devices(run.rank_count);
  for (int i = 2; i < argc; i++) run_count(&run, (size_t)atol(argv[i]));
  if (argc > 2) return 0;
  run_count(&run, 1);
  run_count(&run, 777);
  run_count(&run, 20000);
  run_count(&run, 20011);
  return 0;
}
