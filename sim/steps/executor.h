/* executor.h: runs lanes with the library's executor (protocol/run.h), without data. A machine says what a
 * lane may know of its connections and its rank's lists, and is told what the lane posts; without a machine a
 * lane never waits.
 *
 * Addresses. All ranks have their input, output and scratch at the same addresses; nothing is stored there.
 * Each link has a range of addresses for its slots, and one for the memory of the rank at its other end
 * (PRIM_SHIFTS).
 *
 *   1 0 | link 61..56 | byte     a slot from which the lane receives
 *   1 1 | link        | byte     a slot into which it sends
 *   0 1 | link        | address  memory of the rank at the link's other end
 *   0 0 | address                the rank's own memory */
#ifndef TUTTI_SIM_STEPS_EXECUTOR_H
#define TUTTI_SIM_STEPS_EXECUTOR_H

#include "protocol/run.h"
#include "steps/slices.h"

/* What both ends of a connection poll, the tags of addresses too; and the links of the lanes that use it. */
struct conn_words {
  struct fifo_sender sender;
  struct fifo_receiver receiver;
  uint32_t send_link, recv_link;
};

struct executor_lane {
  struct lane run;
  struct sim_slice slice; /* `moves` is set before the lane begins */
};

/* `link`: of the work's recv_peer or, if `sends`, of its send_peer. A step is one of the connection. */
struct executor_machine {
  /* Steps before `need` that the lane knows to be filled, or freed if `sends`; `need` or less. */
  uint64_t (*load)(void *context, uint32_t link, bool sends, uint64_t need);
  /* Whether the lines of a piece of step `step` have arrived. */
  bool (*lines)(void *context, uint32_t link, uint64_t step);
  /* The sender has, or has not, shown the address of its input. */
  void (*shown)(void *context, uint32_t link, bool known);
  /* Steps that the rank's list has ended, over all operations. */
  uint64_t (*list)(void *context, uint32_t number);
  /* The lane has filled, or freed, all steps before `step`; it shows its input; it has ended steps. */
  void (*store)(void *context, uint32_t link, bool sends, uint64_t step);
  void (*show)(void *context, uint32_t link);
  void (*report)(void *context, uint64_t step_count);
  /* Into how many groups of lines both ends cut a step of LL with so many bytes: a power of two. */
  uint32_t (*pieces)(uint64_t bytes);
};

/* Who runs lanes. */
struct prim {
  const struct executor_machine *machine; /* NULL: nothing is waited for */
  void *context;
  struct conn_words *words; /* by connection */
  uint64_t *progress;       /* of the lists of the lane's rank; or NULL */
  struct executor_lane *lane;
  struct flight flight; /* of the slice that the lane moves */
  bool opens;
};

/* What a lane is made of. */
struct executor_work {
  const struct work *work;
  const struct plan_limits *limits;
  const uint32_t *conns;  /* by link, recv_count, then send_count: places in prim.words */
  struct link *links;     /* memory for as many */
  bool stores_in_outputs; /* data that is final may be stored in the receiver's output */
  link_set shows;         /* send links whose receiver can read the input in place */
};

/* Begins the lane on its connections; its input, if it shows it, and rounded steps are told at once. */
void executor_open(struct prim *prim, struct executor_lane *lane, const struct executor_work *made);
/* The action that the lane can take now, an enum lane_action; 0: it waits for what was loaded last. */
uint32_t executor_action(struct prim *prim, struct executor_lane *lane);
void executor_move(struct prim *prim, struct executor_lane *lane, uint32_t action);

#endif
