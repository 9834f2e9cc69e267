/* collective_call.h: one call of a collective, a send or a receive, as the user made it. */
#ifndef TUTTI_CORE_COLLECTIVE_CALL_H
#define TUTTI_CORE_COLLECTIVE_CALL_H

#include "core/comm/comm.h"

struct collective_call {
  const char *name; /* "ncclAllReduce" */
  uint8_t func;     /* enum work_func */
  const void *in;
  void *out;
  size_t count;
  ncclDataType_t dtype;
  ncclRedOp_t op; /* of reductions */
  int peer;       /* root of rooted functions, other rank of send and receive, else 0 */
  struct ncclComm *comm;
  device_stream stream;
  const void *caller; /* return address of the call; NULL: not recorded */
};

/* Blocks of `count` elements that this rank reads from `in` and writes to `out`; 0 if the buffer is not used.
 */
void collective_blocks(const struct collective_call *call, size_t *in_blocks, size_t *out_blocks);
/* Where the call's operator has its scalar on the device; NULL: nowhere. */
const void *collective_scalar(const struct collective_call *call);
/* What the call reads and writes in bytes, as backends need it. */
struct plan_call collective_uses(const struct collective_call *call, uint64_t sequence);

#endif
