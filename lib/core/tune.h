/* tune.h: the cost model: time(operation, algorithm, protocol) = latency + bytes / bandwidth, and the choice
 * that follows from it. Pure arithmetic over one table of data; the figures are those of NVLink-connected
 * GPUs of the Hopper class. */
#ifndef TUTTI_CORE_TUNE_H
#define TUTTI_CORE_TUNE_H

#include "core/plan.h"

/* Predicted microseconds of one collective (or of one message of `bytes` for SEND and RECV) with a ring and a
 * protocol. `bytes` counts a rank's contribution for all-reduce, broadcast and reduce, all ranks' for
 * all-gather and reduce-scatter. */
double tune_time_us(uint8_t func, uint8_t proto, size_t bytes, uint32_t rank_count, uint32_t channel_count);

/* How an operation is carried. */
struct tune_choice {
  uint8_t algo, proto; /* enum work_algo, work_proto */
};

/* The allowed algorithm and protocol with the least predicted time; ncclInvalidUsage, with the rule that
 * forbids each, when none is left. `bytes` as in tune_time_us(). */
ncclResult_t tune_choose(const struct plan_request *request, uint8_t func, size_t bytes,
                         struct tune_choice *choice);

/* The allowed protocol with the least predicted time. */
uint8_t tune_proto(uint8_t func, size_t bytes, uint32_t rank_count, uint32_t channel_count,
                   uint32_t proto_mask);

/* Bytes by which the model measures an operation; see tune_time_us. */
size_t tune_bytes(uint8_t func, size_t count, uint32_t element_bytes, uint32_t rank_count);

#endif
