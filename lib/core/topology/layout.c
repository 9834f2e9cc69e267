/* layout.c: finds the node of each rank's device and the device's index there, and makes the graph. */
#include "core/topology/layout.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "backends/net.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/os.h"

/* NCCL's old numbers mean LOC, PIX, PXB, PHB, and SYS from 4 on. */
static enum graph_path level_of_number(long number) {
  static const enum graph_path levels[] = {GRAPH_LOC, GRAPH_PIX, GRAPH_PXB, GRAPH_PHB};
  return number < 0 || number > 3 ? GRAPH_SYS : levels[number];
}

enum graph_path layout_level(enum param_id param, enum graph_path initial) {
  const char *text = param_text(param);
  char *end;
  if (*text == '\0') return initial;
  const long number = strtol(text, &end, 10);
  if (*end == '\0') return level_of_number(number);
  for (uint32_t type = GRAPH_LOC; type <= GRAPH_SYS; type++)
    if (strcasecmp(text, paths_type_name((enum graph_path)type)) == 0) return (enum graph_path)type;
  log_visible("%s: '%s' is none of LOC, NVL, PIX, PXB, PHB and SYS; %s is taken", param_name(param), text,
              paths_type_name(initial));
  return initial;
}

struct paths_rules layout_rules(void) {
  struct paths_rules rules = PATHS_RULES_DEFAULT;
  rules.peer_level = param_int(PARAM_P2P_DISABLE) != 0 ? GRAPH_LOC : layout_level(PARAM_P2P_LEVEL, GRAPH_PXB);
  rules.over_gpu = param_int(PARAM_NVB_DISABLE) == 0;
  rules.nic_over_gpu = param_int(PARAM_PXN_DISABLE) == 0;
  return rules;
}

uint32_t layout_cross_nic(void) { return (uint32_t)param_int(PARAM_CROSS_NIC); }

/* How the devices of the process are divided into nodes. */
struct layout {
  uint32_t node_count, node_devices; /* nodes, and devices of each */
  struct topology topology;
  struct graph_origin origin;
};

/* Devices are assigned to nodes in order. A backend with one node for all devices gets as many copies of the
 * file's node as needed, since the file says how many GPUs a node has. */
static ncclResult_t layout_from_file(const char *path, uint32_t device_count, struct layout *layout) {
  TRY(topology_read(path, layout->node_count, &layout->topology));
  layout->origin.file_digest = layout_file_digest(path);
  layout->origin.nodes = layout->node_count;
  if (layout->node_count > 1) return ncclSuccess;
  const uint32_t gpus = layout->topology.gpu_count;
  layout->node_devices = gpus;
  layout->node_count = layout->topology.node_count = (device_count + gpus - 1) / gpus;
  layout->origin.nodes = layout->node_count;
  return ncclSuccess;
}

static ncclResult_t layout_from_numbers(struct layout *layout) {
  struct topology_spec spec;
  memset(&spec, 0, sizeof spec);
  spec.nodes = layout->node_count;
  spec.gpus = layout->node_devices;
  /* The NICs that the emulated network has on each node, if it is in use. */
  const struct net_ops *net = emu_net_ops();
  if (net != NULL) TRY(net->devices(&spec.nics));
  layout->origin.nodes = spec.nodes;
  layout->origin.gpus = spec.gpus;
  layout->origin.nics = spec.nics;
  return topology_make(&spec, &layout->topology);
}

/* Only the process of one rank writes a dump; otherwise processes of one host would overwrite each other's.
 */
static bool layout_dumps(const struct graph_request *request, enum param_id path, enum param_id rank) {
  const int64_t writer = param_int(rank);
  return *param_text(path) != '\0' && writer < request->rank_count && !request->places[writer].remote;
}

