/* topology_paths.c: paths along the PCI tree and between CPUs, over NVLink, and through another GPU; the best
 * of them is used. A link has a number for each direction. */
#include "core/topology/topology_paths.h"

#include <string.h>

#include "base/log.h"
#include "base/os.h"

#define UNLIMITED_GBPS 1e9
#define INTEL_COST (6.0 / 5.0) /* packets between GPUs through an Intel root complex are smaller */

/* Numbers of links: row to parent (a CPU: to the other CPUs), GPU to NVSwitch, GPU to its CPU, NIC to
 * network: two each, upstream and downstream; then rows of NVLinks between GPUs: one each. */
static uint32_t link_tree(uint32_t row, bool down) { return 2 * row + down; }

static uint32_t link_switch(const struct paths *paths, uint32_t gpu, bool down) {
  return 2 * (paths->topology->device_count + gpu) + down;
}

static uint32_t link_host(const struct paths *paths, uint32_t gpu, bool down) {
  return 2 * (paths->topology->device_count + paths->gpu_count + gpu) + down;
}

static uint32_t link_port(const struct paths *paths, uint32_t net, bool down) {
  return 2 * (paths->topology->device_count + 2 * paths->gpu_count + net) + down;
}

static uint32_t link_peer(const struct paths *paths, uint32_t row) {
  return 2 * (paths->topology->device_count + 2 * paths->gpu_count + paths->net_count) + row;
}

static void links_fill_pair(struct paths *paths, uint32_t away, double gbps) {
  paths->link_gbps[away] = paths->link_gbps[away + 1] = gbps;
}

static uint32_t gpu_of_row(const struct topology *topology, uint32_t row) {
  uint32_t gpu = 0;
  while (topology->gpus[gpu] != row) gpu += 1;
  return gpu;
}

static void links_fill(struct paths *paths) {
  const struct topology *topology = paths->topology;
  for (uint32_t row = 0; row < topology->device_count; row++) {
    const bool cpu = topology->devices[row].kind == TOPOLOGY_CPU;
    const double gbps =
        cpu ? topology_socket_gbps(&topology->devices[row]) : topology_link_gbps(topology, row);
    links_fill_pair(paths, link_tree(row, false), gbps > 0 ? gbps : UNLIMITED_GBPS);
  }
  for (uint32_t gpu = 0; gpu < paths->gpu_count; gpu++) {
    const struct topology_device *device = &topology->devices[topology->gpus[gpu]];
    links_fill_pair(paths, link_host(paths, gpu, false), device->host_mbps / 1000.0 * device->host_links);
  }
  for (uint32_t net = 0; net < paths->net_count; net++)
    links_fill_pair(paths, link_port(paths, net, false),
                    topology_net_gbps(&topology->devices[topology->nets[net]]));
  for (uint32_t i = 0; i < topology->link_count; i++) {
    const struct topology_link *link = &topology->links[i];
    const double gbps = link->count * topology_nvlink_gbps(topology->devices[link->gpu].capability);
    const uint32_t away = link_switch(paths, gpu_of_row(topology, link->gpu), false);
    if (link->peer != TOPOLOGY_NONE) paths->link_gbps[link_peer(paths, i)] = gbps;
    else if (topology_link_is_switch(link)) links_fill_pair(paths, away, paths->link_gbps[away] + gbps);
  }
}

/* ---- Routes ---- */

static void route_none(struct paths_route *route, enum graph_path type) {
  memset(route, 0, sizeof *route);
  route->type = type;
  route->cost = 1;
  route->gbps = type == GRAPH_DIS ? 0 : PATHS_LOCAL_GBPS;
  route->over = TOPOLOGY_NONE;
}

static void route_add(const struct paths *paths, struct paths_route *route, uint32_t link) {
  if (paths->link_gbps[link] >= UNLIMITED_GBPS) return;
  if (route->hop_count < PATHS_HOPS_MAX) route->hops[route->hop_count++] = (uint16_t)link;
  if (paths->link_gbps[link] < route->gbps) route->gbps = paths->link_gbps[link];
}

static void route_join(const struct paths *paths, struct paths_route *route, const struct paths_route *more) {
  for (uint32_t i = 0; i < more->hop_count; i++) route_add(paths, route, more->hops[i]);
  if (more->cost > route->cost) route->cost = more->cost;
  if (more->gbps < route->gbps) route->gbps = more->gbps;
}

static uint32_t row_depth(const struct topology *topology, uint32_t row) {
  uint32_t depth = 0;
  for (; topology->devices[row].parent != TOPOLOGY_NONE; row = topology->devices[row].parent) depth += 1;
  return depth;
}

