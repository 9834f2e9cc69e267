/* python_frame.h: the line of Python that a thread runs, for programs that call the library from Python:
 * there the return address is always that of the same wrapper. Nothing is linked: the interpreter's functions
 * are looked up in the process.
 *
 * Wrappers (ctypes, PyTorch) release the GIL before they call, and to take it here could deadlock with a
 * thread that has it and waits for a lock of the wrapper's. So the frame is read without the GIL, as
 * debuggers do, from the interpreter's structures, whose layout is known for CPython 3.11 to 3.13. That is
 * safe in the thread that runs the frame: while it is in the call nothing changes the frame, and the frame
 * keeps its code alive. */
#ifndef TUTTI_BASE_PYTHON_FRAME_H
#define TUTTI_BASE_PYTHON_FRAME_H

#include <stdbool.h>
#include <stddef.h>

/* What tells one place in a program from another. */
struct python_frame {
  const void *code, *instruction, *name;
};

/* Looks whether this process has an interpreter that is known. */
void python_frame_look(void);

extern bool python_frame_known; /* set by python_frame_look() */
/* The innermost frame of the calling thread outside of PyTorch and of this library's package, whose lines are
 * the same for all calls; the innermost one if there is no other. False if the thread runs no Python, or none
 * that is known. Takes some tens of nanoseconds. */
bool python_frame_read(struct python_frame *frame);

/* Writes "train.py:31 (step)" for a frame that the calling thread has just read; false if its names are not
 * ASCII. */
bool python_frame_text(const struct python_frame *frame, char *out, size_t out_bytes);

const void *python_caller_add(const void *address);
/* What stands for the place of a call of the library: of the line of Python that makes it, if there is one,
 * else its return address. */
static inline const void *python_caller(const void *address) {
  return __atomic_load_n(&python_frame_known, __ATOMIC_ACQUIRE) ? python_caller_add(address) : address;
}
/* The frame of a place that is a line of Python, as the call has read it; NULL for other addresses. */
const struct python_frame *python_caller_frame(const void *place);
/* The text of a place that is a line of Python, for good; NULL for other addresses. */
const char *python_caller_text(const void *place);

#endif
