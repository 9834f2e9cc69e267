/* proxy_impl.h: what the parts of the proxy share: connections and what is posted on them (proxy_conn.c),
 * operations (proxy_ops.c), the engine (proxy.c). The engine's lock guards all of it. It is the last lock
 * taken: a thread that holds it calls into the backend only to read and write counters. */
#ifndef TUTTI_CORE_PROXY_IMPL_H
#define TUTTI_CORE_PROXY_IMPL_H

#include "base/log.h"
#include "base/map.h"
#include "base/os.h"
#include "core/proxy/proxy.h"
#include "schedule/transfer.h"

#define PROXY_SLICES_MAX 8 /* a connection's maximum number of slots; a slice takes at least one */
#define PROXY_TEXT_BYTES 512

/* Follows each slice in its message. `message` numbers the messages of the connection, which detects loss and
 * repetition independently of the ranks' calls. Both hosts are little-endian. */
struct proxy_trailer {
  uint32_t magic, bytes;
  uint64_t message, step, agreed_bytes;
};
#define PROXY_MAGIC 0x74757869u

struct proxy_ops;
struct proxy_posting;

/* Messages from launching threads to the engine, whose lock is held during calls of the network: launching
 * threads must not wait for it. The next thread that takes the lock handles all entries in order. */
enum proxy_mailbox_kind { PROXY_MAILBOX_MADE, PROXY_MAILBOX_POSTED, PROXY_MAILBOX_FREED };
struct proxy_mailbox_entry {
  struct proxy_mailbox_entry *next;
  enum proxy_mailbox_kind kind;
  struct proxy_ops *ops;
  struct proxy_posting *posting; /* of PROXY_MAILBOX_POSTED */
};

/* A set of slots that messages share: those with the same place in a batch of one channel and direction.
 * Tasks use it one after the other, in the order of the kernels, so each task finds it free at its turn. */
struct proxy_set {
  uint8_t *buffer;
  uint32_t place;
  struct proxy_task *first, *last; /* tasks that use it or wait for it */
};

/* What a kernel transfers for one work over one connection, posted. */
struct proxy_task {
  struct proxy_conn *conn;
  const struct work *work;
  uint32_t link_index;
  struct proxy_set *set; /* NULL: the connection has its own slots */
  bool begun, iterated;  /* begun: its first step is known; iterated: all steps are posted */
  uint32_t outstanding;  /* slices posted and not done */
  struct transfer_iter iter;
  struct proxy_posting *posting;
  struct proxy_task *next;     /* on its connection */
  struct proxy_task *set_next; /* of its set */
};

/* One launch of a plan's kernel. */
struct proxy_posting {
  struct proxy_mailbox_entry entry;
  struct proxy_ops *ops;
  uint32_t live; /* tasks that are not done */
  struct proxy_posting *next;
  struct proxy_task tasks[];
};

struct proxy_ops {
  struct proxy_comm *comm; /* NULL once the communicator is closed */
  struct proxy_ops *previous, *next;
  struct proxy_mailbox_entry made_entry, freed_entry;
  bool freed;
  uint32_t task_count, posted; /* posted: number of postings that are not done */
  struct work *works;
  struct plan_buffers *buffers; /* of the works; NULL: data arrives in slots only */
  struct plan_limits limits;
  struct proxy_posting *own;   /* in the same allocation */
  struct proxy_posting *spare; /* atomic; a list */
  struct proxy_task tasks[];   /* templates for postings */
};

/* A slice in flight. */
struct proxy_flight {
  struct transfer slice;
  struct proxy_task *task;
  void *request;
  void *direct;  /* user memory that the request reads or writes; NULL: the slot */
  uint64_t line; /* of an LL slice: its number on the connection */
  bool staged;   /* of a sender's LL slice: its data is in the staging buffer */
};

/* Progress of a connection, in steps since it was made. A sender does not use received and flushed. */
struct proxy_counters {
  uint64_t posted, received, flushed, transmitted, done;
};

/* LL state of a connection, allocated when a plan first uses LL on it: a staging place per slice for the
 * message that is converted from or to LL lines. */
struct proxy_ll {
  uint8_t *stage; /* PROXY_SLICES_MAX places, place_bytes apart */
  size_t place_bytes;
  void *registration;
  bool registered;
  uint64_t next; /* number of the next LL slice */
};

struct pxn;
struct pxn_block;

/* User memory: registered with a communicator, or with the network of a connection. */
struct proxy_memory {
  struct proxy_memory *next;
  uintptr_t begin;
  size_t bytes;
  void *registration; /* NULL: the network rejected it */
};

