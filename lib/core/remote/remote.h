/* remote.h: what a communicator knows of its ranks beyond this process, or beyond this node: where each lies,
 * which transport reaches it, and who is still there. Exists for communicators of several processes, and for
 * those whose ranks lie on emulated nodes of this one with a network between them. Built from the ranks' peer
 * info, equal on all of them, so that both ends of a connection come to the same transport without asking. */
#ifndef TUTTI_CORE_REMOTE_H
#define TUTTI_CORE_REMOTE_H

#include "backends/backend.h"
#include "base/os.h"
#include "core/bootstrap/gather.h"
#include "core/proxy/proxy.h"
#include "core/settings/settings.h"

struct remote;
struct remote_watcher;
struct ncclComm;
struct comm_shared;

/* The transports from one rank to another. */
enum remote_transport {
  TRANSPORT_LOCAL,  /* in this process */
  TRANSPORT_SHARED, /* on this host: its memory is mapped */
  TRANSPORT_NETWORK /* over a network, through proxies */
};

/* Who looks after a communicator of several processes while it is open, and answers the calls that remote.c
 * does not know (core/stall). All of it is called on the thread that opens or frees. */
struct remote_watcher {
  /* Other processes may call already. *state is kept for close(). */
  ncclResult_t (*open)(struct remote *remote, void **state);
  /* Before this process stops to answer calls of the communicator, and behind that. */
  void (*leave)(struct remote *remote);
  void (*close)(void *state); /* NULL is allowed */
  /* A control_handler's call; `kind` is its first word. */
  ncclResult_t (*answer)(struct remote *remote, uint32_t kind, const void *request, uint32_t bytes,
                         void *reply, uint32_t *reply_bytes);
};

/* What every rank says of itself when a communicator is made. Travels as it is. */
struct peer_info {
  uint64_t host;     /* share_host(): ranks of one host */
  uint64_t settings; /* settings_digest() */
  uint32_t channel_count, p2p_channel_count, p2p_channels_per_peer;
  uint32_t device_index, node; /* node: of the process's own, where a network is between those */
  int32_t process, color, key_order;
  uint8_t present;   /* 0: a rank without color, which gets no communicator */
  uint8_t shareable; /* other processes of the host may map its memory ... */
  uint8_t direct;    /* ... also the user's */
  uint8_t ll128;     /* stores of 128 bytes arrive whole on its node */
  char host_name[64];
  struct device_comm_handle device;
};

/* One rank of the communicator, as this process sees it. */
struct remote_rank {
  uint32_t process_index;
  uint32_t group; /* ranks of one group map each other's memory, or are of one process */
  const struct peer_info *info;
};

/* The watch over the processes of one gathering; shared by the communicators that came out of it. */
struct remote_watch;

struct remote {
  struct comm_shared *shared;
  uint64_t wire_key; /* names the communicator to other processes; hard to guess */
  uint32_t own_process, process_count;
  bool networked;                 /* some ranks reach each other over networks alone */
  bool shows;                     /* some map users' memory of other processes */
  struct sock_address *addresses; /* by process: its control server */
  struct remote_rank *ranks;      /* by rank */
  uint32_t *groups, *p2p_domains; /* by rank, for plans */
  uint8_t **remotes;       /* by rank: of this process's, where networked: 1 for each rank behind a network */
  struct rails *rails;     /* which NIC a connection takes, or NULL */
  os_mutex lock;           /* of the three below; taken before the backend's */
  struct ncclComm **comms; /* by rank: this process's, until they are destroyed ... */
  uint64_t *left;          /* ... and then how many operations they had called */
  struct proxy_comm **proxies; /* by rank: theirs, where networked */
  struct peer_info *infos;     /* by rank */
  struct remote_watch *watch;
  const struct remote_watcher *watcher; /* of remote_open */
  void *watcher_state;
  struct remote *next;        /* of the same watch */
  struct remote *joined_next; /* of all that survey.h answers for */
  bool serving;               /* answers calls */
};

/* This rank's peer info. `comm` is the rank's own, or, where it has none yet, `model`'s device-side half
 * speaks for it. */
ncclResult_t peer_info_fill(const struct ncclComm *comm, struct device_comm *model, struct peer_info *info);

/* From the peer info of all ranks, by rank, with the process of each: everything but watch and proxies. The
 * peer info are copied. `apart`, by process: 1 where no memory is mapped to or from others (reach.h). Ranks
 * whose settings do not fit together: ncclInvalidUsage, naming two. */
