/* verb.h: what a verb of the tutti command is, and the exit codes that all verbs share. A verb is one file
 * with one `struct verb`; main.c finds it in the table of verbs.c, and the help and the manual pages are
 * printed from it. */
#ifndef TUTTI_SIM_VERB_H
#define TUTTI_SIM_VERB_H

#include <stddef.h>

#include "option.h"

enum exit_code {
  EXIT_GOOD = 0,  /* what was asked for holds */
  EXIT_WRONG = 1, /* the thing looked at is wrong: a deadlock, a mismatch, a bandwidth below its floor */
  EXIT_USAGE = 2, /* the command line makes no sense */
  EXIT_ENVIRONMENT = 3, /* memory, a device or a place to write is missing; the text says which */
  EXIT_INPUT = 4        /* a file cannot be read */
};

struct verb {
  const char *name;
  const char *summary;  /* one line, no full stop */
  const char *synopsis; /* operands and flags, after "tutti NAME " */
  const char *examples; /* three lines of commands */
  const char
      *description; /* paragraphs between empty lines; a line that begins with a space is kept as it is */
  const struct option_set *options;             /* NULL: the verb takes no flag */
  enum exit_code (*run)(int argc, char **argv); /* argv[0] is the verb's name */
};

extern const struct verb verb_bench, verb_check, verb_doctor, verb_explain, verb_goal, verb_launch,
    verb_replay, verb_sim, verb_status, verb_topo, verb_trace, verb_help;

extern const struct verb *const verbs[];
extern const size_t verb_count;

/* The verb of this name, or NULL. */
const struct verb *verb_find(const char *name);
/* One sentence on stderr about a name that is no verb, with the nearest one; yields EXIT_USAGE. */
enum exit_code verb_unknown(const char *name);

#endif
