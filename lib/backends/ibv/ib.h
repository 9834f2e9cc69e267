/* ib.h: shared by the files of the ibv net: devices, an end of a connection, its queue pairs, requests and
 * memory. A connection is used by one thread at a time, and connections share only the devices, which do not
 * change. So the only lock here is the one around a device's events (events.c). */
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
  IB_PORTS_MAX = 8,     /* ports that are merged into one device */
  IB_QPS_MAX = 128,     /* of a connection */
  IB_GROUP_MAX = 8,     /* receives in one call */
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
  bool dead;                          /* the device has reported a fatal error; atomic */
  uint8_t port_down[UINT8_MAX + 1];   /* by port number; atomic */
  uint64_t port_up_ns[UINT8_MAX + 1]; /* when the port came up again; 0 if it was never down; atomic */
};

struct ib_port {
  struct ib_context *of;
  uint8_t number;
  struct ibv_port_attr attributes;
  bool ethernet;
  int gid_index;
  union ibv_gid gid;
  uint32_t speed_mbps;
  char why[GID_WHY_BYTES]; /* why this GID was chosen */
};

struct ib_device {
  char name[64]; /* "mlx5_0:1", "mlx5_0:1+mlx5_1:1" */
  char path[256];
  uint32_t port_count;
  struct ib_port ports[IB_PORTS_MAX];
};

ncclResult_t ib_devices(uint32_t *count);
ncclResult_t ib_properties(uint32_t device, struct net_properties *properties);
/* NULL, with a warning, if there is no such device. */
const struct ib_device *ib_device_of(uint32_t device);
/* Closes all devices; ib_devices() then searches again. */
ncclResult_t ib_finish(void);
/* True if the value of NCCL_IB_HCA allows this port: prefixes of names separated by commas, each optionally
 * with a port after a colon; a leading ^ excludes them, = matches whole names. */
bool ib_list_allows(const char *list, const char *name, uint8_t port);

/* ---- what the ends exchange */

struct ib_port_info {
  uint8_t gid[16];
  uint16_t lid;
  uint8_t mtu, ethernet;
  uint32_t key;           /* the remote key of the end's struct ib_memory for this port */
  struct ibv_ece options; /* vendor options of its queue pairs */
};
struct ib_conn_info {
  uint64_t magic;
  uint32_t qp_count, port_count;
  uint64_t memory; /* address of its struct ib_memory */
  char name[64];   /* of its device */
  struct ib_port_info ports[IB_PORTS_MAX];
  uint32_t qps[IB_QPS_MAX];    /* queue pair k is connected to the other end's k */
  uint8_t outlets[IB_QPS_MAX]; /* the port of each queue pair */
  uint64_t bad;                /* bit k: nothing passes between the first ports of queue pair k */
};

/* An entry (clear to send): a posted receive, which the receiver writes into the sender's memory. Valid once
 * `number`, in its last word, is that of the call to irecv, because words become visible in order. The
 * members that every entry needs come last, so that only these are written: 24 bytes if the receiver has one
 * port. */
struct ib_clear {
  uint32_t unused[3];
  uint32_t keys[IB_PORTS_MAX]; /* remote keys of the buffer by port, in reverse: IB_CLEAR_KEY */
  uint32_t bytes;
  uint64_t address;
  int32_t tag;
  uint32_t number; /* of the call, and in the upper bits its number of receives: IB_CLEAR_NUMBER */
};
static_assert(sizeof(struct ib_clear) == 64, "a cache line, which no write splits");
#define IB_CLEAR_KEY(port) (IB_PORTS_MAX - 1 - (port))
/* A call has 1 to IB_GROUP_MAX receives, or IB_SPLIT: one receive in two places. Zeroed memory is not an
 * entry. */
#define IB_SPLIT (IB_GROUP_MAX + 1u)
#define IB_CLEAR_NUMBER(call, receives) ((uint32_t)((call)&0xfffffff) | (uint32_t)(receives) << 28)

/* Inline data of a work request, which the device need not fetch (NCCL_IB_USE_INLINE). */
#define IB_INLINE_BYTES sizeof(struct ib_clear)

/* A receive in two places (IB_SPLIT) has two entries. Of a message of the expected size, the last `tag` bytes
 * go to the second entry's buffer and the rest to the first; a message of another size goes to the second as
 * a whole. If the tag is IB_TAIL, any size is expected: the message's end fills the second buffer, and what
 * comes before goes to the first. */
#define IB_TAIL -1
#define IB_PLACES 2

