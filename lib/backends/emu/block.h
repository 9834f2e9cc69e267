/* block.h: the emulator's structs of ranks, connections, kernels and lanes, shared by its files. */
#ifndef TUTTI_BACKENDS_EMU_BLOCK_H
#define TUTTI_BACKENDS_EMU_BLOCK_H

#include "backends/backend.h"
#include "backends/emu/arena.h"
#include "backends/emu/cudart/stream.h"
#include "backends/emu/world_impl.h"
#include "base/map.h"
#include "base/os.h"
#include "protocol/run.h"
#include "trace/recorder.h"

/* The number of streams that one launch may join. */
#define LAUNCH_STREAMS_MAX 64

/* The checks' own counters of a connection, in steps; see check.h. */
struct emu_shadow {
  uint64_t writing, written, announced, reading, read, freed;
  bool write_open, read_open;    /* more schedule steps will use the last slot that was begun */
  uint64_t held[FIFO_SLOTS_MAX]; /* by slot: elements written to it, if a chunk is one slice */
};

/* The state of the other end, in another process, in the memory that it maps: the owner reads it before it
 * frees the memory. */
struct emu_guest {
  struct os_process process; /* realm and born are 0 until it has mapped the memory */
  uint32_t came, left;       /* atomic; left: it no longer accesses the memory */
};

/* Both ends of a connection in one block of memory. */
struct emu_fifo {
  struct fifo_sender sender;
  struct fifo_receiver receiver;
  struct emu_guest guest;
  struct emu_conn *sender_conn, *receiver_conn; /* each end's own: they may live in two processes */
};

/* Where a connection's memory lies. WITHIN: both ends are in this process. EXPORTED: here, and the sender is
 * in another process. IMPORTED: in the receiver's process, and the sender is here. */
enum emu_conn_place { EMU_CONN_WITHIN, EMU_CONN_EXPORTED, EMU_CONN_IMPORTED };

/* One connection of two ranks, shared by both ends; the second end that closes frees it. */
struct emu_conn {
  struct emu_fifo *fifo; /* aligned to a cache line within fifo_memory */
  void *fifo_memory;
  enum emu_conn_place place;
  void *peer_memory;   /* IMPORTED: the mapping that contains it, ... */
  size_t peer_bytes;   /* ... of which this connection holds one reference */
  uint64_t peer_shift; /* IMPORTED: added to an address of the receiver's it gives one of this process */
  uint8_t *buffer[SLOTS_COUNT]; /* by enum work_slots */
  uint32_t slots, step_bytes[PROTO_COUNT];
  void *read_memory; /* EXPORTED: the mapping that contains the slots at the sender, if it reads there */
  size_t read_bytes;
  struct emu_guest *read_guest; /* what this process says of itself there */
  uint32_t sender_rank, receiver_rank, channel_index, conn_index;
  uint32_t reference_count;
  size_t block_bytes;         /* memory after the FIFO that PXN proxies share; 0: no PXN proxy */
  bool invited;               /* EXPORTED: the other process has its handle */
  struct emu_conn *next_kept; /* EXPORTED: see conn_kept.c */
  uint64_t kept_until_ns;
  bool net;                         /* only one end is here: a proxy acts for the other, behind a network */
  bool pooled;                      /* net: its slots come from the rank's sets of slots */
  struct device_net_direct *direct; /* net: lanes may send without a copy; else NULL */
  uint64_t comm_id;
  struct emu_lane *send_lane, *recv_lane; /* the lanes at the ends, while a kernel uses the connection */
  struct emu_shadow shadow;
};

static inline bool emu_conn_is_remote(const struct emu_conn *conn) { return conn->place != EMU_CONN_WITHIN; }

/* The slots that a work uses on the connection: only within a host may they be the sender's. */
static inline uint8_t emu_conn_slots(const struct emu_conn *conn, const struct work *work) {
  return conn->net || conn->block_bytes > 0 ? work->proto : work_slots(work);
}

/* Whether a bound link uses the slots at the sender. */
static inline bool emu_conn_reads(const struct emu_conn *conn, const struct link *link) {
  return link->buffer != NULL && link->buffer == conn->buffer[SLOTS_AT_SENDER];
}

/* A rank of another process, as conn_share.c knows it. */
struct emu_peer {
  struct share_ticket ticket;
  void *memory; /* its arena */
};

