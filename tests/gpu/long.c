/* long.c: long messages with few blocks. Every collective that copies or adds, with communicators of 1 to 32
 * blocks per rank, and buffers that begin at whole vectors, with the same offset from one, and with different
 * offsets. All values are checked. With a size it also prints bandwidths:
 *
 *     long [MIB [TURNS]]     size of a rank's larger buffer; default 5, which is not timed */
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include "need.h"

enum call { ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, BROADCAST, ALL_TO_ALL, EXCHANGE, CALLS };
static const char *const call_names[CALLS] = {"all_reduce", "reduce_scatter", "all_gather",
                                              "broadcast",  "all_to_all",     "exchange"};

struct place {
  size_t in, out; /* offsets of the buffers, in elements */
};
static const struct place places[] = {{0, 0}, {3, 3}, {1, 2}};
#define PLACE_MAX 3

struct job {
  int rank_count;
  size_t count; /* elements of a block; of all blocks together, if a rank has several */
  ncclComm_t comms[RANKS_MAX];
  cudaStream_t streams[RANKS_MAX];
  uint32_t *in[RANKS_MAX], *out[RANKS_MAX], *host;
};

static uint32_t value_of(int rank, size_t index) {
  return (uint32_t)(index + 1) * 2654435761u + (uint32_t)rank * 40503u;
}

static bool takes_blocks(enum call call) { return call == REDUCE_SCATTER || call == ALL_TO_ALL; }
static bool makes_blocks(enum call call) { return call == ALL_GATHER || call == ALL_TO_ALL; }

static uint32_t value_expected(const struct job *job, enum call call, int rank, size_t index) {
  const int n = job->rank_count;
  const size_t block = index / job->count, place = index % job->count, own = (size_t)rank * job->count;
  uint32_t sum = 0;
  switch (call) {
    case ALL_GATHER: return value_of((int)block, place);
    case BROADCAST: return value_of(n - 1, index);
    case ALL_TO_ALL: return value_of((int)block, own + place);
    case EXCHANGE: return value_of((rank + n - 1) % n, index);
    default:
      for (int r = 0; r < n; r++) sum += value_of(r, call == REDUCE_SCATTER ? own + index : index);
      return sum;
  }
}

static void issue(const struct job *job, enum call call, int r, const struct place *place) {
  const uint32_t *in = job->in[r] + place->in;
  uint32_t *out = job->out[r] + place->out;
  const size_t count = job->count;
  const int n = job->rank_count;
  const ncclComm_t comm = job->comms[r];
  const cudaStream_t stream = job->streams[r];
  switch (call) {
    case ALL_REDUCE: NEED(ncclAllReduce(in, out, count, ncclUint32, ncclSum, comm, stream)); break;
    case REDUCE_SCATTER: NEED(ncclReduceScatter(in, out, count, ncclUint32, ncclSum, comm, stream)); break;
    case ALL_GATHER: NEED(ncclAllGather(in, out, count, ncclUint32, comm, stream)); break;
    case BROADCAST: NEED(ncclBroadcast(in, out, count, ncclUint32, n - 1, comm, stream)); break;
    case ALL_TO_ALL: NEED(ncclAlltoAll(in, out, count, ncclUint32, comm, stream)); break;
    default:
      NEED(ncclSend(in, count, ncclUint32, (r + 1) % n, comm, stream));
      NEED(ncclRecv(out, count, ncclUint32, (r + n - 1) % n, comm, stream));
      break;
  }
}

static void run(const struct job *job, enum call call, const struct place *place) {
  NEED(ncclGroupStart());
  for (int r = 0; r < job->rank_count; r++) issue(job, call, r, place);
  NEED(ncclGroupEnd());
}

static void wait_all(const struct job *job) {
  for (int r = 0; r < job->rank_count; r++) {
    need_device(r);
    NEED(cudaStreamSynchronize(job->streams[r]));
  }
}

static size_t blocks(const struct job *job, bool several) { return several ? (size_t)job->rank_count : 1; }

static void fill(const struct job *job, enum call call, const struct place *place) {
  const size_t count = job->count * blocks(job, takes_blocks(call));
  for (int r = 0; r < job->rank_count; r++) {
    for (size_t i = 0; i < count; i++) job->host[i] = value_of(r, i);
    need_device(r);
    NEED(cudaMemcpy(job->in[r] + place->in, job->host, 4 * count, cudaMemcpyHostToDevice));
    NEED(cudaMemset(job->out[r], 0x5a,
                    4 * (place->out + job->count * blocks(job, makes_blocks(call)) + PLACE_MAX)));
    NEED(cudaDeviceSynchronize()); /* cudaMemset does not wait, nor does a non-blocking stream for it */
  }
}

