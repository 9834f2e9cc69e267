/* bootstrap.h: unique ids: how the ranks of a communicator to be recognise and find each other before they
 * have one. An id is a number, a nonce and the address of the process that made it, whose control server is
 * its root: ranks of other processes check in there (gather.h). Ranks of the root's own process need no
 * network; as long as nobody else checks in, nothing is sent. */
#ifndef TUTTI_CORE_BOOTSTRAP_H
#define TUTTI_CORE_BOOTSTRAP_H

#include <stdbool.h>
#include <stdint.h>

#include "base/sock.h"

/* What is inside an id. */
struct bootstrap_id {
  uint64_t number, nonce;   /* order of creation in its process; random: the key on the wire */
  struct sock_address root; /* family 0: the maker had no interface; good inside its process alone */
  bool fixed;               /* its root is at an agreed place, in the process of rank 0 */
  bool lasting;             /* fixed, and good for one communicator after another */
  bool named;               /* fixed, by a host's name: its own host may know that by another address */
  bool own;                 /* this process made it */
};

/* A fresh id of this process, whose root waits from now on; or the one that NCCL_COMM_ID=host:port stands
 * for, whose root is wherever rank 0 is. Without any interface: an id for this process alone, and a log line.
 */
ncclResult_t bootstrap_id_create(ncclUniqueId *id);

/* An id for ranks of this process alone: no address, no root, no network. */
void bootstrap_id_local(ncclUniqueId *id);

/* The id that `where`, host:port, stands for, as with NCCL_COMM_ID: the same bytes in every process that
 * gives the same text and salt, whatever the host's name means there; ids of one address differ by `salt`,
 * and the one of salt 0 is good for one communicator after another. Its root is the process of rank 0. Not
 * host:port: ncclInvalidUsage, naming `what`. */
ncclResult_t bootstrap_id_at(const char *where, const char *what, uint64_t salt, ncclUniqueId *id);

/* Not an id: ncclInvalidArgument; of another version: ncclInvalidUsage. `call` and `rank` are for the
 * sentence. */
ncclResult_t bootstrap_id_read(const ncclUniqueId *id, const char *call, uint32_t rank,
                               struct bootstrap_id *content);

/* Of a fixed id, in rank 0's process: opens the root that all others will look for, until
 * bootstrap_id_over(). Idempotent. Where the place is a host's name, listens at all of its addresses. */
ncclResult_t bootstrap_root_open(const struct bootstrap_id *id);

/* Called on the server's thread, once an id, when the first rank checks in over the network with a root of
 * this process: its own ranks must check in too. Set once, before the first id. */
void bootstrap_set_called(void (*called)(uint64_t nonce));

/* True once that has happened. */
bool bootstrap_id_called(uint64_t nonce);

/* The communicator of this id was made, or failed: its root forgets it and refuses late comers. */
void bootstrap_id_over(uint64_t nonce);

/* Gives up all ids of this process that still wait for their ranks; for tests, which count what is left. */
void bootstrap_forget_ids(void);

/* Counts anew from 1: a process without communicators is like a fresh one, and its next run repeats the
 * last. */
void bootstrap_restart_numbers(void);

#endif
