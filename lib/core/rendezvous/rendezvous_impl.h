/* rendezvous_impl.h: what rendezvous.c and rendezvous_remote.c share. Members marked "locked" change under
 * the backend's lock. */
#ifndef TUTTI_CORE_RENDEZVOUS_IMPL_H
#define TUTTI_CORE_RENDEZVOUS_IMPL_H

#include "core/rendezvous/rendezvous.h"
#include "core/remote/remote.h"

struct rank_slot {
  struct ncclComm *comm; /* NULL for a rank without color, and for one of another process */
  bool taken, arrived;
  bool checked_in;        /* with the root, or about to be; locked */
  struct peer_info *info; /* what it says of itself, where others will hear it */
  int color, key_order;
};

struct rendezvous {
  struct rendezvous *next;
  struct rendezvous_call first; /* what the first rank said; the others must agree */
  struct sock_address *roots;   /* first.roots, copied */
  struct rank_slot *slots;
  struct comm_shared *shared; /* INIT: made beforehand, so that completing cannot fail */
  uint32_t *device_ranks;     /* INIT: rank + 1 by device */
  struct ncclComm **comms;    /* INIT: by rank */
  uint32_t device_count;
  uint32_t joined_count, arrived_count;
  bool resolving; /* SPLIT: the last to arrive is opening the new communicators, without the lock */
  uint64_t begin_ns, next_reminder_ns;
  /* With ranks of other processes: */
  uint64_t wire_key;        /* names it to other processes */
  bool conducted;           /* a thread of its own meets them, and ends the rendezvous; locked */
  struct gather *gather;    /* once the root has been reached; locked */
  uint32_t checking_in;     /* threads that are telling the root of their rank; locked */
  ncclResult_t cancel_code; /* not ncclSuccess: gives up, and tells the others why; locked */
  char cancel_reason[COMM_REASON_BYTES];
};

/* rendezvous_remote.c; locked unless said otherwise. True when ranks of other processes will take part, as
 * far as can be told by the call; not locked too. */
bool rendezvous_is_remote(const struct rendezvous_call *call);
/* Starts the thread. On failure the rendezvous is ended. */
ncclResult_t rendezvous_conduct(struct rendezvous *rendezvous);
uint64_t rendezvous_wire_key(uint64_t parent_key, uint64_t number);
/* Not locked: what a rank that arrives says of itself; os_free() it. */
ncclResult_t rendezvous_fill_info(const struct rendezvous_call *call, struct peer_info **info);
/* Not locked: tells the root of a rank that has arrived; checking_in was raised before. */
void rendezvous_check_in(const struct rendezvous_call *call, struct rendezvous *rendezvous);

/* Not locked: the root of an INIT's id is needed no longer, if it is in this process. */
void rendezvous_root_end(const struct rendezvous_call *call);

/* rendezvous.c; all locked. */
/* Unlocks, and ends what must not be ended under the lock. Not for the control server's thread. */
void rendezvous_unlock(const struct backend *ops);
struct rendezvous *rendezvous_find_nonce(uint64_t nonce);
/* Ends the rendezvous for all its ranks of this process: they get the code and the sentence. */
void rendezvous_end(struct rendezvous *rendezvous, ncclResult_t code, const char *reason);
/* All of its communicators are there and are in their communicators. */
void rendezvous_publish(struct rendezvous *rendezvous);
void comm_join_shared(struct ncclComm *comm, struct comm_shared *shared);
/* The number of the communicator that a split's ranks of this color get. */
uint64_t rendezvous_child_id(const struct rendezvous_call *call, int color);

#endif