/* Dumps are informational: failing to write one is not an error. */
static void layout_dump(const struct topology *topology, const struct graph_request *request) {
  if (layout_dumps(request, PARAM_TOPO_DUMP_FILE, PARAM_TOPO_DUMP_FILE_RANK))
    topology_write(topology, param_text(PARAM_TOPO_DUMP_FILE));
  if (!layout_dumps(request, PARAM_GRAPH_DUMP_FILE, PARAM_GRAPH_DUMP_FILE_RANK)) return;
  const char *path = param_text(PARAM_GRAPH_DUMP_FILE);
  struct text text;
  memset(&text, 0, sizeof text);
  if (graph_describe(request, &text) == ncclSuccess && !os_file_write(path, text.begin, text.bytes))
    log_warn("NCCL_GRAPH_DUMP_FILE: %s: cannot be written: %s", path, strerror(errno));
  text_free(&text);
}

static void layout_log(const struct topology *topology, const struct graph *graph) {
  const struct graph_speed *ring = &graph->ring_speed, *tree = &graph->tree_speed;
  log_info(LOG_GRAPH,
           "topology '%s': %u ranks on %u nodes; rings %u x %.2f GB/s, %s/%s; trees %u x %.2f GB/s, "
           "%s/%s",
           topology->name, graph->rank_count, graph->node_count, ring->channel_count, ring->intra_gbps,
           paths_type_name((enum graph_path)ring->intra_path),
           paths_type_name((enum graph_path)ring->inter_path), tree->channel_count, tree->intra_gbps,
           paths_type_name((enum graph_path)tree->intra_path),
           paths_type_name((enum graph_path)tree->inter_path));
}

/* The graph's origin, except its topology. */
static struct graph_origin origin_of_settings(void) {
  const struct paths_rules rules = layout_rules();
  const struct graph_origin origin = {.cross_nic = layout_cross_nic(),
                                      .peer_level = rules.peer_level,
                                      .over_gpu = rules.over_gpu,
                                      .graph_digest = layout_graph_file_digest(),
                                      .nic_over_gpu = rules.nic_over_gpu};
  return origin;
}

static struct graph_request request_of_origin(const struct graph_origin *origin,
                                              const struct topology *topology,
                                              const struct graph_place *places, uint32_t rank_count,
                                              uint32_t channel_count) {
  struct graph_request request;
  memset(&request, 0, sizeof request);
  request.topology = topology;
  request.places = places;
  request.rank_count = rank_count;
  request.channels_min = request.channels_max = channel_count;
  request.cross_nic = origin->cross_nic;
  request.rules =
      (struct paths_rules){(enum graph_path)origin->peer_level, origin->over_gpu, origin->nic_over_gpu, NULL};
  return request;
}

static ncclResult_t layout_build(const struct topology *topology, const struct graph_origin *origin,
                                 const struct graph_place *places, uint32_t rank_count,
                                 uint32_t channel_count, struct graph *graph) {
  struct graph_request request = request_of_origin(origin, topology, places, rank_count, channel_count);
  struct graph_file *file = NULL;
  const char *path = param_text(PARAM_GRAPH_FILE);
  if (*path != '\0') TRY(graph_file_read(path, &file));
  request.file = file;
  const ncclResult_t result = graph_build(&request, graph);
  if (result == ncclSuccess) {
    graph->origin = *origin;
    graph->origin.channels = channel_count;
    layout_dump(topology, &request);
    layout_log(topology, graph);
  }
  graph_file_free(file);
  return result;
}

uint64_t layout_file_digest(const char *path) {
  size_t bytes = 0;
  char *text = os_file_read(path, &bytes);
  const uint64_t digest = text != NULL ? hash_bytes(HASH_SEED, text, bytes) | 1 : 0;
  os_free(text);
  return digest;
}

uint64_t layout_graph_file_digest(void) {
  const char *path = param_text(PARAM_GRAPH_FILE);
  return *path != '\0' ? layout_file_digest(path) >> 2 | 1 : 0;
}

/* "PATH, which is set, has another content than the job's" in words for both files. */
static ncclResult_t file_differs(const char *name, const char *path) {
  return log_fail(ncclInvalidUsage, "%s %s%s", name,
                  *path != '\0' ? "has another content than the job's: " : "was set, and is not set now",
                  path);
}

