/* job.h: all files of a job by rank: the job's rank of each device of each process, and its rank in each
 * communicator. Exports use it to show ranks side by side on one clock. */
#ifndef TUTTI_SIM_JOB_H
#define TUTTI_SIM_JOB_H

#include "explain/rank_state.h"
#include "files/records.h"

/* A rank of a communicator. */
struct member {
  struct rank_state state;
  uint32_t rank;  /* in the job: its rank in the largest communicator; others are numbered after those */
  uint32_t place; /* among the communicators of this rank */
};

struct job {
  struct member *members; /* by rank, then in the order of files and sections */
  uint32_t count;
  uint32_t rank_count;             /* one more than the last rank */
  const struct record_comm *world; /* the largest communicator; NULL: there is none */
  int64_t first_ns, end_ns;        /* since 1970: the first and last times of all files */
};

/* False when memory is out. */
bool job_open(const struct records *records, struct job *job);
void job_close(struct job *job);

/* Nanoseconds since 1970, of at most INT64_MAX / 2 in magnitude. */
int64_t member_time_ns(const struct member *member, uint64_t ticks);
/* The job's rank of a communicator's rank; UINT32_MAX: it has no file. */
uint32_t job_rank_of(const struct job *job, const struct record_comm *comm, uint32_t rank);
static inline const struct record_comm *member_comm(const struct member *member) {
  return member->state.view->comm;
}

#endif
