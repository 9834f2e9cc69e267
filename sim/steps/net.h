/* net.h: the lanes of all ranks' plans and the connection of each of their links, for code that computes the
 * times of their steps or writes them to files: the k-th post on a connection is what the k-th wait for data
 * on it receives. Memory grows with ranks and channels, not with steps. */
#ifndef TUTTI_SIM_STEPS_NET_H
#define TUTTI_SIM_STEPS_NET_H

#include "core/plan/plan.h"

#define SIM_NONE UINT32_MAX

/* One rank on one channel: its batches run one after another, the lanes of a batch concurrently. */
struct sim_block {
  uint32_t rank, channel, track;   /* track: of the engine's supply (engine.h); else 0 */
  uint32_t first_lane, lane_count; /* batch after batch */
};

struct sim_lane {
  const struct work *work;
  uint32_t rank, block, batch; /* batch: its index on the block, from 0 */
  uint32_t first_link;         /* in sim_net.links: recv_count connections, then send_count */
};

/* One direction between two ranks. */
struct sim_conn {
  uint32_t sender, receiver; /* ranks */
  uint16_t channel, index;   /* index: enum work_conn */
  uint8_t proto;             /* of the first work that sends over it */
  bool sends;                /* some work does */
  bool shows;                /* the receivers of such a work may read its input in place */
};

struct sim_net {
  uint32_t rank_count, lane_count, block_count, conn_count, link_count;
  uint32_t first_rank, plan_count; /* the ranks that have plans; all of them except in sim_net_make_rank() */
  const struct plan *plans;        /* of these ranks; outlive the net */
  struct sim_block *blocks;
  struct sim_lane *lanes;
  struct sim_conn *conns; /* in the order in which lanes name them */
  uint32_t *links;        /* numbers of connections */
};

/* On success fills *net (free with sim_net_free). ncclInvalidUsage for works that no executor supports, with
 * rank and channel; ncclSystemError when memory is out. */
ncclResult_t sim_net_make(const struct plan *plans, uint32_t rank_count, struct sim_net *net);
/* The same for one rank of `rank_count`: its lanes, and the connections that these name. */
ncclResult_t sim_net_make_rank(const struct plan *plan, uint32_t rank, uint32_t rank_count,
                               struct sim_net *net);
void sim_net_free(struct sim_net *net);

/* The lane of the rank that executes its list `number`, or SIM_NONE. */
uint32_t sim_net_list(const struct sim_net *net, uint32_t rank, uint32_t number);

#endif
