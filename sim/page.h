/* page.h: texts of the command for a terminal and for manual pages: paragraphs, kept lines, commands and
 * flags, as text of the terminal's width or as roff. Knows nothing of verbs. */
#ifndef TUTTI_SIM_PAGE_H
#define TUTTI_SIM_PAGE_H

#include <stdio.h>

#include "option.h"

/* Columns of the terminal: COLUMNS if it is set, else the terminal's width, else 80; at most 110, because
 * longer lines are hard to read. */
int page_width(void);

/* Prints `text` filled to the width at spaces, each line after the first indented by `indent`; the cursor is
 * at `column`. No newline at the end. */
void page_fill(const char *text, int column, int indent);
/* Paragraphs between empty lines, filled; a line that begins with a space is not joined. */
void page_text(const char *text);
/* Lines of commands. A line that is too long is continued after a backslash, so that it can be copied. */
void page_commands(const char *text);
/* One line for each line of `synopsis`, the first after "usage: ". */
void page_usage(const char *verb, const char *synopsis);
void page_options(const struct option_set *set);

/* The same as roff. */
void page_roff_words(const char *text); /* with roff's special characters escaped */
void page_roff_text(const char *text);
void page_roff_commands(const char *text); /* lines are kept */
void page_roff_usage(const char *verb, const char *synopsis);
void page_roff_options(const struct option_set *set);

#endif
