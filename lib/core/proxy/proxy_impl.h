/* proxy_impl.h: what the parts of the proxy share: connections and what is posted on them (proxy_conn.c),
 * operations (proxy_ops.c), the engine that turns them (proxy.c). All of it under the engine's lock, which is
 * taken last: nobody who holds it calls into the backend for more than its counters. */
#ifndef TUTTI_CORE_PROXY_IMPL_H
#define TUTTI_CORE_PROXY_IMPL_H

#include "base/log.h"
#include "base/map.h"
#include "base/os.h"
#include "core/proxy/proxy.h"
#include "core/proxy/proxy_iter.h"

#define PROXY_SLICES_MAX 8 /* a slice takes at least one of at most so many slots */
#define PROXY_TEXT_BYTES 512

/* What follows each slice in its message. `message` counts those of the connection: loss and repetition show
 * whatever the ranks have called. Little-endian hosts on both sides, as everywhere between ranks. */
struct proxy_trailer {
  uint32_t magic, bytes;
  uint64_t message, step, agreed_bytes;
};
#define PROXY_MAGIC 0x74757869u

struct proxy_ops;
struct proxy_posting;

/* What whoever launches has to say to the engine, whose lock is held over calls of the network: nobody waits
 * for that. Who gets the lock takes all of it, in the order in which it came. */
enum proxy_mailbox_kind { PROXY_MAILBOX_MADE, PROXY_MAILBOX_POSTED, PROXY_MAILBOX_FREED };
struct proxy_mailbox_entry {
  struct proxy_mailbox_entry *next;
  enum proxy_mailbox_kind kind;
  struct proxy_ops *ops;
  struct proxy_posting *posting; /* that was posted */
};

/* A set of slots that messages share: those of one place in a batch of one channel, all of a direction. Tasks
 * have it one after the other, in the order of the kernels, so each finds it free when its turn comes. */
struct proxy_set {
  uint8_t *buffer;
  uint32_t place;
  struct proxy_task *first, *last; /* that have it, or wait for it */
};

/* One work's share of one connection, posted: what a kernel will move there. */
struct proxy_task {
  struct proxy_conn *conn;
  const struct work *work;
  uint32_t link_index;
  struct proxy_set *set; /* NULL: the connection has slots of its own */
  bool begun, iterated;  /* its steps are known from here on; all of them are posted */
  uint32_t outstanding;  /* slices posted and not done */
  struct proxy_iter iter;
  struct proxy_posting *posting;
  struct proxy_task *next;     /* on its connection */
  struct proxy_task *set_next; /* of its set */
};

/* One start of a plan's kernel. */
struct proxy_posting {
  struct proxy_mailbox_entry entry;
  struct proxy_ops *ops;
  uint32_t live; /* tasks that are not done */
  struct proxy_posting *next;
  struct proxy_task tasks[];
};

struct proxy_ops {
  struct proxy_comm *comm; /* NULL when that was closed */
  struct proxy_ops *previous, *next;
  struct proxy_mailbox_entry made_entry, freed_entry;
  bool freed;
  uint32_t task_count, posted; /* posted: postings that are not done */
  struct work *works;
  struct plan_buffers *buffers; /* of the works; NULL: data arrives in slots alone */
  struct plan_limits limits;
  struct proxy_posting *own;   /* in the same piece of memory */
  struct proxy_posting *spare; /* atomic; a list */
  struct proxy_task tasks[];   /* patterns of what is posted */
};

/* A slice under way. */
struct proxy_flight {
  struct proxy_slice slice;
  struct proxy_task *task;
  void *request;
  void *direct;  /* the user's memory that the request reads or writes; NULL: the slot */
  uint64_t line; /* of an LL slice: its number among the connection's */
  bool staged;   /* a sender's LL slice: its data lies on the stage */
};

/* How far a connection is, in steps since it was made. A sender skips received and flushed. */
struct proxy_counters {
  uint64_t posted, received, flushed, transmitted, done;
};

/* What a connection keeps once a plan speaks LL on it: a place a slice for the message that the lines come
 * to, or go from. */
