/* record_image.h: makes a small copy of a record file, which can be sent to another process and has all that
 * a diagnosis needs: a header and, for each communicator, the rows in use and the last records. Of the
 * RECORD_PLACE ones it has those of the calls that a diagnosis names. The copy is itself a record file
 * (record_read.h). */
#ifndef TUTTI_TRACE_RECORD_IMAGE_H
#define TUTTI_TRACE_RECORD_IMAGE_H

#include "trace/record_read.h"

/* A capacity that suffices for any communicator's tables and some of its records. */
#define RECORD_IMAGE_BYTES_LEAST 49152u

/* Writes one communicator as a section to `out`: `capacity` bytes of zeroed memory, aligned to 8. Copies the
 * records back to a little before the first operation that has not ended, as far as they fit. Returns the
 * section's bytes. */
uint32_t record_image_section(const struct record_view *view, uint8_t *out, uint32_t capacity);

/* The records whose RECORD_PLACE a diagnosis may need: those around the first operation that has not ended,
 * and the last ones. */
struct record_places {
  uint64_t begin, end, last; /* [begin, end), and from `last` on */
};
struct record_places record_places_find(const struct record_view *view);
/* The record with this number is needed. */
bool record_stays(const struct record_view *view, const struct record_places *places, uint64_t number);

#endif
