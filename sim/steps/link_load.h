/* link_load.h: the bytes of data that the plans of all ranks send from rank to rank, counted by their steps.
 * Lines' flags and slots are not counted. */
#ifndef TUTTI_SIM_STEPS_LINK_LOAD_H
#define TUTTI_SIM_STEPS_LINK_LOAD_H

#include "core/plan/plan.h"

struct link_load {
  uint64_t link; /* most bytes from one rank to another one */
  uint64_t rank; /* most bytes from one rank to all others */
  uint64_t node; /* most bytes from the ranks of one node to other nodes */
};

/* `plans`: by rank; `graph`: where the ranks are. ncclSystemError when memory is out. */
ncclResult_t link_load_of(const struct plan *plans, const struct graph *graph, struct link_load *load);

/* The same of the plans that all ranks make of the request, whatever its own rank. Fails like plan_build().
 */
ncclResult_t link_load_of_request(const struct plan_request *request, struct link_load *load);

#endif
