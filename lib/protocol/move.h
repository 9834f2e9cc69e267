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
 * depends on the plan alone. */
#define MOVE_SPANS_MAX (PRIM_LINKS + 1)

struct move {
  size_t count;      /* elements; 0 moves nothing */
  uint8_t dtype, op; /* ncclDataType_t, enum work_op */
  uint8_t source_count, destination_count;
  uint32_t pre_op_sources; /* set of source indexes that are user input */
  bool post_op;            /* apply the operator's last stage to the result */
  uint32_t note;           /* the backend's own, between begin and finish */
  uint64_t op_arg;         /* as in struct work */
  const void *source[MOVE_SPANS_MAX];
  void *destination[MOVE_SPANS_MAX];
#if PRIM_ALGOS > 1
  uint32_t remote_destinations; /* set of destination indexes that no step reads again and that are longer
                                   than caches: a backend may bypass its caches */
#endif
};

#endif
