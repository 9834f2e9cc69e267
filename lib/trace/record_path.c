/* record_path.c: the names of recorders' files (record_path.h). */
#include "trace/record_path.h"

#include <string.h>

#define NAME RECORD_FILE_BEGIN "%h.%p.%r" RECORD_FILE_END

struct text {
  char *out;
  size_t used, bytes;
};

static void text_add(struct text *text, const char *more, size_t length) {
  for (size_t i = 0; i < length; i++, text->used++)
    if (text->used < text->bytes) text->out[text->used] = more[i];
}

static void text_expand(struct text *text, const char *pattern, const struct record_path_parts *parts) {
  for (const char *at = pattern; *at != '\0'; at++) {
    const char *part = at;
    size_t length = 1;
    if (at[0] == '%' && at[1] != '\0') {
      at += 1;
      part = *at == 'h' ? parts->host : *at == 'p' ? parts->process : *at == 'r' ? parts->rank : at;
      if (part != at) length = strlen(part);
    }
    text_add(text, part, length);
  }
}

const char *record_path_folder(const char *place) {
  if (place == NULL || place[0] == '\0') return RECORD_FILE_FOLDER;
  return place[strlen(place) - 1] == '/' ? place : NULL;
}

bool record_path(const char *place, const struct record_path_parts *parts, char *out, size_t out_bytes) {
  struct text text = {out, 0, out_bytes};
  const char *folder = record_path_folder(place);
  text_expand(&text, folder != NULL ? folder : place, parts);
  if (folder != NULL) text_expand(&text, NAME, parts);
  text_add(&text, "", 1);
  return text.used <= out_bytes;
}
