/* fuzz_msccl.c: schedules in MSCCL's XML, from any bytes to plans. What must hold is in
 * custom_check.h. */
/* sources: core/custom/ core/plan/ core/topology/links.c core/topology/graph.c base/ sim/schedules/ */
#include "custom_check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  check_input(data, size);
  return 0;
}
