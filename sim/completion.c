/* completion.c: see completion.h. The words that are possible at a place are written as in help texts: small
 * letters are literal words, capitals name a set below, `|` separates alternatives: "plan|FILE". */
#include "completion.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "collective.h"
#include "core/plan/names.h"
#include "core/topology/topology.h"
#include "kernels/kernels.h"
#include "nccl.h"
#include "tutti.h"

static const char *set_verb(size_t index) { return index < verb_count ? verbs[index]->name : NULL; }
static const char *set_collective(size_t index) {
  return collective_at(index) != NULL ? collective_at(index)->name : NULL;
}
static const char *set_machine(size_t index) { return topology_preset((uint32_t)index); }
static const char *set_algo(size_t index) { return index < ALGO_COUNT ? names_algo[index] : NULL; }
static const char *set_proto(size_t index) { return index < PROTO_COUNT ? names_proto[index] : NULL; }
static const char *set_type(size_t index) {
  return index < ncclNumTypes ? kernel_type_name((uint8_t)index) : NULL;
}

/* Sets whose words are listed here; for sets without words the shell has its own completion. */
static const struct word_set {
  const char *name;
  const char *(*word)(size_t index); /* NULL past the end */
  const char *zsh;                   /* zsh's action for the set */
} word_sets[] = {
    {"VERB", set_verb, NULL},   {"COLLECTIVE", set_collective, NULL},
    {"ALGO", set_algo, NULL},   {"MACHINE", set_machine, NULL},
    {"PROTO", set_proto, NULL}, {"TYPE", set_type, NULL},
    {"FILE", NULL, "_files"},   {"PROGRAM", NULL, "_command_names -e"},
    {"PLACE", NULL, "_files"},
};

/* The set that the item names in capitals, as FILE... does; NULL: none. */
static const struct word_set *set_find(const char *item) {
  size_t capitals = 0;
  while (isupper((unsigned char)item[capitals])) capitals++;
  for (size_t i = 0; i < sizeof word_sets / sizeof word_sets[0]; i++)
    if (strlen(word_sets[i].name) == capitals && strncmp(word_sets[i].name, item, capitals) == 0)
      return &word_sets[i];
  return NULL;
}

/* The length of the first item; *next is after it and its `|`, or NULL. A space ends a place. */
static size_t item_length(const char *item, const char **next) {
  const size_t length = strcspn(item, "| ");
  *next = item[length] == '|' ? item + length + 1 : NULL;
  return length;
}

/* All possible words at the place, separated by spaces. */
static void words_print(const char *place) {
  const char *between = "";
  while (place != NULL) {
    const char *next;
    const size_t length = item_length(place, &next);
    const struct word_set *set = set_find(place);
    for (size_t i = 0; set != NULL && set->word != NULL && set->word(i) != NULL; i++) {
      printf("%s%s", between, set->word(i));
      between = " ";
    }
    if (set == NULL && islower((unsigned char)*place)) {
      printf("%s%.*s", between, (int)length, place);
      between = " ";
    }
    place = next;
  }
}

static bool place_has(const char *place, bool files) {
  while (place != NULL) {
    const char *next;
    item_length(place, &next);
    const struct word_set *set = set_find(place);
    if (set != NULL && set->zsh != NULL && (strcmp(set->zsh, "_files") == 0) == files) return true;
    place = next;
  }
  return false;
}

/* The next place of operands; NULL after the last one. */
static const char *place_next(const char *place) {
  const char *space = strchr(place, ' ');
  return space != NULL ? space + 1 : NULL;
}

/* ---- bash ---- */

static void bash_sets(const char *place) {
  printf("words='");
  words_print(place);
  printf("'%s%s", place_has(place, true) ? " files=1" : "", place_has(place, false) ? " commands=1" : "");
}