struct proxy_conn {
  struct proxy_comm *comm;
  struct device_conn_name name;
  struct device_net_end end;
  uint32_t net_device;
  struct net_handle handle; /* receiver: its listener's; sender: a copy, which changes while it connects */
  struct net_handle listens_at;
  void *listener, *connection;
  void *registrations[PLAN_BATCH_WORKS_MAX]; /* of sets, by place; for own slots, the first entry */
  uint32_t registered;                       /* set of valid entries */
  bool apart;                                /* a slice's data and its trailer are two messages */
  struct proxy_trailer *trailers; /* by flight, if slots are device memory, or `apart`; NULL: trailers are in
                                     the slots */
  void *trailers_registration;
  struct proxy_ll *ll;         /* NULL: no plan has used LL yet */
  struct proxy_memory *memory; /* registrations of user memory */
  enum net_parts parts;
  bool direct;                     /* network and backend can bypass the slots */
  struct proxy_task *first, *last; /* tasks with steps left to post */
  bool has_next;                   /* next_slice, the next to be posted, is valid */
  struct transfer next_slice;
  uint64_t next_step; /* first step of the next task on the connection */
  struct proxy_counters steps;
  uint64_t n_posted, n_received, n_flushed, n_transmitted, n_done; /* the same in slices: messages */
  struct proxy_flight flights[PROXY_SLICES_MAX];
  struct proxy_state looked;    /* state at the last examination (proxy_status.c) */
  struct record_proxy *record;  /* where it records its progress; NULL: not recorded */
  struct recorder_pace pace;    /* how long it waits for the network */
  struct pxn *pxn;              /* PXN proxy that sends for a rank of another process (proxy_pxn.h) */
  struct pxn_block *pxn_client; /* of a sender whose slices another process sends, through ... */
  uint32_t over;                /* ... this rank */
  uint64_t looked_ns;           /* last check of that process */
  enum net_look idle_look;      /* when the network needs progress while idle (proxy_progress_idle.c) */
  struct proxy_conn *next_pxn_client;
  struct proxy_conn *next; /* of the communicator */
  struct proxy_conn *next_busy;
  bool listed; /* in the busy list */
};

/* All connections that have work, in the order of posting; may include connections that have none left. */
struct proxy_busy {
  struct proxy_conn *first, *last;
};

struct proxy_comm {
  struct proxy_comm_call call;
  char name[64];
  const struct net_ops *net;
  uint32_t net_device_count;
  os_mutex names;   /* guards both maps, which the engine does not use; taken after the engine's lock */
  struct map conns; /* by backend_conn_key() */
  struct map sets;  /* struct proxy_set, by backend_slots_key() */
  struct proxy_conn *first;
  struct proxy_busy busy;
  struct proxy_ops *ops;
  struct proxy_memory *announced;
  struct proxy_bytes bytes;
  uint32_t rdma;           /* DEVICE_RDMA_* bits, if slots lie in device memory */
  bool flushes;            /* what is received there needs a flush */
  bool apart;              /* its receivers take a slice's data and its trailer as two messages */
  uint64_t live;           /* tasks that are not done */
  uint32_t connecting;     /* connections that are not established yet */
  uint64_t requests;       /* in flight on the network */
  enum net_look idle_look; /* the earliest of its connections' */
  uint64_t idle_looked_ns;
  bool failed, reported, reporting, idle_reported;
  ncclResult_t code;
  char text[PROXY_TEXT_BYTES];
  struct proxy_comm *next;
};

/* proxy.c. proxy_lock() handles all mailbox entries that were put before. */
void proxy_lock(void);
void proxy_unlock(void);
void proxy_mailbox_put(struct proxy_mailbox_entry *entry);
/* A communicator has work: wakes the engine's thread, under the lock, or the emulator, without it. */
void proxy_attend(void);
bool proxy_turn(struct proxy_comm *const *comm, bool last);
void proxy_wake(void);
void proxy_conn_list(struct proxy_conn *conn); /* adds it to the busy list */
struct proxy_comm *proxy_comms(void);          /* the first of the process; under the lock */
bool proxy_in_world(void);                     /* the engine is an actor of a deterministic emulator */
struct proxy_conn *proxy_conn_find(struct proxy_comm *comm, const struct device_conn_name *name);

