/* verb.h: a verb of the tutti command, and the exit codes that all verbs share. A verb is one file with one
 * `struct verb`; main.c finds it in the table of verbs.c, and the help and the manual pages are printed from
 * it. */
#ifndef TUTTI_SIM_VERB_H
#define TUTTI_SIM_VERB_H

#include <stdbool.h>
#include <stddef.h>

#include "option.h"

enum exit_code {
  EXIT_GOOD = 0,        /* success */
  EXIT_WRONG = 1,       /* the check failed: a deadlock, a mismatch, a bandwidth below its minimum */
  EXIT_USAGE = 2,       /* the command line is wrong */
  EXIT_ENVIRONMENT = 3, /* memory, a device or a place to write is missing; the text says which */
  EXIT_INPUT = 4        /* a file cannot be read */
};

struct verb {
  const char *name;
  const char *summary;  /* one line, no full stop */
  const char *synopsis; /* operands and flags, after "tutti NAME "; one line per form */
  const char
      *operands; /* for completion.c: the possible words at the first place, the second ..., "a|FILE b" */
  const char *examples; /* lines of commands that run one after another as they stand, in the source tree */
  const char *description; /* paragraphs between empty lines; a line that begins with a space is not joined */
  const struct option_set *options;             /* NULL: the verb takes no flag */
  enum exit_code (*run)(int argc, char **argv); /* argv[0] is the verb's name */
};

extern const struct verb verb_bench, verb_check, verb_doctor, verb_explain, verb_goal, verb_launch,
    verb_replay, verb_run, verb_sim, verb_status, verb_topo, verb_trace, verb_help;

extern const struct verb *const verbs[];
extern const size_t verb_count;

/* Parses the verb's flags. False if the verb is done, with *code: its page was requested and is printed, or a
 * sentence on stderr says what is wrong. */
bool verb_parse(const struct option_set *set, int argc, char **argv, void *values, int *first_operand,
                enum exit_code *code);
/* False after a sentence on stderr for each setting that the library would refuse the verb's calls for. */
bool verb_settings_good(const char *verb);
/* One sentence on stderr: the verb has no `what` called `name`; lists the nearest one and all others. */
void verb_no_such(const char *verb, const char *what, const char *name, const char *const *names,
                  size_t count);
struct collective;
/* The collective that the operands name; NULL after a sentence on stderr if they do not name exactly one. */
const struct collective *verb_collective(const char *verb, int operand_count, char **operands);
/* The verb of this name, or NULL. */
const struct verb *verb_find(const char *name);
/* One sentence on stderr about an unknown verb, with the nearest one; returns EXIT_USAGE. */
enum exit_code verb_unknown(const char *name);

#endif
