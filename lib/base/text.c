/* text.c: see text.h. */
#include "base/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/array.h"
#include "base/os.h"

enum { DISTANCE_BYTES = 64 };

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

unsigned text_distance(const char *a, const char *b) {
  unsigned table[3][DISTANCE_BYTES + 1];
  const size_t b_length = strnlen(b, DISTANCE_BYTES);
  unsigned *before = table[0], *above = table[1], *here = table[2];
  for (size_t j = 0; j <= b_length; j++) above[j] = (unsigned)j;
  for (size_t i = 1; i <= DISTANCE_BYTES && a[i - 1]; i++) {
    here[0] = (unsigned)i;
    for (size_t j = 1; j <= b_length; j++) {
      unsigned least = above[j - 1] + (a[i - 1] != b[j - 1]);
      if (above[j] + 1 < least) least = above[j] + 1;
      if (here[j - 1] + 1 < least) least = here[j - 1] + 1;
      bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      here[j] = swapped && before[j - 2] + 1 < least ? before[j - 2] + 1 : least;
    }
    unsigned *free_row = before;
    before = above;
    above = here;
    here = free_row;
  }
  return above[b_length];
}

const char *text_nearest(const char *name, const char *const *names, size_t count) {
  const char *nearest = NULL;
  size_t least = strlen(name) / 3 + 2;
  for (size_t index = 0; index < count; index++) {
    const size_t distance = text_distance(name, names[index]);
    if (distance >= least) continue;
    least = distance;
    nearest = names[index];
  }
  return nearest;
}