/* proxy_conn.c. What the network is told of the connection. */
struct net_peer proxy_conn_peer(const struct proxy_conn *conn);
/* Sets the step at which the connection starts. */
void proxy_conn_begin(struct proxy_conn *conn, uint64_t step);
/* False if nothing can move now, or the communicator has failed. */
bool proxy_conn_advance(struct proxy_conn *conn);
/* Posts ahead what a sender has slots for, so that its kernel does not wait for the engine's next turn. */
void proxy_conn_lead(struct proxy_conn *conn);
/* The kernel has ended: zero-copy sends and receives no longer access the user's memory. */
void proxy_conn_settle(struct proxy_conn *conn);
/* One line that says what the connection waits for; "" if nothing. */
void proxy_conn_report(const struct proxy_conn *conn, char *out, size_t out_bytes);
/* Releases its network resources. Not locked; the connection can no longer be found. */
void proxy_conn_close(const struct net_ops *net, struct proxy_conn *conn);
/* Keeps the first failure of a communicator; its connections stop moving. */
void proxy_comm_fail(struct proxy_comm *comm, ncclResult_t code, const char *format, ...) LOG_FORMAT(3, 4);

/* True if a sender's kernel has filled the slice. */
bool proxy_conn_is_filled(const struct proxy_conn *conn, const struct proxy_flight *flight);

/* True if the connection can go on as soon as its kernel stores a counter or lines. */
bool proxy_conn_waits_for_kernel(const struct proxy_conn *conn);

/* proxy_ll.c. The connection uses LL from now on; `end` is its LL end. Idempotent. */
ncclResult_t proxy_ll_open(struct proxy_conn *conn, const struct device_net_end *end);
/* Releases the registration and, once the network no longer uses it, the memory. */
void proxy_ll_withdraw(const struct net_ops *net, struct proxy_conn *conn);
void proxy_ll_close(struct proxy_conn *conn);
ncclResult_t proxy_ll_register(struct proxy_conn *conn);
/* Address of a slice's message. */
uint8_t *proxy_ll_place(const struct proxy_conn *conn, const struct proxy_flight *flight);
/* False while lines of the slice are missing; else its data is in its staging place. */
bool proxy_ll_take(struct proxy_conn *conn, struct proxy_flight *flight);
bool proxy_ll_is_filled(const struct proxy_conn *conn, const struct proxy_flight *flight);
void proxy_ll_put(const struct proxy_conn *conn, const struct proxy_flight *flight);

/* Lets the network make progress on an idle connection. */
void proxy_conn_progress_idle(struct proxy_conn *conn);

/* proxy_device.c. Decides if slots are device memory, and sets comm->apart. */
void proxy_device_choose(struct proxy_comm *comm);
/* Allocates a page for the trailers of a connection whose slots are device memory, or which is `apart`. */
ncclResult_t proxy_device_open(struct proxy_conn *conn);
void proxy_device_close(const struct net_ops *net, struct proxy_conn *conn);
/* Registers the trailers' page, and the slots where they lie. */
ncclResult_t proxy_device_register(struct proxy_conn *conn, void *slots, size_t bytes, void **registration);

/* proxy_progress_idle.c. Progresses idle connections whose networks need it; returns when to do it again. */
#define PROXY_PROGRESS_IDLE_US 100000u
enum net_look proxy_comm_progress_idle(struct proxy_comm *comm);

/* proxy_watch.c. Sleeps at most `most_us`, until the wake, one of the descriptors, or a kernel's store on a
 * connection that waits for it. */
struct proxy_watch {
  int wake;
  const int *descriptors;
  uint32_t descriptor_count;
  uint64_t most_us;
  uint64_t waiting; /* proxy_watch_count() before the last turn, which moved nothing, ... */
  uint64_t cpu_ns;  /* ... and os_thread_cpu_ns() then */
};
uint64_t proxy_watch_count(void); /* connections that wait for kernels */
/* *cost_ns, 0 before the first call, is what a nap takes of a core. */
void proxy_watch(const struct proxy_watch *watch, uint64_t *cost_ns);
uint64_t proxy_watch_nap_us(uint64_t cost_ns, uint64_t most_us);
/* Of the process, for tests: looks at what kernels store, and those that found something. */
struct proxy_watch_stats {
  uint64_t looks, found;
};
struct proxy_watch_stats proxy_watch_stats(void);

/* proxy_memory.c. NULL if this memory is not registered with the communicator, or the network rejects it. */
void *proxy_conn_registration(struct proxy_conn *conn, const void *data, size_t bytes);
/* Updates whether lanes send without a copy. */
void proxy_conn_update_zero_copy(const struct proxy_conn *conn);
void proxy_conn_forget_memory(const struct net_ops *net, struct proxy_conn *conn);
void proxy_comm_forget_memory(struct proxy_comm *comm);

/* proxy_ops.c */
void proxy_ops_read(const struct proxy_mailbox_entry *entry);
void proxy_task_done(struct proxy_task *task);
void proxy_ops_forget(struct proxy_comm *comm);

#endif
