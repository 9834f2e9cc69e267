/* digest.c: runs every collective with every type and operator on N devices and prints a digest of each
 * result, a line a case. The same source is compiled against the emulated runtime and against CUDA's: with
 * the same number of channels the two print the same text, whatever the protocol (NCCL_PROTO). It checks
 * nothing itself; test_backend.sh compares.
 *
 *     digest RANKS [COUNT...]     counts are elements of a rank; default 1 777 70001 */
#include <cuda_runtime.h>
#include <nccl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define RANKS_MAX 16
#define TYPES 12
#define SHIFT 3 /* elements before the buffers in their allocation: nothing is aligned by chance */

#define NEED(call)                                                             \
  do {                                                                         \
    const int status_ = (int)(call);                                           \
    if (status_ != 0) {                                                        \
      printf("failed: %s: %d (%s)\n", #call, status_, ncclGetLastError(NULL)); \
      exit(1);                                                                 \
    }                                                                          \
  } while (0)

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
  size_t count, buffer_bytes;
  uint8_t *host;
};

static uint64_t mix(uint64_t state) {
  state = (state ^ (state >> 31)) * UINT64_C(0x9fb21c651e98df25);
  return state ^ (state >> 28);
}

/* Any bits, NaN and all; the oracle is the other backend. */
static void fill(struct run *run, uint64_t salt) {
  for (int r = 0; r < run->rank_count; r++) {
    for (size_t i = 0; i < run->buffer_bytes; i += 8) {
      const uint64_t word = mix(mix(salt * 977 + (uint64_t)r) + i);
      for (size_t k = 0; k < 8 && i + k < run->buffer_bytes; k++)
        run->host[i + k] = (uint8_t)(word >> (8 * k));
    }
    NEED(cudaSetDevice(r));
    NEED(cudaMemcpy(run->ranks[r].in, run->host, run->buffer_bytes, cudaMemcpyHostToDevice));
    NEED(cudaMemset(run->ranks[r].out, 0x5a, run->buffer_bytes));
  }
}

static uint64_t digest(struct run *run) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (int r = 0; r < run->rank_count; r++) {
    NEED(cudaSetDevice(r));
    NEED(cudaStreamSynchronize(run->ranks[r].stream));
    NEED(cudaMemcpy(run->host, run->ranks[r].out, run->buffer_bytes, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < run->buffer_bytes; i++) hash = (hash ^ run->host[i]) * 0x100000001b3u;
  }
  return hash;
}

enum call {
  ALL_REDUCE,
  REDUCE,
  REDUCE_SCATTER,
  ALL_GATHER,
  BROADCAST,
  ALL_TO_ALL,
  GATHER,
  SCATTER,
  EXCHANGE,
  CALLS
};
static const char *const call_names[CALLS] = {"all_reduce", "reduce",    "reduce_scatter",
                                              "all_gather", "broadcast", "all_to_all",
                                              "gather",     "scatter",   "exchange"};

static void exchange(const struct run *run, int r, ncclDataType_t type, const uint8_t *in, uint8_t *out) {
  const int n = run->rank_count;
  NEED(ncclSend(in, run->count, type, (r + 1) % n, run->ranks[r].comm, run->ranks[r].stream));
  NEED(ncclRecv(out, run->count, type, (r + n - 1) % n, run->ranks[r].comm, run->ranks[r].stream));
}

static void issue(const struct run *run, int r, enum call call, ncclDataType_t type, ncclRedOp_t op) {
  const struct rank *rank = &run->ranks[r];
  const uint8_t *in = rank->in + SHIFT * type_bytes[type];
  uint8_t *out = rank->out + SHIFT * type_bytes[type];
  const size_t count = run->count;
  const int root = run->rank_count - 1;
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

static void one_case(struct run *run, enum call call, ncclDataType_t type, ncclRedOp_t op,
                     const char *op_name) {
  fill(run, (uint64_t)call * 1000 + (uint64_t)type * 10);
  NEED(ncclGroupStart());
  for (int r = 0; r < run->rank_count; r++) issue(run, r, call, type, op);
  NEED(ncclGroupEnd());
  printf("%-14s %-8s %-7s %8zu %016llx\n", call_names[call], type_names[type], op_name, run->count,
         (unsigned long long)digest(run));
  fflush(stdout);
}

/* A factor of the program's own: an operator a communicator. */
static void scaled_case(struct run *run, ncclDataType_t type) {
  ncclRedOp_t ops[RANKS_MAX];
  uint64_t factor = UINT64_C(0x4008400840484040); /* finite in every type */
  fill(run, 5000 + (uint64_t)type);
  for (int r = 0; r < run->rank_count; r++)
    NEED(ncclRedOpCreatePreMulSum(&ops[r], &factor, type, ncclScalarHostImmediate, run->ranks[r].comm));
  NEED(ncclGroupStart());
  for (int r = 0; r < run->rank_count; r++) issue(run, r, ALL_REDUCE, type, ops[r]);
  NEED(ncclGroupEnd());
  printf("%-14s %-8s %-7s %8zu %016llx\n", "all_reduce", type_names[type], "premul", run->count,
         (unsigned long long)digest(run));
  for (int r = 0; r < run->rank_count; r++) NEED(ncclRedOpDestroy(ops[r], run->ranks[r].comm));
}

static void all_cases(struct run *run) {
  static const char *const op_names[] = {"sum", "prod", "max", "min", "avg"};
  for (int type = 0; type < TYPES; type++) {
    for (int op = 0; op <= ncclAvg; op++)
      for (int call = ALL_REDUCE; call <= REDUCE_SCATTER; call++)
        one_case(run, (enum call)call, (ncclDataType_t)type, (ncclRedOp_t)op, op_names[op]);
    scaled_case(run, (ncclDataType_t)type);
  }
  for (int call = ALL_GATHER; call < CALLS; call++) {
    one_case(run, (enum call)call, ncclInt8, ncclSum, "-");
    one_case(run, (enum call)call, ncclFloat64, ncclSum, "-");
  }
}

static void open_ranks(struct run *run) {
  ncclComm_t comms[RANKS_MAX];
  NEED(ncclCommInitAll(comms, run->rank_count, NULL));
  for (int r = 0; r < run->rank_count; r++) {
    struct rank *rank = &run->ranks[r];
    rank->comm = comms[r];
    NEED(cudaSetDevice(r));
    NEED(cudaStreamCreate(&rank->stream));
    NEED(cudaMalloc((void **)&rank->in, run->buffer_bytes));
    NEED(cudaMalloc((void **)&rank->out, run->buffer_bytes));
  }
}

static void close_ranks(struct run *run) {
  for (int r = 0; r < run->rank_count; r++) {
    struct rank *rank = &run->ranks[r];
    NEED(cudaSetDevice(r));
    NEED(cudaFree(rank->in));
    NEED(cudaFree(rank->out));
    NEED(cudaStreamDestroy(rank->stream));
    NEED(ncclCommDestroy(rank->comm));
  }
}

static void run_count(struct run *run, size_t count) {
  run->count = count;
  run->buffer_bytes = (count * (size_t)run->rank_count + SHIFT) * 8;
  run->host = (uint8_t *)malloc(run->buffer_bytes);
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
  for (int i = 2; i < argc; i++) run_count(&run, (size_t)atol(argv[i]));
  if (argc > 2) return 0;
  run_count(&run, 1);
  run_count(&run, 777);
  run_count(&run, 70001);
  return 0;
}
