/* names.h: how functions, algorithms and protocols are called in settings, files and sentences. Matched
 * without regard to case. */
#ifndef TUTTI_CORE_NAMES_H
#define TUTTI_CORE_NAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "schedule/work.h"

extern const char *const names_func[FUNC_COUNT]; /* as in "allreduce:ring": "AllReduce" */
extern const char *const names_algo[ALGO_COUNT];
extern const char *const names_proto[PROTO_COUNT];
/* The collectives that the model chooses for, as nccl-tests calls them ("all_reduce"); NULL for other
 * functions. */
extern const char *const names_collective[FUNC_COUNT];

/* Index of a word of `length` letters, or -1. Rows that are NULL have no word. */
int names_find(const char *const *names, uint32_t count, const char *word, size_t length);

/* The words by comma, in `out`, which is cut where it is too small: those of a set, or all with ~0. */
void names_list(const char *const *names, uint32_t count, uint32_t set, char *out, size_t out_bytes);

#endif
