/* pickle.h: converts Python's pickles of plain data to JSON values: dictionaries, lists, tuples, texts,
 * numbers, True, False, None. Executes nothing: anything that would make, call or look up other objects is
 * rejected with its position. Memory use is proportional to the input. */
#ifndef TUTTI_SIM_PICKLE_H
#define TUTTI_SIM_PICKLE_H

#include <jansson.h>
#include <stdbool.h>

#include "nccl.h"

/* True if the bytes begin like a pickle of protocol 2 or later. */
bool pickle_is(const void *bytes, size_t byte_count);

/* Tuples become arrays; numeric keys become texts. ncclInvalidArgument reports the file, the byte and what
 * was expected. Free the value with json_decref. */
ncclResult_t pickle_read(const char *name, const void *bytes, size_t byte_count, json_t **value);

/* The pickle, protocol 2, of a JSON value: ncclSystemError when memory is out. Arrays named `process_group`
 * become tuples, as in PyTorch's dumps. */
ncclResult_t pickle_write(const json_t *value, char **bytes, size_t *byte_count);

#endif
