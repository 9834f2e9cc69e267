/* one_sided.h: what a rank has signalled and awaited, and the one-sided calls of its open group. */
#ifndef TUTTI_CORE_ONE_SIDED_H
#define TUTTI_CORE_ONE_SIDED_H

#include "backends/backend.h"
#include "core/comm/windows.h"

/* A put, or a signal alone: await_count 0; else a wait. */
struct one_sided_call {
  struct device_put put; /* of a wait: its call */
  device_stream stream;
  uint32_t first_await, await_count;
  bool copies; /* part of a collective: made in the order of these */
  bool waits;
};

/* A window of a rank of another process, or, with number 0, its counters of signals alone. */
struct one_sided_there {
  struct one_sided_there *next;
  uint32_t peer;
  struct window window; /* `begin`: mapped here ... */
  uint32_t unmapped;    /* ... when so much was unmapped */
};

struct one_sided {
  struct one_sided_there *there;
  uint32_t unmapped; /* atomic: how often memory of another process was unmapped here */
  uint64_t *signalled,
      *awaited; /* by signal_place(): signals for a rank, and of it, that calls have launched; NULL: none */
  struct one_sided_call *calls; /* of the open group */
  uint32_t call_count, call_capacity;
  struct device_await *awaits; /* of these; numbered when they are launched */
  uint32_t await_count, await_capacity;
};

#endif
