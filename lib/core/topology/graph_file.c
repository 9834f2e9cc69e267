/* graph_file.c: see graph_file.h. Unknown elements and attributes are ignored, since NCCL adds some from time
 * to time; graphs of NVLS and CollNet are, too. */
#include "core/topology/graph_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/log.h"
#include "base/os.h"
#include "core/topology/xml_reader.h"

enum { RINGS, TREES, GRAPHS, IDS = 6, DEPTH = 4 };

struct channel {
  uint32_t line, gpu_count, net_count;
  uint32_t gpus[TOPOLOGY_GPUS_MAX]; /* numbers, in order */
  uint32_t nets[2];
  bool closed; /* by a NIC behind a GPU */
};

struct listed {
  uint32_t line, pattern, cross_nic, channels_said, channel_count;
  double gbps[2]; /* inside and between nodes */
  enum graph_path paths[2];
  bool same_channels;
  struct channel channels[SEARCH_CHANNELS_MAX];
};

struct graph_file {
  char path[256];
  struct listed graphs[GRAPHS];
};

struct reader {
  struct xml_reader xml;
  struct graph_file *file;
  struct listed *graph;     /* that is open */
  uint32_t depth, skipping; /* open elements: known ones, and from an unknown one on */
};

/* ---- Attributes ---- */

static const char *value_of(const char **given, const char *name) {
  for (; *given != NULL; given += 2)
    if (strcmp(given[0], name) == 0) return given[1];
  return NULL;
}

/* An attribute without which there is a message, unless `initial` is not negative. */
static double number_of(struct reader *reader, const char **given, const char *name, double most,
                        double initial) {
  const char *value = value_of(given, name);
  char *end = NULL;
  if (value == NULL && initial >= 0) return initial;
  const double number = value != NULL ? strtod(value, &end) : 0;
  if (value != NULL && end != value && *end == '\0' && number >= 0 && number <= most) return number;
  xml_fail(&reader->xml, "%s=\"%.40s\"; expected a number from 0 to %.0f", name, value != NULL ? value : "",
           most);
  return 0;
}

static enum graph_path path_of(struct reader *reader, const char **given, const char *name) {
  const char *value = value_of(given, name);
  if (value == NULL) return GRAPH_SYS;
  for (uint32_t type = GRAPH_LOC; type <= GRAPH_DIS; type++)
    if (strcasecmp(value, paths_type_name((enum graph_path)type)) == 0) return (enum graph_path)type;
  xml_fail(&reader->xml, "%s=\"%.40s\"; expected a path: LOC, NVL, NVB, C2C, PIX, PXB, P2C, PXN, PHB or SYS",
           name, value);
  return GRAPH_SYS;
}

/* ---- Elements ---- */

static void graph_begin(struct reader *reader, const char **given) {
  const double id = number_of(reader, given, "id", 1e9, -1);
  if (reader->xml.fault[0] != '\0') return;
  if (id >= IDS || id != (uint32_t)id) {
    xml_fail(&reader->xml,
             "<graph id=\"%.40s\">; expected 0 for rings, 1 for trees, or 2 to %u, which are not used",
             value_of(given, "id"), IDS - 1);
    return;
  }
  reader->graph = id < GRAPHS ? &reader->file->graphs[(uint32_t)id] : NULL;
  if (reader->graph == NULL) return;
  struct listed *graph = reader->graph;
  if (graph->line != 0)
    xml_fail(&reader->xml, "a second <graph id=\"%.0f\">, after that of line %u; expected one", id,
             graph->line);
  graph->line = (uint32_t)XML_GetCurrentLineNumber(reader->xml.parser);
  graph->pattern = (uint32_t)number_of(reader, given, "pattern", 1e9, -1);
  graph->cross_nic = (uint32_t)number_of(reader, given, "crossnic", 2, 0);
  graph->channels_said = (uint32_t)number_of(reader, given, "nchannels", SEARCH_CHANNELS_MAX, -1);
  graph->gbps[0] = number_of(reader, given, "speedintra", 1e6, -1);
  graph->gbps[1] = number_of(reader, given, "speedinter", 1e6, graph->gbps[0]);
  graph->paths[0] = path_of(reader, given, "typeintra");
  graph->paths[1] = path_of(reader, given, "typeinter");
  graph->same_channels = number_of(reader, given, "samechannels", 1, 0) != 0;
  const bool rings = id == RINGS;
  if (rings != (graph->pattern == SEARCH_RING) || graph->pattern < 1 || graph->pattern > SEARCH_RING)
    xml_fail(&reader->xml, "<graph id=\"%.0f\"> pattern=\"%u\"; expected %s", id, graph->pattern,
             rings ? "4, rings" : "1, 2 or 3, trees");
}

