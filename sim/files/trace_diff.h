/* trace_diff.h: `tutti trace diff`: the first thing in which two traces differ. */
#ifndef TUTTI_SIM_TRACE_DIFF_H
#define TUTTI_SIM_TRACE_DIFF_H

#include "verb.h"

/* EXIT_GOOD: the same; EXIT_WRONG: different, and what differs first, of both, is printed. */
enum exit_code trace_diff(char *left, char *right);

#endif
