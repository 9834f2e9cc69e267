/* diagnose.h: reads the record files of all ranks and diagnoses the job in one sentence: which rank hangs, in
 * which operation, and which rank is the root cause. Ranks that disagree are decided by majority. A missing
 * file is evidence, too. Only reads the records; runs nothing. */
#ifndef TUTTI_EXPLAIN_DIAGNOSE_H
#define TUTTI_EXPLAIN_DIAGNOSE_H

#include <stdbool.h>
#include <stdio.h>

#include "trace/record_read.h"

/* Ordered from the least to the most specific: if communicators have different diagnoses, the most specific
 * is reported. */
enum diagnosis_kind {
  DIAGNOSIS_FINE,         /* every operation that was called has ended */
  DIAGNOSIS_UNKNOWN,      /* the records do not say which operations have ended */
  DIAGNOSIS_RUNNING,      /* operations were under way, and no rank waited for long */
  DIAGNOSIS_SLOW,         /* nothing hangs; the others repeatedly wait for one rank or link */
  DIAGNOSIS_FAILED,       /* ranks failed; the reason is only known from their error messages */
  DIAGNOSIS_BEHIND,       /* a rank that others wait for hangs in another communicator */
  DIAGNOSIS_ABSENT,       /* a rank that others wait for left no file */
  DIAGNOSIS_NOT_ARRIVED,  /* a rank has not made a call that others have made */
  DIAGNOSIS_CHANNEL,      /* all ranks launched the operation; a channel hangs */
  DIAGNOSIS_PROXY,        /* a network message is stuck between two of the proxies' counters */
  DIAGNOSIS_COUNTER,      /* a step counter is stale, or has an impossible value */
  DIAGNOSIS_NOT_STARTED,  /* a kernel waits behind other work on its device */
  DIAGNOSIS_AWAY,         /* a process is stopped or makes no waiting call, so nothing can move */
  DIAGNOSIS_NOT_LAUNCHED, /* a call has not been launched on the device */
  DIAGNOSIS_CYCLE,        /* ranks of several communicators wait for each other in a cycle */
  DIAGNOSIS_ALONE,        /* a send without its receive, or the reverse */
  DIAGNOSIS_REFUSED,      /* a rank's call was refused */
  DIAGNOSIS_DIED,         /* a rank's process died before any other rank failed */
  DIAGNOSIS_MISMATCH      /* ranks made different calls */
};

#define DIAGNOSIS_TEXT_BYTES 768
#define DIAGNOSIS_EVIDENCE_MOST 24

#define DIAGNOSIS_NOBODY UINT32_MAX

/* A call that the sentence names. */
struct cited_call {
  const struct record_file *file;
  const struct record_view *view;
  const struct record_call *call;
};
#define DIAGNOSIS_CITED_MOST 4

struct diagnosis {
  enum diagnosis_kind kind;
  const char *detail; /* narrows the kind: "count", "slot", "posted, transmitted"; a static string or NULL */
  uint32_t rank;      /* the root cause, numbered in communicator comm_id; or DIAGNOSIS_NOBODY */
  uint64_t comm_id;
  char sentence[DIAGNOSIS_TEXT_BYTES], next[DIAGNOSIS_TEXT_BYTES];
  char evidence[DIAGNOSIS_EVIDENCE_MOST][DIAGNOSIS_TEXT_BYTES];
  uint32_t evidence_count;
  struct cited_call cited[DIAGNOSIS_CITED_MOST]; /* while it is made; then the sentence says where they are */
  uint32_t cited_count;
};

/* Returns false if out of memory. */
bool diagnose_files(const struct record_file *files, uint32_t file_count, struct diagnosis *diagnosis);

/* The same for a job that makes progress: looks only for slow links. */
bool diagnose_moving(const struct record_file *files, uint32_t file_count, struct diagnosis *diagnosis);

/* The kind's name for tables and tests, for example "not arrived". */
const char *diagnosis_name(enum diagnosis_kind kind);

#endif
