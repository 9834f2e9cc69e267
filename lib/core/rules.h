/* rules.h: which algorithm and protocol can carry an operation, and which rule forbids the others. */
#ifndef TUTTI_CORE_RULES_H
#define TUTTI_CORE_RULES_H

#include "core/plan.h"

/* NULL when `algo` with `proto` may carry `func` in the request's communicator; else the rule that forbids
 * it, a sentence without capital and end. What the user allows (algo_mask, proto_mask) counts, and is named
 * last. */
const char *rules_forbid(const struct plan_request *request, uint8_t func, uint8_t algo, uint8_t proto);

#endif
