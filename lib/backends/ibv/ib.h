/* ib.h: what the files of the ibv net share: devices, an end of a connection, its queue pairs, requests and
 * memory. Calls on one connection come from one thread at a time, and connections share nothing but devices,
 * which do not change: so there is no lock here but the one around a device's events (events.c). */
#ifndef TUTTI_IBV_IB_H
#define TUTTI_IBV_IB_H

#include <assert.h>

#include "backends/ibv/gid.h"
#include "backends/ibv/verbs.h"
#include "backends/net.h"
#include "base/handshake.h"
#include "base/log.h"
#include "base/os.h"
#include "base/sock.h"

enum {
  IB_DEVICES_MAX = 32,
  IB_PORTS_MAX = 8,     /* of a device: ports of one NIC that are used as one */
  IB_QPS_MAX = 128,     /* of a connection */
  IB_GROUP_MAX = 8,     /* receives of one call */
  IB_SLOTS = 64,        /* calls to irecv that may be under way; more than NET_REQUESTS_MAX */
  IB_SEND_DEPTH = 128,  /* work requests of a queue pair */
  IB_RECEIVE_DEPTH = 64 /* more than NET_REQUESTS_MAX */
};
#define IB_MESSAGE_BYTES_MAX (1ull << 30)

/* ---- device.c */

struct ib_context {
  const struct verbs *verbs;
  struct ibv_context *context;
  struct ibv_device_attr attributes;
  char name[64];
  os_mutex events_mutex;
  bool dead;                          /* said to be, by itself; atomic */
  uint8_t port_down[UINT8_MAX + 1];   /* by number; atomic */
  uint64_t port_up_ns[UINT8_MAX + 1]; /* when it came up again; 0: it was never down; atomic */
};

struct ib_port {
  struct ib_context *of;
  uint8_t number;
  struct ibv_port_attr attributes;
  bool ethernet;
  int gid_index;
  union ibv_gid gid;
  uint32_t speed_mbps;
  char why[GID_WHY_BYTES]; /* this GID */
};

struct ib_device {
  char name[64]; /* "mlx5_0:1", "mlx5_0:1+mlx5_1:1" */
  char path[256];
  uint32_t port_count;
  struct ib_port ports[IB_PORTS_MAX];
};

ncclResult_t ib_devices(uint32_t *count);
ncclResult_t ib_properties(uint32_t device, struct net_properties *properties);
/* NULL: there is none, as a warning says. */
const struct ib_device *ib_device_of(uint32_t device);
/* Closes all devices, so that ib_devices() finds them anew. */
ncclResult_t ib_finish(void);
/* True when NCCL_IB_HCA's value lets this port in: names' beginnings, separated by commas, each with a port
 * behind a colon if it likes; a leading ^ means all but these, = whole names. */
bool ib_list_allows(const char *list, const char *name, uint8_t port);

/* ---- what both ends tell each other */

struct ib_port_info {
  uint8_t gid[16];
  uint16_t lid;
  uint8_t mtu, ethernet;
  uint32_t key;           /* of the end's memory (struct ib_memory), by this port */
  struct ibv_ece options; /* of its queue pairs */
};
struct ib_conn_info {
  uint64_t magic;
  uint32_t qp_count, port_count;
  uint64_t memory; /* address of its struct ib_memory */
  char name[64];   /* of its device */
  struct ib_port_info ports[IB_PORTS_MAX];
  uint32_t qps[IB_QPS_MAX];    /* the k-th is connected to the other end's k-th */
  uint8_t outlets[IB_QPS_MAX]; /* at which port each lies */
  uint64_t bad;                /* bit k: nothing passes between the ports that queue pair k first had */
};

/* A receive, as its sender sees it: written by the receiver into the sender's memory. Valid once `number`, in
 * its last word, is that of the call to irecv: words become visible in order. What comes last is what every
 * entry needs, so that no more is written than has been filled: 24 bytes where the receiver has one port. */
