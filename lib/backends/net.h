/* net.h: the network seam: the shape of NCCL's net plugins, so that a plugin and our own networks look alike
 * to the proxy. A table begins with its size, as a backend's does. All calls on one connection come from one
 * thread at a time, and none blocks: what cannot be done now says so and is called again. */
#ifndef TUTTI_BACKENDS_NET_H
#define TUTTI_BACKENDS_NET_H

#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define NET_HANDLE_BYTES 128
#define NET_REQUESTS_MAX 32 /* outstanding requests of one connection that every network carries */

/* Where a listener is reached: opaque bytes that travel to the sender. */
struct net_handle {
  uint8_t bytes[NET_HANDLE_BYTES];
};

struct net_properties {
  char name[64];      /* of the device: "eth0", "mlx5_0" */
  char pci_path[256]; /* below /sys, "" when there is none */
  uint64_t guid;      /* ports of one NIC have the same */
  uint32_t speed_mbps, port;
  float latency_us;
  uint32_t max_comms, max_recvs;   /* connections of a device; receives of one call to irecv */
  size_t max_message_bytes;        /* 1..1 GiB */
  bool memory_cuda, memory_dmabuf; /* takes device pointers, or dma-buf descriptors of them */
  bool global_registration;        /* a registration is good for all connections */
  bool force_flush;
  int32_t rail, plane; /* -1: unknown */
};

enum net_memory { NET_MEMORY_HOST = 1, NET_MEMORY_CUDA = 2 };

/* Whom a connection is for: for sentences and for the handshake. */
struct net_peer {
  uint64_t comm_key; /* equal on both ends, hard to guess: a listener takes connections with its key alone */
  uint32_t rank, peer; /* of the communicator */
  const char *comm_name;
};

/* What a message begins with, where that lies apart from the rest. */
struct net_part {
  void *data; /* a send only reads it */
  size_t bytes;
  void *registration; /* where parts are to be registered */
};

/* Of a connection: whether messages of two parts go over it, and where their first part may lie. */
enum net_parts { NET_PARTS_NONE, NET_PARTS_ANYWHERE, NET_PARTS_REGISTERED };

/* When a connection wants to be looked at again: within a tenth of a second or so, or as soon as one that has
 * something under way. */
enum net_look { NET_LOOK_NEVER, NET_LOOK_LATER, NET_LOOK_SOON };

struct net_ops {
  size_t size;
  const char *name; /* as in NCCL_NET: "Socket", "IB", a plugin's own; compared without case */

  /* Finds the devices; 0 devices is ncclSuccess. Once a process, before any other call. */
  ncclResult_t (*devices)(uint32_t *count);
  ncclResult_t (*properties)(uint32_t device, struct net_properties *properties);

  ncclResult_t (*listen)(uint32_t device, const struct net_peer *peer, struct net_handle *handle,
                         void **listener);
  /* *connection stays NULL while it is not made: call again with the same handle, whose bytes the network may
   * change to note how far it is. */
  ncclResult_t (*connect)(uint32_t device, const struct net_peer *peer, struct net_handle *handle,
                          void **connection);
  ncclResult_t (*accept)(void *listener, void **connection);

  /* Memory that isend, irecv and iflush use. Both ends' connections. */
  ncclResult_t (*register_memory)(void *connection, void *data, size_t bytes, enum net_memory kind,
                                  void **registration);
  ncclResult_t (*unregister_memory)(void *connection, void *registration);
  /* Optional, for devices that say so: device memory of which a DMA-BUF's descriptor is known, in which it
   * begins at `offset`, and whose pages it holds whole. The descriptor stays the caller's. */
  ncclResult_t (*register_dmabuf)(void *connection, void *data, size_t bytes, int descriptor, uint64_t offset,
                                  void **registration);

