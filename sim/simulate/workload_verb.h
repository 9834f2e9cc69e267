/* workload_verb.h: `tutti sim` for a workload: reports mismatches, and prints the result as a table or as
 * JSON. */
#ifndef TUTTI_SIM_SIMULATE_WORKLOAD_VERB_H
#define TUTTI_SIM_SIMULATE_WORKLOAD_VERB_H

#include "simulate/drawing.h"
#include "verb.h"

struct workload_ask {
  const char *model; /* the machine of the times, for users */
  const struct cluster *cluster;
  const struct workload *workload;
  const uint32_t *algo_mask, *proto_mask; /* by enum work_func */
  const struct tune_file *tune_file;      /* or NULL */
  uint32_t channels;                      /* 0: any */
  double compute;                         /* speed-up of computing; 1 */
  struct drawing_ask drawing;
  bool kernels, exact, json, rate, progress;
};

enum exit_code workload_do(const struct workload_ask *ask);

#endif
