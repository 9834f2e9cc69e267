/* connect.h: connections are made when a plan first needs them. Each communicator remembers which it has, so
 * that the second plan over the same links costs a look-up each. Memory grows with the peers in use, not with
 * the number of ranks. */
#ifndef TUTTI_CORE_CONNECT_H
#define TUTTI_CORE_CONNECT_H

#include "base/err.h"
#include "schedule/plan.h"

struct ncclComm;

/* Open-addressed: one entry for each (peer, direction, connection index, protocol), a bit for each
 * channel. */
struct connect_entry {
  uint64_t key; /* 0 = free */
  uint64_t channel_mask;
};

struct connect_table {
  struct connect_entry *entries;
  uint32_t capacity, count; /* capacity is 0 or a power of two */
};

/* Makes every connection that the plan's works name and that is not there yet, and binds its scratch. */
ncclResult_t connect_plan(struct ncclComm *comm, struct plan *plan);
void connect_table_free(struct connect_table *table);

#endif
