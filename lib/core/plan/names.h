/* names.h: names of functions, algorithms and protocols in settings, files and messages. Case-insensitive. */
#ifndef TUTTI_CORE_NAMES_H
#define TUTTI_CORE_NAMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "schedule/work.h"

extern const char *const names_func[FUNC_COUNT]; /* as in "allreduce:ring": "AllReduce" */
extern const char *const names_algo[ALGO_COUNT];
extern const char *const names_proto[PROTO_COUNT];
/* The collectives of the cost model by their names in nccl-tests ("all_reduce"); NULL for other functions. */
extern const char *const names_collective[FUNC_COUNT];

/* Index of a word of `length` letters, or -1. NULL rows have no word. */
int names_find(const char *const *names, uint32_t count, const char *word, size_t length);

/* Writes the words of a set (~0: all), separated by commas, to `out`; truncated if `out` is too small. */
void names_list(const char *const *names, uint32_t count, uint32_t set, char *out, size_t out_bytes);

#endif
