/* net_pair.h: both ends of a connection of a network (backends/net.h), driven by one thread: for the tests
 * of each network. Every wait is bounded; what fails is the program's failure. */
#ifndef TUTTI_TESTS_NET_PAIR_H
#define TUTTI_TESTS_NET_PAIR_H

#include "backends/net.h"

struct net_pair {
  const struct net_ops *ops;
  void *listener, *send, *recv;
  void (*turn)(void); /* makes progress where the network has none of its own; may be NULL */
};

/* Connects rank 0 to rank 1 of the communicator of this key. */
void net_pair_open(const struct net_ops *ops, uint32_t device, uint64_t comm_key, void (*turn)(void),
                   struct net_pair *pair);
void net_pair_close(struct net_pair *pair);

/* Sends messages of many sizes, several under way at a time, grouped where the device takes that, and
 * compares every byte. `seed` draws sizes and contents. */
void net_pair_exercise(struct net_pair *pair, uint32_t device, uint64_t seed);

/* One message, or what a call failed with; *got (may be NULL) is what the receive was told. */
ncclResult_t net_pair_send_one(struct net_pair *pair, const void *from, size_t bytes, void *to,
                               size_t capacity, size_t *got);

#endif
