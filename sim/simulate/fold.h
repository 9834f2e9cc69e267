/* fold.h: lanes that are alike are simulated once. Two lanes are alike if their works have the same slices
 * and costs, and link by link their connections are alike; two connections, if their routes cost the same,
 * both ends are alike, and so are the links that they share with others; two links, if they carry the same
 * and have the same number of connections of each kind. Then whatever happens to one happens to the other at
 * the same time: all begin at once, and each lane's next action follows from what it has received. So one
 * lane of each kind runs, receives from those that run for its peers, and its transfers count once for each
 * connection that they represent. */
#ifndef TUTTI_SIM_SIMULATE_FOLD_H
#define TUTTI_SIM_SIMULATE_FOLD_H

#include "simulate/cluster.h"

struct fold {
  struct sim_net net;      /* lanes that run. Links of a lane whose peers are alike have one connection */
  uint32_t *lane_of;       /* by lane of net: which one of the whole net it is */
  uint32_t *first_share;   /* by connection of net; one more behind the last */
  uint32_t *links, *users; /* by share: a link of the cluster; number of connections of that kind on it */
  uint32_t *rank_of;       /* by rank, with turns: the rank whose lanes represent it */
};

/* For nets that do not run at once: plans that each rank runs in its own order, some of them repeatedly, with
 * lanes ordered by rank and plan. Then ranks can be alike: they run plans of the same numbers in the same
 * order, with the same number of lanes of each kind in each. One rank of each kind runs, with a lane of each
 * kind; its kernels end when these end. */
struct fold_turns {
  const uint32_t *plan;      /* by lane: the number of its plan among those of its rank */
  const double *demand_gbps; /* by link: the greatest demand at a time */
  const uint64_t *colour;    /* by rank; usually differs if order_alike() is false */
  bool (*order_alike)(const void *context, uint32_t one, uint32_t other); /* of two ranks */
  const void *context;
};

/* True if some lanes are alike, and *fold is filled (free with fold_free). False, with *fold all zero, if
 * none are, if that is unknown, or when memory is out. `whole` outlives the fold. `turns`: NULL if all lanes
 * begin at once. */
bool fold_make(const struct cluster *cluster, const struct sim_net *whole, const struct fold_turns *turns,
               struct fold *fold);
void fold_free(struct fold *fold);

#endif
