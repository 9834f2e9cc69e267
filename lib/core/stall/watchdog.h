/* watchdog.h: one thread per process that checks once per second for launched operations that have made no
 * progress for TUTTI_WATCHDOG_SECONDS. It then gathers the records of all processes (survey.h), diagnoses
 * them as `tutti explain` does, and every process logs the diagnosis once. It breaks no communicator; stall.h
 * decides that. The thread also gathers for `tutti status`. */
#ifndef TUTTI_CORE_WATCHDOG_H
#define TUTTI_CORE_WATCHDOG_H

#include <stdint.h>

#include "base/err.h"

/* Add or remove a communicator of this process; the thread ends with the last one. */
void watchdog_enter(void);
void watchdog_leave(void);

/* Another process of a communicator has noticed a stall: starts a diagnosis and its report to all. Does not
 * wait. */
ncclResult_t watchdog_alarm(void);
/* Another process has sent its diagnosis; "": no hang was found. `text` is `bytes` long and untrusted. */
void watchdog_receive(const char *text, uint32_t bytes);

/* Answers a question about the whole job (struct survey_question), as a control_handler does. Does not wait.
 */
ncclResult_t watchdog_answer(const void *request, uint32_t bytes, void *reply, uint32_t *reply_bytes);

#endif
