/* drawing.h: the pictures of one run: Perfetto's file (picture.h), an SVG (chart.h), or both. */
#ifndef TUTTI_SIM_SIMULATE_DRAWING_H
#define TUTTI_SIM_SIMULATE_DRAWING_H

#include "simulate/chart.h"
#include "simulate/picture.h"

struct drawing_ask {
  const char *perfetto, *svg; /* files; NULL: none */
};
static inline bool drawing_is_asked(const struct drawing_ask *ask) { return ask->perfetto || ask->svg; }

struct drawing {
  const struct drawing_ask *ask;
  FILE *out; /* Perfetto's */
  struct picture picture;
  const struct workload *workload; /* or NULL */
  const struct cluster *cluster;
  struct chart *chart;
};

/* Opens the selected files. `workload` as in chart_open(). Close it in any case. */
ncclResult_t drawing_open(struct drawing *drawing, const struct drawing_ask *ask,
                          const struct cluster *cluster, const struct workload *workload);
/* Callbacks of a run, with the drawing as context; the net first. */
void drawing_net(void *context, const struct sim_net *net);
void drawing_kernel(void *context, const struct run_kernel *kernel);
void drawing_span(void *context, const struct engine_span *span);
void drawing_stuck(void *context, const struct engine_stuck *stuck);
void drawing_message(void *context, const struct engine_message *message);
/* Writes the files unless `result` is a failure; returns that failure or its own result. */
ncclResult_t drawing_close(struct drawing *drawing, ncclResult_t result, const char *title);

#endif
