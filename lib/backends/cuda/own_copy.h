/* own_copy.h: finds what a plan only moves within its device, from the rank's input to its place in the
 * output, while its kernel sends the same data to others (own_copy.c). Plain arithmetic, no CUDA. */
#ifndef TUTTI_BACKENDS_CUDA_OWN_COPY_H
#define TUTTI_BACKENDS_CUDA_OWN_COPY_H

#include <stdbool.h>

#include "schedule/plan.h"

struct own_copy {
  const void *from;
  void *to;
  size_t bytes;
};

/* The one copy that the works of a plan contain, if it is long enough for a copy engine; false, and 0 bytes,
 * if there is none, or more than one. */
bool own_copy_find(const struct plan *plan, struct own_copy *copy);
/* Whether a work contains a part of such a copy. */
bool own_copy_takes(const struct work *work);
/* Removes its part of the copy from the work. */
void own_copy_leave(struct work *work);

#endif