struct ib_clear {
  uint32_t unused[3];
  uint32_t keys[IB_PORTS_MAX]; /* of the receiver's memory, the last is that by its port 0: IB_CLEAR_KEY */
  uint32_t bytes;
  uint64_t address;
  int32_t tag;
  uint32_t number; /* of the call, and above it how many receives it has: IB_CLEAR_NUMBER */
};
static_assert(sizeof(struct ib_clear) == 64, "a line, which no write splits");
#define IB_CLEAR_KEY(port) (IB_PORTS_MAX - 1 - (port))
/* A call has 1 to IB_GROUP_MAX receives, or IB_SPLIT: one, in two places. Memory that is zero is no entry. */
#define IB_SPLIT (IB_GROUP_MAX + 1u)
#define IB_CLEAR_NUMBER(call, receives) ((uint32_t)((call)&0xfffffff) | (uint32_t)(receives) << 28)

/* What a queue pair takes with a request, so that the device need not fetch it (NCCL_IB_USE_INLINE). */
#define IB_INLINE_BYTES sizeof(struct ib_clear)

/* A receive in two places (IB_SPLIT) has two entries: what a message of the right size begins with goes where
 * the first says, and its last `tag` bytes to the second, which has space for all of any other message. Where
 * that tag is IB_TAIL every size is right: the second is filled with the message's end, the first has what is
 * before.
 */
#define IB_TAIL -1
#define IB_PLACES 2

/* What the other end writes into, and what writes to it begin in. */
struct ib_memory {
  struct ib_clear clear[IB_SLOTS][IB_GROUP_MAX]; /* a sender's: the receiver writes; a receiver's: its copy */
  uint32_t sizes[IB_SLOTS][IB_GROUP_MAX];        /* of grouped messages; the other way round */
  uint64_t flushed;                              /* what reads that flush bring: nobody looks */
};
/* In an immediate value, and in sizes: the message was longer than its buffer and did not come. */
#define IB_TOO_LONG 0x80000000u

/* ---- wire.c: the socket beside a connection */

/* Behind a reconnect comes what the connection goes on with (struct ib_reconnect). */
enum { WIRE_GO = 1, WIRE_BYE = 2, WIRE_RECONNECT, WIRE_LINKED };
struct ib_note {
  uint32_t magic, kind;
  uint64_t number; /* bye: receives that were completed; again: which time this is */
};
struct ib_wire {
  int fd;
  size_t sent, received; /* of an info, or what a connection goes on with */
  size_t note_received;
  struct ib_note note;
};
struct ib_handle {
  uint64_t magic;
  struct sock_address address;
  uint64_t number;   /* random; with the communicator's key it makes the key of the handshake */
  uint32_t qp_count; /* that the receiver wants */
  uint32_t port_count;
};
uint64_t ib_handle_key(const struct ib_handle *handle, uint64_t comm_key);
/* A socket on its way to `to`; negative: errno. */
int ib_wire_dial(const struct sock_address *to);
/* 1: connected; 0: not yet; negative: errno. */
int ib_wire_dialed(int fd);
/* 1: all of it has moved; 0: not yet; -1: the other end has closed, or errno says why. */
int ib_wire_send(struct ib_wire *wire, const void *data, size_t bytes);
int ib_wire_receive(struct ib_wire *wire, void *data, size_t bytes);
void ib_wire_note_send(struct ib_wire *wire, uint32_t kind, uint64_t number);
/* 1: `wire->note` is one; 0: none now; -1: closed. */
int ib_wire_note_receive(struct ib_wire *wire);

/* ---- conn.c: an end of a connection */

enum ib_kind { IB_SEND = 1, IB_RECEIVE, IB_LISTENER };
enum ib_phase {
  IB_DIALING,
  IB_HANDSHAKE,
  IB_INFO_OUT,
  IB_INFO_IN,
  IB_DRAIN, /* from here to IB_LINK: being made again (reconnect.c) */
  IB_RECONNECT_OUT,
  IB_RECONNECT_IN,
  IB_LINK,
  IB_PATH,
  IB_GO,
  IB_READY
};

