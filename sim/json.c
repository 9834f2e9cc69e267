/* json.c: see json.h. Text is taken to be UTF-8; bytes that are not are replaced by '?'. */
#include "json.h"

#include <math.h>
#include <string.h>

int json_sequence_length(const unsigned char *text) {
  int length = *text < 0x80                    ? 1
               : *text >= 0xc2 && *text < 0xe0 ? 2
               : *text >= 0xe0 && *text < 0xf0 ? 3
               : *text >= 0xf0 && *text < 0xf5 ? 4
                                               : 0;
  for (int index = 1; index < length; index++) {
    if ((text[index] & 0xc0) != 0x80) return 0;
  }
  bool is_overlong = (*text == 0xe0 && text[1] < 0xa0) || (*text == 0xf0 && text[1] < 0x90);
  bool is_outside = (*text == 0xed && text[1] > 0x9f) || (*text == 0xf4 && text[1] > 0x8f);
  return is_overlong || is_outside ? 0 : length;
}

static void write_string(FILE *out, const char *string) {
  fputc('"', out);
  for (const unsigned char *text = (const unsigned char *)string; *text;) {
    int length = json_sequence_length(text);
    if (length == 0) fputc('?', out);
    else if (*text == '"' || *text == '\\') fprintf(out, "\\%c", *text);
    else if (*text < 0x20) fprintf(out, "\\u%04x", *text);
    else fwrite(text, 1, (size_t)length, out);
    text += length ? length : 1;
  }
  fputc('"', out);
}

/* Comma, line break, indentation and the name before a value. */
static void begin_value(struct json *json, const char *name) {
  if (json->depth > 0) {
    bool *has_member = &json->has_member[json->depth - 1];
    fprintf(json->out, "%s\n%*s", *has_member ? "," : "", 2 * json->depth, "");
    *has_member = true;
  }
  if (!name) return;
  write_string(json->out, name);
  fputs(": ", json->out);
}

void json_open(struct json *json, const char *name, char bracket) {
  begin_value(json, name);
  fputc(bracket, json->out);
  if (json->depth < JSON_DEPTH_MAX) json->has_member[json->depth++] = false;
}

void json_close(struct json *json, char bracket) {
  bool has_member = json->has_member[--json->depth];
  if (has_member) fprintf(json->out, "\n%*s", 2 * json->depth, "");
  fputc(bracket, json->out);
  if (json->depth == 0) fputc('\n', json->out);
}

void json_text(struct json *json, const char *name, const char *text) {
  begin_value(json, name);
  write_string(json->out, text);
}

void json_number(struct json *json, const char *name, int64_t number) {
  begin_value(json, name);
  fprintf(json->out, "%lld", (long long)number);
}

void json_decimal(struct json *json, const char *name, double number) {
  begin_value(json, name);
  if (isfinite(number)) fprintf(json->out, "%.9g", number);
  else fputs("null", json->out);
}

void json_millionths(struct json *json, const char *name, int64_t millionths) {
  const uint64_t size = millionths < 0 ? 0 - (uint64_t)millionths : (uint64_t)millionths;
  const unsigned rest = (unsigned)(size % 1000000);
  begin_value(json, name);
  fprintf(json->out, "%s%llu", millionths < 0 ? "-" : "", (unsigned long long)(size / 1000000));
  if (rest % 1000 == 0) fprintf(json->out, ".%03u", rest / 1000);
  else fprintf(json->out, ".%06u", rest);
}

void json_bool(struct json *json, const char *name, bool value) {
  begin_value(json, name);
  fputs(value ? "true" : "false", json->out);
}
