/* fake_net.h: a network within the process, for tests of what drives one. Messages of a connection arrive in
 * order, in pieces, and late: every call may say "not now", as a seed decides, a bounded number of times in a
 * row. On demand the k-th call fails, or the k-th message is lost, repeated or damaged. Not thread safe but
 * for its own lock; no more connections than FAKE_LINKS_MAX at once. */
#ifndef TUTTI_TESTS_FAKE_NET_H
#define TUTTI_TESTS_FAKE_NET_H

#include "backends/net.h"

#define FAKE_LINKS_MAX 4096

enum fake_fault { FAKE_SOUND, FAKE_LOSES, FAKE_REPEATS, FAKE_DAMAGES };

struct fake_options {
  uint64_t seed;
  uint32_t refuse_percent; /* of calls that say "not now" */
  uint32_t piece_bytes;    /* that a test() moves at most; 0: all */
  uint64_t fail_call;      /* counted from 1; 0: none */
  enum fake_fault fault;
  uint64_t fault_message; /* counted from 1, of all connections together */
};
/* Forgets all counts; no connection may be open. */
void fake_net_reset(const struct fake_options *options);
const struct net_ops *fake_net_ops(void);

struct fake_stats {
  uint64_t calls, messages, connections_open, listeners_open, registrations, requests;
};
struct fake_stats fake_net_stats(void);

#endif
