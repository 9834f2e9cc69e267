/* fuzz_flight.c: any bytes as a Flight Recorder dump in JSON. */
/* sources: sim/files/flight.c sim/files/image.c trace/record_read trace/record_text explain/ base/ */
#include <stdint.h>

#include "import_check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  json_t *dump = json_loadb((const char *)data, size, 0, NULL);
  if (dump != NULL) flight_check(dump);
  json_decref(dump);
  return 0;
}
