/* fuzz_chakra.c: any bytes as a Chakra trace. */
/* sources: sim/goal/chakra.c sim/goal/export.c sim/goal/goal.c sim/goal/goal_text.c sim/goal/goal_binary.c
 * sim/steps/executor.c sim/steps/net.c sim/steps/slices.c base/ */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "goal/chakra.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Reads every byte of the node. */
static ncclResult_t node_take(void *context, const struct chakra_node *node) {
  uint64_t *sum = (uint64_t *)context;
  for (uint32_t i = 0; i < node->dep_count; i++) *sum += node->deps[i];
  for (size_t i = 0; i < CHAKRA_NAME_BYTES; i++) *sum += (uint64_t)node->name[i] + (uint64_t)node->group[i];
  return ncclSuccess;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  uint64_t sum = 0;
  if (size == 0) return 0;
  FILE *file = fmemopen((void *)(uintptr_t)data, size, "rb");
  if (file == NULL) abort();
  (void)chakra_read("input", file, node_take, &sum);
  fclose(file);
  return 0;
}
