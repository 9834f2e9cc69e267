/* own_diagnosis.h: why this process's ranks hang, from its own records. */
#ifndef TUTTI_CORE_STALL_OWN_DIAGNOSIS_H
#define TUTTI_CORE_STALL_OWN_DIAGNOSIS_H

#include <stddef.h>

/* One sentence without the number of the process; "" if nothing hangs, or nothing is recorded. Any thread. */
void own_diagnosis(char *out, size_t out_bytes);

#endif