static uint32_t row_cpu(const struct topology *topology, uint32_t row) {
  while (topology->devices[row].parent != TOPOLOGY_NONE) row = topology->devices[row].parent;
  return row;
}

/* The lowest common ancestor, TOPOLOGY_NONE if the rows are below different CPUs. */
static uint32_t rows_meet(const struct topology *topology, uint32_t a, uint32_t b) {
  uint32_t depth_a = row_depth(topology, a), depth_b = row_depth(topology, b);
  for (; depth_a > depth_b; depth_a--) a = topology->devices[a].parent;
  for (; depth_b > depth_a; depth_b--) b = topology->devices[b].parent;
  while (a != b && a != TOPOLOGY_NONE) {
    a = topology->devices[a].parent;
    b = topology->devices[b].parent;
  }
  return a;
}

/* Number of PCI switches from a device up to and including `top`, without the device's own function. */
static uint32_t switches_below(const struct topology *topology, uint32_t row, uint32_t top) {
  uint32_t count = 0;
  bool own = true;
  for (; row != top; row = topology->devices[row].parent) {
    if (topology->devices[row].kind != TOPOLOGY_PCI) continue;
    if (!own) count += 1;
    own = false;
  }
  return count;
}

/* Adds the links from a device up to `top`, or down from it. A GPU with its own link to its CPU uses that for
 * traffic through the CPU; true in that case. */
static bool route_climb(const struct paths *paths, struct paths_route *route, uint32_t row, uint32_t top,
                        bool down) {
  const struct topology *topology = paths->topology;
  if (topology->devices[row].kind == TOPOLOGY_GPU && topology->devices[row].host_links > 0 &&
      topology->devices[top].kind == TOPOLOGY_CPU) {
    route_add(paths, route, link_host(paths, gpu_of_row(topology, row), down));
    return true;
  }
  for (; row != top; row = topology->devices[row].parent) route_add(paths, route, link_tree(row, down));
  return false;
}

/* Along the tree; `by_host`: through a CPU even if there is a shorter path. */
static void route_by_tree(const struct paths *paths, uint32_t from, uint32_t to, bool by_host,
                          struct paths_route *route) {
  const struct topology *topology = paths->topology;
  const uint32_t cpu_from = row_cpu(topology, from), cpu_to = row_cpu(topology, to);
  uint32_t meet = rows_meet(topology, from, to);
  bool own_link = false;
  route_none(route, GRAPH_SYS);
  if (by_host && meet != TOPOLOGY_NONE) meet = cpu_from;
  if (meet == TOPOLOGY_NONE) {
    own_link = route_climb(paths, route, from, cpu_from, false);
    route_add(paths, route, link_tree(cpu_from, false));
    route_add(paths, route, link_tree(cpu_to, true));
    route_climb(paths, route, to, cpu_to, true);
    return;
  }
  own_link = route_climb(paths, route, from, meet, false);
  own_link = route_climb(paths, route, to, meet, true) || own_link;
  const bool both_gpus = topology->devices[from].kind == topology->devices[to].kind;
  const uint32_t switches = 1 + switches_below(topology, from, meet) + switches_below(topology, to, meet);
  if (topology->devices[meet].kind != TOPOLOGY_CPU) route->type = switches > 1 ? GRAPH_PXB : GRAPH_PIX;
  else route->type = own_link && !both_gpus ? GRAPH_P2C : GRAPH_PHB;
}

/* Adds the cost of packets between GPUs through an Intel root complex. */
static void route_pay_intel(const struct paths *paths, uint32_t from, struct paths_route *route) {
  const struct topology_device *cpu = &paths->topology->devices[row_cpu(paths->topology, from)];
  if (route->type < GRAPH_PHB || strcmp(cpu->maker, "GenuineIntel") != 0) return;
  route->cost = INTEL_COST;
  route->gbps /= INTEL_COST;
}

/* NVLinks between two GPUs, or through switches; DIS if there is none. */
static void route_by_nvlink(const struct paths *paths, uint32_t from, uint32_t to,
                            struct paths_route *route) {
  const struct topology *topology = paths->topology;
  const uint32_t out = link_switch(paths, from, false), in = link_switch(paths, to, true);
  double best = 0;
  route_none(route, GRAPH_DIS);
  for (uint32_t i = 0; i < topology->link_count; i++) {
    const double gbps = paths->link_gbps[link_peer(paths, i)];
    if (topology->links[i].gpu != topology->gpus[from] || topology->links[i].peer != topology->gpus[to])
      continue;
    if (gbps <= best) continue;
    best = gbps;
    route_none(route, GRAPH_NVL);
    route_add(paths, route, link_peer(paths, i));
  }
  const double by_switch =
      paths->link_gbps[out] < paths->link_gbps[in] ? paths->link_gbps[out] : paths->link_gbps[in];
  if (by_switch <= best) return;
  route_none(route, GRAPH_NVL);
  route_add(paths, route, out);
  route_add(paths, route, in);
}

