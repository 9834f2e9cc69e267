/* stream_handle.c: which addresses are live handles. An emulator should say "invalid resource handle" for
 * a stream that was destroyed, not crash in it; so every handle that a caller passes in is looked up
 * before it is followed. Chains of embedded links: nothing here allocates or fails. Guarded by the world's
 * lock. */
#include "backends/emu/cudart/stream_impl.h"

enum { BUCKET_BITS = 10 };
static struct emu_handle *buckets[1 << BUCKET_BITS];

static struct emu_handle **bucket_of(const void *pointer) {
  return &buckets[((uint64_t)(uintptr_t)pointer >> 4) * UINT64_C(0x9e3779b97f4a7c15) >> (64 - BUCKET_BITS)];
}

void emu_handle_insert(struct emu_handle *handle, enum emu_handle_kind kind) {
  struct emu_handle **bucket = bucket_of(handle);
  handle->kind = kind;
  handle->next = *bucket;
  *bucket = handle;
}

void emu_handle_remove(struct emu_handle *handle) {
  struct emu_handle **link = bucket_of(handle);
  while (*link != NULL && *link != handle) link = &(*link)->next;
  if (*link == NULL) return;
  *link = handle->next;
  handle->kind = HANDLE_NONE;
}

bool emu_handle_live(const void *pointer, enum emu_handle_kind kind) {
  const struct emu_handle *handle = *bucket_of(pointer);
  while (handle != NULL && handle != pointer) handle = handle->next;
  return handle != NULL && handle->kind == kind;
}
