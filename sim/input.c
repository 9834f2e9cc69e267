/* input.c: see input.h. */
#include "input.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>

#include "base/os.h"

static const char stdin_path[] = "/dev/stdin";

static bool is_stdin(const char *path) { return strcmp(path, "-") == 0 || strcmp(path, stdin_path) == 0; }

const char *input_path(const char *path) { return is_stdin(path) ? stdin_path : path; }

FILE *input_open(const char *path) {
  char part[65536];
  size_t count;
  if (!is_stdin(path)) return fopen(path, "rbe");
  FILE *copy = tmpfile();
  if (copy == NULL) return NULL;
  while ((count = fread(part, 1, sizeof part, stdin)) > 0)
    if (fwrite(part, 1, count, copy) != count) break;
  if (!ferror(stdin) && !ferror(copy) && fflush(copy) == 0) {
    rewind(copy);
    return copy;
  }
  const int cause = errno;
  fclose(copy);
  errno = cause;
  return NULL;
}

char *input_read(const char *path, size_t bytes_most, size_t *bytes) {
  static char *kept; /* the contents of standard input: a verb may read a file twice */
  static size_t kept_bytes;
  if (!is_stdin(path)) return os_file_read_most(path, bytes_most, bytes);
  if (kept == NULL) kept = os_file_read_most(stdin_path, bytes_most, &kept_bytes);
  char *copy = kept != NULL ? (char *)os_alloc(kept_bytes + 1) : NULL;
  if (copy == NULL) return NULL;
  memcpy(copy, kept, kept_bytes + 1);
  *bytes = kept_bytes;
  return copy;
}