static void bash_flags(const struct verb *verb) {
  printf("    %s)\n      flags='", verb->name);
  for (size_t i = 0; i < option_row_count(verb->options); i++) {
    const struct option_row *row = option_row_at(verb->options, i);
    printf("--%s ", row->name);
    if (row->letter) printf("-%c ", row->letter);
  }
  printf("'\n      valued=' ");
  for (size_t i = 0; i < option_row_count(verb->options); i++) {
    const struct option_row *row = option_row_at(verb->options, i);
    if (row->argument == NULL) continue;
    printf("--%s ", row->name);
    if (row->letter) printf("-%c ", row->letter);
  }
  printf("'%s ;;\n", verb->options->ends_at_operand ? " ends=1" : "");
}

static void bash_values(const struct verb *verb) {
  for (size_t i = 0; i < option_row_count(verb->options); i++) {
    const struct option_row *row = option_row_at(verb->options, i);
    if (row->argument == NULL) continue;
    printf("    '%s --%s'", verb->name, row->name);
    if (row->letter) printf(" | '%s -%c'", verb->name, row->letter);
    printf(") ");
    bash_sets(row->argument);
    printf(" ;;\n");
  }
}

static void bash_operands(const struct verb *verb) {
  const char *place = verb->operands;
  for (int number = 0; place != NULL; number++) {
    const char *next = place_next(place);
    if (next == NULL) printf("    '%s '*) ", verb->name); /* and all later ones */
    else printf("    '%s %d') ", verb->name, number);
    bash_sets(place);
    printf(" ;;\n");
    place = next;
  }
}

static const char bash_head[] =
    "_tutti() {\n"
    "  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} verb=${COMP_WORDS[1]}\n"
    "  local flags='' valued='' ends='' words='' files='' commands='' place=0 i line\n"
    "  COMPREPLY=()\n"
    "  if ((COMP_CWORD > 2)); then\n"
    "    [[ $prev == = ]] && prev=${COMP_WORDS[COMP_CWORD-2]}\n"
    "    [[ $cur == = ]] && cur=''\n"
    "  fi\n"
    "  case $verb in\n";

static const char bash_middle[] =
    "  esac\n"
    "  for ((i = 2; i < COMP_CWORD; i++)); do\n"
    "    case ${COMP_WORDS[i]} in\n"
    "      =) ((i++)) ;;\n"
    "      -*) [[ $valued == *\" ${COMP_WORDS[i]} \"* && ${COMP_WORDS[i+1]} != = ]] && ((i++)) ;;\n"
    "      *) ((place++))\n"
    "        if [[ -n $ends ]]; then\n"
    "          declare -F _command_offset >/dev/null && _command_offset $i\n"
    "          return\n"
    "        fi ;;\n"
    "    esac\n"
    "  done\n"
    "  if ((COMP_CWORD == 1)); then\n"
    "    words='";

static const char bash_tail[] =
    "  esac\n"
    "  fi\n"
    "  COMPREPLY=($(compgen -W \"$words\" -- \"$cur\"))\n"
    "  if [[ -n $files$commands ]]; then\n"
    "    compopt -o filenames 2>/dev/null\n"
    "    while IFS= read -r line; do COMPREPLY+=(\"$line\"); done < <(compgen -f -- \"$cur\")\n"
    "  fi\n"
    "  if [[ -n $commands && $cur != */* ]]; then\n"
    "    while IFS= read -r line; do COMPREPLY+=(\"$line\"); done < <(compgen -c -- \"$cur\")\n"
    "  fi\n"
    "}\n"
    "complete -F _tutti tutti\n";

static void bash_print(void) {
  printf("# bash completion of tutti %d.%d.%d: `tutti help --completion bash` prints it.\n%s",
         TUTTI_VERSION_MAJOR, TUTTI_VERSION_MINOR, TUTTI_VERSION_PATCH, bash_head);
  for (size_t i = 0; i < verb_count; i++) bash_flags(verbs[i]);
  fputs(bash_middle, stdout);
  words_print("VERB");
  printf(
      " --help --version'\n"
      "  elif [[ $valued == *\" $prev \"* ]]; then\n  case \"$verb $prev\" in\n");
  for (size_t i = 0; i < verb_count; i++) bash_values(verbs[i]);
  printf("  esac\n  elif [[ $cur == -* ]]; then\n    words=$flags\n  else\n  case \"$verb $place\" in\n");
  for (size_t i = 0; i < verb_count; i++) bash_operands(verbs[i]);
  fputs(bash_tail, stdout);
}

