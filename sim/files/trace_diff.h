/* trace_diff.h: `tutti trace diff`: the first difference of two traces. */
#ifndef TUTTI_SIM_TRACE_DIFF_H
#define TUTTI_SIM_TRACE_DIFF_H

#include "verb.h"

/* EXIT_GOOD: no difference; EXIT_WRONG: prints the first difference, of both; as JSON, an
 * object in either case. */
enum exit_code trace_diff(char *left, char *right, bool json);

#endif
