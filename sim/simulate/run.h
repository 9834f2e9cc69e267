/* run.h: runs a workload over a cluster: plans what each rank calls as the library would, gives the engine
 * kernel after kernel on each rank's streams, and adds up what they took. Plans of calls that are alike are
 * made once; memory grows with what differs, not with how often it comes. Of ranks that are alike in all that
 * they call (fold.h) one runs. */
#ifndef TUTTI_SIM_SIMULATE_RUN_H
#define TUTTI_SIM_SIMULATE_RUN_H

#include "simulate/engine.h"
#include "progress.h"
#include "simulate/workload.h"

/* A kernel that has ended, for whoever draws. */
struct run_kernel {
  uint32_t rank, stream, call;
  uint64_t begin_ps, end_ps;
};

/* Who looks on; members may be NULL. */
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
  const uint32_t *algo_mask, *proto_mask; /* by enum work_func: what planning may choose from */
  const struct tune_file *tune_file;      /* rules that choose, or NULL */
  uint32_t channels;                      /* at most; 0: as many as there are */
  double compute;                         /* how many times as fast as the workload says; 0: as fast */
  bool kernels;                           /* plans are those of call_limits_kernels() */
  bool exact;                             /* every rank runs; also where somebody looks on */
  const struct run_watch *watch;          /* NULL: nobody */
  struct progress *progress;              /* open; NULL: nobody waits */
};

/* Calls that are alike, of all ranks. */
struct run_kind {
  uint32_t call; /* one of them */
  uint64_t count;
  uint64_t sum_ps, least_ps, most_ps; /* kernels' times */
};

struct run_report {
  bool stalled;
  char text[2048];                                  /* who waits for whom, sentences */
  uint64_t end_ps;                                  /* of the last kernel */
  uint64_t slice_count, message_count, event_count; /* of the ranks that ran */
  uint64_t kernel_count;                            /* of all ranks */
  uint32_t run_count;                               /* ranks that ran, in the place of all */
  struct run_kind *kinds;                           /* the one that took longest first */
  uint32_t kind_count, plan_count;
  uint64_t kernel_ps;   /* of all kernels together */
  uint64_t late_ps;     /* of that: until the last rank had come to the collective */
  uint64_t *busy_ps;    /* by rank: in which it has a kernel */
  uint64_t *compute_ps; /* by rank: what it computed */
};

/* ncclSuccess also when it stalled, ncclInvalidUsage where no plan can be made. Free the report, whatever
 * came of it. */
ncclResult_t run_workload(const struct run_request *request, struct run_report *report);
void run_report_free(struct run_report *report);

#endif
