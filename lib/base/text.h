/* text.h: a text that grows. After a failure further additions do nothing, so a writer checks once at the
 * end. And functions for untrusted text. */
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
/* Adds `value`, escaped for an XML attribute in double quotes. */
void text_add_xml(struct text *text, const char *value);
void text_free(struct text *text);

/* Makes an untrusted field of `bytes` printable: terminates it and replaces control characters by question
 * marks. */
void text_clean(char *text, size_t bytes);
/* Appends to the text in an array of `bytes`; truncates what does not fit. */
void text_append(char *text, size_t bytes, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* Minimum number of insertions, deletions, changes and swaps of neighbours between two names (restricted
 * Damerau), of which the first 64 characters count. */
unsigned text_distance(const char *a, const char *b);
/* The name that is nearest to `name`, if it is near enough; else NULL. */
const char *text_nearest(const char *name, const char *const *names, size_t count);

#endif
