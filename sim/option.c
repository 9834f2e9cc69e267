/* option.c: getopt_long over one table of rows. Every misuse gives one sentence on stderr that names the
 * flag, the value and what is expected. */
#include "option.h"

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "input.h"
#include "limit.h"

enum { ROWS_MAX = 64, NAME_MAX_LENGTH = 48 };
/* getopt's code of row i is CODE_BASE + i for the long name; letters stay letters. */
enum { CODE_BASE = 256 };

static const struct option_row help_row = {'h', "help", NULL, OPTION_FLAG, 0, 0, 0, "print this page"};

static const struct option_row limit_row = {
    0,
    "limit",
    "LIMIT",
    OPTION_LIMIT,
    0,
    0,
    0,
    "most processor time and memory to take, as 60s, 2G or 60s,2G (default: no limit, the free memory)"};

size_t option_row_count(const struct option_set *set) { return set->count + set->limited + 1; }

const struct option_row *option_row_at(const struct option_set *set, size_t index) {
  if (index < set->count) return &set->rows[index];
  return set->limited && index == set->count ? &limit_row : &help_row;
}

/* Reports a flag that getopt rejected; `code` is its own if it takes no value. */
static void report_refused(const struct option_set *set, int code, const char *given) {
  const char *names[ROWS_MAX + 2];
  for (size_t index = 0; index < option_row_count(set); index++)
    names[index] = option_row_at(set, index)->name;
  if (code >= CODE_BASE) {
    fprintf(stderr, "tutti %s: --%s takes no value: `%s`\n", set->verb,
            option_row_at(set, (size_t)(code - CODE_BASE))->name, given);
    return;
  }
  fprintf(stderr, "tutti %s: no flag `%s`", set->verb, given);
  char bare[NAME_MAX_LENGTH];
  snprintf(bare, sizeof bare, "%s", given + strspn(given, "-"));
  bare[strcspn(bare, "=")] = 0;
  const char *nearest = strlen(bare) > 1 ? text_nearest(bare, names, option_row_count(set)) : NULL;
  if (nearest) fprintf(stderr, "; did you mean `--%s`?", nearest);
  fprintf(stderr, " (`tutti help %s` lists the flags)\n", set->verb);
}

/* Value of a size's suffix, 0 if it is none. */
static int64_t suffix_factor(const char *suffix) {
  static const char letters[] = "KMGT";
  if (!*suffix) return 1;
  const char *letter = strchr(letters, toupper((unsigned char)*suffix));
  const char *rest = suffix + 1;
  if (*rest == 'i' || *rest == 'I') rest++;
  if (*rest == 'b' || *rest == 'B') rest++;
  return letter && !*rest ? (int64_t)1 << (10 * (letter - letters + 1)) : 0;
}

static bool number_parse(const char *text, bool suffix_allowed, int64_t *value) {
  char *end;
  errno = 0;
  long long number = strtoll(text, &end, 0);
  if (end == text || errno) return false;
  int64_t factor = suffix_allowed ? suffix_factor(end) : *end ? 0 : 1;
  return factor && !__builtin_mul_overflow((int64_t)number, factor, value);
}

/* Decimal, 0x hexadecimal, or a commit id: at least 7 hexadecimal digits, of which the first 16 count. */
static bool seed_parse(const char *text, uint64_t *value) {
  char *end;
  errno = 0;
  bool is_plain = text[strspn(text, "0123456789")] == 0 || !strncmp(text, "0x", 2);
  if (is_plain && *text) *value = strtoull(text, &end, 0);
  if (is_plain && *text && !*end && !errno) return true;
  size_t digits = strspn(text, "0123456789abcdefABCDEF");
  if (digits < 7 || text[digits]) return false;
  char first[17];
  snprintf(first, sizeof first, "%s", text);
  *value = strtoull(first, NULL, 16);
  return true;
}

static bool list_add(const struct option_set *set, const struct option_row *row, const char *text,
                     struct option_list *list) {
  if (list->count < OPTION_LIST_MOST) {
    list->texts[list->count++] = text;
    return true;
  }
  fprintf(stderr, "tutti %s: --%s is given more than %d times\n", set->verb, row->name, OPTION_LIST_MOST);
  return false;
}

