/* fuzz_workload.c: any bytes as a workload in text. */
/* sources: sim/simulate/workload.c sim/simulate/workload_text.c sim/simulate/workload_match.c
 * sim/collective.c base/ */
/* runner: 2000 mutants: a whole simulation each */
#include "workload_check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct workload workload;
  char *text = (char *)os_alloc(size + 1);
  if (text == NULL) return 0;
  memcpy(text, data, size);
  if (workload_parse("input", text, 8, &workload) == ncclSuccess) workload_check(&workload);
  workload_free(&workload);
  os_free(text);
  return 0;
}
