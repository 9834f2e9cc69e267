/* memory.c: emulated device, managed and pinned memory: zeroed pages, which other processes can map
 * (arena.h). A table by address serves queries of pointers, checks that copies stay within their allocation,
 * and reports double frees. A freed allocation is never found again. The table has a lock of its own, so
 * these functions may be called with or without the world's lock. They do not know streams: the caller waits
 * before it frees. */
#include "backends/emu/cudart/memory_impl.h"

#include <string.h>

#include "backends/emu/arena.h"
#include "base/array.h"
#include "base/log.h"
#include "base/os.h"

enum { ERROR_INVALID_VALUE = 1, ERROR_MEMORY = 2, ERROR_REGISTERED = 712, ERROR_NOT_REGISTERED = 713 };

struct record {
  struct emu_allocation allocation;
  enum emu_memory_origin origin;
  unsigned flags;
};

static struct {
  os_mutex lock;
  struct record *records; /* sorted by base, never overlapping */
  size_t count, capacity;
  uint64_t serial; /* of the newest */
  uint64_t *used;  /* bytes, by device index */
  uint32_t used_count;
} memory = {.lock = OS_MUTEX_INITIALIZER};

/* Memory that was freed recently, newest last, to tell it from memory that was never allocated here. */
enum { FREED_COUNT = 64 };
static struct emu_allocation freed[FREED_COUNT];
static uint32_t freed_next;

static bool recently_freed(const void *pointer) {
  for (uint32_t i = 0; i < FREED_COUNT; i++) {
    const uintptr_t base = (uintptr_t)freed[i].base, at = (uintptr_t)pointer;
    if (freed[i].base != NULL && (at == base || (at > base && at - base < freed[i].bytes))) return true;
  }
  return false;
}

static uint64_t generation = 1; /* atomic */

uint64_t emu_memory_generation(void) { return __atomic_load_n(&generation, __ATOMIC_ACQUIRE); }

static void freed_note(const struct emu_allocation *allocation) {
  __atomic_add_fetch(&generation, 1, __ATOMIC_ACQ_REL);
  freed[freed_next++ % FREED_COUNT] = *allocation;
}

/* Index of the first record whose base is above the address. */
static size_t record_above(const void *pointer) {
  size_t low = 0, high = memory.count;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if ((uintptr_t)memory.records[middle].allocation.base <= (uintptr_t)pointer) low = middle + 1;
    else high = middle;
  }
  return low;
}

static struct record *record_of(const void *pointer) {
  size_t above = record_above(pointer);
  if (above == 0) return NULL;
  struct record *record = &memory.records[above - 1];
  size_t offset = (size_t)((uintptr_t)pointer - (uintptr_t)record->allocation.base);
  return offset < record->allocation.bytes ? record : NULL;
}

static bool on_device(const struct record *record) { return record->allocation.kind != EMU_MEMORY_HOST; }

static bool table_reserve(uint32_t device_index) {
  if (!array_grow_long(&memory.records, &memory.capacity, memory.count + 1, sizeof *memory.records))
    return false;
  if (device_index < memory.used_count) return true;
  if (!array_resize(&memory.used, (uint64_t)device_index + 1, sizeof *memory.used)) return false;
  for (uint32_t i = memory.used_count; i <= device_index; i++) memory.used[i] = 0;
  memory.used_count = device_index + 1;
  return true;
}

/* Frees the table's memory if it is empty. */
static void table_trim(void) {
  if (memory.count != 0) return;
  os_free(memory.records);
  memory.records = NULL;
  memory.capacity = 0;
}

static void record_insert(const struct record *record) {
  size_t place = record_above(record->allocation.base);
  memmove(&memory.records[place + 1], &memory.records[place], (memory.count - place) * sizeof *record);
  memory.records[place] = *record;
  memory.records[place].allocation.serial = ++memory.serial;
  if (record->origin != EMU_ORIGIN_INTERNAL) memory.records[place].allocation.call = emu_race_call;
  memory.count++;
  if (on_device(record)) memory.used[record->allocation.device_index] += record->allocation.bytes;
}

static void record_remove(struct record *record) {
  size_t place = (size_t)(record - memory.records);
  if (on_device(record)) memory.used[record->allocation.device_index] -= record->allocation.bytes;
  memory.count--;
  memmove(record, record + 1, (memory.count - place) * sizeof *record);
  table_trim();
}

