/* chart.h: a simulated run as one SVG: what ranks do over time, and how full the busiest links are. While it
 * runs times are added up in as many columns as are drawn, which grow wider with the run, so that neither
 * memory nor the file grows with its length; of few kernels each is a box. */
#ifndef TUTTI_SIM_SIMULATE_CHART_H
#define TUTTI_SIM_SIMULATE_CHART_H

#include "simulate/run.h"

struct chart;

/* NULL when memory is out. `workload`: whose kernels these are, NULL: there is one call. */
struct chart *chart_open(const struct cluster *cluster, const struct workload *workload);
void chart_close(struct chart *chart); /* NULL is allowed */

/* What runs hear with a chart as their context. A net comes first, of all ranks. */
void chart_net(void *context, const struct sim_net *net);
void chart_kernel(void *context, const struct run_kernel *kernel);
void chart_span(void *context, const struct engine_span *span);
void chart_stuck(void *context, const struct engine_stuck *stuck); /* behind all spans */
void chart_message(void *context, const struct engine_message *message);

/* ncclSystemError with a sentence when memory was or is out, or the file cannot be written. */
ncclResult_t chart_write(struct chart *chart, const char *title, const char *path);

#endif
