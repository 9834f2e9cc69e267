/* tune_visit.c: see tune_visit.h. */
#include "tune_visit.h"

#include <string.h>

struct visits {
  struct plan_request request;
  struct plan_op op;
  tune_visit visit;
  void *argument;
  uint32_t visit_count;
};

static void visits_set_size(struct visits *visits, uint8_t func, size_t count) {
  visits->op.func = func;
  visits->op.dtype = ncclInt8;
  visits->op.op = OP_SUM;
  visits->op.count = count;
  visits->op.in = &visits->op;
  visits->op.out = visits;
  visits->op.sequence = visits->visit_count;
}

/* Leaves one option in the masks and lets the tuner choose it. False ends the iteration. */
static bool visit_option(struct visits *visits, const struct tune_candidate *row, size_t bytes) {
  struct plan_request *request = &visits->request;
  const uint8_t func = visits->op.func;
  struct tune_choice choice;
  request->settings.algo_mask[func] = 1u << row->algo;
  request->settings.proto_mask[func] = 1u << row->proto;
  if (tune_choose(request, func, bytes, &choice) != ncclSuccess) return false;
  visits->visit_count += 1;
  return visits->visit(visits->argument, request, &choice);
}

static bool visit_options(struct visits *visits) {
  struct plan_request *request = &visits->request;
  const uint8_t func = visits->op.func;
  const size_t bytes = tune_bytes(func, visits->op.count, 1, request->rank_count);
  struct tune_candidate rows[TUNE_CANDIDATES];
  request->settings.algo_mask[func] = (1u << ALGO_COUNT) - 1;
  request->settings.proto_mask[func] = (1u << PROTO_COUNT) - 1;
  tune_candidates(request, func, bytes, rows);
  for (uint32_t i = 0; i < TUNE_CANDIDATES; i++)
    if (rows[i].forbidden == NULL && !visit_option(visits, &rows[i], bytes)) return false;
  return true;
}

static bool visit_func(struct visits *visits, uint8_t func, size_t bytes_most) {
  const bool all = func == FUNC_ALL_GATHER || func == FUNC_REDUCE_SCATTER;
  for (size_t bytes = 1; bytes <= bytes_most; bytes *= 2) {
    for (size_t count = bytes > 2 ? bytes - 1 : bytes; count <= bytes + 1; count++) {
      const size_t own = all ? (count + visits->request.rank_count - 1) / visits->request.rank_count : count;
      visits_set_size(visits, func, own);
      if (!visit_options(visits)) return false;
    }
  }
  return true;
}

uint32_t tune_visit_all(const struct graph *graph, const struct plan_limits *limits, size_t bytes_most,
                        tune_visit visit, void *argument) {
  struct visits visits;
  memset(&visits, 0, sizeof visits);
  visits.visit = visit;
  visits.argument = argument;
  visits.request.rank_count = graph->rank_count;
  visits.request.graph = graph;
  visits.request.settings.limits = *limits;
  visits.request.ops = &visits.op;
  visits.request.op_count = 1;
  for (uint8_t func = 0; func <= FUNC_ALL_REDUCE; func++)
    if (!visit_func(&visits, func, bytes_most)) break;
  return visits.visit_count;
}
