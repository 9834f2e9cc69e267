/* chart.h: a simulated run as one SVG: what ranks do over time, and the load of the busiest links. Times are
 * summed during the run in as many columns as are drawn, which grow wider with the run, so that neither
 * memory nor the file grows with its length; if there are few kernels, each is a box. */
#ifndef TUTTI_SIM_SIMULATE_CHART_H
#define TUTTI_SIM_SIMULATE_CHART_H

#include "simulate/run.h"

struct chart;

/* NULL when memory is out. `workload`: the one that is run, NULL: a single call. */
struct chart *chart_open(const struct cluster *cluster, const struct workload *workload);
void chart_close(struct chart *chart); /* NULL is allowed */

/* Callbacks of a run, with the chart as context. A net is first, with all ranks. */
void chart_net(void *context, const struct sim_net *net);
void chart_kernel(void *context, const struct run_kernel *kernel);
void chart_span(void *context, const struct engine_span *span);
void chart_stuck(void *context, const struct engine_stuck *stuck); /* after all spans */
void chart_message(void *context, const struct engine_message *message);

/* ncclSystemError with a sentence if memory is or was out, or the file cannot be written. */
ncclResult_t chart_write(struct chart *chart, const char *title, const char *path);

#endif
