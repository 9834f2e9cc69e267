/* net_pair.h: both ends of a connection of a network (backends/net.h), driven by one thread: for the tests of
 * each network. Every wait is bounded; an error fails the program. */
#ifndef TUTTI_TESTS_NET_PAIR_H
#define TUTTI_TESTS_NET_PAIR_H

#include "backends/net.h"

struct net_pair {
  const struct net_ops *ops;
  void *listener, *send, *recv;
  void (*turn)(void); /* progresses a network that has no thread of its own; may be NULL */
};

/* Connects rank 0 to rank 1 of the communicator with this key. */
void net_pair_open(const struct net_ops *ops, uint32_t device, uint64_t comm_key, void (*turn)(void),
                   struct net_pair *pair);
void net_pair_close(struct net_pair *pair);

/* Sends messages of many sizes, several in flight at a time, grouped if the device supports it, and compares
 * every byte. `seed` draws sizes and contents. */
void net_pair_exercise(struct net_pair *pair, uint32_t device, uint64_t seed);

/* Sends one message; returns the error of a failed call; *got (may be NULL) is the size reported to the
 * receive. */
ncclResult_t net_pair_send_one(struct net_pair *pair, const void *from, size_t bytes, void *to,
                               size_t capacity, size_t *got);

#endif
