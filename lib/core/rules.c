/* rules.c: the rules by which an algorithm fits an operation: what it computes, what it needs of machine and
 * executor, what the user allows. */
#include "core/rules.h"

#include "core/links.h"
#include "schedule/switch.h"

static bool algo_computes(uint8_t algo, uint8_t func) {
  switch (algo) {
    case ALGO_RING: return true;
    case ALGO_TREE:
    case ALGO_NVLS_TREE:
    case ALGO_COLLNET_CHAIN:
    case ALGO_TWO_SHOT: return func == FUNC_ALL_REDUCE;
    case ALGO_NVLS:
    case ALGO_COLLNET_DIRECT:
      return func == FUNC_ALL_REDUCE || func == FUNC_ALL_GATHER || func == FUNC_REDUCE_SCATTER;
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
    case ALGO_NVLS: return "NVLS is for all-reduce, all-gather and reduce-scatter";
    case ALGO_NVLS_TREE: return "NVLSTree is for all-reduce alone";
    case ALGO_COLLNET_DIRECT: return "CollNetDirect is for all-reduce, all-gather and reduce-scatter";
    case ALGO_COLLNET_CHAIN: return "CollNetChain is for all-reduce alone";
    default: return "it is not there for any collective; Ring, Tree, Direct, TwoShot and PAT are";
  }
}

/* A block of all-gather and reduce-scatter is found by its rank. */
static bool ranks_lie_by_node(const struct graph *graph) {
  for (uint32_t rank = 0; rank < graph->rank_count; rank++)
    if (graph->node[rank] * graph->node_ranks_max + graph->local[rank] != rank) return false;
  return true;
}

/* What the algorithms over a switch need of nodes and ranks. */
static const char *forbid_places(const struct graph *graph, uint8_t func, uint8_t algo) {
  const bool in_node = algo == ALGO_NVLS || algo == ALGO_NVLS_TREE;
  if (algo == ALGO_NVLS && graph->node_count > 1)
    return "NVLS is for ranks of one node; NVLSTree goes over several";
  if (algo != ALGO_NVLS && graph->node_count == 1)
    return "it joins several nodes, and these ranks are on one; NVLS is for one node";
  if (in_node && graph->node_ranks_max < 2)
    return "a switch inside the node needs at least two ranks on each node";
  if (algo != ALGO_COLLNET_CHAIN && !graph->nodes_even) return "it needs as many ranks on each node";
  if (func != FUNC_ALL_REDUCE && !ranks_lie_by_node(graph))
    return "it needs the ranks of a node to be numbered one after the other";
  return NULL;
}

static const char *forbid_switch(const struct plan_request *request, uint8_t func, uint8_t algo) {
  const struct graph *graph = request->graph;
  if (((request->limits.algos >> algo) & 1) == 0)
    return "it needs a switch that adds and multicasts, which no hardware backend offers yet; the emulator "
           "has one (TUTTI_BACKEND=emu)";
  const char *why = forbid_places(graph, func, algo);
  if (why != NULL) return why;
  if (links_most(graph, func, algo) > request->limits.links)
    return "its switch would have more members than an executor has links (16)";
  return NULL;
}

static const char *forbid_executor(const struct plan_request *request, uint8_t func, uint8_t algo) {
  const struct plan_limits *limits = &request->limits;
  if (algo == ALGO_RING) return NULL;
  if (switch_is_algo(algo)) return forbid_switch(request, func, algo);
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
  if (switch_is_algo(algo) && proto != PROTO_SIMPLE) return "a switch adds slots, not lines: Simple alone";
  if (((request->proto_mask[func] >> proto) & 1) == 0)
    return "NCCL_PROTO, or a link, leaves this protocol out";
  if (((request->algo_mask[func] >> algo) & 1) == 0) return "NCCL_ALGO leaves it out";
  return NULL;
}
