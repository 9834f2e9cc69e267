/* rules.h: which algorithms and protocols an operation may not use, and why. Pure functions, shared by the
 * tuner, the error messages and `tutti explain`. */
#ifndef TUTTI_CORE_RULES_H
#define TUTTI_CORE_RULES_H

#include "core/plan/plan.h"

/* NULL: allowed. Else the rule that forbids it, a sentence without full stop; static, never freed. */
const char *rules_forbid(const struct plan_request *request, uint8_t func, uint8_t algo, uint8_t proto);

/* As rules_forbid(), ignoring NCCL_ALGO and NCCL_PROTO: only what the machine and the operation forbid. */
const char *rules_forbid_always(const struct plan_request *request, uint8_t func, uint8_t algo,
                                uint8_t proto);

/* Most links of a direct collective, except sums in rank order, which may have as many as the executors. */
#define DIRECT_LINKS_USUAL 16u

/* Whether TUTTI_SUM_ORDER=rank applies to the function: contributions are folded from rank 0 on. NCCL_ALGO
 * does not count then; the one algorithm is rules_order_algo(): a direct reduce-scatter, and what distributes
 * its sums. */
bool rules_order(const struct plan_request *request, uint8_t func);
uint8_t rules_order_algo(uint8_t func);
/* Whether it is two shots whose root has no shard (WORK_ROOT_APART). */
bool rules_root_apart(const struct plan_request *request, uint8_t func, uint8_t algo);

#endif
