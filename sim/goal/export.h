/* export.h: the library's own schedules as schedules of messages: the plans of all ranks of a call, run step
 * by step by the library's executor (steps/slices.h). A slice's data is one message with a tag of its
 * own on its connection; slices without data send none. A channel is a CPU, all share NIC 0. */
#ifndef TUTTI_SIM_GOAL_EXPORT_H
#define TUTTI_SIM_GOAL_EXPORT_H

#include "core/plan/plan.h"
#include "goal/goal.h"

struct goal_export_costs {
  uint64_t reduce_ns, copy_ns; /* per KiB that is reduced, or copied to the output; 0: no computation */
};

/* Calls that ranks make one after another, each written as often as a rank makes it. Tags have tag_base's
 * bits, and are numbered across calls. */
#define GOAL_EXPORT_TAGS ((uint32_t)1 << 30) /* above all other tags */
struct goal_export;
ncclResult_t goal_export_open(struct goal_build *build, const struct goal_export_costs *costs,
                              uint32_t tag_base, struct goal_export **opened);
/* Adds a call that all ranks make; the plans outlive the export. On success *number is its number. */
ncclResult_t goal_export_call(struct goal_export *out, const struct plan *plans, uint32_t rank_count,
                              uint32_t *number);
/* The rank's part of the call: after the operation `after`, before `before`; either may be UINT32_MAX. */
ncclResult_t goal_export_rank(struct goal_export *out, uint32_t number, uint32_t rank, uint32_t after,
                              uint32_t before);
void goal_export_close(struct goal_export *out); /* NULL is allowed */

/* All steps for one call. On success fills *goal (free with goal_free()). */
ncclResult_t goal_export_plans(const struct plan *plans, uint32_t rank_count,
                               const struct goal_export_costs *costs, struct goal *goal);

#endif
