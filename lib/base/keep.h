/* keep.h: memory in a file, which whoever ends the process leaves behind: what was stored is in the file's
 * pages, written or not. Takes space before it is used, so that a full disk is told here and never kills the
 * process. Holds no descriptor between calls. Knows nothing of what lies in the memory. */
#ifndef TUTTI_BASE_KEEP_H
#define TUTTI_BASE_KEEP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define KEEP_PATH_BYTES 512

struct keep {
  uint8_t *memory; /* bytes_most are mapped, `bytes` may be touched */
  size_t bytes, bytes_most;
  char path[KEEP_PATH_BYTES];
};

/* A fresh file, in place of one of this name, that only this user can read; it grows to `bytes_most` at most.
 * False, with errno, and then there is no file. */
bool keep_open(struct keep *keep, const char *path, size_t bytes_most);
/* At least so many bytes of the file may be touched from now on; new ones are zero. False, with errno. */
bool keep_grow(struct keep *keep, size_t bytes);
/* Takes the name away; what is mapped stays. */
void keep_remove(const struct keep *keep);
/* Unmaps; the file stays. */
void keep_close(struct keep *keep);

/* Of this user's files in `folder` whose names begin and end so, and of which stale() holds, removes the
 * oldest until at most `bytes_most` are left; never more than a quarter of the file system. */
void keep_sweep(const char *folder, const char *begin, const char *end, uint64_t bytes_most,
                bool (*stale)(const char *path));

/* Nanoseconds since 1970, for comparing hosts. */
uint64_t keep_wall_ns(void);
/* The first `bytes` of a file; fewer where it has fewer, 0 where it cannot be read. */
size_t keep_peek(const char *path, void *out, size_t bytes);

#endif
