/* verbs_fake.h: verbs in one process, for tests of who uses them: devices whose queue pairs reach each other.
 * Time is counted in looks at completion queues; what a seed decides, it decides for each queue pair and work
 * request by itself. Requests of one queue pair are carried out and completed in order, as reliable
 * connections promise, and nothing else is: writes become visible in pieces, word by word upwards, queue
 * pairs overtake each other, acknowledgements come late, packets are lost and sent again. Keys, bounds,
 * depths and states are checked as devices do. Threads may share it. */
#ifndef TUTTI_TESTS_VERBS_FAKE_H
#define TUTTI_TESTS_VERBS_FAKE_H

#include "backends/ibv/verbs.h"

enum fake_verbs_fault {
  VERBS_SOUND,
  VERBS_LOSES, /* every tenth packet, and acknowledgements too */
  VERBS_CUT,   /* the link carries nothing any more */
  VERBS_CUT_SHORTLY,
  VERBS_PORT_DOWN,    /* the same, and the port says so */
  VERBS_PORT_FLAPS,   /* comes back before retries are used up */
  VERBS_PORT_RETURNS, /* comes back after that */
  VERBS_QP_FATAL,     /* a queue pair stops, with an event */
  VERBS_QP_STOPS,     /* without one */
  VERBS_UNHEARD,      /* a queue pair's requests are carried out, and never acknowledged: it gives up */
  VERBS_ACCESS,       /* the other end refuses access */
  VERBS_DEVICE_FATAL,
  VERBS_FAULTS
};

struct fake_verbs_options {
  uint64_t seed;
  uint32_t devices, ports; /* of each device: at most 4, 2 */
  bool infiniband, one_nic;
  bool no_route; /* nothing is ever answered */
  uint32_t
      makers; /* options of the devices' maker (struct ibv_ece); each device lacks its own number's bit */
  uint32_t delay_most; /* of a request and of its acknowledgement */
  uint32_t not_ready;  /* percent of notifications that find the receiver not ready, at first */
  enum fake_verbs_fault fault;
  uint64_t fault_at; /* the work request that it happens to, from 1, all queue pairs together */
  uint32_t flaps;   /* so often some device's port goes down and comes back, now and then, beside the fault */
  uint32_t forgets; /* percent of packets lost whose queue pairs forget that they wait: nothing ever comes of
                       them, as of Soft-RoCE's at times */
  /* What is registered to be read from afar is memory of a GPU: what is written there is seen when a read of
   * it has come behind, and no sooner. */
  bool gpus;
};
/* Nothing may be open. */
void fake_verbs_reset(const struct fake_verbs_options *options);
const struct verbs *fake_verbs(void);
/* As it was made ready, and what its maker's options are. */
const struct ibv_qp_attr *fake_verbs_attributes(const struct ibv_qp *qp, uint32_t *makers);

struct fake_verbs_stats {
  uint64_t requests, notifications, flushes, retries, forgotten, most_qps, memories_made;
  uint32_t contexts, pds, cqs, qps, memories; /* that are there now */
  bool struck;                                /* the fault has happened */
};
struct fake_verbs_stats fake_verbs_stats(void);

#endif
