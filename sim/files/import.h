/* import.h: files of other libraries and tools, converted to files of records: dumps of PyTorch's Flight
 * Recorder and logs with NCCL_DEBUG_SUBSYS=COLL. They list calls, with little about their progress; unknown
 * values are omitted. Unusable parts are reported, and the rest is used. */
#ifndef TUTTI_SIM_IMPORT_H
#define TUTTI_SIM_IMPORT_H

#include <jansson.h>
#include <stdbool.h>

#include "files/image.h"
#include "nccl.h"

/* Where to report unusable parts of a file; at most 20 reports. */
struct import {
  const char *verb; /* printed before each report; NULL: no reports */
  const char *path;
  uint32_t told;
};
void import_report(struct import *import, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A dump of one rank, whose number ends the file's name. ncclInvalidArgument if it is not a dump,
 * ncclSystemError when memory is out. */
ncclResult_t flight_import(struct import *import, const json_t *dump, struct image *image);

/* Logs of one job, of all its processes, in one file or several. */
struct nccl_log;
struct nccl_log *nccl_log_open(void); /* NULL: memory is out */
bool nccl_log_is(const char *text, size_t text_bytes);
ncclResult_t nccl_log_read(struct nccl_log *log, struct import *import, const char *text, size_t text_bytes);
/* After all files: reports ranks that used a communicator whose creation is not in the log. */
void nccl_log_finish(struct nccl_log *log, struct import *import);
uint32_t nccl_log_processes(const struct nccl_log *log);
const struct image *nccl_log_image(const struct nccl_log *log, uint32_t process, const char **path);
void nccl_log_close(struct nccl_log *log);

#endif
