/* text.h: a text that grows. A failure sticks: the writer adds what it has to and asks once, at the end. And
 * texts that came from outside. */
#ifndef TUTTI_BASE_TEXT_H
#define TUTTI_BASE_TEXT_H

#include <stdbool.h>
#include <stddef.h>

struct text {
  char *begin; /* zero-terminated; NULL before the first addition */
  size_t bytes, capacity;
  bool failed; /* memory is out: the text is gone, and further additions do nothing */
};

/* As printf. */
void text_add(struct text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* `value` as XML writes it between double quotes. */
void text_add_xml(struct text *text, const char *value);
void text_free(struct text *text);

/* Makes a field of `bytes` that came from outside a proper string, fit for a terminal: it ends, and a control
 * character becomes a question mark. */
void text_clean(char *text, size_t bytes);
/* Behind what is there, in an array of `bytes`; what has no space is left out. */
void text_append(char *text, size_t bytes, const char *format, ...) __attribute__((format(printf, 3, 4)));

#endif