/* Scratch memory for the steps of lists; a rank's newest block is the largest. */
struct emu_scratch {
  struct emu_scratch *next;
  void *memory;
  size_t bytes;
};

#define COMM_LAUNCHES_KEPT 16

struct device_comm {
  struct device_comm_config config;
  struct recorder_live live; /* the recorder's tables of kernels and waiting lanes */
  char name[64];
  struct emu_owner *owner;
  int abort_flag;          /* atomic; read by lanes */
  bool left;               /* its program has destroyed or aborted it; no call uses it any more */
  bool closed;             /* the communicator is destroyed; kernels held by graphs remain */
  uint32_t cores;          /* number of cores that the process may use */
  ncclResult_t error;      /* atomic */
  bool error_traced;       /* the trace has the error that will stop its kernels */
  uint64_t launches, turn; /* kernels enqueued and ended, in this order; turn: atomic */
  uint64_t ended;          /* kernels that have ended and left their streams */
  uint32_t kernel_count;   /* kernels that exist: queued, running, or held by a graph ... */
  uint32_t captured_count; /* ... and those of them that were captured */
  /* Kind of memory of the slots of network connections: of receivers, of senders. */
  enum pointer_kind net_memory[2];
  uint64_t memory_bytes;
  bool reaches_out; /* has connections that may lead out of the process */
  bool has_remote;  /* has connections that it shares with other processes */
  uint64_t asked;   /* atomic; number of requests to its blocks to report their waits (stall.c) */
  struct map conns; /* its ends of connections, by backend_conn_key() */
  struct map peers; /* struct emu_peer, by the number of its shared block */
  struct map slots; /* sets of slots of pooled connections, by backend_slots_key() */
  struct map sent;  /* struct emu_conn that has only the slots which ranks of other processes read here, by
                       backend_conn_key() */
  struct race_rank *race;
  uint32_t *order_slots; /* by rank: its process's number in the order of events (order.h); NULL: none */
  bool ordered;          /* it has joined that order */
  uint64_t trace_id;     /* the communicator's number, or in an order one that is equal in every run */
  bool pinned;           /* others may map the arena with this ticket */
  struct share_ticket ticket;
  uint64_t arena_base;
  struct emu_scratch *scratch;
  struct emu_launch *kept[COMM_LAUNCHES_KEPT]; /* launches of plans that are used repeatedly */
  uint32_t kept_next;                          /* the entry to replace next */
  uint64_t *signals; /* by rank: how many of its signals have come; atomic; NULL before the first (rma.c) */
  struct emu_signals *signals_there; /* by rank: those of other processes' ranks; NULL before the first */
  uint32_t rma_count, rma_aimed; /* one-sided calls of the rank, and of others for it, that have not ended */
  struct device_comm *next;
};

/* The counters of a rank of another process, as this one maps them, and the arena that they lie in. */
struct emu_signals {
  uint64_t *signals;           /* NULL: not imported */
  uint64_t base, bytes, shift; /* of the arena in its process; added to an address there it gives one here */
};

/* Its memory, once the communicator is closed and no kernel of it is left. */
void emu_comm_free(struct device_comm *comm);

static inline bool emu_comm_is_crowded(const struct device_comm *comm) {
  return comm->config.rank_count > comm->cores;
}

struct emu_lane {
  struct emu_actor actor;
  uint32_t actions;        /* result of lane_enabled(), until one of them is taken */
  uint8_t lane_index, lag; /* lag: percent of slices that are moved late */
  uint64_t trace_key;
  uint64_t since; /* of its last event: the event's number (guarded), monotonic ns (threads) */
  struct emu_block *block;
  struct prim prim;
  bool frozen;             /* guarded mode: stopped by an injected fault (fault_injection.h) */
  bool bound;              /* guarded mode: has its connections, and has not ended */
  bool remote;             /* linked to another process: no event here shows that it can continue */
  struct device_wait said; /* threads mode: what it waited for at the last request (stall.c); locked */
  bool waited;             /* it did wait at that time */
  bool keeps_step; /* threads mode, LL: the next run of the same work begins at the step after this one */
  struct emu_conn *recv_conn[STEP_LINKS_MAX], *send_conn[STEP_LINKS_MAX];
  struct lane lane;
};

/* One rank on one channel. A rank's launches run one after another, so a launch needs only one set of blocks.
 */
