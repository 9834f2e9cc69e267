/* registrations.h: buffers that the user announced with ncclCommRegister, as address ranges with a count of
 * their users. */
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
};

void registrations_free(struct registration *list);
/* True for memory that the program has announced: it means to use it again. */
bool registrations_hold(const struct registration *list, const void *address);

#endif
