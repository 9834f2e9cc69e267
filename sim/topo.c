/* topo.c: the verb `topo`: a cluster's devices, their paths, and the rings and trees of a communicator over
 * all of its GPUs, as text of at most 100 columns or as JSON. These are what the library computes for a
 * communicator from the same description and settings. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/os.h"
#include "base/param.h"
#include "core/topology/layout.h"
#include "core/topology/machine.h"
#include "core/topology/rails.h"
#include "json.h"
#include "topo_record.h"
#include "verb.h"

enum { COLUMNS = 100, COLUMN_WIDTH = 5, MATRIX_HEAD = 8, RANKS_SHOWN = 64, RANKS_MOST = 1 << 17 };

struct topo_flags {
  int64_t nodes, gpus, nics;
  const char *machine, *file, *sysfs, *record, *dump;
  bool json;
};

#define AT(member) offsetof(struct topo_flags, member)

static const struct option_row topo_rows[] = {
    {'n', "nodes", "N", OPTION_INT, AT(nodes), 1, TOPOLOGY_NODES_MAX, "nodes of the cluster (default 1)"},
    {'g', "gpus", "G", OPTION_INT, AT(gpus), 1, TOPOLOGY_GPUS_MAX, "GPUs of a node (default: the machine's)"},
    {0, "nics", "K", OPTION_INT, AT(nics), 1, TOPOLOGY_NETS_MAX, "NICs of a node (default: the machine's)"},
    {'m', "machine", "MACHINE", OPTION_TEXT, AT(machine), 0, 0,
     "dgx-h100 (the default), dgx-h200, dgx-a100, hgx-b200 or pcie-box"},
    {'f', "file", "FILE", OPTION_INPUT, AT(file), 0, 0,
     "read a node from NCCL's XML, as NCCL_TOPO_FILE does, instead of making it from numbers"},
    {0, "sysfs", "DIR", OPTION_TEXT, AT(sysfs), 0, 0,
     "read a node from /sys and NVML (this machine, with DIR /sys), or from a folder that was recorded"},
    {0, "record", "DIR", OPTION_TEXT, AT(record), 0, 0,
     "copy what describes the machine to the new folder DIR; prints nothing else"},
    {'J', "json", NULL, OPTION_FLAG, AT(json), 0, 0, "print JSON"},
    {0, "dump", "FILE", OPTION_TEXT, AT(dump), 0, 0, "also write the node to FILE as XML"},
};
static const struct option_set topo_options = {"topo", topo_rows, sizeof topo_rows / sizeof topo_rows[0],
                                               false,  true,      true};

/* ---- Lines of at most COLUMNS ---- */

struct line {
  int column, indent;
};

__attribute__((format(printf, 2, 3))) static void line_add(struct line *line, const char *format, ...) {
  char word[128];
  va_list arguments;
  va_start(arguments, format);
  const int length = vsnprintf(word, sizeof word, format, arguments);
  va_end(arguments);
  if (line->column > line->indent && line->column + length > COLUMNS) {
    printf("\n%*s", line->indent, "");
    line->column = line->indent;
  }
  fputs(word, stdout);
  line->column += length;
}

/* ---- Devices and paths ---- */

static void device_print(const struct topology *topology, uint32_t row) {
  const struct topology_device *device = &topology->devices[row];
  uint32_t depth = 0;
  for (uint32_t up = device->parent; up != TOPOLOGY_NONE; up = topology->devices[up].parent) depth += 1;
  printf("  %*s", (int)(2 * depth), "");
  switch (device->kind) {
    case TOPOLOGY_CPU:
      printf("CPU %d  %.12s %.20s, %.0f GB/s to other CPUs\n", device->number, device->name, device->maker,
             topology_socket_gbps(device));
      break;
    case TOPOLOGY_PCI:
      printf("PCI %.20s  %.0f GB/s\n", device->name, topology_link_gbps(topology, row));
      break;
    case TOPOLOGY_GPU: printf("GPU %d  sm %u\n", device->number, device->capability); break;
    case TOPOLOGY_NET:
      printf("NET %d  %.32s, %.4g GB/s\n", device->number, device->name, topology_net_gbps(device));
      break;
    default: printf("NIC\n"); break;
  }
}

