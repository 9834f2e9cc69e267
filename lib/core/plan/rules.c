/* rules.c: which algorithm suits an operation, one row per algorithm: what it computes, and what it needs of
 * the machine and the executor. Then what the user allows. */
#include "core/plan/rules.h"

#include "core/topology/links.h"

/* What an algorithm needs besides the operation. */
enum rule_need {
  NEED_EXECUTOR = 1, /* the backend's executors must support it (limits.algos) */
  NEED_LINKS = 2,    /* a link to every other rank */
  NEED_ONE_NODE = 4, /* all ranks reach each other's memory */
  NEED_SWITCH = 8    /* a switch that adds and multicasts, in the node or in the network */
};

#define FUNC(name) (1u << FUNC_##name)
#define PROTO(name) (1u << PROTO_##name)
#define ALL_PROTOS ((1u << PROTO_COUNT) - 1)
#define MOVES_AND_SUMS (FUNC(ALL_GATHER) | FUNC(REDUCE_SCATTER))

struct rule_row {
  uint32_t funcs, protos, needs; /* sets of enum work_func, work_proto, rule_need */
  const char *purpose;           /* message for another function */
};

/* By enum work_algo. An algorithm whose row has no functions does not exist. */
static const struct rule_row rows[ALGO_COUNT] = {
    {FUNC(ALL_REDUCE), ALL_PROTOS, NEED_EXECUTOR, "Tree is for all-reduce alone"},
    {~0u, ALL_PROTOS, 0, ""},
    {FUNC(ALL_REDUCE) | MOVES_AND_SUMS, PROTO(SIMPLE), NEED_SWITCH,
     "CollNetDirect is for all-reduce, all-gather and reduce-scatter"},
    {FUNC(ALL_REDUCE), PROTO(SIMPLE), NEED_SWITCH, "CollNetChain is for all-reduce alone"},
    {FUNC(ALL_REDUCE) | MOVES_AND_SUMS, PROTO(SIMPLE), NEED_SWITCH,
     "NVLS is for all-reduce, all-gather and reduce-scatter"},
    {FUNC(ALL_REDUCE), PROTO(SIMPLE), NEED_SWITCH, "NVLSTree is for all-reduce alone"},
    {MOVES_AND_SUMS, PROTO(SIMPLE), NEED_EXECUTOR, "PAT is for all-gather and reduce-scatter"},
    {~0u, ALL_PROTOS, NEED_EXECUTOR | NEED_LINKS | NEED_ONE_NODE, ""},
    {FUNC(ALL_REDUCE) | FUNC(REDUCE) | FUNC(BROADCAST), ALL_PROTOS,
     NEED_EXECUTOR | NEED_LINKS | NEED_ONE_NODE, "TwoShot is for all-reduce, reduce and broadcast"},
    {0, ALL_PROTOS, NEED_EXECUTOR, "Custom is never chosen by time: its steps come with the call"},
};

/* Blocks of all-gather and reduce-scatter are addressed by rank, so the ranks of a node must be contiguous.
 */
/* What the switch algorithms need of nodes and ranks. */
static const char *forbid_places(const struct graph *graph, uint8_t func, uint8_t algo) {
  const bool in_node = algo == ALGO_NVLS || algo == ALGO_NVLS_TREE;
  if (algo == ALGO_NVLS && graph->node_count > 1)
    return "NVLS is for ranks of one node; NVLSTree goes over several";
  if (algo != ALGO_NVLS && graph->node_count == 1)
    return "it joins several nodes, and these ranks are on one; NVLS is for one node";
  if (in_node && graph->node_ranks_max < 2)
    return "a switch inside the node needs at least two ranks on each node";
  if (algo != ALGO_COLLNET_CHAIN && !graph->nodes_even) return "it needs as many ranks on each node";
  if (func != FUNC_ALL_REDUCE && !graph_ranks_lie_by_node(graph))
    return "it needs the ranks of a node to be numbered one after the other";
  return NULL;
}

