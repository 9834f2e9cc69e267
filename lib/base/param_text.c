/* param_text.c: one row for each setting of kind TEXT whose values are words, a number, or files to write.
 * Files are looked at, never opened or made. */
#include "base/param_text.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/text.h"

#define PATH_BYTES 4096
#define WORDS_MOST 8

enum text_kind { TEXT_WORDS, TEXT_SEED, TEXT_WRITE };

static const struct text_row {
  enum param_id id;
  enum text_kind kind;
  const char *words[WORDS_MOST];
} text_rows[] = {
    {PARAM_DEBUG, TEXT_WORDS, {"NONE", "VERSION", "WARN", "INFO", "ABORT", "TRACE"}},
    {PARAM_LAUNCH_MODE, TEXT_WORDS, {"PARALLEL", "GROUP"}},
    {PARAM_SUM_ORDER, TEXT_WORDS, {"any", "rank"}},
    {PARAM_IB_ADDR_FAMILY, TEXT_WORDS, {"AF_INET", "AF_INET6"}},
    {PARAM_TUTTI_BACKEND, TEXT_WORDS, {"emu", "cuda"}},
    {PARAM_TUTTI_SEED, TEXT_SEED, {NULL}},
    {PARAM_TUTTI_EVENTS, TEXT_WRITE, {NULL}},
    {PARAM_TUTTI_MOVES, TEXT_WRITE, {NULL}},
};

static bool word_check(const struct text_row *row, const char *text, char *what, size_t what_bytes) {
  size_t count = 0;
  for (; count < WORDS_MOST && row->words[count] != NULL; count++)
    if (strcasecmp(row->words[count], text) == 0) return true;
  snprintf(what, what_bytes, "is none of ");
  for (size_t i = 0; i < count; i++)
    text_append(what, what_bytes, "%s%s", i == 0 ? "" : i + 1 == count ? " and " : ", ", row->words[i]);
  const char *nearest = text_nearest(text, row->words, count);
  if (nearest != NULL) text_append(what, what_bytes, "; did you mean %s?", nearest);
  return false;
}

/* strtoull also accepts blanks and signs before the digits. */
static bool seed_check(const char *text, char *what, size_t what_bytes) {
  char *end;
  errno = 0;
  (void)strtoull(text, &end, 0);
  if (text[0] >= '0' && text[0] <= '9' && *end == '\0' && errno == 0) return true;
  snprintf(what, what_bytes,
           "is no seed; give a number from 0 to 18446744073709551615, decimal or 0x hexadecimal");
  return false;
}

static bool is_folder(const char *path) {
  struct stat status;
  return stat(path, &status) == 0 && S_ISDIR(status.st_mode);
}

/* A file that is there, or can be made in its folder. */
static bool writable_check(const char *path, char *what, size_t what_bytes) {
  char folder[PATH_BYTES];
  if (is_folder(path)) {
    snprintf(what, what_bytes, "is a folder; name a file");
    return false;
  }
  if (access(path, F_OK) == 0) {
    if (access(path, W_OK) == 0) return true;
    snprintf(what, what_bytes, "cannot be written: %s; name another file", strerror(errno));
    return false;
  }
  const char *slash = strrchr(path, '/');
  snprintf(folder, sizeof folder, "%.*s", slash == NULL ? 1 : (int)(slash - path) + 1,
           slash == NULL ? "." : path);
  if (access(folder, W_OK | X_OK) == 0) return true;
  snprintf(what, what_bytes, "cannot be written: %.100s: %s; name a file in a folder that is there", folder,
           strerror(errno));
  return false;
}

bool param_text_check(enum param_id id, const char *text, char *what, size_t what_bytes) {
  for (size_t i = 0; i < sizeof text_rows / sizeof text_rows[0]; i++) {
    const struct text_row *row = &text_rows[i];
    if (row->id != id) continue;
    switch (row->kind) {
      case TEXT_WORDS: return word_check(row, text, what, what_bytes);
      case TEXT_SEED: return seed_check(text, what, what_bytes);
      case TEXT_WRITE: return writable_check(text, what, what_bytes);
    }
  }
  return true;
}
