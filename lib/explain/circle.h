/* circle.h: waits that lead from communicator to communicator. */
#ifndef TUTTI_EXPLAIN_CIRCLE_H
#define TUTTI_EXPLAIN_CIRCLE_H

#include "explain/diagnose.h"
#include "explain/rank_state.h"

/* True, and the diagnosis set, when ranks of several communicators wait for one another in a circle. Ranks
 * are those of all communicators, in the order of communicator, number of ranks, and rank. False also where
 * memory is out. */
bool diagnose_circle(const struct rank_state *states, uint32_t count, struct diagnosis *diagnosis);

#endif
