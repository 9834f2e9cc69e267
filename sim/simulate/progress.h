/* progress.h: how far a simulation has come, for whoever waits for it: nothing in the first second, then a
 * line a second with what is done and what is left. All slices are counted beforehand, so that the estimate
 * converges: time so far by slices so far, for those that are left. */
#ifndef TUTTI_SIM_SIMULATE_PROGRESS_H
#define TUTTI_SIM_SIMULATE_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct progress {
  FILE *out;     /* NULL: nobody waits */
  bool rewrites; /* a terminal, where one line is written over */
  bool shown;    /* ... and stands there */
  char what[64];
  uint64_t slice_count; /* in all */
  uint64_t begin_ns, said_ns;
};

/* To standard error where that is a terminal, or where `always`; on to whatever file of them `out` is. */
void progress_open(struct progress *progress, FILE *out, bool always, uint64_t now_ns);
/* What follows, of so many slices; 0: it is not known yet how much. Counting is for where `out` is not NULL.
 */
void progress_begin(struct progress *progress, const char *what, uint64_t slice_count, uint64_t now_ns);
/* So many slices are done; says so at most once a second. */
void progress_say(struct progress *progress, uint64_t slices, uint64_t now_ns);
/* The same now, for the engine (engine_output): the context is a progress. */
void progress_report(void *context, uint64_t slices);
/* Clears the line of a terminal, before something else is written. */
void progress_clear(struct progress *progress);

#endif
