/* register.h: buffers that the user announced with ncclCommRegister, as address ranges with a count of their
 * users. */
#ifndef TUTTI_CORE_REGISTER_H
#define TUTTI_CORE_REGISTER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ncclComm;

struct registration {
  struct registration *next;
  uintptr_t begin;
  size_t bytes;
  uint32_t user_count;
};

void register_list_free(struct registration *list);
/* True for memory that the program has announced: it means to use it again. */
bool register_holds(const struct ncclComm *comm, const void *address);

#endif
