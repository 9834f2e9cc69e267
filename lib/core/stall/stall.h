/* stall.h: why nothing moves. Where a rank's kernels or its networks have made no progress for
 * TUTTI_STALL_SECONDS, a thread of the process asks the processes of the ranks that are waited for: have they
 * left, have they called the operation, what do they wait for, which message is the next. A peer that has
 * left, and a network that both ends wait for, break the communicator; a peer that is merely behind is named
 * in a warning, whenever it has lasted twice as long. A late answer, or none, proves nothing. */
#ifndef TUTTI_CORE_STALL_H
#define TUTTI_CORE_STALL_H

#include <stdint.h>

#include "base/err.h"

struct remote;
struct remote_watcher;
struct stall;

/* For remote_open(): this, and survey.h's and watchdog.h's part (watcher.c). */
extern const struct remote_watcher stall_watcher;

/* Watches over the ranks of this process in a communicator of several; before any operation. */
ncclResult_t stall_open(struct remote *remote, struct stall **stall);
/* No look at the communicator is under way when it returns. NULL is allowed. */
void stall_close(struct stall *stall);

/* Answers another process's question, as a control_handler does. */
ncclResult_t stall_answer(struct remote *remote, const void *request, uint32_t bytes, void *reply,
                          uint32_t *reply_bytes);

#endif
