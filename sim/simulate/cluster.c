/* cluster.c: see cluster.h. */
#include "simulate/cluster.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/os.h"
#include "core/plan/tune_table.h"
#include "core/topology/machine.h"

/* ---- making ---- */

static ncclResult_t spec_check(const struct cluster_spec *spec) {
  const uint64_t ranks = (uint64_t)spec->nodes * spec->gpus;
  if (spec->nodes < 1 || spec->nodes > TOPOLOGY_NODES_MAX)
    return log_fail(ncclInvalidUsage, "%u nodes: must be 1 to %u", spec->nodes, TOPOLOGY_NODES_MAX);
  if (spec->gpus < 1 || spec->gpus > TOPOLOGY_GPUS_MAX)
    return log_fail(ncclInvalidUsage, "%u GPUs of a node: must be 1 to %u; take more nodes", spec->gpus,
                    TOPOLOGY_GPUS_MAX);
  if (ranks > CLUSTER_RANKS_MAX)
    return log_fail(ncclInvalidUsage, "%" PRIu64 " ranks: must be 1 to %u; take fewer nodes or GPUs", ranks,
                    CLUSTER_RANKS_MAX);
  if (spec->fabric.leaf_nodes < 1 || !(spec->fabric.hop_us >= 0 && spec->fabric.hop_us <= 1e6) ||
      !(spec->fabric.oversubscription >= 0.01 && spec->fabric.oversubscription <= 1000))
    return log_fail(ncclInvalidUsage,
                    "a network of %u nodes a leaf, %g us a hop and oversubscription %g: must be at least 1, "
                    "0 to 1e6 and 0.01 to 1000",
                    spec->fabric.leaf_nodes, spec->fabric.hop_us, spec->fabric.oversubscription);
  return ncclSuccess;
}

static ncclResult_t topology_get(const struct cluster_spec *spec, struct topology *topology) {
  struct topology_spec made;
  if (spec->sysfs) return machine_read(spec->sysfs, spec->topology, spec->nodes, topology);
  if (spec->topology) return topology_read(spec->topology, spec->nodes, topology);
  memset(&made, 0, sizeof made);
  made.machine = spec->machine;
  made.nodes = spec->nodes;
  if (!spec->machine) made.gpus = spec->gpus;
  return topology_make(&made, topology);
}

ncclResult_t cluster_count_gpus(struct cluster_spec *spec) {
  struct topology topology;
  if (spec->sysfs == NULL || spec->gpus_given) return ncclSuccess;
  TRY(topology_get(spec, &topology));
  spec->gpus = topology.gpu_count;
  topology_free(&topology);
  return ncclSuccess;
}

static ncclResult_t graph_get(const struct cluster_spec *spec, struct cluster *cluster) {
  const struct paths_rules rules = PATHS_RULES_DEFAULT;
  struct graph_request request;
  struct graph_place *places = (struct graph_place *)os_alloc(cluster->ranks * sizeof *places);
  if (!places) return log_no_memory("the places of %u ranks", cluster->ranks);
  for (uint32_t rank = 0; rank < cluster->ranks; rank++) {
    places[rank].node = rank / cluster->gpus;
    places[rank].gpu = rank % cluster->gpus;
  }
  memset(&request, 0, sizeof request);
  request.topology = &cluster->topology;
  request.places = places;
  request.rank_count = cluster->ranks;
  const uint32_t channels = spec->channels ? spec->channels : PLAN_CHANNELS_MAX;
  request.channels_min = request.channels_max = cluster->ranks > 16384 && channels > 16 ? 16 : channels;
  request.cross_nic = 2;
  request.rules = rules;
  const ncclResult_t result = graph_build(&request, &cluster->graph);
  os_free(places);
  return result;
}

static uint32_t fabric_first(const struct cluster *cluster) {
  return cluster->nodes * cluster->paths.link_count;
}

static uint32_t fabric_link(const struct cluster *cluster, uint32_t leaf, uint32_t net, bool down) {
  return fabric_first(cluster) + 2 * (leaf * cluster->paths.net_count + net) + down;
}

