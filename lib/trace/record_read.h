/* record_read.h: reads the files of recorder.c, which a killed process, a full disk or a stranger may have
 * left in any state. Trusts nothing: whatever can be read is used, and what cannot is told with its place.
 * Points into the bytes that it is given, and takes memory for 32 bytes a section beside them. */
#ifndef TUTTI_TRACE_RECORD_READ_H
#define TUTTI_TRACE_RECORD_READ_H

#include <stdbool.h>
#include <stddef.h>

#include "base/err.h"
#include "trace/record.h"

/* What does not fit: the byte, which record or row of what lies there, and what was expected. */
struct record_finding {
  const char *file;
  uint64_t offset;
  const char *text;
};
typedef void (*record_report)(void *argument, const struct record_finding *finding);

struct record_listener {
  record_report tell; /* NULL: nobody listens */
  void *argument;
  uint32_t told; /* findings so far; no more than RECORD_FINDINGS_MOST are told */
};
#define RECORD_FINDINGS_MOST 20u

/* A communicator in a file. Rows and records lie within it. */
struct record_view {
  const struct record_comm *comm;
  const uint8_t *ring;
  const struct record_plan *plans;
  const struct record_lane *lanes;
  const struct record_link *links;
  const struct record_proxy *proxies;
  const struct record_pace *paces;
  uint64_t offset;       /* of the section in the file */
  uint32_t ring_records; /* a power of two; 0: none of them is there */
  uint32_t plan_rows, lane_rows, link_rows, proxy_rows, pace_rows;
  uint64_t first, end; /* numbers of the records that are there */
};

struct record_file {
  const char *name;
  const uint8_t *bytes;
  size_t byte_count;
  struct record_header header;
  const struct record_caller *callers; /* RECORD_CALLERS rows; NULL: the file is cut off before them */
  struct record_view *views;
  uint32_t view_count, view_capacity;
};

/* `bytes` stay the caller's and must stay, aligned to 8. ncclInvalidArgument when nothing of it can be read,
 * ncclSystemError when memory is out: then there is nothing to free. */
ncclResult_t record_file_read(const char *name, const void *bytes, size_t byte_count,
                              struct record_listener *listener, struct record_file *file);
void record_file_free(struct record_file *file);

/* True when the bytes begin like a file of records. */
bool record_is_file(const void *bytes, size_t byte_count);

/* The record of this number, first <= number < end. */
static inline const union record *record_at(const struct record_view *view, uint64_t number) {
  const size_t row = (size_t)(number & (view->ring_records - 1));
  return (const union record *)(const void *)(view->ring + row * RECORD_BYTES);
}

/* The row of a return address; NULL: none tells of it. Its file's name ends with a zero. */
const struct record_caller *record_caller_of(const struct record_file *file, uint64_t address);

/* Nanoseconds since the file was begun. */
double record_elapsed_ns(const struct record_header *header, uint64_t ticks);

#endif
