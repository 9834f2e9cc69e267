/* leaks.h: what a program made with this library and had not given back when it ended: communicators,
 * registered memory, operators, memory of ncclMemAlloc, and groups that are still open. One line each says
 * what it is and which line of the program made it (TUTTI_LEAK_CHECK). A program that ends with another
 * status than 0, or whose communicators failed or were aborted, is not asked. */
#ifndef TUTTI_CORE_LEAKS_H
#define TUTTI_CORE_LEAKS_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct ncclComm;

/* As LeakSanitizer's. */
#define LEAKS_EXIT_STATUS 23

/* The process makes something that it must give back. Any number of calls. */
void leaks_watch(void);
/* A communicator failed or was aborted. */
void leaks_excuse(void);
/* The communicator is about to be freed: what it still holds is a leak. */
void leaks_leave(const struct ncclComm *comm);
/* A thread ends, and its group with so many calls is open. */
void leaks_group(const void *caller, uint32_t call_count);
/* Memory that ncclMemAlloc has given, and ncclMemFree has taken back. ncclSystemError if memory is out. */
ncclResult_t leaks_memory_add(const void *memory, size_t bytes, uint32_t device_index, const void *caller);
void leaks_memory_remove(const void *memory);

#endif