/* Members of a switch, which its steps name by 16 bits. */
#define SWITCH_MEMBERS_MAX 16u

static const char *forbid_switch(const struct plan_request *request, uint8_t func, uint8_t algo) {
  const struct graph *graph = request->graph;
  if (((request->settings.limits.algos >> algo) & 1) == 0)
    return "it needs a switch that adds and multicasts, which no hardware backend offers yet; the emulator "
           "has one (TUTTI_BACKEND=emu)";
  const char *why = forbid_places(graph, func, algo);
  if (why != NULL) return why;
  if (links_most(graph, algo) > SWITCH_MEMBERS_MAX ||
      links_most(graph, algo) > request->settings.limits.links)
    return "its switch would have more members than an executor has links (16)";
  return NULL;
}

bool rules_order(const struct plan_request *request, uint8_t func) {
  return request->settings.rank_order && func_reduces(func);
}

uint8_t rules_order_algo(uint8_t func) { return func == FUNC_REDUCE_SCATTER ? ALGO_DIRECT : ALGO_TWO_SHOT; }

bool rules_root_apart(const struct plan_request *request, uint8_t func, uint8_t algo) {
  return algo == ALGO_TWO_SHOT && func_has_root(func) && !rules_order(request, func);
}

/* CPU executors reach other nodes as they reach each other, through slots that proxies transfer. The fast GPU
 * kernels of direct collectives do so with LL only. Beyond a few nodes a ring sends fewer bytes, and with
 * several ranks per node not all of its hops use the network. */
#define GPU_NODES_MOST 4
static bool nodes_go_direct(const struct plan_request *request, uint8_t func, uint8_t algo, uint8_t proto) {
  const struct plan_limits *limits = &request->settings.limits;
  const struct graph *graph = request->graph;
  if (rules_order(request, func)) return true; /* whatever it costs */
  if (limits->reserved_bytes == 0) return false;
  if (limits->cores) return true;
  return algo == ALGO_DIRECT && proto == PROTO_LL && ((limits->quick_protos >> PROTO_LL) & 1) != 0 &&
         func != FUNC_ALL_TO_ALL && graph->node_count == graph->rank_count &&
         graph->node_count <= GPU_NODES_MOST;
}

/* Most links of a direct collective. Beyond a few ranks trees and rings take less memory and time, so more
 * are only used where sums must be in rank order. */
static uint32_t links_allowed(const struct plan_request *request, uint8_t func) {
  const uint32_t links = request->settings.limits.links;
  return rules_order(request, func) || links < DIRECT_LINKS_USUAL ? links : DIRECT_LINKS_USUAL;
}

/* With a root two shots are for long operations of three and more ranks: between two they are a copy. */
static const char *forbid_rooted(const struct plan_request *request, uint8_t func, uint8_t algo,
                                 uint8_t proto) {
  if (!rules_root_apart(request, func, algo)) return NULL;
  if (proto != PROTO_SIMPLE) return "two shots with a root move data by Simple alone";
  return request->rank_count < 3 ? "two shots with a root need a third rank" : NULL;
}

/* What the machine lacks of a row's needs. */
static const char *forbid_machine(const struct plan_request *request, uint8_t func, uint8_t algo,
                                  uint8_t proto) {
  const struct graph *graph = request->graph;
  const struct plan_limits *limits = &request->settings.limits;
  const uint32_t needs = rows[algo].needs;
  if ((needs & NEED_SWITCH) != 0) return forbid_switch(request, func, algo);
  if ((needs & NEED_EXECUTOR) != 0 && ((limits->algos >> algo) & 1) == 0)
    return "this backend's executors do not carry it";
  if ((needs & NEED_ONE_NODE) != 0 && graph->node_count > 1 && !nodes_go_direct(request, func, algo, proto))
    return "it is for the ranks of one node, which reach each other's memory";
  if ((needs & NEED_EXECUTOR) != 0 && links_most(graph, algo) > links_allowed(request, func))
    return (needs & NEED_LINKS) != 0 ? "it needs a link to every other rank, more than an executor has"
                                     : "it needs more links than an executor has";
  return NULL;
}

