/* machine.c: see machine.h. */
#include "machine.h"

#include <string.h>

#include "base/log.h"
#include "base/os.h"
#include "core/topology/graph_build.h"
#include "core/topology/layout.h"

/* How the ranks of a machine are searched. */
struct search {
  uint32_t channels, cross_nic;
  struct paths_rules rules;
};

/* `gpus`: by node. */
static ncclResult_t ranks_place(const struct topology *topology, const uint32_t *gpus, uint32_t ranks,
                                const struct search *search, struct graph *graph) {
  struct graph_place *places = (struct graph_place *)os_alloc(ranks * sizeof *places);
  struct graph_request request;
  if (!places) return log_no_memory("the places of %u ranks", ranks);
  for (uint32_t rank = 0, node = 0, gpu = 0; rank < ranks; rank++, gpu++) {
    if (gpu == gpus[node]) node++, gpu = 0;
    places[rank].node = node;
    places[rank].gpu = gpu;
  }
  memset(&request, 0, sizeof request);
  request.topology = topology;
  request.places = places;
  request.rank_count = ranks;
  request.channels_min = request.channels_max = search->channels;
  request.cross_nic = search->cross_nic;
  request.rules = search->rules;
  const ncclResult_t result = graph_build(&request, graph);
  os_free(places);
  return result;
}

static ncclResult_t machine_search(const char *name, const uint32_t *gpus, uint32_t nodes,
                                   const struct search *search, struct graph *graph) {
  struct topology topology;
  struct topology_spec spec;
  uint32_t most = 0, ranks = 0;
  for (uint32_t node = 0; node < nodes; node++) {
    ranks += gpus[node];
    if (gpus[node] > most) most = gpus[node];
  }
  if (!name && nodes == 1) return graph_flat(ranks, graph);
  if (most > TOPOLOGY_GPUS_MAX)
    return log_fail(ncclInvalidUsage, "%u GPUs of a node are more than %u; take more nodes", most,
                    TOPOLOGY_GPUS_MAX);
  memset(&topology, 0, sizeof topology);
  memset(&spec, 0, sizeof spec);
  spec.machine = name;
  spec.nodes = nodes;
  spec.gpus = most;
  TRY(topology_make(&spec, &topology));
  const ncclResult_t result = ranks_place(&topology, gpus, ranks, search, graph);
  topology_free(&topology);
  return result;
}

ncclResult_t machine_graph_of(const char *name, const uint32_t *gpus, uint32_t nodes, uint32_t channels,
                              struct graph *graph) {
  const struct search search = {channels, layout_cross_nic(), layout_rules()};
  return machine_search(name, gpus, nodes, &search, graph);
}

ncclResult_t machine_graph(const char *name, uint32_t nodes, uint32_t gpus, struct graph *graph) {
  const struct search search = {PLAN_CHANNELS_MAX, 2, PATHS_RULES_DEFAULT};
  uint32_t *each = (uint32_t *)os_alloc(nodes * sizeof *each);
  if (!each) return log_no_memory("%u nodes", nodes);
  for (uint32_t node = 0; node < nodes; node++) each[node] = gpus;
  const ncclResult_t result = machine_search(name, each, nodes, &search, graph);
  os_free(each);
  return result;
}
