/* wrong_comm.h: calls on a communicator that belong on another one. */
#ifndef TUTTI_EXPLAIN_WRONG_COMM_H
#define TUTTI_EXPLAIN_WRONG_COMM_H

#include "explain/comm_ranks.h"

#define WRONG_COMM_CALLS 8u /* of each communicator, before and behind the first that has not ended */

/* True, and the diagnosis set, when one rank alone made a call that is missing of it on another communicator.
 * Ranks are those of all communicators, in the order of communicator, number of ranks, and rank. */
bool diagnose_wrong_comm(struct rank_state *states, uint32_t count, struct diagnosis *diagnosis);

#endif