struct proxy_ll {
  uint8_t *stage; /* PROXY_SLICES_MAX places, place_bytes apart */
  size_t place_bytes;
  void *registration;
  bool registered;
  uint64_t next; /* number of the next LL slice */
};

struct pxn;
struct pxn_block;

/* Users' memory: announced to a communicator, or registered with the network of a connection. */
struct proxy_memory {
  struct proxy_memory *next;
  uintptr_t begin;
  size_t bytes;
  void *registration; /* NULL: the network does not take it */
};

struct proxy_conn {
  struct proxy_comm *comm;
  struct device_conn_name name;
  struct device_net_end end;
  uint32_t net_device;
  struct net_handle handle; /* the receiver's, where it listens; a sender's copy changes as it connects */
  struct net_handle listens_at;
  void *listener, *connection;
  void *registrations[PLAN_BATCH_WORKS_MAX]; /* of sets, by place; of its own slots, the first */
  uint32_t registered;                       /* which there are */
  struct proxy_trailer *trailers; /* by flight, where slots are device memory; NULL: they lie in the slots */
  void *trailers_registration;
  struct proxy_ll *ll;         /* NULL: no plan has spoken LL yet */
  struct proxy_memory *memory; /* registrations of users' memory */
  enum net_parts parts;
  bool direct;                     /* network and backend can spare it the slots */
  struct proxy_task *first, *last; /* not iterated to their ends yet */
  bool has_next;                   /* the slice to be posted next is known */
  struct proxy_slice next_slice;
  uint64_t next_step; /* where the next task finds the connection */
  struct proxy_counters steps;
  uint64_t n_posted, n_received, n_flushed, n_transmitted, n_done; /* the same in slices: messages */
  struct proxy_flight flights[PROXY_SLICES_MAX];
  struct proxy_state looked;    /* proxy_status.c */
  struct record_proxy *record;  /* where it notes how far it is; NULL: nobody asks */
  struct record_pace *pace;     /* the same of how long it waits for the network */
  struct pxn *pxn;              /* sends for a rank of another process, whose slices it takes (proxy_pxn.h) */
  struct pxn_block *pxn_client; /* passes on what another process sends, through ... */
  uint32_t over;                /* ... this rank */
  uint64_t looked_ns;           /* at that process */
  enum net_look idle_look;      /* when the network wants to look at it (proxy_progress_idle.c) */
  struct proxy_conn *next_pxn_client;
  struct proxy_conn *next; /* of the communicator */
  struct proxy_conn *next_busy;
  bool listed; /* among the busy ones */
};

/* All connections that have something to do, in the order in which it was posted, and perhaps some that have
 * nothing left. */
struct proxy_busy {
  struct proxy_conn *first, *last;
};

struct proxy_comm {
  struct proxy_comm_call call;
  char name[64];
  const struct net_ops *net;
  uint32_t net_device_count;
  os_mutex names;   /* of both maps; the engine turns without it. Behind the engine's lock */
  struct map conns; /* by backend_conn_key() */
  struct map sets;  /* struct proxy_set, by backend_slots_key() */
  struct proxy_conn *first;
  struct proxy_busy busy;
  struct proxy_ops *ops;
  struct proxy_memory *announced;
  struct proxy_bytes bytes;
  uint64_t live;           /* tasks that are not done */
  uint32_t connecting;     /* connections that are not made */
  uint64_t requests;       /* under way on the network */
  enum net_look idle_look; /* the soonest of its connections' */
  uint64_t idle_looked_ns;
  bool failed, reported, reporting, idle_reported;
  ncclResult_t code;
  char text[PROXY_TEXT_BYTES];
  struct proxy_comm *next;
};