/* Checks all values, and that nothing was stored around them. */
static void check(const struct job *job, enum call call, const struct place *place) {
  const size_t count = job->count * blocks(job, makes_blocks(call)), all = place->out + count + PLACE_MAX;
  for (int r = 0; r < job->rank_count; r++) {
    need_device(r);
    NEED(cudaMemcpy(job->host, job->out[r], 4 * all, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < all; i++) {
      const bool within = i >= place->out && i < place->out + count;
      const uint32_t expected = within ? value_expected(job, call, r, i - place->out) : 0x5a5a5a5au;
      if (job->host[i] == expected) continue;
      printf("%s, buffers at %zu and %zu: rank %d has %08x at %zu of %zu, not %08x\n", call_names[call],
             place->in, place->out, r, job->host[i], i, all, expected);
      exit(1);
    }
  }
}

static double now_s(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Bus bandwidth, as nccl-tests define it. */
static double measure(const struct job *job, enum call call, int turns) {
  const double n = job->rank_count, bytes = 4.0 * (double)job->count;
  const double shares[CALLS] = {2 * (n - 1) / n, n - 1, n - 1, 1, n - 1, 1};
  run(job, call, &places[0]);
  wait_all(job);
  const double begin_s = now_s();
  for (int turn = 0; turn < turns; turn++) run(job, call, &places[0]);
  wait_all(job);
  return bytes * shares[call] * turns / (now_s() - begin_s) / 1e9;
}

static void job_open(struct job *job, size_t capacity_bytes) {
  NEED(job->rank_count < 2);
  for (int r = 0; r < job->rank_count; r++) {
    need_device(r);
    NEED(cudaStreamCreateWithFlags(&job->streams[r], cudaStreamNonBlocking));
    NEED(cudaMalloc((void **)&job->in[r], capacity_bytes));
    NEED(cudaMalloc((void **)&job->out[r], capacity_bytes));
  }
  NEED((job->host = (uint32_t *)malloc(capacity_bytes)) == NULL);
}

static void job_close(struct job *job) {
  for (int r = 0; r < job->rank_count; r++) {
    need_device(r);
    NEED(cudaFree(job->in[r]));
    NEED(cudaFree(job->out[r]));
    NEED(cudaStreamDestroy(job->streams[r]));
  }
  free(job->host);
}

static void comms_open(struct job *job, int block_count) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  ncclUniqueId id;
  config.maxCTAs = block_count;
  NEED(ncclGetUniqueId(&id));
  NEED(ncclGroupStart());
  for (int r = 0; r < job->rank_count; r++) {
    need_device(r);
    NEED(ncclCommInitRankConfig(&job->comms[r], job->rank_count, id, r, &config));
  }
  NEED(ncclGroupEnd());
}

/* With a size that is not a multiple of a vector. */
static void job_run(struct job *job, enum call call, size_t bytes, int turns, int block_count) {
  const size_t several = blocks(job, takes_blocks(call) || makes_blocks(call));
  job->count = bytes / 4 / several - 1;
  for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
    fill(job, call, &places[i]);
    run(job, call, &places[i]);
    wait_all(job);
    check(job, call, &places[i]);
  }
  job->count += 1;
  if (turns > 0)
    printf("%2d blocks %-15s %4zu MiB %7.1f GB/s\n", block_count, call_names[call], bytes >> 20,
           measure(job, call, turns));
}

int main(int argc, char **argv) {
  static const int block_counts[] = {1, 4, 8, 16, 32};
  const size_t bytes = (size_t)(argc > 1 ? atoi(argv[1]) : 5) << 20;
  const int turns = argc > 2 ? atoi(argv[2]) : argc > 1 ? 10 : 0;
  struct job job = {.rank_count = need_ranks()};
  job_open(&job, bytes + 4 * 2 * (PLACE_MAX + RANKS_MAX));
  for (size_t b = 0; b<sizeof block_counts / sizeof *block_counts; b += turns> 0 ? 1 : 2) {
    comms_open(&job, block_counts[b]);
    for (int call = 0; call < CALLS; call++) job_run(&job, (enum call)call, bytes, turns, block_counts[b]);
    for (int r = 0; r < job.rank_count; r++) NEED(ncclCommDestroy(job.comms[r]));
  }
  job_close(&job);
  printf("long: ok\n");
  return 0;
}
