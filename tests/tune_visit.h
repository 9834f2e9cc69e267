/* tune_visit.h: visits every choice of the tuner, for tests that prove each plan: all collectives, size
 * classes, and options that the rules allow, on one communicator's graph. */
#ifndef TUTTI_TESTS_TUNE_VISIT_H
#define TUTTI_TESTS_TUNE_VISIT_H

#include "core/plan/plan.h"
#include "core/plan/tune.h"

/* One choice: the request is for rank 0 and has one operation of bytes (ncclInt8), whose masks allow only
 * that choice; callers that plan for other ranks set request->rank. `root` of rooted collectives is 0. False
 * ends the iteration. */
typedef bool (*tune_visit)(void *argument, const struct plan_request *request,
                           const struct tune_choice *choice);

/* Visits every option for every size up to `bytes_most`: powers of two, one more and one less, and sizes that
 * do not divide by the ranks. The plans are made for `limits`. Returns the number of visits. */
uint32_t tune_visit_all(const struct graph *graph, const struct plan_limits *limits, size_t bytes_most,
                        tune_visit visit, void *argument);

#endif
