/* fold.h: nodes that are alike are simulated once. Two nodes are alike when, rank by rank, lane by lane and
 * link by link, they have works whose slices are the same, links and costs that are the same, and connections
 * to the same places of nodes that are alike. Then whatever happens on one happens on the other at the same
 * time: all begin at once, and what each does next follows from what it has heard. So one node of each kind
 * runs, and what it would hear from a node that does not run it hears from that one's representative. */
#ifndef TUTTI_SIM_SIMULATE_FOLD_H
#define TUTTI_SIM_SIMULATE_FOLD_H

#include "simulate/cluster.h"

struct fold {
  uint32_t kinds;      /* nodes that run */
  uint32_t *node_rep;  /* by node: the one that runs for it */
  struct walk_net net; /* of those; its connections name ranks as the whole net does */
};

/* True when some nodes are alike, and *fold is filled (free with fold_free). False, with *fold all zero, when
 * none are, when that cannot be told, or when memory is out. `whole` outlives the fold. */
bool fold_make(const struct cluster *cluster, const struct walk_net *whole, struct fold *fold);
void fold_free(struct fold *fold);

#endif
