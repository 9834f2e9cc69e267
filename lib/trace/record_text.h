/* record_text.h: the text form of a record file: a line for each header, section, row and record, written
 * `name field=value ...` without the fields that are 0. Dumping a file that the recorder wrote and packing
 * the text gives the same bytes. */
#ifndef TUTTI_TRACE_RECORD_TEXT_H
#define TUTTI_TRACE_RECORD_TEXT_H

#include "trace/record_read.h"

/* Called for each line in the order of the file, without a newline; the line is valid only during the call.
 */
typedef void (*record_put)(void *argument, const char *line);
void record_text_dump(const struct record_file *file, record_put put, void *argument);

/* Makes a file's bytes from its text; the caller frees *bytes with os_free(). An ncclInvalidArgument error
 * names the file, the line and what was expected. */
ncclResult_t record_text_pack(const char *name, const char *text, size_t text_bytes, void **bytes,
                              size_t *byte_count);
/* True if the bytes begin like the text form of a record file. */
bool record_is_text(const void *bytes, size_t byte_count);

/* Names as the text form spells them; "?" for unknown numbers. */
const char *record_func_name(uint32_t func);
const char *record_type_name(uint32_t dtype);
const char *record_op_name(uint32_t op);
const char *record_algo_name(uint32_t algo);
const char *record_proto_name(uint32_t proto);

#endif
