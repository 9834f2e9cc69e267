/* request.h: a call as a user makes it -> the plans of all ranks and what memory must hold at the end. Plans
 * come from plan_build, as the library's do. */
#ifndef TUTTI_SIM_CHECK_REQUEST_H
#define TUTTI_SIM_CHECK_REQUEST_H

#include "check/check.h"

struct check_call {
  uint8_t func;      /* enum work_func: a collective, ALL_TO_ALL, GATHER, SCATTER, SEND_RECV */
  uint8_t dtype, op; /* ncclDataType_t; enum work_op */
  bool in_place;
  uint32_t rank_count, root;
  uint32_t group_count; /* the call so often in one group, each time with the next root and buffers of its
                           own; 0 is 1 */
  uint32_t algo_mask, proto_mask; /* what planning may choose from */
  uint32_t first_step;            /* at which connections' counters begin */
  size_t count;                   /* as the call takes it, elements */
  size_t p2p_ll_threshold;        /* bytes */
  struct plan_limits limits;
  const struct graph *graph;
  uint32_t place, unit_bytes;           /* of a group's calls; check_setup_frame() sets them */
  const struct custom_schedule *custom; /* steps of a file, or NULL; outlives the plans */
  const struct tune_file *tune_file;    /* rules that choose, or NULL */
};

/* Everything that check_run() needs, and its memory; all zero at first, used again and again. */
struct check_setup {
  struct check_input input;
  struct check_op *op_rows; /* by call of the group */
  struct check_call *calls;
  struct plan *plans;
  struct plan_memory *memories;
  struct check_region *regions;
  struct check_segment *segments;
  struct plan_op *ops;
  uint32_t rank_capacity, group_capacity;
};
/* Fails as plan_build() does. */
ncclResult_t check_setup_make(struct check_setup *setup, const struct check_call *call);
/* The same without plans: memory for them, buffers and what they must hold. */
ncclResult_t check_setup_frame(struct check_setup *setup, const struct check_call *call);
/* The same with plans of the call from elsewhere, whose buffers and scratch are bound. */
ncclResult_t check_setup_bind(struct check_setup *setup, const struct check_call *call,
                              const struct plan *plans);
/* Where the call's buffers of a rank lie. */
void check_call_addresses(const struct check_call *call, uint32_t rank, uint64_t *in, uint64_t *out);
void check_setup_free(struct check_setup *setup);

/* What one rank calls for it, as planning takes it, into `ops`: at most 2 * rank_count rows, at least 2; and
 * a request that lacks rank and operations. */
uint32_t check_call_ops(const struct check_call *call, uint32_t rank, struct plan_op *ops);
void check_call_request(const struct check_call *call, struct plan_request *request);

/* NULL, or the rule by which none of the masks' algorithms and protocols can carry the call. */
const char *check_call_forbid(const struct check_call *call, uint8_t algo, uint8_t proto);

/* Sizes as the emulator has them: `chunk_bytes` 0 is production's, else slots shrink with it. */
void check_limits(struct plan_limits *limits, uint32_t slots, uint32_t chunk_bytes, uint32_t channel_count,
                  bool direct);

/* Proves the plans that all ranks make of the request, whose operations are collectives and all-to-alls that
 * all ranks call alike: others' sends and receives cannot be known. Each operation is taken to be in place
 * where it is so on the request's rank, on buffers of its own. */
bool check_plan_of_request(struct check_engine *engine, const struct plan_request *request,
                           struct check_report *report);

uint32_t check_type_bytes(uint8_t dtype);

#endif
