/* picture.h: a simulated run as Chrome's trace events, for ui.perfetto.dev: a process a rank, a thread a
 * lane, a span a slice, and before it the span in which it waited. */
#ifndef TUTTI_SIM_SIMULATE_PICTURE_H
#define TUTTI_SIM_SIMULATE_PICTURE_H

#include <stdio.h>

#include "json.h"
#include "simulate/engine.h"

#define PICTURE_SPANS_MAX 2000000u

struct picture {
  struct json json;
  const struct walk_net *net;
  uint64_t spans; /* that came, written or not */
};

/* Begins the file; picture_hear() then is the engine's, with the picture as its context. */
void picture_begin(struct picture *picture, FILE *out, const struct walk_net *net);
void picture_hear(void *context, const struct engine_span *span);
/* False when spans were left out, as there were more than PICTURE_SPANS_MAX. */
bool picture_end(struct picture *picture);

#endif
