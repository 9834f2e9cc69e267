/* loggops_inner.h: what the engine (loggops.c) and the report of a stuck schedule (loggops_stuck.c) share. */
#ifndef TUTTI_SIM_GOAL_LOGGOPS_INNER_H
#define TUTTI_SIM_GOAL_LOGGOPS_INNER_H

#include "goal/loggops.h"
#include "goal/queue.h"

/* Values of an operation's state besides the number of operations that it waits for. */
#define STATE_POSTED 0x80000000u /* a receive that waits for its message, plus the next one of its class */
#define STATE_BEGUN 0xfffffffeu  /* a send above S: its message is in transit, or waits for its receive */
#define STATE_ENDED 0xffffffffu

/* A resource with one user at a time: a CPU, or one direction of a NIC. Events that come too early wait in
 * the order of their creation. */
struct gate {
  uint64_t open_ns;           /* from then on it is free */
  uint64_t call_ns, call_key; /* the event that wakes the first waiting one */
  uint32_t waiting;           /* root of a heap in the queue's nodes, or 0 */
};

/* A message that arrived before its receive. */
struct unexpected {
  uint32_t source, op; /* the send */
  uint32_t next;       /* of the rank, in order of arrival; 0: none */
  uint64_t done_ns;
};

/* Receives of a program that match the same messages: each class is served in the order in which its receives
 * begin. */
struct program_classes {
  const struct goal_program *program;
  uint32_t *of_op;              /* by operation, receives alone */
  uint32_t count;               /* of classes */
  uint32_t capacity;            /* of the table: a power of two, or 0 */
  struct match_class *by_match; /* open addressing */
  bool takes_any;               /* some take any peer or tag */
};
struct match_class {
  uint32_t peer, tag, number; /* number + 1; 0: free */
};

struct freed {
  uint32_t rank, op;
};

struct loggops {
  const struct goal *goal;
  struct loggops_costs costs;
  struct queue queue;
  struct gate *gates;     /* by rank: CPUs, NICs that send, NICs that receive */
  uint32_t *states;       /* of operations: from op_base[rank] on */
  uint64_t *op_base;      /* by rank */
  uint64_t *class_base;   /* by rank: its classes' places in `posted` */
  uint32_t *posted;       /* last waiting receive of a class, + 1; its state names the first */
  uint64_t *posted_order; /* by operation: which receive began first; NULL where no receive takes any */
  uint64_t *ready_ns;     /* by operation; NULL with one CPU, whose gate has the time */
  uint64_t posted_count;
  struct program_classes *classes; /* by program */
  struct unexpected *unexpected;   /* from 1 on */
  uint32_t unexpected_count, unexpected_capacity, unexpected_free;
  uint32_t *unexpected_first, *unexpected_last; /* by rank */
  uint32_t gate_count;                          /* of a rank */
  uint64_t next_number;                         /* of the next event */
  struct freed *freed;                          /* by the current event */
  uint32_t freed_count, freed_capacity;
  uint64_t *rank_ns, ended_count, event_count;
  struct text *why;
  const struct loggops_watch *watch; /* or NULL */
};

static inline uint32_t *loggops_state(const struct loggops *run, uint32_t rank, uint32_t op) {
  return &run->states[run->op_base[rank] + op];
}

static inline bool loggops_has_unexpected(const struct loggops *run) {
  for (uint32_t rank = 0; rank < run->goal->rank_count; rank++) {
    if (run->unexpected_first[rank] != 0) return true;
  }
  return false;
}

/* Reports why operations or messages are left over; always fails. */
ncclResult_t loggops_explain(struct loggops *run, struct text *why);

#endif
