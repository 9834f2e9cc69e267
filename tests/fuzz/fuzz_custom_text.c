/* fuzz_custom_text.c: any bytes as a schedule in tutti's text, up to its plans. custom_check.h has the
 * checks. */
/* sources: core/custom/ core/plan/ core/plugins/ core/topology/links.c core/topology/graph.c base/
 * sim/schedules/ */
#include "custom_check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  check_input(data, size);
  return 0;
}