static void channel_begin(struct reader *reader) {
  struct listed *graph = reader->graph;
  if (graph == NULL) return;
  if (graph->channel_count == SEARCH_CHANNELS_MAX) {
    xml_fail(&reader->xml, "one <channel> too many; expected at most %u", SEARCH_CHANNELS_MAX);
    return;
  }
  graph->channels[graph->channel_count++].line = (uint32_t)XML_GetCurrentLineNumber(reader->xml.parser);
}

static void gpu_add(struct reader *reader, struct channel *channel, uint32_t gpu) {
  for (uint32_t i = 0; i < channel->gpu_count; i++)
    if (channel->gpus[i] == gpu)
      xml_fail(&reader->xml, "GPU %u is in this channel twice; expected each GPU once", gpu);
  if (channel->closed)
    xml_fail(&reader->xml, "a <gpu> behind the second <net>; expected that <net> at the end");
  else if (channel->gpu_count == TOPOLOGY_GPUS_MAX) xml_fail(&reader->xml, "a <gpu> too many");
  else channel->gpus[channel->gpu_count++] = gpu;
}

/* A channel enters by the first NIC, and leaves by the second. */
static void net_add(struct reader *reader, struct channel *channel, uint32_t net) {
  const bool leaves = channel->gpu_count > 0;
  if (channel->net_count != (leaves ? 1u : 0u)) {
    xml_fail(&reader->xml,
             "a <net> too many, or none before the GPUs; expected one before and one after them");
    return;
  }
  channel->closed = leaves;
  channel->nets[channel->net_count++] = net;
}

static void device_begin(struct reader *reader, bool is_gpu, const char **given) {
  struct listed *graph = reader->graph;
  const uint32_t number = (uint32_t)number_of(reader, given, "dev", 65535, -1);
  if (graph == NULL || reader->xml.fault[0] != '\0') return;
  struct channel *channel = &graph->channels[graph->channel_count - 1];
  if (is_gpu) gpu_add(reader, channel, number);
  else net_add(reader, channel, number);
}

static void XMLCALL element_begin(void *data, const char *name, const char **given) {
  static const char *const names[DEPTH] = {"graphs", "graph", "channel", "gpu"};
  struct reader *reader = (struct reader *)data;
  const uint32_t depth = reader->depth;
  const bool is_net = depth == DEPTH - 1 && strcmp(name, "net") == 0;
  const bool known = depth < DEPTH && (is_net || strcmp(name, names[depth]) == 0);
  if (depth == 0 && !known)
    xml_fail(&reader->xml, "<%.40s> is the outermost element; expected <graphs>", name);
  if (reader->skipping > 0 || !known) {
    reader->skipping += 1;
    return;
  }
  reader->depth += 1;
  if (depth == 1) graph_begin(reader, given);
  if (depth == 2) channel_begin(reader);
  if (depth == DEPTH - 1) device_begin(reader, !is_net, given);
}

static void graph_end(struct reader *reader) {
  const struct listed *graph = reader->graph;
  if (graph == NULL) return;
  if (graph->channel_count != graph->channels_said)
    xml_fail(&reader->xml, "<graph nchannels=\"%u\"> of line %u has %u channels; expected as many as it says",
             graph->channels_said, graph->line, graph->channel_count);
  if (graph->channel_count > 0 && graph->gbps[0] <= 0)
    xml_fail(&reader->xml, "<graph speedintra=\"0\"> of line %u; expected GB/s of a channel", graph->line);
  if (graph->cross_nic == 2 && graph->channel_count % 2 != 0)
    xml_fail(&reader->xml, "<graph crossnic=\"2\"> of line %u has %u channels; expected pairs", graph->line,
             graph->channel_count);
}

static void XMLCALL element_end(void *data, const char *name) {
  struct reader *reader = (struct reader *)data;
  (void)name;
  if (reader->skipping > 0) {
    reader->skipping -= 1;
    return;
  }
  if (--reader->depth == 1) graph_end(reader);
}

/* ---- A whole text ---- */

ncclResult_t graph_file_parse(const char *path, const char *text, size_t bytes, struct graph_file **file) {
  struct reader reader;
  memset(&reader, 0, sizeof reader);
  reader.xml.prefix = "NCCL_GRAPH_FILE: ";
  reader.xml.path = path;
  reader.xml.expected = "<graphs version=\"1\">...</graphs>";
  reader.file = (struct graph_file *)os_alloc(sizeof *reader.file);
  if (reader.file == NULL) return log_no_memory("%s: reading it", path);
  snprintf(reader.file->path, sizeof reader.file->path, "%.255s", path);
  const ncclResult_t result = xml_read(&reader.xml, element_begin, element_end, text, bytes);
  if (result == ncclSuccess) *file = reader.file;
  else os_free(reader.file);
  return result;
}

