/* fault.h: fault injection for emulated and plugin networks: one fault, applied to the k-th message of a
 * network, or to the k-th slice that a lane posts. Pure: the same plan and the same messages give the same
 * fault. The network or the scheduler applies it. */
#ifndef TUTTI_BACKENDS_FAULT_H
#define TUTTI_BACKENDS_FAULT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum fault_kind {
  FAULT_NOTHING,
  FAULT_DROP,      /* the message is lost; its sender gets no error */
  FAULT_DUPLICATE, /* the message arrives twice */
  FAULT_HOLD,      /* it is late, with all later messages of its connection */
  FAULT_CUT,       /* its two ranks lose contact; both detect it, late */
  FAULT_STOP,      /* its sender goes silent towards all ranks, without an error */
  FAULT_RESET,     /* its connection ends at once, at both ends */
  FAULT_REFUSE,    /* its connection accepts no later messages */
  FAULT_LINGER,    /* it arrives, but its send request never completes */
  FAULT_SLOW,      /* its connection is slow for it and for all later messages */
  FAULT_FREEZE,    /* slices, here and below: the lane that posted it stops */
  FAULT_STALE,     /* the counter that should announce it does not change any more */
  FAULT_CORRUPT,   /* that counter has an impossible value from then on */
  FAULT_COUNT
};
#define FAULT_IS_LANES(kind) ((kind) >= FAULT_FREEZE)
extern const char *const fault_names[]; /* by kind; NULL after the last */

struct fault_plan {
  enum fault_kind kind;
  uint64_t at;    /* number of the affected message, from 1 */
  uint64_t count; /* messages so far */
};

/* `at` 0: one of the first FAULT_DRAWN messages, drawn from the seed. */
#define FAULT_DRAWN 64
void fault_plan_make(struct fault_plan *plan, enum fault_kind kind, uint64_t at, uint64_t seed);
/* The fault of the next message. */
enum fault_kind fault_next(struct fault_plan *plan);

#endif
