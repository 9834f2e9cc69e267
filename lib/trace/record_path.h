/* record_path.h: the names of the files that recorders write, for the recorder and for who looks for them. */
#ifndef TUTTI_TRACE_RECORD_PATH_H
#define TUTTI_TRACE_RECORD_PATH_H

#include <stdbool.h>
#include <stddef.h>

#define RECORD_FILE_BEGIN "tutti."
#define RECORD_FILE_END ".trace"
#define RECORD_FILE_FOLDER "/dev/shm/" /* of programs that set no TUTTI_TRACE */

/* What %h, %p and %r stand for. */
struct record_path_parts {
  const char *host, *process, *rank;
};

/* The file of a process, for the value of TUTTI_TRACE (NULL: not set): a folder, whose path ends in a slash,
 * or a path with %h, %p and %r; a % before any other character is left out. False if it does not fit. */
bool record_path(const char *place, const struct record_path_parts *parts, char *out, size_t out_bytes);
/* The folder that `place` is, or the default one; NULL if it is the path of a file. */
const char *record_path_folder(const char *place);

#endif
