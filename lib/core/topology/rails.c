/* rails.c: see rails.h. */
#include "core/topology/rails.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/log.h"
#include "base/os.h"
#include "base/param.h"
#include "base/text.h"
#include "core/topology/layout.h"
#include "core/topology/rails_machine.h"

/* ---- the choice ---- */

uint32_t rails_nets_most(void) {
  const char *text = param_text(PARAM_NETDEVS_POLICY);
  char *end;
  if (*text == '\0' || strcasecmp(text, "AUTO") == 0 || strcasecmp(text, "ALL") == 0) return 0;
  if (strncasecmp(text, "MAX:", 4) == 0) {
    const long most = strtol(text + 4, &end, 10);
    if (*end == '\0' && most > 0) return most < TOPOLOGY_NETS_MAX ? (uint32_t)most : TOPOLOGY_NETS_MAX;
  }
  log_visible("NCCL_NETDEVS_POLICY: '%s' is none of AUTO, ALL and MAX:1, MAX:2, ...; AUTO is taken", text);
  return 0;
}

/* Spreads channels over the NICs that are as near as the nearest. */
static uint32_t net_of_channel(const struct rails_ask *ask, uint32_t gpu) {
  const struct paths *paths = ask->paths;
  const struct paths_route *routes = &paths->net_gpu[(size_t)gpu * paths->net_count];
  const struct paths_route *best = &routes[paths_net_near(paths, gpu, 0)];
  uint32_t alike = 1;
  while (alike < paths->net_count) {
    const struct paths_route *next = &routes[paths_net_near(paths, gpu, alike)];
    if (next->type != best->type || next->gbps < best->gbps) break;
    alike += 1;
  }
  if (ask->nets_most > 0 && ask->nets_most < alike) alike = ask->nets_most;
  return paths_net_near(paths, gpu, ask->channel_index % alike);
}

static const struct paths_route *route_to(const struct paths *paths, uint32_t gpu, uint32_t net) {
  return &paths->gpu_net[(size_t)gpu * paths->net_count + net];
}

/* A GPU of this node next to the NIC, which the own GPU reaches over NVLink. */
static uint32_t gpu_beside(const struct rails_ask *ask, uint32_t net) {
  const struct paths *paths = ask->paths;
  for (uint32_t gpu = 0; gpu < paths->gpu_count && ask->here != NULL; gpu++) {
    const struct paths_route *link = &paths->gpu_gpu[(size_t)ask->gpu * paths->gpu_count + gpu];
    if (gpu != ask->gpu && ask->here[gpu] && link->type == GRAPH_NVL &&
        route_to(paths, gpu, net)->type <= GRAPH_PXB)
      return gpu;
  }
  return TOPOLOGY_NONE;
}

static bool own_needs_other(const struct rails_ask *ask, uint32_t own) {
  const struct paths_route *route = route_to(ask->paths, ask->gpu, own);
  return route->type == GRAPH_PXN;
}

struct rails_answer rails_choose(const struct rails_ask *ask) {
  const uint32_t own = net_of_channel(ask, ask->gpu);
  const struct rails_answer mine = {own, TOPOLOGY_NONE};
  if (!ask->sends || ask->level == 0) return mine;
  if (!ask->message || ask->level == 1) {
    const struct rails_answer over = {own, route_to(ask->paths, ask->gpu, own)->over};
    const bool there = over.over != TOPOLOGY_NONE && ask->here != NULL && ask->here[over.over];
    return own_needs_other(ask, own) && there ? over : mine;
  }
  const uint32_t theirs = net_of_channel(ask, ask->peer_gpu);
  if (route_to(ask->paths, ask->gpu, theirs)->type <= GRAPH_PXB)
    return (struct rails_answer){theirs, TOPOLOGY_NONE};
  const struct rails_answer beside = {theirs, gpu_beside(ask, theirs)};
  return beside.over != TOPOLOGY_NONE ? beside : mine;
}

/* ---- for the ranks of a process ---- */

struct rails {
  struct topology topology; /* of_machine: as rails_machine_find() keeps it */
  struct paths paths;
  uint32_t rank_count;
  struct rails_place *places;
  uint32_t *gpus; /* by rank: index into topology.gpus; TOPOLOGY_NONE: it is on another machine */
  uint32_t nets_most;
  bool of_machine;
};

void rails_free(struct rails *rails) {
  if (rails == NULL) return;
  paths_free(&rails->paths);
  if (!rails->of_machine) topology_free(&rails->topology);
  os_free(rails->places);
  os_free(rails->gpus);
  os_free(rails);
}

bool rails_over_processes(const struct rails *rails) { return rails != NULL && !rails->of_machine; }