struct emu_block {
  struct emu_kernel_run *run;                   /* the run that uses the block now */
  uint32_t first_batch, batch_index, batch_end; /* in the plan; batch_index: atomic in threads mode */
  uint32_t lane_count, lanes_live;
  uint64_t progress; /* atomic; threads mode */
  struct emu_lane *lanes;
  /* threads mode */
  uint32_t bound_batch;             /* the batch whose connections the lanes hold, + 1; 0: none */
  bool given, done;                 /* it runs on a thread of its own; it has ended */
  bool shown;                       /* the recorder has rows of its waiting lanes */
  uint32_t idle_looks;              /* polls without progress since the last event */
  uint64_t reported, reported_turn; /* the last request that its lanes have answered, and in which run ... */
  uint32_t reported_batch;          /* ... and batch; locked, except for reads by its own thread */
};

/* The plan's arrays, blocks and lanes follow the struct in the same allocation. */
struct emu_launch {
  struct emu_kernel kernel;
  struct device_comm *comm;
  struct plan plan;        /* a copy, with the buffers of the next run */
  uint64_t first_sequence; /* of the next run; plan.works are numbered from it */
  struct launch_hook hook; /* of the next run if the launch is kept, else of all runs; all 0: none */
  uint32_t block_count;
  bool shares;   /* threads mode: so much work that each block gets a thread */
  bool brief;    /* threads mode: so little work that it runs with the lock held */
  bool whole;    /* brief, and in one batch */
  bool kept;     /* kept for further launches of the same plan */
  bool captured; /* launched by graphs */
  struct emu_block *blocks;
  struct emu_kernel_run *idle; /* runs that have ended, for reuse */
  struct race_use *uses;       /* kernel.uses */
  uint32_t use_capacity;
};

struct emu_kernel_run {
  struct emu_launch *launch;
  uint64_t turn; /* among the rank's launches */
  uint64_t first_sequence;
  struct plan_buffers *buffers; /* by work */
  struct launch_hook hook;      /* the run's own, if the launch is kept */
  bool started, over, listed;
  int error;
  uint32_t blocks_live; /* atomic in threads mode */
  void (*ended)(void *argument, int error);
  void *ended_argument;
  struct emu_kernel_run *next; /* of emu_runs, or of the idle ones */
};

/* conn.c */
struct emu_conn *emu_conn_find(struct device_comm *comm, uint32_t peer, uint32_t channel_index,
                               uint32_t conn_index, bool sends);
ncclResult_t emu_conn_open(struct device_comm *sender, struct device_comm *receiver, uint32_t channel_index,
                           uint32_t conn_index, uint8_t slots);
/* Makes the connection of an end whose other end lies behind a network. */
ncclResult_t emu_conn_open_net(struct device_comm *comm, const struct device_conn_name *name,
                               struct emu_conn **made);
void emu_conn_close_all(struct device_comm *comm);
struct emu_conn *emu_conn_new(const struct plan_limits *limits, uint32_t sender_rank, uint32_t receiver_rank,
                              uint32_t channel_index, uint32_t conn_index);
/* Sets the counters and tags of a new connection, and the lines of a protocol's new slots
 * (first_step.h). */
void emu_conn_begin(const struct emu_conn *conn, const struct plan_limits *limits);
void emu_conn_begin_slots(const struct emu_conn *conn, const struct plan_limits *limits, uint8_t slots);
size_t emu_conn_buffer_bytes(const struct emu_conn *conn, uint8_t slots);
size_t emu_conn_buffer_shift(const struct emu_conn *conn, uint8_t slots);
ncclResult_t emu_conn_no_memory(const struct device_comm *owner, size_t bytes);

/* conn_share.c: the members of struct device_ops for ranks of other processes. */
ncclResult_t emu_comm_handle(struct device_comm *comm, struct device_comm_handle *handle);
ncclResult_t emu_comm_reach(struct device_comm *comm, uint32_t peer, const struct device_comm_handle *handle,
                            bool *reach);
ncclResult_t emu_comm_order_prepare(struct device_comm *comm, const struct device_comm_handle *const *handles,
                                    uint32_t rank_count);
void emu_comm_order_join(struct device_comm *comm, const struct device_comm_handle *const *handles,
                         uint32_t rank_count);
/* Tells other processes which of them this one's communicators reach. Locked. */
void emu_comm_order_share(void);
void emu_comm_order_hold(int more);
void emu_comm_order_met(uint64_t name);
bool emu_conn_both_ends(void);
/* Whether a rank of another process still has to read slots here. Locked. */
bool emu_conn_unread(struct device_comm *comm);
ncclResult_t emu_conn_export(struct device_comm *comm, const struct device_conn_name *name,
                             struct device_conn_handle *handle);
