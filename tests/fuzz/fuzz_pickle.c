/* fuzz_pickle.c: any bytes as a pickle; an accepted one is written, read again, and read as a Flight Recorder
 * dump. */
/* sources: sim/files/pickle.c sim/files/flight.c sim/files/image.c trace/record_read trace/record_text
 * explain/ base/ */
#include <stdint.h>

#include "import_check.h"
#include "files/pickle.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  json_t *dump = NULL, *second = NULL;
  char *bytes = NULL;
  size_t byte_count = 0;
  if (pickle_read("input", data, size, &dump) != ncclSuccess) return 0;
  /* shared objects are written twice: only small inputs stay small */
  if (size < 256 && pickle_write(dump, &bytes, &byte_count) == ncclSuccess &&
      pickle_read("again", bytes, byte_count, &second) == ncclSuccess && !json_equal(dump, second))
    abort();
  flight_check(dump);
  json_decref(dump);
  json_decref(second);
  os_free(bytes);
  return 0;
}
