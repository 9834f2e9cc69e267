/* wrong_comm.h: finds a call that a rank made on the wrong communicator. */
#ifndef TUTTI_EXPLAIN_WRONG_COMM_H
#define TUTTI_EXPLAIN_WRONG_COMM_H

#include "explain/comm_ranks.h"

/* How many collectives of each communicator are compared, before and after the first that has not ended. */
#define WRONG_COMM_CALLS 8u

/* Sets the diagnosis and returns true if a single rank made a call on one communicator that it did not make
 * on another one, where the other ranks made it. `states` holds the ranks of all communicators, ordered by
 * communicator, number of ranks, and rank. */
bool diagnose_wrong_comm(struct rank_state *states, uint32_t count, struct diagnosis *diagnosis);

#endif
