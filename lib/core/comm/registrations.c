/* registrations.c: a short list, searched linearly. */
#include "core/comm/registrations.h"

#include "base/os.h"

void registrations_free(struct registration *list) {
  for (struct registration *next; list; list = next) {
    next = list->next;
    os_free(list);
  }
}

bool registrations_hold(const struct registration *list, const void *address) {
  for (const struct registration *row = list; row; row = row->next)
    if ((uintptr_t)address - row->begin < row->bytes) return true;
  return false;
}