/* The memory of an end that the other end writes, and the source of writes to the other end. */
struct ib_memory {
  struct ib_clear clear[IB_SLOTS]
                       [IB_GROUP_MAX];    /* at the sender, written by the receiver from its own copy */
  uint32_t sizes[IB_SLOTS][IB_GROUP_MAX]; /* of grouped messages; at the receiver, written by the sender */
  uint64_t flushed;                       /* target of the reads of a flush; never used */
};
/* Set in an immediate value and in sizes: the message was longer than its buffer and was not sent. */
#define IB_TOO_LONG 0x80000000u

/* ---- wire.c: the socket beside a connection */

/* WIRE_RECONNECT is followed by a struct ib_reconnect. */
enum { WIRE_GO = 1, WIRE_BYE = 2, WIRE_RECONNECT, WIRE_LINKED };
struct ib_note {
  uint32_t magic, kind;
  uint64_t number; /* bye: number of completed receives; reconnect: its generation */
};
struct ib_wire {
  int fd;
  size_t sent, received; /* bytes of an info or of a struct ib_reconnect */
  size_t note_received;
  struct ib_note note;
};
struct ib_handle {
  uint64_t magic;
  struct sock_address address;
  uint64_t number;   /* random; the handshake's key is made from it and the communicator's key */
  uint32_t qp_count; /* the number that the receiver wants */
  uint32_t port_count;
};
uint64_t ib_handle_key(const struct ib_handle *handle, uint64_t comm_key);
/* Begins to connect and returns the socket; negative: errno. */
int ib_wire_dial(const struct sock_address *to);
/* 1: connected; 0: not yet; negative: errno. */
int ib_wire_dialed(int fd);
/* 1: all bytes are moved; 0: not yet; -1: the other end has closed, or errno has the cause. */
int ib_wire_send(struct ib_wire *wire, const void *data, size_t bytes);
int ib_wire_receive(struct ib_wire *wire, void *data, size_t bytes);
void ib_wire_note_send(struct ib_wire *wire, uint32_t kind, uint64_t number);
/* 1: a note is in `wire->note`; 0: none now; -1: closed. */
int ib_wire_note_receive(struct ib_wire *wire);

/* ---- conn.c: an end of a connection */

enum ib_kind { IB_SEND = 1, IB_RECEIVE, IB_LISTENER };
enum ib_phase {
  IB_DIALING,
  IB_HANDSHAKE,
  IB_INFO_OUT,
  IB_INFO_IN,
  IB_DRAIN, /* from here to IB_LINK: a reconnect (reconnect.c) */
  IB_RECONNECT_OUT,
  IB_RECONNECT_IN,
  IB_LINK,
  IB_PATH,
  IB_GO,
  IB_READY
};

/* The upper bits of a work request's id; the lower ones are a message's number and the count of posted
 * requests. */
enum ib_work { IB_WORK_DATA = 1, IB_WORK_CLEAR, IB_WORK_RECEIVE, IB_WORK_PATH, IB_WORK_FLUSH };

struct ib_qp {
  struct ibv_qp *qp;
  uint32_t outlet;
  uint32_t posted, retired; /* work requests of its send queue */
  uint32_t receives;        /* posted receives */
  bool path_good;
  uint32_t heard; /* the last value of `retired`, and since when it has it: silence.c */
  uint64_t received_ns, asked_ns;
  bool probed; /* since then */
};

/* One of the device's ports, as this connection uses it. */
struct ib_outlet {
  struct ibv_pd *pd;
  struct ibv_cq *cq;
  struct ibv_mr *memory;
};

/* Local memory of a message, or of a part of it. */
struct ib_place {
  const void *data;
  size_t bytes;
  struct ib_region *region;
};

struct ib_end;
struct ib_request {
  struct ib_end *end;
  bool used, done;
  uint32_t count; /* number of receives; 1 for a send, 0 for a flush */
  uint64_t slot;  /* number of the call to irecv */
  size_t bytes[IB_GROUP_MAX];
  struct ib_place places[IB_PLACES]; /* of a send; the second may be empty */
  uint32_t immediate;
  uint32_t reads; /* of a flush: reads under way */
};

/* A call to irecv, as the sender answers it. */
struct ib_answer {
  uint64_t number;
  uint32_t count, claimed; /* receives of the call; those that have a message */
  bool split;
  uint32_t refused;     /* a message was too long: the value sent to the receiver */
  uint32_t outstanding; /* queue pairs that have not completed it */
  struct ib_request *requests[IB_GROUP_MAX];
};

/* What the ends exchange when they reconnect. */
struct ib_reconnect {
  uint64_t generation;
  uint64_t finished, begun, done; /* the receiver's state; done: bit k modulo IB_SLOTS if call k is done */
  uint64_t back;                  /* bits of the info's `bad` that are good again */
  bool knew;                      /* the other end's struct of this generation was known when this was made */
  struct ib_conn_info info;
};

