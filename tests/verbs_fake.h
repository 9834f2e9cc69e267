/* verbs_fake.h: verbs in one process, or in several of one host, for tests of code that uses verbs: devices
 * whose queue pairs reach each other. Time is counted in polls of completion queues; a seed decides
 * separately for each queue pair and work request. Requests of one queue pair are executed and completed in
 * order, as reliable connections guarantee, and nothing else is: writes become visible in pieces, word by
 * word upwards, queue pairs overtake each other, acknowledgements come late, packets are lost and resent.
 * Keys, bounds, depths and states are checked as on real devices. Thread-safe. */
#ifndef TUTTI_TESTS_VERBS_FAKE_H
#define TUTTI_TESTS_VERBS_FAKE_H

#include "backends/ibv/verbs.h"

enum fake_verbs_fault {
  VERBS_SOUND,
  VERBS_LOSES, /* every tenth packet, acknowledgements too */
  VERBS_CUT,   /* the link carries nothing any more */
  VERBS_CUT_SHORTLY,
  VERBS_PORT_DOWN,    /* the same, and the port reports it */
  VERBS_PORT_FLAPS,   /* up again before retries are exhausted */
  VERBS_PORT_RETURNS, /* up again after that */
  VERBS_QP_FATAL,     /* a queue pair stops, with an event */
  VERBS_QP_STOPS,     /* without an event */
  VERBS_UNHEARD,      /* a queue pair's requests are executed but never acknowledged: it gives up */
  VERBS_ACCESS,       /* the other end denies access */
  VERBS_DEVICE_FATAL,
  VERBS_FAULTS
};

struct fake_verbs_options {
  uint64_t seed;
  uint32_t devices, ports; /* of each device: at most 4, 2 */
  bool infiniband, one_nic;
  bool no_route;       /* no packet is ever acknowledged */
  uint32_t makers;     /* vendor options (struct ibv_ece); each device lacks the bit of its own number */
  uint32_t delay_most; /* of a request and of its acknowledgement */
  uint32_t not_ready;  /* percent of notifications that find the receiver not ready, at first */
  enum fake_verbs_fault fault;
  uint64_t fault_at; /* the work request with the fault, counted from 1, all queue pairs together */
  uint32_t flaps;    /* how often some device's port goes down and up, now and then, besides the fault */
  uint32_t forgets;  /* percent of lost packets whose queue pairs lose their timer: they are never resent, as
                        in Soft-RoCE at times */
  /* Memory registered for remote reads is GPU memory: data written there is visible only after a later read
   * of it. */
  bool gpus;
  bool reads_nothing; /* such reads make nothing visible */
  bool no_reads;      /* any read ends the program */
};
/* Nothing may be open. */
void fake_verbs_reset(const struct fake_verbs_options *options);
const struct verbs *fake_verbs(void);
/* The devices of all processes that name this file are together, and this process has `count` of them. They
 * step by themselves. The first process's options count. Once in a process. */
void fake_verbs_share(const char *file, const struct fake_verbs_options *options, uint32_t first,
                      uint32_t count);
/* No queue pair is destroyed until they are let go: the call waits, as Soft-RoCE's does for packets. */
void fake_verbs_hold_destroys(bool hold);
/* The attributes with which it was made ready, and its vendor options. */
const struct ibv_qp_attr *fake_verbs_attributes(const struct ibv_qp *qp, uint32_t *makers);

struct fake_verbs_stats {
  uint64_t requests, notifications, flushes, retries, forgotten, most_qps, memories_made;
  uint32_t contexts, pds, cqs, qps, memories; /* current numbers */
  bool struck;                                /* the fault has happened */
};
struct fake_verbs_stats fake_verbs_stats(void);

#endif
