/* wake.h: lets one thread sleep until another thread wakes it, a descriptor is readable, or a timeout. A wake
 * that comes before the sleep is kept and ends the sleep at once. */
#ifndef TUTTI_BASE_WAKE_H
#define TUTTI_BASE_WAKE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

#define WAKE_DESCRIPTORS_MAX 64

/* ncclSystemError: the process is out of descriptors. */
ncclResult_t wake_open(int *wake);
void wake_close(int wake); /* -1 is allowed */
void wake_signal(int wake);
/* timeout_us UINT64_MAX: no timeout. Clears the signal. False after the timeout. */
bool wake_wait(int wake, const int *descriptors, uint32_t count, uint64_t timeout_us);

#endif
