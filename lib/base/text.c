/* text.c: see text.h. */
#include "base/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/array.h"
#include "base/os.h"

static bool text_reserve(struct text *text, size_t bytes) {
  if (text->failed) return false;
  if (text->capacity > text->bytes + bytes) return true;
  const size_t wanted = text->bytes + bytes + 1;
  if (array_grow_long(&text->begin, &text->capacity, wanted < 4096 ? 4096 : wanted, 1)) return true;
  text_free(text);
  text->failed = true;
  return false;
}

void text_add(struct text *text, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const int bytes = vsnprintf(NULL, 0, format, arguments);
  va_end(arguments);
  if (bytes < 0 || !text_reserve(text, (size_t)bytes)) return;
  va_start(arguments, format);
  vsnprintf(text->begin + text->bytes, (size_t)bytes + 1, format, arguments);
  va_end(arguments);
  text->bytes += (size_t)bytes;
}

void text_add_xml(struct text *text, const char *value) {
  for (; *value != '\0'; value++) {
    switch (*value) {
      case '&': text_add(text, "&amp;"); break;
      case '<': text_add(text, "&lt;"); break;
      case '"': text_add(text, "&quot;"); break;
      case '\t':
      case '\n':
      case '\r': text_add(text, "&#%d;", *value); break;
      default: text_add(text, "%c", *value); break;
    }
  }
}

void text_free(struct text *text) {
  os_free(text->begin);
  memset(text, 0, sizeof *text);
}

void text_clean(char *text, size_t bytes) {
  text[bytes - 1] = '\0';
  for (; *text; text++) {
    if ((unsigned char)*text < ' ' || *text == 0x7f) *text = '?';
  }
}

void text_append(char *text, size_t bytes, const char *format, ...) {
  const size_t used = strlen(text);
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text + used, bytes - used, format, arguments);
  va_end(arguments);
}
