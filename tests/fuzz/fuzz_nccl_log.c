/* fuzz_nccl_log.c: any bytes as two logs of one job. */
/* sources: sim/files/nccl_log.c sim/files/flight.c sim/files/image.c trace/record_read trace/record_text
 * explain/ base/ */
#include <stdint.h>

#include "import_check.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct import import = {NULL, "input", 0};
  struct nccl_log *log = nccl_log_open();
  const char *path, *text = (const char *)data;
  if (log == NULL) abort();
  if (nccl_log_read(log, &import, text, size / 2) == ncclSuccess &&
      nccl_log_read(log, &import, text + size / 2, size - size / 2) == ncclSuccess)
    nccl_log_finish(log, &import);
  for (uint32_t i = 0; i < nccl_log_processes(log); i++) image_check(nccl_log_image(log, i, &path));
  nccl_log_close(log);
  return 0;
}
