/* completion.h: what completes command lines of tutti in a shell: verbs, their flags with the values that
 * these take, and operands, all from the tables that the parsers read. */
#ifndef TUTTI_SIM_COMPLETION_H
#define TUTTI_SIM_COMPLETION_H

#include "verb.h"

/* To standard output. `shell`: bash or zsh; another one gets a sentence. */
enum exit_code completion_print(const char *shell);

#endif