static int out_of_memory(uint32_t device_index, size_t bytes) {
  log_warn(
      "emulated device %u: cannot allocate %zu bytes, %llu of %llu are in use; free something, or use "
      "smaller buffers",
      device_index, bytes,
      (unsigned long long)(device_index < memory.used_count ? memory.used[device_index] : 0),
      (unsigned long long)EMU_DEVICE_MEMORY_BYTES);
  return ERROR_MEMORY;
}

/* From the arena if possible, so that other processes can map it. */
static void *pages_take(size_t bytes) {
  void *pages;
  emu_kept_sweep();
  if (!emu_arena_alloc(bytes, false, &pages)) return NULL;
  return pages != NULL ? pages : os_pages_map(bytes);
}

static void pages_give(void *pages, size_t bytes) {
  emu_kept_sweep();
  if (!emu_arena_free(pages)) os_pages_unmap(pages, bytes);
}

static int create_locked(const struct record *model, void **pointer) {
  uint32_t device_index = model->allocation.device_index;
  size_t bytes = model->allocation.bytes;
  if (!table_reserve(device_index)) return out_of_memory(device_index, bytes);
  if (on_device(model) && memory.used[device_index] + bytes > EMU_DEVICE_MEMORY_BYTES) {
    return out_of_memory(device_index, bytes);
  }
  struct record record = *model;
  record.allocation.base = pages_take(bytes);
  if (record.allocation.base == NULL) {
    table_trim();
    return out_of_memory(device_index, bytes);
  }
  record_insert(&record);
  *pointer = record.allocation.base;
  return 0;
}

int emu_memory_create(uint32_t device_index, size_t bytes, enum emu_memory_kind kind,
                      enum emu_memory_origin origin, unsigned flags, void **pointer) {
  struct record model = {{.bytes = bytes, .device_index = device_index, .kind = (int)kind}, origin, flags};
  if (bytes == 0 || bytes > EMU_DEVICE_MEMORY_BYTES) {
    if (bytes != 0) return out_of_memory(device_index, bytes);
    *pointer = NULL;
    return 0;
  }
  os_mutex_lock(&memory.lock);
  int error = create_locked(&model, pointer);
  os_mutex_unlock(&memory.lock);
  return error;
}

static const char *origin_call(enum emu_memory_origin origin) {
  switch (origin) {
    case EMU_ORIGIN_DEVICE: return "cudaFree";
    case EMU_ORIGIN_HOST: return "cudaFreeHost";
    case EMU_ORIGIN_REGISTERED: return "cudaHostUnregister";
    case EMU_ORIGIN_INTERNAL: break;
  }
  return "ncclMemFree";
}

/* The record of a pointer to free; NULL, with a warning that says what the pointer is instead, if it is
 * wrong. */
static struct record *record_to_free(const void *pointer, enum emu_memory_origin origin) {
  struct record *record = record_of(pointer);
  if (record != NULL && record->allocation.base == pointer && record->origin == origin) return record;
  if (record == NULL) {
    log_warn("%s of %p, which is %s; free each allocation once, with the pointer that the allocation gave",
             origin_call(origin), pointer, recently_freed(pointer) ? "freed already" : "no live allocation");
  } else if (record->allocation.base != pointer) {
    log_warn("%s of %p, which lies %zu bytes inside the allocation of %zu bytes at %p; free the start of it",
             origin_call(origin), pointer, (size_t)((uintptr_t)pointer - (uintptr_t)record->allocation.base),
             record->allocation.bytes, record->allocation.base);
  } else {
    log_warn("%s of %p, which belongs to %s", origin_call(origin), pointer, origin_call(record->origin));
  }
  return NULL;
}

static int wrong_pointer(enum emu_memory_origin origin) {
  return origin == EMU_ORIGIN_REGISTERED ? ERROR_NOT_REGISTERED : ERROR_INVALID_VALUE;
}

int emu_memory_check(const void *pointer, enum emu_memory_origin origin) {
  os_mutex_lock(&memory.lock);
  bool found = record_to_free(pointer, origin) != NULL;
  os_mutex_unlock(&memory.lock);
  return found ? 0 : wrong_pointer(origin);
}

int emu_memory_release(void *pointer, enum emu_memory_origin origin) {
  os_mutex_lock(&memory.lock);
  struct record *record = record_to_free(pointer, origin);
  size_t bytes = record == NULL ? 0 : record->allocation.bytes;
  if (record != NULL) {
    freed_note(&record->allocation);
    record_remove(record);
  }
  os_mutex_unlock(&memory.lock);
  if (record == NULL) return wrong_pointer(origin);
  if (origin != EMU_ORIGIN_REGISTERED) pages_give(pointer, bytes);
  return 0;
}