struct ib_end {
  enum ib_kind kind; /* first, as in a listener */
  enum ib_phase phase;
  ncclResult_t failed;  /* sticky: after a failure every call returns it, without another message */
  ncclResult_t refused; /* isend's result after a message that was too long */
  uint32_t rank, peer;
  char comm_name[64];
  uint32_t traffic_class; /* as in struct net_peer */
  const struct ib_device *device;
  const struct verbs *verbs;
  struct sock_address address; /* of the other process */
  struct ib_wire wire;
  struct handshake_client client;
  struct ib_handle handle;
  struct secret secret;
  uint64_t comm_key, phase_ns, path_ns;
  struct ib_conn_info own, other;
  struct ib_memory *memory;
  struct ib_outlet outlets[IB_PORTS_MAX];
  struct ib_qp *qps;
  uint32_t qp_count, stripes; /* stripes: queue pairs that a message is spread over */
  uint32_t loop_count;        /* after those in qps: queue pairs to itself, one per port (flush.c) */
  size_t adaptive_bytes;      /* longer messages have a notification apart from their data */
  struct ib_retired *retired; /* queue pairs that are being destroyed (qp.c) */
  struct ib_region *regions;
  uint64_t begun;    /* receiver: calls to irecv; sender: calls that it has answered */
  uint64_t finished; /* receiver: all calls before this one are done */
  bool gone;         /* the other end has closed */
  bool said_bye;
  uint64_t bye;
  const struct ib_qp *flushed; /* a queue pair with a flushed completion, whose cause is not known yet */
  uint64_t flushed_id;
  uint32_t idle;
  int event;                             /* an asynchronous event that ends the connection; atomic */
  struct ib_reconnect reconnect, others; /* the last reconnect: sent and received */
  uint64_t tries;
  uint64_t linked_ns;   /* when the connection last became ready */
  uint32_t left;        /* bit i: port i was down, and its queue pairs use other ports */
  uint32_t unlinked;    /* the first queue pair that is not connected */
  uint32_t differences; /* successive rounds in which the ends chose different ports */
  bool was_ready;
  bool asked, heard; /* asked: the other end's struct comes next on the wire; heard: it is complete */
  struct ib_request requests[2 * NET_REQUESTS_MAX]; /* the second half is for flushes */
  struct ib_answer answers[IB_SLOTS];
};

ncclResult_t ib_listen(uint32_t device, const struct net_peer *peer, struct net_handle *handle, void **out);
ncclResult_t ib_accept(void *listener, void **connection);
ncclResult_t ib_listen_close(void *listener);
ncclResult_t ib_connect(uint32_t device, const struct net_peer *peer, struct net_handle *handle,
                        void **connection);
/* Makes progress on connecting or reconnecting, without blocking. */
ncclResult_t ib_end_step(struct ib_end *end);
ncclResult_t ib_end_close(struct ib_end *end);
/* The queue pair of this turn. */
static inline uint32_t ib_qp_of_turn(const struct ib_end *end, uint64_t turn) {
  return end->qp_count > 1 ? (uint32_t)(turn % end->qp_count) : 0; /* a division is slow */
}
static inline void ib_answer_begin(struct ib_answer *answer, uint64_t number, uint32_t count) {
  answer->number = number;
  answer->count = count;
  answer->claimed = answer->refused = answer->outstanding = 0;
  answer->split = false;
  for (uint32_t i = 0; i < count; i++) answer->requests[i] = NULL;
}
/* A free request of the first half, or of the second (`flush`); the caller fills it. NULL if all are in use.
 */
struct ib_request *ib_request_take(struct ib_end *end, bool flush);
/* Logs "<comm>: rank 0 sending to rank 1 at ADDRESS over DEVICE: <text>", and stores the code in `failed`. */
ncclResult_t ib_fail(struct ib_end *end, ncclResult_t code, const char *format, ...) LOG_FORMAT(3, 4);
/* ncclRemoteError once the other end has closed, with a message that says how many messages were done. */
ncclResult_t ib_gone(struct ib_end *end);
/* The other end has closed, or its process has ended: a sender completes the messages that it has received.
 */
ncclResult_t ib_closed(struct ib_end *end);

/* ---- qp.c: creating and connecting queue pairs */
ncclResult_t ib_qps_create(struct ib_end *end);
ncclResult_t ib_qps_connect(struct ib_end *end);
/* Makes the queue pairs that lead back to their own port, once. */
ncclResult_t ib_qps_loop(struct ib_end *end);
/* Stops the queue pairs to the other end: the device no longer reads or writes memory for them. */
void ib_qps_stop(struct ib_end *end);
/* Takes `count` queue pairs from `begin` on out of use; new ones may be made. A thread destroys them, because
 * a device may take a minute for it: Soft-RoCE waits for packets that a dead wire holds. */
