/* engine_impl.h: what the files of the engine (engine.c, engine_stuck.c) share. */
#ifndef TUTTI_SIM_SIMULATE_ENGINE_IMPL_H
#define TUTTI_SIM_SIMULATE_ENGINE_IMPL_H

#include "simulate/engine.h"
#include "simulate/flow.h"
#include "simulate/queue.h"
#include "steps/executor.h"

enum want { WANT_NOTHING, WANT_DATA, WANT_SLOT, WANT_INPUT, WANT_LIST, WANT_TURN, WANT_TRANSFER };
enum phase { PHASE_WAITS, PHASE_RUNS, PHASE_ENDED };

struct engine_lane {
  struct executor_lane executor;
  const uint32_t *links;       /* connections: recv_count, then send_count */
  link_set recv_own, send_own; /* links without those that are the same as another one (fold.h) */
  uint64_t now_ps;             /* end of its last slice */
  uint64_t ready_ps;           /* the latest of that and of what the next slice has waited for */
  uint64_t begin_ps;           /* of the slice that is moving */
  double ps_a_byte;            /* of the current slice */
  uint64_t slice_ps, move_ps, side_ps;
  uint32_t want_of;                   /* connection, or lane for WANT_LIST and WANT_TURN */
  uint32_t transfers;                 /* transfers of the slice that run */
  uint32_t first_waiter, next_waiter; /* lane + 1: lanes that wait for a step, or the end, of this one */
  uint8_t phase, want;
  bool stores_in_outputs; /* data that others store in its outputs costs no move */
  bool queued, shares;    /* shares: its slices must begin in the order of time */
};

/* Times by step, kept for the last `mask` + 1 steps. A receiver that does not wait for data may free more
 * steps than a sender has looked at: then the ring grows, and is no longer in engine.times. */
struct ring {
  uint64_t *at;
  uint32_t mask;
  bool grown;
};

/* Between two proxies. `filled`, `sent` and `taken` count steps: written by the sender's lane, sent over the
 * network, freed by the receiver's lane. */
struct network {
  uint64_t *filled_at, *bytes; /* by step, in engine.times */
  struct ring slot_at;         /* by step */
  uint8_t *steps;              /* ... in engine.steps */
  uint64_t filled, sent, taken;
  uint64_t begin_ps, end_ps; /* of the last message */
  uint64_t proxy_ps, message_ps, flight_ps, gap_ps;
  bool under_way;
};

struct conn {
  uint64_t *data_at;   /* by step, in engine.times: when the other end sees it */
  struct ring free_at; /* by step, the same */
  uint32_t pieces, slots,
      mask;                  /* of a step; slots in pieces; a power of two minus one: places of its rings */
  uint64_t announced, freed; /* steps, as visible to the waiting end; all steps are in pieces */
  uint64_t send_step, recv_step; /* of the ends */
  uint64_t shown_ps;             /* when the receiver sees the address of the sender's input */
  uint64_t post_ps;
  double ps_a_byte, gbps;                    /* of its links; bytes are data */
  double wire;                               /* bytes on links per byte of data */
  uint32_t waiting_sender, waiting_receiver; /* lanes, SIM_NONE */
  uint32_t send_lane, recv_lane;             /* lanes that use its ends, SIM_NONE */
  uint32_t network;                          /* index in engine.networks, SIM_NONE */
};

struct block {
  uint32_t batch, running;
};

/* The running kernel of a supply. */
struct track {
  uint32_t running; /* lanes */
  uint64_t end_ps;
};

struct engine {
  const struct engine_request *request;
  const struct sim_net *net;
  const struct cluster *cluster;
  struct engine_report *report;
  struct prim prim; /* of the lane that runs */
  struct engine_lane *lanes;
  struct link *links;       /* by link of the net: the lanes' */
  struct sim_link *moves;   /* the same */
  struct conn_words *words; /* by connection */
  uint64_t *progress;       /* of lists, by rank; or NULL */
  struct conn *conns;
  uint32_t *movers; /* by flow: the lane whose transfer it carries */
  struct network *networks;
  struct block *blocks;
  uint64_t *times; /* rings, two per connection, and three per network */
  uint8_t *steps;
  struct track *tracks;
  uint32_t *ready;
  uint32_t ready_head, ready_count, slots, network_count;
  struct flow_set flows;
  uint32_t flow_count; /* one per connection, then, if some inputs are shown, one per connection for reads */
  struct queue queue;  /* flows, then lanes */
  uint64_t now_ps;
  uint64_t end_ps; /* of the slice that is posted */
  uint32_t ended, turns;
  bool failed; /* memory was out during the run */
};

/* Writes which lane waits for which into the report, and tells the supply and the drawing. */
void engine_stuck_report(struct engine *engine);

#endif
