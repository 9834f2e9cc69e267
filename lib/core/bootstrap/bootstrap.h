/* bootstrap.h: unique ids, by which ranks recognise and find each other before they have a communicator. An
 * id holds a number, a secret and the address of the process that made it, whose control server acts as root:
 * ranks of other processes check in there (gather.h), and prove that they know the secret. Ranks of the
 * root's own process need no network, and nothing is sent until a rank of another process checks in. */
#ifndef TUTTI_CORE_BOOTSTRAP_H
#define TUTTI_CORE_BOOTSTRAP_H

#include <stdbool.h>
#include <stdint.h>

#include "base/secret.h"
#include "base/sock.h"

/* The contents of an id. */
struct bootstrap_id {
  uint64_t number, nonce; /* number: order of creation in its process; nonce: the secret's name */
  struct secret secret;
  struct sock_address root; /* family 0: no interface was found; valid inside its process only */
  struct sock_address port; /* fixed: the agreed address */
  bool fixed;               /* the root has an agreed address, in the process of rank 0 */
  bool lasting;             /* fixed, and usable for one communicator after another */
  bool named;               /* fixed, by host name: the host itself may know the name by another address */
  bool local;               /* fixed, at a loopback address: without TUTTI_SECRET, `root` is a UNIX socket */
  bool own;                 /* this process made it */
  uint32_t grown;           /* ranks of the communicator that grows by it; 0: of ncclGetUniqueId */
};

/* Makes an id of this process and opens its root; or, if NCCL_COMM_ID=host:port is set, returns the id of
 * that address, whose root is in rank 0's process. Without a usable interface the id is valid in this process
 * only, and a log line says so. */
ncclResult_t bootstrap_id_create(ncclUniqueId *id);

/* An id for ranks of this process alone: no address, no root, no network. */
void bootstrap_id_local(ncclUniqueId *id);

/* The id by which a communicator grows. Its ranks all make the same bytes, without a message. */
struct bootstrap_grow {
  uint64_t number;
  uint32_t rank_count; /* of the communicator that grows */
  /* If it has ranks of several processes: */
  struct secret secret;
  struct sock_address root; /* of the process that lets in who knows the secret (control_admit) */
};
void bootstrap_grow_id(const struct bootstrap_grow *grow, ncclUniqueId *id);
/* For a communicator within this process, which is named by its serial number: an id of this process, whose
 * root it opens unless another rank has. `turn` counts the communicator's grows. */
ncclResult_t bootstrap_grow_id_local(const struct bootstrap_grow *grow, uint64_t serial, uint64_t turn,
                                     ncclUniqueId *id);

/* Makes the id of the address `where` (host:port), as NCCL_COMM_ID does: every process that passes the same
 * text and salt gets the same bytes, however the host's name resolves there. `salt` distinguishes ids of one
 * address; the id with salt 0 can be used for one communicator after another. The root is in rank 0's
 * process. Its secret is derived from the text, which others may know: TUTTI_SECRET, which the handshake
 * mixes in, keeps them out, and a log line says so where it is not set. At a loopback address, ranks check
 * in over a UNIX socket instead, at which only processes of the same user, or root, are let in.
 * ncclInvalidUsage, naming `what`, if `where` is not host:port. */
ncclResult_t bootstrap_id_at(const char *where, const char *what, uint64_t salt, ncclUniqueId *id);

/* ncclInvalidArgument: not an id; ncclInvalidUsage: an id of another version. `call` and `rank` are for the
 * message. */
ncclResult_t bootstrap_id_read(const ncclUniqueId *id, const char *call, uint32_t rank,
                               struct bootstrap_id *content);

/* For a fixed id, in rank 0's process: opens the root that the other ranks connect to, until
 * bootstrap_id_over(). Idempotent. If the address is a host name, listens on all of its addresses. */
ncclResult_t bootstrap_root_open(const struct bootstrap_id *id);

/* Sets the function that the server's thread calls, once for each id, when the first rank of another process
 * checks in with a root of this process: this process's ranks must then check in too. Set before the first
 * id.
 */
void bootstrap_set_called(void (*called)(uint64_t nonce));

/* True once a rank of another process has checked in for this id. */
bool bootstrap_id_called(uint64_t nonce);

/* The communicator of this id was made, or failed: its root forgets the id and refuses ranks that come late.
 */
void bootstrap_id_over(uint64_t nonce);

/* Drops all ids of this process that still wait for ranks; for tests, which count what is left. */
void bootstrap_forget_ids(void);

/* Restarts the numbers of ids at 1, so that a process without communicators behaves like a fresh one and
 * repeats its last run. */
void bootstrap_restart_numbers(void);

#endif
