/* engine.c: a run from its input to its report: channel after channel, then the results. Channels share only
 * users' memory, where access.c requires an order between them, so their order does not matter. */
#include "check/engine.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/os.h"

static const char *const rule_names[CHECK_RULE_COUNT] = {
    "none",    "parts",  "match",      "deadlock",   "slot",  "bounds",   "memory",
    "combine", "result", "same order", "rank order", "proxy", "resources"};

const char *check_rule_name(enum check_rule rule) {
  return rule < CHECK_RULE_COUNT ? rule_names[rule] : "unknown";
}

bool engine_fail(struct check_engine *engine, enum check_rule rule, const struct check_lane *lane,
                 uint32_t peer, const char *format, ...) {
  struct check_report *report = engine->report;
  va_list arguments;
  if (report->rule != CHECK_NONE) return false;
  if (engine->exprs.failed && rule != CHECK_RESOURCES) return engine_out_of_memory(engine);
  report->rule = rule;
  report->rank = lane ? lane->rank : UINT32_MAX;
  report->peer = peer;
  report->channel = lane ? lane->work->channel_index : engine->channel;
  report->block = lane && lane_has_list(lane) ? lane->work->role : UINT32_MAX;
  report->step = lane ? lane->step_number : UINT64_MAX;
  va_start(arguments, format);
  vsnprintf(report->text, sizeof report->text, format, arguments);
  va_end(arguments);
  return false;
}

bool engine_out_of_memory(struct check_engine *engine) {
  return engine_fail(engine, CHECK_RESOURCES, NULL, UINT32_MAX, "the state of all ranks" LOG_OUT_OF_MEMORY);
}

struct check_engine *check_engine_new(void) {
  return (struct check_engine *)os_alloc(sizeof(struct check_engine));
}

void check_engine_free(struct check_engine *engine) {
  if (!engine) return;
  arena_free(&engine->arena);
  expr_free(&engine->exprs);
  value_free(&engine->own);
  value_free(&engine->arrived);
  value_free(&engine->sum);
  value_free(&engine->scratch);
  os_free(engine);
}

/* Ranks that one communicator makes have the same limits. */
static bool input_is_sound(struct check_engine *engine) {
  const struct check_input *input = engine->input;
  engine->slots = input->plans[0].limits.slots;
  if (engine->slots == 0)
    return engine_fail(engine, CHECK_PARTS, NULL, UINT32_MAX, "connections have no slots");
  for (uint32_t rank = 1; rank < input->rank_count; rank++)
    if (input->plans[rank].limits.slots != engine->slots)
      return engine_fail(engine, CHECK_PARTS, NULL, UINT32_MAX, "ranks 0 and %u count different slots", rank);
  return true;
}

static bool engine_reset(struct check_engine *engine) {
  const struct check_input *input = engine->input;
  arena_reset(&engine->arena);
  engine->lane_base = engine->lane_count = engine->store_count = 0;
  engine->spares = NULL;
  engine->lane_spares = NULL;
  engine->clock_bytes = 0;
  engine->batch_cursor =
      (uint32_t *)arena_take(&engine->arena, input->rank_count * sizeof *engine->batch_cursor);
  if (!engine->batch_cursor || !expr_reset(&engine->exprs, input->rank_count, input->op_count) ||
      !memory_reset(&engine->memory, &engine->arena, input))
    return engine_out_of_memory(engine);
  return true;
}

/* Lists of one rank wait for each other across channels. */
static bool input_has_lists(const struct check_input *input) {
  for (uint32_t rank = 0; rank < input->rank_count; rank++)
    for (uint32_t i = 0; i < input->plans[rank].work_count; i++)
      if (algo_family(&input->plans[rank].works[i]) == FAMILY_LIST) return true;
  return false;
}

static bool channels_run(struct check_engine *engine) {
  uint64_t mask = 0;
  engine->channel_count = input_has_lists(engine->input) ? PLAN_CHANNELS_MAX : 1;
  for (uint32_t rank = 0; rank < engine->input->rank_count; rank++)
    mask |= engine->input->plans[rank].channel_mask;
  for (engine->channel = 0; engine->channel < PLAN_CHANNELS_MAX; engine->channel += engine->channel_count)
    if ((engine->channel_count > 1 || (mask >> engine->channel & 1) != 0) && !network_run(engine))
      return false;
  engine->channel = UINT32_MAX;
  return true;
}

bool check_run(struct check_engine *engine, const struct check_input *input, struct check_report *report) {
  memset(report, 0, sizeof *report);
  engine->input = input;
  engine->report = report;
  engine->channel = UINT32_MAX;
  engine->proxy.rule = CHECK_NONE;
  if (!input_is_sound(engine) || !engine_reset(engine) || !channels_run(engine) || !verify_results(engine))
    return false;
  if (engine->proxy.rule != CHECK_NONE) {
    *report = engine->proxy;
    return false;
  }
  report->order_count = expr_complete_count(&engine->exprs);
  return true;
}
