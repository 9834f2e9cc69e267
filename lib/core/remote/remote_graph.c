/* remote_graph.c: the graph over all hosts. It is made from the hosts' machines if all ranks say that these
 * are alike, and each process makes it from its own; else from NCCL_TOPO_FILE or the default machine. Every
 * rank knows what all ranks say, so all decide alike. */
#include <string.h>

#include "base/log.h"
#include "base/os.h"
#include "base/text.h"
#include "core/comm/comm.h"
#include "core/proxy/net.h"
#include "core/remote/remote.h"
#include "core/topology/layout.h"
#include "core/topology/rails_machine.h"

static ncclResult_t machine_here(const struct backend *ops, const struct rails_machine **machine) {
  const struct net_ops *net = NULL;
  uint32_t net_count = 0;
  TRY(net_choose(&net, &net_count));
  return rails_machine_find(ops, net, net_count, machine);
}

/* A loopback or virtual interface is none of the machine's devices, so its paths and rate are not known. */
static bool nets_are_devices(const struct topology *topology) {
  for (uint32_t net = 0; net < topology->net_count; net++) {
    const struct topology_device *nic = &topology->devices[topology->devices[topology->nets[net]].parent];
    if (topology->devices[nic->parent].kind != TOPOLOGY_PCI) return false;
  }
  return topology->net_count > 0;
}

static ncclResult_t info_machine(const struct backend *ops, struct peer_info *info) {
  const struct rails_machine *machine = NULL;
  uint32_t nodes = 0;
  TRY(ops->device->nodes(&nodes));
  if (nodes > 0) return ncclSuccess; /* the backend says what its nodes are */
  TRY(machine_here(ops, &machine));
  const uint32_t gpu = rails_machine_gpu(&machine->topology, info->pci_id);
  if (gpu == TOPOLOGY_NONE || !nets_are_devices(&machine->topology)) return ncclSuccess;
  info->shape = layout_shape_digest(&machine->shape);
  info->machine_gpus = (uint16_t)machine->topology.gpu_count;
  info->machine_nets = (uint16_t)machine->topology.net_count;
  info->machine_gpu = (uint16_t)gpu;
  return ncclSuccess;
}

/* Whether it matters is not known yet: the ranks may be on one host. */
void peer_info_machine(const struct backend *ops, struct peer_info *info) {
  log_hush(true);
  const ncclResult_t result = info_machine(ops, info);
  log_hush(false);
  if (result != ncclSuccess) log_info(LOG_GRAPH, "this machine is not known: %s", log_own_error());
}

/* ---- Are they alike? ---- */

/* Says how the machine of this rank's host differs from that of rank 0's. */
static void difference_add(const struct remote *remote, uint32_t rank, char *text, size_t bytes) {
  const struct peer_info *first = &remote->infos[0], *info = &remote->infos[rank];
  text_append(text, bytes, "%s%s (rank %u) has ", *text != '\0' ? ", " : "", info->host_name, rank);
  if (info->machine_gpus != first->machine_gpus)
    text_append(text, bytes, "%u GPUs instead of %u", info->machine_gpus, first->machine_gpus);
  else if (info->machine_nets != first->machine_nets)
    text_append(text, bytes, "%u NICs instead of %u", info->machine_nets, first->machine_nets);
  else text_append(text, bytes, "other links or settings of paths");
}

static bool differs(const struct remote *remote, uint32_t rank) {
  return remote->infos[rank].shape != remote->infos[0].shape;
}

/* True for the first rank of its host that differs: processes of a host may see different GPUs. */
static bool is_said(const struct remote *remote, const struct graph_place *places, uint32_t rank) {
  for (uint32_t i = 0; i < rank; i++)
    if (places[i].node == places[rank].node && differs(remote, i)) return false;
  return differs(remote, rank);
}

#define DIFFERENCES_SAID 4u