static ncclResult_t links_make(struct cluster *cluster) {
  const struct paths *paths = &cluster->paths;
  const struct cluster_fabric *fabric = &cluster->fabric;
  const uint64_t links =
      (uint64_t)cluster->nodes * paths->link_count + 2 * (uint64_t)cluster->leaf_count * paths->net_count;
  if (links > UINT32_MAX / 2)
    return log_fail(ncclInvalidUsage, "%" PRIu64 " links: at most %u; take fewer nodes", links,
                    UINT32_MAX / 2);
  cluster->link_count = (uint32_t)links;
  cluster->link_gbps = (double *)os_alloc((size_t)links * sizeof *cluster->link_gbps);
  cluster->rank_slow = (double *)os_alloc(cluster->ranks * sizeof *cluster->rank_slow);
  if (!cluster->link_gbps || !cluster->rank_slow) return log_no_memory("%" PRIu64 " links", links);
  for (uint32_t rank = 0; rank < cluster->ranks; rank++) cluster->rank_slow[rank] = 1;
  for (uint32_t node = 0; node < cluster->nodes; node++)
    for (uint32_t i = 0; i < paths->link_count; i++)
      cluster->link_gbps[(size_t)node * paths->link_count + i] =
          cluster->costs.links_gbps > 0 ? cluster->costs.links_gbps
                                        : paths->link_gbps[i] * cluster->costs.link_share;
  for (uint32_t leaf = 0; leaf < cluster->leaf_count; leaf++)
    for (uint32_t net = 0; net < paths->net_count; net++) {
      const struct topology_device *nic = &cluster->topology.devices[cluster->topology.nets[net]];
      const double port = cluster->costs.links_gbps > 0 ? cluster->costs.links_gbps
                                                        : topology_net_gbps(nic) * cluster->costs.link_share;
      const double gbps = port * fabric->leaf_nodes / fabric->oversubscription;
      cluster->link_gbps[fabric_link(cluster, leaf, net, false)] = gbps;
      cluster->link_gbps[fabric_link(cluster, leaf, net, true)] = gbps;
    }
  return ncclSuccess;
}

static ncclResult_t cluster_fill(const struct cluster_spec *spec, struct cluster *cluster) {
  const struct paths_rules rules = PATHS_RULES_DEFAULT;
  TRY(topology_get(spec, &cluster->topology));
  if (cluster->gpus > cluster->topology.gpu_count)
    return log_fail(ncclInvalidUsage, "%u GPUs of a node: %s has %u", cluster->gpus, cluster->topology.name,
                    cluster->topology.gpu_count);
  if (cluster->nodes > 1 && cluster->topology.net_count == 0)
    return log_fail(ncclInvalidUsage, "%u nodes of %s, which has no NIC; take 1 node", cluster->nodes,
                    cluster->topology.name);
  TRY(paths_find(&cluster->topology, &rules, &cluster->paths));
  TRY(graph_get(spec, cluster));
  return links_make(cluster);
}

ncclResult_t cluster_make(const struct cluster_spec *spec, struct cluster *result) {
  TRY(spec_check(spec));
  struct cluster *cluster = (struct cluster *)os_alloc(sizeof *cluster);
  if (!cluster) return log_no_memory("a cluster");
  cluster->nodes = spec->nodes;
  cluster->gpus = spec->gpus;
  cluster->ranks = spec->nodes * spec->gpus;
  cluster->fabric = spec->fabric;
  cluster->leaf_count = (spec->nodes + spec->fabric.leaf_nodes - 1) / spec->fabric.leaf_nodes;
  cluster->costs = spec->costs;
  const ncclResult_t made = cluster_fill(spec, cluster);
  if (made == ncclSuccess) {
    *result = *cluster;
    result->paths.topology = &result->topology;
  } else {
    cluster_free(cluster);
  }
  os_free(cluster);
  return made;
}

