/* rendezvous_impl.h: what rendezvous.c and rendezvous_remote.c share. Members marked "locked" change under
 * the backend's lock. */
#ifndef TUTTI_CORE_RENDEZVOUS_IMPL_H
#define TUTTI_CORE_RENDEZVOUS_IMPL_H

#include "core/rendezvous/rendezvous.h"
#include "core/remote/remote.h"

struct rank_slot {
  struct ncclComm
      *comm; /* NULL for a rank without color that does not wait, and for one of another process */
  bool taken, arrived;
  bool checked_in;        /* checked in with the root, or about to; locked */
  struct peer_info *info; /* its peer info, if other processes take part */
  int color, key_order;
};

struct rendezvous {
  struct rendezvous *next;
  struct rendezvous_call first; /* the first rank's call; the others must agree with it */
  struct gather_root *roots;    /* first.roots, copied */
  struct rank_slot *slots;
  struct comm_shared *shared; /* INIT: allocated in advance, so that completing cannot fail */
  uint32_t *device_ranks;     /* INIT: rank + 1 by device */
  struct ncclComm **comms;    /* INIT: by rank */
  uint32_t device_count;
  uint32_t joined_count, arrived_count;
  bool resolving; /* SPLIT: the last to arrive is opening the new communicators, unlocked */
  uint64_t begin_ns, next_reminder_ns;
  /* With ranks of other processes: */
  bool has_secret;          /* other processes may take part */
  struct secret secret;     /* names it to them */
  bool conducted;           /* a thread gathers them and ends the rendezvous; locked */
  struct gather *gather;    /* set once the root has been reached; locked */
  uint32_t checking_in;     /* threads that are checking in their rank; locked */
  ncclResult_t cancel_code; /* not ncclSuccess: cancels, and tells the others why; locked */
  char cancel_reason[COMM_REASON_BYTES];
};

/* rendezvous_remote.c; locked unless said otherwise. True if ranks of other processes will take part, as far
 * as the call shows; may also be called unlocked. */
bool rendezvous_is_remote(const struct rendezvous_call *call);
/* Starts the thread. On failure the rendezvous is ended. */
ncclResult_t rendezvous_conduct(struct rendezvous *rendezvous);
/* A split's: derived from its parent's and its number. */
void rendezvous_child_secret(const struct secret *parent, uint64_t number, struct secret *secret);
/* Not locked: makes the peer info of an arriving rank; free it with os_free(). */
ncclResult_t rendezvous_fill_info(const struct rendezvous_call *call, struct peer_info **info);
/* Not locked: checks in a rank that has arrived; the caller has incremented checking_in. */
void rendezvous_check_in(const struct rendezvous_call *call, struct rendezvous *rendezvous);

/* rendezvous.c; all locked. */
/* Unlocks, and frees what must not be freed under the lock. Not for the control server's thread. */
void rendezvous_unlock(const struct backend *ops);
struct rendezvous *rendezvous_find_nonce(uint64_t nonce);
/* Ends the rendezvous for all its ranks of this process with the code and the message. */
void rendezvous_end(struct rendezvous *rendezvous, ncclResult_t code, const char *reason);
/* All communicators are complete: sets them to READY. */
void rendezvous_publish(struct rendezvous *rendezvous);
void comm_join_shared(struct ncclComm *comm, struct comm_shared *shared);
/* The comm_id of the communicator that a split's ranks of this color get. */
uint64_t rendezvous_child_id(const struct rendezvous_call *call, int color);

#endif
