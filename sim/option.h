/* option.h: flags of a verb as one table, from which come the parser, the range checks, the help text, the
 * manual page and shell completion. Values are stored in the verb's own struct at each row's offset; a flag
 * that was not given leaves its member unchanged, so the verb sets defaults before it parses. */
#ifndef TUTTI_SIM_OPTION_H
#define TUTTI_SIM_OPTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum option_kind {
  OPTION_FLAG,  /* bool, set to true; takes no argument */
  OPTION_INT,   /* int64_t, decimal or 0x hexadecimal, within the bounds */
  OPTION_BYTES, /* int64_t, with an optional suffix K, M or G of 1024, within the bounds */
  OPTION_TEXT,  /* const char *, points into argv */
  OPTION_INPUT, /* the same, a file that is read: `-` becomes /dev/stdin (input.h) */
  OPTION_SEED,  /* uint64_t: decimal, 0x hexadecimal, or a commit id (its first 16 digits) */
  OPTION_LIST,  /* struct option_list: may be repeated */
  OPTION_LIMIT  /* not stored: limit_set() */
};

enum { OPTION_LIST_MOST = 256 };
struct option_list {
  const char *texts[OPTION_LIST_MOST]; /* point into argv */
  size_t count;
};

struct option_row {
  int letter;           /* 'b', or 0 */
  const char *name;     /* "minbytes" */
  const char *argument; /* "BYTES"; "a|b|c": one of these; NULL for a flag */
  enum option_kind kind;
  size_t offset;           /* of the member in the verb's struct */
  int64_t lowest, highest; /* for INT and BYTES */
  const char *help;        /* one sentence without its full stop */
};

struct option_set {
  const char *verb; /* for messages */
  const struct option_row *rows;
  size_t count;
  bool ends_at_operand; /* arguments after the first operand are not parsed */
  bool limited;         /* reads files or checks calls whose work is not known beforehand: has --limit */
  bool reads_settings;  /* the verb runs or plans operations: wrong TUTTI_* settings are a misuse of it */
};

enum option_outcome { OPTION_GOOD, OPTION_HELP, OPTION_MISUSE };

/* Parses argv[1..]; operands may be between flags, unless the set forbids it, and are moved to the end, the
 * first of them at *first_operand. OPTION_MISUSE after one sentence on stderr; OPTION_HELP if -h or --help
 * comes first, which every set has. */
enum option_outcome option_parse(const struct option_set *set, int argc, char **argv, void *values,
                                 int *first_operand);

/* The rows of the set, and after them that of --limit, if it is limited, and that of --help. */
size_t option_row_count(const struct option_set *set);
const struct option_row *option_row_at(const struct option_set *set, size_t index);

#endif
