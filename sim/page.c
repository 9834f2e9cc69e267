/* page.c: see page.h. */
#include "page.h"

#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/os.h"

enum { WIDTH_NO_TERMINAL = 80, WIDTH_LEAST = 20, WIDTH_MOST = 110, HELP_COLUMN = 30, HELP_COLUMN_NARROW = 8 };

int page_width(void) {
  const char *columns = os_env("COLUMNS");
  struct winsize size;
  long width = columns != NULL ? strtol(columns, NULL, 10) : 0;
  if (width <= 0 && isatty(STDOUT_FILENO) && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0)
    width = size.ws_col;
  if (width <= 0) width = WIDTH_NO_TERMINAL;
  if (width < WIDTH_LEAST) return WIDTH_LEAST;
  return width > WIDTH_MOST ? WIDTH_MOST : (int)width;
}

/* The first `length` characters of `text`, of which each line break counts as a space. */
static void fill(const char *text, size_t length, int column, int indent) {
  const char *end = text + length;
  const int width = page_width();
  bool first = true;
  while (text < end) {
    text += strspn(text, " \n");
    if (text >= end) break;
    int word = (int)strcspn(text, " \n");
    if (word > end - text) word = (int)(end - text);
    if (!first && column + 1 + word > width) {
      printf("\n%*s", indent, "");
      column = indent;
    } else if (!first) {
      column += printf(" ");
    }
    column += printf("%.*s", word, text);
    text += word;
    first = false;
  }
}

void page_fill(const char *text, int column, int indent) { fill(text, strlen(text), column, indent); }

/* The indentation of a kept line's continuation: its second column, which two spaces separate, or two spaces.
 */
static int kept_indent(const char *line, int length) {
  const int lead = (int)strspn(line, " ");
  for (int i = lead; i + 2 < length && i < page_width() / 2; i++)
    if (strncmp(line + i, "  ", 2) == 0) return i + (int)strspn(line + i, " ");
  return lead + 2;
}

static void print_kept(const char *line, int length) {
  const int width = page_width(), indent = kept_indent(line, length);
  if (length <= width) {
    printf("%.*s\n", length, line);
    return;
  }
  const int head = indent < length && indent <= width / 2 ? indent : (int)strspn(line, " ");
  printf("%.*s", head, line);
  fill(line + head, (size_t)(length - head), head, indent);
  putchar('\n');
}

/* The length of the paragraph that begins here: up to an empty or a kept line. */
static size_t paragraph_length(const char *text) {
  const char *end = text;
  while (*end && *end != '\n' && *end != ' ') {
    end += strcspn(end, "\n");
    if (*end) end += 1;
  }
  return (size_t)(end - text);
}

void page_text(const char *text) {
  while (*text) {
    size_t length = strcspn(text, "\n");
    if (length == 0) {
      putchar('\n');
      text += 1;
    } else if (*text == ' ') {
      print_kept(text, (int)length);
      text += length + (text[length] == '\n');
    } else {
      length = paragraph_length(text);
      fill(text, length, 0, 0);
      putchar('\n');
      text += length;
    }
  }
}

/* A word of a shell command: up to a space outside quotes. */
static int command_word(const char *text) {
  char quote = 0;
  int length = 0;
  for (; text[length] && text[length] != '\n'; length++) {
    const char letter = text[length];
    if (quote == 0 && letter == ' ') break;
    if (quote == 0 && (letter == '\'' || letter == '"')) quote = letter;
    else if (letter == quote) quote = 0;
  }
  return length;
}

static const char *print_command(const char *text) {
  const int lead = (int)strspn(text, " "), width = page_width() - 2;
  int column = printf("%.*s", lead, text);
  text += lead;
  for (bool first = true; *text && *text != '\n'; first = false) {
    const int word = command_word(text);
    if (!first && column + 1 + word > width) {
      printf(" \\\n%*s", lead + 4, "");
      column = lead + 4;
    } else if (!first) {
      column += printf(" ");
    }
    column += printf("%.*s", word, text);
    text += word;
    text += strspn(text, " ");
  }
  putchar('\n');
  return *text ? text + 1 : text;
}

void page_commands(const char *text) {
  while (*text) text = print_command(text);
}

void page_usage(const char *verb, const char *synopsis) {
  const char *head = "usage:";
  do {
    const size_t length = strcspn(synopsis, "\n");
    const int column = printf("%6s tutti %s%s", head, verb, length > 0 ? " " : "");
    fill(synopsis, length, column, 11);
    putchar('\n');
    synopsis += length + (synopsis[length] == '\n');
    head = "";
  } while (*synopsis);
}

void page_options(const struct option_set *set) {
  const int width = page_width(), column = width < 2 * HELP_COLUMN ? HELP_COLUMN_NARROW : HELP_COLUMN;
  for (size_t index = 0; index < option_row_count(set); index++) {
    const struct option_row *row = option_row_at(set, index);
    char letter[4] = "   ";
    if (row->letter) snprintf(letter, sizeof letter, "-%c,", row->letter);
    int at = printf("  %s --%s%s%s", letter, row->name, row->argument ? " " : "",
                    row->argument ? row->argument : "");
    if (at > column - 2) at = printf("\n") - 1;
    printf("%*s", column - at, "");
    page_fill(row->help, column, column);
    putchar('\n');
  }
}

/* ---- roff ---- */

static void roff_words(const char *text, size_t length) {
  bool at_line_start = true;
  for (size_t i = 0; i < length; i++) {
    if (at_line_start && (text[i] == '.' || text[i] == '\'')) fputs("\\&", stdout);
    if (text[i] == '\\') fputs("\\e", stdout);
    else if (text[i] == '-') fputs("\\-", stdout);
    else putchar(text[i]);
    at_line_start = text[i] == '\n';
  }
}

void page_roff_words(const char *text) { roff_words(text, strlen(text)); }

void page_roff_text(const char *text) {
  bool kept = false;
  while (*text) {
    const size_t length = strcspn(text, "\n");
    const bool keep = *text == ' ';
    if (keep != kept) puts(keep ? ".nf" : ".fi");
    kept = keep;
    if (length == 0) printf(".PP");
    roff_words(text, length);
    putchar('\n');
    text += length + (text[length] == '\n');
  }
  if (kept) puts(".fi");
}

void page_roff_commands(const char *text) {
  puts(".nf");
  page_roff_words(text);
  puts(".fi");
}

void page_roff_usage(const char *verb, const char *synopsis) {
  for (bool first = true; first || *synopsis; first = false) {
    const size_t length = strcspn(synopsis, "\n");
    if (!first) puts(".br");
    printf("\\fBtutti %s\\fR ", verb);
    roff_words(synopsis, length);
    putchar('\n');
    synopsis += length + (synopsis[length] == '\n');
  }
}

void page_roff_options(const struct option_set *set) {
  for (size_t index = 0; index < option_row_count(set); index++) {
    const struct option_row *row = option_row_at(set, index);
    puts(".TP");
    if (row->letter) printf("\\fB\\-%c\\fR, ", row->letter);
    fputs("\\fB\\-\\-", stdout);
    page_roff_words(row->name);
    fputs("\\fR", stdout);
    if (row->argument) {
      fputs(" \\fI", stdout);
      page_roff_words(row->argument);
      fputs("\\fR", stdout);
    }
    putchar('\n');
    page_roff_words(row->help);
    puts(".");
  }
}