ncclResult_t emu_conn_import(struct device_comm *comm, const struct device_conn_name *name,
                             const struct device_conn_handle *handle);
ncclResult_t emu_pxn_make(struct device_comm *comm, uint32_t sender, const struct device_conn_name *name,
                          size_t block_bytes, struct device_pxn *pxn, struct device_conn_handle *handle);
void emu_pxn_drop(struct device_net_conn *conn);
ncclResult_t emu_pxn_end(struct device_comm *sender, const struct device_conn_name *name, size_t block_bytes,
                         struct device_pxn *pxn);
/* Closes this rank's end of a shared connection, and frees it now or later. `failed`: the communicator has
 * failed, so no more data will be transferred. */
void emu_conn_unshare(struct emu_conn *conn, bool failed);
/* Unmaps the arenas of other processes, and allows others no longer to map this one's. */
void emu_comm_unshare(struct device_comm *comm);

/* conn_kept.c: keeps a closed connection whose memory a sender of another process may still use. */
void emu_conn_keep(struct emu_conn *conn, bool failed);
/* Frees the connection and its memory. */
void emu_conn_free_exported(struct emu_conn *conn);

/* net_end.c */
bool emu_net_may_zero_copy(void);
bool emu_lane_is_direct(const struct emu_lane *emu, const struct plan *plan, const struct work *work);
/* The network still reads data that the lane sends without a copy. */
bool emu_lane_is_held(const struct emu_lane *emu);
ncclResult_t emu_conn_net(struct device_comm *comm, const struct device_conn_name *name,
                          struct device_net_end *end);
uint64_t emu_net_load(struct device_net_conn *conn, const uint64_t *counter);
void emu_net_store(struct device_net_conn *conn, uint64_t *counter, uint64_t value);
void emu_net_announce(struct device_net_conn *conn, uint32_t slot, uint32_t tag, uint64_t bytes);
bool emu_net_ll(bool pxn);
bool emu_net_take(struct device_net_conn *conn, const struct device_net_step *step, void *data);
void emu_net_put(struct device_net_conn *conn, const struct device_net_step *step, const void *data);
uint32_t emu_net_rdma(struct device_comm *comm);
void emu_net_memory(struct device_comm *comm, enum pointer_kind receives, enum pointer_kind sends);
ncclResult_t emu_memory_dmabuf(void *memory, size_t bytes, int *descriptor, uint64_t *offset);
ncclResult_t emu_net_slots(struct device_comm *comm, uint32_t channel_index, uint32_t place, bool sends,
                           uint8_t **buffer);
void emu_net_slots_free(struct device_comm *comm);

/* service.c */
ncclResult_t emu_service_add(const struct device_service *service, void **handle);
void emu_service_wake(void *handle);
void emu_service_remove(void *handle);
/* Wakes the services after kernels have changed something that they poll. Locked. */
void emu_services_poke(void);
/* Lists what the services wait for. Locked. */
void emu_services_report(char *out, size_t out_bytes);

/* report.c */
const char *emu_func_name(uint8_t func);
/* One sentence: rank or switch, channel, operation, step, and what the lane waits for, from whom, since when.
 */
void emu_report_lane(char *out, size_t out_bytes, struct emu_lane *lane);
/* A connection's end as text: the rank, or the switch that the rank hosts. Returns `out`. */
#define EMU_END_BYTES 64
const char *emu_report_end(char out[EMU_END_BYTES], const struct emu_conn *conn, bool sends);
/* threads mode: adds to the report of emu_lanes_report_stuck(), as a lane is stopped by its own thread. */
void emu_report_stopped(struct emu_lane *lane);
void emu_report_flush(void);
/* "reproduce: TUTTI_SEED=... TUTTI_EMU=... program arguments" */
void emu_report_reproduce(char *out, size_t out_bytes);

/* ll.c: lane_open() and lane_advance() for lanes of LL. */
void emu_ll_open(struct emu_lane *emu, const struct work *work, const struct plan_buffers *buffers);
bool emu_ll_advance(struct emu_lane *emu);
/* simple.c: lane_advance() for lanes of Simple. */
bool emu_simple_advance(struct emu_lane *emu, uint64_t slices);

