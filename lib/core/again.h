/* again.h: calls that are made again with the same arguments, as loops make them. Such a call was checked and
 * planned, and what it needs is connected: it goes straight to the backend, if that kept what it made of it.
 */
#ifndef TUTTI_CORE_AGAIN_H
#define TUTTI_CORE_AGAIN_H

#include <stdbool.h>

#include "backends/backend.h"
#include "nccl.h"

#define AGAIN_CALLS 8
#define AGAIN_WORKS 4 /* a plan of more is so much work that how it is found matters little */

struct collective_call;
struct ncclComm;

struct again_call {
  const void *in;
  void *out;
  size_t count;
  device_stream stream;
  uint64_t serial; /* of the plan; 0: nothing is here */
  int peer;
  uint8_t func, dtype, op;
  struct plan_buffers buffers[AGAIN_WORKS];
};

struct again {
  struct again_call calls[AGAIN_CALLS];
  /* the launch that was made last: what again_note() takes its plan from */
  uint64_t serial, sequence;
  uint32_t work_count;
  const struct plan_buffers *buffers;
};

/* True when the call was one of those, and is launched; *result is what it came to. `call` need not have been
 * checked, and is outside any group. */
bool again_launch(const struct collective_call *call, ncclResult_t *result);
/* What a communicator launches, in a group of its own or with others; by the thread that owns it. */
void again_note_launch(struct ncclComm *comm, const struct plan *plan, uint32_t stream_count);
/* The call has just gone the long way, alone, and well. */
void again_note(const struct collective_call *call);

#endif
