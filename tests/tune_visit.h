/* tune_visit.h: everything that the tuner can choose, for tests that prove each plan: all collectives, size
 * classes, and options that the rules allow, on one communicator's graph. */
#ifndef TUTTI_TESTS_TUNE_VISIT_H
#define TUTTI_TESTS_TUNE_VISIT_H

#include "core/plan/plan.h"
#include "core/plan/tune.h"

/* One choice: the request is for rank 0 and holds one operation of bytes (ncclInt8), whose masks leave
 * nothing but the choice; whoever plans for other ranks sets request->rank. `root` of rooted collectives
 * is 0. False ends the iteration. */
typedef bool (*tune_visit)(void *argument, const struct plan_request *request,
                           const struct tune_choice *choice);

/* Visits every option for every size up to `bytes_most`: powers of two, one more and one less, and what does
 * not divide by the ranks. `limits` are those that the plans are made for. Returns the number of visits. */
uint32_t tune_visit_all(const struct graph *graph, const struct plan_limits *limits, size_t bytes_most,
                        tune_visit visit, void *argument);

#endif
