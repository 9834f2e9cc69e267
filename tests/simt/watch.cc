/* watch.cc (simt): passes the accesses of a block's threads to the watcher. */
#include "watch.h"

#include <stdlib.h>

#include "memory.h"

enum { IGNORED_MOST = 16 };

bool watch_is_on;
static bool access_is_on;
static const struct watcher *watcher; /* SIMT_STEPS is set */

/* Of the block that this host thread runs. */
static thread_local struct {
  void *state;
  bool runs; /* a block */
  int device;
  uint32_t ignored_count;
  struct {
    uintptr_t begin;
    size_t bytes;
  } ignored[IGNORED_MOST];
} here;

static struct switch_on {
  switch_on() {
    access_is_on = getenv("SIMT_ACCESS") != NULL;
    watch_is_on = access_is_on || getenv("SIMT_STEPS") != NULL;
  }
} switch_on;

void watch_offer(const struct watcher *offered) {
  if (getenv("SIMT_STEPS") != NULL) watcher = offered;
}

void watch_block_begin(const char *kernel, int device, void *const *parameters, uint32_t block,
                       uint32_t thread_count) {
  here.runs = true;
  here.device = device;
  if (watcher != NULL) here.state = watcher->begin(kernel, parameters, block, thread_count);
}

void watch_ignore(const void *memory, size_t bytes) {
  if (here.ignored_count == IGNORED_MOST) abort();
  here.ignored[here.ignored_count++] = {(uintptr_t)memory, bytes};
}

void watch_block_end(void) {
  void *state = here.state;
  here.state = NULL;
  here.runs = false;
  here.ignored_count = 0;
  if (state != NULL) watcher->end(state);
}

void watch_access(const void *address, uint32_t bytes, bool writes, const uint64_t *value) {
  if (!here.runs) return;
  for (uint32_t i = here.ignored_count; i-- > 0;) /* the stacks are the last */
    if ((uintptr_t)address - here.ignored[i].begin < here.ignored[i].bytes) return;
  if (access_is_on) simt_memory_check(here.device, address, writes);
  if (here.state != NULL) watcher->access(here.state, (uintptr_t)address, bytes, writes, value);
}