void ib_qps_retire(struct ib_end *end, uint32_t begin, uint32_t count);
/* Destroys all, and waits until those taken out of use are destroyed, too. */
void ib_qps_destroy(struct ib_end *end);
uint64_t ib_work_id(enum ib_work work, uint64_t number, const struct ib_qp *qp);
bool ib_qp_has_space(const struct ib_qp *qp, uint32_t requests);
/* Posts a chain of `count` requests; the last one, or a later request, must be signalled. */
ncclResult_t ib_qp_post(struct ib_end *end, struct ib_qp *qp, struct ibv_send_wr *first, uint32_t count);
/* "queue pair 2 (17 to 18), mlx5_0:1 GID ... to GID ...". Returns `out`. */
#define IB_QP_TEXT_BYTES 256
const char *ib_qp_text(const struct ib_end *end, const struct ib_qp *qp, char out[IB_QP_TEXT_BYTES]);

ncclResult_t ib_conn_info_take(struct ib_end *end);
/* Makes progress on a connection that is, or was, ready. */
ncclResult_t ib_end_poll(struct ib_end *end);

/* ---- ports.c: assigns queue pairs to ports by what both ends know of them (struct ib_conn_info) */
void ib_ports_choose(struct ib_end *end);
/* The other end has chosen the same ports. */
bool ib_ports_agree(const struct ib_end *end);
/* Merges the bad ports of the other end's info, which has just arrived. */
void ib_ports_learn(struct ib_end *end);
/* Queue pairs do not use their first ports because of a port of this end. */
bool ib_ports_left(struct ib_end *end);
/* Queue pairs that may return to their first ports, as bits of the info's `bad`. */
uint64_t ib_ports_back(struct ib_end *end);

/* ---- reconnect.c: makes new queue pairs after a failure and resumes the connection */
/* The number of reconnects that the settings allow. */
uint64_t ib_reconnect_most(void);
/* True if another reconnect is allowed; counts it. `asked`: by the other end. */
bool ib_reconnect_may(struct ib_end *end, bool asked);
/* Begins a reconnect; false if it is not allowed. `bad`: bits of queue pairs that got no answer. */
bool ib_reconnect_begin(struct ib_end *end, uint64_t bad, bool asked);
/* Begins a reconnect to return to ports that are up again, if there are any. */
void ib_reconnect_back(struct ib_end *end);
ncclResult_t ib_reconnect_step(struct ib_end *end);
/* The other end has begun a reconnect: its struct ib_reconnect follows on the wire. */
ncclResult_t ib_reconnect_asked(struct ib_end *end);
/* All paths are good: resumes the messages under way. */
ncclResult_t ib_reconnect_resume(struct ib_end *end);

/* ---- path.c: tests every queue pair with a write without data */
ncclResult_t ib_path_step(struct ib_end *end);
ncclResult_t ib_path_write(struct ib_end *end, struct ib_qp *qp, uint32_t index);
/* Fails the connection because `qp` gets no answer. */
ncclResult_t ib_path_fail(struct ib_end *end, const struct ib_qp *qp);

/* ---- complete.c: completions */
ncclResult_t ib_poll(struct ib_end *end);
/* Checks an end that may have nothing under way. */
ncclResult_t ib_look(struct ib_end *end, enum net_look *wish);

/* ---- silence.c: queue pairs that complete nothing, not even with an error */
ncclResult_t ib_silence_look(struct ib_end *end);

/* ---- events.c: asynchronous events of devices */
void ib_events_look(struct ib_context *context);
/* The event that ends the connection, as text; NULL if none does. */
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
/* Registers by address if `dmabuf` is NULL. A failure leaves the connection usable. */
ncclResult_t ib_region_take(struct ib_end *end, const struct ib_dmabuf *dmabuf, void *data, size_t bytes,
                            enum net_memory kind, void **registration);
ncclResult_t ib_region_give(struct ib_end *end, void *registration);
int ib_device_trial(uint32_t index, void *data, size_t bytes, int descriptor, uint64_t offset); /* net.h */
void ib_regions_free(struct ib_end *end);

/* ---- flush.c: makes received data visible in device memory */
ncclResult_t ib_flush(struct ib_end *end, uint32_t count, void *const *data, const size_t *bytes,
                      void *const *registrations, void **request);
void ib_flush_completed(struct ib_end *end, uint64_t number);
/* Repeats the flushes under way over new queue pairs, without the other end; false if that failed. */
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
