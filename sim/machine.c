/* machine.c: see machine.h. */
#include "machine.h"

#include <string.h>

#include "base/log.h"
#include "base/os.h"
#include "core/topology/graph_build.h"

static ncclResult_t ranks_place(const struct topology *topology, uint32_t gpus, struct graph *graph) {
  const uint32_t ranks = topology->node_count * gpus;
  struct graph_place *places = (struct graph_place *)os_alloc(ranks * sizeof *places);
  const struct paths_rules rules = PATHS_RULES_DEFAULT;
  struct graph_request request;
  if (!places) return log_no_memory("the places of %u ranks", ranks);
  for (uint32_t rank = 0; rank < ranks; rank++) {
    places[rank].node = rank / gpus;
    places[rank].gpu = rank % gpus;
  }
  memset(&request, 0, sizeof request);
  request.topology = topology;
  request.places = places;
  request.rank_count = ranks;
  request.channels_min = request.channels_max = PLAN_CHANNELS_MAX;
  request.cross_nic = 2;
  request.rules = rules;
  const ncclResult_t result = graph_build(&request, graph);
  os_free(places);
  return result;
}

ncclResult_t machine_graph(const char *name, uint32_t nodes, uint32_t gpus, struct graph *graph) {
  struct topology topology;
  struct topology_spec spec;
  if (!name && nodes == 1) return graph_flat(gpus, graph);
  if (gpus > TOPOLOGY_GPUS_MAX)
    return log_fail(ncclInvalidUsage, "%u GPUs of a node are more than %u; take more nodes", gpus,
                    TOPOLOGY_GPUS_MAX);
  memset(&topology, 0, sizeof topology);
  memset(&spec, 0, sizeof spec);
  spec.machine = name;
  spec.nodes = nodes;
  spec.gpus = gpus;
  TRY(topology_make(&spec, &topology));
  const ncclResult_t result = ranks_place(&topology, gpus, graph);
  topology_free(&topology);
  return result;
}
