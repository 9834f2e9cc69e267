/* help.c: the verb `help`: the list of verbs, one verb's page, the library's settings, and the same as manual
 * pages in roff. All text comes from the verbs' own structs and from the library's table of settings, so that
 * neither help nor manual can name a flag that the parser does not know. */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/param.h"
#include "tutti.h"
#include "verb.h"

struct help_values {
  bool man;
};

static const struct option_row help_rows[] = {
    {0, "man", NULL, OPTION_FLAG, offsetof(struct help_values, man), 0, 0,
     "print the manual page in roff instead: `tutti help --man bench | man -l -`"},
};
static const struct option_set help_options = {"help", help_rows, sizeof help_rows / sizeof help_rows[0],
                                               false};

static const char exit_codes[] =
    "  0  what was asked for holds\n"
    "  1  it does not: wrong results, a deadlock, a bandwidth below its floor\n"
    "  2  the command line makes no sense\n"
    "  3  the environment lacks something: memory, a device, a place to write\n"
    "  4  an input file cannot be read\n";

static void print_overview(void) {
  printf("tutti: collective communication with NCCL's API, run, checked and timed with no GPU\n\nverbs:\n");
  for (size_t index = 0; index < verb_count; index++) {
    printf("  tutti %-8s %s\n", verbs[index]->name, verbs[index]->summary);
  }
  printf(
      "\n  tutti help VERB    flags and examples of one verb\n"
      "  tutti help params  settings of the library: NCCL_* and TUTTI_* variables\n"
      "  tutti --version    version and backends\n\nexit codes:\n%s",
      exit_codes);
}

/* Paragraphs are filled; lines that begin with a space are kept. */
static void print_description(const char *text) {
  while (*text) {
    size_t length = strcspn(text, "\n");
    char line[1024];
    snprintf(line, sizeof line, "%.*s", (int)length, text);
    if (*line == ' ') fputs(line, stdout);
    else option_print_wrapped(stdout, line, 0);
    fputc('\n', stdout);
    text += length + (text[length] == '\n');
  }
}

static void print_verb(const struct verb *verb) {
  printf("%s\nusage: tutti %s %s\n\n", verb->examples, verb->name, verb->synopsis);
  print_description(verb->description);
  if (verb->options) {
    printf("\nflags:\n");
    option_print_help(stdout, verb->options);
  }
  printf("\nexit codes:\n%s", exit_codes);
}

/* A row's default as a user would write it. */
static void print_default(const struct param_row *row) {
  if (row->kind == PARAM_TEXT) printf("%s", *row->text ? row->text : "unset");
  else if (row->initial < row->lowest || row->initial > row->highest) printf("chosen by the library");
  else printf("%lld", (long long)row->initial);
}

static const char params_sources[] =
    "Settings are read from the environment, then from NCCL_CONF_FILE or ~/.nccl.conf, then from "
    "/etc/nccl.conf.";
static const char params_accepted[] =
    "Names that are accepted and have no effect; setting one is logged once (NCCL_DEBUG=INFO, subsystem "
    "ENV):";

static void print_accepted(void) {
  fputc('\n', stdout);
  option_print_wrapped(stdout, params_accepted, 0);
  fputc('\n', stdout);
  const struct param_accepted *row;
  for (size_t i = 0; (row = param_accepted(i)) != NULL; i++) {
    printf("\n%s", row->name);
    if (param_accepted_source(i)) printf("  [set in %s]", param_accepted_source(i));
    printf("\n    ");
    option_print_wrapped(stdout, row->why, 4);
    fputc('\n', stdout);
  }
}

static void print_params(void) {
  option_print_wrapped(stdout, params_sources, 0);
  fputc('\n', stdout);
  for (int index = 0; index < PARAM_COUNT; index++) {
    enum param_id id = (enum param_id)index;
    const struct param_row *row = param_row(id);
    printf("\n%s  (default: ", row->name);
    print_default(row);
    if (row->kind != PARAM_TEXT) printf("; %lld to %lld", (long long)row->lowest, (long long)row->highest);
    printf(")");
    if (param_is_set(id)) printf("  [set in %s]", param_source(id));
    printf("\n    ");
    option_print_wrapped(stdout, row->help, 4);
    fputc('\n', stdout);
  }
  print_accepted();
}

static void roff_section(const char *title) { printf(".SH %s\n", title); }

/* Text whose lines are kept. */
static void roff_literal(const char *text) {
  printf(".nf\n");
  option_print_roff_text(stdout, text);
  printf(".fi\n");
}

static void roff_description(const char *text) {
  while (*text) {
    size_t length = strcspn(text, "\n");
    char line[1024];
    snprintf(line, sizeof line, "%.*s", (int)length, text);
    if (!*line) printf(".PP");
    else if (*line == ' ') printf(".br\n");
    option_print_roff_text(stdout, line);
    fputc('\n', stdout);
    text += length + (text[length] == '\n');
  }
}

