/* way.h: on which machine, and by which algorithms, protocols and channels the library carries collectives
 * that become messages: from flags of the command line to plans, each call planned once. */
#ifndef TUTTI_SIM_GOAL_WAY_H
#define TUTTI_SIM_GOAL_WAY_H

#include "check/request.h"
#include "collective.h"
#include "goal/chakra.h"

struct goal_way {
  const char *algo, *proto; /* as NCCL_ALGO and NCCL_PROTO; "" for any */
  const char *type, *machine;
  int64_t nodes, gpus, channels, root; /* gpus: of a node */
};

struct way_call {
  const struct collective *collective;
  uint64_t bytes;
  uint32_t number; /* in an export */
  struct check_setup setup;
};

struct way_planner {
  const struct goal_way *way;
  struct graph graph;
  struct way_call **calls;
  uint32_t call_count;
  uint32_t algos[FUNC_COUNT], protos[FUNC_COUNT];
  uint8_t dtype;
};

/* ncclInvalidUsage where flags make no sense. Close it whatever comes of it. */
ncclResult_t way_open(struct way_planner *planner, const struct goal_way *way);
/* The plans of all ranks, for a size in nccl-tests' sense; they live as long as the planner. */
ncclResult_t way_plan(struct way_planner *planner, const struct collective *collective, uint64_t bytes,
                      struct way_call **call);
/* A chakra_planner's `plan`; the context is a way_planner, for one export alone. */
ncclResult_t way_plan_chakra(void *context, struct goal_export *out, uint32_t comm_type, uint64_t bytes,
                             uint32_t *number);
void way_close(struct way_planner *planner);

#endif