/* ---- zsh ---- */

/* Text between single quotes in a spec of _arguments. */
static void zsh_text(const char *text, size_t length) {
  for (size_t i = 0; i < length; i++) {
    if (strchr("[]:\\", text[i]) != NULL) putchar('\\');
    if (text[i] == '\'') fputs("'\\''", stdout);
    else putchar(text[i]);
  }
}

/* ":MESSAGE:ACTION" for a place. */
static void zsh_place(const char *place) {
  const size_t length = strcspn(place, " ");
  const bool files = place_has(place, true), programs = place_has(place, false);
  putchar(':');
  zsh_text(place, length);
  putchar(':');
  if (!files && !programs) {
    putchar('(');
    words_print(place);
    putchar(')');
    return;
  }
  if (programs) {
    printf("_command_names -e");
    return;
  }
  printf("{compadd -- ");
  words_print(place);
  printf("; _files}");
}

static void zsh_flag(const struct option_row *row, bool repeats) {
  printf(" \\\n      %s", repeats ? "'*'" : "");
  if (row->letter && !repeats) printf("'(-%c --%s)'", row->letter, row->name);
  if (row->letter) printf("{-%c,--%s}", row->letter, row->name);
  else printf("--%s", row->name);
  printf("'[");
  zsh_text(row->help, strlen(row->help));
  putchar(']');
  if (row->argument) zsh_place(row->argument);
  putchar('\'');
}

static void zsh_verb(const struct verb *verb) {
  printf("    %s)\n      _arguments -s -S", verb->name);
  for (size_t i = 0; i < option_row_count(verb->options); i++) {
    const struct option_row *row = option_row_at(verb->options, i);
    zsh_flag(row, row->kind == OPTION_LIST);
  }
  const char *place = verb->operands;
  for (int number = 1; place != NULL; number++) {
    const char *next = place_next(place);
    if (next != NULL || verb->options->ends_at_operand) printf(" \\\n      '%d", number);
    else printf(" \\\n      '*");
    zsh_place(place);
    putchar('\'');
    place = next;
  }
  if (verb->options->ends_at_operand) printf(" \\\n      '*::ARGUMENTS:_normal'");
  printf(" ;;\n");
}

static void zsh_print(void) {
  printf(
      "#compdef tutti\n# zsh completion of tutti %d.%d.%d: `tutti help --completion zsh` prints it.\n"
      "_tutti() {\n  local -a verbs\n  verbs=(\n",
      TUTTI_VERSION_MAJOR, TUTTI_VERSION_MINOR, TUTTI_VERSION_PATCH);
  for (size_t i = 0; i < verb_count; i++) {
    printf("    '%s:", verbs[i]->name);
    zsh_text(verbs[i]->summary, strlen(verbs[i]->summary));
    printf("'\n");
  }
  printf(
      "  )\n"
      "  if ((CURRENT == 2)); then\n"
      "    _describe -t verbs verb verbs\n"
      "    return\n"
      "  fi\n"
      "  local verb=$words[2]\n"
      "  shift words\n"
      "  ((CURRENT -= 1))\n"
      "  case $verb in\n");
  for (size_t i = 0; i < verb_count; i++) zsh_verb(verbs[i]);
  printf("  esac\n}\n_tutti \"$@\"\n");
}

enum exit_code completion_print(const char *shell) {
  if (strcmp(shell, "bash") == 0) bash_print();
  else if (strcmp(shell, "zsh") == 0) zsh_print();
  else {
    fprintf(stderr, "tutti help: --completion %s: must be bash or zsh\n", shell);
    return EXIT_USAGE;
  }
  return EXIT_GOOD;
}
