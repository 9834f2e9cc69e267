/* bootstrap.h: unique ids: how the ranks of a communicator to be recognise each other before they have one.
 * All ranks live in this process in this release, so an id is a number and a nonce; an address to call at is
 * what it lacks for more. */
#ifndef TUTTI_CORE_BOOTSTRAP_H
#define TUTTI_CORE_BOOTSTRAP_H

#include <stdint.h>

#include "base/err.h"

/* A fresh id of this process. */
void bootstrap_id_create(ncclUniqueId *id);

/* key[0] = the id's number, counted in the order of creation; key[1] = its nonce. Not an id:
 * ncclInvalidArgument; of another process or version: ncclInvalidUsage. `call` and `rank` are for the
 * sentence. */
ncclResult_t bootstrap_id_read(const ncclUniqueId *id, const char *call, uint32_t rank, uint64_t key[2]);

/* Counts anew from 1: a process without communicators is like a fresh one, and its next run repeats the
 * last. */
void bootstrap_restart_numbers(void);

#endif
