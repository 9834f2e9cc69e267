/* remote.h: a communicator's ranks outside this process or outside this node: where each is, which transport
 * reaches it, and which are lost. Exists for communicators of several processes, and for those whose ranks
 * are on different emulated nodes of this process with a network between them. Built from the ranks' peer
 * info, which is equal on all ranks, so both ends of a connection choose the same transport without
 * communication. */
#ifndef TUTTI_CORE_REMOTE_H
#define TUTTI_CORE_REMOTE_H

#include "backends/backend.h"
#include "base/os.h"
#include "core/bootstrap/gather.h"
#include "core/comm/windows.h"
#include "core/proxy/proxy.h"
#include "core/remote/reach.h"
#include "core/settings/settings.h"

struct remote;
struct remote_watcher;
struct ncclComm;
struct comm_shared;

/* The transports from one rank to another. */
enum remote_transport {
  TRANSPORT_LOCAL,  /* same process */
  TRANSPORT_SHARED, /* same host: memory is mapped */
  TRANSPORT_NETWORK /* over a network, through proxies */
};

/* Callbacks that watch an open communicator of several processes and answer the calls that remote.c does not
 * handle (core/stall). Called on the thread that opens or frees the communicator. */
struct remote_watcher {
  /* Other processes may already call. *state is passed to close(). */
  ncclResult_t (*open)(struct remote *remote, void **state);
  /* leave: before this process stops answering calls of the communicator; close: after that. */
  void (*leave)(struct remote *remote);
  void (*close)(void *state); /* NULL is allowed */
  /* As a control_handler; `kind` is the first word of the request. */
  ncclResult_t (*answer)(struct remote *remote, uint32_t kind, const void *request, uint32_t bytes,
                         void *reply, uint32_t *reply_bytes);
};

/* Peer info: what every rank publishes when a communicator is made. Sent as is. */
struct peer_info {
  uint64_t host;       /* share_host(): equal for ranks of one host */
  uint64_t device_id;  /* of its device among those of the host; 0: unknown */
  uint64_t pci_id;     /* hash_text() of pci_name() of its device, which slices of a GPU share; 0: unknown */
  uint64_t settings;   /* settings_digest() */
  uint64_t graph_file; /* layout_graph_file_digest() */
  uint64_t shape;      /* layout_shape_digest() of its machine; 0: unknown, as all that follows */
  uint16_t machine_gpus, machine_nets, machine_gpu; /* GPUs and NICs of its machine; its GPU among these */
  uint32_t channel_count, p2p_channel_count, p2p_channels_per_peer;
  uint32_t blocks;             /* of its device: device_info.blocks */
  struct device_use use;       /* of the device, by other communicators of its process */
  uint32_t first_step;         /* of connections */
  uint32_t device_index, node; /* node: within the process, if there is a network between its nodes */
  int32_t process, color, key_order;
  uint8_t present;     /* 0: a rank without color, which gets no communicator */
  uint8_t offers;      /* bits of enum reach_memory: what other processes of the host can map of it ... */
  uint8_t direct;      /* ... including user memory, of its device */
  uint8_t peer_access; /* its device reaches the others of its process */
  uint8_t ll128;       /* 128-byte stores are not torn on its node */
  uint8_t rank_order;  /* TUTTI_SUM_ORDER=rank */
  uint8_t reads_slots; /* NCCL_P2P_READ_ENABLE */
  char host_name[64];
  struct device_comm_handle device;
};

/* One rank of the communicator, as this process sees it. */
struct remote_rank {
  uint32_t process_index;
  uint32_t group;   /* ranks of one group map each other's memory or are in one process */
  uint32_t sharers; /* ranks of the call that made the communicator, and of others, on its device */
  const struct peer_info *info;
  struct reach_process process; /* what its process shares with others of the host */
};

/* The watch over the processes of one gather; shared by the communicators made by that gather. */
struct remote_watch;
struct remote_lease;