/* Stores one flag's value; false after the sentence. */
static bool row_store(const struct option_set *set, const struct option_row *row, const char *text,
                      void *values) {
  char *member = (char *)values + row->offset;
  int64_t number = 0;
  switch (row->kind) {
    case OPTION_FLAG: *(bool *)member = true; return true;
    case OPTION_TEXT: *(const char **)member = text; return true;
    case OPTION_INPUT: *(const char **)member = input_path(text); return true;
    case OPTION_LIST: return list_add(set, row, text, (struct option_list *)(void *)member);
    case OPTION_LIMIT: return limit_set(set->verb, text);
    case OPTION_SEED:
      if (seed_parse(text, (uint64_t *)member)) return true;
      fprintf(stderr, "tutti %s: --%s %s: not a decimal, a 0x number or a commit id\n", set->verb, row->name,
              text);
      return false;
    case OPTION_INT:
    case OPTION_BYTES:
      if (!number_parse(text, row->kind == OPTION_BYTES, &number)) {
        fprintf(stderr, "tutti %s: --%s %s: not a number%s\n", set->verb, row->name, text,
                row->kind == OPTION_BYTES ? " with an optional K, M or G" : "");
        return false;
      }
      if (number < row->lowest || number > row->highest) {
        fprintf(stderr, "tutti %s: --%s %s: must be %lld to %lld\n", set->verb, row->name, text,
                (long long)row->lowest, (long long)row->highest);
        return false;
      }
      *(int64_t *)member = number;
      return true;
  }
  return false;
}

/* getopt's two tables from ours. */
static void getopt_tables(const struct option_set *set, struct option *longs, char *letters) {
  if (set->ends_at_operand) *letters++ = '+';
  *letters++ = ':';
  const size_t count = option_row_count(set);
  for (size_t index = 0; index < count; index++) {
    const struct option_row *row = option_row_at(set, index);
    longs[index].name = row->name;
    longs[index].has_arg = row->argument ? required_argument : no_argument;
    longs[index].flag = NULL;
    longs[index].val = CODE_BASE + (int)index;
    if (!row->letter) continue;
    *letters++ = (char)row->letter;
    if (row->argument) *letters++ = ':';
  }
  *letters = 0;
  memset(&longs[count], 0, sizeof longs[0]);
}

static const struct option_row *row_of_code(const struct option_set *set, int code) {
  if (code >= CODE_BASE) return option_row_at(set, (size_t)(code - CODE_BASE));
  for (size_t index = 0; index < option_row_count(set); index++) {
    if (option_row_at(set, index)->letter == code) return option_row_at(set, index);
  }
  return NULL;
}

enum option_outcome option_parse(const struct option_set *set, int argc, char **argv, void *values,
                                 int *first_operand) {
  struct option longs[ROWS_MAX + 3];
  char letters[2 * ROWS_MAX + 4];
  if (set->count > ROWS_MAX) return OPTION_MISUSE;
  getopt_tables(set, longs, letters);
  opterr = 0;
  optind = 0; /* glibc: reset */
  for (;;) {
    int code = getopt_long(argc, argv, letters, longs, NULL);
    if (code == -1) break;
    if (code == '?') {
      char letter[3] = {'-', (char)optopt, 0};
      report_refused(set, optopt, optopt > 0 && optopt < CODE_BASE ? letter : argv[optind - 1]);
      return OPTION_MISUSE;
    }
    const struct option_row *row = row_of_code(set, code == ':' ? optopt : code);
    if (row == &help_row) return OPTION_HELP;
    if (code == ':') {
      fprintf(stderr, "tutti %s: --%s needs a value, %s\n", set->verb, row->name, row->argument);
      return OPTION_MISUSE;
    }
    if (!row_store(set, row, optarg, values)) return OPTION_MISUSE;
  }
  if (set->limited) limit_begin();
  *first_operand = optind;
  return OPTION_GOOD;
}