/* NULL if the job had none. */
static ncclResult_t file_of_origin(const struct graph_origin *origin, struct graph_file **file) {
  const char *path = param_text(PARAM_GRAPH_FILE);
  *file = NULL;
  if (origin->graph_digest == 0) return ncclSuccess;
  if (layout_graph_file_digest() != origin->graph_digest) return file_differs("NCCL_GRAPH_FILE", path);
  return graph_file_read(path, file);
}

static ncclResult_t topology_of_origin(const struct graph_origin *origin, struct topology *topology) {
  const char *path = param_text(PARAM_TOPO_FILE);
  const struct topology_spec spec = {NULL, origin->nodes, origin->gpus, origin->nics};
  if (origin->shape.count > 0)
    return shape_read(&origin->shape, "the job's machine", origin->nodes, topology);
  if (origin->file_digest == 0) return topology_make(&spec, topology);
  if (layout_file_digest(path) == origin->file_digest) return topology_read(path, origin->nodes, topology);
  return file_differs("NCCL_TOPO_FILE", path);
}

ncclResult_t layout_graph_of_origin(const struct graph_origin *origin, const struct graph_place *places,
                                    uint32_t rank_count, struct graph *graph) {
  struct topology topology;
  if (origin->flat) return graph_flat(rank_count, graph);
  TRY(topology_of_origin(origin, &topology));
  struct graph_request request = request_of_origin(origin, &topology, places, rank_count, origin->channels);
  struct graph_file *file = NULL;
  ncclResult_t result = file_of_origin(origin, &file);
  request.file = file;
  if (result == ncclSuccess) result = graph_build(&request, graph);
  if (result == ncclSuccess) graph->origin = *origin;
  graph_file_free(file);
  topology_free(&topology);
  return result;
}

static ncclResult_t layout_places(const struct layout *layout, const uint32_t *devices, uint32_t rank_count,
                                  uint32_t channel_count, struct graph *graph) {
  struct graph_place *places = (struct graph_place *)os_alloc(rank_count * sizeof *places);
  if (places == NULL) return log_no_memory("the places of %u ranks", rank_count);
  for (uint32_t rank = 0; rank < rank_count; rank++) {
    places[rank].node = devices[rank] / layout->node_devices;
    places[rank].gpu = devices[rank] % layout->node_devices;
  }
  const ncclResult_t result =
      layout_build(&layout->topology, &layout->origin, places, rank_count, channel_count, graph);
  os_free(places);
  return result;
}

/* node_count is 0 if all devices are equal. */
static ncclResult_t layout_find(const struct backend *ops, struct layout *layout) {
  const char *path = param_text(PARAM_TOPO_FILE);
  uint32_t device_count = 0, node_count = 0;
  memset(layout, 0, sizeof *layout);
  layout->origin = origin_of_settings();
  TRY(ops->device->nodes(&node_count));
  if (node_count == 0 && *path != '\0')
    log_info(LOG_GRAPH, "NCCL_TOPO_FILE: %s: backend '%s' chooses NICs by it, and makes no graph of it yet",
             path, ops->name);
  const bool lists = *param_text(PARAM_GRAPH_FILE) != '\0';
  if (!lists && (node_count == 0 || (node_count == 1 && *path == '\0'))) return ncclSuccess;
  TRY(ops->device->count(&device_count));
  const bool real = node_count == 0;
  if (real) node_count = 1;
  layout->node_count = node_count;
  layout->node_devices = device_count / node_count;
  if (!real && *path != '\0') return layout_from_file(path, device_count, layout);
  return layout_from_numbers(layout);
}

ncclResult_t layout_topology(const struct backend *ops, struct topology *topology) {
  struct layout layout;
  TRY(layout_find(ops, &layout));
  *topology = layout.topology;
  return ncclSuccess;
}

