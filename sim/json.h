/* json.h: writes JSON with indentation: objects, arrays, names, escaped strings, numbers. The caller opens
 * and closes in order; this module writes commas and line breaks. Numbers that JSON cannot represent are
 * written as null. */
#ifndef TUTTI_SIM_JSON_H
#define TUTTI_SIM_JSON_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum { JSON_DEPTH_MAX = 16 };
struct json {
  FILE *out;
  int depth;
  bool has_member[JSON_DEPTH_MAX]; /* of the object or array at each depth */
};

/* `name` is the member's name inside an object and NULL inside an array or at the top. */
void json_open(struct json *json, const char *name, char bracket); /* '{' or '[' */
void json_close(struct json *json, char bracket);                  /* '}' or ']' */
void json_text(struct json *json, const char *name, const char *text);
void json_number(struct json *json, const char *name, int64_t number);
void json_decimal(struct json *json, const char *name, double number);
/* A number of millionths, exactly. */
void json_millionths(struct json *json, const char *name, int64_t millionths);
void json_bool(struct json *json, const char *name, bool value);
/* Bytes of the UTF-8 sequence that starts here, in a terminated text; 0 if it is none. */
int json_sequence_length(const unsigned char *text);

#endif
