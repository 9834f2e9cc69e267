/* workload_check.h: checks a workload from any reader: it is compared, printed, and the output is read again
 * as the same workload. */
#ifndef TUTTI_TESTS_FUZZ_WORKLOAD_CHECK_H
#define TUTTI_TESTS_FUZZ_WORKLOAD_CHECK_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/os.h"
#include "bench/bench.h"
#include "simulate/workload.h"

/* Few lines can ask for millions of steps, which take long and test nothing more. */
enum { STEPS_MOST = 20000 };

/* The real one is in a file with calls of NCCL. */
const char *bench_type_name(ncclDataType_t type) {
  static const char *const names[ncclNumTypes] = {"int8", "uint8", "int32",  "uint32",   "int64",  "uint64",
                                                  "half", "float", "double", "bfloat16", "f8e4m3", "f8e5m2"};
  return (unsigned)type < ncclNumTypes ? names[type] : "";
}

static inline void hear(void *context, const char *text) { *(size_t *)context += strlen(text); }

static uint64_t wrong_of(const struct workload *workload) {
  size_t heard = 0;
  uint64_t wrong = 0;
  if (workload_match(workload, hear, &heard, &wrong) != ncclSuccess || (heard == 0) != (wrong == 0)) abort();
  return wrong;
}

static char *print(const struct workload *workload) {
  char *text = NULL;
  size_t bytes = 0;
  FILE *out = open_memstream(&text, &bytes);
  if (!out) abort();
  workload_print(workload, out);
  fclose(out);
  return text;
}

/* `text` is the output of the first one: it must mean the same. */
static void reread(const struct workload *first, char *text) {
  struct workload second;
  char *kept = os_strdup(text);
  if (workload_parse("again", text, 1, &second) != ncclSuccess) abort();
  if (second.rank_count != first->rank_count || second.step_count != first->step_count ||
      second.comm_count != first->comm_count || wrong_of(&second) != wrong_of(first))
    abort();
  char *printed = print(&second);
  if (!kept || strcmp(printed, kept) != 0) abort();
  free(printed);
  os_free(kept);
  workload_free(&second);
}

static void workload_check(const struct workload *workload) {
  if (workload->step_count > STEPS_MOST) return;
  char *printed = print(workload);
  reread(workload, printed);
  free(printed);
}

#endif