ncclResult_t graph_file_read(const char *path, struct graph_file **file) {
  size_t bytes = 0;
  char *text = os_file_read_most(path, TOPOLOGY_FILE_BYTES_MAX, &bytes);
  if (text == NULL)
    return log_fail(ncclSystemError, "NCCL_GRAPH_FILE: %s: cannot be read: %s", path, strerror(errno));
  const ncclResult_t result = graph_file_parse(path, text, bytes, file);
  os_free(text);
  return result;
}

void graph_file_free(struct graph_file *file) { os_free(file); }

/* ---- For the GPUs of a node ---- */

/* Index in the topology's list of the device with this number; TOPOLOGY_NONE: there is none. */
static uint32_t index_of(const struct topology *topology, const uint32_t *rows, uint32_t count,
                         uint32_t number) {
  for (uint32_t i = 0; i < count; i++)
    if (topology->devices[rows[i]].number == (int32_t)number) return i;
  return TOPOLOGY_NONE;
}

static ncclResult_t channel_gpus(const struct graph_file *file, const struct channel *channel,
                                 const struct search_request *request, uint32_t *chain) {
  const struct topology *topology = request->paths->topology;
  uint32_t count = 0;
  for (uint32_t i = 0; i < channel->gpu_count; i++) {
    const uint32_t gpu = index_of(topology, topology->gpus, topology->gpu_count, channel->gpus[i]);
    if (gpu == TOPOLOGY_NONE)
      return log_fail(
          ncclInvalidUsage,
          "NCCL_GRAPH_FILE: %s:%u: the channel has GPU %u, and the topology '%s' has none of this "
          "number; name its GPUs, or unset NCCL_GRAPH_FILE",
          file->path, channel->line, channel->gpus[i], topology->name);
    for (uint32_t place = 0; place < request->gpu_count; place++)
      if (request->gpus[place] == gpu) chain[count++] = place;
  }
  for (uint32_t place = 0; place < request->gpu_count; place++) {
    uint32_t at = 0;
    while (at < count && chain[at] != place) at++;
    if (at == count)
      return log_fail(
          ncclInvalidUsage,
          "NCCL_GRAPH_FILE: %s:%u: the channel lacks GPU %d, which the communicator uses; give each "
          "of its GPUs once, or unset NCCL_GRAPH_FILE",
          file->path, channel->line, (int)topology->devices[topology->gpus[request->gpus[place]]].number);
  }
  return ncclSuccess;
}

static ncclResult_t channel_nets(const struct graph_file *file, const struct channel *channel,
                                 const struct search_request *request, uint32_t *nets) {
  const struct topology *topology = request->paths->topology;
  nets[0] = nets[1] = TOPOLOGY_NONE;
  if (request->node_count < 2 || topology->net_count == 0) return ncclSuccess;
  if (channel->net_count != 2)
    return log_fail(
        ncclInvalidUsage,
        "NCCL_GRAPH_FILE: %s:%u: the channel has %u <net>, and the communicator has %u nodes; give "
        "it one before its GPUs and one after them",
        file->path, channel->line, channel->net_count, request->node_count);
  for (uint32_t side = 0; side < 2; side++) {
    nets[side] = index_of(topology, topology->nets, topology->net_count, channel->nets[side]);
    if (nets[side] == TOPOLOGY_NONE)
      return log_fail(
          ncclInvalidUsage,
          "NCCL_GRAPH_FILE: %s:%u: the channel has NIC %u, and the topology '%s' has none of this "
          "number; its %u NICs are those of `tutti topo`",
          file->path, channel->line, channel->nets[side], topology->name, topology->net_count);
  }
  return ncclSuccess;
}

ncclResult_t graph_file_find(const struct graph_file *file, const struct search_request *request,
                             struct search_result *result, bool *found) {
  const struct listed *graph = &file->graphs[request->pattern == SEARCH_RING ? RINGS : TREES];
  const bool network = request->node_count > 1;
  *found = graph->channel_count > 0;
  if (!*found) return ncclSuccess;
  memset(result, 0, sizeof *result);
  result->pattern = (enum search_pattern)graph->pattern;
  result->channel_count = graph->channel_count;
  result->gbps = graph->gbps[0];
  if (network && graph->gbps[1] > 0 && graph->gbps[1] < result->gbps) result->gbps = graph->gbps[1];
  result->intra_path = graph->paths[0];
  result->inter_path = graph->paths[1];
  result->same_channels = graph->same_channels;
  result->cross_nic = graph->cross_nic;
  for (uint32_t i = 0; i < graph->channel_count; i++) {
    TRY(channel_gpus(file, &graph->channels[i], request, result->chain[i]));
    TRY(channel_nets(file, &graph->channels[i], request, result->net[i]));
  }
  return ncclSuccess;
}
