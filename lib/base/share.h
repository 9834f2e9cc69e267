/* share.h: memory that other processes of this host can map, without names in a file system: memfds, whose
 * descriptors are passed over an abstract Unix socket. An owner shares a block under a ticket. A process of
 * the same user that has the ticket (it is sent over authenticated connections) requests the descriptor from
 * the owner's thread, which runs while any block has a ticket. After a fork the child keeps the memory as
 * private copies and shares nothing. Knows nothing of the memory's contents. */
#ifndef TUTTI_BASE_SHARE_H
#define TUTTI_BASE_SHARE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

/* Names one block of one process to other processes of the host. Plain data; part of peer info and handles.
 */
struct share_ticket {
  uint64_t host;     /* host and boot; share_host() */
  uint64_t owner[2]; /* the owner's socket: random, new in each process */
  uint64_t number;   /* of the block; random, so that it cannot be guessed */
  uint64_t bytes;
};

/* The largest possible size of a block, at most `bytes`, given the limits on address space and file size and
 * the addresses that are left. */
uint64_t share_capacity(uint64_t bytes);
/* Allocates zeroed pages, backed when touched, that other processes can map; `bytes` may exceed the physical
 * memory. If `ticket` is not NULL, also calls share_offer(). ncclSystemError: not enough address space, file
 * size or descriptors; the message says which, and the cure. */
ncclResult_t share_alloc(size_t bytes, void **memory, struct share_ticket *ticket);
/* The block's ticket, the same at every call. The first call starts the thread. */
ncclResult_t share_offer(void *memory, struct share_ticket *ticket);
/* Bytes that this process can still take without a limit of the machine or of a control group; *whose says
 * which, and the cure. */
uint64_t share_memory_left(const char **whose);
/* Backs pages now, so that accesses cannot fail. ncclSystemError: not enough memory; the message says how
 * much is missing, what is left, and the cure. Some pages may be backed then: share_trim() them. */
ncclResult_t share_reserve(void *memory, size_t offset, size_t bytes);
/* Returns pages to the system; they read as zero afterwards, and the block stays. */
void share_trim(void *memory, size_t offset, size_t bytes);
void share_free(void *memory);
/* Maps a block of another process (or of this one); a block that is already mapped is reference-counted.
 * ncclRemoteError: the owner has ended or does not answer. */
ncclResult_t share_map(const struct share_ticket *ticket, void **memory);
void share_unmap(void *memory, size_t bytes);
/* A descriptor of memory that another library made, for as long as it is passed on: fetched as a block's, by
 * whoever has the ticket. It stays the caller's. ncclSystemError: the thread that passes it on cannot start.
 */
ncclResult_t share_pass(int descriptor, struct share_ticket *ticket);
void share_pass_end(const struct share_ticket *ticket);
/* The descriptor, a new one that the caller closes. */
ncclResult_t share_fetch(const struct share_ticket *ticket, int *descriptor);
void share_close(int descriptor); /* -1 is allowed */
/* A bell wakes the process that shares a block: the address of its thread. share_ring() never blocks; rings
 * may be lost if very many arrive at once. False: nothing is shared, or the ring was not sent.
 * share_signal_to() sets the wake (wake.h) that received rings signal; -1: none. */
struct share_bell {
  uint64_t owner[2];
};
bool share_bell(struct share_bell *bell);
bool share_ring(const struct share_bell *bell);
void share_signal_to(int wake);
/* False for tickets of another host or boot. NCCL_HOSTID replaces the host if it is set. Other obstacles
 * (another network namespace or user) are found by one attempt per peer. */
bool share_possible(const struct share_ticket *ticket);
/* Hash of host and boot: equal for processes that may share memory. */
uint64_t share_host(void);

#endif
