/* mutation.h: the parts of a mutant of the catalogue. Private to sim/check. */
#ifndef TUTTI_SIM_CHECK_MUTATION_H
#define TUTTI_SIM_CHECK_MUTATION_H

#include "check/request.h"

/* One mutant at work on one rank. */
struct mutation {
  uint32_t victim, applied; /* rank; how often something was changed */
  const struct work *work;  /* the one of the rank's works whose steps are changed */
  uint32_t steps;           /* steps of it so far */
  uint32_t rank_count;
  struct step kept;
  bool has_kept;
};

/* Changes a step of the victim; enum check_hook. Increments `applied` if it changed the step. */
typedef uint32_t (*mutate_step)(struct mutation *mutation, const struct work *work, struct step *step);
/* Changes the plans; true if there was something to change. */
typedef bool (*mutate_plans)(struct mutation *mutation, struct check_setup *setup);

/* Why a mutant changes nothing under the algorithms of a set of columns. */
struct equivalence {
  uint32_t columns;
  const char *reason;
};

enum { EQUIVALENCES_MAX = 4 };
struct mutant {
  const char *name, *text;
  mutate_step step;
  mutate_plans plans;
  uint32_t fault; /* enum check_fault */
  struct equivalence equivalences[EQUIVALENCES_MAX];
};

enum mutant_column {
  COLUMN_RING_ALL_REDUCE,
  COLUMN_RING_ALL_GATHER,
  COLUMN_RING_REDUCE_SCATTER,
  COLUMN_RING_BROADCAST,
  COLUMN_RING_REDUCE,
  COLUMN_TREE_ALL_REDUCE,
  COLUMN_DIRECT_ALL_REDUCE,
  COLUMN_TWO_SHOT_ALL_REDUCE,
  COLUMN_DIRECT_ALL_GATHER,
  COLUMN_DIRECT_REDUCE_SCATTER,
  COLUMN_DIRECT_BROADCAST,
  COLUMN_DIRECT_REDUCE,
  COLUMN_SENDRECV,
  COLUMN_ALLTOALL,
  COLUMN_PAT_ALL_GATHER,
  COLUMN_PAT_REDUCE_SCATTER,
  COLUMN_FUSED_BROADCAST,
  COLUMN_NVLS_ALL_REDUCE,
  COLUMN_NVLS_ALL_GATHER,
  COLUMN_NVLS_REDUCE_SCATTER,
  COLUMN_NVLS_TREE_ALL_REDUCE,
  COLUMN_COLLNET_DIRECT_ALL_REDUCE,
  COLUMN_COLLNET_DIRECT_ALL_GATHER,
  COLUMN_COLLNET_DIRECT_REDUCE_SCATTER,
  COLUMN_COLLNET_CHAIN_ALL_REDUCE,
  COLUMN_ORDERED_ALL_REDUCE,
  COLUMN_ORDERED_REDUCE_SCATTER,
  COLUMN_ORDERED_REDUCE,
  COLUMN_TWO_SHOT_REDUCE,
  COLUMN_TWO_SHOT_BROADCAST,
  COLUMN_COUNT
};
#define COLUMN(name) (1u << COLUMN_##name)
#define COLUMNS_ALL ((1u << COLUMN_COUNT) - 1)
#define COLUMNS_TWO_SHOT (COLUMN(TWO_SHOT_ALL_REDUCE) | COLUMN(ORDERED_ALL_REDUCE) | COLUMN(ORDERED_REDUCE))
#define COLUMNS_DIRECT_SCATTER (COLUMN(DIRECT_REDUCE_SCATTER) | COLUMN(ORDERED_REDUCE_SCATTER))
#define COLUMNS_SWITCH_SUM                                                                \
  (COLUMN(NVLS_ALL_REDUCE) | COLUMN(NVLS_REDUCE_SCATTER) | COLUMN(NVLS_TREE_ALL_REDUCE) | \
   COLUMN(COLLNET_DIRECT_ALL_REDUCE) | COLUMN(COLLNET_DIRECT_REDUCE_SCATTER) |            \
   COLUMN(COLLNET_CHAIN_ALL_REDUCE))
#define COLUMNS_SWITCH (COLUMNS_SWITCH_SUM | COLUMN(NVLS_ALL_GATHER) | COLUMN(COLLNET_DIRECT_ALL_GATHER))

extern const struct mutant mutants_of_steps[], mutants_of_plans[], mutants_of_executors[];
extern const uint32_t mutants_of_steps_count, mutants_of_plans_count, mutants_of_executors_count;

#endif
