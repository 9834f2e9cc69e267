/* run.h: runs a workload over a cluster: plans what each rank calls as the library would, gives the engine
 * one kernel after another on each rank's streams, and sums up their times. Calls that are alike share one
 * plan; memory grows with the number of different calls. Of ranks with the same calls (fold.h) one runs. */
#ifndef TUTTI_SIM_SIMULATE_RUN_H
#define TUTTI_SIM_SIMULATE_RUN_H

#include "planning.h"
#include "simulate/engine.h"
#include "progress.h"
#include "simulate/workload.h"

/* A kernel that has ended, for drawings. */
struct run_kernel {
  uint32_t rank, stream, call;
  uint64_t begin_ps, end_ps;
};

/* Callbacks for drawings; members may be NULL. */
struct run_watch {
  void *context;
  void (*net)(void *context, const struct sim_net *net); /* before all else */
  void (*kernel)(void *context, const struct run_kernel *kernel);
  engine_see *hear;
  engine_see_message *see_message;
  engine_hear_stuck *on_stuck;
};

struct run_request {
  const struct cluster *cluster;
  const struct workload *workload;
  const struct planning *job;         /* plans are those of its communicators */
  double compute;                /* speed-up of computing; 0: none */
  bool exact;                    /* every rank runs; also with callbacks */
  const struct run_watch *watch; /* NULL: none */
  struct progress *progress;     /* open; NULL: no reports */
};

/* Calls that are alike, of all ranks. */
struct run_kind {
  uint32_t call; /* one of them */
  uint64_t count;
  uint64_t sum_ps, least_ps, most_ps; /* kernels' times */
};

struct run_report {
  bool stalled;
  char text[2048];                                  /* which ranks wait for which, sentences */
  uint64_t end_ps;                                  /* of the last kernel */
  uint64_t slice_count, message_count, event_count; /* of the ranks that ran */
  uint64_t kernel_count;                            /* of all ranks */
  uint32_t run_count;                               /* ranks that ran, representing all */
  struct run_kind *kinds;                           /* the one that took longest first */
  uint32_t kind_count, plan_count;
  uint64_t kernel_ps;   /* of all kernels together */
  uint64_t late_ps;     /* part of that: until the last rank had reached the collective */
  uint64_t *busy_ps;    /* by rank: time in which it has a kernel */
  uint64_t *compute_ps; /* by rank: time in which it computes */
};

/* ncclSuccess also if it stalled, ncclInvalidUsage if a call cannot be planned. Free the report in any case.
 */
ncclResult_t run_workload(const struct run_request *request, struct run_report *report);
void run_report_free(struct run_report *report);

#endif
