/* pmix.h: distributes a few bytes from rank 0 to all ranks of a launch through PMIx, if the launcher offers
 * it and libpmix.so.2 is installed. The library is loaded at run time, so programs do not depend on it. Joins
 * PMIx at the first call and leaves it at process exit; an MPI library may use PMIx in the same process. */
#ifndef TUTTI_BASE_PMIX_H
#define TUTTI_BASE_PMIX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* True if the library is installed. */
bool pmix_is_here(void);
/* Publishes `bytes` of data under `key` to all ranks. ncclSystemError: no libpmix, or PMIx refused. */
ncclResult_t pmix_publish(const char *key, const void *data, size_t bytes);
/* Reads exactly `bytes` that rank 0 has published under `key`, waiting at most `seconds`. ncclRemoteError:
 * not published in time, or of another length. */
ncclResult_t pmix_lookup(const char *key, void *data, size_t bytes, int seconds);
/* The number of ranks of this job; this process's rank among those of its host, and their number; 0 if PMIx
 * does not know. */
ncclResult_t pmix_counts(int *rank_count, int *local_rank, int *local_count);

#endif
