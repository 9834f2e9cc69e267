/* meeting.h: how ranks find each other. A meeting is named by a unique id, or by a parent communicator and
 * the number of its split; each rank joins it, then arrives; the last to arrive completes the communicator
 * for everybody. So one thread may bring any number of ranks, and a non-blocking communicator is simply one
 * that has arrived. Where ranks of other processes take part, a thread of the meeting's own meets them
 * (meeting_far.c) and completes it. */
#ifndef TUTTI_CORE_MEETING_H
#define TUTTI_CORE_MEETING_H

#include "base/sock.h"
#include "core/bootstrap/bootstrap.h"
#include "core/comm.h"

enum meeting_kind { MEETING_INIT, MEETING_SPLIT };

/* What one rank says when it joins. Ranks of one meeting must agree in all members up to `signature`. */
struct meeting_call {
  const char *call; /* "ncclCommInitRank", for sentences */
  enum meeting_kind kind;
  uint64_t
      key[2]; /* names the meeting: number and nonce of an id; serial of a team and number of its split */
  uint64_t comm_id;           /* of the communicator to be (INIT) or of the parent (SPLIT) */
  struct bootstrap_id id;     /* INIT: the first one */
  struct sock_address *roots; /* where ranks of other processes check in: the job's to free ... */
  uint32_t root_count;        /* ... 0: nowhere, all ranks are in this process */
  uint32_t seat_count;        /* ranks that come */
  uint64_t signature;         /* of whatever else must be equal: number of ids, list of excluded ranks */
  uint32_t
      seat; /* the rank: in the new communicator (INIT), in the parent (split), among survivors (shrink) */
  int color, key_order;    /* SPLIT */
  struct ncclComm *comm;   /* NULL for a rank without color */
  struct ncclComm *parent; /* SPLIT */
};

/* Takes the seat; sets comm->comm_id, and comm->rank and rank_count for INIT. On failure nothing is held;
 * where the ranks disagree, everybody in the meeting fails with a sentence that names the rank. */
ncclResult_t meeting_join(const struct meeting_call *call);
/* This rank will never join: the others need not wait for it, now or later. */
void meeting_refuse(const struct meeting_call *call, const char *why);
/* INIT: the device-side half is open. The last to arrive makes the communicators of all READY or FAILED. */
ncclResult_t meeting_arrive(const struct meeting_call *call);
/* Waits until the communicator is READY; logs who is missing. A failure is logged and returned. */
ncclResult_t meeting_wait(struct ncclComm *comm, const char *call);
/* For bootstrap_set_called(): ranks of other processes come to this id. Not locked. */
void meeting_called(uint64_t nonce);
/* For polling: fails the meeting when its time is up. Never blocks. */
void meeting_poll(struct ncclComm *comm);
/* Leaves a meeting that is not complete: it fails for everyone else in it. Harmless otherwise. */
void meeting_withdraw(struct ncclComm *comm, const char *why);

/* The parent is about to go while splits of it are under way. */
void meeting_forget_parent(struct ncclComm *parent);

/* Locked: true while ranks wait for others anywhere in the process. */
bool meeting_any(void);

#endif
