/* trace.c: writes, reads and prints traces of events. */
#include "trace/trace.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/os.h"

static_assert(sizeof(struct trace_record) == 32, "the format says so");
static_assert(sizeof(struct trace_header) == 64, "the format says so");

struct trace_writer {
  FILE *file;
  int cause; /* of the first failure; 0: there was none */
  char path[1];
};

ncclResult_t trace_writer_open(const char *path, const struct trace_header *header,
                               struct trace_writer **writer) {
  struct trace_writer *fresh = (struct trace_writer *)os_alloc(sizeof *fresh + strlen(path));
  if (fresh == NULL) return log_no_memory("trace %s", path);
  fresh->file = fopen(path, "wb");
  if (fresh->file == NULL) {
    os_free(fresh);
    return log_fail(ncclSystemError, "trace %s: %s; give a path in a directory that can be written", path,
                    strerror(errno));
  }
  memcpy(fresh->path, path, strlen(path) + 1);
  if (fwrite(header, sizeof *header, 1, fresh->file) != 1) fresh->cause = errno;
  *writer = fresh;
  return ncclSuccess;
}

void trace_writer_put(struct trace_writer *writer, const struct trace_record *record) {
  if (writer->cause != 0 || fwrite(record, sizeof *record, 1, writer->file) == 1) return;
  writer->cause = errno;
  log_urgent("trace %s: %s; the trace is cut short here, and the run goes on", writer->path, strerror(errno));
}

ncclResult_t trace_writer_close(struct trace_writer *writer) {
  ncclResult_t result = ncclSuccess;
  if (writer == NULL) return ncclSuccess;
  if (fclose(writer->file) != 0 && writer->cause == 0) writer->cause = errno;
  if (writer->cause != 0)
    result = log_fail(ncclSystemError, "trace %s: not written whole (%s); is the disk full?", writer->path,
                      strerror(writer->cause));
  os_free(writer);
  return result;
}

ncclResult_t trace_reader_open(struct trace_reader *reader, const void *bytes, size_t byte_count) {
  struct trace_header header;
  if (byte_count < sizeof header)
    return log_fail(ncclInvalidArgument, "trace: %zu bytes are too few for a header of %zu", byte_count,
                    sizeof header);
  memcpy(&header, bytes, sizeof header);
  if (memcmp(header.magic, TRACE_MAGIC, sizeof header.magic) != 0)
    return log_fail(ncclInvalidArgument, "trace: the first 8 bytes are not \"%s\": this is not a trace",
                    TRACE_MAGIC);
  if (header.version != TRACE_VERSION || header.record_bytes < sizeof(struct trace_record))
    return log_fail(ncclInvalidArgument,
                    "trace: version %" PRIu32 " with records of %" PRIu32
                    " bytes; this build reads version %d",
                    header.version, header.record_bytes, TRACE_VERSION);
  reader->bytes = (const uint8_t *)bytes;
  reader->byte_count = byte_count;
  reader->offset = sizeof header;
  reader->header = header;
  reader->record_index = 0;
  return ncclSuccess;
}

bool trace_reader_next(struct trace_reader *reader, struct trace_record *record, bool *torn) {
  const size_t rest = reader->byte_count - reader->offset;
  *torn = rest > 0 && rest < reader->header.record_bytes;
  if (rest < reader->header.record_bytes) return false;
  memcpy(record, reader->bytes + reader->offset, sizeof *record);
  reader->offset += reader->header.record_bytes;
  reader->record_index += 1;
  return true;
}

static const char *trace_lane_action(uint8_t action) {
  switch (action) {
    case 1: return "offer";
    case 2: return "take";
    case 4: return "begin";
    case 8: return "finish";
    case 16: return "post";
    case 32: return "lines";
    case 64: return "end";
    case 128: return "abort";
    default: return "?";
  }
}

int trace_record_text(const struct trace_record *record, char *out, size_t out_bytes) {
  switch (record->kind) {
    case TRACE_LANE:
      return snprintf(out, out_bytes,
                      "%" PRIu64 " lane comm %08" PRIx32 " rank %" PRIu32
                      " channel %u lane %u %s step %" PRIu64 " chunk %" PRIu32 " elements %" PRIu64,
                      record->turn, record->comm, record->rank, record->channel, record->lane,
                      trace_lane_action(record->action), record->value >> 32, record->chunk,
                      record->value & 0xffffffffu);
    case TRACE_BLOCK:
      return snprintf(out, out_bytes,
                      "%" PRIu64 " block comm %08" PRIx32 " rank %" PRIu32 " channel %u batch %" PRIu64 " %s",
                      record->turn, record->comm, record->rank, record->channel, record->value,
                      record->action ? "ends" : "begins");
    case TRACE_KERNEL:
      return snprintf(
          out, out_bytes, "%" PRIu64 " kernel comm %08" PRIx32 " rank %" PRIu32 " launch %" PRIu64 " %s",
          record->turn, record->comm, record->rank, record->value, record->action ? "ends" : "begins");
    case TRACE_STREAM:
      return snprintf(out, out_bytes, "%" PRIu64 " stream device %" PRIu32 " key %016" PRIx64 " operation %u",
                      record->turn, record->chunk, record->value, record->action);
    case TRACE_ERROR:
      return snprintf(out, out_bytes, "%" PRIu64 " error comm %08" PRIx32 " rank %" PRIu32 " result %" PRIu64,
                      record->turn, record->comm, record->rank, record->value);
    default:
      return snprintf(out, out_bytes, "%" PRIu64 " unknown record kind %u", record->turn, record->kind);
  }
}
