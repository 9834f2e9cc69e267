/* watch.h (simt): shows every access of a kernel's threads to a watcher that knows what the kernel must do
 * (SIMT_STEPS), and to who knows which memory its device may access (SIMT_ACCESS, memory.h).
 * Accesses to the threads' own stacks, to shared memory and to the library's constants are left out. Knows
 * nothing of kernels. */
#ifndef TUTTI_TESTS_SIMT_WATCH_H
#define TUTTI_TESTS_SIMT_WATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct watcher {
  /* A block begins, or has ended; `kernel`: its name. NULL: the block is not watched. */
  void *(*begin)(const char *kernel, void *const *parameters, uint32_t block, uint32_t thread_count);
  /* Called before a write and after a read. `value`: of at most eight bytes that an access of ptx.h reads or
   * writes; of the compiler's own accesses it is not known. */
  void (*access)(void *state, uintptr_t address, uint32_t bytes, bool writes, const uint64_t *value);
  void (*end)(void *state);
};

extern bool watch_is_on; /* SIMT_STEPS or SIMT_ACCESS is set */

/* Once, before any launch. */
void watch_offer(const struct watcher *watcher);

/* Of the block that this host thread runs. */
void watch_block_begin(const char *kernel, int device, void *const *parameters, uint32_t block,
                       uint32_t thread_count);
void watch_ignore(const void *memory, size_t bytes);
void watch_block_end(void);
void watch_access(const void *address, uint32_t bytes, bool writes, const uint64_t *value);

#endif
