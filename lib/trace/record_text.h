/* record_text.h: the text twin of a file of records: one line a header, section, row and record, `name
 * field=value ...`, fields that are 0 left out. Text made of a file, and a file made of that text, are the
 * same bytes again, as long as the recorder wrote them. */
#ifndef TUTTI_TRACE_RECORD_TEXT_H
#define TUTTI_TRACE_RECORD_TEXT_H

#include "trace/record_read.h"

/* Lines, without a newline, in the order of the file; whoever takes them copies them. */
typedef void (*record_put)(void *argument, const char *line);
void record_text_dump(const struct record_file *file, record_put put, void *argument);

/* Bytes of a file out of its text, os_alloc'ed. ncclInvalidArgument names file, line and what was expected.
 */
ncclResult_t record_text_pack(const char *name, const char *text, size_t text_bytes, void **bytes,
                              size_t *byte_count);
/* True when the text begins as these do. */
bool record_is_text(const void *bytes, size_t byte_count);

/* Names as the text has them; "?" for numbers that have none. */
const char *record_func_name(uint32_t func);
const char *record_type_name(uint32_t dtype);
const char *record_op_name(uint32_t op);
const char *record_algo_name(uint32_t algo);
const char *record_proto_name(uint32_t proto);

#endif
