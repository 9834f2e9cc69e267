/* slice_iter.h: the steps of all ranks' plans, one slice at a time, for whoever wants to time them or to
 * write them down. A slice iterator is one lane's iterator and nothing else: it yields what the library's
 * executors would do next (whom the slice waits for, how many bytes it moves, what it posts) and knows
 * neither time nor data. A net says which lanes there are and which connection each of their links is: the
 * k-th announcement on a connection is what the k-th wait for data on it takes. Memory grows with ranks and
 * channels, never with steps. */
#ifndef TUTTI_SIM_STEPS_WALK_H
#define TUTTI_SIM_STEPS_WALK_H

#include "core/plan/plan.h"
#include "schedule/algo.h"

#define SIM_NONE UINT32_MAX

/* One slice: it begins when each of `recv_links` has `fifo_steps` steps announced that it has not taken, each
 * of `send_links` as many free slots, and the slice before it has ended; then it moves `bytes` to each of
 * `send_links`; then it frees and announces. Bit i is link i of the work's recv_peer or send_peer. */
struct sim_slice {
  uint32_t recv_links, send_links;
  uint32_t frees, announces; /* of those, where the slots pass on at its end; others stay for the next step */
  uint32_t fifo_steps;       /* slots that a link moves on */
  uint32_t flags;            /* enum step_flag of its step */
  uint64_t bytes;            /* of data, not of wire; 0 is a slice like any other */
  uint32_t wait_lane;        /* with STEP_AWAIT_LIST: number of the rank's list that is waited for ... */
  uint64_t wait_steps;       /* ... and how many steps it must have ended; 0 behind the first slice */
  bool ends_step;            /* the last slice of its step */
};

/* One lane on its way. */
struct slice_iter {
  const struct work *work;
  struct algo_iter steps;
  struct step step;
  uint64_t slice_elements, slice_capacity;
  uint32_t slice_index, slice_count; /* of the current step */
};

/* `work` and `limits` are those of one plan; the work outlives the iterator. */
void slice_iter_begin(struct slice_iter *iter, const struct plan_limits *limits, const struct work *work);
/* False behind the last slice. */
bool slice_iter_next(struct slice_iter *iter, struct sim_slice *slice);

/* To what both ends round a link's counter up when the work begins. */
uint32_t slice_iter_round_steps(const struct work *work);

/* ---- all ranks ---- */

/* One rank on one channel: its batches follow one another, the lanes of a batch run side by side. */
struct sim_block {
  uint32_t rank, channel, track;   /* track: of what feeds the engine (engine.h); 0 else */
  uint32_t first_lane, lane_count; /* batch after batch */
};

struct sim_lane {
  const struct work *work;
  uint32_t rank, block, batch; /* batch: its turn on the block, from 0 */
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
  uint32_t first_rank, plan_count; /* the ranks that have plans; all of them but in sim_net_make_rank() */
  const struct plan *plans;        /* of these ranks; outlive the net */
  struct sim_block *blocks;
  struct sim_lane *lanes;
  struct sim_conn *conns; /* in the order in which lanes name them */
  uint32_t *links;        /* numbers of connections */
};

/* On success fills *net (free with sim_net_free). ncclInvalidUsage for works that no executor takes, with
 * rank and channel; ncclSystemError when memory is out. */
ncclResult_t sim_net_make(const struct plan *plans, uint32_t rank_count, struct sim_net *net);
/* The same of one rank of `rank_count`: its lanes, and the connections that these name. */
ncclResult_t sim_net_make_rank(const struct plan *plan, uint32_t rank, uint32_t rank_count,
                               struct sim_net *net);
void sim_net_free(struct sim_net *net);

/* Slices of all lanes. Iterates over one lane of each kind of work. */
uint64_t sim_net_slices(const struct sim_net *net);

/* The lane of the rank that executes its list `number`, or SIM_NONE. */
uint32_t sim_net_list(const struct sim_net *net, uint32_t rank, uint32_t number);

#endif