static void devices_print(const struct topology *topology) {
  printf("%s: %u node%s; each has %u CPU%s, %u GPU%s, %u NIC%s\n\n", topology->name, topology->node_count,
         topology->node_count > 1 ? "s" : "", topology->cpu_count, topology->cpu_count > 1 ? "s" : "",
         topology->gpu_count, topology->gpu_count > 1 ? "s" : "", topology->net_count,
         topology->net_count != 1 ? "s" : "");
  for (uint32_t row = 0; row < topology->device_count; row++) device_print(topology, row);
}

static const struct paths_route *matrix_route(const struct paths *paths, uint32_t gpu, uint32_t column) {
  if (column < paths->gpu_count) return &paths->gpu_gpu[gpu * paths->gpu_count + column];
  return &paths->gpu_net[gpu * paths->net_count + column - paths->gpu_count];
}

static void matrix_head(const struct paths *paths, uint32_t first, uint32_t last) {
  const struct topology *topology = paths->topology;
  printf("\n%*s", MATRIX_HEAD, "");
  for (uint32_t column = first; column < last; column++) {
    const bool gpu = column < paths->gpu_count;
    const uint32_t row = gpu ? topology->gpus[column] : topology->nets[column - paths->gpu_count];
    char name[16];
    snprintf(name, sizeof name, "%c%d", gpu ? 'G' : 'N', topology->devices[row].number);
    printf("%*s", COLUMN_WIDTH, name);
  }
  printf("\n");
}

/* In parts, if there are more devices than fit on a line. */
static void matrix_print(const struct paths *paths) {
  const uint32_t count = paths->gpu_count + paths->net_count, most = (COLUMNS - MATRIX_HEAD) / COLUMN_WIDTH;
  printf("\npaths of one node, from GPUs (lines) to GPUs (G) and NICs (N):\n");
  for (uint32_t first = 0; first < count; first += most) {
    const uint32_t last = first + most < count ? first + most : count;
    matrix_head(paths, first, last);
    for (uint32_t gpu = 0; gpu < paths->gpu_count; gpu++) {
      printf("GPU %-*d", MATRIX_HEAD - 4, paths->topology->devices[paths->topology->gpus[gpu]].number);
      for (uint32_t column = first; column < last; column++)
        printf("%*s", COLUMN_WIDTH, paths_type_name(matrix_route(paths, gpu, column)->type));
      printf("\n");
    }
  }
}

/* Each GPU's NICs, nearest first. */
static void nets_print(const struct paths *paths) {
  const struct topology *topology = paths->topology;
  if (paths->net_count == 0) return;
  printf("\nNICs of each GPU, nearest first, and GB/s from there:\n");
  for (uint32_t gpu = 0; gpu < paths->gpu_count; gpu++) {
    struct line line = {0, MATRIX_HEAD};
    printf("GPU %-*d", MATRIX_HEAD - 4, topology->devices[topology->gpus[gpu]].number);
    line.column = MATRIX_HEAD;
    for (uint32_t turn = 0; turn < paths->net_count; turn++) {
      const uint32_t net = paths_net_near(paths, gpu, turn);
      const struct paths_route *route = &paths->net_gpu[gpu * paths->net_count + net];
      line_add(&line, "  %.32s %s %.4g", topology->devices[topology->nets[net]].name,
               paths_type_name(route->type), route->gbps);
    }
    printf("\n");
  }
}

/* As the library decides by default, where NIC and GPU support it. */
static bool reaches_memory(const struct paths *paths, uint32_t gpu, uint32_t net) {
  return param_int(PARAM_TUTTI_NET_DEVICE_SLOTS) != 0 &&
         paths->net_gpu[gpu * paths->net_count + net].type <= rails_gdr_level();
}

