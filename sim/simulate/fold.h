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
  struct walk_net
      net; /* lanes that run. A link is WALK_NONE where another one of its lane has the same peers */
  uint32_t *first_share;   /* by connection of net; one more behind the last */
  uint32_t *links, *users; /* by share: a link of the cluster; connections of that kind on it */
};

/* True when some lanes are alike, and *fold is filled (free with fold_free). False, with *fold all zero, when
 * none are, when that cannot be told, or when memory is out. `whole` outlives the fold. */
bool fold_make(const struct cluster *cluster, const struct walk_net *whole, struct fold *fold);
void fold_free(struct fold *fold);

#endif
