/* trace_json.h: lines of the text form of records and of events as JSON objects. */
#ifndef TUTTI_SIM_TRACE_JSON_H
#define TUTTI_SIM_TRACE_JSON_H

#include "json.h"

/* A line of record_text.h: {"kind": "call", "number": 3, FIELD: VALUE, ...}. Decimal values are numbers;
 * names, text and hexadecimal values are strings. Comments (#) write nothing. */
void trace_json_record(struct json *json, const char *line);
/* A line of trace_record_text: {"turn": 3, "event": "lane comm ..."}. */
void trace_json_event(struct json *json, const char *line);

#endif
