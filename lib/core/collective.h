/* collective.h: from a call of a collective, a send or a receive to an operation of its group. */
#ifndef TUTTI_CORE_COLLECTIVE_H
#define TUTTI_CORE_COLLECTIVE_H

#include "core/comm/collective_call.h"

/* Everything that can be said against the call without asking other ranks. */
ncclResult_t collective_check(const struct collective_call *call);
/* Checks it and notes it in the group. */
ncclResult_t collective_note(const struct collective_call *call);

#endif
