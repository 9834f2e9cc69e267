/* own_copy.h: what a plan only moves within its device, from the rank's input to its own place in the output,
 * while its kernel sends the same data to others (own_copy.c). Plain arithmetic, no CUDA. */
#ifndef TUTTI_BACKENDS_CUDA_OWN_COPY_H
#define TUTTI_BACKENDS_CUDA_OWN_COPY_H

#include <stdbool.h>

#include "schedule/plan.h"

struct own_copy {
  const void *from;
  void *to;
  size_t bytes;
};

/* The one copy that works of a plan carry between them, where it is long enough to be worth a way of its own;
 * false, and 0 bytes, where there is none, or more than one. */
bool own_copy_find(const struct plan *plan, struct own_copy *copy);
/* Whether a work carries a part of such a copy. */
bool own_copy_takes(const struct work *work);
/* That work without its part. */
void own_copy_leave(struct work *work);

#endif
