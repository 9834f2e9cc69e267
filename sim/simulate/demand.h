/* demand.h: the greatest demand of connections on each link at a time, so that links that are never full can
 * be left out. The demand that arrives over another link is at most that link's bandwidth, and so is the
 * demand that leaves over one. If two links limit each other, the wider one, or of two equal ones the later,
 * takes its limit from the other. */
#ifndef TUTTI_SIM_SIMULATE_DEMAND_H
#define TUTTI_SIM_SIMULATE_DEMAND_H

#include "simulate/cluster.h"

/* The demand on a link that comes from, or goes to, another one. */
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
/* A connection with this demand on all links of its route; false when memory is out. */
bool demand_add(struct demand *demand, const struct cluster_route *route, double gbps);
/* Adds to `gbps`, by link, the demand of all connections; false when memory is out. */
bool demand_sum(const struct demand *demand, double *gbps);
void demand_free(struct demand *demand);

#endif