/* proxy.c. Who has the lock has handled all mailbox entries that came before. */
void proxy_lock(void);
void proxy_unlock(void);
void proxy_mailbox_put(struct proxy_mailbox_entry *entry);
/* A communicator has something to do: tells the thread, under the lock, or the world, without it. */
void proxy_attend(void);
bool proxy_turn(struct proxy_comm *const *comm, bool last);
void proxy_wake(void);
void proxy_conn_list(struct proxy_conn *conn); /* it has something to do */
struct proxy_comm *proxy_comms(void);          /* the first of the process; under the lock */
bool proxy_in_world(void);                     /* the engine is an actor of a deterministic world */
struct proxy_conn *proxy_conn_find(struct proxy_comm *comm, const struct device_conn_name *name);

/* proxy_conn.c. Where the connection's steps begin. */
void proxy_conn_begin(struct proxy_conn *conn, uint64_t step);
/* False when nothing can move now, or the communicator has failed. */
bool proxy_conn_advance(struct proxy_conn *conn);
/* Posts what a sender has slots for, so that its kernel need not wait for the engine's next turn. */
void proxy_conn_lead(struct proxy_conn *conn);
/* The kernel has ended: nothing reads what it sends without a copy, or writes to its outputs, any more. */
void proxy_conn_settle(struct proxy_conn *conn);
/* One line of what it waits for; "" when for nothing. */
void proxy_conn_report(const struct proxy_conn *conn, char *out, size_t out_bytes);
/* Gives back what it has of the network. Not locked, and nobody finds the connection any more. */
void proxy_conn_close(const struct net_ops *net, struct proxy_conn *conn);
/* Notes the first failure of a communicator; nothing of it moves from then on. */
void proxy_comm_fail(struct proxy_comm *comm, ncclResult_t code, const char *format, ...) LOG_FORMAT(3, 4);

/* A sender's kernel has filled the slice. */
bool proxy_conn_is_filled(const struct proxy_conn *conn, const struct proxy_flight *flight);

/* proxy_ll.c. Lines from now on: `end` is the connection's for LL. Idempotent. */
ncclResult_t proxy_ll_open(struct proxy_conn *conn, const struct device_net_end *end);
/* Gives the registration back; and, when the network touches it no more, the memory. */
void proxy_ll_withdraw(const struct net_ops *net, struct proxy_conn *conn);
void proxy_ll_close(struct proxy_conn *conn);
ncclResult_t proxy_ll_register(struct proxy_conn *conn);
/* Where the message of a slice lies. */
uint8_t *proxy_ll_place(const struct proxy_conn *conn, const struct proxy_flight *flight);
/* False while lines of it are missing; else its data is in its place. */
bool proxy_ll_take(struct proxy_conn *conn, struct proxy_flight *flight);
bool proxy_ll_is_filled(const struct proxy_conn *conn, const struct proxy_flight *flight);
void proxy_ll_put(const struct proxy_conn *conn, const struct proxy_flight *flight);

/* Lets the network look at it. */
void proxy_conn_progress_idle(struct proxy_conn *conn);

/* proxy_device.c. Whether slots are to be device memory. */
void proxy_device_choose(struct proxy_comm *comm);
/* A page for the trailers of a connection whose slots are. */
ncclResult_t proxy_device_open(struct proxy_conn *conn);
void proxy_device_close(const struct net_ops *net, struct proxy_conn *conn);
ncclResult_t proxy_device_register(struct proxy_conn *conn, void *slots, size_t bytes, void **registration);

/* proxy_progress_idle.c. Looks at those connections whose networks want it now; when the next look is due. */
#define PROXY_PROGRESS_IDLE_US 100000u
enum net_look proxy_comm_progress_idle(struct proxy_comm *comm);

/* proxy_memory.c. NULL where this memory was not announced, or cannot be registered. */
void *proxy_conn_registration(struct proxy_conn *conn, const void *data, size_t bytes);
/* Whether lanes are to send without a copy. */
void proxy_conn_update_zero_copy(const struct proxy_conn *conn);
void proxy_conn_forget_memory(const struct net_ops *net, struct proxy_conn *conn);
void proxy_comm_forget_memory(struct proxy_comm *comm);

/* proxy_ops.c */
void proxy_ops_read(const struct proxy_mailbox_entry *entry);
void proxy_task_done(struct proxy_task *task);
void proxy_ops_forget(struct proxy_comm *comm);

#endif
