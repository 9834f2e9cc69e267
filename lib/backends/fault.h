/* fault.h: what goes wrong in an emulated world: one fault, which happens to the k-th message of a network,
 * or to the k-th slice that a lane posts. Pure: the same plan and the same messages give the same run. Who
 * carries them does what it says. */
#ifndef TUTTI_BACKENDS_FAULT_H
#define TUTTI_BACKENDS_FAULT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum fault_kind {
  FAULT_NOTHING,
  FAULT_DROP,      /* the message is lost; its sender is not told */
  FAULT_DUPLICATE, /* it arrives twice */
  FAULT_HOLD,      /* it comes late, and with it all behind it on its connection */
  FAULT_CUT,       /* its two ranks hear nothing of each other any more; both find out, late */
  FAULT_STOP,      /* its sender falls silent towards all ranks, and nobody is told */
  FAULT_RESET,     /* its connection ends at once, at both ends */
  FAULT_REFUSE,    /* its connection takes no message behind it any more */
  FAULT_LINGER,    /* it arrives, and its sender never hears of it */
  FAULT_SLOW,      /* its connection takes long for it, and for each one behind it */
  FAULT_FREEZE,    /* slices, here and below: the lane that has posted it makes no move any more */
  FAULT_STALE,     /* the counter that was to tell of it stays as it is from then on */
  FAULT_CORRUPT,   /* that counter shows a number from then on that it cannot have */
  FAULT_COUNT
};
#define FAULT_IS_LANES(kind) ((kind) >= FAULT_FREEZE)
extern const char *const fault_names[]; /* by kind; NULL behind the last */

struct fault_plan {
  enum fault_kind kind;
  uint64_t at;    /* the message that it happens to, from 1 */
  uint64_t count; /* messages so far */
};

/* `at` 0: one of the first FAULT_DRAWN, drawn from the seed. */
#define FAULT_DRAWN 64
void fault_plan_make(struct fault_plan *plan, enum fault_kind kind, uint64_t at, uint64_t seed);
/* What happens to the next message. */
enum fault_kind fault_next(struct fault_plan *plan);

#endif