static struct rails *rails_alloc(const struct rails_place *places, uint32_t rank_count) {
  struct rails *rails = (struct rails *)os_alloc(sizeof *rails);
  if (rails == NULL) return NULL;
  rails->rank_count = rank_count;
  rails->nets_most = rails_nets_most();
  rails->places = (struct rails_place *)os_alloc(rank_count * sizeof *places);
  rails->gpus = (uint32_t *)os_alloc(rank_count * sizeof *rails->gpus);
  if (rails->places != NULL && rails->gpus != NULL) {
    memcpy(rails->places, places, rank_count * sizeof *places);
    return rails;
  }
  rails_free(rails);
  return NULL;
}

static ncclResult_t rails_fill(const struct backend *ops, struct rails *rails) {
  const struct paths_rules rules = layout_rules();
  TRY(layout_topology(ops, &rails->topology));
  if (rails->topology.net_count == 0) return ncclSuccess;
  for (uint32_t rank = 0; rank < rails->rank_count; rank++)
    rails->gpus[rank] = rails->places[rank].device % rails->topology.gpu_count;
  return paths_find(&rails->topology, &rules, &rails->paths);
}

ncclResult_t rails_create(const struct backend *ops, const struct rails_place *places, uint32_t rank_count,
                          struct rails **result) {
  struct rails *rails = rails_alloc(places, rank_count);
  if (rails == NULL) return log_no_memory("the places of %u ranks", rank_count);
  const ncclResult_t filled = rails_fill(ops, rails);
  const bool empty = filled != ncclSuccess || rails->topology.net_count == 0;
  if (empty) rails_free(rails);
  if (filled == ncclSuccess) *result = empty ? NULL : rails;
  return filled;
}

/* ---- of this machine ---- */

static const char *gpu_name(const struct rails *rails, uint32_t gpu) {
  const struct topology *topology = &rails->topology;
  return topology->devices[topology->devices[topology->gpus[gpu]].parent].name;
}

/* False if the GPU of a rank that is here is not in the topology. */
static bool ranks_find(struct rails *rails) {
  for (uint32_t rank = 0; rank < rails->rank_count; rank++) {
    rails->gpus[rank] = rails_machine_gpu(&rails->topology, rails->places[rank].pci_id);
    if (rails->gpus[rank] != TOPOLOGY_NONE || !rails->places[rank].here) continue;
    log_info(LOG_INIT | LOG_NET | LOG_GRAPH,
             "the GPU of rank %u is not among those of this machine: NICs are taken in turn", rank);
    return false;
  }
  return true;
}

static void nics_log(const struct rails *rails) {
  const struct paths *paths = &rails->paths;
  for (uint32_t rank = 0; rank < rails->rank_count; rank++) {
    char text[512] = "";
    const uint32_t gpu = rails->gpus[rank];
    if (!rails->places[rank].here) continue;
    for (uint32_t turn = 0; turn < paths->net_count; turn++) {
      const uint32_t net = paths_net_near(paths, gpu, turn);
      text_append(text, sizeof text, "%s%.32s %s", turn > 0 ? ", " : "",
                  rails->topology.devices[rails->topology.nets[net]].name,
                  paths_type_name(paths->net_gpu[(size_t)gpu * paths->net_count + net].type));
    }
    log_info(LOG_INIT | LOG_NET | LOG_GRAPH, "NICs of rank %u on GPU %s, nearest first: %s", rank,
             gpu_name(rails, gpu), text);
  }
}

ncclResult_t rails_create_of_machine(const struct backend *ops, const struct net_ops *net, uint32_t net_count,
                                     const struct rails_place *places, uint32_t rank_count,
                                     struct rails **result) {
  const struct paths_rules rules = layout_rules();
  struct rails *rails = rails_alloc(places, rank_count);
  if (rails == NULL) return log_no_memory("the places of %u ranks", rank_count);
  rails->of_machine = true;
  const struct rails_machine *machine = NULL;
  ncclResult_t filled = rails_machine_find(ops, net, net_count, &machine);
  if (filled == ncclSuccess) rails->topology = machine->topology;
  const bool useful = filled == ncclSuccess && rails->topology.net_count > 0 && ranks_find(rails);
  if (useful) filled = paths_find(&rails->topology, &rules, &rails->paths);
  if (useful && filled == ncclSuccess) {
    nics_log(rails);
    *result = rails;
    return ncclSuccess;
  }
  rails_free(rails);
  *result = NULL;
  return filled;
}

/* ---- choosing ---- */

/* Of a rank on a machine whose GPUs have other names: as if it had the same place there. */
static uint32_t gpu_of(const struct rails *rails, uint32_t rank) {
  const uint32_t gpu = rails->gpus[rank];
  return gpu != TOPOLOGY_NONE ? gpu : rails->places[rank].device % rails->topology.gpu_count;
}

