/* scalar.c: premultiplied sums whose factors are in the device's memory (ncclScalarDevice). They are read
 * when the operation begins, so each rank's stream changes its factor between the sums, without a wait of the
 * host, and so that no two sums have the same; then the same with a graph that holds the sum alone. Types of
 * each size, messages short and long, all-reduce and reduce-scatter.
 *
 *     scalar [SUMS] */
#include <string.h>

#include "need.h"

enum { SUMS_MOST = 64, COUNT_MOST = 1 << 16, SIZES = 3, TYPES = 4 };

static const int counts[SIZES] = {3, 1000, COUNT_MOST};
static const struct {
  ncclDataType_t type;
  int bytes;
} types[TYPES] = {{ncclUint8, 1}, {ncclFloat16, 2}, {ncclFloat32, 4}, {ncclUint64, 8}};

struct rank {
  ncclComm_t comm;
  cudaStream_t stream;
  ncclRedOp_t op;
  cudaGraphExec_t graph;
  unsigned char *in, *out, *factor, *factors; /* factors: those of all sums */
};

static struct rank ranks[RANKS_MAX];
static int rank_count, sum_count = 12;
static unsigned char host[COUNT_MOST * 8], outs[SUMS_MOST][COUNT_MOST * 8];

/* 0 to 7 as an element of the type; C has no 16-bit floats, so their bits are listed. */
static void value_put(int type, unsigned char *to, int value) {
  static const unsigned short halves[] = {0, 0x3c00, 0x4000, 0x4200, 0x4400, 0x4500, 0x4600, 0x4700};
  const float number = (float)value;
  const unsigned long long wide = (unsigned long long)value;
  switch (types[type].bytes) {
    case 1: *to = (unsigned char)value; break;
    case 2: memcpy(to, &halves[value], 2); break;
    case 4: memcpy(to, &number, 4); break;
    default: memcpy(to, &wide, 8); break;
  }
}

static double value_get(int type, const unsigned char *from) {
  unsigned short half;
  float number;
  unsigned long long wide;
  switch (types[type].bytes) {
    case 1: return *from;
    case 2:
      memcpy(&half, from, 2);
      if (half == 0) return 0;
      return (double)(1024 + (half & 1023)) / 1024 * (double)(1ull << ((half >> 10) + 1)) / 65536;
    case 4: memcpy(&number, from, 4); return number;
    default: memcpy(&wide, from, 8); return (double)wide;
  }
}

static int factor_of(int rank, int sum) { return (sum + rank) % 7 + 1; }

static void rank_sum(struct rank *me, int type, int count, int scatters) {
  if (scatters)
    NEED(ncclReduceScatter(me->in, me->out, (size_t)(count / rank_count), types[type].type, me->op, me->comm,
                           me->stream));
  else NEED(ncclAllReduce(me->in, me->out, (size_t)count, types[type].type, me->op, me->comm, me->stream));
}

static void fill(int type, int count) {
  const int bytes = types[type].bytes;
  for (int rank = 0; rank < rank_count; rank++) {
    struct rank *me = &ranks[rank];
    need_device(rank);
    for (int i = 0; i < count; i++) value_put(type, host + (size_t)i * (size_t)bytes, (i + rank) % 3);
    NEED(cudaMemcpy(me->in, host, (size_t)(count * bytes), cudaMemcpyHostToDevice));
    for (int sum = 0; sum < sum_count; sum++) value_put(type, host + 8 * sum, factor_of(rank, sum));
    NEED(cudaMemcpy(me->factors, host, (size_t)(8 * sum_count), cudaMemcpyHostToDevice));
    NEED(cudaDeviceSynchronize());
    NEED(ncclRedOpCreatePreMulSum(&me->op, me->factor, types[type].type, ncclScalarDevice, me->comm));
  }
}

static void graphs_make(int type, int count, int scatters) {
  cudaGraph_t captured[RANKS_MAX];
  for (int rank = 0; rank < rank_count; rank++) {
    need_device(rank);
    NEED(cudaStreamBeginCapture(ranks[rank].stream, cudaStreamCaptureModeThreadLocal));
  }
  NEED(ncclGroupStart());
  for (int rank = 0; rank < rank_count; rank++) rank_sum(&ranks[rank], type, count, scatters);
  NEED(ncclGroupEnd());
  for (int rank = 0; rank < rank_count; rank++) {
    need_device(rank);
    NEED(cudaStreamEndCapture(ranks[rank].stream, &captured[rank]));
  }
  for (int rank = 0; rank < rank_count; rank++) {
    need_device(rank);
    NEED(cudaGraphInstantiate(&ranks[rank].graph, captured[rank], 0));
    NEED(cudaGraphDestroy(captured[rank]));
  }
}

