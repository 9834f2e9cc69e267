/* pmix.h: a few bytes from rank 0 to all ranks of a launch through PMIx, where a launcher offers it and
 * libpmix.so.2 is installed: looked for at run time, as no program should need it that does not use it.
 * Joins PMIx at the first call and leaves it when the process ends, beside an MPI that does the same. */
#ifndef TUTTI_BASE_PMIX_H
#define TUTTI_BASE_PMIX_H

#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* Offers `bytes` of data under `key` to all ranks. No libpmix, or it refuses: ncclSystemError. */
ncclResult_t pmix_publish(const char *key, const void *data, size_t bytes);
/* What rank 0 offers under `key`, waited for at most `seconds`; exactly `bytes` of it. Not offered in time,
 * or of another length: ncclRemoteError. */
ncclResult_t pmix_lookup(const char *key, void *data, size_t bytes, int seconds);
/* The number of ranks of this job; this process's number among those of its host, and their number, 0 when
 * PMIx does not say. */
ncclResult_t pmix_counts(int *rank_count, int *local_rank, int *local_count);

#endif