static void memory_print(const struct paths *paths) {
  const struct topology *topology = paths->topology;
  if (paths->net_count == 0) return;
  printf(
      "\nNICs near enough for GPUDirect RDMA, where both support it (paths up to %s, "
      "NCCL_NET_GDR_LEVEL%s):\n",
      paths_type_name(rails_gdr_level()),
      param_int(PARAM_TUTTI_NET_DEVICE_SLOTS) != 0 ? "" : "; TUTTI_NET_DEVICE_SLOTS=0");
  for (uint32_t gpu = 0; gpu < paths->gpu_count; gpu++) {
    struct line line = {0, MATRIX_HEAD};
    uint32_t count = 0;
    printf("GPU %-*d", MATRIX_HEAD - 4, topology->devices[topology->gpus[gpu]].number);
    line.column = MATRIX_HEAD;
    for (uint32_t turn = 0; turn < paths->net_count; turn++) {
      const uint32_t net = paths_net_near(paths, gpu, turn);
      if (!reaches_memory(paths, gpu, net)) continue;
      line_add(&line, "  %.32s", topology->devices[topology->nets[net]].name);
      count += 1;
    }
    printf("%s\n", count > 0 ? "" : "  none");
  }
}

/* ---- Rings and trees ---- */

static void speed_print(const char *name, const struct graph_speed *speed) {
  if (speed->channel_count == 0) return;
  printf("%s: %u found, %.4g GB/s each, %s inside a node", name, speed->channel_count, speed->intra_gbps,
         paths_type_name((enum graph_path)speed->intra_path));
  if (speed->inter_gbps > 0)
    printf(", %.4g GB/s by %s between nodes", speed->inter_gbps,
           paths_type_name((enum graph_path)speed->inter_path));
  printf("\n");
}

static void channels_print(struct line *line, const char *name, const uint8_t *shown, uint32_t count) {
  line->column = 0;
  line->indent = 2;
  line_add(line, "%s of channel", name);
  for (uint32_t channel = 0, first = 1; channel < count; channel++) {
    if (!shown[channel]) continue;
    line_add(line, "%s%u", first ? " " : ", ", channel);
    first = 0;
  }
  line_add(line, ":");
}

/* The channels after `channel` that have the same row, and itself; false when an earlier one has it too. */
static bool channels_alike(const void *const *rows, uint32_t channel, uint32_t count, uint8_t *alike) {
  for (uint32_t other = 0; other < count; other++) alike[other] = rows[other] == rows[channel];
  return memchr(alike, 1, count) == alike + channel;
}

static void rings_print(const struct graph *graph) {
  const void *rows[PLAN_CHANNELS_MAX];
  uint8_t alike[PLAN_CHANNELS_MAX];
  for (uint32_t channel = 0; channel < graph->channel_count; channel++) rows[channel] = graph->ring[channel];
  for (uint32_t channel = 0; channel < graph->channel_count; channel++) {
    struct line line;
    if (!channels_alike(rows, channel, graph->channel_count, alike)) continue;
    channels_print(&line, "ring", alike, graph->channel_count);
    for (uint32_t i = 0; i < graph->rank_count && i < RANKS_SHOWN; i++)
      line_add(&line, " %u", graph->ring[channel][i]);
    if (graph->rank_count > RANKS_SHOWN) line_add(&line, " and so on, %u ranks", graph->rank_count);
    printf("\n");
  }
}

/* "0(1(2) 4)": 1 and 4 are children of 0, 2 is a child of 1. `left`: ranks that may still be printed. */
static void tree_print(struct line *line, const struct graph_tree *tree, uint32_t rank, uint32_t *left) {
  if (*left == 0) return;
  *left -= 1;
  line_add(line, "%u", rank);
  if (tree[rank].down[0] == GRAPH_NONE) return;
  for (uint32_t i = 0; i < GRAPH_CHILDREN_MAX && tree[rank].down[i] != GRAPH_NONE; i++) {
    if (*left == 0) return;
    line_add(line, i == 0 ? "(" : " ");
    tree_print(line, tree, tree[rank].down[i], left);
  }
  if (*left > 0) line_add(line, ")");
}

static uint32_t tree_root(const struct graph_tree *tree) {
  uint32_t rank = 0;
  while (tree[rank].up != GRAPH_NONE) rank = tree[rank].up;
  return rank;
}

