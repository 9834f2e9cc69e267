/* array.h: arrays that grow by doubling. `items` is the address of the array's pointer. Items keep their
 * values; new items are not zeroed. On failure the array and its capacity are unchanged and nothing is
 * logged: the caller logs what the array was for (log_no_memory), or calls array_reserve, which logs it. */
#ifndef TUTTI_BASE_ARRAY_H
#define TUTTI_BASE_ARRAY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "nccl.h"

/* Makes *capacity at least `count` items; false if memory is out or the number does not fit. */
bool array_grow(void *items, uint32_t *capacity, uint64_t count, size_t item_bytes);
bool array_grow_long(void *items, size_t *capacity, uint64_t count, size_t item_bytes);

/* Exactly `count` items, for arrays that share a capacity. */
bool array_resize(void *items, uint64_t count, size_t item_bytes);

/* As array_grow; ncclSystemError and "WHAT: out of memory (N bytes)" in the log on failure. */
ncclResult_t array_reserve(void *items, uint32_t *capacity, uint64_t count, size_t item_bytes,
                           const char *what);

#endif
