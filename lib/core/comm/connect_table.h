/* connect_table.h: which connections a communicator has made, so that a second plan over the same links costs
 * one look-up per link. Memory grows with the peers in use, not with the number of ranks. */
#ifndef TUTTI_CORE_CONNECT_TABLE_H
#define TUTTI_CORE_CONNECT_TABLE_H

#include <stdbool.h>
#include <stdint.h>

/* Open-addressed: one entry for each (peer, direction, connection index, set of slots as work_slots() says),
 * a bit for each channel. */
struct connect_entry {
  uint64_t key; /* 0 = free */
  uint64_t channel_mask;
};

struct connect_table {
  struct connect_entry *entries;
  uint32_t capacity, count; /* capacity is 0 or a power of two */
};

/* A link of the rank: the key of its entry and the bit of its channel. */
struct connect_link {
  uint64_t key, bit;
};
struct connect_link connect_link_of(uint32_t peer, bool sending, uint32_t conn_index, uint8_t slots,
                                    uint32_t channel_index);

bool connect_table_has(const struct connect_table *table, struct connect_link link);
/* Makes space for one more link; false if memory is out, and the table is unchanged. */
bool connect_table_reserve(struct connect_table *table);
/* Adds a link after connect_table_reserve(). */
void connect_table_add(struct connect_table *table, struct connect_link link);
void connect_table_free(struct connect_table *table);

#endif
