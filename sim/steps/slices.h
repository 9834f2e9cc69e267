/* slices.h: what a lane moves and posts, slice by slice, without times: the library's executor runs it
 * (executor.h), and its waits are over at once. Memory does not grow with the steps. */
#ifndef TUTTI_SIM_STEPS_SLICES_H
#define TUTTI_SIM_STEPS_SLICES_H

#include "steps/net.h"

/* Bytes of data over a link. */
struct sim_link {
  uint64_t moved; /* by the slice: received, read in place or sent */
  uint64_t held;  /* sends: in the slot that is open, so far */
};

/* What a lane moves at once, and what it posts then: a slice of Simple, or a group of lines of a step of LL
 * or LL128. Bit i of a set is link i of the work's recv_peer or send_peer. */
struct sim_slice {
  link_set recv_links, send_links; /* of its step */
  link_set reads, sends;           /* over which data moves: reads in the sender's input in place; sends */
  link_set frees, announces;       /* links whose slots its post frees, announces */
  uint32_t flags;                  /* enum step_flag of its step */
  uint32_t copies;        /* of `bytes` that the lane makes one after the other; 0: it moves nothing */
  uint32_t piece, pieces; /* LL: number of the group, and the step's number of groups */
  bool is_each;           /* its step has a block for each link */
  uint64_t bytes;         /* of data, not on the wire; with a block for each link, of the longest */
  struct sim_link *moves; /* by link: recv_count, then send_count */
};

/* A lane in progress. */
struct slices;

/* NULL when memory is out. */
struct slices *slices_open(void);
void slices_close(struct slices *slices);
/* Begins a lane. `work` and `limits` are those of one plan; the work outlives the last call of slices_next().
 */
void slices_begin(struct slices *slices, const struct plan_limits *limits, const struct work *work);
/* The next slice, a whole step of LL, until the next call; NULL after the last one. */
const struct sim_slice *slices_next(struct slices *slices);

/* Number of slices of all lanes; 0 when memory is out. Runs one lane of each kind of work. */
uint64_t slices_count(const struct sim_net *net);

#endif
