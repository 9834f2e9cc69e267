/* check.h: the checker: proves of the plans of all ranks, for all interleavings, that they end, that they
 * compute what was asked for, and that nobody reads or overwrites what is not his yet. It runs the iterators
 * that the library runs, once, over symbols (README.md says why one run is enough). Takes plans from
 * anywhere; request.h makes those of a collective. */
#ifndef TUTTI_SIM_CHECK_CHECK_H
#define TUTTI_SIM_CHECK_CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/plan/plan.h"

/* What a plan can break, in the order of the proof. */
enum check_rule {
  CHECK_NONE = 0,
  CHECK_PARTS,      /* the channels' parts tile the operation; both ends of a link have the same work */
  CHECK_MATCH,      /* the k-th send of a connection meets the k-th receive, step for step */
  CHECK_DEADLOCK,   /* some lane waits for ever */
  CHECK_SLOT,       /* a slot is written before it was read, or read before it was written */
  CHECK_BOUNDS,     /* memory beside the user's buffers */
  CHECK_MEMORY,     /* a user's element is read or written in no order with another write */
  CHECK_COMBINE,    /* what is added up does not belong together */
  CHECK_RESULT,     /* an element ends with something else than the operation's result */
  CHECK_SAME_ORDER, /* ranks add up one element in different orders */
  CHECK_PROXY,      /* a proxy would count other steps than the kernel takes */
  CHECK_RESOURCES,  /* nothing proved: memory is out, or the plan is beyond the checker */
  CHECK_RULE_COUNT
};
const char *check_rule_name(enum check_rule rule);

/* A run of elements of one region. Block i of `repeat` blocks begins at begin + i * count; it is of rank
 * `rank` + i * (repeat > 1) and of that rank's input from `origin` on. */
enum check_kind { CHECK_COPY, CHECK_SUM };
struct check_segment {
  uint64_t begin, count; /* units from the region's begin */
  uint64_t origin;       /* units from the begin of the rank's input */
  uint32_t repeat, op;   /* op: place in check_input's ops */
  uint32_t rank;         /* whose input; of CHECK_SUM: all ranks', and this is not looked at */
  uint32_t kind;         /* enum check_kind */
};

/* Memory of one rank that plans may touch. What `results` leaves out must end as it began. */
struct check_region {
  uint64_t address;              /* as plan_buffers have it, bytes */
  uint64_t count;                /* units */
  struct check_segment input;    /* what lies there at first; count 0: nothing that anyone may read */
  struct check_segment *results; /* what must lie there at last, ascending */
  uint32_t result_count;
  bool ends_anyhow; /* a plan's own: what lies there at last is nobody's business */
};

struct check_op {
  uint64_t sequence; /* work.op_sequence */
  bool reduces;      /* the operator's stages count: first at each input, last at each result */
  bool one_order;    /* all ranks get the same result and must have added it up in the same order */
  bool unstaged;     /* the operator has no stages: steps need not say where a sum begins and ends */
};

/* What a wrong executor would do; for tests and mutants. A rank of UINT32_MAX is every rank. */
enum check_fault {
  FAULT_NONE = 0,
  FAULT_SLOT_TOO_MANY,     /* a sender counts one slot more than there are */
  FAULT_SLOT_TOO_FEW,      /* and one less */
  FAULT_EARLY_FREE,        /* a receiver frees before it reads */
  FAULT_EARLY_POST,        /* a sender announces before it writes */
  FAULT_NEVER_FREE,        /* a receiver keeps its slots */
  FAULT_NO_ROUNDING,       /* a receiver does not round its counter up to a chunk */
  FAULT_WRONG_SIZE,        /* a sender announces another size than it sends */
  FAULT_EMPTY_NOT_POSTED,  /* a sender does not post empty slices */
  FAULT_EMPTY_NOT_AWAITED, /* a receiver does not wait for empty slices */
  FAULT_NO_WAIT,           /* a receiver reads without a wait */
  FAULT_PROXY_ONE_MORE,    /* a proxy counts a step more than the formula */
  FAULT_NO_FIRST_STAGE,    /* an input without the operator's first stage */
  FAULT_COUNT
};

/* What a hook makes of a step. */
enum check_hook { HOOK_RUN, HOOK_SKIP, HOOK_RUN_AND_ASK, HOOK_END };

struct check_input {
  uint32_t rank_count;
  const struct plan *plans; /* by rank */
  uint32_t unit_bytes;      /* memory is told in these: a power of two that divides every element */
  const struct check_op *ops;
  uint32_t op_count;
  const struct check_region *regions; /* region_count of each rank, rank after rank */
  uint32_t region_count;
  uint64_t first_step; /* at which connections' counters begin */
  uint32_t fault;      /* enum check_fault */
  uint32_t fault_rank;
  /* NULL, or: changes a step that an iterator yielded, for tests and mutants; enum check_hook. RUN_AND_ASK
   * asks again with the same step before the iterator goes on. */
  uint32_t (*hook)(void *context, const struct work *work, uint64_t step_number, struct step *step);
  void *hook_context;
};

/* What was proved, or the first rule that is broken and where. */
struct check_report {
  enum check_rule rule;
  uint32_t rank, peer, channel; /* UINT32_MAX where it is of none */
  uint32_t block;               /* number of the list on its rank, UINT32_MAX for other works */
  uint64_t step;                /* of the rank's lane, from 0; UINT64_MAX where it is of none */
  char text[512];               /* one sentence without capital and end */
  uint64_t step_count, slice_count, work_count, connection_count, channel_count, element_count;
  uint64_t order_count; /* different orders in which elements are added up */
  char order[200];      /* one of them, ranks alone; "" where nothing is added */
};

/* What an engine works in, kept from run to run; all zero at first. */
struct check_engine;
struct check_engine *check_engine_new(void);
void check_engine_free(struct check_engine *engine);

/* True when the plans are proved; fills *report either way. */
bool check_run(struct check_engine *engine, const struct check_input *input, struct check_report *report);

#endif