void cluster_free(struct cluster *cluster) {
  graph_free(&cluster->graph);
  paths_free(&cluster->paths);
  topology_free(&cluster->topology);
  os_free(cluster->link_gbps);
  os_free(cluster->rank_slow);
  memset(cluster, 0, sizeof *cluster);
}

/* ---- routes ---- */

static void route_add(const struct cluster *cluster, struct cluster_route *route, uint32_t link) {
  if (route->link_count < CLUSTER_ROUTE_LINKS_MAX) route->links[route->link_count++] = link;
  if (cluster->link_gbps[link] < route->gbps) route->gbps = cluster->link_gbps[link];
}

static void route_hops(const struct cluster *cluster, struct cluster_route *route, uint32_t node,
                       const struct paths_route *hops) {
  for (uint32_t i = 0; i < hops->hop_count; i++)
    route_add(cluster, route, node * cluster->paths.link_count + hops->hops[i]);
}

static void route_network(const struct cluster *cluster, const struct sim_conn *conn,
                          struct cluster_route *route) {
  const struct paths *paths = &cluster->paths;
  bool here[TOPOLOGY_GPUS_MAX];
  struct rails_ask ask;
  const uint32_t from = conn->sender / cluster->gpus, to = conn->receiver / cluster->gpus;
  memset(here, true, sizeof here);
  memset(&ask, 0, sizeof ask);
  ask.paths = paths;
  ask.gpu = conn->sender % cluster->gpus;
  ask.peer_gpu = conn->receiver % cluster->gpus;
  ask.here = here;
  ask.channel_index = conn->channel;
  ask.sends = true;
  ask.message = conn->index == CONN_MESSAGE;
  ask.level = 2;
  const uint32_t out = rails_choose(&ask).net;
  ask.gpu = conn->receiver % cluster->gpus;
  ask.peer_gpu = conn->sender % cluster->gpus;
  ask.sends = false;
  const uint32_t in = rails_choose(&ask).net;
  const uint32_t leaf_from = from / cluster->fabric.leaf_nodes, leaf_to = to / cluster->fabric.leaf_nodes;
  const bool spine = cluster->flat || leaf_from != leaf_to || in != out;
  route->network = true;
  route->kind = TUNE_NET;
  route->flight_us = (spine ? 3 : 1) * cluster->fabric.hop_us;
  route_hops(cluster, route, from,
             &paths->gpu_net[(size_t)(conn->sender % cluster->gpus) * paths->net_count + out]);
  if (spine && cluster->fabric.oversubscription > 1) { /* else NICs are full before leaves are */
    route_add(cluster, route, fabric_link(cluster, leaf_from, out, false));
    route_add(cluster, route, fabric_link(cluster, leaf_to, in, true));
  }
  route_hops(cluster, route, to,
             &paths->net_gpu[(size_t)(conn->receiver % cluster->gpus) * paths->net_count + in]);
}

void cluster_route_find(const struct cluster *cluster, const struct sim_conn *conn,
                        struct cluster_route *route) {
  const struct paths *paths = &cluster->paths;
  memset(route, 0, sizeof *route);
  route->gbps = PATHS_LOCAL_GBPS;
  if (conn->sender / cluster->gpus != conn->receiver / cluster->gpus) {
    route_network(cluster, conn, route);
    return;
  }
  const struct paths_route *hops = &paths->gpu_gpu[(size_t)(conn->sender % cluster->gpus) * paths->gpu_count +
                                                   conn->receiver % cluster->gpus];
  route->kind = hops->type <= GRAPH_NVB ? TUNE_NVLINK : TUNE_PCI;
  route_hops(cluster, route, conn->sender / cluster->gpus, hops);
}

double cluster_wire(uint8_t proto) { return proto == PROTO_LL ? 2 : proto == PROTO_LL128 ? 128.0 / 120 : 1; }

