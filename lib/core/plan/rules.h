/* rules.h: which algorithms and protocols an operation may not use, and why. Pure; the tuner, the error texts
 * and `tutti explain` ask the same question. */
#ifndef TUTTI_CORE_RULES_H
#define TUTTI_CORE_RULES_H

#include "core/plan/plan.h"

/* NULL: allowed. Else the rule that forbids it, a sentence without its full stop: static, never freed. */
const char *rules_forbid(const struct plan_request *request, uint8_t func, uint8_t algo, uint8_t proto);

/* The same, had the user named no algorithm and no protocol (NCCL_ALGO, NCCL_PROTO): what the machine and the
 * operation alone say. */
const char *rules_forbid_always(const struct plan_request *request, uint8_t func, uint8_t algo,
                                uint8_t proto);

#endif
