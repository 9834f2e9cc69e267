/* progress.h: how far a verb has come, for whoever waits at a terminal: nothing in the first second, then a
 * line a second with what is done and what is left. The work is counted beforehand, so that the estimate
 * converges: time so far by work so far, for what is left. */
#ifndef TUTTI_SIM_PROGRESS_H
#define TUTTI_SIM_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct progress {
  FILE *out;               /* NULL: nobody waits */
  bool rewrites;           /* a terminal, where one line is written over */
  bool shown;              /* ... and is there */
  const char *verb, *unit; /* unit NULL: the work's numbers say nothing to a user */
  char what[96];
  uint64_t work_count; /* in all */
  uint64_t begin_ns, shown_ns;
};

/* To standard error where that is a terminal, or where `always`; on to whatever file of them `out` is. */
void progress_open(struct progress *progress, const char *verb, const char *unit, FILE *out, bool always,
                   uint64_t now_ns);
/* What follows, of so much work; 0: it is not known yet how much. Counting is for where `out` is not NULL. */
void progress_begin(struct progress *progress, const char *what, uint64_t work_count, uint64_t now_ns);
/* So much work is done; says so at most once a second. */
void progress_say(struct progress *progress, uint64_t work, uint64_t now_ns);
/* The same now, for engines that take a function and its context: the context is a progress. */
void progress_report(void *context, uint64_t work);
/* Clears the line of a terminal, before something else is written. */
void progress_clear(struct progress *progress);

#endif
