/* report.h: the results of a sweep, as JUnit's XML and as JSON. */
#ifndef TUTTI_SIM_RUN_REPORT_H
#define TUTTI_SIM_RUN_REPORT_H

#include "run/runner.h"

enum run_state { RUN_NOT_RUN, RUN_PASSED, RUN_FAILED };

/* A seed's run. */
struct run_result {
  struct draw draw;
  uint64_t ns;
  enum run_state state;
  struct run_end *failure; /* if it failed */
};

/* What became of the first failure. */
struct run_shrunk {
  struct draw draw; /* the simplest settings that fail in the same way */
  uint32_t tries;
  bool repeats,
      always; /* it failed again with the same settings; it fails with the default ones whatever the seed */
};

struct sweep {
  char **arguments;
  uint32_t rank_count; /* 0: one process */
  uint64_t timeout_ns, ns;
  const char *own_emu;
  uint64_t count;
  struct run_result *results; /* in the order of the seeds */
  uint64_t passed, failed;
  struct run_shrunk shrunk;
};

/* The command that repeats a run, quoted for a shell. */
void sweep_command(const struct sweep *sweep, const struct draw *draw, char *out, size_t out_bytes);

/* False if the file cannot be written, with errno. A test case for each seed that was run. */
bool sweep_junit(const struct sweep *sweep, const char *path);
void sweep_json(const struct sweep *sweep);

#endif