/* The first rank on that GPU; `others`: of any process. */
static uint32_t rank_on(const struct rails *rails, uint32_t node, uint32_t gpu, bool others) {
  uint32_t rank = 0;
  while (!(others || rails->places[rank].here) || rails->places[rank].node != node ||
         gpu_of(rails, rank) != gpu)
    rank += 1;
  return rank;
}

/* Marks the GPUs of the rank's node that ranks use, of this process or of any. */
static void here_find(const struct rails *rails, uint32_t rank, bool others, bool here[TOPOLOGY_GPUS_MAX]) {
  memset(here, 0, TOPOLOGY_GPUS_MAX * sizeof *here);
  for (uint32_t other = 0; other < rails->rank_count; other++)
    if ((others || rails->places[other].here) && rails->places[other].node == rails->places[rank].node)
      here[gpu_of(rails, other)] = true;
}

static uint32_t pxn_level(void) {
  return param_int(PARAM_PXN_DISABLE) != 0 ? 0 : (uint32_t)param_int(PARAM_P2P_PXN_LEVEL);
}

static struct rails_answer rails_answer(const struct rails *rails, uint32_t rank,
                                        const struct device_conn_name *name, bool others, uint32_t *over) {
  bool here[TOPOLOGY_GPUS_MAX];
  const uint32_t node = rails->places[rank].node;
  here_find(rails, rank, others, here);
  const struct rails_ask ask = {
      .paths = &rails->paths,
      .gpu = gpu_of(rails, rank),
      .peer_gpu = gpu_of(rails, name->peer),
      .here = here,
      .channel_index = name->channel_index,
      .sends = name->sends,
      .message = name->conn_index == CONN_MESSAGE,
      .level = pxn_level(),
      .nets_most = rails->nets_most,
  };
  const struct rails_answer answer = rails_choose(&ask);
  *over = answer.over != TOPOLOGY_NONE ? rank_on(rails, node, answer.over, others) : rank;
  return answer;
}

uint32_t rails_device(const struct rails *rails, uint32_t rank, const struct device_conn_name *name,
                      uint32_t device_count, uint32_t *over) {
  *over = rank;
  if (rails == NULL || device_count == 0) return 0;
  return rails_answer(rails, rank, name, false, over).net % device_count;
}

/* ---- memory of GPUs ---- */

enum graph_path rails_gdr_level(void) {
  enum graph_path initial = param_int(PARAM_NET_GDR_C2C) != 0 ? GRAPH_P2C : GRAPH_PXB;
  if (param_int(PARAM_TUTTI_NET_DEVICE_SLOTS) > 0) initial = GRAPH_SYS;
  return layout_level(PARAM_NET_GDR_LEVEL, initial);
}

uint32_t rails_net_count(const struct rails *rails) { return rails != NULL ? rails->paths.net_count : 0; }

/* Collectives use the nearest NICs, messages also others without a way through the host. */
bool rails_reach(const struct rails *rails, uint32_t rank, uint32_t net, struct rails_reach *reach) {
  const uint32_t gpu = rails != NULL ? rails->gpus[rank] : TOPOLOGY_NONE;
  bool here[TOPOLOGY_GPUS_MAX];
  if (gpu == TOPOLOGY_NONE) return false;
  const struct paths_route *routes = &rails->paths.net_gpu[(size_t)gpu * rails->paths.net_count];
  const enum graph_path nearest = routes[paths_net_near(&rails->paths, gpu, 0)].type;
  reach->gpu = gpu_name(rails, gpu);
  reach->path = routes[net].type;
  reach->used = reach->path == nearest || reach->path <= GRAPH_PXB;
  here_find(rails, rank, false, here);
  const struct rails_ask ask = {.paths = &rails->paths, .gpu = gpu, .here = here};
  reach->sends = reach->used || (pxn_level() > 0 && gpu_beside(&ask, net) != TOPOLOGY_NONE);
  return true;
}

bool rails_has_nvlink(const struct rails *rails, uint32_t rank) {
  const uint32_t gpu = rails != NULL ? rails->gpus[rank] : TOPOLOGY_NONE;
  return gpu != TOPOLOGY_NONE && paths_nvlink_gbps(&rails->paths, gpu) > 0;
}

bool rails_pxn(const struct rails *rails, uint32_t rank, const struct device_conn_name *name,
               uint32_t device_count, uint32_t *device, uint32_t *over) {
  if (!rails_over_processes(rails) || device_count != rails->topology.net_count) return false;
  rails_answer(rails, rank, name, false, over);
  if (*over != rank) return false;
  *device = rails_answer(rails, rank, name, true, over).net;
  return *over != rank && !rails->places[*over].here;
}
