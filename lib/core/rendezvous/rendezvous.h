/* rendezvous.h: how ranks meet. A rendezvous is named by a unique id, or by a parent communicator and the
 * number of its split. Each rank joins, then arrives; the last to arrive completes the communicator for all.
 * So one thread can bring any number of ranks, and a non-blocking communicator has arrived but not waited. If
 * ranks of other processes take part, a thread of the rendezvous gathers them (rendezvous_remote.c) and
 * completes it. */
#ifndef TUTTI_CORE_RENDEZVOUS_H
#define TUTTI_CORE_RENDEZVOUS_H

#include "base/sock.h"
#include "core/bootstrap/bootstrap.h"
#include "core/bootstrap/gather.h"
#include "core/comm/comm.h"

enum rendezvous_kind { RENDEZVOUS_INIT, RENDEZVOUS_SPLIT };

/* What a rank passes when it joins. Ranks of one rendezvous must agree in all members up to `signature`. */
struct rendezvous_call {
  const char *call;   /* "ncclCommInitRank", for messages */
  const void *caller; /* its return address */
  enum rendezvous_kind kind;
  uint64_t key[2];  /* names the rendezvous: number and nonce of an id; serial of a communicator and number of
                       its split */
  uint64_t comm_id; /* of the new communicator (INIT) or of the parent (SPLIT) */
  struct bootstrap_id id;    /* INIT: the first id */
  struct gather_root *roots; /* where ranks of other processes check in; the group job frees it ... */
  uint32_t root_count;       /* ... 0: all ranks are in this process */
  uint32_t rank_count;       /* ranks that take part */
  uint64_t signature; /* of everything else that must be equal: number of ids, list of excluded ranks */
  uint32_t
      rank; /* in the new communicator (INIT), in the parent (split), among the remaining ranks (shrink) */
  int color, key_order;    /* SPLIT */
  struct ncclComm *comm;   /* NULL for a rank without color that does not wait (`stands_in`) */
  struct ncclComm *parent; /* SPLIT */
};

/* Adds the rank; sets comm->comm_id, and for INIT comm->rank and rank_count. On failure nothing is held. If
 * the ranks disagree, all ranks of the rendezvous fail with a message that names the rank. */
ncclResult_t rendezvous_join(const struct rendezvous_call *call);
/* This rank will never join: the others do not wait for it, now or later. */
void rendezvous_refuse(const struct rendezvous_call *call, const char *why);
/* INIT: the device-side half is open. The last rank to arrive sets all communicators to READY or FAILED. */
ncclResult_t rendezvous_arrive(const struct rendezvous_call *call);
/* Waits until the communicator is READY; logs missing ranks. A failure is logged and returned. */
ncclResult_t rendezvous_wait(struct ncclComm *comm, const char *call);
/* For bootstrap_set_called(): ranks of other processes have checked in for this id. Not locked. */
void rendezvous_called(uint64_t nonce);
/* For polling: fails the rendezvous after its timeout. Never blocks. */
void rendezvous_poll(struct ncclComm *comm);
/* Leaves an incomplete rendezvous, which fails for all other ranks. Does nothing otherwise. */
void rendezvous_withdraw(struct ncclComm *comm, const char *why);

/* Not locked: the root of an INIT's id is no longer needed, if it is in this process. */
void rendezvous_root_end(const struct rendezvous_call *call);

/* The parent is about to be freed while splits of it are in progress. */
void rendezvous_forget_parent(struct ncclComm *parent);

/* Locked: true while ranks anywhere in the process wait for others. */
bool rendezvous_any(void);

#endif