/* What the upper bits of a work request's id say; below them lie a number, and how many have been posted. */
enum ib_work { IB_WORK_DATA = 1, IB_WORK_CLEAR, IB_WORK_RECEIVE, IB_WORK_PATH, IB_WORK_FLUSH };

struct ib_qp {
  struct ibv_qp *qp;
  uint32_t outlet;
  uint32_t posted, retired; /* work requests of its send queue */
  uint32_t receives;        /* that are posted */
  bool path_good;
  uint32_t heard; /* `retired` when it was last seen to change, and since when: silence.c */
  uint64_t received_ns, asked_ns;
};

/* One of the device's ports, as this connection uses it. */
struct ib_outlet {
  struct ibv_pd *pd;
  struct ibv_cq *cq;
  struct ibv_mr *memory;
};

/* Memory of this end that a message lies in, or a part of one. */
struct ib_place {
  const void *data;
  size_t bytes;
  struct ib_region *region;
};

struct ib_end;
struct ib_request {
  struct ib_end *end;
  bool used, done;
  uint32_t count; /* receives of it; 1 for a send, 0 for a flush */
  uint64_t slot;  /* number of the call to irecv */
  size_t bytes[IB_GROUP_MAX];
  struct ib_place places[IB_PLACES]; /* of a send; the second may be empty */
  uint32_t immediate;
  uint32_t reads; /* of a flush, that are under way */
};

/* A call to irecv, as the sender answers it. */
struct ib_answer {
  uint64_t number;
  uint32_t count, claimed; /* receives of the call; those that have their message */
  bool split;
  uint32_t refused;     /* a message was too long: what the receiver is told */
  uint32_t outstanding; /* queue pairs that are not done with it */
  struct ib_request *requests[IB_GROUP_MAX];
};

/* What an end tells the other where they are connected again. */
struct ib_reconnect {
  uint64_t generation;
  uint64_t finished, begun, done; /* a receiver's: as in its end; bit k modulo IB_SLOTS: call k is done */
  uint64_t back;                  /* bits of the info's `bad` that are good again */
  bool knew;                      /* it was made with the other end's word of this generation at hand */
  struct ib_conn_info info;
};

struct ib_end {
  enum ib_kind kind; /* first, as in a listener */
  enum ib_phase phase;
  ncclResult_t failed;  /* sticky: a connection that failed once says so again, without words */
  ncclResult_t refused; /* what isend says after a message that was too long */
  uint32_t rank, peer;
  char comm_name[64];
  const struct ib_device *device;
  const struct verbs *verbs;
  struct sock_address address; /* of the other process */
  struct ib_wire wire;
  struct handshake_client client;
  struct ib_handle handle;
  uint64_t comm_key, phase_ns, path_ns;
  struct ib_conn_info own, other;
  struct ib_memory *memory;
  struct ib_outlet outlets[IB_PORTS_MAX];
  struct ib_qp *qps;
  uint32_t qp_count, stripes; /* stripes: queue pairs that a message is spread over */
  uint32_t loop_count;        /* queue pairs behind those, to itself, one a port: flush.c */
  size_t adaptive_bytes;      /* longer messages are notified apart from their data */
  struct ib_region *regions;
  uint64_t begun;    /* a receiver's calls to irecv; a sender's that are answered */
  uint64_t finished; /* a receiver's, all before which are done */
  bool gone;         /* the other end has closed */
  bool said_bye;
  uint64_t bye;
  const struct ib_qp *flushed; /* a completion said that this one had stopped before */
  uint64_t flushed_id;
  uint32_t idle;
  int event;                             /* an asynchronous event that ends it; atomic */
  struct ib_reconnect reconnect, others; /* being made again: generation, and what is said */
  uint64_t tries;
  uint64_t linked_ns;          /* when it became ready, last */
  uint32_t left;               /* bit i: its i-th port was down, and its queue pairs lie elsewhere */
  uint32_t unlinked;           /* the first queue pair that is not connected */
  uint32_t differences;        /* about ports, one after the other */
  bool was_ready, told, heard; /* told: the other end's word comes next on the wire; heard: it has come */
  struct ib_request requests[2 * NET_REQUESTS_MAX]; /* the second half is flushes' */
  struct ib_answer answers[IB_SLOTS];
};

