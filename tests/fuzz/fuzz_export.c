/* fuzz_export.c: any bytes as a file of records, or as its text: exported for Perfetto and Prometheus. Times
 * of such a file are any numbers. */
/* sources: trace/record_read trace/record_text explain/ sim/files/job.c sim/files/export_perfetto.c
 * sim/files/export_prometheus.c sim/perfetto.c sim/json.c base/ */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/os.h"
#include "files/export.h"
#include "trace/record_text.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void file_export(struct record_file *file) {
  static FILE *out;
  struct records records;
  struct job job;
  memset(&records, 0, sizeof records);
  records.files = file;
  records.count = 1;
  if (out == NULL) out = fopen("/dev/null", "w");
  if (out == NULL || !job_open(&records, &job)) abort();
  if (job.count > 0) {
    if (!export_perfetto(&job, out)) abort();
    export_prometheus(&job, INT64_C(1700000000000000000), out);
  }
  job_close(&job);
}

static bool bytes_export(const void *bytes, size_t size) {
  struct record_file file;
  if (record_file_read("input", bytes, size, NULL, &file) != ncclSuccess) return false;
  file_export(&file);
  record_file_free(&file);
  return true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  void *packed = NULL;
  size_t packed_size = 0;
  uint8_t *bytes = (uint8_t *)os_alloc(size); /* aligned */
  if (bytes == NULL) abort();
  if (size > 0) memcpy(bytes, data, size);
  if (!bytes_export(bytes, size) &&
      record_text_pack("input", (const char *)bytes, size, &packed, &packed_size) == ncclSuccess)
    bytes_export(packed, packed_size);
  os_free(packed);
  os_free(bytes);
  return 0;
}
