/* picture.h: a simulated run for ui.perfetto.dev: a process per rank, a thread per lane, a trace slice for
 * each slice and for the wait before it; a lane that waits for ever has a slice that does not end. A workload
 * also has a thread per stream, with a slice per kernel. */
#ifndef TUTTI_SIM_SIMULATE_PICTURE_H
#define TUTTI_SIM_SIMULATE_PICTURE_H

#include <stdio.h>

#include "perfetto.h"
#include "simulate/run.h"

#define PICTURE_SPANS_MAX 2000000u

struct picture {
  struct perfetto perfetto;
  const struct sim_net *net;
  uint64_t *named;         /* by rank: a bit for each lane's thread that has its name */
  uint64_t spans, kernels; /* number of all, written or not */
};

/* Begins the file, for ranks on nodes of `gpus`; then picture_see() is the engine's callback, with the
 * picture as its context. */
void picture_begin(struct picture *picture, FILE *out, const struct sim_net *net, uint32_t gpus);
/* Names the thread of a rank's stream. */
void picture_stream(struct picture *picture, uint32_t rank, uint32_t stream, const char *name);
void picture_see(void *context, const struct engine_span *span);
void picture_stuck(struct picture *picture, const struct engine_stuck *stuck);
/* A kernel of a workload, on the thread of its stream. */
void picture_kernel(struct picture *picture, const char *name, const struct run_kernel *kernel);
/* False if spans were left out, because there were more than PICTURE_SPANS_MAX. */
bool picture_end(struct picture *picture);

#endif
