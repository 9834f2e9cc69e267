/* map.h: a table from non-zero 64-bit keys to pointers: open addressing, at most half full, never shrinks.
 * Entries are not removed one by one. Not thread safe; the values are the caller's. */
#ifndef TUTTI_BASE_MAP_H
#define TUTTI_BASE_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct map_entry {
  uint64_t key; /* 0 = free */
  void *value;
};

/* An all-zero map is empty. To iterate, visit the entries[0..capacity) whose key is not 0. */
struct map {
  struct map_entry *entries;
  uint32_t capacity, count; /* capacity is a power of two, or 0 */
};

void *map_find(const struct map *map, uint64_t key); /* NULL if there is none */
/* Makes space for one more; false if memory is out, and the map is unchanged. */
bool map_reserve(struct map *map);
/* Adds a key that the map does not have, after map_reserve(). */
void map_insert(struct map *map, uint64_t key, void *value);
void map_clear(struct map *map);
size_t map_bytes(const struct map *map);

#endif
