/* far.h: what a team knows of its ranks beyond this process, or beyond this node: where each lies, which way
 * leads to it, and who is still there. Exists for communicators of several processes, and for those whose
 * ranks lie on emulated nodes of this one with a network between them. Built from the ranks' cards, equal on
 * all of them, so that both ends of a connection come to the same way without asking. */
#ifndef TUTTI_CORE_FAR_H
#define TUTTI_CORE_FAR_H

#include "backends/backend.h"
#include "base/os.h"
#include "core/bootstrap/gather.h"
#include "core/proxy/proxy.h"
#include "core/settings.h"

struct ncclComm;
struct stall;
struct team;

/* The ways from one rank to another. */
enum far_way {
  FAR_HERE,   /* in this process */
  FAR_SHARED, /* on this host: its memory is mapped */
  FAR_NETWORK /* over a network, through proxies */
};

/* What every rank says of itself when a communicator is made. Travels as it is. */
struct far_card {
  uint64_t host;     /* share_host(): ranks of one host */
  uint64_t settings; /* settings_digest() */
  uint32_t channel_count, p2p_channel_count, p2p_channels_per_peer;
  uint32_t device_index, node; /* node: of the process's own, where a network is between those */
  int32_t process, color, key_order;
  uint8_t present;   /* 0: a rank without color, which gets no communicator */
  uint8_t shareable; /* other processes of the host may map its memory ... */
  uint8_t direct;    /* ... also the user's */
  uint8_t lines128;  /* stores of 128 bytes arrive whole on its node */
  char host_name[64];
  struct device_card device;
};

/* One rank of the communicator, as this process sees it. */
struct far_rank {
  uint32_t party;
  uint32_t group; /* ranks of one group map each other's memory, or are of one process */
  const struct far_card *card;
};

/* The watch over the parties of one gathering; shared by the teams that came out of it. */
struct far_watch;

struct far {
  struct team *team;
  uint64_t wire_key; /* names the communicator to other processes; hard to guess */
  uint32_t own_party, party_count;
  bool networked;                 /* some ranks reach each other over networks alone */
  bool shows;                     /* some map users' memory of other processes */
  struct sock_address *addresses; /* by party: its control server */
  struct far_rank *ranks;         /* by rank */
  uint32_t *groups, *islands;     /* by rank, for plans */
  uint8_t **remotes;       /* by rank: of this process's, where networked: 1 for each rank behind a network */
  struct rails *rails;     /* which network card a connection takes, or NULL */
  os_mutex lock;           /* of the three below; taken before the backend's */
  struct ncclComm **comms; /* by rank: this process's, until they are destroyed ... */
  uint64_t *left;          /* ... and then how many operations they had called */
  struct proxy_comm **proxies; /* by rank: theirs, where networked */
  struct far_card *cards;      /* by rank */
  struct far_watch *watch;
  struct stall *stall;     /* asks why nothing moves */
  struct far *next;        /* of the same watch */
  struct far *joined_next; /* of all that survey.h answers for */
  bool serving;            /* answers calls */
};

/* This rank's card. `comm` is the rank's own, or, where it has none yet, `model`'s device-side half speaks
 * for it. */
ncclResult_t far_card_fill(const struct ncclComm *comm, struct device_comm *model, struct far_card *card);

/* From the cards of all ranks, by rank, with the party of each: everything but watch and proxies. The cards
 * are copied. `apart`, by party: 1 where no memory is mapped to or from others (reach.h). Ranks whose
 * settings do not fit together: ncclInvalidUsage, naming two. */
ncclResult_t far_create(struct team *team, uint64_t wire_key, const struct gather *gather,
                        const uint32_t *seats, const uint8_t *apart, struct far **far);
/* Brings a local rank's settings into line with what all ranks said. */
void far_settle(const struct far *far, struct settings *settings);
/* The graph over all hosts. */
ncclResult_t far_lay_out(const struct far *far, uint32_t channel_count, struct graph *graph);
/* Opens what other processes reach: proxies of this process's ranks, and the answers to their calls. */
ncclResult_t far_open(struct far *far, struct ncclComm *const *comms);
/* A rank of this process goes: nobody reaches it any more. */
void far_leave(struct far *far, uint32_t rank);
void far_free(struct far *far); /* NULL is allowed; nobody is told: see far_watch_leave */

/* The same for a team of this process alone. *far stays NULL where its devices are on one node, as most are.
 */
ncclResult_t far_create_here(struct team *team, struct ncclComm *const *comms, struct far **far);

enum far_way far_way_to(const struct far *far, uint32_t own_rank, uint32_t rank);

/* One watch for all teams of a gather; each takes a share of it. */
ncclResult_t far_watch_open(struct gather *gather, struct far_watch **watch);
void far_watch_join(struct far_watch *watch, struct far *far);
/* The last to leave says goodbye for the process. */
void far_watch_leave(struct far *far);
void far_watch_drop(struct far_watch *watch); /* the opener's own share */
/* Tells the communicator's other processes that this one gives up. */
void far_fail(struct far *far, ncclResult_t code, const char *text);
/* The rank cannot go on: its communicator is broken with this text, here and in the other processes. Any
 * thread. */
void far_give_up(struct ncclComm *comm, ncclResult_t code, const char *text);
/* Where the rank's own kernels have failed, and nobody has said so yet, its communicator is given up. */
void far_tell_error(struct ncclComm *comm);

/* What processes ask each other: the first word of each call. */
enum far_call {
  FAR_CALL_CONNECT = 1,
  FAR_CALL_STALL,
  FAR_CALL_RELAY,
  FAR_CALL_REGION,
  FAR_CALL_ALARM,
  FAR_CALL_TOLD
};

/* Connections that a plan lacks towards other processes, and the call that opens them (connect.c). */
struct far_request {
  uint32_t rank; /* of the receiver, whom this process asks; or of the sender: conn_both_ends */
  struct device_conn_name name; /* as that rank names it */
  enum far_way way;
};
struct far_listener {
  struct net_handle handle;
  char network[32]; /* the name of the network that listens: the sender must use the same */
};
union far_answer {
  struct device_conn_card shared;
  struct far_listener network;
};
#define FAR_REQUESTS_MOST 256 /* of one call */
ncclResult_t far_ask(struct ncclComm *comm, const struct far_request *requests, uint32_t count,
                     union far_answer *answers);

/* far_relay.c: opens the sender's end of a connection to `listener` by way of a rank of another process that
 * is beside the card, where there is one: *made. Where not, nothing has happened. */
ncclResult_t far_relay_try(struct ncclComm *comm, const struct device_conn_name *name,
                           const struct far_listener *listener, uint32_t device_count, bool *made);
ncclResult_t far_relay_answer(struct far *far, const void *request, uint32_t bytes, void *reply,
                              uint32_t *reply_bytes);

/* far_region.c: before a launch, shows its outputs to the processes whose kernels may store into them;
 * `lasts`: it is of a graph. */
void far_regions_show(struct ncclComm *comm, const struct plan *plan, bool lasts);
/* Tells other processes what a rank of this one has freed; now and then, by a thread that may wait. */
void far_regions_sweep(struct far *far, uint32_t rank, const uint32_t *called_off);
ncclResult_t far_region_answer(struct far *far, const void *request, uint32_t bytes, void *reply,
                               uint32_t *reply_bytes);

#endif
