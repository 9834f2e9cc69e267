/* match.h: compares the calls of all ranks of a communicator. The n-th collective of each rank must have the
 * same function, datatype, operator, root and count, and the same place in its group; the n-th send from one
 * rank to another must have the count and datatype of the n-th receive there; and no rank may leave while a
 * call of another one waits for it. Costs a lock and a comparison for each call. */
#ifndef TUTTI_CORE_MATCH_H
#define TUTTI_CORE_MATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

struct collective_call;
struct comm_shared;
struct ncclComm;
struct match;
struct tuner_answer;

/* A rank's collectives are counted in each order alone. Within a group AlltoAll, Gather and Scatter, which
 * are made of messages, may come before or after other collectives. The graphs of captured calls run later,
 * in an order that calls do not show. Behind the orders of collectives: what else a rank makes known. */
enum match_order {
  MATCH_COLLECTIVES,
  MATCH_MESSAGES,
  MATCH_CAPTURED = 2,
  MATCH_ANSWERS = 4, /* what tuner plugins chose, whether or not calls are compared */
  MATCH_ORDERS = 5,
  MATCH_P2P = MATCH_ORDERS, /* a send or a receive */
  MATCH_P2P_CAPTURED,       /* one in a graph: sends and receives are no longer compared */
  MATCH_P2P_UNDONE,         /* one of a discarded group */
  MATCH_UNDONE,             /* collectives of a discarded group */
  MATCH_LEFT,               /* the rank makes no more calls */
  MATCH_ORDER_COUNT
};
struct match_counts {
  uint64_t calls[MATCH_ORDERS];
  uint64_t queued[MATCH_ORDERS]; /* those of at least one element: others are in no group */
};
/* Messages with one other rank. */
struct match_peer {
  uint32_t sends, recvs;
  uint32_t sends_before, recvs_before; /* the group with this number; restored if it is discarded */
  uint32_t group;
};
struct match_rank {
  struct match_counts now;
  struct match_counts before; /* the open group; restored if it is discarded */
  struct match_peer *peers;   /* by rank; NULL before the first message */
  uint32_t group;             /* number of the open group */
  bool factor_told;           /* that factors differ */
  bool recorded;              /* the call that is being compared, because it differs */
};

/* One call of one rank. Sent as is. */
struct match_entry {
  uint64_t number; /* among the rank's calls of this order; of messages, among those from rank to rank */
  uint64_t count;  /* LEFT: enum match_end */
  uint64_t before; /* other collectives before its group; LEFT, UNDONE: calls of MATCH_MESSAGES */
  uint64_t caller; /* return address in the rank's process; 0: unknown */
  uint64_t factor; /* of a premultiplied sum, as bits; 0: unknown */
  uint64_t place;  /* of the output among symmetric windows; 0: kernels move the data */
  uint32_t rank, root, in_group; /* root: of a message, the other rank */
  uint8_t order, func, dtype, op;
};
enum match_end { MATCH_END_DESTROY, MATCH_END_FINALIZE, MATCH_END_EXIT, MATCH_ENDS };

/* Communicators of several processes compare elsewhere (remote_match.c). */
struct match_remote {
  void *argument;
  /* As match_compare(), in the process that holds the entries. */
  ncclResult_t (*compare)(void *argument, struct ncclComm *comm, const struct match_entry *entry,
                          struct match_entry *other, bool *differs);
  /* Says where the rank made the call; "" if that is unknown. */
  void (*callsite)(void *argument, const struct match_entry *entry, char *text, size_t bytes);
  void (*give_up)(struct ncclComm *comm, const char *text);
};

struct match *match_create(uint32_t rank_count); /* NULL if memory is out */
void match_free(struct match *match);            /* NULL is allowed */
/* Before the first call. */
void match_set_remote(struct match *match, const struct match_remote *remote);

/* The rank begins a group; a call outside a group is a group of one. */
void match_begin(struct ncclComm *comm);
/* Call it once for each call that is queued or launched. ncclInvalidUsage, naming both ranks, both calls and
 * their callers, if another rank's call with the same number differs, or if a rank that this one waits for
 * has left; the communicators of all ranks are broken with that message then, and the call is recorded
 * before. ncclSuccess for communicators that do not compare. */
ncclResult_t match_call(const struct collective_call *call);
/* The answer of the rank's tuner plugin with this number must be that of other ranks; as match_call. */
ncclResult_t match_answer(struct ncclComm *comm, uint32_t number, const struct tuner_answer *answer);
/* The rank makes no more calls. ncclInvalidUsage, as above, if a call of another rank waits for one. */
ncclResult_t match_end(struct ncclComm *comm, enum match_end end, const void *caller);
/* The calls of the rank's open group were not made. */
void match_undo(struct ncclComm *comm);
/* The rank's communicator is ready: before the first call of any rank. */
void match_join(struct ncclComm *comm);
/* It is about to be freed. */
void match_leave(struct ncclComm *comm);

/* The first entry of each order and number is kept, and others are compared with it. *other is the entry that
 * does not fit. Any thread. ncclSystemError if memory is out. */
ncclResult_t match_compare(struct match *match, const struct match_entry *entry, struct match_entry *other,
                           bool *differs);
/* Copies up to `capacity` entries that another process must know to go on comparing, and that follow *place,
 * which starts at 0 and is advanced; returns their number, 0 at the end. */
uint32_t match_export(struct match *match, uint64_t *place, struct match_entry *entries, uint32_t capacity);
/* An entry that another process sent makes sense for this communicator. */
bool match_is_sane(const struct match *match, const struct match_entry *entry);
/* "collective #1 has different roots: rank 0 called ... at job.c:31 (train); rank 2 called ...". */
void match_text(struct match *match, const struct match_entry *one, const struct match_entry *other,
                char *text, size_t bytes);
/* What to do about it. */
const char *match_cure(const struct match_entry *one, const struct match_entry *other);

#endif
