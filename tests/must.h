/* must.h: for test programs whose calls must succeed until the intended error: if one fails, they exit with
 * status 3 and print the library's error. */
#ifndef TUTTI_TESTS_MUST_H
#define TUTTI_TESTS_MUST_H

#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

#include <nccl.h>

static inline void must(bool good, const char *what) {
  if (good) return;
  fprintf(stderr, "%s: %s\n", what, ncclGetLastError(NULL));
  _exit(3);
}
#define MUST(call) must((call) == 0, #call)

#endif
