/* wake.h: a place where one thread sleeps until another wakes it, until a descriptor can be read, or until
 * time has passed. Wakes are kept: one that comes before the sleep ends it at once. */
#ifndef TUTTI_BASE_WAKE_H
#define TUTTI_BASE_WAKE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

#define WAKE_DESCRIPTORS_MAX 64

/* ncclSystemError when the process is out of descriptors. */
ncclResult_t wake_open(int *wake);
void wake_close(int wake); /* -1 is allowed */
void wake_signal(int wake);
/* timeout_us UINT64_MAX: no end. Takes what was signalled. */
void wake_wait(int wake, const int *descriptors, uint32_t count, uint64_t timeout_us);

#endif
