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

#endif
