/* plan.h: operations -> plan. A pure function of its request: no communicator, no device, no clock; every
 * rank that asks with the same operations gets plans that fit together. Also the cost model's answers
 * (tune.h) for the same request. */
#ifndef TUTTI_CORE_PLAN_H
#define TUTTI_CORE_PLAN_H

#include "core/topology/graph.h"

struct tune_file;
struct custom_schedule;

/* One operation of a group, after the API has checked it and turned averages and user operators into kernel
 * operators. Gather and scatter arrive here as their sends and receives; all-to-all becomes them unless an
 * algorithm carries it. */
struct plan_op {
  uint8_t func;      /* BROADCAST..ALL_REDUCE, SEND, RECV, ALL_TO_ALL */
  uint8_t dtype, op; /* ncclDataType_t, enum work_op */
  uint32_t peer;     /* root of a collective, other end of a send or receive */
  size_t count;      /* as in the API call: elements a rank contributes */
  const void *in;    /* NULL for RECV */
  void *out;         /* NULL for SEND, and for REDUCE away from the root */
  uint64_t op_arg;   /* struct work's */
  uint64_t sequence; /* number of the call on its communicator, from 0 */
};

struct plan_request {
  uint32_t rank, rank_count;
  const struct custom_schedule *custom; /* the user's, or NULL; outlives the plan, as graph */
  const struct graph *graph;            /* the communicator's; outlives the plan, whose works point into it */
  struct plan_limits limits;
  uint32_t algo_mask[FUNC_COUNT],
      proto_mask[FUNC_COUNT];       /* bit i = allowed (NCCL_ALGO, NCCL_PROTO); never 0 */
  uint32_t proto_named[FUNC_COUNT]; /* set of protocols that NCCL_PROTO asks for by name */
  uint32_t protos_torn; /* set of protocols that a path between two devices takes out of proto_mask */
  uint32_t algos_off;   /* set of algorithms that a variable of their own leaves out */
  uint32_t max_threads[PROTO_COUNT];     /* NCCL_NTHREADS and kin; for the model; 0: the model's own */
  uint32_t thread_bytes[2][PROTO_COUNT]; /* NCCL_THREAD_THRESHOLDS of Tree and Ring; 0: the model's own */
  const struct tune_file *tune_file;     /* the user's own rules, or NULL */
  size_t p2p_ll_threshold;               /* bytes a channel below which point-to-point uses LL */
  uint32_t net_peer_channels;            /* most of a message between GPUs' nodes; 0: as of others */
  bool net_plain;                        /* messages over a network are in Simple alone */
  const uint32_t *groups; /* by rank: those of one share memory, others lie behind a network; NULL: all do */
  const uint32_t
      *p2p_domains; /* by rank: ranks of one P2P domain store into each other's output; NULL: all do */
  const struct plan_op *ops;
  uint32_t op_count;
};

/* The limits of production: what plans are made for where no backend says otherwise, as in the tools that
 * look at a plan without running it. All algorithms, and as many links as a step may name. */
void plan_limits_default(struct plan_limits *limits);

/* On success fills *plan (free with plan_free), which may have no batches at all. Fails with ncclInvalidUsage
 * when no allowed algorithm and protocol fits (the text names the variable), ncclSystemError when memory is
 * out. */
ncclResult_t plan_build(const struct plan_request *request, struct plan *plan);
void plan_free(struct plan *plan);
/* Of what works of collectives say alike on all ranks. */
uint64_t plan_digest(const struct plan *plan);

/* What planning works in, grown as needed and kept from plan to plan: who plans often allocates only for
 * plans larger than all before. All zero at first. */
struct plan_memory {
  struct plan_cache *cache; /* plan_cache.h; planning itself does not look there */
  void *messages, *tasks, *draft, *plan;
  size_t message_bytes, task_bytes, draft_bytes, plan_bytes;
};

/* As plan_build(), but the plan lies in `memory`, until that is built into again or freed. */
ncclResult_t plan_build_within(const struct plan_request *request, struct plan_memory *memory,
                               struct plan *plan);
void plan_memory_free(struct plan_memory *memory);

/* Predicted time of all operations of the request, microseconds. */
double plan_time_us(const struct plan_request *request);

#endif
