/* collective.h: turns a call of a collective, a send or a receive into an operation of its group. */
#ifndef TUTTI_CORE_COLLECTIVE_H
#define TUTTI_CORE_COLLECTIVE_H

#include "core/comm/collective_call.h"

/* Checks everything about the call that can be checked without other ranks. */
ncclResult_t collective_check(const struct collective_call *call);
/* Checks the call and adds it to the group. */
ncclResult_t collective_note(const struct collective_call *call);

#endif
