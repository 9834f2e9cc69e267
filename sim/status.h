/* status.h: what is known of running jobs at one moment: files of this host's processes, and what processes
 * answer for others. */
#ifndef TUTTI_SIM_STATUS_H
#define TUTTI_SIM_STATUS_H

#include "core/stall/survey.h"
#include "verb.h"

/* Files of records, each with the job that it belongs to: a number, the same for files that share a
 * communicator. */
struct sample {
  struct record_file *files;
  uint32_t *jobs;
  uint32_t count, capacity;
  void **blocks; /* what the files lie in */
  uint32_t block_count, block_capacity;
  struct survey_silent *silents;
  uint32_t silent_count;
};
void sample_free(struct sample *sample);

/* What is asked for. */
struct status_target {
  int64_t pid; /* 0: none */
  const char *address;
  struct sock_address at; /* of `address` */
};

/* Fills an empty sample. EXIT_GOOD, or another code after one sentence on stderr. Ranks of other hosts are
 * asked for where a job has any; who does not answer in time is in `silents`. */
enum exit_code sample_take(const struct status_target *target, struct sample *sample);

/* Changes whenever something of a rank's communicator moves. */
uint64_t sample_moves(const struct record_view *view);

#endif