/* The process of rank 0 says it for all. */
static void differences_warn(const struct remote *remote, const struct graph_place *places) {
  char text[1024] = "";
  uint32_t count = 0;
  if (places[0].remote) return;
  for (uint32_t rank = 1; rank < remote->shared->rank_count; rank++) {
    if (!is_said(remote, places, rank)) continue;
    if (count++ < DIFFERENCES_SAID) difference_add(remote, rank, text, sizeof text);
  }
  if (count > DIFFERENCES_SAID) text_append(text, sizeof text, ", and so on: %u hosts in all", count);
  log_warn(
      "hosts are not alike: compared with %s (rank 0), %s: rings and trees between hosts are not made for "
      "these machines; use hosts of one kind, or give NCCL_TOPO_FILE on all of them",
      remote->infos[0].host_name, text);
}

/* A graph has each GPU of a node once. */
static bool shares_gpu(const struct remote *remote, const struct graph_place *places, uint32_t rank) {
  for (uint32_t i = 0; i < rank; i++)
    if (places[i].node == places[rank].node &&
        remote->infos[i].machine_gpu == remote->infos[rank].machine_gpu)
      return true;
  return false;
}

static bool machines_are_alike(const struct remote *remote, const struct graph_place *places) {
  const uint32_t rank_count = remote->shared->rank_count;
  bool alike = true;
  for (uint32_t rank = 0; rank < rank_count; rank++) {
    const char *why = remote->infos[rank].shape == 0     ? "or its network is not among its machine's devices"
                      : shares_gpu(remote, places, rank) ? "is another rank's, too"
                                                         : NULL;
    if (why != NULL) {
      log_info(LOG_GRAPH, "the GPU of rank %u %s: rings and trees between hosts are not made for machines",
               rank, why);
      return false;
    }
    alike = alike && !differs(remote, rank);
  }
  if (!alike) differences_warn(remote, places);
  return alike;
}

/* ---- The graph ---- */

static ncclResult_t lay_out_machines(const struct remote *remote, struct graph_place *places,
                                     uint32_t node_count, uint32_t channel_count, struct graph *graph) {
  const struct rails_machine *machine = NULL;
  const uint32_t rank_count = remote->shared->rank_count;
  TRY(machine_here(remote->shared->ops, &machine));
  for (uint32_t rank = 0; rank < rank_count; rank++) places[rank].gpu = remote->infos[rank].machine_gpu;
  log_info(LOG_GRAPH,
           "rings and trees between hosts are made for their machines, which are alike: %u GPUs and "
           "%u NICs of '%s'",
           machine->topology.gpu_count, machine->topology.net_count, machine->topology.name);
  return layout_graph_shape(&machine->shape, machine->topology.name, places, rank_count, node_count,
                            channel_count, graph);
}

/* Hosts are nodes, in the order of their first ranks. */
static uint32_t places_fill(const struct remote *remote, struct graph_place *places) {
  uint32_t node_count = 0;
  for (uint32_t rank = 0; rank < remote->shared->rank_count; rank++) {
    uint32_t first = rank, last = rank;
    for (uint32_t i = rank; i-- > 0;) {
      if (remote->infos[i].host != remote->infos[rank].host) continue;
      if (last == rank) last = i;
      first = i;
    }
    places[rank].node = first < rank ? places[first].node : node_count++;
    places[rank].gpu = last < rank ? places[last].gpu + 1 : 0;
    places[rank].remote = remote->ranks[rank].process_index != remote->own_process;
  }
  return node_count;
}

ncclResult_t remote_lay_out(const struct remote *remote, uint32_t channel_count, struct graph *graph) {
  const uint32_t rank_count = remote->shared->rank_count;
  struct graph_place *places = (struct graph_place *)os_alloc(rank_count * sizeof *places);
  uint32_t nodes = 0;
  if (!places) return log_no_memory("the places of %u ranks", rank_count);
  const uint32_t node_count = places_fill(remote, places);
  ncclResult_t result = remote->shared->ops->device->nodes(&nodes);
  if (result != ncclSuccess) {
    os_free(places);
    return result;
  }
  const bool real = nodes == 0 && node_count > 1;
  result = real && !layout_is_by_file() && machines_are_alike(remote, places)
               ? lay_out_machines(remote, places, node_count, channel_count, graph)
               : layout_graph_places(places, rank_count, node_count, channel_count, graph);
  os_free(places);
  return result;
}
