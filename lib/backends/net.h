/* net.h: the network interface, in the shape of NCCL's net plugins, so that the proxy uses plugins and the
 * library's own networks alike. A table begins with its size, like a backend's. All calls on one connection
 * come from one thread at a time, and none blocks: a call that cannot complete now returns so and is
 * repeated. */
#ifndef TUTTI_BACKENDS_NET_H
#define TUTTI_BACKENDS_NET_H

#include "base/err.h"
#include "base/secret.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NET_HANDLE_BYTES 128
#define NET_REQUESTS_MAX 32 /* outstanding requests per connection that every network supports */

/* The address of a listener: opaque bytes that are sent to the sender. */
struct net_handle {
  uint8_t bytes[NET_HANDLE_BYTES];
};

struct net_properties {
  char name[64];      /* the device's name: "eth0", "mlx5_0" */
  char pci_path[256]; /* below /sys, "" if there is none */
  uint64_t guid;      /* equal for all ports of one NIC */
  uint32_t speed_mbps, port;
  float latency_us;
  uint32_t max_comms, max_recvs;   /* connections per device; receives per call to irecv */
  size_t max_message_bytes;        /* 1..1 GiB */
  bool memory_cuda, memory_dmabuf; /* supports device pointers, or DMA-BUF descriptors of them */
  bool global_registration;        /* a registration is valid for all connections */
  bool force_flush;
  int32_t rail, plane; /* -1: unknown */
};

enum net_memory { NET_MEMORY_HOST = 1, NET_MEMORY_CUDA = 2 };

/* The peer of a connection, for messages and for the handshake. */
struct net_peer {
  uint64_t comm_key;   /* names the communicator, equal on both ends */
  uint32_t rank, peer; /* of the communicator */
  const char *comm_name;
  /* Of the communicator: both ends prove that they know it. NULL, for callers that have none (tests,
   * benchmarks): derived from comm_key, and as well known. */
  const struct secret *secret;
  uint32_t traffic_class; /* config.trafficClass plus 1; 0: the program asks for none */
};
/* The secret of the connections of `number`, a listener's. */
static inline void net_peer_secret(const struct net_peer *peer, uint64_t number, struct secret *secret) {
  const struct secret nothing = {{0}};
  const uint64_t names[2] = {number, peer->secret != NULL ? 0 : peer->comm_key};
  secret_derive(peer->secret != NULL ? peer->secret : &nothing, "tutti data", names, sizeof names, secret);
}

/* The beginning of a message, if it is stored apart from the rest. */
struct net_part {
  void *data; /* only read by a send */
  size_t bytes;
  void *registration; /* if parts must be registered */
};

/* Whether a connection supports messages of two parts, and where their first part may be. */
enum net_parts { NET_PARTS_NONE, NET_PARTS_ANYWHERE, NET_PARTS_REGISTERED };

/* When a connection wants its `look` function called again: within about a tenth of a second, or as soon as a
 * connection with requests in progress. */
enum net_look { NET_LOOK_NEVER, NET_LOOK_LATER, NET_LOOK_SOON };

struct net_ops {
  size_t size;
  const char *name; /* as in NCCL_NET: "Socket", "IB", a plugin's own; compared without case */

  /* Finds the devices; ncclSuccess with 0 devices is possible. Called once per process, before any other
   * call. */
  ncclResult_t (*devices)(uint32_t *count);
  ncclResult_t (*properties)(uint32_t device, struct net_properties *properties);

  ncclResult_t (*listen)(uint32_t device, const struct net_peer *peer, struct net_handle *handle,
                         void **listener);
  /* *connection stays NULL until it is connected: call again with the same handle, whose bytes the network
   * may change to store its progress. */
  ncclResult_t (*connect)(uint32_t device, const struct net_peer *peer, struct net_handle *handle,
                          void **connection);
  ncclResult_t (*accept)(void *listener, void **connection);

  /* Registers memory for isend, irecv and iflush, on connections of both ends. */
  ncclResult_t (*register_memory)(void *connection, void *data, size_t bytes, enum net_memory kind,
                                  void **registration);
  ncclResult_t (*unregister_memory)(void *connection, void *registration);
  /* Optional, for devices that support it: registers device memory by its DMA-BUF descriptor, in which it
   * begins at `offset`, and which contains all its pages. The caller keeps the descriptor. */
  ncclResult_t (*register_dmabuf)(void *connection, void *data, size_t bytes, int descriptor, uint64_t offset,
                                  void **registration);
  /* Optional, as register_dmabuf: registers device memory with the device for a moment, without a connection;
   * by its address if the descriptor is -1. Returns 0, or the errno with which it is refused. */
  int (*device_trial)(uint32_t device, void *data, size_t bytes, int descriptor, uint64_t offset);

