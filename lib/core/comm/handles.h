/* handles.h: which pointers are communicators. A call checks a handle here before it reads through it, so
 * that a stale or wild one is an error and not a crash. Looking up takes no lock. */
#ifndef TUTTI_CORE_HANDLES_H
#define TUTTI_CORE_HANDLES_H

#include <stdbool.h>
#include <stdint.h>

/* False if memory is out. */
bool handles_add(const void *handle);
void handles_remove(const void *handle);
bool handles_has(const void *handle);
/* What `claim` says of a handle that is not removed meanwhile; false if it is not in the table. */
bool handles_claim(void *handle, bool (*claim)(void *handle, void *argument), void *argument);
/* For a thread that runs alone. */
uint32_t handles_count(void);
void handles_visit(void (*visit)(const void *handle, void *argument), void *argument);

#endif
