/* recent.h: the last few of many things, by hash, to find out which ones repeat. */
#ifndef TUTTI_BASE_RECENT_H
#define TUTTI_BASE_RECENT_H

#include <stdbool.h>
#include <stdint.h>

#define RECENT_MAX 16u

struct recent {
  uint64_t hashes[RECENT_MAX]; /* 0: none */
  uint32_t next;               /* index that the next new one replaces */
};

/* Whether it is one of the last RECENT_MAX. If it is not, it replaces the oldest. */
static inline bool recent_has(struct recent *recent, uint64_t hash) {
  for (uint32_t i = 0; i < RECENT_MAX; i++)
    if (recent->hashes[i] == hash) return true;
  recent->hashes[recent->next] = hash;
  recent->next = (recent->next + 1) % RECENT_MAX;
  return false;
}

#endif
