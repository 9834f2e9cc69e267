/* calls.h: the calls that programs of tests make in turn, with their names. */
#ifndef TUTTI_TESTS_GPU_CALLS_H
#define TUTTI_TESTS_GPU_CALLS_H

#include "need.h"

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

/* What rank `r` of `n` calls; of an exchange, in a group with those of other ranks. */
struct call_arguments {
  const void *in;
  void *out;
  size_t count;
  ncclDataType_t type;
  int r, n, root;
  ncclComm_t comm;
  cudaStream_t stream;
};

static inline void call_make(enum call call, const struct call_arguments *a) {
  switch (call) {
    case ALL_REDUCE:
      NEED(ncclAllReduce(a->in, a->out, a->count, a->type, ncclSum, a->comm, a->stream));
      break;
    case REDUCE:
      NEED(ncclReduce(a->in, a->out, a->count, a->type, ncclSum, a->root, a->comm, a->stream));
      break;
    case REDUCE_SCATTER:
      NEED(ncclReduceScatter(a->in, a->out, a->count, a->type, ncclSum, a->comm, a->stream));
      break;
    case ALL_GATHER: NEED(ncclAllGather(a->in, a->out, a->count, a->type, a->comm, a->stream)); break;
    case BROADCAST: NEED(ncclBroadcast(a->in, a->out, a->count, a->type, a->root, a->comm, a->stream)); break;
    case ALL_TO_ALL: NEED(ncclAlltoAll(a->in, a->out, a->count, a->type, a->comm, a->stream)); break;
    case GATHER: NEED(ncclGather(a->in, a->out, a->count, a->type, a->root, a->comm, a->stream)); break;
    case SCATTER: NEED(ncclScatter(a->in, a->out, a->count, a->type, a->root, a->comm, a->stream)); break;
    default:
      NEED(ncclSend(a->in, a->count, a->type, (a->r + 1) % a->n, a->comm, a->stream));
      NEED(ncclRecv(a->out, a->count, a->type, (a->r + a->n - 1) % a->n, a->comm, a->stream));
      break;
  }
}

#endif
