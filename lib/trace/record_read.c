/* record_read.c: reads the sections in order. Each section is checked against the file's size, each table
 * against its section's. */
#include "trace/record_read.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/array.h"
#include "base/log.h"
#include "base/os.h"

struct reading {
  struct record_file *file;
  struct record_listener *listener;
};

static void tell(const struct reading *reading, uint64_t offset, const char *format, ...) LOG_FORMAT(3, 4);
static void tell(const struct reading *reading, uint64_t offset, const char *format, ...) {
  struct record_listener *listener = reading->listener;
  char text[256];
  if (listener == NULL || listener->tell == NULL || ++listener->told > RECORD_FINDINGS_MOST) return;
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  const struct record_finding finding = {reading->file->name, offset, text};
  listener->tell(listener->argument, &finding);
}

bool record_is_file(const void *bytes, size_t byte_count) {
  return byte_count >= 8 && memcmp(bytes, RECORD_MAGIC, 8) == 0;
}

/* ---- the header ---- */

static ncclResult_t header_read(const struct reading *reading) {
  struct record_file *file = reading->file;
  struct record_header *header = &file->header;
  if (!record_is_file(file->bytes, file->byte_count))
    return log_fail(ncclInvalidArgument, "%s: the first 8 bytes are not \"%s\": this is no file of records",
                    file->name, RECORD_MAGIC);
  if (file->byte_count < sizeof *header)
    return log_fail(ncclInvalidArgument, "%s: %zu bytes are too few for a header of %zu; the file is cut off",
                    file->name, file->byte_count, sizeof *header);
  memcpy(header, file->bytes, sizeof *header);
  if (header->byte_order != RECORD_BYTE_ORDER)
    return log_fail(ncclInvalidArgument,
                    "%s: byte 12: byte order %08" PRIx32
                    " where %08x was expected; it is of a machine of "
                    "another byte order",
                    file->name, header->byte_order, RECORD_BYTE_ORDER);
  if (header->version != RECORD_VERSION || header->record_bytes != RECORD_BYTES ||
      header->header_bytes != RECORD_PAGE_BYTES)
    return log_fail(ncclInvalidArgument,
                    "%s: byte 8: version %" PRIu32 ", header of %" PRIu32 " and records of %" PRIu32
                    " bytes; this build reads version %d, of %u and %u; take a tutti of that version",
                    file->name, header->version, header->header_bytes, header->record_bytes, RECORD_VERSION,
                    RECORD_PAGE_BYTES, RECORD_BYTES);
  header->host[sizeof header->host - 1] = header->library[sizeof header->library - 1] = '\0';
  header->control[sizeof header->control - 1] = header->job[sizeof header->job - 1] = '\0';
  header->modules[sizeof header->modules - 1] = '\0';
  return ncclSuccess;
}

static void callers_read(struct record_file *file) {
  if (file->byte_count >= RECORD_PAGE_BYTES)
    file->callers = (const struct record_caller *)(const void *)(file->bytes + RECORD_CALLERS_OFFSET);
}

const struct record_caller *record_caller_of(const struct record_file *file, uint64_t address) {
  for (uint32_t i = 0; file->callers != NULL && address != 0 && i < RECORD_CALLERS; i++) {
    const struct record_caller *row = &file->callers[i];
    if (row->address == address && memchr(row->file, 0, sizeof row->file) != NULL) return row;
  }
  return NULL;
}

/* ---- sections ---- */

/* The number of a table's rows that lie within the section. Missing rows are reported. */
static uint32_t table_rows(const struct reading *reading, const struct record_view *view, uint64_t capacity,
                           uint32_t offset, uint32_t rows, const char *what) {
  if (rows == 0) return 0;
  if (offset % 8 != 0 || offset < RECORD_COMM_LEAST) {
    tell(reading, view->offset,
         "the %s of rank %" PRIu32 " begin at byte %" PRIu32
         " of their section; a multiple of 8 behind %u "
         "was expected",
         what, view->comm->rank, offset, RECORD_COMM_LEAST);
    return 0;
  }
  if (offset >= capacity) {
    tell(reading, view->offset + offset, "the %" PRIu32 " %s of rank %" PRIu32 " are missing: the file ends",
         rows, what, view->comm->rank);
    return 0;
  }
  const uint64_t fit = (capacity - offset) / RECORD_BYTES;
  if (fit >= rows) return rows;
  tell(reading, view->offset + offset + fit * RECORD_BYTES,
       "row %" PRIu64 " of %" PRIu32 " %s of rank %" PRIu32 " was expected; the file, or the section, ends",
       fit, rows, what, view->comm->rank);
  return (uint32_t)fit;
}

/* Finds the numbers of the records in the ring. */
static void ring_read(const struct reading *reading, struct record_view *view, uint64_t capacity) {
  const struct record_comm *comm = view->comm;
  const uint32_t wanted = comm->ring_records;
  if (wanted == 0 || (wanted & (wanted - 1)) != 0) {
    tell(reading, view->offset, "a ring of %" PRIu32 " records; a power of two was expected", wanted);
    return;
  }
  const uint32_t there = table_rows(reading, view, capacity, comm->ring_offset, wanted, "records");
  view->end = comm->tail;
  view->first = view->end > wanted ? view->end - wanted : 0;
  view->ring_records = wanted;
  view->ring = (const uint8_t *)comm + comm->ring_offset;
  if (there == wanted) return;
  /* A cut-off ring is usable only if it has not wrapped around yet. */
  if (view->first == 0 && there > 0) {
    if (view->end > there) view->end = there;
    return;
  }
  view->first = view->end = 0;
  view->ring_records = 0;
}

