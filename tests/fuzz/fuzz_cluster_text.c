/* fuzz_cluster_text.c: any bytes as a cluster description. Accepted descriptions must respect the limits. */
/* sources: sim/simulate/cluster_text.c sim/simulate/cluster_costs.c base/ */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/os.h"
#include "simulate/cluster.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct cluster_spec spec;
  char *text = (char *)os_alloc(size + 1);
  if (text == NULL) return 0;
  cluster_spec_begin(&spec);
  memcpy(text, data, size);
  if (cluster_parse("input", text, &spec) == ncclSuccess) {
    const bool sizes = spec.nodes >= 1 && spec.nodes <= TOPOLOGY_NODES_MAX && spec.gpus >= 1 &&
                       spec.gpus <= TOPOLOGY_GPUS_MAX && spec.fabric.leaf_nodes >= 1;
    for (int proto = 0; proto < PROTO_COUNT; proto++)
      if (!(spec.costs.lane_gbps[proto] > 0) || !(spec.costs.launch_us[proto] >= 0)) abort();
    if (!sizes || !(spec.fabric.hop_us >= 0) || !(spec.fabric.oversubscription >= 0.01)) abort();
    if (spec.machine && memchr(text, 0, size + 1) == NULL) abort();
  }
  os_free(text);
  return 0;
}
