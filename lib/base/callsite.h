/* callsite.h: says which line of the program made a call. */
#ifndef TUTTI_BASE_CALLSITE_H
#define TUTTI_BASE_CALLSITE_H

#include <stddef.h>

/* Writes "job.c:31 (train)" for the call that returns to `address`, from the program's debug information,
 * which addr2line (binutils) reads; else "job+0x1189", the file and the call's offset in it; "an unknown
 * place" if no file is mapped there. Takes milliseconds, at most a few seconds: for errors only. */
void callsite_text(const void *address, char *out, size_t out_bytes);

#endif
