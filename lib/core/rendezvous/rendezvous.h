/* rendezvous.h: how ranks find each other. A rendezvous is named by a unique id, or by a parent communicator
 * and the number of its split; each rank joins it, then arrives; the last to arrive completes the
 * communicator for everybody. So one thread may bring any number of ranks, and a non-blocking communicator is
 * simply one that has arrived. Where ranks of other processes take part, a thread of the rendezvous's own
 * meets them (rendezvous_remote.c) and completes it. */
#ifndef TUTTI_CORE_RENDEZVOUS_H
#define TUTTI_CORE_RENDEZVOUS_H

#include "base/sock.h"
#include "core/bootstrap/bootstrap.h"
#include "core/comm/comm.h"

enum rendezvous_kind { RENDEZVOUS_INIT, RENDEZVOUS_SPLIT };

/* What one rank says when it joins. Ranks of one rendezvous must agree in all members up to `signature`. */
struct rendezvous_call {
  const char *call; /* "ncclCommInitRank", for sentences */
  enum rendezvous_kind kind;
  uint64_t key[2];  /* names the rendezvous: number and nonce of an id; serial of a communicator and number of
                       its split */
  uint64_t comm_id; /* of the communicator to be (INIT) or of the parent (SPLIT) */
  struct bootstrap_id id;     /* INIT: the first one */
  struct sock_address *roots; /* where ranks of other processes check in: the job's to free ... */
  uint32_t root_count;        /* ... 0: nowhere, all ranks are in this process */
  uint32_t rank_count;        /* ranks that come */
  uint64_t signature;         /* of whatever else must be equal: number of ids, list of excluded ranks */
  uint32_t
      rank; /* the rank: in the new communicator (INIT), in the parent (split), among survivors (shrink) */
  int color, key_order;    /* SPLIT */
  struct ncclComm *comm;   /* NULL for a rank without color */
  struct ncclComm *parent; /* SPLIT */
};

/* Takes the rank; sets comm->comm_id, and comm->rank and rank_count for INIT. On failure nothing is held;
 * where the ranks disagree, everybody in the rendezvous fails with a sentence that names the rank. */
ncclResult_t rendezvous_join(const struct rendezvous_call *call);
/* This rank will never join: the others need not wait for it, now or later. */
void rendezvous_refuse(const struct rendezvous_call *call, const char *why);
/* INIT: the device-side half is open. The last to arrive makes the communicators of all READY or FAILED. */
ncclResult_t rendezvous_arrive(const struct rendezvous_call *call);
/* Waits until the communicator is READY; logs who is missing. A failure is logged and returned. */
ncclResult_t rendezvous_wait(struct ncclComm *comm, const char *call);
/* For bootstrap_set_called(): ranks of other processes come to this id. Not locked. */
void rendezvous_called(uint64_t nonce);
/* For polling: fails the rendezvous when its time is up. Never blocks. */
void rendezvous_poll(struct ncclComm *comm);
/* Leaves a rendezvous that is not complete: it fails for everyone else in it. Harmless otherwise. */
void rendezvous_withdraw(struct ncclComm *comm, const char *why);

/* The parent is about to go while splits of it are under way. */
void rendezvous_forget_parent(struct ncclComm *parent);

/* Locked: true while ranks wait for others anywhere in the process. */
bool rendezvous_any(void);

#endif
