/* records.h: files of records as verbs take them: binary, or the text twin, which is packed first, or what
 * others have left (import.h); each as it is or packed by zstd. */
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
  RECORDS_DIAGNOSED /* as digest.h keeps them: files have no bytes, nor places of calls */
};

struct records {
  struct record_file *files;
  void **memory;
  uint32_t count, capacity;
  const char **refused_paths; /* of which a sentence told */
  uint32_t refused;
  uint32_t sources; /* of all files that were read: bits of enum record_source */
};

/* What can be read of these files, in this order; logs last. Each thing that cannot is told on stderr, behind
 * the verb's name. False when memory is out. A file that changes meanwhile is taken as it was read; nothing
 * of it is mapped, so one that is cut off at that moment is one that ends there. */
bool records_read(const char *verb, enum records_use use, int path_count, char **paths,
                  struct records *records);
void records_free(struct records *records);

/* True, and a sentence, where the files are of several sources, which call communicators by names of their
 * own. */
bool records_mixed(const char *verb, const struct records *records);

/* What files of these sources cannot tell; NULL: nothing is missing. */
const char *records_lack(const struct records *records);

#endif
