/* trace_json.c: see trace_json.h. */
#include "files/trace_json.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { WORD_BYTES = 512 };

/* The next word of the line, without the quotes of its value; false at the end. Escapes stay as they are. */
static bool word_take(const char **line, char word[WORD_BYTES]) {
  size_t length = 0;
  bool quoted = false;
  while (**line == ' ') ++*line;
  if (**line == '\0') return false;
  for (; **line != '\0' && (quoted || **line != ' '); ++*line) {
    if (**line == '"') quoted = !quoted;
    else if (length < WORD_BYTES - 1) word[length++] = **line;
  }
  word[length] = '\0';
  return true;
}

/* A number if it is a decimal one that fits, else text. */
static void value_write(struct json *json, const char *name, const char *value) {
  char *end;
  errno = 0;
  const long long number = strtoll(value, &end, 10);
  if (*value != '\0' && *end == '\0' && errno == 0) json_number(json, name, number);
  else json_text(json, name, value);
}

void trace_json_record(struct json *json, const char *line) {
  char word[WORD_BYTES];
  if (*line == '#' || !word_take(&line, word)) return;
  json_open(json, NULL, '{');
  json_text(json, "kind", word);
  while (word_take(&line, word)) {
    char *equals = strchr(word, '=');
    if (equals != NULL) *equals = '\0';
    if (equals != NULL) value_write(json, word, equals + 1);
    else if (*word == '@') value_write(json, "number", word + 1);
    else json_text(json, "bytes", word);
  }
  json_close(json, '}');
}

void trace_json_event(struct json *json, const char *line) {
  char word[WORD_BYTES];
  if (!word_take(&line, word)) return;
  json_open(json, NULL, '{');
  value_write(json, "turn", word);
  json_text(json, "event", *line == ' ' ? line + 1 : line);
  json_close(json, '}');
}
