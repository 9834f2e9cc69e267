/* shrink.h: reduces a failing call to a small one that still fails. */
#ifndef TUTTI_SIM_CHECK_SHRINK_H
#define TUTTI_SIM_CHECK_SHRINK_H

#include "check/request.h"

/* A call with the graph that it runs on: `nodes` nodes of ranks. */
struct check_case {
  struct check_call call;
  uint32_t nodes, gpus;
  const char *machine; /* as machine_graph() takes it */
};

/* Makes plans and proves them. ncclSuccess if plans can be made; then *proved has the result. */
ncclResult_t check_case_run(struct check_engine *engine, struct check_setup *setup,
                            const struct check_case *c, bool *proved, struct check_report *report);

/* Reduces channels, ranks and elements as long as the same rule is broken; *report is that of the smallest
 * call. */
void check_case_shrink(struct check_engine *engine, struct check_setup *setup, struct check_case *c,
                       struct check_report *report);

#endif
