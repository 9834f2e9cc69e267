/* records.h: files of records as verbs read them: binary, or as text, which is packed first, or files of
 * other tools (import.h); each may be compressed with zstd. */
#ifndef TUTTI_SIM_RECORDS_H
#define TUTTI_SIM_RECORDS_H

#include "trace/record_read.h"

enum record_source {
  SOURCE_RECORDS = 1, /* this library's own */
  SOURCE_FLIGHT = 2,  /* PyTorch's Flight Recorder */
  SOURCE_LOG = 4      /* NCCL_DEBUG_SUBSYS=COLL */
};

enum records_use {
  RECORDS_WHOLE,
  RECORDS_DIAGNOSED /* reduced as in digest.h: files have no bytes, and few places of calls */
};

struct records {
  struct record_file *files;
  void **memory;
  uint32_t count, capacity;
  const char **refused_paths; /* each has been reported */
  uint32_t refused;
  uint32_t sources; /* of all files that were read: bits of enum record_source */
};

/* Reads these files, in this order; logs last. Errors are reported on stderr after the verb's name. False
 * when memory is out. Files are read completely and not mapped, so a file that changes meanwhile is used as
 * it was read, and one that is truncated meanwhile ends there. */
bool records_read(const char *verb, enum records_use use, int path_count, char **paths,
                  struct records *records);
void records_free(struct records *records);

/* True, and a sentence, if the files are of several sources, which name communicators differently. */
bool records_mixed(const char *verb, const struct records *records);

/* What files of these sources do not record; NULL: nothing is missing. */
const char *records_lack(const struct records *records);

#endif
