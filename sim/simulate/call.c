/* call.c: see call.h. */
#include "simulate/call.h"

#include <string.h>

void call_fill(const struct graph *graph, uint8_t func, uint8_t dtype, size_t count, uint32_t channels,
               struct check_call *call) {
  memset(call, 0, sizeof *call);
  call->func = func;
  call->dtype = dtype;
  call->op = OP_SUM;
  call->rank_count = graph->rank_count;
  call->algo_mask = (1u << ALGO_COUNT) - 1;
  call->proto_mask = (1u << PROTO_COUNT) - 1;
  call->count = count;
  call->p2p_ll_threshold = 16384;
  call->graph = graph;
  plan_limits_default(&call->limits);
  if (channels > 0) call->limits.channel_count = channels;
  if (call->limits.channel_count > graph->channel_count) call->limits.channel_count = graph->channel_count;
}