  /* *request NULL: not now (too many are under way, or the receiver has posted nothing yet): call again. The
   * k-th send meets the k-th receive; a message longer than its receive's space is ncclInvalidUsage on both
   * sides, each naming both sizes. A network that lost its peer: ncclRemoteError naming peer and address. */
  ncclResult_t (*isend)(void *connection, const void *data, size_t bytes, int tag, void *registration,
                        void **request);
  ncclResult_t (*irecv)(void *connection, uint32_t count, void *const *data, const size_t *bytes,
                        const int *tags, void *const *registrations, void **request);
  /* Makes received device memory visible to the device; *request NULL: nothing to wait for. */
  ncclResult_t (*iflush)(void *connection, uint32_t count, void *const *data, const size_t *bytes,
                         void *const *registrations, void **request);
  /* *done ends the request; `bytes` (may be NULL) then has what each receive of it got. */
  ncclResult_t (*test)(void *request, bool *done, size_t *bytes);

  /* Also with requests under way, which are dropped: their memory is not touched afterwards. */
  ncclResult_t (*close_send)(void *connection);
  ncclResult_t (*close_recv)(void *connection);
  ncclResult_t (*close_listen)(void *listener);
  ncclResult_t (*finish)(void); /* optional: the process is done with this network */

  /* Optional: descriptors to poll for reading while the caller waits for this connection or listener; the
   * count is 0 where the network cannot say. At most `capacity` are written. */
  ncclResult_t (*wait_descriptors)(void *connection, int *descriptors, uint32_t capacity, uint32_t *count);

  /* Optional, all or none: messages of two parts, for connections that say that they take them. A message is
   * `first` with `data` behind it; one that does not have `whole_bytes` lies in its receive's `data`. As for
   * isend and irecv else; `bytes` is the space at `data`, for a whole message. part_move: the request's first
   * part lies at `first` from now on, and where it was nobody looks any more. Where parts are registered, the
   * NIC itself reads and writes them, and `first` is NULL: the connection ends. Networks that take device
   * memory know NET_PARTS_TAIL in place of whole_bytes: a message of any size, of which the last `bytes` lie
   * at `data`, and what is before them at `first`, where there is space for so much. */
#define NET_PARTS_TAIL SIZE_MAX
  enum net_parts (*takes_parts)(void *connection);
  ncclResult_t (*isend_parts)(void *connection, const struct net_part *first, const void *data, size_t bytes,
                              void *registration, void **request);
  ncclResult_t (*irecv_parts)(void *connection, const struct net_part *first, size_t whole_bytes, void *data,
                              size_t bytes, void *registration, void **request);
  void (*part_move)(void *request, void *first);

  /* Optional: looks at a connection that may have nothing under way, so that it hears of the other end and of
   * its device. From when it is made until *wish is NET_LOOK_NEVER; fails as test does. */
  ncclResult_t (*look)(void *connection, enum net_look *wish);

  /* Its messages move as a service of the backend's deterministic world (backend.h): who waits for them waits
   * within that world, and nobody there need look again by himself. */
  bool in_world;
};

/* iflush of a network whose data is in memory, seen by all, when its request is done. */
static inline ncclResult_t net_flush_nothing(void *connection, uint32_t count, void *const *data,
                                             const size_t *bytes, void *const *registrations,
                                             void **request) {
  (void)connection, (void)count, (void)data, (void)bytes, (void)registrations;
  *request = NULL;
  return ncclSuccess;
}

/* ---- which there are ---- */

/* Sockets. */
const struct net_ops *socket_net_ops(void);
/* InfiniBand and RoCE. */
const struct net_ops *ibv_net_ops(void);
/* The emulator's own, for ranks of one process on emulated nodes; NULL unless TUTTI_EMU asks for it (net=1).
 */
const struct net_ops *emu_net_ops(void);
/* Messages that its device of this number has sent on all nodes since the world began. */
uint64_t emu_net_messages(uint32_t device);
/* The next plugin that can be loaded, of those that NCCL_NET_PLUGIN names; NULL behind the last. The one
 * before is unloaded: one plugin is in use at a time. Not thread safe. */
const struct net_ops *plugin_net_next(void);

#endif
