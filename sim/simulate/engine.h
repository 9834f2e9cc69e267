/* engine.h: runs a net over a cluster and computes when each rank ends. Lanes run when what they wait for is
 * known: every announcement and every freed slot carries its time, so a lane runs as far ahead as it can;
 * only transfers that share links are ordered by time. The result does not depend on the order in which lanes
 * run. */
#ifndef TUTTI_SIM_SIMULATE_ENGINE_H
#define TUTTI_SIM_SIMULATE_ENGINE_H

#include "simulate/fold.h"
#include "steps/slices.h"

/* The result of a run. */
struct engine_report {
  bool stalled;
  char text[1024];                                  /* which lane waits for which, a sentence */
  uint64_t end_ps;                                  /* of the last rank */
  uint64_t slice_count, message_count, event_count; /* message: a slice on one link */
};

/* Callback for one slice, for drawings; may be NULL. */
struct engine_span {
  uint32_t lane;
  uint64_t ready_ps, begin_ps, end_ps; /* began to wait, began to move, posted */
  const struct sim_slice *slice;
};
typedef void engine_see(void *context, const struct engine_span *span);

/* Called now and then with the number of slices so far. */
typedef void engine_output(void *context, uint64_t slices);
/* One kernel of a track: lanes and blocks of the net that belong to the track. */
struct engine_kernel {
  uint32_t track, first_lane, lane_count, first_block, block_count;
  uint64_t begin_ps;
};
/* A lane that never ends, and what it waits for. */
struct engine_stuck {
  uint32_t lane, peer; /* peer: the rank that could let it continue */
  const char *wants;   /* "data", "a free slot", ... */
  const char *link;    /* a link without bandwidth on its route; "" */
  uint64_t since_ps;
};
typedef void engine_hear_stuck(void *context, const struct engine_stuck *stuck);
/* Kernels that run one after another on tracks (a rank's streams), each on connections in the state in which
 * the previous one left them. The supply owns the net's rows of lanes and blocks and fills those of a kernel
 * before it begins; all connections exist from the start. */
struct engine_supply {
  void *context;
  uint32_t track_count;
  const uint8_t *pieces;     /* by connection: the greatest engine_pieces() of the works that use it */
  const double *demand_gbps; /* by link: the greatest demand at a time */
  bool (*next)(void *context, struct engine_kernel *kernel); /* a kernel that may begin; false: none now */
  void (*ended)(void *context, uint32_t track, uint64_t end_ps);
  void (*stuck)(void *context,
                const struct engine_stuck *stuck); /* called for each lane when the run is stuck */
};

/* A message between proxies, for drawings. */
struct engine_message {
  uint32_t conn;
  uint64_t begin_ps, end_ps, bytes;
};
typedef void engine_see_message(void *context, const struct engine_message *message);

struct engine_request {
  const struct cluster *cluster;
  const struct sim_net *net; /* of the fold, where there is one */
  const struct fold *fold;   /* which other connections use which links; NULL: `net` is complete */
  engine_see *hear;
  void *context;
  engine_output *tell; /* or NULL */
  void *report_context;
  engine_see_message *see_message;    /* the same context */
  engine_hear_stuck *on_stuck;        /* the same context; for each lane, when the run is stuck */
  const struct engine_supply *supply; /* NULL: all lanes of the net begin at once, and nothing follows */
};

/* The most pieces that a step of the work is cut into. */
uint32_t engine_pieces(const struct work *work);

/* ncclSuccess also if it stalled; ncclSystemError when memory is out. */
ncclResult_t engine_run(const struct engine_request *request, struct engine_report *report);

#endif