struct remote {
  struct comm_shared *shared;
  struct secret secret; /* of the communicator: what its processes prove to each other */
  uint64_t wire_key;    /* its name */
  uint32_t own_process, process_count;
  bool networked;                 /* some ranks reach each other only over networks */
  bool on_host;                   /* some ranks have their connections in memory of the host */
  bool shows;                     /* some ranks map user memory of other processes */
  struct sock_address *addresses; /* by process: its control server */
  struct remote_rank *ranks;      /* by rank */
  uint32_t *groups, *p2p_domains; /* by rank, for plans */
  uint8_t **remotes; /* by rank of this process, if networked: array with 1 for each rank behind a network */
  struct rails *rails; /* selects the NIC of a connection, or NULL */
  os_mutex lock;       /* guards `admitted` and the three members below; taken before the backend's lock */
  struct ncclComm **comms;     /* by rank of this process, until destroyed ... */
  uint64_t *left;              /* ... then the number of operations that the rank had called */
  struct proxy_comm **proxies; /* by rank of this process, if networked */
  struct peer_info *infos;     /* by rank */
  struct remote_watch *watch;
  const struct remote_watcher *watcher; /* of remote_open */
  void *watcher_state;
  struct remote_lease *lease; /* NULL unless it shows memory */
  struct remote *next;        /* of the same watch */
  struct remote *joined_next; /* list of all communicators that survey.h answers for */
  bool serving;               /* answers calls */
  uint64_t admitted;          /* the number of the next grow, whose ranks are let in; 0: none are */
  bool broken;                /* a rank of this process left it broken or aborted */
  uint32_t match_holder;      /* atomic: index of the process that compares calls (remote_match.c) */
  uint32_t match_leaves;      /* atomic: this process hands over what it holds, and compares no more */
};

/* Fills this rank's peer info from `comm`; a rank that has no device-side half yet uses `model`'s. */
ncclResult_t peer_info_fill(const struct ncclComm *comm, struct device_comm *model, struct peer_info *info);

/* remote_graph.c: fills what it says of its machine, where devices are real ones. */
void peer_info_machine(const struct backend *ops, struct peer_info *info);

/* Creates everything except watch and proxies from the peer info of all ranks, which is copied, and the
 * process of each rank.
 * ncclInvalidUsage, naming two ranks, if their settings do not match. */
ncclResult_t remote_create(struct comm_shared *shared, const struct secret *secret,
                           const struct gather *gather, const uint32_t *ranks, const struct reach *reach,
                           struct remote **remote);
/* Adjusts a local rank's settings to those of all ranks. */
ncclResult_t remote_settle(const struct remote *remote, struct settings *settings);
/* remote_graph.c: the graph over all hosts. */
ncclResult_t remote_lay_out(const struct remote *remote, uint32_t channel_count, struct graph *graph);
/* Opens what other processes use: proxies of this process's ranks, and the handler of calls. */
ncclResult_t remote_open(struct remote *remote, struct ncclComm *const *comms,
                         const struct remote_watcher *watcher);
/* A rank of this process is destroyed: other processes can no longer reach it. */
void remote_leave(struct remote *remote, uint32_t rank);
void remote_free(struct remote *remote); /* NULL is allowed; notifies no process: see remote_watch_leave */
/* Frees shared communicator state that was never opened, and its remote ranks. NULL is allowed. */
void remote_free_shared(struct comm_shared *shared);

/* The secret of the communicator's grow number `turn`, from 1; the root is in the process of rank 0. */
void remote_grow_secret(const struct remote *remote, uint64_t turn, struct secret *secret);
/* In the process of rank 0: from now on the ranks of that grow are let in, whose rendezvous ends it. Does
 * nothing elsewhere. */
ncclResult_t remote_grow_admit(struct remote *remote, uint64_t turn);

/* As remote_create(), for a communicator within this process. *remote stays NULL if all devices are on one
 * node, which is the usual case. */
ncclResult_t remote_create_here(struct comm_shared *shared, struct ncclComm *const *comms,
                                struct remote **remote);

enum remote_transport remote_transport_to(const struct remote *remote, uint32_t own_rank, uint32_t rank);
/* True if memory of the host is shared, because their devices do not reach each other (TRANSPORT_SHARED). */
bool remote_on_host(const struct remote *remote, uint32_t own_rank, uint32_t rank);

/* One watch for all communicators of a gather; each holds a reference. They join before it begins: a loss is
 * reported once, to those that have joined. */
