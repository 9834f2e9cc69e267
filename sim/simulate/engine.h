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
  const struct walk_slice *slice;
};
typedef void engine_hear(void *context, const struct engine_span *span);

/* Called now and then with the slices so far. */
typedef void engine_tell(void *context, uint64_t slices);

struct engine_request {
  const struct cluster *cluster;
  const struct walk_net *net; /* of the fold, where there is one */
  const struct fold *fold;    /* who else takes which links; NULL: `net` is whole */
  engine_hear *hear;
  void *context;
  engine_tell *tell; /* NULL: nobody asks */
  void *tell_context;
};

/* ncclSuccess also when it stalled; ncclSystemError when memory is out. */
ncclResult_t engine_run(const struct engine_request *request, struct engine_report *report);

#endif
