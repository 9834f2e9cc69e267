/* request.h: turns a call as a user makes it into the plans of all ranks and the required final contents of
 * memory. Plans come from plan_build, as the library's do. */
#ifndef TUTTI_SIM_CHECK_REQUEST_H
#define TUTTI_SIM_CHECK_REQUEST_H

#include "check/check.h"

struct check_call {
  uint8_t func;      /* enum work_func: a collective, ALL_TO_ALL, GATHER, SCATTER, SEND_RECV */
  uint8_t dtype, op; /* ncclDataType_t; enum work_op */
  bool in_place;
  bool rank_order;  /* TUTTI_SUM_ORDER=rank */
  bool reads_slots; /* NCCL_P2P_READ_ENABLE=1 */
  uint32_t rank_count, root;
  uint32_t
      group_count; /* number of calls in one group, each with the next root and its own buffers; 0 means 1 */
  uint32_t algo_mask, proto_mask; /* the choices of planning */
  uint32_t first_step;            /* initial value of the connections' step counters */
  uint32_t inputs;                /* enum check_inputs */
  size_t count;                   /* as the call takes it, elements */
  size_t p2p_ll_threshold;        /* bytes */
  struct plan_limits limits;
  const struct graph *graph;
  uint32_t place, unit_bytes;           /* for the calls of a group; check_setup_frame() sets them */
  const struct custom_schedule *custom; /* steps from a file, or NULL; outlives the plans */
  const struct tune_file *tune_file;    /* rules that choose, or NULL */
  /* A job's settings, groups and domains, used instead of the masks, limits and rules above; or NULL. */
  const struct plan_request *job;
};

/* Everything that check_run() needs, with its memory; all zero at first, reused from call to call. */
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
/* Fails like plan_build(). */
ncclResult_t check_setup_make(struct check_setup *setup, const struct check_call *call);
/* The same without plans: memory for them, buffers and required contents. */
ncclResult_t check_setup_frame(struct check_setup *setup, const struct check_call *call);
/* The same with plans from elsewhere, whose buffers and scratch are bound. */
ncclResult_t check_setup_bind(struct check_setup *setup, const struct check_call *call,
                              const struct plan *plans);
/* The addresses of the call's buffers on a rank. */
void check_call_addresses(const struct check_call *call, uint32_t rank, uint64_t *in, uint64_t *out);
void check_setup_free(struct check_setup *setup);

/* The operations of one rank, in planning's form, into `ops`: at most 2 * rank_count rows, at least 2; and a
 * request without rank and operations. */
uint32_t check_call_ops(const struct check_call *call, uint32_t rank, struct plan_op *ops);
void check_call_request(const struct check_call *call, struct plan_request *request);

/* NULL, or the rule that forbids all algorithms and protocols of the masks for the call. */
const char *check_call_forbid(const struct check_call *call, uint8_t algo, uint8_t proto);

/* Sizes of the emulator: `chunk_bytes` 0 is production's; otherwise slots shrink with it. */
void check_limits(struct plan_limits *limits, uint32_t slots, uint32_t chunk_bytes, uint32_t channel_count,
                  bool direct);

/* Proves the plans that all ranks make of the request. Its operations must be collectives and all-to-alls
 * that all ranks call alike, since other ranks' sends and receives are unknown. Each operation is taken as in
 * place if it is so on the request's rank, on separate buffers. */
bool check_plan_of_request(struct check_engine *engine, const struct plan_request *request,
                           struct check_report *report);

uint32_t check_type_bytes(uint8_t dtype);

#endif
