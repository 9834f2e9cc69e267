/* limit.h: the most processor time and memory that a verb may take, for files that may come from strangers.
 * The kernel enforces both: beyond the time the process ends with a sentence and EXIT_ENVIRONMENT; beyond the
 * memory allocations fail, and the verb says which. Memory is private data (RLIMIT_DATA); without a limit of
 * the user it is what the machine and the control group had free when the verb began. */
#ifndef TUTTI_SIM_LIMIT_H
#define TUTTI_SIM_LIMIT_H

#include <stdbool.h>

#include "verb.h"

/* "60s" or "10m": processor time, in whole seconds, at least one; "512M" or "2G": memory, at least 1M;
 * "60s,2G": both. False after a sentence on stderr. */
bool limit_set(const char *verb, const char *text);
/* Begins: sets the memory's limit, if the user has not. */
void limit_begin(void);
/* After the verb, which returned `code`: if it failed for want of memory under a limit, says so on stderr and
 * returns EXIT_ENVIRONMENT; else `code`. */
enum exit_code limit_end(const char *verb, enum exit_code code);

#endif
