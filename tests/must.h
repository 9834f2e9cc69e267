/* must.h: programs of tests that are started to go wrong, in calls that have to succeed: else they end with
 * status 3 and the library's sentence. */
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
