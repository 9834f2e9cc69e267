/* mapped_file.h: memory in a file, which whoever ends the process leaves behind: what was stored is in the
 * file's pages, written or not. Takes space before it is used, so that a full disk is told here and never
 * kills the process. Holds no descriptor between calls. Knows nothing of what lies in the memory. */
#ifndef TUTTI_BASE_MAPPED_FILE_H
#define TUTTI_BASE_MAPPED_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MAPPED_FILE_PATH_BYTES 512

struct mapped_file {
  uint8_t *memory; /* bytes_most are mapped, `bytes` may be touched */
  size_t bytes, bytes_most;
  char path[MAPPED_FILE_PATH_BYTES];
};

/* A fresh file, in place of one of this name, that only this user can read; it grows to `bytes_most` at most.
 * False, with errno, and then there is no file. */
bool mapped_file_open(struct mapped_file *file, const char *path, size_t bytes_most);
/* At least so many bytes of the file may be touched from now on; new ones are zero. False, with errno. */
bool mapped_file_grow(struct mapped_file *file, size_t bytes);
/* Takes the name away; what is mapped stays. */
void mapped_file_remove(const struct mapped_file *file);
/* Unmaps; the file stays. */
void mapped_file_close(struct mapped_file *file);

/* Of this user's files in `folder` whose names begin and end so, and of which stale() holds, removes the
 * oldest until at most `bytes_most` are left; never more than a quarter of the file system. */
void mapped_file_sweep(const char *folder, const char *begin, const char *end, uint64_t bytes_most,
                       bool (*stale)(const char *path));

/* Nanoseconds since 1970, for comparing hosts. */
uint64_t wall_ns(void);
/* The first `bytes` of a file; fewer where it has fewer, 0 where it cannot be read. */
size_t mapped_file_peek(const char *path, void *out, size_t bytes);

#endif
