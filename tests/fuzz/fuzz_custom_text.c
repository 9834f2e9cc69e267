/* fuzz_custom_text.c: schedules in tutti's text, from any bytes to plans. What must hold is in
 * custom_check.h. */
/* sources: core/custom*.c core/plan.c core/links.c core/rules.c core/tune.c core/graph.c base/[elop]*.c */
#include "custom_check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  check_input(data, size);
  return 0;
}
