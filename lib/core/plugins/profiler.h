/* profiler.h: NCCL's profiler plugins (NCCL_PROFILER_PLUGIN), of the interface's versions 1 to 6: events of
 * groups, calls, operations and launches, as the host sees them. Each rank of each communicator has a
 * profiler, which only the thread that uses the communicator calls. Kernels and proxies have no events. */
#ifndef TUTTI_CORE_PROFILER_H
#define TUTTI_CORE_PROFILER_H

#include <stdbool.h>

#include "base/err.h"
#include "schedule/plan.h"

struct profiler; /* of one rank of a communicator */

struct profiler_comm {
  const char *name;
  uint64_t comm_id;
  uint32_t rank, rank_count, node_count;
};
/* NULL without a plugin, and for one whose init fails, which the log names. */
struct profiler *profiler_open(const struct profiler_comm *comm);
void profiler_close(struct profiler *profiler); /* NULL is allowed */

struct profiler_call {
  uint64_t sequence; /* of its operation */
  const void *in;
  void *out, *stream;
  size_t count;
  uint32_t peer; /* root, or other rank of a message */
  uint8_t func, dtype;
  bool captured;
};
/* Around queuing a call; the first of a group begins the group's event. */
void profiler_call_begin(struct profiler *profiler, const struct profiler_call *call);
void profiler_call_end(struct profiler *profiler, bool queued);

/* Around a launch of what was queued, and after it, or if the group is discarded. */
void profiler_launch_begin(struct profiler *profiler, const struct plan *plan, void *stream);
void profiler_launch_end(struct profiler *profiler);
void profiler_group_end(struct profiler *profiler);

#endif
