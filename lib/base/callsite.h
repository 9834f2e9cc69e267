/* callsite.h: says which line of the program made a call. */
#ifndef TUTTI_BASE_CALLSITE_H
#define TUTTI_BASE_CALLSITE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/python_frame.h"

/* In a function that the program calls: the place of that call. callsite_text() tells it. */
#define CALL_PLACE python_caller(__builtin_return_address(0))

/* A return address as the file numbers it that its code was mapped from. */
struct callsite {
  char path[1024];
  uint64_t offset;
};

/* Finds the file of an address of this process; false if there is none. Takes microseconds. */
bool callsite_find(const void *address, struct callsite *site);

/* Tells whether a file is still the same one. */
struct callsite_stamp {
  uint64_t bytes, changed_ns;
};
/* False if `path` is not absolute, or no regular file of root or of this user: another user's file is not
 * given to addr2line. */
bool callsite_stamp(const char *path, struct callsite_stamp *stamp);

/* Writes "job.c:31 (train)" for the call that returns there, from the file's debug information, which
 * addr2line (binutils) reads; else the same as callsite_plain(). Takes milliseconds, at most a few seconds:
 * for errors only. */
void callsite_line(const struct callsite *site, char *out, size_t out_bytes);
/* Writes "job+0x1189", the file's name and the call's offset in it. */
void callsite_plain(const struct callsite *site, char *out, size_t out_bytes);
/* callsite_line() for an address of this process, the line of Python for a CALL_PLACE that is one; "an
 * unknown place" if no file is mapped there. */
void callsite_text(const void *address, char *out, size_t out_bytes);

#endif