ncclResult_t ib_listen(uint32_t device, const struct net_peer *peer, struct net_handle *handle, void **out);
ncclResult_t ib_accept(void *listener, void **connection);
ncclResult_t ib_listen_close(void *listener);
ncclResult_t ib_connect(uint32_t device, const struct net_peer *peer, struct net_handle *handle,
                        void **connection);
/* Takes a connection as far as it goes now. */
ncclResult_t ib_end_step(struct ib_end *end);
ncclResult_t ib_end_close(struct ib_end *end);
/* Which queue pair has this turn. */
static inline uint32_t ib_qp_of_turn(const struct ib_end *end, uint64_t turn) {
  return end->qp_count > 1 ? (uint32_t)(turn % end->qp_count) : 0; /* a division takes its time */
}
static inline void ib_answer_begin(struct ib_answer *answer, uint64_t number, uint32_t count) {
  answer->number = number;
  answer->count = count;
  answer->claimed = answer->refused = answer->outstanding = 0;
  answer->split = false;
  for (uint32_t i = 0; i < count; i++) answer->requests[i] = NULL;
}
/* Of the first half, or of the second; what it is for is the caller's to fill in. NULL: all are in use. */
struct ib_request *ib_request_take(struct ib_end *end, bool flush);
/* Logs "<comm>: rank 0 sending to rank 1 at ADDRESS over DEVICE: <text>", and notes the code. */
ncclResult_t ib_fail(struct ib_end *end, ncclResult_t code, const char *format, ...) LOG_FORMAT(3, 4);
/* ncclRemoteError once the other end has closed: says how far it was. */
ncclResult_t ib_gone(struct ib_end *end);
/* The other end has closed, or its process has ended: what it has received is done for a sender. */
ncclResult_t ib_closed(struct ib_end *end);

/* ---- qp.c: queue pairs from their making to ready */
ncclResult_t ib_qps_create(struct ib_end *end);
ncclResult_t ib_qps_connect(struct ib_end *end);
/* Those that lead back to their own port; once. */
ncclResult_t ib_qps_loop(struct ib_end *end);
/* Those to the other end carry nothing any more: memory that they were to read or to write is left alone. */
void ib_qps_stop(struct ib_end *end);
/* So many from the begin-th on are no more: new ones may be made. */
void ib_qps_drop(struct ib_end *end, uint32_t begin, uint32_t count);
void ib_qps_destroy(struct ib_end *end);
uint64_t ib_work_id(enum ib_work work, uint64_t number, const struct ib_qp *qp);
bool ib_qp_has_space(const struct ib_qp *qp, uint32_t requests);
/* Posts a chain of `count`; the last must be signalled or followed by one that is. */
ncclResult_t ib_qp_post(struct ib_end *end, struct ib_qp *qp, struct ibv_send_wr *first, uint32_t count);
/* "queue pair 2 (17 to 18), mlx5_0:1 GID ... to GID ...". Returns `out`. */
#define IB_QP_TEXT_BYTES 256
const char *ib_qp_text(const struct ib_end *end, const struct ib_qp *qp, char out[IB_QP_TEXT_BYTES]);

ncclResult_t ib_conn_info_take(struct ib_end *end);
/* Takes a connection that is ready, or was, as far as it goes now. */
ncclResult_t ib_end_poll(struct ib_end *end);

/* ---- ports.c: between which ports queue pairs lie, by what both ends know of them (struct ib_conn_info) */
void ib_ports_choose(struct ib_end *end);
/* Whether the other end has chosen the same. */
bool ib_ports_agree(const struct ib_end *end);
/* Its word has come. */
void ib_ports_learn(struct ib_end *end);
/* Whether queue pairs lie elsewhere than first, for a port of this end. */
bool ib_ports_left(struct ib_end *end);
/* Queue pairs that may go back to their first ports: bits of what the info calls bad. */
uint64_t ib_ports_back(struct ib_end *end);

