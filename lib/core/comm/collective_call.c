/* collective_call.c: what a call reads and writes. */
#include "core/comm/collective_call.h"

#include "kernels/kernels.h"

void collective_blocks(const struct collective_call *call, size_t *in_blocks, size_t *out_blocks) {
  const struct ncclComm *comm = call->comm;
  const bool root = (uint32_t)call->peer == comm->rank;
  const size_t all = comm->rank_count;
  *in_blocks = *out_blocks = 1;
  switch (call->func) {
    case FUNC_BROADCAST: *in_blocks = root; break;
    case FUNC_REDUCE: *out_blocks = root; break;
    case FUNC_ALL_GATHER: *out_blocks = all; break;
    case FUNC_REDUCE_SCATTER: *in_blocks = all; break;
    case FUNC_SEND: *out_blocks = 0; break;
    case FUNC_RECV: *in_blocks = 0; break;
    case FUNC_ALL_TO_ALL: *in_blocks = *out_blocks = all; break;
    case FUNC_SCATTER: *in_blocks = root ? all : 0; break;
    case FUNC_GATHER: *out_blocks = root ? all : 0; break;
    default: break;
  }
}

const void *collective_scalar(const struct collective_call *call) {
  return func_reduces(call->func) ? redop_scalar(&call->comm->redops, call->op) : NULL;
}

struct plan_call collective_uses(const struct collective_call *call, uint64_t sequence) {
  const size_t block = call->count * kernel_type_bytes((uint8_t)call->dtype);
  size_t in_blocks, out_blocks;
  collective_blocks(call, &in_blocks, &out_blocks);
  return (struct plan_call){.name = call->name,
                            .caller = call->caller,
                            .in = call->in,
                            .out = call->out,
                            .scalar = collective_scalar(call),
                            .scalar_bytes = (uint8_t)kernel_type_bytes((uint8_t)call->dtype),
                            .in_bytes = in_blocks * block,
                            .out_bytes = out_blocks * block,
                            .func = call->func,
                            .peer = (uint32_t)call->peer,
                            .sequence = sequence};
}
