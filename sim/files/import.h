/* import.h: what other libraries and tools leave of a job, as files of records: dumps of PyTorch's Flight
 * Recorder and logs with NCCL_DEBUG_SUBSYS=COLL. They know of calls, and little of what became of them;
 * whatever they do not say is left out. What cannot be used is told, and the rest is used. */
#ifndef TUTTI_SIM_IMPORT_H
#define TUTTI_SIM_IMPORT_H

#include <jansson.h>
#include <stdbool.h>

#include "files/image.h"
#include "nccl.h"

/* Who is told what of a file cannot be used; no more than 20 things. */
struct import {
  const char *verb; /* stands in front; NULL: nobody is told */
  const char *path;
  uint32_t told;
};
void import_report(struct import *import, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* A dump of one rank; which one is the number at the end of the file's name. ncclInvalidArgument where it is
 * none, ncclSystemError when memory is out. */
ncclResult_t flight_import(struct import *import, const json_t *dump, struct image *image);

/* Logs of one job, of all its processes, in one file or in many. */
struct nccl_log;
struct nccl_log *nccl_log_open(void); /* NULL: memory is out */
bool nccl_log_is(const char *text, size_t text_bytes);
ncclResult_t nccl_log_read(struct nccl_log *log, struct import *import, const char *text, size_t text_bytes);
/* After all files: says which ranks communicators are of whose making no line told. */
void nccl_log_finish(struct nccl_log *log, struct import *import);
uint32_t nccl_log_processes(const struct nccl_log *log);
const struct image *nccl_log_image(const struct nccl_log *log, uint32_t process, const char **path);
void nccl_log_close(struct nccl_log *log);

#endif
