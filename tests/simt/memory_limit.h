/* memory_limit.h (simt): how much memory each device has, for all processes of a test (SIMT_MEMORY). */
#ifndef TUTTI_TESTS_SIMT_MEMORY_LIMIT_H
#define TUTTI_TESTS_SIMT_MEMORY_LIMIT_H

#include <stddef.h>
#include <stdint.h>

/* Takes memory of a device for this process; false: there is not enough. *pages identifies it; 0 without
 * SIMT_MEMORY. */
bool memory_limit_add(int device, size_t bytes, uint64_t *pages);
/* This process maps the memory, too. */
void memory_limit_hold(uint64_t pages);
/* This process has unmapped it; it is free when no living process has it. */
void memory_limit_drop(uint64_t pages);

#endif
