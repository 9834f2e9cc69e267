/* picture.h: a simulated run as Chrome's trace events, for ui.perfetto.dev: a process a rank, a thread a
 * lane, a span a slice, and before it the span in which it waited; of a workload also a thread a stream, a
 * span a kernel. */
#ifndef TUTTI_SIM_SIMULATE_PICTURE_H
#define TUTTI_SIM_SIMULATE_PICTURE_H

#include <stdio.h>

#include "json.h"
#include "simulate/run.h"

#define PICTURE_SPANS_MAX 2000000u

struct picture {
  struct json json;
  const struct sim_net *net;
  uint64_t spans, kernels; /* that came, written or not */
};

/* Begins the file; picture_see() then is the engine's, with the picture as its context. */
void picture_begin(struct picture *picture, FILE *out, const struct sim_net *net);
void picture_see(void *context, const struct engine_span *span);
/* A kernel of a workload, on a thread of its stream, in front of the lanes'. */
void picture_kernel(struct picture *picture, const char *name, const struct run_kernel *kernel);
/* False when spans were left out, as there were more than PICTURE_SPANS_MAX. */
bool picture_end(struct picture *picture);

#endif