static void trees_print(const struct graph *graph) {
  const void *rows[PLAN_CHANNELS_MAX];
  uint8_t alike[PLAN_CHANNELS_MAX];
  for (uint32_t channel = 0; channel < graph->channel_count; channel++) rows[channel] = graph->tree[channel];
  for (uint32_t channel = 0; channel < graph->channel_count; channel++) {
    struct line line;
    /* One more than there are, so that the last bracket is always printed. */
    uint32_t left = graph->rank_count <= RANKS_SHOWN ? graph->rank_count + 1 : RANKS_SHOWN;
    if (!channels_alike(rows, channel, graph->channel_count, alike)) continue;
    channels_print(&line, "tree", alike, graph->channel_count);
    line_add(&line, " ");
    tree_print(&line, graph->tree[channel], tree_root(graph->tree[channel]), &left);
    if (graph->rank_count > RANKS_SHOWN) line_add(&line, " and so on, %u ranks", graph->rank_count);
    printf("\n");
  }
}

static void topo_print(const struct paths *paths, const struct graph *graph) {
  devices_print(paths->topology);
  matrix_print(paths);
  nets_print(paths);
  memory_print(paths);
  printf("\n%u rank%s on %u node%s, %u channels\n", graph->rank_count, graph->rank_count > 1 ? "s" : "",
         graph->node_count, graph->node_count > 1 ? "s" : "", graph->channel_count);
  speed_print("rings", &graph->ring_speed);
  speed_print("trees", &graph->tree_speed);
  speed_print("NVLS switches", &graph->switch_speed);
  speed_print("CollNet networks", &graph->network_speed);
  printf("\n");
  rings_print(graph);
  printf("\n");
  trees_print(graph);
}

/* ---- JSON ---- */

static void json_speed(struct json *json, const char *name, const struct graph_speed *speed) {
  json_open(json, name, '{');
  json_number(json, "channels", speed->channel_count);
  json_number(json, "pattern", speed->pattern);
  json_decimal(json, "intra_gbps", speed->intra_gbps);
  json_decimal(json, "inter_gbps", speed->inter_gbps);
  json_text(json, "intra_path", paths_type_name((enum graph_path)speed->intra_path));
  json_text(json, "inter_path", paths_type_name((enum graph_path)speed->inter_path));
  json_close(json, '}');
}

static void json_nets(struct json *json, const struct paths *paths) {
  const struct topology *topology = paths->topology;
  json_open(json, "nics_nearest_first", '[');
  for (uint32_t gpu = 0; gpu < paths->gpu_count; gpu++) {
    json_open(json, NULL, '[');
    for (uint32_t turn = 0; turn < paths->net_count; turn++)
      json_text(json, NULL, topology->devices[topology->nets[paths_net_near(paths, gpu, turn)]].name);
    json_close(json, ']');
  }
  json_close(json, ']');
}

static void json_paths(struct json *json, const struct paths *paths) {
  json_open(json, "paths", '[');
  for (uint32_t gpu = 0; gpu < paths->gpu_count; gpu++) {
    for (uint32_t column = 0; column < paths->gpu_count + paths->net_count; column++) {
      const bool to_gpu = column < paths->gpu_count;
      const struct topology *topology = paths->topology;
      const uint32_t to = to_gpu ? topology->gpus[column] : topology->nets[column - paths->gpu_count];
      json_open(json, NULL, '{');
      json_number(json, "from_gpu", topology->devices[topology->gpus[gpu]].number);
      json_number(json, to_gpu ? "to_gpu" : "to_net", topology->devices[to].number);
      json_text(json, "type", paths_type_name(matrix_route(paths, gpu, column)->type));
      json_decimal(json, "gbps", matrix_route(paths, gpu, column)->gbps);
      if (!to_gpu) json_bool(json, "gpudirect_rdma", reaches_memory(paths, gpu, column - paths->gpu_count));
      json_close(json, '}');
    }
  }
  json_close(json, ']');
}

/* A ring as ranks in order; a tree as each rank's parent, -1 at the root. */
static void json_channels(struct json *json, const struct graph *graph) {
  json_open(json, "channels", '[');
  for (uint32_t channel = 0; channel < graph->channel_count; channel++) {
    json_open(json, NULL, '{');
    json_open(json, "ring", '[');
    for (uint32_t i = 0; i < graph->rank_count; i++) json_number(json, NULL, graph->ring[channel][i]);
    json_close(json, ']');
    json_open(json, "tree_parents", '[');
    for (uint32_t i = 0; i < graph->rank_count; i++) {
      const uint32_t up = graph->tree[channel][i].up;
      json_number(json, NULL, up == GRAPH_NONE ? -1 : (int64_t)up);
    }
    json_close(json, ']');
    json_close(json, '}');
  }
  json_close(json, ']');
}