ncclResult_t remote_watch_create(struct remote_watch **watch);
void remote_watch_join(struct remote_watch *watch, struct remote *remote);
ncclResult_t remote_watch_begin(struct remote_watch *watch, struct gather *gather);
/* The last to leave says goodbye on behalf of the process. */
void remote_watch_leave(struct remote *remote);
void remote_watch_drop(struct remote_watch *watch); /* drops the creator's reference */
/* Tells the communicator's other processes that this one gives up. */
void remote_fail(struct remote *remote, ncclResult_t code, const char *text);
/* The rank cannot continue: breaks its communicator with this message, here and in the other processes. Any
 * thread. */
void remote_give_up(struct ncclComm *comm, ncclResult_t code, const char *text);
/* Gives up the rank's communicator if the rank's kernels have failed and this was not reported yet. */
void remote_report_error(struct ncclComm *comm);

/* Calls between processes: the first word of each request. */
enum remote_call {
  REMOTE_CALL_CONNECT = 1,
  REMOTE_CALL_STALL,
  REMOTE_CALL_PXN,
  REMOTE_CALL_REGION,
  REMOTE_CALL_ALARM,
  REMOTE_CALL_REPORTED,
  REMOTE_CALL_MATCH,
  REMOTE_CALL_WINDOW
};

/* Connections to other processes that a plan needs, and the call that opens them (connect.c). */
struct remote_request {
  uint32_t rank; /* of the receiver, which this process asks; with conn_both_ends, of the sender */
  struct device_conn_name name; /* as that rank names it */
  enum remote_transport transport;
};
struct remote_listener {
  struct net_handle handle;
  char network[32]; /* the name of the network that listens: the sender must use the same */
  uint32_t apart;   /* proxy_takes_apart() */
};
union remote_answer {
  struct device_conn_handle shared;
  struct remote_listener network;
};
#define REMOTE_REQUESTS_MOST 256 /* per call */
ncclResult_t remote_ask(struct ncclComm *comm, const struct remote_request *requests, uint32_t count,
                        union remote_answer *answers);

/* remote_pxn.c: opens the sender's end of a connection to `listener` through a rank of another process that
 * is next to the NIC. *made: false if there is no such rank; nothing has changed then. */
ncclResult_t remote_pxn_try(struct ncclComm *comm, const struct device_conn_name *name,
                            const struct remote_listener *listener, uint32_t device_count, bool *made);
ncclResult_t remote_pxn_answer(struct remote *remote, const void *request, uint32_t bytes, void *reply,
                               uint32_t *reply_bytes);

/* remote_region.c: before a launch, exports its buffers to the processes whose kernels may access them;
 * `lasts`: the launch belongs to a CUDA graph. */
void remote_regions_show(struct ncclComm *comm, const struct plan *plan, bool lasts);
/* A window: the other processes of the host map it, and unmap it. */
void remote_window_show(struct ncclComm *comm, const void *memory, size_t bytes);
void remote_window_hide(struct ncclComm *comm, const void *memory, size_t bytes);
/* Tells other processes what a rank of this process has freed; on a thread that may wait. */
void remote_regions_return(struct remote *remote, uint32_t rank, const uint32_t *called_off);
ncclResult_t remote_region_answer(struct remote *remote, const void *request, uint32_t bytes, void *reply,
                                  uint32_t *reply_bytes);

/* remote_window.c: asks the peer's process for the peer's window of this number (0: none is asked for), and
 * maps its counters of signals. *window: as windows_find(), `begin` mapped here, or NULL if it cannot be. */
ncclResult_t remote_window_ask(struct ncclComm *comm, uint32_t peer, uint32_t number, enum window_find *found,
                               struct window *window);
ncclResult_t remote_window_answer(struct remote *remote, const void *request, uint32_t bytes, void *reply,
                                  uint32_t *reply_bytes);

/* remote_lease.c: returns memory that programs have freed, on a thread of its own, for as long as the process
 * has such communicators. */
ncclResult_t remote_lease_open(struct remote *remote);
/* On return the thread does not use the communicator. */
void remote_lease_close(struct remote *remote);
/* Memory was shown, or is to be unmapped: the thread need not sleep on. Any thread, with no lock of a
 * communicator. */
void remote_lease_wake(void);

/* remote_match.c: from then on the calls of all processes are compared. */
void remote_match_open(struct remote *remote);
/* When this process no longer answers calls; not if the communicator is broken. */
void remote_match_leave(struct remote *remote);
ncclResult_t remote_match_answer(struct remote *remote, const void *request, uint32_t bytes, void *reply,
                                 uint32_t *reply_bytes);

#endif
