/* help.c: the verb `help`: the list of verbs, one verb's page, the library's settings; the same as manual
 * pages in roff, and as shell completion. All text comes from the verbs' own structs and from the library's
 * table of settings, so it names only flags that the parser knows. */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/param.h"
#include "completion.h"
#include "json.h"
#include "page.h"
#include "tutti.h"
#include "verb.h"

struct help_values {
  const char *completion;
  bool man, json;
};

#define AT(member) offsetof(struct help_values, member)
static const struct option_row help_rows[] = {
    {0, "man", NULL, OPTION_FLAG, AT(man), 0, 0, "print the manual page in roff instead"},
    {0, "completion", "bash|zsh", OPTION_TEXT, AT(completion), 0, 0,
     "print the completion script for this shell"},
    {'J', "json", NULL, OPTION_FLAG, AT(json), 0, 0, "of params: print JSON"},
};
static const struct option_set help_options = {"help", help_rows, sizeof help_rows / sizeof help_rows[0],
                                               false,  false,     false};

static const char exit_codes[] =
    "  0  success\n"
    "  1  the check failed: wrong results, a deadlock, a bandwidth below its minimum\n"
    "  2  the command line is wrong\n"
    "  3  something is missing: memory, a device, a place to write\n"
    "  4  an input file cannot be read\n";

static const char title[] = "collective communication with NCCL's API, run, checked and timed without a GPU";

static void print_overview(void) {
  const int at = printf("tutti: ");
  page_fill(title, at, 2);
  printf("\n\nverbs:\n");
  for (size_t index = 0; index < verb_count; index++) {
    const int column = printf("  tutti %-8s ", verbs[index]->name);
    page_fill(verbs[index]->summary, column, column);
    putchar('\n');
  }
  page_text(
      "\n  tutti help VERB    flags and examples of one verb; also tutti VERB --help\n"
      "  tutti help params  settings of the library: NCCL_* and TUTTI_* variables\n"
      "  tutti --version    version and backends\n\nexit codes:\n");
  page_text(exit_codes);
}

static void print_verb(const struct verb *verb) {
  page_usage(verb->name, verb->synopsis);
  putchar('\n');
  page_text(verb->description);
  if (verb->options) {
    printf("\nflags:\n");
    page_options(verb->options);
  }
  printf("\nexamples:\n");
  page_commands(verb->examples);
  printf("\nexit codes:\n");
  page_text(exit_codes);
}

bool verb_parse(const struct option_set *set, int argc, char **argv, void *values, int *first_operand,
                enum exit_code *code) {
  const enum option_outcome outcome = option_parse(set, argc, argv, values, first_operand);
  if (outcome == OPTION_HELP) print_verb(verb_find(set->verb));
  *code = outcome == OPTION_MISUSE ? EXIT_USAGE : EXIT_GOOD;
  if (outcome == OPTION_GOOD && set->reads_settings && !verb_settings_good(set->verb)) *code = EXIT_USAGE;
  return outcome == OPTION_GOOD && *code == EXIT_GOOD;
}

/* ---- settings ---- */

/* A row's default as a user would write it. */
static void print_default(const struct param_row *row) {
  if (row->kind == PARAM_TEXT) printf("%s", *row->text ? row->text : "unset");
  else if (row->initial < row->lowest || row->initial > row->highest) printf("chosen by the library");
  else printf("%lld", (long long)row->initial);
}

static const char params_sources[] =
    "Settings are read from the environment, then from NCCL_CONF_FILE or ~/.nccl.conf, then from "
    "/etc/nccl.conf. An unknown TUTTI_* name or a value that cannot be read makes the library's calls fail; "
    "of NCCL_* it is ignored with a warning, as in NCCL.\n";
static const char params_accepted[] =
    "Names that are accepted and have no effect; setting one is logged once (NCCL_DEBUG=INFO, subsystem "
    "ENV):\n";

