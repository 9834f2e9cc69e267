/* calls.h: the calls that programs of tests make in turn, with their names. */
#ifndef TUTTI_TESTS_GPU_CALLS_H
#define TUTTI_TESTS_GPU_CALLS_H

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

#endif
