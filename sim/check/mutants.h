/* mutants.h: schedules and executors made wrong on purpose, to see that the checker says so. */
#ifndef TUTTI_SIM_CHECK_MUTANTS_H
#define TUTTI_SIM_CHECK_MUTANTS_H

#include "check/shrink.h"

/* What became of a mutant under an algorithm. */
enum mutant_fate {
  MUTANT_NOT_APPLICABLE, /* there is nothing in this algorithm that it could change */
  MUTANT_CAUGHT,
  MUTANT_EQUIVALENT, /* it changes nothing that anyone could see, for the reason in the catalogue */
  MUTANT_MISSED
};

struct mutant_entry {
  uint8_t fate, rule;       /* enum mutant_fate; enum check_rule that caught it first */
  uint32_t caught, applied; /* of the runs (kinds of memory and protocol, ranks that are wrong) */
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
