/* fuzz_graph_file.c: any text is read as the graphs of NCCL_GRAPH_FILE or refused; rings and trees of an
 * accepted one fit two nodes or are refused. */
/* sources: core/topology/topology core/topology/xml_reader core/topology/graph base/ */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/topology/graph_build.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static const struct graph_place places[] = {{0, 0, false}, {0, 1, false}, {1, 0, false}, {1, 1, false}};
  const struct topology_spec spec = {NULL, 2, 4, 4};
  const struct paths_rules rules = PATHS_RULES_DEFAULT;
  struct graph_request request = {.places = places, .rank_count = 4, .channels_min = 1, .channels_max = 8};
  struct topology topology;
  struct graph_file *file = NULL;
  struct graph graph;
  if (graph_file_parse("input", (const char *)data, size, &file) != ncclSuccess) return 0;
  if (topology_make(&spec, &topology) != ncclSuccess) abort();
  request.topology = &topology;
  request.rules = rules;
  request.file = file;
  if (graph_build(&request, &graph) == ncclSuccess) graph_free(&graph);
  graph_file_free(file);
  topology_free(&topology);
  return 0;
}
