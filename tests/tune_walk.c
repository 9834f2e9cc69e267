/* tune_walk.c: see tune_walk.h. */
#include "tune_walk.h"

#include <string.h>

struct walk {
  struct plan_request request;
  struct plan_op op;
  tune_visit visit;
  void *argument;
  uint32_t visit_count;
};

static void walk_size(struct walk *walk, uint8_t func, size_t count) {
  walk->op.func = func;
  walk->op.dtype = ncclInt8;
  walk->op.op = OP_SUM;
  walk->op.count = count;
  walk->op.in = &walk->op;
  walk->op.out = walk;
  walk->op.sequence = walk->visit_count;
}

/* Leaves one way in the masks and lets the tuner choose it. False ends the walk. */
static bool walk_way(struct walk *walk, const struct tune_candidate *row, size_t bytes) {
  struct plan_request *request = &walk->request;
  const uint8_t func = walk->op.func;
  struct tune_choice choice;
  request->algo_mask[func] = 1u << row->algo;
  request->proto_mask[func] = 1u << row->proto;
  if (tune_choose(request, func, bytes, &choice) != ncclSuccess) return false;
  walk->visit_count += 1;
  return walk->visit(walk->argument, request, &choice);
}

static bool walk_ways(struct walk *walk) {
  struct plan_request *request = &walk->request;
  const uint8_t func = walk->op.func;
  const size_t bytes = tune_bytes(func, walk->op.count, 1, request->rank_count);
  struct tune_candidate rows[TUNE_CANDIDATES];
  request->algo_mask[func] = (1u << ALGO_COUNT) - 1;
  request->proto_mask[func] = (1u << PROTO_COUNT) - 1;
  tune_candidates(request, func, bytes, rows);
  for (uint32_t i = 0; i < TUNE_CANDIDATES; i++)
    if (rows[i].forbidden == NULL && !walk_way(walk, &rows[i], bytes)) return false;
  return true;
}

static bool walk_func(struct walk *walk, uint8_t func, size_t bytes_most) {
  const bool all = func == FUNC_ALL_GATHER || func == FUNC_REDUCE_SCATTER;
  for (size_t bytes = 1; bytes <= bytes_most; bytes *= 2) {
    for (size_t count = bytes > 2 ? bytes - 1 : bytes; count <= bytes + 1; count++) {
      const size_t own = all ? (count + walk->request.rank_count - 1) / walk->request.rank_count : count;
      walk_size(walk, func, own);
      if (!walk_ways(walk)) return false;
    }
  }
  return true;
}

uint32_t tune_walk(const struct graph *graph, const struct plan_limits *limits, size_t bytes_most,
                   tune_visit visit, void *argument) {
  struct walk walk;
  memset(&walk, 0, sizeof walk);
  walk.visit = visit;
  walk.argument = argument;
  walk.request.rank_count = graph->rank_count;
  walk.request.graph = graph;
  walk.request.limits = *limits;
  walk.request.ops = &walk.op;
  walk.request.op_count = 1;
  for (uint8_t func = 0; func <= FUNC_ALL_REDUCE; func++)
    if (!walk_func(&walk, func, bytes_most)) break;
  return walk.visit_count;
}
