/* job_choice.h: files of several jobs may lie in one folder: groups them by job, and keeps those of one. */
#ifndef TUTTI_SIM_JOB_CHOICE_H
#define TUTTI_SIM_JOB_CHOICE_H

#include "files/records.h"
#include "verb.h"

#define JOB_ID_BYTES 80

/* One launch of a program, as its files show it. */
struct job_group {
  char id[JOB_ID_BYTES]; /* the launcher's name of the job; "process-P" without a launcher */
  uint32_t files, live;  /* live: files of processes that run */
  uint64_t end_ns;       /* the last sign of life of a process, since 1970 */
};

/* Sets group_of[i], the index in *groups of each file; the best job comes first: one that runs, then the one
 * that ended last. The caller frees both with os_free(). False if memory is out. */
bool job_groups(const struct records *records, struct job_group **groups, uint32_t *group_count,
                uint32_t **group_of);

/* The last sign of life of the process that wrote this file, since 1970. */
uint64_t file_end_ns(const struct record_file *file);

/* Removes the files of all jobs but one: `wanted`, or the best one if it is NULL. Says on stderr which jobs
 * there are if there are several. EXIT_USAGE if there is no job of that name. */
enum exit_code job_choose(const char *verb, const char *wanted, struct records *records);

#endif
