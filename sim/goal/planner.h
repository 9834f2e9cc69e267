/* planner.h: plans the collectives that become messages: the machine, algorithms, protocols and channels come
 * from command-line flags; each call is planned once. */
#ifndef TUTTI_SIM_GOAL_PLANNER_H
#define TUTTI_SIM_GOAL_PLANNER_H

#include "check/request.h"
#include "collective.h"
#include "goal/chakra.h"

struct goal_config {
  const char *algo, *proto; /* as NCCL_ALGO and NCCL_PROTO; "" for any */
  const char *type, *machine;
  int64_t nodes, gpus, channels, root; /* gpus: of a node */
};

struct planner_call {
  const struct collective *collective;
  uint64_t bytes;
  uint32_t number; /* in an export */
  struct check_setup setup;
};

struct planner {
  const struct goal_config *config;
  struct graph graph;
  struct planner_call **calls;
  uint32_t call_count;
  uint32_t algos[FUNC_COUNT], protos[FUNC_COUNT];
  uint8_t dtype;
};

/* ncclInvalidUsage if flags are invalid. Close it in any case. */
ncclResult_t planner_open(struct planner *planner, const struct goal_config *config);
/* The plans of all ranks, for a size in nccl-tests' sense; they live as long as the planner. */
ncclResult_t planner_plan(struct planner *planner, const struct collective *collective, uint64_t bytes,
                          struct planner_call **call);
/* A chakra_planner's `plan`; the context is a planner, for a single export. */
ncclResult_t planner_plan_chakra(void *context, struct goal_export *out, uint32_t comm_type, uint64_t bytes,
                                 uint32_t *number);
void planner_close(struct planner *planner);

#endif
