/* archive.h: files as people keep them: as they are, or packed by zstd, which is told by their first bytes.
 * What a file unpacks to is bounded, whatever it says of itself. */
#ifndef TUTTI_SIM_ARCHIVE_H
#define TUTTI_SIM_ARCHIVE_H

#include <stddef.h>

#include "nccl.h"

/* Of a file, and of what it unpacks to. */
#define ARCHIVE_BYTES_MOST (256u << 20)

struct archive {
  char *bytes; /* os_alloc'ed, a zero behind the last */
  size_t byte_count;
  char damage[160]; /* why only the begin of it could be unpacked; "": all of it was */
};

/* Reads a file, and unpacks it. ncclInvalidArgument, and a sentence, where nothing of it can be read;
 * ncclSystemError when memory is out. */
ncclResult_t archive_read(const char *path, struct archive *archive);
/* Writes these bytes packed. */
ncclResult_t archive_write(const char *path, const void *bytes, size_t byte_count);

#endif
