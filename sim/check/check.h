/* check.h: the checker: proves for the plans of all ranks, for all interleavings, that they end, that they
 * compute the requested result, and that no data is read or overwritten too early. It runs the iterators that
 * the library runs, once, over symbols (README.md says why one run is enough). Takes plans from any source;
 * request.h makes those of a collective. */
#ifndef TUTTI_SIM_CHECK_CHECK_H
#define TUTTI_SIM_CHECK_CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/plan/plan.h"

/* The rules that a plan can break, in the order of the proof. */
enum check_rule {
  CHECK_NONE = 0,
  CHECK_PARTS,      /* the channels' parts tile the operation; both ends of a link have the same work */
  CHECK_MATCH,      /* the k-th send of a connection meets the k-th receive, step for step */
  CHECK_DEADLOCK,   /* some lane waits for ever */
  CHECK_SLOT,       /* a slot is written before it was read, or read before it was written */
  CHECK_BOUNDS,     /* an access outside the user's buffers */
  CHECK_MEMORY,     /* an element is accessed without an order to another write of it */
  CHECK_COMBINE,    /* values that are added do not belong together */
  CHECK_RESULT,     /* an element's final value is not the operation's result */
  CHECK_SAME_ORDER, /* ranks add up one element in different orders */
  CHECK_RANK_ORDER, /* an element is not folded from rank 0 on, as the call requires */
  CHECK_PROXY,      /* a proxy would pass other slices than the lane */
  CHECK_RESOURCES,  /* nothing is proved: memory is out, or the plan is too large for the checker */
  CHECK_RULE_COUNT
};
const char *check_rule_name(enum check_rule rule);

/* A run of elements of one region. Block i of `repeat` blocks begins at begin + i * count; it belongs to rank
 * `rank` + i * (repeat > 1), from `origin` on in that rank's input. */
enum check_kind { CHECK_COPY, CHECK_SUM };
struct check_segment {
  uint64_t begin, count; /* units from the region's begin */
  uint64_t origin;       /* units from the begin of the rank's input */
  uint32_t repeat, op;   /* op: place in check_input's ops */
  uint32_t rank;         /* whose input; unused for CHECK_SUM, which is over all ranks */
  uint32_t kind;         /* enum check_kind */
};

/* Memory of one rank that plans may access. Elements outside `results` must be unchanged at the end. */
struct check_region {
  uint64_t address;              /* as plan_buffers have it, bytes */
  uint64_t count;                /* units */
  struct check_segment input;    /* the initial contents; count 0: nothing that may be read */
  struct check_segment *results; /* the required final contents, ascending */
  uint32_t result_count;
  bool ends_anyhow; /* a plan's own memory: its final contents are arbitrary */
};

struct check_op {
  uint64_t sequence; /* work.op_sequence */
  bool reduces;      /* the operator's stages count: first stage on each input, last stage on each result */
  bool one_order;    /* all ranks get the same result and must have added it in the same order */
  bool rank_order;   /* each result is a left fold in the order of ranks (TUTTI_SUM_ORDER=rank) */
  bool unstaged;     /* the operator has no stages: steps need not mark where a sum begins and ends */
};

/* Faults of an executor, for tests and mutants. A rank of UINT32_MAX means every rank. */
enum check_fault {
  FAULT_NONE = 0,
  FAULT_SLOT_TOO_MANY,     /* a sender assumes one slot more than there are */
  FAULT_SLOT_TOO_FEW,      /* or one slot less */
  FAULT_EARLY_FREE,        /* a receiver frees before it reads */
  FAULT_EARLY_POST,        /* a sender announces before it writes */
  FAULT_NEVER_FREE,        /* a receiver never frees its slots */
  FAULT_NO_ROUNDING,       /* a receiver does not round its counter up to a chunk */
  FAULT_WRONG_SIZE,        /* a sender announces a different size than it sends */
  FAULT_EMPTY_NOT_POSTED,  /* a sender does not post empty slices */
  FAULT_EMPTY_NOT_AWAITED, /* a receiver does not wait for empty slices */
  FAULT_NO_WAIT,           /* a receiver reads without a wait */
  FAULT_PROXY_ONE_MORE,    /* a proxy's slices are one step longer */
  FAULT_NO_FIRST_STAGE,    /* an input without the operator's first stage */
  FAULT_INPUT_NOT_AWAITED, /* a receiver does not wait for the addresses of inputs that it may read in place
                            */
  FAULT_INPUT_ELSEWHERE,   /* ... or reads them one element further on */
  FAULT_INPUT_ENDS_EARLY,  /* a sender ends without waiting until its input was read */
  FAULT_INPUT_HIDDEN,      /* a sender hides its input, and yet sends nothing */
  FAULT_COUNT
};

/* What a hook does with a step. */
enum check_hook { HOOK_RUN, HOOK_SKIP, HOOK_RUN_AND_ASK, HOOK_END };

/* Which receivers can read a sender's input in place, for works with WORK_SHOWS_INPUT. */
enum check_inputs { INPUTS_SHOWN, INPUTS_MIXED, INPUTS_HIDDEN };

struct check_input {
  uint32_t rank_count;
  const struct plan *plans; /* by rank */
  uint32_t unit_bytes;      /* memory is counted in these: a power of two that divides every element */
  const struct check_op *ops;
  uint32_t op_count;
  const struct check_region *regions; /* region_count of each rank, rank after rank */
  uint32_t region_count;
  uint64_t first_step; /* initial value of the connections' step counters */
  uint32_t inputs;     /* enum check_inputs */
  uint32_t fault;      /* enum check_fault */
  uint32_t fault_rank;
  /* NULL, or: changes a step that an iterator yielded, for tests and mutants; enum check_hook. After
   * RUN_AND_ASK it is called again with the same step before the iterator goes on. */
  uint32_t (*hook)(void *context, const struct work *work, uint64_t step_number, struct step *step);
  void *hook_context;
};

/* What was proved, or the first broken rule and where. */
struct check_report {
  enum check_rule rule;
  uint32_t rank, peer, channel; /* UINT32_MAX if it does not apply */
  uint32_t block;               /* number of the list on its rank, UINT32_MAX for other works */
  uint64_t step;                /* of the rank's lane, from 0; UINT64_MAX if it does not apply */
  char text[512];               /* one sentence without capital letter and full stop */
  uint64_t step_count, slice_count, work_count, connection_count, channel_count, element_count;
  uint64_t order_count; /* different orders in which elements are added */
  char order[200];      /* one of them, only ranks; "" if nothing is added */
};

/* An engine's memory, kept from run to run; all zero at first. */
struct check_engine;
struct check_engine *check_engine_new(void);
void check_engine_free(struct check_engine *engine);

/* True if the plans are proved; fills *report in either case. */
bool check_run(struct check_engine *engine, const struct check_input *input, struct check_report *report);

#endif
