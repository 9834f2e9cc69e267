/* connect_table.c: an open-addressed hash table, at most half full. If it cannot grow, it stays unchanged. */
#include "core/comm/connect_table.h"

#include "base/os.h"

#define CONNECT_CAPACITY_FIRST 16

struct connect_link connect_link_of(uint32_t peer, bool sending, uint32_t conn_index, uint8_t slots,
                                    uint32_t channel_index) {
  const uint64_t key = ((((uint64_t)peer * 2 + sending) * 4 + conn_index) * 4 + slots) + 1;
  return (struct connect_link){key, 1ull << channel_index};
}

/* The entry of the key, or the free entry for it. The table is never full. */
static struct connect_entry *connect_slot(const struct connect_table *table, uint64_t key) {
  uint32_t index = (uint32_t)((key * 0x9e3779b97f4a7c15ull) >> 32) & (table->capacity - 1);
  while (table->entries[index].key != 0 && table->entries[index].key != key) {
    index = (index + 1) & (table->capacity - 1);
  }
  return &table->entries[index];
}

bool connect_table_has(const struct connect_table *table, struct connect_link link) {
  if (table->capacity == 0) return false;
  const struct connect_entry *entry = connect_slot(table, link.key);
  return entry->key == link.key && (entry->channel_mask & link.bit) != 0;
}

bool connect_table_reserve(struct connect_table *table) {
  struct connect_table grown = {NULL, table->capacity ? 2 * table->capacity : CONNECT_CAPACITY_FIRST,
                                table->count};
  if (table->count * 2 < table->capacity) return true;
  grown.entries = (struct connect_entry *)os_alloc(grown.capacity * sizeof *grown.entries);
  if (!grown.entries) return false;
  for (uint32_t i = 0; i < table->capacity; i++) {
    if (table->entries[i].key != 0) *connect_slot(&grown, table->entries[i].key) = table->entries[i];
  }
  os_free(table->entries);
  *table = grown;
  return true;
}

void connect_table_add(struct connect_table *table, struct connect_link link) {
  struct connect_entry *entry = connect_slot(table, link.key);
  if (entry->key == 0) table->count += 1;
  entry->key = link.key;
  entry->channel_mask |= link.bit;
}

void connect_table_free(struct connect_table *table) {
  os_free(table->entries);
  table->entries = NULL;
  table->capacity = table->count = 0;
}
