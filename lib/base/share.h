/* share.h: memory that other processes of this host may map, with no names left behind: memfds whose
 * descriptors travel over an abstract Unix socket. An owner shares a block under a ticket; whoever holds the
 * ticket (it travels over authenticated connections) and is of the same user asks the owner's thread for the
 * descriptor. The thread lives while any block has a ticket. After a fork the child keeps what it sees, as
 * private copies, and shares nothing. Knows nothing of what lies in the memory. */
#ifndef TUTTI_BASE_SHARE_H
#define TUTTI_BASE_SHARE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* Names one block of one process to any other of the host. Plain data: it travels in NICs. */
struct share_ticket {
  uint64_t host;     /* host and boot; share_host() */
  uint64_t owner[2]; /* the owner's socket: random, new in each process */
  uint64_t number;   /* of the block; random too, so it cannot be guessed */
  uint64_t bytes;
};

/* The most that limits on addresses and on the size of files, and the addresses that are left, let a block
 * have: at most `bytes`. */
uint64_t share_capacity(uint64_t bytes);
/* Zeroed pages, taken when touched, that other processes may map; `bytes` may be far more than there is
 * memory. With `ticket` it is offered at once, else by share_offer(). ncclSystemError when address space,
 * file size or descriptors do not suffice: the text says which, and the cure. */
ncclResult_t share_alloc(size_t bytes, void **memory, struct share_ticket *ticket);
/* The block's ticket; the same at every call. The first one starts the thread. */
ncclResult_t share_offer(void *memory, struct share_ticket *ticket);
/* Takes pages now, so that no touch of them can fail. ncclSystemError when there are none; the text says how
 * much is missing, what is left, and the cure. Some of the pages may be taken then: share_trim() them. */
ncclResult_t share_reserve(void *memory, size_t offset, size_t bytes);
/* Gives pages back to the system; they read as zero afterwards, and the block stays. */
void share_trim(void *memory, size_t offset, size_t bytes);
void share_free(void *memory);
/* Maps a block of another process (or of this one); a block that is mapped already is counted, not mapped
 * again. ncclRemoteError when its owner has gone or does not answer. */
ncclResult_t share_map(const struct share_ticket *ticket, void **memory);
void share_unmap(void *memory, size_t bytes);
/* Whoever maps a block may wake the process that offers it: where its thread that hands blocks out is found,
 * and the ring, which never waits and may be lost when very many come at once. False: nothing is offered,
 * or the ring was not taken. share_signal_to: a wake (wake.h) for rings to signal; -1: none. */
struct share_bell {
  uint64_t owner[2];
};
bool share_bell(struct share_bell *bell);
bool share_ring(const struct share_bell *bell);
void share_signal_to(int wake);
/* Tickets of another host or boot cannot be mapped. NCCL_HOSTID stands for the host where it is set; what
 * cannot be shared (another network namespace or user) is found out by trying once a peer. */
bool share_possible(const struct share_ticket *ticket);
/* Host and boot as a number: equal for processes that may share memory. */
uint64_t share_host(void);

#endif
