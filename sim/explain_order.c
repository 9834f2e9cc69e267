/* explain_order.c: see explain_order.h. */
#include "explain_order.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/plan/names.h"
#include "core/plan/rules.h"
#include "kernels/kernels.h"

static uint64_t block_bytes_of(const struct plan_op *op, uint32_t ranks) {
  const uint64_t element = kernel_type_bytes(op->dtype);
  const uint64_t count = op->func == FUNC_REDUCE_SCATTER ? op->count : (op->count + ranks - 1) / ranks;
  return count * element;
}

ncclResult_t order_cost_find(const struct planning *job, const struct plan_request *request, size_t bytes,
                             struct order_cost *cost) {
  memset(cost, 0, sizeof *cost);
  const struct plan_op *op = request->ops;
  if (request->op_count != 1 || request->rank_count == 1 || !rules_order(request, op->func))
    return ncclSuccess;
  struct planning any = *job;
  struct plan_request without;
  any.settings.plan.rank_order = false;
  planning_request(&any, request->graph, &without);
  without.ops = request->ops;
  without.op_count = request->op_count;
  TRY(tune_choose(request, op->func, bytes, &cost->with));
  TRY(tune_choose(&without, op->func, bytes, &cost->without));
  TRY(link_load_of_request(request, &cost->with_load));
  TRY(link_load_of_request(&without, &cost->without_load));
  cost->block_bytes = block_bytes_of(op, request->rank_count);
  cost->applies = true;
  return ncclSuccess;
}

static void row_print(const char *what, uint64_t with, uint64_t without) {
  printf("  %-34s %14" PRIu64 " %14" PRIu64 "\n", what, with, without);
}

void order_cost_print(const struct order_cost *cost) {
  if (!cost->applies) return;
  const struct tune_choice *without = &cost->without;
  printf(
      "\nTUTTI_SUM_ORDER=rank adds up from rank 0 on. Its cost, beside the choice without it, %s with %s:\n",
      names_algo[without->algo], names_proto[without->proto]);
  printf("  %-34s %14s %14s\n", "", "rank", "any");
  printf("  %-34s %14.1f %14.1f\n", "predicted time, us", cost->with.time_us, without->time_us);
  row_print("most bytes from a rank to another", cost->with_load.link, cost->without_load.link);
  row_print("most bytes from a rank to all", cost->with_load.rank, cost->without_load.rank);
  row_print("most bytes from a node to others", cost->with_load.node, cost->without_load.node);
  printf("an all-to-all of this size sends %" PRIu64 " bytes from a rank to another\n", cost->block_bytes);
}

static void load_json(struct json *json, const char *name, const struct tune_choice *choice,
                      const struct link_load *load) {
  json_open(json, name, '{');
  json_text(json, "algo", names_algo[choice->algo]);
  json_text(json, "proto", names_proto[choice->proto]);
  json_decimal(json, "time_us", choice->time_us);
  json_number(json, "link_bytes", (int64_t)load->link);
  json_number(json, "rank_bytes", (int64_t)load->rank);
  json_number(json, "node_bytes", (int64_t)load->node);
  json_close(json, '}');
}

void order_cost_json(struct json *json, const struct order_cost *cost) {
  if (!cost->applies) return;
  json_open(json, "sum_order", '{');
  load_json(json, "rank", &cost->with, &cost->with_load);
  load_json(json, "any", &cost->without, &cost->without_load);
  json_number(json, "all_to_all_link_bytes", (int64_t)cost->block_bytes);
  json_close(json, '}');
}