/* ---- reconnect.c: a connection whose queue pairs failed gets new ones, and goes on where it was */
/* How many times, by the settings. */
uint64_t ib_reconnect_most(void);
/* True where another time is allowed; it counts. */
bool ib_reconnect_may(struct ib_end *end, bool asked);
/* True where it does, and nothing has failed. `bad`: bits of queue pairs that reach nothing. */
bool ib_reconnect_begin(struct ib_end *end, uint64_t bad, bool asked);
/* The same to go back to ports that are up again, where there are any. */
void ib_reconnect_back(struct ib_end *end);
ncclResult_t ib_reconnect_step(struct ib_end *end);
/* The other end has asked: its word follows on the wire. */
ncclResult_t ib_reconnect_asked(struct ib_end *end);
/* All paths are good: what was under way goes on. */
ncclResult_t ib_reconnect_resume(struct ib_end *end);

/* ---- path.c: a write without data on every queue pair, before anything rests on it */
ncclResult_t ib_path_step(struct ib_end *end);
ncclResult_t ib_path_write(struct ib_end *end, struct ib_qp *qp, uint32_t index);
/* `qp` is one that gets no answer. */
ncclResult_t ib_path_fail(struct ib_end *end, const struct ib_qp *qp);

/* ---- complete.c: what has come of the work requests */
ncclResult_t ib_poll(struct ib_end *end);
/* What of an end that may have nothing under way? */
ncclResult_t ib_look(struct ib_end *end, enum net_look *wish);

/* ---- silence.c: queue pairs of which nothing comes, not even an error */
ncclResult_t ib_silence_look(struct ib_end *end);

/* ---- events.c: what devices say of themselves */
void ib_events_look(struct ib_context *context);
/* What an event ends, in words; NULL where the connection goes on. */
const char *ib_end_event(const struct ib_end *end);

/* ---- region.c: registered memory */
struct ib_region {
  struct ib_region *next;
  uintptr_t begin, end;
  uint32_t uses;
  bool device;
  struct ibv_mr *memory[IB_PORTS_MAX];
};
struct ib_dmabuf {
  int descriptor;
  uint64_t offset;
};
/* `dmabuf` NULL: by its address. Failure leaves the connection as it was. */
ncclResult_t ib_region_take(struct ib_end *end, const struct ib_dmabuf *dmabuf, void *data, size_t bytes,
                            enum net_memory kind, void **registration);
ncclResult_t ib_region_give(struct ib_end *end, void *registration);
void ib_regions_free(struct ib_end *end);

/* ---- flush.c: received device memory made visible to its device */
ncclResult_t ib_flush(struct ib_end *end, uint32_t count, void *const *data, const size_t *bytes,
                      void *const *registrations, void **request);
void ib_flush_completed(struct ib_end *end, uint64_t number);
/* True where what was under way goes on over new queue pairs: the other end has no part in it. */
bool ib_flush_reconnect(struct ib_end *end);

/* ---- send.c, receive.c */
ncclResult_t ib_send(struct ib_end *end, const struct ib_place places[IB_PLACES], int tag, void **request);
void ib_send_completed(struct ib_end *end, uint64_t number);
ncclResult_t ib_send_reconnect(struct ib_end *end);
ncclResult_t ib_receive_reconnect(struct ib_end *end);
ncclResult_t ib_receive_reannounce(struct ib_end *end);
void ib_send_linger(struct ib_end *end);
ncclResult_t ib_receive(struct ib_end *end, uint32_t count, void *const *data, const size_t *bytes,
                        const int *tags, void *const *registrations, void **request);
ncclResult_t ib_receive_split(struct ib_end *end, const struct ib_place places[IB_PLACES], size_t whole_bytes,
                              void **request);
ncclResult_t ib_receive_completed(struct ib_end *end, uint64_t number, uint32_t immediate);

#endif
