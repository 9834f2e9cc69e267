/* handles.c: a table of addresses with open addressing. Readers may look into a table while it changes, or
 * after a larger one has replaced it, so tables are never freed: each is twice as large as the one before,
 * and all together are less than twice the last. */
#include "core/comm/handles.h"

#include <stdint.h>

#include "base/hash.h"
#include "base/os.h"

#define PLACES_FIRST 4096u
#define REMOVED UINTPTR_MAX /* a search goes on behind it */

struct handle_table {
  uint32_t capacity;  /* a power of two */
  uint32_t used;      /* places that are not 0; at most half */
  uintptr_t *handles; /* read and written atomically */
};

static uintptr_t first_handles[PLACES_FIRST];
static struct handle_table first = {PLACES_FIRST, 0, first_handles};
static struct handle_table *table = &first;  /* read atomically */
static os_mutex lock = OS_MUTEX_INITIALIZER; /* for changes */

static uint32_t place_of(const struct handle_table *in, uintptr_t handle) {
  return (uint32_t)hash_scramble((uint64_t)handle) & (in->capacity - 1);
}

static uint32_t place_after(const struct handle_table *in, uint32_t place, uint32_t steps) {
  return (place + steps) & (in->capacity - 1);
}

/* The handle's place, or NULL. A table always has free places, at which a search ends. */
static uintptr_t *place_find(const struct handle_table *in, uintptr_t handle) {
  for (uint32_t place = place_of(in, handle);; place = place_after(in, place, 1)) {
    const uintptr_t there = __atomic_load_n(&in->handles[place], __ATOMIC_ACQUIRE);
    if (there == handle) return &in->handles[place];
    if (there == 0) return NULL;
  }
}

static void place_take(struct handle_table *in, uintptr_t handle) {
  uint32_t place = place_of(in, handle);
  while (in->handles[place] != 0 && in->handles[place] != REMOVED) place = place_after(in, place, 1);
  in->used += in->handles[place] == 0;
  __atomic_store_n(&in->handles[place], handle, __ATOMIC_RELEASE);
}

/* Removed handles before a free place are behind the end of every search: they become free. */
static void place_drop(struct handle_table *in, uint32_t place) {
  __atomic_store_n(&in->handles[place], REMOVED, __ATOMIC_RELEASE);
  while (in->handles[place] == REMOVED && in->handles[place_after(in, place, 1)] == 0) {
    __atomic_store_n(&in->handles[place], 0, __ATOMIC_RELEASE);
    in->used--;
    place = place_after(in, place, in->capacity - 1);
  }
}

/* Locked: replaces the table by one of twice the size, without removed handles. */
static bool table_grow(void) {
  const struct handle_table *old = table;
  const uint32_t capacity = 2 * old->capacity;
  uint8_t *memory = (uint8_t *)os_pages_map(sizeof *old + capacity * sizeof *old->handles);
  if (memory == NULL) return false;
  struct handle_table *grown = (struct handle_table *)(void *)memory;
  *grown = (struct handle_table){capacity, 0, (uintptr_t *)(void *)(memory + sizeof *old)};
  for (uint32_t place = 0; place < old->capacity; place++)
    if (old->handles[place] != 0 && old->handles[place] != REMOVED) place_take(grown, old->handles[place]);
  __atomic_store_n(&table, grown, __ATOMIC_RELEASE);
  return true;
}

bool handles_add(const void *handle) {
  os_mutex_lock(&lock);
  const bool fits = 2 * table->used < table->capacity || table_grow();
  if (fits) place_take(table, (uintptr_t)handle);
  os_mutex_unlock(&lock);
  return fits;
}

void handles_remove(const void *handle) {
  os_mutex_lock(&lock);
  uintptr_t *place = place_find(table, (uintptr_t)handle);
  if (place != NULL) place_drop(table, (uint32_t)(place - table->handles));
  os_mutex_unlock(&lock);
}

bool handles_has(const void *handle) {
  const struct handle_table *now = __atomic_load_n(&table, __ATOMIC_ACQUIRE);
  const uintptr_t wanted = (uintptr_t)handle;
  return wanted != 0 && wanted != REMOVED && place_find(now, wanted) != NULL;
}

bool handles_claim(void *handle, bool (*claim)(void *handle, void *argument), void *argument) {
  os_mutex_lock(&lock);
  const bool claimed = handles_has(handle) && claim(handle, argument);
  os_mutex_unlock(&lock);
  return claimed;
}

static bool is_handle(uintptr_t there) { return there != 0 && there != REMOVED; }

uint32_t handles_count(void) {
  uint32_t count = 0;
  for (uint32_t place = 0; place < table->capacity; place++) count += is_handle(table->handles[place]);
  return count;
}

void handles_visit(void (*visit)(const void *handle, void *argument), void *argument) {
  for (uint32_t place = 0; place < table->capacity; place++)
    if (is_handle(table->handles[place])) visit((const void *)table->handles[place], argument);
}
