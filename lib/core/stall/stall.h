/* stall.h: finds out why a communicator makes no progress. If a rank's kernels or networks have made no
 * progress for TUTTI_STALL_SECONDS, a thread of the process asks the processes of the ranks that it waits
 * for: have they left, have they called the operation, what do they wait for, which message is next. A peer
 * that has left, and a network that both ends wait for, break the communicator. A peer that is late is named
 * in a warning, repeated each time the wait has doubled. A late or missing answer proves nothing. */
#ifndef TUTTI_CORE_STALL_H
#define TUTTI_CORE_STALL_H

#include <stdint.h>

#include "base/err.h"

struct remote;
struct remote_watcher;
struct stall;

/* For remote_open(): the callbacks of stall.h, survey.h and watchdog.h (watcher.c). */
extern const struct remote_watcher stall_watcher;

/* Watches the ranks of this process in a communicator of several processes; open it before any operation. */
ncclResult_t stall_open(struct remote *remote, struct stall **stall);
/* On return the communicator is no longer examined. NULL is allowed. */
void stall_close(struct stall *stall);

/* Answers another process's question, as a control_handler does. */
ncclResult_t stall_answer(struct remote *remote, const void *request, uint32_t bytes, void *reply,
                          uint32_t *reply_bytes);

#endif
