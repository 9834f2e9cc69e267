/* watch.cc (simt): passes the accesses of a block's threads to the watcher. */
#include "watch.h"

#include <stdlib.h>

enum { IGNORED_MOST = 16 };

bool watch_is_on;
static const struct watcher *watcher;

/* Of the block that this host thread runs. */
static thread_local struct {
  void *state;
  uint32_t ignored_count;
  struct {
    uintptr_t begin;
    size_t bytes;
  } ignored[IGNORED_MOST];
} here;

static struct switch_on {
  switch_on() { watch_is_on = getenv("SIMT_STEPS") != NULL; }
} switch_on;

void watch_offer(const struct watcher *offered) { watcher = offered; }

void watch_block_begin(const char *kernel, void *const *parameters, uint32_t block, uint32_t thread_count) {
  if (watch_is_on && watcher != NULL) here.state = watcher->begin(kernel, parameters, block, thread_count);
}

void watch_ignore(const void *memory, size_t bytes) {
  if (here.ignored_count == IGNORED_MOST) abort();
  here.ignored[here.ignored_count++] = {(uintptr_t)memory, bytes};
}

void watch_block_end(void) {
  void *state = here.state;
  here.state = NULL;
  here.ignored_count = 0;
  if (state != NULL) watcher->end(state);
}

void watch_access(const void *address, uint32_t bytes, bool writes, const uint64_t *value) {
  if (here.state == NULL) return;
  for (uint32_t i = here.ignored_count; i-- > 0;) /* the stacks are the last */
    if ((uintptr_t)address - here.ignored[i].begin < here.ignored[i].bytes) return;
  watcher->access(here.state, (uintptr_t)address, bytes, writes, value);
}
