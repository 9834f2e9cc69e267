/* progress.h: the progress of a verb, on a terminal: nothing in the first second, then one line a second with
 * what is done and the estimated time left. The work is counted beforehand, so the estimate converges: time
 * so far divided by work so far, times the work that is left. */
#ifndef TUTTI_SIM_PROGRESS_H
#define TUTTI_SIM_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct progress {
  FILE *out;               /* NULL: no reports */
  bool rewrites;           /* a terminal, where one line is overwritten */
  bool shown;              /* ... and is currently shown */
  const char *verb, *unit; /* unit NULL: the amount of work is not meaningful to a user */
  char what[96];
  uint64_t work_count; /* in all */
  uint64_t begin_ns, shown_ns;
};

/* Reports to standard error if that is a terminal, or if `always`; `out` may be set to another file. */
void progress_open(struct progress *progress, const char *verb, const char *unit, FILE *out, bool always,
                   uint64_t now_ns);
/* The next phase, with this amount of work; 0: not known yet. Counting is needed only if `out` is not NULL.
 */
void progress_begin(struct progress *progress, const char *what, uint64_t work_count, uint64_t now_ns);
/* This much work is done; prints at most once a second. */
void progress_say(struct progress *progress, uint64_t work, uint64_t now_ns);
/* The same with the total so far, for engines that take a function and its context, which is a progress. */
void progress_report(void *context, uint64_t work);
/* Clears the line of a terminal, before something else is written. */
void progress_clear(struct progress *progress);

#endif
