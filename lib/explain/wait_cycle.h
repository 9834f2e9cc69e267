/* wait_cycle.h: finds a cycle of waits that spans several communicators. */
#ifndef TUTTI_EXPLAIN_WAIT_CYCLE_H
#define TUTTI_EXPLAIN_WAIT_CYCLE_H

#include "explain/diagnose.h"
#include "explain/rank_state.h"

/* Sets the diagnosis and returns true if ranks of several communicators wait for each other in a cycle.
 * `states` holds the ranks of all communicators, ordered by communicator, number of ranks, and rank. Also
 * returns false if out of memory. */
bool diagnose_cycle(const struct rank_state *states, uint32_t count, struct diagnosis *diagnosis);

#endif
