/* pickle.h: Python's pickles as JSON values, as far as they hold plain data: dictionaries, lists, tuples,
 * texts, numbers, True, False, None. Executes nothing: whatever would make, call or look up anything else is
 * refused with its place. Takes memory in proportion to the bytes that it is given. */
#ifndef TUTTI_SIM_PICKLE_H
#define TUTTI_SIM_PICKLE_H

#include <jansson.h>
#include <stdbool.h>

#include "nccl.h"

/* True when the bytes begin as a pickle of protocol 2 or later. */
bool pickle_is(const void *bytes, size_t byte_count);

/* Tuples become arrays; keys that are numbers become texts. ncclInvalidArgument names the file, the byte and
 * what was expected. json_decref frees the value. */
ncclResult_t pickle_read(const char *name, const void *bytes, size_t byte_count, json_t **value);

/* The pickle, protocol 2, of a JSON value: ncclSystemError when memory is out. Arrays of name `process_group`
 * become tuples, as PyTorch has them. */
ncclResult_t pickle_write(const json_t *value, char **bytes, size_t *byte_count);

#endif
