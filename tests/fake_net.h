/* fake_net.h: a network within the process, for tests of code that uses one. Messages of a connection arrive
 * in order, in pieces, and late: every call may report "not now", as a seed decides, a bounded number of
 * times in a row. On request the k-th call fails, or the k-th message is lost, repeated or corrupted. Its own
 * lock is its only thread safety; at most FAKE_LINKS_MAX connections at once. */
#ifndef TUTTI_TESTS_FAKE_NET_H
#define TUTTI_TESTS_FAKE_NET_H

#include "backends/net.h"

#define FAKE_LINKS_MAX 4096

enum fake_fault { FAKE_SOUND, FAKE_LOSES, FAKE_REPEATS, FAKE_DAMAGES };

struct fake_options {
  uint64_t seed;
  uint32_t refuse_percent; /* of calls that report "not now" */
  uint32_t piece_bytes;    /* that one test() moves at most; 0: all */
  uint64_t fail_call;      /* counted from 1; 0: none */
  enum fake_fault fault;
  uint64_t fault_message; /* counted from 1, of all connections together */
};
/* Resets all counts; no connection may be open. */
void fake_net_reset(const struct fake_options *options);
const struct net_ops *fake_net_ops(void);

struct fake_stats {
  uint64_t calls, messages, connections_open, listeners_open, registrations, requests;
};
struct fake_stats fake_net_stats(void);

#endif
