/* diagnosis_case.h: runs with one fault, drawn from a number: which fault, at which rank and call, how many
 * ranks, which calls around it. The same number gives the same run. */
#ifndef TUTTI_TESTS_DIAGNOSIS_CASE_H
#define TUTTI_TESTS_DIAGNOSIS_CASE_H

#include <stdbool.h>
#include <stdint.h>

enum injected {
  INJECTED_NOTHING,
  INJECTED_ABSENT,
  INJECTED_DESTROYED,
  INJECTED_BEHIND, /* absent, and another rank's host waits, so that a second communicator waits too */
  INJECTED_COLLECTIVE,
  INJECTED_COUNT,
  INJECTED_TYPE,
  INJECTED_OPERATOR,
  INJECTED_ROOT,
  INJECTED_ORDER,
  INJECTED_COMMUNICATOR,
  INJECTED_SEND_ALONE,
  INJECTED_RECV_ALONE,
  INJECTED_MESSAGE_COUNT,
  INJECTED_REFUSED,
  INJECTED_OPEN_GROUP,
  INJECTED_BLOCKED,
  INJECTED_CYCLE,
  INJECTED_SLOW,
  INJECTED_FREEZE, /* from here on injected by TUTTI_EMU */
  INJECTED_STALE,
  INJECTED_CORRUPT,
  INJECTED_DROP, /* from here on network faults */
  INJECTED_STOP,
  INJECTED_CUT,
  INJECTED_RESET,
  INJECTED_HOLD,
  INJECTED_REFUSE,
  INJECTED_LINGER,
  INJECTED_DIED, /* from here on with several processes */
  INJECTED_NO_FILE,
  INJECTED_NOT_MET,
  INJECTED_SLOW_LINK, /* one process again; drawn apart from the others */
  INJECTED_GRAPH,     /* a graph launches all calls; the root cause launches it once less often */
  INJECTED_KINDS
};
extern const char *const injected_names[INJECTED_KINDS];

enum { CASE_RANKS = 32, CASE_STEPS = 16 };

enum step_kind {
  STEP_ALL_REDUCE,
  STEP_ALL_GATHER,
  STEP_REDUCE_SCATTER,
  STEP_BROADCAST,
  STEP_REDUCE,
  STEP_SHIFT,
  STEP_SEND,
  STEP_RECV,
  STEP_KINDS
};
/* One call of a rank, or a group of two (shift). */
struct step {
  uint8_t kind; /* enum step_kind */
  uint8_t comm; /* 0, or 1: another communicator of the same ranks */
  uint8_t dtype, op;
  uint32_t peer; /* root, or the other rank */
  uint32_t count;
};

struct trial {
  uint64_t seed, random;
  enum injected fault;
  bool threads;                                  /* free threads; otherwise guarded */
  uint32_t rank_count, place, root_cause, other; /* step and rank of the fault; another rank */
  uint32_t step_count;
  struct step steps[CASE_STEPS]; /* the steps of all ranks */
  struct step wrong;             /* the root cause's step at `place` */
  uint32_t fault_at, node_count, process_count;
  uint64_t half; /* cycle: the ranks that use the second communicator first */
};

void trial_draw(struct trial *trial, uint64_t seed);
/* Executes the run in this process, which kills itself by SIGKILL when nothing makes progress; records go to
 * TUTTI_TRACE. */
_Noreturn void trial_run(const struct trial *trial);

#endif
