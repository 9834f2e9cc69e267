/* fold.h: lanes that are alike are simulated once. Two lanes are alike when their works have the same slices
 * and cost the same, and link by link they have connections that are alike; two connections, when routes cost
 * the same, both ends are alike and the links that they share with others; two links, when they carry the
 * same and have as many connections of each kind. Then whatever happens to one happens to the other at the
 * same time: all begin at once, and what each does next follows from what it has heard. So one lane of each
 * kind runs, hears from those that run for its peers, and shares its links with as many as share them. */
#ifndef TUTTI_SIM_SIMULATE_FOLD_H
#define TUTTI_SIM_SIMULATE_FOLD_H

#include "simulate/cluster.h"

struct fold {
  struct sim_net
      net;           /* lanes that run. A link is SIM_NONE where another one of its lane has the same peers */
  uint32_t *lane_of; /* by lane of net: which one of the whole it is */
  uint32_t *first_share;   /* by connection of net; one more behind the last */
  uint32_t *links, *users; /* by share: a link of the cluster; connections of that kind on it */
  uint32_t *rank_of;       /* by rank, with turns: whose lanes run in its place */
};

/* Where the net has not what runs at one go, but plans that each rank runs in an order of its own, some of
 * them again and again: lanes come rank by rank and plan by plan. Then ranks are alike as well: when they run
 * plans of the same numbers in the same order, and so many lanes of each kind in each. One rank of each kind
 * runs, with a lane of each kind; its kernels end when these end. */
struct fold_turns {
  const uint32_t *plan;      /* by lane: the number of its plan among those of its rank */
  const double *demand_gbps; /* by link: the most that is asked for at a time */
  const uint64_t *colour;    /* by rank; differs where order_alike() says no, as a rule */
  bool (*order_alike)(const void *context, uint32_t one, uint32_t other); /* of two ranks */
  const void *context;
};

/* True when some lanes are alike, and *fold is filled (free with fold_free). False, with *fold all zero, when
 * none are, when that cannot be told, or when memory is out. `whole` outlives the fold. `turns`: NULL where
 * all lanes begin at once. */
bool fold_make(const struct cluster *cluster, const struct sim_net *whole, const struct fold_turns *turns,
               struct fold *fold);
void fold_free(struct fold *fold);

#endif
