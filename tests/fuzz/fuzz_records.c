/* fuzz_records.c: any bytes as a file of records, or as its text. Accepted files are printed, and a file made
 * from that text must print the same. The records are then diagnosed. */
/* sources: trace/record_read trace/record_image trace/record_text explain/ sim/files/digest.c base/ */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/os.h"
#include "explain/diagnose.h"
#include "files/digest.h"
#include "trace/record_text.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct text {
  char *bytes;
  size_t used, capacity;
};

static void text_put(void *argument, const char *line) {
  struct text *text = (struct text *)argument;
  const size_t length = strlen(line) + 1;
  if (text->used + length > text->capacity) {
    text->capacity = 2 * (text->used + length);
    text->bytes = (char *)os_realloc(text->bytes, text->capacity);
    if (text->bytes == NULL) abort();
  }
  memcpy(text->bytes + text->used, line, length);
  text->bytes[text->used + length - 1] = '\n';
  text->used += length;
}

/* The text of a file whose parts all lie within it; "" if something is wrong with it. */
static struct text text_of(const void *bytes, size_t size) {
  struct record_listener listener = {NULL, NULL, 0};
  struct record_file file;
  struct text text = {NULL, 0, 0};
  if (record_file_read("input", bytes, size, &listener, &file) != ncclSuccess) return text;
  record_text_dump(&file, text_put, &text);
  record_file_free(&file);
  return text;
}

/* The text of the file made from this text; no bytes if it is refused. */
static struct text text_reread(const char *bytes, size_t size) {
  void *packed = NULL;
  size_t packed_size = 0;
  struct text text = {NULL, 0, 0};
  if (record_text_pack("input", bytes, size, &packed, &packed_size) == ncclSuccess)
    text = text_of(packed, packed_size);
  os_free(packed);
  return text;
}

/* Tables of a malicious file may overlap; the file made from the first text is stable. */
static void text_try(const char *bytes, size_t size) {
  struct text one = text_reread(bytes, size), two = {NULL, 0, 0}, three = {NULL, 0, 0};
  if (one.bytes != NULL) two = text_reread(one.bytes, one.used);
  if (two.bytes != NULL) three = text_reread(two.bytes, two.used);
  if (three.bytes != NULL && (two.used != three.used || memcmp(two.bytes, three.bytes, two.used) != 0))
    abort();
  os_free(one.bytes);
  os_free(two.bytes);
  os_free(three.bytes);
}

static void digest_try(const void *bytes, size_t size) {
  static struct diagnosis diagnosis;
  struct record_file file, digest;
  if (record_file_read("input", bytes, size, NULL, &file) != ncclSuccess) return;
  void *kept = digest_make(&file, &digest);
  if (kept == NULL || digest.view_count != file.view_count) abort();
  if (!diagnose_files(&digest, 1, &diagnosis)) abort();
  record_file_free(&digest);
  record_file_free(&file);
  os_free(kept);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  uint8_t *bytes = (uint8_t *)os_alloc(size); /* aligned */
  if (bytes == NULL) abort();
  if (size > 0) memcpy(bytes, data, size);
  struct text text = text_of(bytes, size);
  if (text.bytes != NULL) text_try(text.bytes, text.used);
  os_free(text.bytes);
  text_try((const char *)bytes, size);
  digest_try(bytes, size);
  os_free(bytes);
  return 0;
}
