/* memory.h (simt): what is known of an address in device memory. */
#ifndef TUTTI_TESTS_SIMT_MEMORY_H
#define TUTTI_TESTS_SIMT_MEMORY_H

#include <stddef.h>
#include <stdint.h>

/* False for what was not allocated, nor mapped from another process. `id` is never used again; is_shared:
 * others can map it. */
bool simt_memory_find(uint64_t address, uint64_t *base, size_t *bytes, uint64_t *id, bool *is_shared);

#endif
