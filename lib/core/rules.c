/* rules.c: the rules by which an algorithm fits an operation: what it computes, what it needs of machine and
 * executor, what the user allows. */
#include "core/rules.h"

#include "core/links.h"

static bool algo_computes(uint8_t algo, uint8_t func) {
  switch (algo) {
    case ALGO_RING: return true;
    case ALGO_TREE:
    case ALGO_TWO_SHOT: return func == FUNC_ALL_REDUCE;
    case ALGO_DIRECT: return func != FUNC_REDUCE;
    case ALGO_PAT: return func == FUNC_ALL_GATHER || func == FUNC_REDUCE_SCATTER;
    default: return false;
  }
}

static const char *algo_purpose(uint8_t algo) {
  switch (algo) {
    case ALGO_TREE: return "Tree is for all-reduce alone; broadcast and reduce go by Ring";
    case ALGO_TWO_SHOT: return "TwoShot is for all-reduce alone";
    case ALGO_DIRECT: return "Direct is not for reduce, which goes by Ring";
    case ALGO_PAT: return "PAT is for all-gather and reduce-scatter";
    default: return "it is not there for any collective; Ring, Tree, Direct, TwoShot and PAT are";
  }
}

static const char *forbid_executor(const struct plan_request *request, uint8_t func, uint8_t algo) {
  const struct plan_limits *limits = &request->limits;
  if (algo == ALGO_RING) return NULL;
  if (((limits->algos >> algo) & 1) == 0) return "this backend's executors carry Ring alone";
  if (links_most(request->graph, func, algo) > limits->links)
    return "it needs a link to every other rank, more than an executor has";
  return NULL;
}

const char *rules_forbid(const struct plan_request *request, uint8_t func, uint8_t algo, uint8_t proto) {
  if (!algo_computes(algo, func)) return algo_purpose(algo);
  if (algo == ALGO_PAT && proto != PROTO_SIMPLE) return "PAT moves data by Simple alone";
  const char *why = forbid_executor(request, func, algo);
  if (why != NULL) return why;
  if (((request->proto_mask[func] >> proto) & 1) == 0)
    return "NCCL_PROTO, or a link, leaves this protocol out";
  if (((request->algo_mask[func] >> algo) & 1) == 0) return "NCCL_ALGO leaves it out";
  return NULL;
}
