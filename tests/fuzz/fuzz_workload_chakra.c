/* fuzz_workload_chakra.c: any bytes as a Chakra trace, and its nodes as calls. */
/* sources: sim/simulate/workload.c sim/simulate/workload_text.c sim/simulate/workload_match.c
 * sim/simulate/workload_chakra.c sim/goal/chakra.c sim/goal/export.c sim/goal/goal.c
 * sim/goal/goal_text.c sim/goal/goal_binary.c sim/steps/executor.c sim/steps/net.c sim/steps/slices.c
 * sim/collective.c base/ */
#include <unistd.h>

#include "workload_check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The reader takes files by their names. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct workload workload;
  char path[64];
  char *paths[] = {path};
  snprintf(path, sizeof path, "/tmp/tutti-fuzz-%d.0.et", (int)getpid());
  if (!os_file_write(path, (const char *)data, size)) return 0;
  if (workload_chakra(1, paths, &workload) == ncclSuccess) workload_check(&workload);
  workload_free(&workload);
  unlink(path);
  return 0;
}
