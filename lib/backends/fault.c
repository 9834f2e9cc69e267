/* fault.c: the plan of one fault. */
#include "backends/fault.h"

#include "base/hash.h"

const char *const fault_names[] = {"nothing", "drop",   "duplicate", "hold",   "cut",   "stop",    "reset",
                                   "refuse",  "linger", "slow",      "freeze", "stale", "corrupt", NULL};

void fault_plan_make(struct fault_plan *plan, enum fault_kind kind, uint64_t at, uint64_t seed) {
  uint64_t state = seed ^ 0x6661756c74u;
  plan->kind = kind;
  plan->at = at != 0 ? at : 1 + hash_draw(&state) % FAULT_DRAWN;
  plan->count = 0;
}

enum fault_kind fault_next(struct fault_plan *plan) {
  plan->count += 1;
  return plan->count == plan->at ? plan->kind : FAULT_NOTHING;
}
