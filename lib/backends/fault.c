/* fault.c: the plan of one fault. */
#include "backends/fault.h"

const char *const fault_names[] = {"nothing", "drop", "duplicate", "hold", "cut", "stop", "reset", NULL};

uint64_t fault_random(uint64_t *state) {
  uint64_t z = (*state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

void fault_plan_make(struct fault_plan *plan, enum fault_kind kind, uint64_t at, uint64_t seed) {
  uint64_t state = seed ^ 0x6661756c74u;
  plan->kind = kind;
  plan->at = at != 0 ? at : 1 + fault_random(&state) % FAULT_DRAWN;
  plan->count = 0;
}

enum fault_kind fault_next(struct fault_plan *plan) {
  plan->count += 1;
  return plan->count == plan->at ? plan->kind : FAULT_NOTHING;
}
