/* diagnose.h: from what each rank left behind to one sentence: who is stuck, on which operation, because of
 * whom. All ranks are treated alike: what most of them did is taken for right. Files that are missing are a
 * finding. Reads records alone; runs nothing. */
#ifndef TUTTI_EXPLAIN_DIAGNOSE_H
#define TUTTI_EXPLAIN_DIAGNOSE_H

#include <stdbool.h>
#include <stdio.h>

#include "trace/record_read.h"

/* From the least to the most telling: of several communicators the last one's diagnosis is given. */
enum diagnosis_kind {
  DIAGNOSIS_FINE,         /* all that was called has ended */
  DIAGNOSIS_UNKNOWN,      /* the files do not say what has ended */
  DIAGNOSIS_RUNNING,      /* work was under way, and nobody waited */
  DIAGNOSIS_SLOW,         /* nothing hangs; one rank, or link, is what the others wait for, again and again */
  DIAGNOSIS_FAILED,       /* ranks failed, for a reason of which there is nothing but their own word */
  DIAGNOSIS_BEHIND,       /* a rank that others wait for hangs in another communicator */
  DIAGNOSIS_ABSENT,       /* a rank that others wait for left no file */
  DIAGNOSIS_NOT_ARRIVED,  /* a rank has not called what others have */
  DIAGNOSIS_CHANNEL,      /* all called it; a channel hangs */
  DIAGNOSIS_PROXY,        /* a message of a network has come no further than between two of its counters */
  DIAGNOSIS_COUNTER,      /* a step counter is stale, or shows what it cannot */
  DIAGNOSIS_NOT_STARTED,  /* a kernel waits behind other work on its device */
  DIAGNOSIS_NOT_LAUNCHED, /* a call has not come to the device */
  DIAGNOSIS_CIRCLE,       /* ranks of several communicators wait for one another */
  DIAGNOSIS_ALONE,        /* a message without its partner */
  DIAGNOSIS_REFUSED,      /* a rank's call was refused */
  DIAGNOSIS_DIED,         /* a rank's process has ended before the others heard of anything */
  DIAGNOSIS_MISMATCH      /* ranks called different things */
};

#define DIAGNOSIS_TEXT_BYTES 768
#define DIAGNOSIS_EVIDENCE_MOST 24

#define DIAGNOSIS_NOBODY UINT32_MAX

struct diagnosis {
  enum diagnosis_kind kind;
  const char
      *detail;   /* a word or two within the kind: "count", "slot", "posted, transmitted"; static; NULL */
  uint32_t rank; /* because of whom, or DIAGNOSIS_NOBODY; in the communicator of this id */
  uint64_t comm_id;
  char sentence[DIAGNOSIS_TEXT_BYTES], next[DIAGNOSIS_TEXT_BYTES];
  char evidence[DIAGNOSIS_EVIDENCE_MOST][DIAGNOSIS_TEXT_BYTES];
  uint32_t evidence_count;
};

/* False when memory is out. */
bool diagnose_files(const struct record_file *files, uint32_t file_count, struct diagnosis *diagnosis);

/* The same of a job that moves: a slow link, or nothing. */
bool diagnose_moving(const struct record_file *files, uint32_t file_count, struct diagnosis *diagnosis);

/* "not arrived", for tables and tests. */
const char *diagnosis_name(enum diagnosis_kind kind);

#endif