double cluster_most_gbps(const struct cluster *cluster, const struct cluster_route *route, uint8_t proto,
                         uint32_t rank) {
  const double lane_gbps = cluster_wire(proto) * cluster->costs.lane_gbps[proto] / cluster->rank_slow[rank];
  const double proxy_gbps = cluster_wire(proto) * cluster->costs.proxy_ll_gbps;
  const bool proxied = route->network && proto == PROTO_LL && proxy_gbps > 0;
  const double most_gbps = proxied ? proxy_gbps : lane_gbps;
  return (!route->network || proxied) && most_gbps < route->gbps ? most_gbps : route->gbps;
}

/* A NIC's port to the network or, with `down`, from it: where routes over the NIC end or begin. */
static uint32_t nic_port(const struct cluster *cluster, uint32_t nic, bool down) {
  const struct paths_route *out = &cluster->paths.gpu_net[nic], *in = &cluster->paths.net_gpu[nic];
  if (down) return in->hop_count > 0 ? in->hops[0] : TOPOLOGY_NONE;
  return out->hop_count > 0 ? out->hops[out->hop_count - 1] : TOPOLOGY_NONE;
}

static uint32_t nic_of_port(const struct cluster *cluster, uint32_t port) {
  for (uint32_t nic = 0; nic < cluster->paths.net_count; nic++)
    if (nic_port(cluster, nic, false) == port || nic_port(cluster, nic, true) == port) return nic;
  return TOPOLOGY_NONE;
}

/* "GPU 3 out" for a link from a GPU to others, "GPU 3 PCI in" for one from NICs; false if it is between other
 * devices. */
static bool gpu_link_name(const struct cluster *cluster, uint32_t link, char *out, size_t out_bytes) {
  const struct paths *paths = &cluster->paths;
  for (uint32_t gpu = 0; gpu < cluster->gpus; gpu++) {
    for (uint32_t to = 0; to < cluster->gpus + paths->net_count; to++) {
      const bool net = to >= cluster->gpus;
      const struct paths_route *there =
          net ? &paths->gpu_net[(size_t)gpu * paths->net_count + to - cluster->gpus]
              : &paths->gpu_gpu[(size_t)gpu * paths->gpu_count + to];
      const struct paths_route *back =
          net ? &paths->net_gpu[(size_t)gpu * paths->net_count + to - cluster->gpus]
              : &paths->gpu_gpu[(size_t)to * paths->gpu_count + gpu];
      const bool leaves = there->hop_count > 0 && there->hops[0] == link;
      if (!leaves && (back->hop_count == 0 || back->hops[back->hop_count - 1] != link)) continue;
      snprintf(out, out_bytes, "GPU %u%s %s", gpu, net ? " PCI" : "", leaves ? "out" : "in");
      return true;
    }
  }
  return false;
}

void cluster_link_name(const struct cluster *cluster, uint32_t link, char *out, size_t out_bytes) {
  const uint32_t inside = cluster->paths.link_count, first = fabric_first(cluster);
  if (link < first) {
    const uint32_t nic = nic_of_port(cluster, link % inside);
    char name[32];
    if (nic != TOPOLOGY_NONE)
      snprintf(name, sizeof name, "NIC %u %s", nic,
               nic_port(cluster, nic, false) == link % inside ? "out" : "in");
    else if (!gpu_link_name(cluster, link % inside, name, sizeof name))
      snprintf(name, sizeof name, "link %u", link % inside);
    snprintf(out, out_bytes, "node %u %s", link / inside, name);
    return;
  }
  const uint32_t place = (link - first) / 2, nets = cluster->paths.net_count;
  snprintf(out, out_bytes, "leaf %u rail %u %s", place / nets, place % nets,
           (link - first) % 2 ? "down" : "up");
}

/* ---- faults ---- */

static bool number_read(const char **text, uint32_t most, uint32_t *number) {
  char *end;
  errno = 0;
  const unsigned long value = strtoul(*text, &end, 10);
  if (end == *text || errno || value > most || **text == '-') return false;
  *number = (uint32_t)value;
  *text = end;
  return true;
}

/* ":FACTOR" to the end, from 1 on. */
static bool factor_read(const char *text, double *factor) {
  char *end;
  if (*text++ != ':') return false;
  *factor = strtod(text, &end);
  return end != text && *end == 0 && *factor >= 1 && *factor <= 1e6;
}

