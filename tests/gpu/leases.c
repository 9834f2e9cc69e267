/* leases.c: memory that a program frees and allocates again while ranks of other processes have it mapped.
 * One rank per process (tutti launch); results are checked after each call.
 *
 *     leases reuse [TURNS]     each call finds other memory at the addresses that an earlier call has used
 *
 * Prints what is wrong, or what was run and `ok`. */
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <tutti.h>

#include "calls.h"

#define COUNT 1200              /* elements of a rank's part */
#define BYTES ((size_t)3 << 20) /* other processes map allocations of 2 MiB and more */
#define PARTS (COUNT * (size_t)RANKS_MAX)

static struct {
  int rank, size, round;
  ncclComm_t comm;
  cudaStream_t stream;
  int *in, *out;
  int host[PARTS];
  int reused; /* allocations that got the address of the one before */
} run;

static void run_open(void) {
  tutti_launch_t launch = {.size = sizeof launch};
  ncclUniqueId id;
  NEED(tutti_launch_read(&launch));
  NEED(tutti_launch_id(&launch, &id));
  run.rank = launch.rank;
  run.size = launch.rank_count;
  NEED(run.size < 2 || run.size > RANKS_MAX);
  NEED(cudaSetDevice(run.rank));
  NEED(cudaStreamCreateWithFlags(&run.stream, cudaStreamNonBlocking));
  NEED(ncclCommInitRank(&run.comm, run.size, id, run.rank));
}

/* ---- values ---- */

static int value(int rank, size_t i) { return (int)(i % 1009) * 31 + rank * 7 + run.round * 1013; }

static int sum_at(size_t i) {
  int sum = 0;
  for (int rank = 0; rank < run.size; rank++) sum += value(rank, i);
  return sum;
}

static int expected(enum call call, size_t i) {
  const int peer = (int)(i / COUNT), before = (run.rank + run.size - 1) % run.size;
  switch (call) {
    case ALL_REDUCE: return sum_at(i);
    case REDUCE_SCATTER: return sum_at((size_t)run.rank * COUNT + i);
    case ALL_GATHER: return value(peer, i % COUNT);
    case BROADCAST: return value(run.size - 1, i);
    case ALL_TO_ALL: return value(peer, (size_t)run.rank * COUNT + i % COUNT);
    default: return value(before, i);
  }
}

static size_t out_count(enum call call) {
  return call == ALL_GATHER || call == ALL_TO_ALL ? COUNT * (size_t)run.size : COUNT;
}

static void fill(void) {
  run.round += 1;
  for (size_t i = 0; i < PARTS; i++) run.host[i] = value(run.rank, i);
  NEED(cudaMemcpyAsync(run.in, run.host, sizeof run.host, cudaMemcpyHostToDevice, run.stream));
  NEED(cudaMemsetAsync(run.out, 0xee, sizeof run.host, run.stream));
}

static void call_checked(enum call call) {
  const struct call_arguments arguments = {run.in,   run.out,      COUNT,    ncclInt32, run.rank,
                                           run.size, run.size - 1, run.comm, run.stream};
  fill();
  const bool grouped = call == EXCHANGE;
  if (grouped) NEED(ncclGroupStart());
  call_make(call, &arguments);
  if (grouped) NEED(ncclGroupEnd());
  NEED(cudaMemcpyAsync(run.host, run.out, sizeof run.host, cudaMemcpyDeviceToHost, run.stream));
  NEED(cudaStreamSynchronize(run.stream));
  for (size_t i = 0; i < out_count(call); i++) {
    if (run.host[i] == expected(call, i)) continue;
    printf("wrong: %s on rank %d, round %d: element %zu is %d, not %d\n", call_names[call], run.rank,
           run.round, i, run.host[i], expected(call, i));
    exit(1);
  }
}

/* ---- other memory at the same addresses ---- */

static void replace(int **memory) {
  int *const before = *memory;
  NEED(cudaFree(before));
  NEED(cudaMalloc((void **)memory, BYTES));
  if (*memory == before) run.reused += 1;
}

static void buffers_swap(void) {
  int *const in = run.in;
  run.in = run.out;
  run.out = in;
}

static void reuse(int turns) {
  static const enum call called[] = {REDUCE_SCATTER, ALL_REDUCE, ALL_GATHER, BROADCAST, ALL_TO_ALL, EXCHANGE};
  for (int turn = 0; turn < turns; turn++) {
    for (size_t c = 0; c < sizeof called / sizeof *called; c++) {
      for (int use = 0; use < 6; use++) {
        call_checked(ALL_GATHER); /* the peers map either buffer at its second use as the output */
        buffers_swap();
      }
      replace(&run.in);
      if (turn % 2 == 0) replace(&run.out);
      for (int use = 0; use < 3; use++) call_checked(called[c]);
    }
  }
  if (run.reused == 0) printf("no address was used again, rank %d\n", run.rank);
}

int main(int argc, char **argv) {
  const char *mode = argc > 1 ? argv[1] : "";
  const int number = argc > 2 ? atoi(argv[2]) : 2;
  if (strcmp(mode, "reuse") != 0) {
    fprintf(stderr, "usage: leases reuse [TURNS]\n");
    return 2;
  }
  run_open();
  NEED(cudaMalloc((void **)&run.in, BYTES));
  NEED(cudaMalloc((void **)&run.out, BYTES));
  reuse(number);
  NEED(cudaFree(run.in));
  NEED(cudaFree(run.out));
  NEED(ncclCommDestroy(run.comm));
  printf("leases: %s, rank %d of %d: ok\n", mode, run.rank, run.size);
  return 0;
}
