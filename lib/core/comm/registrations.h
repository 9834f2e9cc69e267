/* registrations.h: buffers that the user registered with ncclCommRegister, as address ranges with a reference
 * count. */
#ifndef TUTTI_CORE_REGISTRATIONS_H
#define TUTTI_CORE_REGISTRATIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct registration {
  struct registration *next;
  uintptr_t begin;
  size_t bytes;
  uint32_t user_count;
  uint64_t memory_id; /* struct pointer_info.id of the allocation */
  const void *caller; /* who registered it first */
};

void registrations_free(struct registration *list);
/* True if `address` is in a registered buffer, which the program will use again. */
bool registrations_hold(const struct registration *list, const void *address);

#endif
