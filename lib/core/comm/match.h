/* match.h: compares the collective calls of all ranks of a communicator: the n-th call of each rank must have
 * the same function, datatype, operator, root and count, and the same place in its group. Costs a lock and a
 * comparison for each call. */
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

/* A rank's calls are counted in each order alone. Within a group AlltoAll, Gather and Scatter, which are made
 * of messages, may come before or after other collectives. The graphs of captured calls run later, in an
 * order that calls do not show. */
enum match_order { MATCH_COLLECTIVES, MATCH_MESSAGES, MATCH_CAPTURED = 2, MATCH_ORDERS = 4 };
struct match_counts {
  uint64_t calls[MATCH_ORDERS];
  uint64_t queued[MATCH_ORDERS]; /* those of at least one element: others are in no group */
};
struct match_rank {
  struct match_counts now;
  struct match_counts before; /* the open group; restored if it is discarded */
};

/* One call of one rank. Sent as is. */
struct match_entry {
  uint64_t number; /* among the rank's calls of this order */
  uint64_t count, before;
  uint64_t caller; /* return address in the rank's process; 0: unknown */
  uint32_t rank, root, in_group;
  uint8_t order, func, dtype, op;
};

/* Communicators of several processes compare elsewhere (remote_match.c). */
struct match_remote {
  void *argument;
  /* As match_compare(), in the process that holds the entries. */
  ncclResult_t (*compare)(void *argument, struct ncclComm *comm, const struct match_entry *entry,
                          struct match_entry *other, bool *differs);
  /* Says where another process's rank made the call; "" if that is unknown. */
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
 * their callers, if another rank's call with the same number differs; the communicators of all ranks are
 * broken with that message then. ncclSuccess for sends, receives, and communicators that do not compare. */
ncclResult_t match_call(const struct collective_call *call);
/* The calls of the rank's open group were not made. */
void match_undo(struct ncclComm *comm);
/* The rank's communicator is ready: before the first call of any rank. */
void match_join(struct ncclComm *comm);
/* It is about to be freed. */
void match_leave(struct ncclComm *comm);

/* The first entry of each order and number is kept, and others are compared with it. *other is that entry if
 * they differ. Any thread. ncclSystemError if memory is out. */
ncclResult_t match_compare(struct match *match, const struct match_entry *entry, struct match_entry *other,
                           bool *differs);
/* Copies up to `capacity` entries that some rank has not been compared with and that follow *place, which
 * starts at 0 and is advanced; returns their number, 0 at the end. */
uint32_t match_export(struct match *match, uint64_t *place, struct match_entry *entries, uint32_t capacity);
/* An entry that another process sent makes sense for this communicator. */
bool match_is_sane(const struct match *match, const struct match_entry *entry);
/* "collective #1 has different roots: rank 0 called ... at job.c:31 (train); rank 2 called ...". */
void match_text(struct match *match, const struct match_entry *one, const struct match_entry *other,
                char *text, size_t bytes);

#endif
