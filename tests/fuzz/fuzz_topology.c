/* fuzz_topology.c: any text is read as a topology or refused; an accepted one is written, read again and
 * written the same, and a graph is built for a small one. */
/* sources: core/topology/topology core/topology/xml_reader core/topology/graph base/ */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/os.h"
#include "core/topology/graph_build.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void graph_try(const struct topology *topology) {
  static const struct graph_place places[] = {{0, 0, false}, {1, 0, false}};
  const struct paths_rules rules = PATHS_RULES_DEFAULT;
  struct graph_request request;
  struct graph graph;
  memset(&request, 0, sizeof request);
  request.topology = topology;
  request.places = places;
  request.rank_count = 2;
  request.channels_min = 1;
  request.channels_max = 2;
  request.rules = rules;
  if (graph_build(&request, &graph) == ncclSuccess) graph_free(&graph);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct topology topology, second;
  if (topology_parse("input", (const char *)data, size, 2, &topology) != ncclSuccess) return 0;
  char *text = topology_text(&topology);
  if (text == NULL || topology_parse("written", text, strlen(text), 2, &second) != ncclSuccess) abort();
  char *text_second = topology_text(&second);
  if (text_second == NULL || strcmp(text, text_second) != 0) abort();
  graph_try(&topology);
  os_free(text);
  os_free(text_second);
  topology_free(&topology);
  topology_free(&second);
  return 0;
}
