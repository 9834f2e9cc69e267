/* mutants.h: deliberately wrong schedules and executors, to test that the checker finds them. */
#ifndef TUTTI_SIM_CHECK_MUTANTS_H
#define TUTTI_SIM_CHECK_MUTANTS_H

#include "check/shrink.h"

/* The outcome of a mutant under an algorithm. */
enum mutant_fate {
  MUTANT_NOT_APPLICABLE, /* this algorithm has nothing that the mutant could change */
  MUTANT_CAUGHT,
  MUTANT_EQUIVALENT, /* it changes nothing observable, for the reason in the catalogue */
  MUTANT_MISSED
};

struct mutant_entry {
  uint8_t fate, rule;       /* enum mutant_fate; enum check_rule that caught it first */
  uint32_t caught, applied; /* number of runs (kinds of memory and protocol, ranks that are wrong) */
  const char *reason;       /* of EQUIVALENT */
};

uint32_t mutant_count(void);
uint32_t mutant_column_count(void);
const char *mutant_name(uint32_t mutant);
const char *mutant_text(uint32_t mutant);
const char *mutant_column_name(uint32_t column);

/* Runs one mutant under one column's algorithm. */
ncclResult_t mutant_run(struct check_engine *engine, struct check_setup *setup, uint32_t mutant,
                        uint32_t column, struct mutant_entry *entry);

#endif
