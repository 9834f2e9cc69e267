/* names.c: the words, by number. */
#include "check/names.h"

#include <stddef.h>
#include <string.h>
#include <strings.h>

#include "kernels/kernels.h"
#include "nccl.h"
#include "schedule/work.h"

static const char *const algo_words[ALGO_COUNT] = {"Tree",    "Ring",     "CollNetDirect", "CollNetChain",
                                                   "NVLS",    "NVLSTree", "PAT",           "Direct",
                                                   "TwoShot", "Custom"};
static const char *const proto_words[PROTO_COUNT] = {"LL", "LL128", "Simple"};
static const char *const func_words[FUNC_COUNT] = {"broadcast",  "reduce",   "all_gather", "reduce_scatter",
                                                   "all_reduce", "sendrecv", "send",       "recv",
                                                   "alltoall",   "scatter",  "gather",     "copy"};

static uint8_t find(const char *const *words, uint8_t count, const char *name) {
  for (uint8_t i = 0; i < count; i++)
    if (strcasecmp(words[i], name) == 0) return i;
  return NAME_NONE;
}

uint8_t name_algo(const char *name) { return find(algo_words, ALGO_COUNT, name); }
uint8_t name_proto(const char *name) { return find(proto_words, PROTO_COUNT, name); }

uint8_t name_func(const char *name) {
  const uint8_t func = find(func_words, FUNC_COUNT, name);
  return func == FUNC_SEND || func == FUNC_RECV || func == FUNC_COPY ? NAME_NONE : func;
}

uint8_t name_type(const char *name) {
  for (uint8_t dtype = 0; dtype < ncclNumTypes; dtype++)
    if (strcmp(kernel_type_name(dtype), name) == 0) return dtype;
  return NAME_NONE;
}

uint8_t name_op(const char *name, uint8_t dtype) {
  static const char *const words[] = {"sum", "prod", "max", "min", "mulsum", "avg"};
  const uint8_t op = find(words, 6, name);
  return op == OP_SUM_POST_DIV && dtype >= ncclFloat16 ? (uint8_t)OP_PRE_MUL_SUM : op;
}

const char *algo_name(uint8_t algo) { return algo < ALGO_COUNT ? algo_words[algo] : "?"; }
const char *proto_name(uint8_t proto) { return proto < PROTO_COUNT ? proto_words[proto] : "?"; }
const char *func_name(uint8_t func) { return func < FUNC_COUNT ? func_words[func] : "?"; }
