/* collective.h: turns a call of a collective, a send or a receive into an operation of its group. */
#ifndef TUTTI_CORE_COLLECTIVE_H
#define TUTTI_CORE_COLLECTIVE_H

#include "core/comm/collective_call.h"

/* Checks everything about the call that can be checked without other ranks. */
ncclResult_t collective_check(const struct collective_call *call);
/* The part of that which is about the stream. */
ncclResult_t collective_check_stream(const struct collective_call *call);
/* Checks the call and adds it to the group. */
ncclResult_t collective_note(const struct collective_call *call);

/* Says in `text` what is wrong with memory that the rank's kernels are to use; leaves it as it is if nothing
 * is. */
#define CHECK_TEXT_BYTES 192
ncclResult_t check_memory(const struct ncclComm *comm, const char *which, const void *pointer, size_t bytes,
                          char text[CHECK_TEXT_BYTES]);

#endif
