/* all.h: proves every collective, algorithm, protocol, shape, number of channels, and sizes around every
 * boundary at which schedules change. */
#ifndef TUTTI_SIM_CHECK_ALL_H
#define TUTTI_SIM_CHECK_ALL_H

#include "check/shrink.h"
#include "progress.h"

struct check_all_report {
  uint64_t plan_count;                                /* proved */
  uint64_t program_count;                             /* channels of them */
  uint64_t run_count;                                 /* different ones among these, each of which is run */
  uint64_t whole_count;                               /* plans that are also run as a whole, to compare */
  uint64_t step_count, slice_count, connection_count; /* of the programs that were run */
  bool failed;
  struct check_case failure; /* smallest call that breaks a rule */
  struct check_report report;
};

/* All of rank counts [first, last], on `threads` threads; reports its progress. ncclSystemError when memory
 * is out. */
ncclResult_t check_all(uint32_t first, uint32_t last, uint32_t threads, struct progress *progress,
                       struct check_all_report *report);

#endif
