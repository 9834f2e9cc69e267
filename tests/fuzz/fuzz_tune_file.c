/* fuzz_tune_file.c: any bytes as a tuning file. An accepted file must be the same when its rules are written
 * as lines and read again. */
/* sources: core/plan/tune_file.c core/plan/names.c base/ */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/os.h"
#include "core/plan/tune_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define LINE_BYTES 192

static char *rules_write(const struct tune_file *file) {
  char *text = (char *)os_alloc((size_t)file->count * LINE_BYTES + 1);
  size_t used = 0;
  if (text == NULL) return NULL;
  for (uint32_t i = 0; i < file->count; i++) {
    const int wrote = tune_rule_text(&file->rules[i], text + used, LINE_BYTES);
    if (wrote < 0 || wrote >= LINE_BYTES - 1) abort();
    used += (size_t)wrote;
    text[used++] = '\n';
  }
  return text;
}

static void rules_compare(const struct tune_file *file, const struct tune_file *second) {
  if (file->count != second->count) abort();
  for (uint32_t i = 0; i < file->count; i++) {
    struct tune_rule left = file->rules[i], right = second->rules[i];
    left.line = right.line = 0;
    if (memcmp(&left, &right, sizeof left) != 0) abort();
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct tune_file *file = NULL, *second = NULL;
  if (tune_file_parse("input", (const char *)data, size, &file) != ncclSuccess) return 0;
  char *text = rules_write(file);
  if (text == NULL) abort();
  if (tune_file_parse("again", text, strlen(text), &second) != ncclSuccess) abort();
  rules_compare(file, second);
  os_free(text);
  os_free(second);
  os_free(file);
  return 0;
}
