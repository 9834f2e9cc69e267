/* meeting_impl.h: what meeting.c and meeting_far.c share. Members marked "locked" change under the backend's
 * lock. */
#ifndef TUTTI_CORE_MEETING_IMPL_H
#define TUTTI_CORE_MEETING_IMPL_H

#include "core/bootstrap/meeting.h"
#include "core/far/far.h"

struct seat {
  struct ncclComm *comm; /* NULL for a rank without color, and for one of another process */
  bool taken, arrived;
  bool checked_in;       /* with the root, or about to be; locked */
  struct far_card *card; /* what it says of itself, where others will hear it */
  int color, key_order;
};

struct meeting {
  struct meeting *next;
  struct meeting_call first;  /* what the first rank said; the others must agree */
  struct sock_address *roots; /* first.roots, copied */
  struct seat *seats;
  struct team *team;       /* INIT: made beforehand, so that completing cannot fail */
  uint32_t *device_seats;  /* INIT: seat + 1 by device */
  struct ncclComm **comms; /* INIT: by seat */
  uint32_t device_count;
  uint32_t joined_count, arrived_count;
  bool resolving; /* SPLIT: the last to arrive is opening the new communicators, without the lock */
  uint64_t begin_ns, next_reminder_ns;
  /* With ranks of other processes: */
  uint64_t wire_key;        /* names it to other processes */
  bool conducted;           /* a thread of its own meets them, and ends the meeting; locked */
  struct gather *gather;    /* once the root has been reached; locked */
  uint32_t checking_in;     /* threads that are telling the root of their seat; locked */
  ncclResult_t cancel_code; /* not ncclSuccess: gives up, and tells the others why; locked */
  char cancel_reason[COMM_REASON_BYTES];
};

/* meeting_far.c; locked unless said otherwise. True when ranks of other processes will take part, as far as
 * can be told by the call; not locked too. */
bool meeting_is_far(const struct meeting_call *call);
/* Starts the thread. On failure the meeting is ended. */
ncclResult_t meeting_conduct(struct meeting *meeting);
uint64_t meeting_wire_key(uint64_t parent_key, uint64_t number);
/* Not locked: what a rank that arrives says of itself; os_free() it. */
ncclResult_t meeting_fill_card(const struct meeting_call *call, struct far_card **card);
/* Not locked: tells the root of a seat that has arrived; checking_in was raised before. */
void meeting_check_in(const struct meeting_call *call, struct meeting *meeting);

/* Not locked: the root of an INIT's id is needed no longer, if it is in this process. */
void meeting_root_end(const struct meeting_call *call);

/* meeting.c; all locked. */
/* Unlocks, and ends what must not be ended under the lock. Not for the control server's thread. */
void meeting_unlock(const struct device_ops *ops);
struct meeting *meeting_find_nonce(uint64_t nonce);
/* Ends the meeting for all its ranks of this process: they get the code and the sentence. */
void meeting_end(struct meeting *meeting, ncclResult_t code, const char *reason);
/* All of its communicators are there and are in their teams. */
void meeting_publish(struct meeting *meeting);
void comm_join_team(struct ncclComm *comm, struct team *team);
/* The number of the communicator that a split's ranks of this color get. */
uint64_t meeting_child_id(const struct meeting_call *call, int color);

#endif
