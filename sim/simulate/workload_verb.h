/* workload_verb.h: `tutti sim` for a workload: reports mismatches, and prints the result as a table or as
 * JSON. */
#ifndef TUTTI_SIM_SIMULATE_WORKLOAD_VERB_H
#define TUTTI_SIM_SIMULATE_WORKLOAD_VERB_H

#include "planning.h"
#include "simulate/drawing.h"
#include "verb.h"

struct workload_ask {
  const char *model, *plans; /* the machine of the times, and whose plans they are, for users */
  const struct cluster *cluster;
  const struct workload *workload;
  const struct planning *job; /* whose plans */
  double compute;        /* speed-up of computing; 1 */
  struct drawing_ask drawing;
  bool exact, json, rate, progress;
};

enum exit_code workload_do(const struct workload_ask *ask);

#endif