static bool fault_rank(struct cluster *cluster, const char *text, double *factor, uint32_t *rank) {
  (void)cluster;
  return number_read(&text, cluster->ranks - 1, rank) && factor_read(text, factor);
}

static bool fault_nic(struct cluster *cluster, const char *text) {
  uint32_t node, nic;
  double factor = 0;
  if (!number_read(&text, cluster->nodes - 1, &node) || *text++ != ':') return false;
  if (cluster->paths.net_count == 0 || !number_read(&text, cluster->paths.net_count - 1, &nic)) return false;
  if (strcmp(text, ":off") != 0 && !factor_read(text, &factor)) return false;
  double *gbps = &cluster->link_gbps[(size_t)node * cluster->paths.link_count];
  for (int down = 0; down < 2; down++) {
    const uint32_t port = nic_port(cluster, nic, down != 0);
    if (port != TOPOLOGY_NONE) gbps[port] = factor > 0 ? gbps[port] / factor : 0;
  }
  return true;
}

/* All links out of a GPU. */
static void rank_links_slow(struct cluster *cluster, uint32_t rank, double factor) {
  const struct paths *paths = &cluster->paths;
  const uint32_t gpu = rank % cluster->gpus;
  double *gbps = &cluster->link_gbps[(size_t)(rank / cluster->gpus) * paths->link_count];
  bool done[2] = {false, false};
  for (uint32_t peer = 0; peer < cluster->gpus; peer++) {
    const struct paths_route *route = &paths->gpu_gpu[(size_t)gpu * paths->gpu_count + peer];
    const bool nvlink = route->type == GRAPH_NVL;
    if (peer == gpu || route->hop_count == 0 || done[nvlink]) continue;
    gbps[route->hops[0]] /= factor;
    done[nvlink] = true;
  }
}

bool cluster_fault(struct cluster *cluster, const char *text, char *why, size_t why_bytes) {
  uint32_t rank;
  double factor;
  if (!strncmp(text, "slow-rank:", 10) && fault_rank(cluster, text + 10, &factor, &rank)) {
    cluster->rank_slow[rank] *= factor;
    return true;
  }
  if (!strncmp(text, "slow-link:", 10) && fault_rank(cluster, text + 10, &factor, &rank)) {
    rank_links_slow(cluster, rank, factor);
    return true;
  }
  if (!strncmp(text, "nic:", 4) && fault_nic(cluster, text + 4)) return true;
  snprintf(
      why, why_bytes,
      "expected slow-rank:RANK:FACTOR, slow-link:RANK:FACTOR or nic:NODE:NIC:FACTOR (or :off), with ranks "
      "0-%u, nodes 0-%u, NICs 0-%u and factors 1-1e6",
      cluster->ranks - 1, cluster->nodes - 1, cluster->paths.net_count ? cluster->paths.net_count - 1 : 0);
  return false;
}

/* ---- scaling ---- */

static bool is_port(const struct cluster *cluster, uint32_t link) {
  return link >= fabric_first(cluster) ||
         nic_of_port(cluster, link % cluster->paths.link_count) != TOPOLOGY_NONE;
}

bool cluster_scale(struct cluster *cluster, const char *text, double *compute) {
  const size_t length = strcspn(text, ":");
  const bool nics = !strncmp(text, "nics", length) && length == 4;
  const bool links = !strncmp(text, "links", length) && length == 5;
  const bool computes = !strncmp(text, "compute", length) && length == 7;
  char *end = NULL;
  const double factor = text[length] == ':' ? strtod(&text[length + 1], &end) : 0;
  if (!(factor >= 0.001 && factor <= 1000) || *end != 0 || !(nics || links || computes)) return false;
  if (computes) *compute *= factor;
  for (uint32_t link = 0; !computes && link < cluster->link_count; link++)
    if (is_port(cluster, link) == nics) cluster->link_gbps[link] *= factor;
  return true;
}