static void topo_print_json(const struct paths *paths, const struct graph *graph) {
  struct json json;
  memset(&json, 0, sizeof json);
  json.out = stdout;
  json_open(&json, NULL, '{');
  json_text(&json, "name", paths->topology->name);
  json_number(&json, "nodes", paths->topology->node_count);
  json_number(&json, "gpus", paths->gpu_count);
  json_number(&json, "nets", paths->net_count);
  json_paths(&json, paths);
  json_nets(&json, paths);
  json_speed(&json, "rings", &graph->ring_speed);
  json_speed(&json, "trees", &graph->tree_speed);
  json_speed(&json, "switch", &graph->switch_speed);
  json_speed(&json, "network", &graph->network_speed);
  json_channels(&json, graph);
  json_close(&json, '}');
  printf("\n");
}

/* ---- The verb ---- */

static enum exit_code complain(enum exit_code code) {
  fprintf(stderr, "tutti topo: %s\n", log_last_error());
  return code;
}

static enum exit_code topo_open(const struct topo_flags *flags, struct topology *topology) {
  if (flags->sysfs != NULL)
    return machine_read(flags->sysfs, flags->file, (uint32_t)flags->nodes, topology) == ncclSuccess
               ? EXIT_GOOD
               : complain(EXIT_INPUT);
  if (flags->file != NULL) {
    if (topology_read(flags->file, (uint32_t)flags->nodes, topology) != ncclSuccess)
      return complain(EXIT_INPUT);
    return EXIT_GOOD;
  }
  struct topology_spec spec;
  memset(&spec, 0, sizeof spec);
  spec.machine = flags->machine;
  spec.nodes = (uint32_t)flags->nodes;
  spec.gpus = (uint32_t)flags->gpus;
  spec.nics = (uint32_t)flags->nics;
  return topology_make(&spec, topology) == ncclSuccess ? EXIT_GOOD : complain(EXIT_USAGE);
}

/* All GPUs of all nodes, in order. */
static enum exit_code topo_show_graph(const struct paths *paths, const struct topo_flags *flags) {
  struct graph_request request;
  struct graph graph;
  memset(&request, 0, sizeof request);
  request.topology = paths->topology;
  request.rank_count = paths->topology->node_count * paths->gpu_count;
  request.channels_min = 1;
  request.channels_max = PLAN_CHANNELS_MAX;
  request.cross_nic = layout_cross_nic();
  request.rules = layout_rules();
  struct graph_place *places = (struct graph_place *)os_alloc(request.rank_count * sizeof *places);
  for (uint32_t rank = 0; places != NULL && rank < request.rank_count; rank++) {
    places[rank].node = rank / paths->gpu_count;
    places[rank].gpu = rank % paths->gpu_count;
  }
  request.places = places;
  if (places == NULL || graph_build(&request, &graph) != ncclSuccess) {
    os_free(places);
    return complain(EXIT_ENVIRONMENT);
  }
  if (flags->json) topo_print_json(paths, &graph);
  else topo_print(paths, &graph);
  graph_free(&graph);
  os_free(places);
  return EXIT_GOOD;
}

static enum exit_code topo_show(const struct topology *topology, const struct topo_flags *flags) {
  struct paths paths;
  const struct paths_rules rules = layout_rules();
  if ((uint64_t)topology->node_count * topology->gpu_count > RANKS_MOST) {
    fprintf(stderr, "tutti topo: %u nodes of %u GPUs are too many; at most %d GPUs in all\n",
            topology->node_count, topology->gpu_count, RANKS_MOST);
    return EXIT_USAGE;
  }
  if (flags->dump != NULL && topology_write(topology, flags->dump) != ncclSuccess)
    return complain(EXIT_ENVIRONMENT);
  if (paths_find(topology, &rules, &paths) != ncclSuccess) return complain(EXIT_ENVIRONMENT);
  const enum exit_code code = topo_show_graph(&paths, flags);
  paths_free(&paths);
  return code;
}

