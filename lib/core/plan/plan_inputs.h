/* plan_inputs.h: everything that a communicator's plans depend on besides its calls, as rows of a record file
 * (trace/record.h): settings, limits, the user's tuning rules, the ranks' places, and what the graph was made
 * from. A replay reads them and plans as the job did. */
#ifndef TUTTI_CORE_PLAN_INPUTS_H
#define TUTTI_CORE_PLAN_INPUTS_H

#include "core/plan/plan.h"
#include "core/topology/graph_build.h"
#include "trace/record.h"

/* What was read. Free with plan_inputs_free(). */
struct plan_inputs {
  struct plan_settings settings; /* tune_file is this struct's own */
  struct graph_origin origin;
  uint32_t rank_count;
  struct graph_place *places;     /* by rank */
  uint32_t *groups, *p2p_domains; /* by rank, as in struct plan_request; NULL: all ranks share memory */
  uint64_t *shape;                /* the words of origin.shape */
  uint64_t custom_digest;         /* custom_digest() of the user's schedule; 0: there is none */
  struct tune_file *tune_file;
};

/* Fills rows from a request, whose operations do not matter; returns their number. Allocates nothing. If not
 * all fit, the last row says so, and a reader refuses the whole. */
uint32_t plan_inputs_write(const struct plan_request *request, struct record_input *rows, uint32_t most);
/* Reads rows, which anyone may have written. NULL on success; else what is missing or impossible, as a
 * phrase, and there is nothing to free. */
const char *plan_inputs_read(const struct record_input *rows, uint32_t count, uint32_t rank_count,
                             struct plan_inputs *inputs);
void plan_inputs_free(struct plan_inputs *inputs);

#endif
