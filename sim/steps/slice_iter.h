/* slice_iter.h: the steps of all ranks' plans, one slice at a time, for code that computes their times or
 * writes them to files. A slice iterator is one lane's iterator: it yields what the library's executors would
 * do next (what the slice waits for, how many bytes it moves, what it posts) and knows neither time nor data.
 * A net has all lanes and the connection of each of their links: the k-th announcement on a connection is
 * what the k-th wait for data on it receives. Memory grows with ranks and channels, not with steps. */
#ifndef TUTTI_SIM_STEPS_WALK_H
#define TUTTI_SIM_STEPS_WALK_H

#include "core/plan/plan.h"
#include "schedule/algo.h"

#define SIM_NONE UINT32_MAX

/* One slice: it begins when each of `recv_links` has `fifo_steps` new announced steps, each of `send_links`
 * has as many free slots, and the previous slice has ended; then it moves `bytes` to each of `send_links`;
 * then it frees and announces. Bit i is link i of the work's recv_peer or send_peer. */
struct sim_slice {
  link_set recv_links, send_links;
  link_set frees, announces; /* the links on which it frees or announces slots at its end; others keep them
                                for the next step */
  uint32_t fifo_steps;       /* slots by which a link advances */
  uint32_t flags;            /* enum step_flag of its step */
  uint64_t bytes;            /* of data, not on the wire; a slice may have 0. With STEP_EACH of the longest
                                block: see sim_slice_link_bytes */
  const struct step *each;   /* with STEP_EACH: its step; else NULL */
  uint64_t begin, elements;  /* of the slice within its step */
  uint32_t wait_lane;        /* with STEP_AWAIT_LIST: number of the rank's list to wait for ... */
  uint64_t wait_steps;       /* ... and how many of its steps must have ended; 0 after the first slice */
  bool ends_step;            /* the last slice of its step */
};

/* The state of one lane. */
struct slice_iter {
  const struct work *work;
  struct algo_iter steps;
  struct step step;
  uint64_t slice_elements, slice_capacity;
  uint32_t slice_index, slice_count; /* of the current step */
};

/* `work` and `limits` are those of one plan; the work outlives the iterator. */
void slice_iter_begin(struct slice_iter *iter, const struct plan_limits *limits, const struct work *work);
/* False after the last slice. */
bool slice_iter_next(struct slice_iter *iter, struct sim_slice *slice);

/* Bytes that the slice moves over link `link`. */
uint64_t sim_slice_link_bytes(const struct sim_slice *slice, uint32_t link);

/* The multiple to which both ends round up a link's counter when the work begins. */
uint32_t slice_iter_round_steps(const struct work *work);

/* ---- all ranks ---- */

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

/* Number of slices of all lanes. Iterates over one lane of each kind of work. */
uint64_t sim_net_slices(const struct sim_net *net);

/* The lane of the rank that executes its list `number`, or SIM_NONE. */
uint32_t sim_net_list(const struct sim_net *net, uint32_t rank, uint32_t number);

#endif
