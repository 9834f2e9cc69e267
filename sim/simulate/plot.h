/* plot.h: bandwidth against size, of one or several options, as SVG. */
#ifndef TUTTI_SIM_SIMULATE_PLOT_H
#define TUTTI_SIM_SIMULATE_PLOT_H

#include <stddef.h>

#include "simulate/svg.h"

#define PLOT_SERIES_MOST 16

struct plot_point {
  uint32_t series;
  double bytes, gbps; /* both above 0 */
};
/* All zero at first. */
struct plot {
  const char *names[PLOT_SERIES_MOST]; /* of series; outlive the plot */
  struct plot_point *points;
  uint32_t point_count, point_capacity;
};

/* Points of a series are added in the order of their sizes. ncclSystemError when memory is out. */
ncclResult_t plot_add(struct plot *plot, uint32_t series, const char *name, double bytes, double gbps);
ncclResult_t plot_write(const struct plot *plot, const char *title, const char *axis, const char *path);
void plot_free(struct plot *plot);

#endif