static void roff_verb(const struct verb *verb) {
  printf(".TH TUTTI\\-%s 1 \"\" \"tutti %d.%d.%d\" \"User Commands\"\n", verb->name, TUTTI_VERSION_MAJOR,
         TUTTI_VERSION_MINOR, TUTTI_VERSION_PATCH);
  roff_section("NAME");
  printf("tutti\\-%s \\- %s\n", verb->name, verb->summary);
  roff_section("SYNOPSIS");
  printf("\\fBtutti %s\\fR ", verb->name);
  option_print_roff_text(stdout, verb->synopsis);
  printf("\n");
  roff_section("DESCRIPTION");
  roff_description(verb->description);
  if (verb->options) {
    roff_section("OPTIONS");
    option_print_roff(stdout, verb->options);
  }
  roff_section("EXAMPLES");
  roff_literal(verb->examples);
  roff_section("EXIT STATUS");
  roff_literal(exit_codes);
  roff_section("SEE ALSO");
  printf(".BR tutti (1)\n");
}

/* A manual page is for all readers: it does not say what is set here. */
static void roff_params(void) {
  printf(".TH TUTTI\\-params 1 \"\" \"tutti %d.%d.%d\" \"User Commands\"\n", TUTTI_VERSION_MAJOR,
         TUTTI_VERSION_MINOR, TUTTI_VERSION_PATCH);
  roff_section("NAME");
  printf("tutti\\-params \\- settings of the library: NCCL_* and TUTTI_* variables\n");
  roff_section("DESCRIPTION");
  option_print_roff_text(stdout, params_sources);
  fputc('\n', stdout);
  roff_section("SETTINGS");
  for (int index = 0; index < PARAM_COUNT; index++) {
    const struct param_row *row = param_row((enum param_id)index);
    printf(".TP\n\\fB%s\\fR (default: ", row->name);
    print_default(row);
    if (row->kind != PARAM_TEXT) printf("; %lld to %lld", (long long)row->lowest, (long long)row->highest);
    printf(")\n");
    option_print_roff_text(stdout, row->help);
    fputc('\n', stdout);
  }
  roff_section("ACCEPTED NAMES");
  option_print_roff_text(stdout, params_accepted);
  fputc('\n', stdout);
  const struct param_accepted *accepted;
  for (size_t i = 0; (accepted = param_accepted(i)) != NULL; i++) {
    printf(".TP\n\\fB%s\\fR\n", accepted->name);
    option_print_roff_text(stdout, accepted->why);
    fputc('\n', stdout);
  }
  roff_section("SEE ALSO");
  printf(".BR tutti (1)\n");
}

static void roff_overview(void) {
  printf(".TH TUTTI 1 \"\" \"tutti %d.%d.%d\" \"User Commands\"\n", TUTTI_VERSION_MAJOR, TUTTI_VERSION_MINOR,
         TUTTI_VERSION_PATCH);
  roff_section("NAME");
  printf("tutti \\- collective communication with NCCL's API, run, checked and timed with no GPU\n");
  roff_section("SYNOPSIS");
  printf(
      "\\fBtutti\\fR \\fIVERB\\fR ...\n.br\n\\fBtutti help\\fR [\\fIVERB\\fR|params]\n.br\n\\fBtutti "
      "\\-\\-version\\fR\n");
  roff_section("VERBS");
  for (size_t index = 0; index < verb_count; index++) {
    printf(".TP\n\\fBtutti %s\\fR\n%s.\n", verbs[index]->name, verbs[index]->summary);
  }
  roff_section("EXIT STATUS");
  roff_literal(exit_codes);
  roff_section("SEE ALSO");
  printf(".BR tutti\\-bench (1)\n");
}

static enum exit_code help_run(int argc, char **argv) {
  struct help_values values = {false};
  int operand;
  if (!option_parse(&help_options, argc, argv, &values, &operand)) return EXIT_USAGE;
  if (argc - operand > 1) {
    fprintf(stderr, "tutti help: one verb at a time, `%s` is too many\n", argv[operand + 1]);
    return EXIT_USAGE;
  }
  if (operand >= argc || !strcmp(argv[operand], "tutti")) {
    if (values.man) roff_overview();
    else print_overview();
    return EXIT_GOOD;
  }
  if (!strcmp(argv[operand], "params")) {
    if (values.man) roff_params();
    else print_params();
    return EXIT_GOOD;
  }
  const struct verb *verb = verb_find(argv[operand]);
  if (!verb) return verb_unknown(argv[operand]);
  if (values.man) roff_verb(verb);
  else print_verb(verb);
  return EXIT_GOOD;
}

const struct verb verb_help = {
    "help",
    "this list, one verb's page, or the library's settings",
    "[VERB|params] [--man]",
    "  tutti help bench\n  tutti help params\n  tutti help --man bench | man -l -\n",
    "Prints the verbs, the flags of one verb with examples, or every NCCL_* and TUTTI_* setting with its "
    "default, its\n"
    "bounds and where it was set, then the names that are accepted and have no effect.\n",
    &help_options,
    help_run,
};
