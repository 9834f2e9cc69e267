/* record_image.h: of a file of records what verdicts need, small enough to be sent: a header, and of each
 * communicator the rows that are in use and the last records, without what they say of memory. It is a file
 * of records itself, which record_read.h reads. */
#ifndef TUTTI_TRACE_RECORD_IMAGE_H
#define TUTTI_TRACE_RECORD_IMAGE_H

#include "trace/record_read.h"

/* Space in which any communicator's tables and some of its records fit. */
#define RECORD_IMAGE_BYTES_LEAST 49152u

/* One communicator as a section, at the begin of zeroed memory of `capacity` bytes, aligned to 8; as many
 * records as the space holds, and as something has not ended. Returns its bytes. */
uint32_t record_image_section(const struct record_view *view, uint8_t *out, uint32_t capacity);

#endif
