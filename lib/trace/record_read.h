/* record_read.h: reads record files, which a killed process, a full disk or anybody else may have left in any
 * state. Every number is validated: what can be read is used, the rest is reported with its offset. The views
 * point into the caller's bytes; only the array of views is allocated. */
#ifndef TUTTI_TRACE_RECORD_READ_H
#define TUTTI_TRACE_RECORD_READ_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "trace/record.h"

/* A problem in a file: the offset, and a sentence that says what is there and what was expected. */
struct record_finding {
  const char *file;
  uint64_t offset;
  const char *text;
};
typedef void (*record_report)(void *argument, const struct record_finding *finding);

struct record_listener {
  record_report tell; /* NULL: findings are ignored */
  void *argument;
  uint32_t told; /* number of findings so far; only the first RECORD_FINDINGS_MOST are reported */
};
#define RECORD_FINDINGS_MOST 20u

/* One communicator's section. Rows and records are known to lie within the file. */
struct record_view {
  const struct record_comm *comm;
  const uint8_t *ring;
  const struct record_plan *plans;
  const struct record_lane *lanes;
  const struct record_link *links;
  const struct record_proxy *proxies;
  const struct record_pace *paces;
  const struct record_input *inputs;
  uint64_t offset;       /* of the section in the file */
  uint32_t ring_records; /* a power of two; 0 if the ring cannot be read */
  uint32_t plan_rows, lane_rows, link_rows, proxy_rows, pace_rows, input_rows;
  uint64_t first, end; /* the ring holds the records [first, end) */
};

struct record_file {
  const char *name;
  const uint8_t *bytes;
  size_t byte_count;
  struct record_header header;
  bool live, gone;   /* set by the caller if it knows that the process runs, or has ended */
  bool stopped;      /* set by the caller: a signal or a debugger has stopped the process */
  uint64_t taken_ns; /* when the file was read, on the process's clock; last_ns of the header if not known */
  const struct record_caller *callers; /* RECORD_CALLERS rows; NULL if the file ends before them */
  struct record_view *views;
  uint32_t view_count, view_capacity;
};

/* The caller keeps `bytes`, aligned to 8, until record_file_free(). ncclInvalidArgument if nothing can be
 * read, ncclSystemError if out of memory; in both cases there is nothing to free. */
ncclResult_t record_file_read(const char *name, const void *bytes, size_t byte_count,
                              struct record_listener *listener, struct record_file *file);
void record_file_free(struct record_file *file);

/* True if the bytes begin like a record file. */
bool record_is_file(const void *bytes, size_t byte_count);

/* The record with this number, first <= number < end. */
static inline const union record *record_at(const struct record_view *view, uint64_t number) {
  const size_t row = (size_t)(number & (view->ring_records - 1));
  return (const union record *)(const void *)(view->ring + row * RECORD_BYTES);
}

/* The row of a return address, with a zero-terminated file name; NULL if there is none. */
const struct record_caller *record_caller_of(const struct record_file *file, uint64_t address);

/* Nanoseconds from the creation of the file to `ticks`. */
double record_elapsed_ns(const struct record_header *header, uint64_t ticks);

#endif
