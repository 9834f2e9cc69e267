/* engine.h: runs a net over a cluster and says when each rank ends. Lanes are driven by what they wait for:
 * every announcement and every slot given back carries its time along, so that a lane goes on as far as it
 * can at once; an order in time is kept for transfers that share links alone. What comes out does not depend
 * on which lane went first. */
#ifndef TUTTI_SIM_SIMULATE_ENGINE_H
#define TUTTI_SIM_SIMULATE_ENGINE_H

#include "simulate/fold.h"

/* What a run came to. */
struct engine_report {
  bool stalled;
  char text[1024];                                  /* who waits for whom, a sentence */
  uint64_t end_ps;                                  /* of the last rank */
  uint64_t slice_count, message_count, event_count; /* message: a slice on one link */
};

/* What happened to one slice, for whoever draws; NULL hears nothing. */
struct engine_span {
  uint32_t lane;
  uint64_t ready_ps, begin_ps, end_ps; /* began to wait, began to move, posted */
  const struct sim_slice *slice;
};
typedef void engine_see(void *context, const struct engine_span *span);

/* Called now and then with the slices so far. */
typedef void engine_output(void *context, uint64_t slices);
/* What a track runs at one go: lanes and blocks of the net that belong to the track. */
struct engine_kernel {
  uint32_t track, first_lane, lane_count, first_block, block_count;
  uint64_t begin_ps;
};
/* A lane that never ends, and for what it waits. */
struct engine_stuck {
  uint32_t lane, peer; /* peer: the rank that could let it go on */
  const char *wants;   /* "data", "a free slot", ... */
  const char *link;    /* that carries nothing; "" */
  uint64_t since_ps;
};
typedef void engine_hear_stuck(void *context, const struct engine_stuck *stuck);
/* Kernels that follow one another on tracks (a rank's streams), each on connections as the last one left
 * them. The supply owns the net's rows of lanes and blocks and fills those of a kernel before it begins;
 * connections are all there from the begin. */
struct engine_supply {
  void *context;
  uint32_t track_count;
  const uint8_t *pieces;     /* by connection: the most of engine_pieces() of the works that take it */
  const double *demand_gbps; /* by link: the most that is asked for at a time */
  bool (*next)(void *context, struct engine_kernel *kernel); /* one that may begin; false: none, for now */
  void (*ended)(void *context, uint32_t track, uint64_t end_ps);
  void (*stuck)(void *context, const struct engine_stuck *stuck); /* each lane, when nothing moves */
};

/* A message between proxies, for whoever draws. */
struct engine_message {
  uint32_t conn;
  uint64_t begin_ps, end_ps, bytes;
};
typedef void engine_see_message(void *context, const struct engine_message *message);

struct engine_request {
  const struct cluster *cluster;
  const struct sim_net *net; /* of the fold, where there is one */
  const struct fold *fold;   /* who else takes which links; NULL: `net` is whole */
  engine_see *hear;
  void *context;
  engine_output *tell; /* NULL: nobody asks */
  void *report_context;
  engine_see_message *see_message;    /* the same context */
  engine_hear_stuck *on_stuck;      /* the same context; each lane, when nothing moves */
  const struct engine_supply *supply; /* NULL: all lanes of the net begin at once, and nothing follows */
};

/* Most pieces that a step of the work passes on in. */
uint32_t engine_pieces(const struct work *work);

/* ncclSuccess also when it stalled; ncclSystemError when memory is out. */
ncclResult_t engine_run(const struct engine_request *request, struct engine_report *report);

#endif
