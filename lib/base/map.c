/* map.c: linear probing from a multiplicative hash. */
#include "base/map.h"

#include "base/os.h"

#define MAP_CAPACITY_FIRST 8

static struct map_entry *map_place(const struct map *map, uint64_t key) {
  const uint32_t mask = map->capacity - 1;
  uint32_t i = (uint32_t)((key * UINT64_C(0x9e3779b97f4a7c15)) >> 40) & mask;
  while (map->entries[i].key != 0 && map->entries[i].key != key) i = (i + 1) & mask;
  return &map->entries[i];
}

void *map_find(const struct map *map, uint64_t key) {
  return map->capacity == 0 ? NULL : map_place(map, key)->value;
}

bool map_reserve(struct map *map) {
  if (2 * (map->count + 1) <= map->capacity) return true;
  struct map grown = {NULL, map->capacity == 0 ? MAP_CAPACITY_FIRST : 2 * map->capacity, map->count};
  grown.entries = (struct map_entry *)os_alloc(grown.capacity * sizeof *grown.entries);
  if (grown.entries == NULL) return false;
  for (uint32_t i = 0; i < map->capacity; i++)
    if (map->entries[i].key != 0) *map_place(&grown, map->entries[i].key) = map->entries[i];
  os_free(map->entries);
  *map = grown;
  return true;
}

void map_insert(struct map *map, uint64_t key, void *value) {
  struct map_entry *entry = map_place(map, key);
  entry->key = key;
  entry->value = value;
  map->count += 1;
}

void map_clear(struct map *map) {
  os_free(map->entries);
  map->entries = NULL;
  map->capacity = map->count = 0;
}

size_t map_bytes(const struct map *map) { return map->capacity * sizeof *map->entries; }
