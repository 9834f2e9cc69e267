/* status.h: a sample of running jobs: the files of this host's processes, and the answers of processes for
 * other hosts. */
#ifndef TUTTI_SIM_STATUS_H
#define TUTTI_SIM_STATUS_H

#include "core/stall/survey.h"
#include "verb.h"

/* Files of records, each with the number of its job, which is the same for files that share a communicator.
 */
struct sample {
  struct record_file *files;
  uint32_t *jobs;
  uint32_t count, capacity;
  void **blocks; /* the memory of the files */
  uint32_t block_count, block_capacity;
  struct survey_silent *silents;
  uint32_t silent_count;
};
void sample_free(struct sample *sample);

/* The command's operand. */
struct status_target {
  int64_t pid; /* 0: none */
  const char *address;
  struct sock_address at; /* of `address` */
};

/* Fills an empty sample. EXIT_GOOD, or another code after one sentence on stderr. If a job has ranks on other
 * hosts, they are queried; those that do not answer in time are in `silents`. */
enum exit_code sample_take(const struct status_target *target, struct sample *sample);

/* Changes whenever a rank makes progress in the communicator. */
uint64_t sample_moves(const struct record_view *view);

#endif
