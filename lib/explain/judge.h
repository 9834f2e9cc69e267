/* judge.h: from what each rank left behind to one sentence: who is stuck, on which operation, because of
 * whom. All ranks are treated alike: what most of them did is taken for right. Files that are missing are a
 * finding. Reads records alone; runs nothing. */
#ifndef TUTTI_EXPLAIN_JUDGE_H
#define TUTTI_EXPLAIN_JUDGE_H

#include <stdbool.h>
#include <stdio.h>

#include "trace/record_read.h"

/* From the least to the most telling: of several communicators the last one's verdict is given. */
enum verdict_kind {
  VERDICT_FINE,         /* all that was called has ended */
  VERDICT_UNKNOWN,      /* the files do not say what has ended */
  VERDICT_RUNNING,      /* work was under way, and nobody waited */
  VERDICT_SLOW,         /* nothing stands; one rank, or link, is what the others wait for, again and again */
  VERDICT_FAILED,       /* ranks failed, for a reason of which there is nothing but their own word */
  VERDICT_BEHIND,       /* a rank that others wait for stands in another communicator */
  VERDICT_ABSENT,       /* a rank that others wait for left no file */
  VERDICT_NOT_ARRIVED,  /* a rank has not called what others have */
  VERDICT_CHANNEL,      /* all called it; a channel stands */
  VERDICT_PROXY,        /* a message of a network has come no further than between two of its counters */
  VERDICT_COUNTER,      /* a step counter is stale, or shows what it cannot */
  VERDICT_NOT_STARTED,  /* a kernel waits behind other work on its device */
  VERDICT_NOT_LAUNCHED, /* a call has not come to the device */
  VERDICT_CIRCLE,       /* ranks of several communicators wait for one another */
  VERDICT_ALONE,        /* a message without its partner */
  VERDICT_REFUSED,      /* a rank's call was refused */
  VERDICT_DIED,         /* a rank's process has ended before the others heard of anything */
  VERDICT_MISMATCH      /* ranks called different things */
};

#define JUDGE_TEXT_BYTES 768
#define JUDGE_EVIDENCE_MOST 24

#define VERDICT_NOBODY UINT32_MAX

struct verdict {
  enum verdict_kind kind;
  const char
      *detail;   /* a word or two within the kind: "count", "slot", "posted, transmitted"; static; NULL */
  uint32_t rank; /* because of whom, or VERDICT_NOBODY; in the communicator of this id */
  uint64_t comm_id;
  char sentence[JUDGE_TEXT_BYTES], next[JUDGE_TEXT_BYTES];
  char evidence[JUDGE_EVIDENCE_MOST][JUDGE_TEXT_BYTES];
  uint32_t evidence_count;
};

/* False when memory is out. */
bool judge_files(const struct record_file *files, uint32_t file_count, struct verdict *verdict);

/* The same of a job that moves: a slow link, or nothing. */
bool judge_moving(const struct record_file *files, uint32_t file_count, struct verdict *verdict);

/* "not arrived", for tables and tests. */
const char *verdict_name(enum verdict_kind kind);

#endif