/* LL128 needs 128-byte stores that are not torn, which is given over NVLink, and over the network from a GPU
 * near its NIC. Naming LL128 overrides this rule, as for the links of one node (settings.h). */
static const char *forbid_ll128(const struct plan_request *request, uint8_t func) {
  const struct graph *graph = request->graph;
  const struct graph_speed *speed = &graph->ring_speed;
  const uint32_t bit = PROTO(LL128);
  if ((request->settings.proto_named[func] & bit) != 0 || request->settings.proto_mask[func] == bit)
    return NULL;
  if (speed->intra_path > GRAPH_NVB)
    return "LL128 needs NVLink between the GPUs of a node; elsewhere 128 bytes may arrive in pieces";
  if (graph->node_count > 1 && speed->inter_path > (graph->capability_min >= 90 ? GRAPH_PXN : GRAPH_PXB))
    return "LL128 needs NICs near the GPUs; elsewhere 128 bytes may arrive in pieces";
  if (graph->capability_min != 0 && graph->capability_min < 70) return "LL128 needs compute capability 7.0";
  if (graph->capability_min != graph->capability_max && graph->capability_min < 90)
    return "LL128 needs GPUs of one kind, or all of compute capability 9.0 and above";
  return NULL;
}

const char *rules_forbid_always(const struct plan_request *request, uint8_t func, uint8_t algo,
                                uint8_t proto) {
  const struct rule_row *row = &rows[algo];
  const bool ordered = rules_order(request, func);
  if (ordered && algo != rules_order_algo(func))
    return "TUTTI_SUM_ORDER=rank allows nothing but a direct reduce-scatter";
  if (!ordered && ((row->funcs >> func) & 1) == 0) return row->purpose;
  if (((row->protos >> proto) & 1) == 0) return "it moves data by Simple alone";
  const char *why = forbid_rooted(request, func, algo, proto);
  if (why == NULL) why = forbid_machine(request, func, algo, proto);
  if (why != NULL) return why;
  const uint32_t protos = request->settings.limits.protos;
  if (algo != ALGO_RING && protos != 0 && ((protos >> proto) & 1) == 0)
    return "this backend's executors carry it with other protocols alone";
  return proto == PROTO_LL128 ? forbid_ll128(request, func) : NULL;
}

/* The algorithm's own variable that disables it. */
static const char *forbid_variable(uint8_t algo) {
  switch (algo) {
    case ALGO_PAT: return "NCCL_PAT_ENABLE=0 leaves it out";
    case ALGO_NVLS:
    case ALGO_NVLS_TREE: return "NCCL_NVLS_ENABLE has to be 1 for it, or NCCL_ALGO has to name it";
    default:
      return "NCCL_COLLNET_ENABLE, or collnetEnable of the configuration, has to be 1 for it, or "
             "NCCL_ALGO has to name it";
  }
}

const char *rules_forbid(const struct plan_request *request, uint8_t func, uint8_t algo, uint8_t proto) {
  const char *why = rules_forbid_always(request, func, algo, proto);
  if (why != NULL) return why;
  if (!rules_order(request, func)) {
    if (((request->settings.algos_off >> algo) & 1) != 0) return forbid_variable(algo);
    if (((request->settings.algo_mask[func] >> algo) & 1) == 0) return "NCCL_ALGO leaves it out";
  }
  if (((request->settings.protos_torn >> proto) & 1) != 0 &&
      ((request->settings.proto_mask[func] >> proto) & 1) == 0)
    return proto != PROTO_LL128                          ? "what joins the hosts does not carry LL"
           : request->settings.limits.reserved_bytes > 0 ? "what joins the hosts does not carry LL128"
                                                         : "a path between two of the ranks may break "
                                                           "lines of 128 bytes apart";
  if (((request->settings.proto_mask[func] >> proto) & 1) == 0) return "NCCL_PROTO leaves it out";
  return NULL;
}
