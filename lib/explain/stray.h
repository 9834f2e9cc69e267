/* stray.h: calls on a communicator that belong on another one. */
#ifndef TUTTI_EXPLAIN_STRAY_H
#define TUTTI_EXPLAIN_STRAY_H

#include "explain/crew.h"

#define STRAY_CALLS 8u /* of each communicator, before and behind the first that has not ended */

/* True, and the verdict set, when one rank alone made a call that is missing of it on another communicator.
 * Seats are those of all communicators, in the order of communicator, number of ranks, and rank. */
bool judge_stray(struct seat *seats, uint32_t count, struct verdict *verdict);

#endif