static void print_accepted(void) {
  const struct param_accepted *row;
  fputc('\n', stdout);
  page_text(params_accepted);
  for (size_t i = 0; (row = param_accepted(i)) != NULL; i++) {
    printf("\n%s", row->name);
    if (param_accepted_source(i)) printf("  [set in %s]", param_accepted_source(i));
    printf("\n    ");
    page_fill(row->why, 4, 4);
    fputc('\n', stdout);
  }
}

static enum exit_code print_params(void) {
  page_text(params_sources);
  for (int index = 0; index < PARAM_COUNT; index++) {
    enum param_id id = (enum param_id)index;
    const struct param_row *row = param_row(id);
    printf("\n%s  (default: ", row->name);
    print_default(row);
    if (row->kind != PARAM_TEXT) printf("; %lld to %lld", (long long)row->lowest, (long long)row->highest);
    printf(")");
    if (param_is_set(id)) printf("  [set in %s]", param_source(id));
    printf("\n    ");
    page_fill(row->help, 4, 4);
    fputc('\n', stdout);
  }
  print_accepted();
  return EXIT_GOOD;
}

static void json_param(struct json *json, enum param_id id) {
  const struct param_row *row = param_row(id);
  const bool chosen = row->kind != PARAM_TEXT && (row->initial < row->lowest || row->initial > row->highest);
  json_open(json, NULL, '{');
  json_text(json, "name", row->name);
  if (row->kind == PARAM_TEXT) json_text(json, "default", row->text);
  else if (!chosen) json_number(json, "default", row->initial);
  if (row->kind != PARAM_TEXT) {
    json_number(json, "lowest", row->lowest);
    json_number(json, "highest", row->highest);
  }
  if (param_is_set(id)) json_text(json, "set_in", param_source(id));
  json_text(json, "help", row->help);
  json_close(json, '}');
}

static void json_accepted(struct json *json, const struct param_accepted *row, size_t index) {
  json_open(json, NULL, '{');
  json_text(json, "name", row->name);
  json_bool(json, "accepted_only", true);
  if (param_accepted_source(index)) json_text(json, "set_in", param_accepted_source(index));
  json_text(json, "help", row->why);
  json_close(json, '}');
}

static enum exit_code json_params(void) {
  struct json json;
  memset(&json, 0, sizeof json);
  json.out = stdout;
  json_open(&json, NULL, '[');
  for (int index = 0; index < PARAM_COUNT; index++) json_param(&json, (enum param_id)index);
  const struct param_accepted *accepted;
  for (size_t i = 0; (accepted = param_accepted(i)) != NULL; i++) json_accepted(&json, accepted, i);
  json_close(&json, ']');
  putchar('\n');
  return EXIT_GOOD;
}

/* ---- manual pages ---- */

static void roff_title(const char *name) {
  printf(".TH %s 1 \"\" \"tutti %d.%d.%d\" \"User Commands\"\n", name, TUTTI_VERSION_MAJOR,
         TUTTI_VERSION_MINOR, TUTTI_VERSION_PATCH);
}

static void roff_section(const char *name) { printf(".SH %s\n", name); }

static void roff_verb(const struct verb *verb) {
  char name[48];
  snprintf(name, sizeof name, "TUTTI\\-%s", verb->name);
  roff_title(name);
  roff_section("NAME");
  printf("tutti\\-%s \\- %s\n", verb->name, verb->summary);
  roff_section("SYNOPSIS");
  page_roff_usage(verb->name, verb->synopsis);
  roff_section("DESCRIPTION");
  page_roff_text(verb->description);
  roff_section("OPTIONS");
  page_roff_options(verb->options);
  roff_section("EXAMPLES");
  page_roff_commands(verb->examples);
  roff_section("EXIT STATUS");
  page_roff_commands(exit_codes);
  roff_section("SEE ALSO");
  printf(".BR tutti (1)\n");
}

