/* array.c: growth by doubling over os_realloc. Promises amortised constant cost per item, and never requests
 * a size that overflows. */
#include "base/array.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/os.h"

#define ITEMS_FIRST 8

bool array_resize(void *items, uint64_t count, size_t item_bytes) {
  void *block;
  size_t bytes;
  if (__builtin_mul_overflow(count, item_bytes, &bytes)) return false;
  memcpy(&block, items, sizeof block); /* items is the address of a pointer of unknown type */
  block = os_realloc(block, bytes);
  if (block == NULL) return false;
  memcpy(items, &block, sizeof block);
  return true;
}

bool array_grow_long(void *items, size_t *capacity, uint64_t count, size_t item_bytes) {
  if (count <= *capacity) return true;
  const uint64_t twice = *capacity <= SIZE_MAX / 2 ? 2 * (uint64_t)*capacity : count;
  uint64_t wanted = twice > ITEMS_FIRST ? twice : ITEMS_FIRST;
  if (wanted < count) wanted = count;
  if (!array_resize(items, wanted, item_bytes)) return false;
  *capacity = (size_t)wanted;
  return true;
}

bool array_grow(void *items, uint32_t *capacity, uint64_t count, size_t item_bytes) {
  if (count <= *capacity) return true;
  if (count > UINT32_MAX / 2) return false; /* doubling must not overflow */
  size_t long_capacity = *capacity;
  if (!array_grow_long(items, &long_capacity, count, item_bytes)) return false;
  *capacity = (uint32_t)long_capacity;
  return true;
}

ncclResult_t array_reserve(void *items, uint32_t *capacity, uint64_t count, size_t item_bytes,
                           const char *what) {
  return array_grow(items, capacity, count, item_bytes) ? ncclSuccess : log_no_memory("%s", what);
}

/* Not in log.c, because libtutti-cuda.so has its own log. */
ncclResult_t log_no_memory_at(const char *file, int line, const char *format, ...) {
  char what[512]; /* stacks may be small */
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(what, sizeof what, format, arguments);
  va_end(arguments);
  const size_t bytes = os_alloc_failed_bytes();
  if (bytes == 0) return log_fail_at(file, line, ncclSystemError, "%s" LOG_OUT_OF_MEMORY, what);
  return log_fail_at(file, line, ncclSystemError, "%s: out of memory (%zu bytes); free some and try again",
                     what, bytes);
}
