/* proxy.h: the proxy engine, which carries connections between hosts: it sends filled slots of the sender's
 * FIFO over the network and receives into the receiver's FIFO, for all communicators of the process and all
 * networks. For a kernel such a connection looks like any other; the proxy acts as its other end. One engine
 * per process; it runs on its own thread, or as an actor of a deterministic emulator. */
#ifndef TUTTI_CORE_PROXY_H
#define TUTTI_CORE_PROXY_H

#include "backends/backend.h"
#include "backends/net.h"
#include "core/plan/plan.h"
#include "trace/recorder.h"

struct rails;
struct proxy_comm; /* one rank's connections over networks */

/* Progress of one end of a connection, in messages since it was made. Sender: `ready` slots were filled,
 * `moved` were posted to the network, `done` were sent. Receiver: `ready` have space, `moved` have arrived.
 */
struct proxy_state {
  bool connected;
  uint64_t ready, moved, done;
  uint64_t quiet_ms; /* time since one of these last changed */
};

/* A connection that waits for the network. */
struct proxy_debt {
  struct device_conn_name name;
  struct proxy_state state;
  uint8_t func;
  uint64_t operation; /* the operation that waits */
};

struct proxy_comm_call {
  const struct backend *ops;
  struct device_comm *device_comm;
  uint64_t comm_key;    /* names the communicator, equal on all its ranks */
  struct secret secret; /* of the communicator */
  uint32_t rank, rank_count, device_index;
  const char *name;
  struct recorder_live live; /* where connections record their progress */
  /* Called once, on the engine's thread, when a connection fails: must not block. */
  void (*failed)(void *argument, ncclResult_t code, const char *text);
  void *argument;
  const struct net_ops *net; /* NULL: the process's network (core/proxy/net.h) */
  uint32_t net_device_count; /* of `net`, if it is given */
  uint32_t traffic_class;    /* as in struct net_peer */
  const struct rails *rails; /* selects the NIC of a connection (rails.h); NULL: round robin */
};

/* The network's devices can access memory of GPUs, and the settings allow it. */
bool proxy_device_possible(const struct net_ops *net, uint32_t net_device_count);

ncclResult_t proxy_comm_open(const struct proxy_comm_call *call, struct proxy_comm **comm);
/* Drops all pending work. On return no call of `failed` is running. Call it before the backend's comm_close,
 * which frees the slots. */
void proxy_comm_close(struct proxy_comm *comm);
/* Closes its connections, when all that was posted is done, before the backend frees their slots. Memory that
 * the program has announced stays so, and is registered with the network of later connections. */
void proxy_comm_release(struct proxy_comm *comm);
/* True if every posted operation is done: all data of a finished sending kernel is on the wire.
 */
bool proxy_comm_idle(struct proxy_comm *comm);

/* Registers memory of the program until proxy_comm_withdraw(): NICs that can access user memory send from and
 * receive into it. The same memory may be registered several times. */
ncclResult_t proxy_comm_announce(struct proxy_comm *comm, uintptr_t begin, size_t bytes);
void proxy_comm_withdraw(struct proxy_comm *comm, uintptr_t begin, size_t bytes);

/* Registers memory from ncclMemAlloc for all communicators, present and future. Withdraw it by its address
 * before it is freed; an address that was not registered is ignored.
 */
ncclResult_t proxy_memory_offer(uintptr_t begin, size_t bytes);
void proxy_memory_withdraw(uintptr_t begin);

/* Data bytes since the communicator was made: from and to user memory (direct), and through slots (staged).
 */
struct proxy_bytes {
  uint64_t sent_direct, sent_staged, received_direct, received_staged;
};
struct proxy_bytes proxy_comm_bytes(struct proxy_comm *comm);

/* Opens the receiver's end of a connection, which then listens; the sender needs *handle. Idempotent: returns
 * the same handle again. Any thread; never waits for the sender. */
ncclResult_t proxy_receive_open(struct proxy_comm *comm, const struct device_conn_name *name,
                                struct net_handle *handle);
/* Whether receivers of the communicator take a slice's data and its trailer as two messages: where the
 * network has no messages of two parts (splits_parts), and slots may be in device memory. */
bool proxy_takes_apart(const struct proxy_comm *comm);
/* Opens the sender's end. Returns at once; the engine connects. Idempotent. apart: the receiver's
 * proxy_takes_apart(). */
ncclResult_t proxy_send_open(struct proxy_comm *comm, const struct device_conn_name *name,
                             const struct net_handle *handle, bool apart);

/* As proxy_send_open(), for a connection on which a rank of another process of the host sends (proxy_pxn.h);
 * conn_import has mapped what that process made. Idempotent. */
struct proxy_over {
  uint32_t rank, device; /* of the network */
};
ncclResult_t proxy_send_over(struct proxy_comm *comm, const struct device_conn_name *name,
                             const struct proxy_over *over);

/* What a plan's works transfer over networks, step by step: created once, posted at every launch of the
 * plan's kernel. `remote` has 1 for ranks behind a network. *ops is NULL if no work uses a network. */
struct proxy_ops;
ncclResult_t proxy_ops_create(struct proxy_comm *comm, const struct plan *plan, const uint8_t *remote,
                              struct proxy_ops **ops);
/* Call when the kernel starts or before; any thread, also with the backend's lock held. Does not wait for the
 * engine. Does nothing after the communicator was closed. NULL is allowed. */
void proxy_ops_post(struct proxy_ops *ops);
/* Progresses the communicator's connections once on the calling thread. While a thread calls this repeatedly,
 * the engine's thread leaves the communicator to it; the call with `last` hands the rest back. True if
 * something moved. Not in a deterministic emulator. NULL is allowed. */
bool proxy_ops_turn(struct proxy_ops *ops, bool last);
/* Posted operations continue. NULL is allowed; also allowed after the communicator was closed. */
void proxy_ops_free(struct proxy_ops *ops);

/* Examines all connections, `passed_ms` after the last examination: fills at most `capacity` connections that
 * wait for the network, and *count. Returns a number that changes whenever any of them moves. */
uint64_t proxy_comm_status(struct proxy_comm *comm, uint64_t passed_ms, struct proxy_debt *debts,
                           uint32_t capacity, uint32_t *count);
/* State of a connection at the last examination; false if there is none of this name. */
bool proxy_comm_state(struct proxy_comm *comm, const struct device_conn_name *name,
                      struct proxy_state *state);

#endif