static void route_between(const struct paths *paths, const struct paths_rules *rules, uint32_t from,
                          uint32_t to, struct paths_route *route) {
  const uint32_t *gpus = paths->topology->gpus;
  if (from == to) {
    route_none(route, GRAPH_LOC);
    return;
  }
  if (rules->peer_level >= GRAPH_NVL) route_by_nvlink(paths, from, to, route);
  else route_none(route, GRAPH_DIS);
  if (route->type == GRAPH_NVL) return;
  route_by_tree(paths, gpus[from], gpus[to], false, route);
  if (route->type > rules->peer_level) route_by_tree(paths, gpus[from], gpus[to], true, route);
  route_pay_intel(paths, gpus[from], route);
}

static bool rule_in_use(const struct paths_rules *rules, uint32_t gpu) {
  return rules->in_use == NULL || rules->in_use[gpu];
}

/* Tries the route through a third GPU: used if it is the first of its type, or faster than the one found. */
static void route_try_over(const struct paths *paths, enum graph_path type, uint32_t over,
                           const struct paths_route *first, const struct paths_route *second,
                           struct paths_route *found) {
  struct paths_route tried;
  route_none(&tried, type);
  route_join(paths, &tried, first);
  route_join(paths, &tried, second);
  tried.over = over;
  if (found->type != type || tried.gbps > found->gbps) *found = tried;
}

/* Both halves are direct NVLinks between GPUs, since switches connect all pairs. */
static void route_over_gpu(const struct paths *paths, const struct paths_rules *rules, uint32_t from,
                           uint32_t to, struct paths_route *route) {
  struct paths_route found = *route;
  for (uint32_t over = 0; over < paths->gpu_count; over++) {
    const struct paths_route *first = &paths->gpu_gpu[from * paths->gpu_count + over];
    const struct paths_route *second = &paths->gpu_gpu[over * paths->gpu_count + to];
    if (first->type != GRAPH_NVL || second->type != GRAPH_NVL || !rule_in_use(rules, over)) continue;
    route_try_over(paths, GRAPH_NVB, over, first, second, &found);
  }
  *route = found;
}

static void paths_between_gpus(const struct paths *paths, const struct paths_rules *rules) {
  const uint32_t count = paths->gpu_count;
  for (uint32_t i = 0; i < count * count; i++)
    route_between(paths, rules, i / count, i % count, &paths->gpu_gpu[i]);
  for (uint32_t i = 0; i < count * count && rules->over_gpu; i++)
    if (paths->gpu_gpu[i].type > GRAPH_NVB)
      route_over_gpu(paths, rules, i / count, i % count, &paths->gpu_gpu[i]);
}

/* ---- NICs ---- */

static void paths_to_net(const struct paths *paths, uint32_t gpu, uint32_t net) {
  const uint32_t gpu_row = paths->topology->gpus[gpu], net_row = paths->topology->nets[net];
  struct paths_route *out = &paths->gpu_net[gpu * paths->net_count + net];
  struct paths_route *in = &paths->net_gpu[gpu * paths->net_count + net];
  route_by_tree(paths, gpu_row, net_row, false, out);
  route_add(paths, out, link_port(paths, net, false));
  route_none(in, GRAPH_LOC);
  route_add(paths, in, link_port(paths, net, true));
  struct paths_route inside;
  route_by_tree(paths, net_row, gpu_row, false, &inside);
  route_join(paths, in, &inside);
  in->type = inside.type;
}

/* Only through a GPU that itself reaches the NIC without another GPU. */
static void paths_to_net_over_gpu(const struct paths *paths, const struct paths_rules *rules, uint32_t gpu,
                                  uint32_t net) {
  struct paths_route *out = &paths->gpu_net[gpu * paths->net_count + net];
  if (out->type <= GRAPH_PXN) return;
  struct paths_route found = *out;
  for (uint32_t over = 0; over < paths->gpu_count; over++) {
    const struct paths_route *first = &paths->gpu_gpu[gpu * paths->gpu_count + over];
    const struct paths_route *second = &paths->gpu_net[over * paths->net_count + net];
    if (first->type != GRAPH_NVL || second->type > GRAPH_PXB || !rule_in_use(rules, over)) continue;
    route_try_over(paths, GRAPH_PXN, over, first, second, &found);
  }
  *out = found;
}