  /* *request NULL: not possible now (too many requests, or the receiver has posted no receive yet): call
   * again. The k-th send matches the k-th receive. A message longer than its receive is ncclInvalidUsage on
   * both sides, with both sizes in the message. A lost peer is ncclRemoteError, with peer and address in the
   * message. */
  ncclResult_t (*isend)(void *connection, const void *data, size_t bytes, int tag, void *registration,
                        void **request);
  ncclResult_t (*irecv)(void *connection, uint32_t count, void *const *data, const size_t *bytes,
                        const int *tags, void *const *registrations, void **request);
  /* Makes received device memory visible to the device; *request NULL: nothing to wait for. */
  ncclResult_t (*iflush)(void *connection, uint32_t count, void *const *data, const size_t *bytes,
                         void *const *registrations, void **request);
  /* *done ends the request; `bytes` (may be NULL) then has the received size of each of its receives. */
  ncclResult_t (*test)(void *request, bool *done, size_t *bytes);

  /* May be called with requests in progress, which are dropped: their memory is not accessed afterwards. */
  ncclResult_t (*close_send)(void *connection);
  ncclResult_t (*close_recv)(void *connection);
  ncclResult_t (*close_listen)(void *listener);
  ncclResult_t (*finish)(void); /* optional: the process no longer uses this network */

  /* Optional: descriptors to poll for reading while the caller waits for this connection or listener; the
   * count is 0 if the network has none. Writes at most `capacity`. */
  ncclResult_t (*wait_descriptors)(void *connection, int *descriptors, uint32_t capacity, uint32_t *count);

  /* Optional, all or none: messages of two parts, on connections that support them. A message is `first`
   * followed by `data`; a message whose size is not `whole_bytes` is stored in its receive's `data`.
   * Otherwise like isend and irecv; `bytes` is the capacity of `data`, enough for a whole message. part_move:
   * the request's first part is at `first` from now on, and its old place is no longer read or written. If
   * parts are registered, the NIC itself accesses them: then `first` is NULL, which ends the connection.
   * Networks that support device memory accept NET_PARTS_TAIL as whole_bytes: a message of any size whose
   * last `bytes` are stored at `data`, and the preceding ones at `first`, which has capacity for them. */
#define NET_PARTS_TAIL SIZE_MAX
  enum net_parts (*takes_parts)(void *connection);
  ncclResult_t (*isend_parts)(void *connection, const struct net_part *first, const void *data, size_t bytes,
                              void *registration, void **request);
  ncclResult_t (*irecv_parts)(void *connection, const struct net_part *first, size_t whole_bytes, void *data,
                              size_t bytes, void *registration, void **request);
  void (*part_move)(void *request, void *first);
  bool splits_parts; /* each part is a message of its own: both ends must use parts, or none */

  /* Optional: polls a connection that may have no requests, so that it detects failures of the other end and
   * of its device. Called from its creation until *wish is NET_LOOK_NEVER; fails like test. */
  ncclResult_t (*look)(void *connection, enum net_look *wish);

  /* Its messages progress as a service of the backend's deterministic mode (backend.h): waiting for them
   * happens within that mode, without polling by the waiting thread. */
  bool in_world;
};

/* iflush of a network whose data is visible in memory when its request is done. */
static inline ncclResult_t net_flush_nothing(void *connection, uint32_t count, void *const *data,
                                             const size_t *bytes, void *const *registrations,
                                             void **request) {
  (void)connection, (void)count, (void)data, (void)bytes, (void)registrations;
  *request = NULL;
  return ncclSuccess;
}

/* ---- the networks ---- */

/* Sockets. */
const struct net_ops *socket_net_ops(void);
/* Continues connecting a sender, as isend does; *connected: the receiver has accepted. For plugins, whose
 * callers may wait for that before they send. */
ncclResult_t socket_net_connected(void *connection, bool *connected);
/* InfiniBand and RoCE. */
const struct net_ops *ibv_net_ops(void);
/* The emulator's own network, for ranks of one process on emulated nodes; NULL unless TUTTI_EMU has net=1. */
const struct net_ops *emu_net_ops(void);
/* Messages sent by device number `device` on all nodes since the start. */
uint64_t emu_net_messages(uint32_t device);
/* The next plugin named by NCCL_NET_PLUGIN that can be loaded; NULL after the last. The previous one is
 * unloaded: one plugin is in use at a time. Not thread-safe. */
const struct net_ops *plugin_net_next(void);

#endif