ncclResult_t layout_graph(const struct backend *ops, const uint32_t *devices, uint32_t rank_count,
                          uint32_t channel_count, struct graph *graph) {
  struct layout layout;
  TRY(layout_find(ops, &layout));
  if (layout.node_count == 0) return graph_flat(rank_count, graph);
  const ncclResult_t result = layout_places(&layout, devices, rank_count, channel_count, graph);
  topology_free(&layout.topology);
  return result;
}

static uint32_t places_gpus(const struct graph_place *places, uint32_t rank_count) {
  uint32_t gpus = 0;
  for (uint32_t rank = 0; rank < rank_count; rank++)
    if (places[rank].gpu >= gpus) gpus = places[rank].gpu + 1;
  return gpus;
}

static bool has_gpus(const struct topology *topology) {
  for (uint32_t i = 0; i < topology->device_count; i++)
    if (topology->devices[i].kind == TOPOLOGY_GPU) return true;
  return false;
}

/* A file that describes a part of a node, as those that clouds ship, says nothing of its GPUs: *whole is
 * false.
 */
static ncclResult_t places_from_file(const char *path, uint32_t node_count, struct topology *topology,
                                     bool *whole) {
  TRY(topology_read_part(path, topology));
  *whole = has_gpus(topology);
  topology->node_count = node_count;
  const ncclResult_t result = *whole ? topology_finish(path, topology) : ncclSuccess;
  if (result != ncclSuccess || !*whole) topology_free(topology);
  if (!*whole)
    log_info(LOG_GRAPH, "NCCL_TOPO_FILE: %s has no GPU: rings and trees are those of the default machine",
             path);
  return result;
}

ncclResult_t layout_graph_places(const struct graph_place *places, uint32_t rank_count, uint32_t node_count,
                                 uint32_t channel_count, struct graph *graph) {
  const char *path = param_text(PARAM_TOPO_FILE);
  struct topology topology;
  struct topology_spec spec;
  if (node_count == 1 && *path == '\0' && *param_text(PARAM_GRAPH_FILE) == '\0')
    return graph_flat(rank_count, graph);
  memset(&spec, 0, sizeof spec);
  spec.nodes = node_count;
  spec.gpus = places_gpus(places, rank_count);
  struct graph_origin origin = origin_of_settings();
  origin.nodes = spec.nodes;
  origin.gpus = spec.gpus;
  bool by_file = *path != '\0';
  if (by_file) TRY(places_from_file(path, node_count, &topology, &by_file));
  if (by_file) origin.file_digest = layout_file_digest(path);
  else TRY(topology_make(&spec, &topology));
  const ncclResult_t result = layout_build(&topology, &origin, places, rank_count, channel_count, graph);
  topology_free(&topology);
  return result;
}

bool layout_is_by_file(void) {
  const char *path = param_text(PARAM_TOPO_FILE);
  struct topology topology;
  memset(&topology, 0, sizeof topology);
  if (*path == '\0') return false;
  log_hush(true); /* whoever reads it next says what is wrong */
  const bool whole = topology_read_part(path, &topology) != ncclSuccess || has_gpus(&topology);
  log_hush(false);
  topology_free(&topology);
  return whole;
}

uint64_t layout_shape_digest(const struct node_shape *shape) {
  const struct graph_origin origin = origin_of_settings();
  uint64_t digest = hash_bytes(HASH_SEED, shape->words, shape->count * sizeof *shape->words);
  digest = hash_mix(hash_mix(digest, origin.cross_nic), origin.peer_level);
  return hash_mix(hash_mix(digest, origin.over_gpu), origin.nic_over_gpu) | 1;
}

ncclResult_t layout_graph_shape(const struct node_shape *shape, const char *name,
                                const struct graph_place *places, uint32_t rank_count, uint32_t node_count,
                                uint32_t channel_count, struct graph *graph) {
  struct topology topology;
  struct graph_origin origin = origin_of_settings();
  origin.shape = *shape;
  origin.nodes = node_count;
  TRY(shape_read(shape, name, node_count, &topology));
  const ncclResult_t result = layout_build(&topology, &origin, places, rank_count, channel_count, graph);
  topology_free(&topology);
  return result;
}
