/* explain_order.h: what TUTTI_SUM_ORDER=rank costs: the plan's time and bytes beside those of the plan that
 * would be chosen without it. */
#ifndef TUTTI_SIM_EXPLAIN_ORDER_H
#define TUTTI_SIM_EXPLAIN_ORDER_H

#include "core/plan/tune.h"
#include "json.h"
#include "planning.h"
#include "steps/link_load.h"

struct order_cost {
  bool applies; /* the setting changes the order of this operation */
  struct tune_choice with, without;
  struct link_load with_load, without_load;
  uint64_t block_bytes; /* from one rank to another one in an all-to-all of the operation's size */
};

/* `request` is one operation's, as `job` makes it; `bytes` as tune.h counts them. Fails like plan_build(). */
ncclResult_t order_cost_find(const struct planning *job, const struct plan_request *request, size_t bytes,
                             struct order_cost *cost);

/* Nothing if the setting does not apply. */
void order_cost_print(const struct order_cost *cost);
void order_cost_json(struct json *json, const struct order_cost *cost);

#endif