/* block.c */
extern struct device_comm *emu_comms; /* every open rank */
/* Every started launch; in threads mode only those that had to wait. */
extern struct emu_kernel_run *emu_runs;
struct emu_kernel *emu_launch_create(struct device_comm *comm, const struct plan *plan, bool captured);
/* The same, but reuses the kept launch of a repeated plan (plan.serial), with the new buffers. */
struct emu_kernel *emu_launch_find(struct device_comm *comm, const struct plan *plan);
/* A launch that is still kept, without a new reference; else NULL. */
struct emu_kernel *emu_launch_find_cached(struct device_comm *comm,
                                          const struct device_cached_launch *cached);
/* Says what the launch's next run, or all runs of a captured one, access. False if memory is out. */
bool emu_launch_uses(struct emu_kernel *kernel, const struct plan_call *calls, uint32_t call_count);
void emu_launch_drop_kept(struct device_comm *comm);
/* Ends the whole communicator: every rank of it in this process gets the error, every waiting lane ends.
 * Locked. */
void emu_comm_fail(uint64_t comm_id, ncclResult_t error);
/* Ends the kernels of one rank at once. Locked. */
void emu_comm_abort_rank(struct device_comm *comm);
/* Stores of this lane have become visible: wakes its peers, and reports a broken invariant. Locked. */
void emu_lane_stores_seen(struct emu_lane *lane);
/* The first thing that the lane waits for (lane_wait_first). */
void emu_lane_wait(struct emu_lane *lane, struct lane_wait *wait);
/* The lane waits for the receiver at one of its send links. */
static inline bool emu_wait_sends(const struct lane_wait *wait) {
  return wait->kind == WAIT_SLOT || wait->kind == WAIT_OFFER || wait->kind == WAIT_READ;
}
/* Number of the operation to which the lane's current step belongs. */
uint64_t emu_lane_sequence(const struct emu_lane *lane);

/* stall.c */
void emu_comm_stall(struct device_comm *comm, bool asks, struct device_stall *stall);
/* Reports what the block's lanes wait for; called by the thread that advances the block. */
void emu_block_report(struct emu_block *block);
/* There was a request since the block's last report. */
static inline bool emu_block_is_asked(const struct emu_block *block, const struct device_comm *comm) {
  return block->reported != __atomic_load_n(&comm->asked, __ATOMIC_RELAXED);
}

/* pool.c: runs a block on a thread of its own (threads mode); false if no thread could be started. */
bool emu_pool_run(void (*function)(void *argument), void *argument);

/* options.c */
struct emu_meter {
  uint64_t trace_hash, steps_done; /* of all events since the start */
  bool tracing;                    /* a trace file is open */
};
extern struct emu_meter emu_meter;
/* The value of TUTTI_EMU that gives the current settings, for example "mode=guarded,slots=2". */
void emu_options_text(char *out, size_t out_bytes);
void emu_trace_write(uint8_t kind, uint8_t action, const struct device_comm *comm, uint32_t channel,
                     uint32_t lane, uint32_t chunk, uint64_t value);

/* The part of a trace record that is the same for all events of one actor, as one number. */
static inline uint64_t emu_trace_key(uint8_t kind, const struct device_comm *comm, uint32_t channel,
                                     uint32_t lane) {
  return ((uint64_t)kind << 56 | (uint64_t)(channel & 0xff) << 40 | (uint64_t)(lane & 0xff) << 32 |
          comm->config.rank) ^
         comm->trace_id * UINT64_C(0x9e3779b97f4a7c15);
}

/* Adds an event to the hash, also if no trace is written. guarded mode only. */
static inline void emu_trace_hash(uint64_t key, uint8_t action, uint64_t value) {
  const uint64_t mixed =
      (emu_meter.trace_hash ^ key ^ (uint64_t)action << 48 ^ value * UINT64_C(0x9e3779b97f4a7c15)) *
      UINT64_C(0x9fb21c651e98df25);
  emu_meter.trace_hash = mixed ^ (mixed >> 29);
}

static inline void emu_trace(uint8_t kind, uint8_t action, const struct device_comm *comm, uint32_t channel,
                             uint32_t lane, uint32_t chunk, uint64_t value) {
  emu_trace_hash(emu_trace_key(kind, comm, channel, lane), action, value);
  if (emu_meter.tracing) emu_trace_write(kind, action, comm, channel, lane, chunk, value);
}

#endif
