/* arena.c: see arena.h. Spans are in a list ordered by address. A new one is placed after the newest until
 * the end is reached, then in the first gap that is large enough. */
#include "backends/emu/arena.h"

#include <sys/mman.h>

#include "base/log.h"
#include "base/os.h"

#define ARENA_PAGE 4096u
#define ARENA_BYTES_MOST (UINT64_C(64) << 30) /* of addresses, not of memory */
#define ARENA_BYTES_LEAST (UINT64_C(64) << 20)

struct span {
  struct span *previous, *next;
  size_t offset, bytes;
};

static struct {
  os_mutex lock;
  uint8_t *memory;
  size_t bytes, newest; /* newest: the end of the span that was allocated last */
  uint32_t pin_count;
  int pid; /* the process that made it: a forked child makes its own */
  struct span *first, *last;
} arena = {.lock = OS_MUTEX_INITIALIZER};

static bool offset_in_arena(const void *address, uint64_t *offset) {
  const uintptr_t from = (uintptr_t)arena.memory, at = (uintptr_t)address;
  if (arena.memory == NULL || at < from || at - from >= arena.bytes || arena.pid != os_pid()) return false;
  *offset = at - from;
  return true;
}

/* A forked child keeps its parent's arena as private memory, and allocates nothing more from it. */
static void arena_leave_parents(void) {
  if (arena.memory == NULL || arena.pid == os_pid()) return;
  arena.memory = NULL;
  arena.first = arena.last = NULL;
  arena.pin_count = 0;
}

/* Makes a smaller arena if a limit on address space or files requires it, and none if that leaves too little.
 * False if it cannot be made for another reason. */
static bool arena_make(void) {
  void *memory = NULL;
  arena_leave_parents();
  if (arena.memory != NULL) return true;
  const uint64_t bytes = share_capacity(ARENA_BYTES_MOST);
  if (bytes < ARENA_BYTES_LEAST) return true;
  if (share_alloc(bytes, &memory, NULL) != ncclSuccess) return false;
  mprotect(memory, bytes, PROT_NONE);
  arena.memory = (uint8_t *)memory;
  arena.bytes = bytes;
  arena.newest = 0;
  arena.pid = os_pid();
  return true;
}

static void arena_drop(void) {
  if (arena.memory == NULL || arena.first != NULL || arena.pin_count > 0) return;
  share_free(arena.memory);
  arena.memory = NULL;
}

/* Finds a gap of `bytes`; *before is the span before it, NULL at the begin. False if there is none. */
static bool gap_find(size_t bytes, struct span **before, size_t *offset) {
  *before = arena.last;
  *offset = arena.newest;
  if (arena.last == NULL || arena.last->offset + arena.last->bytes <= arena.newest)
    if (arena.newest + bytes <= arena.bytes) return true;
  size_t end = 0;
  struct span *previous = NULL;
  for (struct span *span = arena.first;; span = span->next) {
    const size_t next = span != NULL ? span->offset : arena.bytes;
    if (next - end >= bytes) break;
    if (span == NULL) return false;
    end = span->offset + span->bytes;
    previous = span;
  }
  *before = previous;
  *offset = end;
  return true;
}

static void span_insert(struct span *before, struct span *span) {
  span->previous = before;
  span->next = before != NULL ? before->next : arena.first;
  *(before != NULL ? &before->next : &arena.first) = span;
  *(span->next != NULL ? &span->next->previous : &arena.last) = span;
}

static void span_remove(struct span *span) {
  *(span->previous != NULL ? &span->previous->next : &arena.first) = span->next;
  *(span->next != NULL ? &span->next->previous : &arena.last) = span->previous;
}

static bool span_open(const struct span *span, bool reserve) {
  if (reserve && share_reserve(arena.memory, span->offset, span->bytes) != ncclSuccess) return false;
  return mprotect(arena.memory + span->offset, span->bytes, PROT_READ | PROT_WRITE) == 0;
}

static void span_close(const struct span *span) {
  share_trim(arena.memory, span->offset, span->bytes);
  mprotect(arena.memory + span->offset, span->bytes, PROT_NONE);
}

/* Locked. */
static bool span_make(size_t bytes, bool reserve, void **memory) {
  struct span *before, fresh = {NULL, NULL, 0, (bytes + ARENA_PAGE - 1) / ARENA_PAGE * ARENA_PAGE};
  if (!arena_make()) return false;
  if (arena.memory == NULL || !gap_find(fresh.bytes, &before, &fresh.offset)) return true;
  struct span *span = (struct span *)os_alloc(sizeof *span);
  if (span == NULL) return false;
  *span = fresh;
  if (!span_open(span, reserve)) {
    span_close(span);
    os_free(span);
    return false;
  }
  span_insert(before, span);
  if (span == arena.last) arena.newest = span->offset + span->bytes;
  *memory = arena.memory + span->offset;
  return true;
}

bool emu_arena_alloc(size_t bytes, bool reserve, void **memory) {
  *memory = NULL;
  os_mutex_lock(&arena.lock);
  const bool made = span_make(bytes > 0 ? bytes : 1, reserve, memory);
  arena_drop();
  os_mutex_unlock(&arena.lock);
  return made;
}

/* Locked. Searches from the end, because the newest span is usually freed first. */
static struct span *span_of(const void *memory) {
  uint64_t offset;
  if (!offset_in_arena(memory, &offset)) return NULL;
  struct span *span = arena.last;
  while (span != NULL && span->offset != offset) span = span->previous;
  return span;
}

bool emu_arena_free(void *memory) {
  os_mutex_lock(&arena.lock);
  struct span *span = span_of(memory);
  if (span != NULL) {
    span_close(span);
    span_remove(span);
    os_free(span);
    arena_drop();
  }
  os_mutex_unlock(&arena.lock);
  return span != NULL;
}

bool emu_arena_offset(const void *address, uint64_t *offset) {
  os_mutex_lock(&arena.lock);
  const bool inside = offset_in_arena(address, offset);
  os_mutex_unlock(&arena.lock);
  return inside;
}

ncclResult_t emu_arena_pin(struct share_ticket *ticket, uint64_t *base) {
  os_mutex_lock(&arena.lock);
  ncclResult_t result = arena_make() ? ncclSuccess : ncclSystemError;
  if (result == ncclSuccess && arena.memory == NULL)
    result = log_fail(ncclSystemError,
                      "emulated devices: no space for memory that other processes can map; raise `ulimit -v` "
                      "and `ulimit -f`");
  if (result == ncclSuccess) result = share_offer(arena.memory, ticket);
  if (result == ncclSuccess) {
    arena.pin_count += 1;
    *base = (uint64_t)(uintptr_t)arena.memory;
  }
  arena_drop();
  os_mutex_unlock(&arena.lock);
  return result;
}

void emu_arena_unpin(void) {
  os_mutex_lock(&arena.lock);
  if (arena.pin_count > 0) arena.pin_count -= 1;
  arena_drop();
  os_mutex_unlock(&arena.lock);
}
