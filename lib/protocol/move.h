/* move.h: one span of data to move and combine: the executors fill it in, and the kernels execute it. */
#ifndef TUTTI_PROTOCOL_MOVE_H
#define TUTTI_PROTOCOL_MOVE_H

#include "schedule/work.h"

/* A backend whose lanes have fewer links per side may define it first. */
#ifndef PRIM_LINKS
#define PRIM_LINKS STEP_LINKS_MAX
#endif

/* One span to move: out = post(source[0] op source[1] op ...), stored to every destination. A span is `count`
 * elements of the work's type; pointers are aligned to the element only. Sources and destinations may
 * be the same memory or disjoint, never partly overlapping. The pre-multiplication of PRE_MUL_SUM applies to
 * sources whose bit is set in pre_op_sources. A sum's operand order is the source order, so that a result
 * depends on the plan alone.
 *
 * With `each`, the move is instead as many copies as it has sources: source k to destination k, counts[k]
 * elements; `count` is the most of them (move_copy). */
#define MOVE_SPANS_MAX (PRIM_LINKS + 1)

struct move {
  size_t count;      /* elements; 0 moves nothing */
  uint8_t dtype, op; /* ncclDataType_t, enum work_op */
  uint8_t source_count, destination_count;
  link_set pre_op_sources; /* set of source indexes that are user input */
  bool post_op;            /* apply the operator's last stage to the result */
#if PRIM_ALGOS > 0
  bool each; /* see above */
  size_t counts[MOVE_SPANS_MAX];
#endif
  uint32_t note;   /* the backend's own, between begin and finish */
  uint64_t op_arg; /* as in struct work */
  const void *source[MOVE_SPANS_MAX];
  void *destination[MOVE_SPANS_MAX];
#if PRIM_ALGOS > 1
  link_set remote_destinations; /* set of destination indexes that no step reads again and that are longer
                                   than caches: a backend may bypass its caches */
#endif
};

PRIM_FN bool move_is_each(const struct move *move) {
#if PRIM_ALGOS > 0
  return move->each;
#else
  (void)move;
  return false;
#endif
}

#if PRIM_ALGOS > 0
/* Copy number `index` of a move with `each`, as a move of its own. */
PRIM_FN void move_copy(const struct move *move, uint32_t index, struct move *copy) {
  copy->count = move->counts[index];
  copy->dtype = move->dtype;
  copy->op = move->op;
  copy->op_arg = move->op_arg;
  copy->source_count = copy->destination_count = 1;
  copy->pre_op_sources = move->pre_op_sources >> index & 1;
  copy->post_op = copy->each = false;
  copy->note = move->note;
  copy->source[0] = move->source[index];
  copy->destination[0] = move->destination[index];
#if PRIM_ALGOS > 1
  copy->remote_destinations = move->remote_destinations >> index & 1;
#endif
}
#endif

#endif
