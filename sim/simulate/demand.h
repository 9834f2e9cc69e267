/* demand.h: the most that connections could ask of each link at a time, so that links that are never full can
 * be left out. What comes to a link over another one is no more than that one carries, and so is what goes on
 * over one; where both say so of each other, the wider one, or of two alike the later, takes it from the
 * other. */
#ifndef TUTTI_SIM_SIMULATE_DEMAND_H
#define TUTTI_SIM_SIMULATE_DEMAND_H

#include "simulate/cluster.h"

/* What takes a link behind or before another one. */
struct demand_pair {
  uint32_t link, other; /* other: SIM_NONE at an end of routes */
  bool behind, used;
  double gbps;
};

struct demand {
  const struct cluster *cluster;
  struct demand_pair *pairs; /* open addressing */
  uint32_t pair_count, mask;
};

/* False when memory is out. Free with demand_free(), whatever came of it. */
bool demand_make(const struct cluster *cluster, struct demand *demand);
/* A connection that asks for so much of all links of its route; the same. */
bool demand_add(struct demand *demand, const struct cluster_route *route, double gbps);
/* Adds to `gbps`, by link, what all of them could ask for; the same. */
bool demand_sum(const struct demand *demand, double *gbps);
void demand_free(struct demand *demand);

#endif