static void paths_between_nets(const struct paths *paths, const struct paths_rules *rules) {
  for (uint32_t gpu = 0; gpu < paths->gpu_count; gpu++)
    for (uint32_t net = 0; net < paths->net_count; net++) paths_to_net(paths, gpu, net);
  for (uint32_t gpu = 0; gpu < paths->gpu_count && rules->nic_over_gpu; gpu++)
    for (uint32_t net = 0; net < paths->net_count; net++) paths_to_net_over_gpu(paths, rules, gpu, net);
}

/* Neither is nearer if path type into the GPU and bandwidth are equal. */
static bool net_is_nearer(const struct paths *paths, uint32_t gpu, uint32_t a, uint32_t b) {
  const struct paths_route *to_a = &paths->net_gpu[gpu * paths->net_count + a];
  const struct paths_route *to_b = &paths->net_gpu[gpu * paths->net_count + b];
  return to_a->type != to_b->type ? to_a->type < to_b->type : to_a->gbps > to_b->gbps;
}

static void nets_sort(const struct paths *paths, uint32_t gpu) {
  for (uint32_t net = 0; net < paths->net_count; net++) {
    uint32_t before = 0;
    for (uint32_t other = 0; other < paths->net_count; other++)
      before +=
          net_is_nearer(paths, gpu, other, net) || (other < net && !net_is_nearer(paths, gpu, net, other));
    paths->near[gpu * paths->net_count + before] = net;
  }
}

/* GPUs with the same nearest NICs begin with one after the other of them. Earlier GPUs still begin with the
 * first. */
static void nets_turn(const struct paths *paths, uint32_t gpu) {
  uint32_t *near = &paths->near[gpu * paths->net_count], alike = 1, turn = 0;
  while (alike < paths->net_count && !net_is_nearer(paths, gpu, near[0], near[alike])) alike += 1;
  for (uint32_t other = 0; other < gpu; other++) turn += paths->near[other * paths->net_count] == near[0];
  for (turn %= alike; turn > 0; turn--) {
    const uint32_t first = near[0];
    memmove(near, near + 1, (alike - 1) * sizeof *near);
    near[alike - 1] = first;
  }
}

/* ---- The whole ---- */

ncclResult_t paths_find(const struct topology *topology, const struct paths_rules *rules,
                        struct paths *paths) {
  struct paths found;
  memset(&found, 0, sizeof found);
  found.topology = topology;
  found.gpu_count = topology->gpu_count;
  found.net_count = topology->net_count;
  found.link_count = link_peer(&found, topology->link_count);
  const size_t gpus = found.gpu_count, nets = found.net_count;
  found.link_gbps = (double *)os_alloc(found.link_count * sizeof *found.link_gbps);
  found.gpu_gpu = (struct paths_route *)os_alloc((gpus * gpus + 2 * gpus * nets) * sizeof *found.gpu_gpu);
  found.near = (uint32_t *)os_alloc(gpus * nets * sizeof *found.near);
  if (found.link_gbps == NULL || found.gpu_gpu == NULL || found.near == NULL) {
    paths_free(&found);
    return log_no_memory("the paths between %u GPUs", topology->gpu_count);
  }
  found.gpu_net = found.gpu_gpu + gpus * gpus;
  found.net_gpu = found.gpu_net + gpus * nets;
  links_fill(&found);
  paths_between_gpus(&found, rules);
  paths_between_nets(&found, rules);
  for (uint32_t gpu = 0; gpu < found.gpu_count; gpu++) nets_sort(&found, gpu);
  for (uint32_t gpu = found.gpu_count; gpu-- > 0 && nets > 0;) nets_turn(&found, gpu);
  *paths = found;
  return ncclSuccess;
}

void paths_free(struct paths *paths) {
  os_free(paths->link_gbps);
  os_free(paths->gpu_gpu);
  os_free(paths->near);
  memset(paths, 0, sizeof *paths);
}

const char *paths_type_name(enum graph_path type) {
  static const char *const names[] = {"LOC", "NVL", "NVB", "C2C", "PIX", "PXB",
                                      "P2C", "PXN", "PHB", "SYS", "NET", "DIS"};
  return names[type];
}

uint32_t paths_net_near(const struct paths *paths, uint32_t gpu, uint32_t turn) {
  return paths->near[gpu * paths->net_count + turn];
}

double paths_switch_gbps(const struct paths *paths, uint32_t gpu) {
  return paths->link_gbps[link_switch(paths, gpu, false)];
}

double paths_nvlink_gbps(const struct paths *paths, uint32_t gpu) {
  double gbps = paths_switch_gbps(paths, gpu);
  for (uint32_t i = 0; i < paths->topology->link_count; i++)
    if (paths->topology->links[i].gpu == paths->topology->gpus[gpu])
      gbps += paths->link_gbps[link_peer(paths, i)];
  return gbps;
}
