/* mapped_file.h: memory mapped to a file, whose contents survive the process however it ends. Allocates disk
 * space before use, so that a full disk is an error here and never a SIGBUS. Keeps no descriptor open between
 * calls. Knows nothing of the contents. */
#ifndef TUTTI_BASE_MAPPED_FILE_H
#define TUTTI_BASE_MAPPED_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MAPPED_FILE_PATH_BYTES 512

struct mapped_file {
  uint8_t *memory; /* bytes_most are mapped, the first `bytes` may be accessed */
  size_t bytes, bytes_most;
  char path[MAPPED_FILE_PATH_BYTES];
};

/* Creates a file, replacing one of this name, readable only by this user; it can grow to `bytes_most`. False,
 * with errno; no file exists then. */
bool mapped_file_open(struct mapped_file *file, const char *path, size_t bytes_most);
/* Makes at least `bytes` of the file accessible; new bytes are zero. False, with errno. */
bool mapped_file_grow(struct mapped_file *file, size_t bytes);
/* Unlinks the file; the mapping stays. */
void mapped_file_remove(const struct mapped_file *file);
/* Unmaps; the file stays. */
void mapped_file_close(struct mapped_file *file);

/* Among this user's files in `folder` whose names have this begin and end and for which stale() is true,
 * removes the oldest until at most `bytes_most`, and at most a quarter of the file system, are left. One call
 * at a time. */
void mapped_file_sweep(const char *folder, const char *begin, const char *end, uint64_t bytes_most,
                       bool (*stale)(const char *path));

/* Nanoseconds since 1970, comparable between hosts. */
uint64_t wall_ns(void);
/* Reads the first `bytes` of a file; returns fewer if the file is shorter, 0 if it cannot be read. */
size_t mapped_file_peek(const char *path, void *out, size_t bytes);

#endif
