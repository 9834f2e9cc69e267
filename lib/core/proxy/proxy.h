/* proxy.h: the engine that carries connections between hosts: it takes filled slots from the sender's FIFO
 * to the network, and from the network into the receiver's FIFO, for all communicators of the process and
 * all networks. A kernel sees a connection as any other; the proxy plays its other end. One engine a
 * process; it turns on a thread of its own, or in a deterministic world as one of its actors. */
#ifndef TUTTI_CORE_PROXY_H
#define TUTTI_CORE_PROXY_H

#include "backends/backend.h"
#include "backends/net.h"
#include "core/plan/plan.h"
#include "trace/recorder.h"

struct rails;
struct proxy_comm; /* one rank's connections over networks */

/* How far one end of a connection is, in messages since it was made: a sender has `ready` of them filled, has
 * given `moved` to the network, which has taken `done`; a receiver has space for `ready`, and `moved` have
 * come. */
struct proxy_state {
  bool connected;
  uint64_t ready, moved, done;
  uint64_t quiet_ms; /* none of these has changed for so long */
};

/* A connection whose network owes something. */
struct proxy_debt {
  struct device_conn_name name;
  struct proxy_state state;
  uint8_t func;
  uint64_t operation; /* that it is owed to */
};

struct proxy_comm_call {
  const struct backend *ops;
  struct device_comm *device_comm;
  uint64_t comm_key; /* equal on all ranks of the communicator, hard to guess */
  uint32_t rank, rank_count;
  const char *name;
  struct recorder_live live; /* where connections note how far they are */
  /* Called once, on the engine's thread, when a connection fails: must not block. */
  void (*failed)(void *argument, ncclResult_t code, const char *text);
  void *argument;
  const struct net_ops *net; /* NULL: the process's own (core/proxy/net.h) */
  uint32_t net_device_count; /* of `net`, when it is given */
  const struct rails *rails; /* which NIC a connection takes (rails.h); NULL: they take turns */
};

/* Bytes behind a slice in its slots that are the proxies': a communicator with ranks behind networks adds
 * them to its slots, on all of its ranks, before its plans and connections are made. */
#define PROXY_RESERVED_BYTES 256
void proxy_limits(struct plan_limits *limits);

ncclResult_t proxy_comm_open(const struct proxy_comm_call *call, struct proxy_comm **comm);
/* Drops what is under way. No call of `failed` is under way when it returns. Before the backend's comm_close:
 * the slots are its. */
void proxy_comm_close(struct proxy_comm *comm);
/* True when every operation that was posted is done: what a sender's kernel has left behind is on the wire.
 */
bool proxy_comm_idle(struct proxy_comm *comm);

/* Memory that the program has announced, until it is withdrawn: networks whose NICs read and write users'
 * memory do so there. The same memory may be announced several times. */
ncclResult_t proxy_comm_announce(struct proxy_comm *comm, uintptr_t begin, size_t bytes);
void proxy_comm_withdraw(struct proxy_comm *comm, uintptr_t begin, size_t bytes);

/* The same for all communicators, those to come too: memory that was made to be sent and received
 * (ncclMemAlloc). It is withdrawn, by its address, before it is freed; what was not offered is passed over.
 */
ncclResult_t proxy_memory_offer(uintptr_t begin, size_t bytes);
void proxy_memory_withdraw(uintptr_t begin);

/* Of data, since the communicator was made: how much went from and to users' memory, and through slots. */
struct proxy_bytes {
  uint64_t sent_direct, sent_staged, received_direct, received_staged;
};
struct proxy_bytes proxy_comm_bytes(struct proxy_comm *comm);

/* The receiver's end of a connection: opened, and listening; *handle is what the sender needs. Idempotent,
 * the same handle again. Any thread; never waits for the sender. */
ncclResult_t proxy_receive_open(struct proxy_comm *comm, const struct device_conn_name *name,
                                struct net_handle *handle);
/* The sender's end. Comes back at once; the engine connects. Idempotent. */
ncclResult_t proxy_send_open(struct proxy_comm *comm, const struct device_conn_name *name,
                             const struct net_handle *handle);

/* The same where a rank of another process of the host sends (proxy_pxn.h); conn_import has taken what that
 * process made. Idempotent. */
struct proxy_over {
  uint32_t rank, device; /* of the network */
};
ncclResult_t proxy_send_over(struct proxy_comm *comm, const struct device_conn_name *name,
                             const struct proxy_over *over);

/* What a plan's works will move over networks, step by step: noted once, posted at every start of the plan's
 * kernel. `remote` says which ranks lie behind a network. NULL in *ops where none does. */
struct proxy_ops;
ncclResult_t proxy_ops_create(struct proxy_comm *comm, const struct plan *plan, const uint8_t *remote,
                              struct proxy_ops **ops);
/* Before, or when, the kernel starts; any thread, also with the backend's lock held. Does not wait for what
 * the engine is about. After the communicator was closed, nothing happens. NULL is allowed. */
void proxy_ops_post(struct proxy_ops *ops);
/* Turns the communicator's connections once, in place of the engine's thread, which keeps out of the way of
 * whoever does so again and again; with `last` it is told what is left. True when something moved. Not in a
 * deterministic world. NULL is allowed. */
bool proxy_ops_turn(struct proxy_ops *ops, bool last);
/* What was posted goes on. NULL is allowed; also after the communicator was closed. */
void proxy_ops_free(struct proxy_ops *ops);

/* Looks at all connections, `passed_ms` after the last look: *count of at most `capacity` that are owed
 * something. Returns a number that changes with whatever moves on any of them. */
uint64_t proxy_comm_status(struct proxy_comm *comm, uint64_t passed_ms, struct proxy_debt *debts,
                           uint32_t capacity, uint32_t *count);
/* How far one of them was at the last look; false when there is none of this name. */
bool proxy_comm_state(struct proxy_comm *comm, const struct device_conn_name *name,
                      struct proxy_state *state);

#endif
