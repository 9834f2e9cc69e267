/* loggops.h: the times of a schedule's operations under the LogGOPS model (Hoefler, Schneider, Lumsdaine:
 * LogGOPSim - Simulating Large-Scale Applications in the LogGOPS Model, LSAP 2010): a latency L, a CPU
 * overhead o per message and O per byte, a NIC gap g per message and G per byte, and a size S above which a
 * send ends when its receive is posted. Links are not shared: the machine is fully connected. All times are
 * whole nanoseconds, and events with the same time happen in the order of their creation, so the same input
 * gives the same output. */
#ifndef TUTTI_SIM_GOAL_LOGGOPS_H
#define TUTTI_SIM_GOAL_LOGGOPS_H

#include "goal/goal.h"

struct loggops_costs {
  uint64_t latency_ns, overhead_ns, gap_ns;            /* L, o, g */
  uint64_t overhead_byte_ns, gap_byte_ns, eager_bytes; /* O, G, S */
};
#define LOGGOPS_DEFAULT \
  { 2500, 1500, 1000, 0, 6, 65535 } /* LogGOPSim's defaults */

/* "L=2500,o=1500,g=1000,O=0,G=6,S=65535" or some of these; the others keep their values. */
ncclResult_t loggops_costs_parse(const char *text, struct loggops_costs *costs);

struct loggops_result {
  uint64_t finish_ns, *rank_ns; /* of the last rank; by rank */
  uint64_t event_count;         /* operations and messages */
  uint32_t last_rank;           /* the first of the ranks that finish last */
};

/* Called now and then with the number of operations that have ended. */
struct loggops_watch {
  void (*tell)(void *context, uint64_t ended_count);
  void *context;
};

/* Runs the schedule; `watch` may be NULL. A schedule that does not end, or has a receive of a different size
 * than its message, fails with ncclInvalidUsage; `why` then has a line for each unmatched operation and for
 * each operation of a wait-for cycle. */
ncclResult_t loggops_run(const struct goal *goal, const struct loggops_costs *costs,
                         const struct loggops_watch *watch, struct loggops_result *result, struct text *why);
void loggops_result_free(struct loggops_result *result);

#endif
