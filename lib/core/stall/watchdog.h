/* watchdog.h: one thread of the process, asleep but for a look a second, that notices operations which have
 * launched and of which nothing has moved for TUTTI_WATCHDOG_SECONDS. Then the records of all processes are
 * gathered (survey.h), diagnosed as `tutti explain` does, and every process logs the sentence, once. Breaks
 * nothing: who is to be given up is for stall.h to say. The thread also gathers for `tutti status`. */
#ifndef TUTTI_CORE_WATCHDOG_H
#define TUTTI_CORE_WATCHDOG_H

#include <stdint.h>

#include "base/err.h"

/* A communicator of this process more, or fewer; with the last one the thread goes. */
void watchdog_enter(void);
void watchdog_leave(void);

/* Another process of a communicator has noticed a stall: diagnose it, and tell all. Does not wait. */
ncclResult_t watchdog_alarm(void);
/* Another process has diagnosed; "": nothing makes no progress. `text` is `bytes` long, and may be anything.
 */
void watchdog_receive(const char *text, uint32_t bytes);

/* Answers a question about the whole job, as a control_handler does: struct survey_question. Does not wait.
 */
ncclResult_t watchdog_answer(const void *request, uint32_t bytes, void *reply, uint32_t *reply_bytes);

#endif
