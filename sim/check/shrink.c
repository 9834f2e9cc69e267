/* shrink.c: tries smaller calls until no smaller one fails. */
#include "check/shrink.h"

#include <string.h>

#include "machine.h"

enum { TRIES_MAX = 400 };

ncclResult_t check_case_run(struct check_engine *engine, struct check_setup *setup,
                            const struct check_case *c, bool *proved, struct check_report *report) {
  struct graph graph;
  struct check_call call = c->call;
  call.rank_count = c->nodes * c->gpus;
  TRY(machine_graph(c->machine, c->nodes, c->gpus, &graph));
  call.graph = &graph;
  const ncclResult_t result = check_setup_make(setup, &call);
  if (result == ncclSuccess) *proved = check_run(engine, &setup->input, report);
  graph_free(&graph);
  return result;
}

/* The next smaller case of one kind; false when there is none. */
static bool case_lessen(struct check_case *c, uint32_t kind) {
  struct check_call *call = &c->call;
  switch (kind) {
    case 0: return call->limits.channel_count > 1 && (call->limits.channel_count = 1) != 0;
    case 1: return c->gpus > 3 && (c->gpus /= 2) != 0;
    case 2: return c->gpus > 1 && c->nodes * c->gpus > 2 && (c->gpus -= 1) != 0;
    case 3: return c->nodes > 1 && (c->nodes - 1) * c->gpus > 1 && (c->nodes -= 1) != 0;
    case 4: return call->count > 1 && (call->count /= 2) != 0;
    case 5: return call->count > 1 && (call->count -= 1) != 0;
    case 6: return call->in_place && !(call->in_place = false);
    case 7: return call->root > 0 && (call->root = 0) == 0;
    case 8: return call->first_step > 0 && (call->first_step = 0) == 0;
    case 9: return call->inputs != INPUTS_SHOWN && (call->inputs = INPUTS_SHOWN) == INPUTS_SHOWN;
    case 10: return call->group_count > 1 && (call->group_count -= 1) != 0;
    default: return false;
  }
}

void check_case_shrink(struct check_engine *engine, struct check_setup *setup, struct check_case *c,
                       struct check_report *report) {
  const enum check_rule rule = report->rule;
  for (uint32_t kind = 0, tries = 0; kind < 11 && tries < TRIES_MAX; tries++) {
    struct check_case smaller = *c;
    struct check_report found;
    bool proved = true;
    const bool fits = case_lessen(&smaller, kind) && smaller.call.root < smaller.nodes * smaller.gpus;
    if (fits && check_case_run(engine, setup, &smaller, &proved, &found) == ncclSuccess && !proved &&
        found.rule == rule) {
      *c = smaller;
      *report = found;
      kind = 0;
    } else {
      kind += 1;
    }
  }
}