/* All sums are enqueued before the host waits; rank 0's results are copied out behind each. */
static void sums_run(int type, int count, int scatters, int in_graphs) {
  const size_t bytes = (size_t)(types[type].bytes * (scatters ? count / rank_count : count));
  for (int sum = 0; sum < sum_count; sum++) {
    for (int rank = 0; rank < rank_count; rank++) {
      need_device(rank);
      NEED(cudaMemcpyAsync(ranks[rank].factor, ranks[rank].factors + 8 * sum, 8, cudaMemcpyDeviceToDevice,
                           ranks[rank].stream));
      if (in_graphs) NEED(cudaGraphLaunch(ranks[rank].graph, ranks[rank].stream));
    }
    if (!in_graphs) NEED(ncclGroupStart());
    for (int rank = 0; rank < rank_count && !in_graphs; rank++) rank_sum(&ranks[rank], type, count, scatters);
    if (!in_graphs) NEED(ncclGroupEnd());
    need_device(0);
    NEED(cudaMemcpyAsync(outs[sum], ranks[0].out, bytes, cudaMemcpyDeviceToHost, ranks[0].stream));
  }
  for (int rank = 0; rank < rank_count; rank++) {
    need_device(rank);
    NEED(cudaStreamSynchronize(ranks[rank].stream));
  }
}

static void sums_check(int type, int count, int scatters, const char *how) {
  const int bytes = types[type].bytes;
  for (int sum = 0; sum < sum_count; sum++) {
    for (int i = 0; i < (scatters ? count / rank_count : count); i++) {
      double expected = 0;
      for (int rank = 0; rank < rank_count; rank++) expected += (i + rank) % 3 * factor_of(rank, sum);
      const double found = value_get(type, outs[sum] + (size_t)i * (size_t)bytes);
      if (found == expected) continue;
      fprintf(stderr, "scalar: %s of %d elements of %d bytes, %s, sum %d: element %d is %g instead of %g\n",
              scatters ? "reduce-scatter" : "all-reduce", count, bytes, how, sum, i, found, expected);
      exit(1);
    }
  }
}

static void check(int type, int count, int scatters) {
  fill(type, count);
  sums_run(type, count, scatters, 0);
  sums_check(type, count, scatters, "launched");
  graphs_make(type, count, scatters);
  sums_run(type, count, scatters, 1);
  sums_check(type, count, scatters, "in a graph");
  for (int rank = 0; rank < rank_count; rank++) {
    need_device(rank);
    NEED(cudaGraphExecDestroy(ranks[rank].graph));
    NEED(ncclRedOpDestroy(ranks[rank].op, ranks[rank].comm));
  }
}

int main(int argument_count, char **arguments) {
  ncclComm_t comms[RANKS_MAX];
  rank_count = need_ranks();
  if (argument_count > 1) sum_count = atoi(arguments[1]);
  if (sum_count < 1 || sum_count > SUMS_MOST) return 2;
  need_comms(comms, rank_count);
  for (int rank = 0; rank < rank_count; rank++) {
    struct rank *me = &ranks[rank];
    me->comm = comms[rank];
    need_device(rank);
    NEED(cudaStreamCreateWithFlags(&me->stream, cudaStreamNonBlocking));
    NEED(cudaMalloc((void **)&me->in, COUNT_MOST * 8));
    NEED(cudaMalloc((void **)&me->out, COUNT_MOST * 8));
    NEED(cudaMalloc((void **)&me->factor, 8));
    NEED(cudaMalloc((void **)&me->factors, 8 * SUMS_MOST));
  }
  for (int size = 0; size < SIZES; size++)
    for (int type = 0; type < TYPES; type++)
      for (int scatters = 0; scatters < 2; scatters++) check(type, counts[size], scatters);
  for (int rank = 0; rank < rank_count; rank++) NEED(ncclCommDestroy(comms[rank]));
  for (int rank = 0; rank < rank_count; rank++) {
    need_device(rank);
    NEED(cudaStreamDestroy(ranks[rank].stream));
    NEED(cudaFree(ranks[rank].in));
    NEED(cudaFree(ranks[rank].out));
    NEED(cudaFree(ranks[rank].factor));
    NEED(cudaFree(ranks[rank].factors));
  }
  need_fresh_start(rank_count);
  printf("scalar: %d sums of each kind on %d ranks: ok\n", sum_count, rank_count);
  return 0;
}
