/* completion.h: shell completion for tutti's command lines: verbs, their flags with possible values, and
 * operands, all from the tables that the parsers read. */
#ifndef TUTTI_SIM_COMPLETION_H
#define TUTTI_SIM_COMPLETION_H

#include "verb.h"

/* Prints to standard output. `shell`: bash or zsh; any other gets a sentence on stderr. */
enum exit_code completion_print(const char *shell);

#endif