static bool flags_agree(const struct topo_flags *flags) {
  const bool numbers = flags->machine != NULL || flags->gpus != 0 || flags->nics != 0;
  const char *whole = flags->sysfs != NULL ? "--sysfs" : flags->file != NULL ? "--file" : "--record";
  if (numbers && (flags->file != NULL || flags->sysfs != NULL || flags->record != NULL)) {
    fprintf(stderr, "tutti topo: %s says what a node has; leave out --machine, --gpus and --nics\n", whole);
    return false;
  }
  if (flags->file == NULL || flags->record == NULL) return true;
  fprintf(stderr, "tutti topo: --record copies a machine's folder; leave out --file\n");
  return false;
}

static enum exit_code topo_run(int argc, char **argv) {
  struct topo_flags flags;
  struct topology topology;
  int operand;
  memset(&flags, 0, sizeof flags);
  flags.nodes = 1;
  enum exit_code code;
  if (!verb_parse(&topo_options, argc, argv, &flags, &operand, &code)) return code;
  if (operand < argc) {
    fprintf(stderr, "tutti topo: it takes flags alone, `%s` is none (`tutti help topo`)\n", argv[operand]);
    return EXIT_USAGE;
  }
  if (!flags_agree(&flags)) return EXIT_USAGE;
  if (flags.record != NULL)
    return topo_record(flags.sysfs != NULL ? flags.sysfs : MACHINE_SYSFS, flags.record) == ncclSuccess
               ? EXIT_GOOD
               : complain(EXIT_ENVIRONMENT);
  code = topo_open(&flags, &topology);
  if (code != EXIT_GOOD) return code;
  code = topo_show(&topology, &flags);
  topology_free(&topology);
  return code;
}

const struct verb verb_topo = {
    "topo",
    "show a cluster's devices, their paths, and the rings and trees over them",
    "[--nodes N] [--gpus G] [--nics K] [--machine MACHINE] [--json] [--dump FILE]\n"
    "--file FILE [--nodes N] [--json] [--dump FILE]\n"
    "--sysfs DIR [--file FILE] [--nodes N] [--json] [--dump FILE]\n"
    "[--sysfs DIR] --record DIR",
    NULL,
    "  tutti topo --nodes 4\n"
    "  tutti topo --machine pcie-box --gpus 4 --dump node.xml\n"
    "  tutti topo --file node.xml --nodes 16 --json\n"
    "  tutti topo --file - --nodes 2 <node.xml\n",
    "Describes a cluster of equal nodes, given by numbers, by the XML that NCCL_TOPO_FILE takes, or by a "
    "machine's /sys: its devices, the type of the path between any two devices of a node, each GPU's NICs in "
    "order, which of them are near enough for GPUDirect RDMA, and the rings and trees of a communicator with "
    "one rank on each GPU, node by node. NCCL_P2P_LEVEL, NCCL_CROSS_NIC, NCCL_NET_GDR_LEVEL, "
    "NCCL_NET_GDR_C2C, NCCL_PXN_DISABLE and NCCL_NVB_DISABLE apply, as they do for the library.\n"
    "\n"
    "Path types, nearest first: LOC the same device, NVL NVLink, NVB NVLink through another GPU, PIX one PCI "
    "switch, PXB several PCI switches, P2C a GPU's own link to its CPU, PXN a NIC through another GPU, PHB "
    "through the CPU, SYS through several CPUs.\n"
    "\n"
    "`tutti topo --sysfs /sys` shows this machine, and `tutti topo --record DIR` copies what describes it. "
    "From /sys come the PCI tree with the speed and width of each link, NUMA nodes, the active ports of "
    "class/infiniband, or without any the interfaces of class/net that are up; from NVML the GPUs, their "
    "compute capability and NVLinks. A folder that --record makes has the same files, the GPUs in nvml.xml "
    "(NCCL's XML), and cpuinfo: it describes a machine for others to look at, and for TUTTI_SYSFS. With "
    "--file, "
    "devices that the XML names are where it says: clouds ship such files for virtual machines.\n",
    &topo_options,
    topo_run,
};
