/* import_check.h: checks an imported file: it is converted to a file of records, read again without errors,
 * and diagnosed. */
#ifndef TUTTI_TESTS_FUZZ_IMPORT_CHECK_H
#define TUTTI_TESTS_FUZZ_IMPORT_CHECK_H

#include <stdlib.h>

#include "base/os.h"
#include "explain/diagnose.h"
#include "files/import.h"

static inline void image_check(const struct image *image) {
  struct record_listener listener = {NULL, NULL, 0};
  struct record_file file;
  struct diagnosis diagnosis;
  size_t byte_count = 0;
  void *bytes = image_make(image, &byte_count);
  if (bytes == NULL) abort();
  if (record_file_read("image", bytes, byte_count, &listener, &file) != ncclSuccess) abort();
  if (!diagnose_files(&file, 1, &diagnosis)) abort();
  record_file_free(&file);
  os_free(bytes);
}

static inline void flight_check(json_t *dump) {
  struct import import = {NULL, "nccl_trace_rank_1", 0};
  struct image image;
  if (flight_import(&import, dump, &image) != ncclSuccess) return;
  image_check(&image);
  image_free(&image);
}

#endif
