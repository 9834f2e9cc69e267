/* archive.h: files as they are, or compressed with zstd, which their first bytes show. The uncompressed size
 * is bounded, whatever the file claims. */
#ifndef TUTTI_SIM_ARCHIVE_H
#define TUTTI_SIM_ARCHIVE_H

#include <stddef.h>

#include "nccl.h"

/* Limit of a file's size, compressed and uncompressed. */
#define ARCHIVE_BYTES_MOST (256u << 20)

struct archive {
  char *bytes; /* os_alloc'ed, with a zero at the end */
  size_t byte_count;
  char damage[160]; /* why only the first part was uncompressed; "": all of it was */
};

/* Reads and uncompresses a file. ncclInvalidArgument, and a sentence, if nothing of it can be read;
 * ncclSystemError when memory is out. */
ncclResult_t archive_read(const char *path, struct archive *archive);
/* Writes these bytes compressed. */
ncclResult_t archive_write(const char *path, const void *bytes, size_t byte_count);

#endif
