/* loggops.h: when the operations of a schedule happen, under the LogGOPS model (Hoefler, Schneider,
 * Lumsdaine: LogGOPSim - Simulating Large-Scale Applications in the LogGOPS Model, LSAP 2010): a latency L, a
 * CPU's overhead o a message and O a byte, a NIC's gap g a message and G a byte, and a size S above
 * which a send ends when its receive is there. Links are shared by nobody: a fully connected machine. All
 * times are whole nanoseconds, and events of one time happen in the order in which they came about, so that
 * the same input gives the same output. */
#ifndef TUTTI_SIM_GOAL_LOGGOPS_H
#define TUTTI_SIM_GOAL_LOGGOPS_H

#include "goal/goal.h"

struct loggops_costs {
  uint64_t latency_ns, overhead_ns, gap_ns;            /* L, o, g */
  uint64_t overhead_byte_ns, gap_byte_ns, eager_bytes; /* O, G, S */
};
#define LOGGOPS_DEFAULT \
  { 2500, 1500, 1000, 0, 6, 65535 } /* LogGOPSim's */

/* "L=2500,o=1500,g=1000,O=0,G=6,S=65535" or some of these; the others stay. */
ncclResult_t loggops_costs_parse(const char *text, struct loggops_costs *costs);

struct loggops_result {
  uint64_t finish_ns, *rank_ns; /* the last rank's; by rank */
  uint64_t event_count;         /* operations and messages */
  uint32_t last_rank;           /* the first of those that finish last */
};

/* Who waits is told now and then how many operations have ended. */
struct loggops_watch {
  void (*tell)(void *context, uint64_t ended_count);
  void *context;
};

/* Runs the schedule; `watch` may be NULL. One that does not end fails with ncclInvalidUsage, and so does one
 * with a receive of another size than what is sent to it; `why` then has a line for each operation that
 * nobody answers and for each of a circle. */
ncclResult_t loggops_run(const struct goal *goal, const struct loggops_costs *costs,
                         const struct loggops_watch *watch, struct loggops_result *result, struct text *why);
void loggops_result_free(struct loggops_result *result);

#endif