int emu_memory_alloc(uint32_t device_index, size_t bytes, void **pointer) {
  return emu_memory_create(device_index, bytes == 0 ? 1 : bytes, EMU_MEMORY_DEVICE, EMU_ORIGIN_INTERNAL, 0,
                           pointer);
}

int emu_memory_free(void *pointer) {
  return pointer == NULL ? 0 : emu_memory_release(pointer, EMU_ORIGIN_INTERNAL);
}

static int register_locked(const struct record *record) {
  const char *base = (const char *)record->allocation.base;
  size_t above = record_above(base + record->allocation.bytes - 1);
  if (above != 0) {
    const struct emu_allocation *below = &memory.records[above - 1].allocation;
    if ((const char *)below->base + below->bytes > base) return ERROR_REGISTERED;
  }
  if (!table_reserve(record->allocation.device_index)) return ERROR_MEMORY;
  record_insert(record);
  return 0;
}

int emu_memory_register(void *pointer, size_t bytes, uint32_t device_index, unsigned flags) {
  if (pointer == NULL || bytes == 0) return ERROR_INVALID_VALUE;
  struct record record = {
      {.base = pointer, .bytes = bytes, .device_index = device_index, .kind = EMU_MEMORY_HOST},
      EMU_ORIGIN_REGISTERED,
      flags};
  os_mutex_lock(&memory.lock);
  int error = register_locked(&record);
  os_mutex_unlock(&memory.lock);
  return error;
}

bool emu_memory_find(const void *pointer, struct emu_allocation *allocation) {
  os_mutex_lock(&memory.lock);
  const struct record *record = record_of(pointer);
  if (record != NULL) *allocation = record->allocation;
  os_mutex_unlock(&memory.lock);
  return record != NULL;
}

bool emu_memory_was_freed(const void *pointer) {
  os_mutex_lock(&memory.lock);
  const bool was = recently_freed(pointer);
  os_mutex_unlock(&memory.lock);
  return was;
}

int emu_memory_flags(const void *pointer, unsigned *flags) {
  os_mutex_lock(&memory.lock);
  const struct record *record = record_of(pointer);
  bool found = record != NULL && record->allocation.kind == EMU_MEMORY_HOST;
  if (found) *flags = record->flags;
  os_mutex_unlock(&memory.lock);
  return found ? 0 : ERROR_INVALID_VALUE;
}

uint64_t emu_memory_used(uint32_t device_index) {
  os_mutex_lock(&memory.lock);
  uint64_t bytes = device_index < memory.used_count ? memory.used[device_index] : 0;
  os_mutex_unlock(&memory.lock);
  return bytes;
}

/* The address may be the host's by now. */
static int memory_check_gone(const void *pointer, size_t bytes, const char *what) {
  uint64_t offset;
  if (!emu_memory_was_freed(pointer)) return 0;
  if (!emu_arena_offset(pointer, &offset) && os_page_is_mapped(pointer)) return 0;
  log_urgent("%s of %zu bytes at %p: that memory was freed; free it when all that uses it has ended", what,
             bytes, pointer);
  return ERROR_INVALID_VALUE;
}

int emu_memory_bounds(const void *pointer, size_t bytes, const char *what) {
  struct emu_allocation allocation;
  if (bytes == 0) return 0;
  if (!emu_memory_find(pointer, &allocation)) return memory_check_gone(pointer, bytes, what);
  size_t left = (size_t)((uintptr_t)allocation.base + allocation.bytes - (uintptr_t)pointer);
  if (bytes <= left) return 0;
  log_warn(
      "%s of %zu bytes at %p runs %zu bytes past the end of the allocation of %zu bytes at %p on device %u; "
      "check the size",
      what, bytes, pointer, bytes - left, allocation.bytes, allocation.base, allocation.device_index);
  return ERROR_INVALID_VALUE;
}

static bool forked;

void emu_memory_forked(void) {
  for (size_t i = 0; i < memory.count; i++) forked |= memory.records[i].origin != EMU_ORIGIN_INTERNAL;
}

bool emu_memory_was_forked(void) { return forked; }

void emu_memory_reset(uint32_t device_index) {
  os_mutex_lock(&memory.lock);
  for (size_t i = memory.count; i-- > 0;) {
    struct record *record = &memory.records[i];
    if (record->allocation.device_index != device_index || record->origin == EMU_ORIGIN_INTERNAL) continue;
    if (record->origin != EMU_ORIGIN_REGISTERED)
      pages_give(record->allocation.base, record->allocation.bytes);
    freed_note(&record->allocation);
    record_remove(record);
    if (memory.count == 0) break;
  }
  os_mutex_unlock(&memory.lock);
}