ncclResult_t remote_create(struct comm_shared *shared, uint64_t wire_key, const struct gather *gather,
                           const uint32_t *ranks, const uint8_t *apart, struct remote **remote);
/* Brings a local rank's settings into line with what all ranks said. */
void remote_settle(const struct remote *remote, struct settings *settings);
/* The graph over all hosts. */
ncclResult_t remote_lay_out(const struct remote *remote, uint32_t channel_count, struct graph *graph);
/* Opens what other processes reach: proxies of this process's ranks, and the answers to their calls. */
ncclResult_t remote_open(struct remote *remote, struct ncclComm *const *comms,
                         const struct remote_watcher *watcher);
/* A rank of this process goes: nobody reaches it any more. */
void remote_leave(struct remote *remote, uint32_t rank);
void remote_free(struct remote *remote); /* NULL is allowed; nobody is told: see remote_watch_leave */
/* Frees a communicator that was never opened, and its far ranks. NULL is allowed. */
void remote_free_team(struct comm_shared *shared);

/* The same for a communicator of this process alone. *remote stays NULL where its devices are on one node, as
 * most are.
 */
ncclResult_t remote_create_here(struct comm_shared *shared, struct ncclComm *const *comms,
                                struct remote **remote);

enum remote_transport remote_transport_to(const struct remote *remote, uint32_t own_rank, uint32_t rank);

/* One watch for all communicators of a gather; each takes a share of it. */
ncclResult_t remote_watch_open(struct gather *gather, struct remote_watch **watch);
void remote_watch_join(struct remote_watch *watch, struct remote *remote);
/* The last to leave says goodbye for the process. */
void remote_watch_leave(struct remote *remote);
void remote_watch_drop(struct remote_watch *watch); /* the opener's own share */
/* Tells the communicator's other processes that this one gives up. */
void remote_fail(struct remote *remote, ncclResult_t code, const char *text);
/* The rank cannot go on: its communicator is broken with this text, here and in the other processes. Any
 * thread. */
void remote_give_up(struct ncclComm *comm, ncclResult_t code, const char *text);
/* Where the rank's own kernels have failed, and nobody has said so yet, its communicator is given up. */
void remote_report_error(struct ncclComm *comm);

/* What processes ask each other: the first word of each call. */
enum remote_call {
  REMOTE_CALL_CONNECT = 1,
  REMOTE_CALL_STALL,
  REMOTE_CALL_PXN,
  REMOTE_CALL_REGION,
  REMOTE_CALL_ALARM,
  REMOTE_CALL_REPORTED
};

/* Connections that a plan lacks towards other processes, and the call that opens them (connect.c). */
struct remote_request {
  uint32_t rank; /* of the receiver, whom this process asks; or of the sender: conn_both_ends */
  struct device_conn_name name; /* as that rank names it */
  enum remote_transport transport;
};
struct remote_listener {
  struct net_handle handle;
  char network[32]; /* the name of the network that listens: the sender must use the same */
};
union remote_answer {
  struct device_conn_handle shared;
  struct remote_listener network;
};
#define REMOTE_REQUESTS_MOST 256 /* of one call */
ncclResult_t remote_ask(struct ncclComm *comm, const struct remote_request *requests, uint32_t count,
                        union remote_answer *answers);

/* remote_pxn.c: opens the sender's end of a connection to `listener` through a rank of another process that
 * is beside the NIC, where there is one: *made. Where not, nothing has happened. */
ncclResult_t remote_pxn_try(struct ncclComm *comm, const struct device_conn_name *name,
                            const struct remote_listener *listener, uint32_t device_count, bool *made);
ncclResult_t remote_pxn_answer(struct remote *remote, const void *request, uint32_t bytes, void *reply,
                               uint32_t *reply_bytes);

/* remote_region.c: before a launch, shows its outputs to the processes whose kernels may store into them;
 * `lasts`: it is of a graph. */
void remote_regions_show(struct ncclComm *comm, const struct plan *plan, bool lasts);
/* Tells other processes what a rank of this one has freed; now and then, by a thread that may wait. */
void remote_regions_sweep(struct remote *remote, uint32_t rank, const uint32_t *called_off);
ncclResult_t remote_region_answer(struct remote *remote, const void *request, uint32_t bytes, void *reply,
                                  uint32_t *reply_bytes);

#endif