static const void *row_at(const struct record_view *view, uint32_t offset) {
  return (const uint8_t *)view->comm + offset;
}

static bool view_add(struct record_file *file, const struct record_view *view) {
  if (!array_grow(&file->views, &file->view_capacity, (uint64_t)file->view_count + 1, sizeof *file->views))
    return false;
  file->views[file->view_count++] = *view;
  return true;
}

/* `capacity`: bytes from the section's begin to the end of the file or of the section, whichever comes first.
 */
static bool comm_read(const struct reading *reading, uint64_t offset, uint64_t capacity) {
  const struct record_comm *comm = (const struct record_comm *)(const void *)(reading->file->bytes + offset);
  struct record_view view;
  memset(&view, 0, sizeof view);
  view.comm = comm;
  view.offset = offset;
  if (capacity < sizeof *comm) {
    tell(reading, offset, "a communicator's section needs %zu bytes, and %" PRIu64 " are there", sizeof *comm,
         capacity);
    return true;
  }
  if (comm->rank_count == 0 || comm->rank >= comm->rank_count) {
    tell(reading, offset, "rank %" PRIu32 " of %" PRIu32 " makes no sense; the section is left out",
         comm->rank, comm->rank_count);
    return true;
  }
  view.plan_rows = table_rows(reading, &view, capacity, comm->plan_offset, comm->plan_rows, "plans");
  view.lane_rows = table_rows(reading, &view, capacity, comm->lane_offset, comm->lane_rows, "lanes");
  view.link_rows = table_rows(reading, &view, capacity, comm->link_offset, comm->link_rows, "connections");
  view.proxy_rows = table_rows(reading, &view, capacity, comm->proxy_offset, comm->proxy_rows, "proxies");
  view.pace_rows = table_rows(reading, &view, capacity, comm->pace_offset, comm->pace_rows, "paces");
  if (comm->section.header_bytes >= offsetof(struct record_comm, input_offset) + sizeof comm->input_offset)
    view.input_rows = table_rows(reading, &view, capacity, comm->input_offset, comm->input_rows, "inputs");
  view.inputs = (const struct record_input *)row_at(&view, view.input_rows > 0 ? comm->input_offset : 0);
  view.paces = (const struct record_pace *)row_at(&view, comm->pace_offset);
  view.proxies = (const struct record_proxy *)row_at(&view, comm->proxy_offset);
  view.plans = (const struct record_plan *)row_at(&view, comm->plan_offset);
  view.lanes = (const struct record_lane *)row_at(&view, comm->lane_offset);
  view.links = (const struct record_link *)row_at(&view, comm->link_offset);
  ring_read(reading, &view, capacity);
  return view_add(reading->file, &view);
}

static ncclResult_t sections_read(const struct reading *reading) {
  const struct record_file *file = reading->file;
  uint64_t end = file->header.used_bytes;
  if (end > file->byte_count) {
    tell(reading, file->byte_count, "the file ends here, and %" PRIu64 " bytes of it are used: it is cut off",
         end);
    end = file->byte_count;
  }
  for (uint64_t at = RECORD_PAGE_BYTES; at < end;) {
    struct record_section section;
    if (end - at < sizeof section) {
      tell(reading, at, "a section was expected, and %" PRIu64 " bytes are left", end - at);
      break;
    }
    memcpy(&section, file->bytes + at, sizeof section);
    if (section.bytes < RECORD_PAGE_BYTES || section.bytes % RECORD_PAGE_BYTES != 0) {
      tell(reading, at, "a section of %" PRIu64 " bytes; a multiple of %u was expected; the rest is left out",
           section.bytes, RECORD_PAGE_BYTES);
      break;
    }
    const uint64_t capacity = section.bytes < end - at ? section.bytes : end - at;
    if (section.kind == RECORD_SECTION_COMM && !comm_read(reading, at, capacity))
      return log_no_memory("%s: %u sections", file->name, file->view_count);
    if (section.bytes >= end - at) break;
    at += section.bytes;
  }
  return ncclSuccess;
}

ncclResult_t record_file_read(const char *name, const void *bytes, size_t byte_count,
                              struct record_listener *listener, struct record_file *file) {
  struct record_file fresh = {.name = name, .bytes = (const uint8_t *)bytes, .byte_count = byte_count};
  const struct reading reading = {&fresh, listener};
  TRY(header_read(&reading));
  fresh.taken_ns = fresh.header.last_ns;
  callers_read(&fresh);
  const ncclResult_t result = sections_read(&reading);
  if (result == ncclSuccess) *file = fresh;
  else os_free(fresh.views);
  return result;
}

void record_file_free(struct record_file *file) {
  os_free(file->views);
  memset(file, 0, sizeof *file);
}

double record_elapsed_ns(const struct record_header *header, uint64_t ticks) {
  const double span_ticks = (double)(header->last_ticks - header->first_ticks);
  const double span_ns = (double)(header->last_ns - header->first_ns);
  const double rate = header->last_ticks > header->first_ticks && span_ticks > 0 ? span_ns / span_ticks : 1;
  return (double)(int64_t)(ticks - header->first_ticks) * rate;
}