/* A manual page does not show this machine's settings. */
static void roff_params(void) {
  roff_title("TUTTI\\-params");
  roff_section("NAME");
  printf("tutti\\-params \\- settings of the library: NCCL_* and TUTTI_* variables\n");
  roff_section("DESCRIPTION");
  page_roff_text(params_sources);
  roff_section("SETTINGS");
  for (int index = 0; index < PARAM_COUNT; index++) {
    const struct param_row *row = param_row((enum param_id)index);
    printf(".TP\n\\fB%s\\fR (default: ", row->name);
    print_default(row);
    if (row->kind != PARAM_TEXT) printf("; %lld to %lld", (long long)row->lowest, (long long)row->highest);
    printf(")\n");
    page_roff_words(row->help);
    fputc('\n', stdout);
  }
  roff_section("ACCEPTED NAMES");
  page_roff_text(params_accepted);
  const struct param_accepted *accepted;
  for (size_t i = 0; (accepted = param_accepted(i)) != NULL; i++) {
    printf(".TP\n\\fB%s\\fR\n", accepted->name);
    page_roff_words(accepted->why);
    fputc('\n', stdout);
  }
  roff_section("SEE ALSO");
  printf(".BR tutti (1)\n");
}

static void roff_overview(void) {
  roff_title("TUTTI");
  roff_section("NAME");
  printf("tutti \\- ");
  page_roff_words(title);
  putchar('\n');
  roff_section("SYNOPSIS");
  printf(
      "\\fBtutti\\fR \\fIVERB\\fR ...\n.br\n\\fBtutti help\\fR [\\fIVERB\\fR|params]\n.br\n\\fBtutti "
      "\\-\\-version\\fR\n");
  roff_section("VERBS");
  for (size_t index = 0; index < verb_count; index++) {
    printf(".TP\n\\fBtutti %s\\fR\n%s.\n", verbs[index]->name, verbs[index]->summary);
  }
  roff_section("EXIT STATUS");
  page_roff_commands(exit_codes);
  roff_section("SEE ALSO");
  for (size_t index = 0; index < verb_count; index++)
    printf(".BR tutti\\-%s (1)%s\n", verbs[index]->name, index + 1 < verb_count ? "," : "");
}

/* ---- the verb ---- */

static enum exit_code help_all(const struct help_values *values) {
  if (values->completion) return completion_print(values->completion);
  if (values->man) roff_overview();
  else print_overview();
  return EXIT_GOOD;
}

static enum exit_code help_params(const struct help_values *values) {
  if (values->json) return json_params();
  if (!values->man) return print_params();
  roff_params();
  return EXIT_GOOD;
}

static enum exit_code help_run(int argc, char **argv) {
  struct help_values values = {NULL, false, false};
  int operand;
  enum exit_code code;
  if (!verb_parse(&help_options, argc, argv, &values, &operand, &code)) return code;
  if (argc - operand > 1) {
    fprintf(stderr, "tutti help: one verb at a time, `%s` is too many\n", argv[operand + 1]);
    return EXIT_USAGE;
  }
  if (operand >= argc || !strcmp(argv[operand], "tutti")) return help_all(&values);
  if (!strcmp(argv[operand], "params")) return help_params(&values);
  const struct verb *verb = verb_find(argv[operand]);
  if (!verb) return verb_unknown(argv[operand]);
  if (values.man) roff_verb(verb);
  else print_verb(verb);
  return EXIT_GOOD;
}

const struct verb verb_help = {
    "help",
    "the list of verbs, one verb's page, or the library's settings",
    "[--man] [VERB]\nparams [--json]\n--completion bash|zsh",
    "VERB|params",
    "  tutti help bench\n"
    "  tutti help params --json\n"
    "  tutti help --man bench >tutti-bench.1\n"
    "  tutti help --completion bash >tutti.bash\n",
    "Prints the verbs; the flags of one verb with examples, as `tutti VERB --help` does; or every NCCL_* and "
    "TUTTI_* setting with its default, its bounds and where it was set, then the names that are accepted and "
    "have no effect.\n"
    "\n"
    "Lines are as wide as the terminal, or COLUMNS, or 80.\n"
    "\n"
    "Manual pages and completion of this version are installed with it. Without an installation: `source "
    "<(tutti help --completion bash)`.\n",
    &help_options,
    help_run,
};
