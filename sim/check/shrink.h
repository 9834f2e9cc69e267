/* shrink.h: a small call that still fails, from one that does. */
#ifndef TUTTI_SIM_CHECK_SHRINK_H
#define TUTTI_SIM_CHECK_SHRINK_H

#include "check/request.h"

/* A call with the graph that it runs on: `nodes` nodes of ranks. */
struct check_case {
  struct check_call call;
  uint32_t nodes, gpus;
  const char *machine; /* as machine_graph() takes it */
};

/* Makes plans and proves them. ncclSuccess when there are plans at all: then *proved says the rest. */
ncclResult_t check_case_run(struct check_engine *engine, struct check_setup *setup,
                            const struct check_case *c, bool *proved, struct check_report *report);

/* Fewer channels, ranks, elements, as long as the same rule breaks; *report is that of the smallest. */
void check_case_shrink(struct check_engine *engine, struct check_setup *setup, struct check_case *c,
                       struct check_report *report);

#endif
