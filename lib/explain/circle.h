/* circle.h: waits that lead from communicator to communicator. */
#ifndef TUTTI_EXPLAIN_CIRCLE_H
#define TUTTI_EXPLAIN_CIRCLE_H

#include "explain/judge.h"
#include "explain/seat.h"

/* True, and the verdict set, when ranks of several communicators wait for one another in a circle. Seats are
 * those of all communicators, in the order of communicator, number of ranks, and rank. False also where
 * memory is out. */
bool judge_circle(const struct seat *seats, uint32_t count, struct verdict *verdict);

#endif
