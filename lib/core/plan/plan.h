/* plan.h: turns operations into a plan. A pure function of its request: no communicator, no device, no clock.
 * All ranks that pass the same operations get plans that match. Also returns the cost model's answers
 * (tune.h) for the same request. */
#ifndef TUTTI_CORE_PLAN_H
#define TUTTI_CORE_PLAN_H

#include "core/topology/graph.h"

struct tune_file;
struct tuner;
struct custom_schedule;

/* One operation of a group, checked, with averages and user operators already turned into kernel operators.
 * Gather and scatter are already expanded into sends and receives; all-to-all is expanded unless an algorithm
 * supports it. */
struct plan_op {
  uint8_t func;       /* BROADCAST..ALL_REDUCE, SEND, RECV, ALL_TO_ALL */
  uint8_t dtype, op;  /* ncclDataType_t, enum work_op */
  uint32_t peer;      /* root of a collective, other rank of a send or receive */
  size_t count;       /* as in the API call: elements that one rank contributes */
  const void *in;     /* NULL for RECV */
  void *out;          /* NULL for SEND, and for REDUCE away from the root */
  uint64_t op_arg;    /* as in struct work */
  const void *scalar; /* on the device: what op_arg is when the operation begins; NULL: op_arg is known */
  uint64_t sequence;  /* number of the call on its communicator, from 0 */
};

/* What plans depend on besides operations and topology: set by the environment, the communicator's config and
 * what its devices have in common. Equal on all ranks. */
struct plan_settings {
  struct plan_limits limits;
  uint32_t algo_mask[FUNC_COUNT];    /* bit i = allowed (NCCL_ALGO); never 0 */
  uint32_t proto_mask[FUNC_COUNT];   /* bit i = allowed (NCCL_PROTO); never 0 */
  uint32_t proto_named[FUNC_COUNT];  /* set of protocols that NCCL_PROTO names */
  uint32_t protos_torn;              /* protocols not in proto_mask because a path would tear their lines */
  uint32_t algos_off;                /* set of algorithms that their own variables disable */
  uint32_t max_threads[PROTO_COUNT]; /* NCCL_NTHREADS etc., for the cost model; 0: its default */
  uint32_t thread_bytes[2][PROTO_COUNT]; /* NCCL_THREAD_THRESHOLDS of Tree and Ring; 0: the model's default */
  const struct tune_file *tune_file;     /* the user's tuning file, or NULL */
  struct tuner *tuner;                   /* the rank's tuner plugin, or NULL; planning asks it */
  size_t p2p_ll_threshold;               /* bytes per channel below which point-to-point uses LL */
  uint32_t net_peer_channels;            /* maximum channels of a message between nodes; 0: as on one node */
  bool net_plain;                        /* messages over a network use Simple only */
  bool rank_order;                       /* TUTTI_SUM_ORDER=rank: sums fold from rank 0 on */
  bool reads_slots;                      /* NCCL_P2P_READ_ENABLE=1: WORK_READS_SLOTS where it is possible */
};

struct plan_request {
  uint32_t rank, rank_count;
  const struct custom_schedule *custom; /* the user's schedule, or NULL; outlives the plan */
  const struct graph *graph;            /* the communicator's; outlives the plan, whose works point into it */
  struct plan_settings settings;
  const uint32_t *groups; /* by rank: equal numbers share memory, others use a network; NULL: all share */
  const uint32_t *p2p_domains; /* by rank: those of one domain store into each other's output; NULL: all do */
  const struct plan_op *ops;
  uint32_t op_count;
};

/* Default limits, used where no backend sets its own, as in the tools that show a plan without running it:
 * all algorithms, and the maximum number of links per step. */
void plan_limits_default(struct plan_limits *limits);

/* Bytes after a slice in its slots that belong to the proxies. A communicator with ranks behind networks adds
 * them to its slots, on all of its ranks, before plans and connections are made (settings_settle). */
#define PLAN_RESERVED_BYTES 256
void plan_limits_reserve(struct plan_limits *limits);

/* Fills a request of rank 0 without operations, for the tools: default limits, every algorithm and protocol
 * allowed, no thresholds; ranks of different nodes of the graph use a network. `graph`: NULL for custom
 * schedules, which have no channels. */
void plan_request_begin(struct plan_request *request, uint32_t rank_count, const struct graph *graph);

/* Fills *plan, which may be empty; free it with plan_free(). ncclInvalidUsage: no allowed algorithm and
 * protocol fits (the message names the variable); ncclSystemError: out of memory. */
ncclResult_t plan_build(const struct plan_request *request, struct plan *plan);
void plan_free(struct plan *plan);
/* Hash of the members of collective works that must be equal on all ranks. */
uint64_t plan_digest(const struct plan *plan);

/* Working memory of planning, grown as needed and kept between plans, so that frequent planning allocates
 * only for plans larger than all before. Initially all zero. */
struct plan_memory {
  struct plan_cache *cache; /* plan_cache.h; not used by planning itself */
  void *messages, *tasks, *draft, *plan;
  size_t message_bytes, task_bytes, draft_bytes, plan_bytes;
};

/* As plan_build(), but the plan is stored in `memory`, until the next plan there or plan_memory_free(). */
ncclResult_t plan_build_within(const struct plan_request *request, struct plan_memory *memory,
                               struct plan *plan);
void plan_memory_free(struct plan_memory *memory);

/* Predicted time of all operations of the request, microseconds. */
double plan_time_us(const struct plan_request *request);

#endif
