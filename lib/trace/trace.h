/* trace.h: the events of a guarded run, in order. A 64-byte header and fixed records of 32 bytes, little
 * endian; drawn in traces/README.md. One file holds the events of all ranks in their order. Nothing in a
 * record depends on addresses, time or process ids, so two runs with the same seed write identical files. */
#ifndef TUTTI_TRACE_TRACE_H
#define TUTTI_TRACE_TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

#define TRACE_MAGIC "TUTTITRC"
#define TRACE_VERSION 1

struct trace_header {
  char magic[8];         /* TRACE_MAGIC, no zero */
  uint32_t version;      /* TRACE_VERSION */
  uint32_t record_bytes; /* 32; a reader skips what a longer record adds */
  uint64_t seed;
  uint32_t slots, flag_bits;
  uint8_t reserved[32];
};

enum trace_kind {
  TRACE_LANE = 1,   /* an event of a lane; action = enum lane_action */
  TRACE_BLOCK = 2,  /* a batch of a channel begins (action 0) or ends (1); value = batch number in the plan */
  TRACE_KERNEL = 3, /* a plan begins (0) or ends (1) on a rank; value = launch number on the communicator */
  TRACE_STREAM = 4, /* a stream or a graph node executes an operation; chunk = device, value = its key */
  TRACE_ERROR = 5   /* value = ncclResult_t */
};

struct trace_record {
  uint64_t turn;        /* number of the event since the run started, from 1 */
  uint8_t kind, action; /* enum trace_kind */
  uint8_t channel, lane;
  uint32_t rank;
  uint32_t comm;  /* low bits of the communicator's id */
  uint32_t chunk; /* chunk index of the step */
  uint64_t value; /* lanes: steps taken before this event << 32, plus the elements of the step */
};

/* Opens a file for writing and truncates it. On failure *writer is unchanged and the error names path and
 * cause.
 */
struct trace_writer;
ncclResult_t trace_writer_open(const char *path, const struct trace_header *header,
                               struct trace_writer **writer);
/* Buffered; the first write error is logged once and makes trace_writer_close() fail. */
void trace_writer_put(struct trace_writer *writer, const struct trace_record *record);
ncclResult_t trace_writer_close(struct trace_writer *writer);

/* Reads a trace in memory record by record; does not own the memory. */
struct trace_reader {
  const uint8_t *bytes;
  size_t byte_count, offset;
  struct trace_header header;
  uint64_t record_index;
};
/* ncclInvalidArgument, with a message that says what is wrong and where, if this is not a trace. */
ncclResult_t trace_reader_open(struct trace_reader *reader, const void *bytes, size_t byte_count);
/* False at the end; *torn is set if the last record is incomplete. */
bool trace_reader_next(struct trace_reader *reader, struct trace_record *record, bool *torn);

/* Writes the text form of a record, one line without a newline; the form is stable. Returns what snprintf
 * returns. */
int trace_record_text(const struct trace_record *record, char *out, size_t out_bytes);

#endif
