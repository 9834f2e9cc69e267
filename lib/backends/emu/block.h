/* block.h: what the emulator's own files share about ranks, connections, kernels and lanes. */
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

/* Streams that one launch may join. */
#define LAUNCH_STREAMS_MAX 64

/* The checks' own account of a connection, steps; see check.h. */
struct emu_shadow {
  uint64_t writing, written, announced, reading, read, freed;
  bool write_open, read_open;    /* more schedule steps will use the last slot that was begun */
  uint64_t held[FIFO_SLOTS_MAX]; /* by slot: elements that were written to it, where a chunk is one slice */
};

/* What a sender of another process leaves in the receiver's memory, for whoever wants to free it. */
struct emu_guest {
  struct os_process process; /* realm and born are 0 until it has come */
  uint32_t came, left;       /* atomic; left: it touches nothing any more */
};

/* Both ends of a connection: one memory is near to all. */
struct emu_fifo {
  struct fifo_sender sender;
  struct fifo_receiver receiver;
  struct emu_guest guest;
  struct emu_conn *sender_conn, *receiver_conn; /* each end's own: they may live in two processes */
};

/* Where a connection's memory lies: with both ends in this process; here, for a sender of another process;
 * with the receiver, of another process. */
enum emu_conn_place { EMU_CONN_WITHIN, EMU_CONN_EXPORTED, EMU_CONN_IMPORTED };

/* One connection of two ranks; shared by both ends, freed by the second that closes. */
struct emu_conn {
  struct emu_fifo *fifo; /* at a line's border within fifo_memory */
  void *fifo_memory;
  enum emu_conn_place place;
  void *peer_memory;   /* IMPORTED: the mapping that all of it lies in, ... */
  size_t peer_bytes;   /* ... counted once by this connection */
  uint64_t peer_shift; /* IMPORTED: what makes an address of ours of one of the receiver's */
  uint8_t *buffer[PROTO_COUNT];
  uint32_t slots, step_bytes[PROTO_COUNT];
  uint32_t sender_rank, receiver_rank, channel_index, conn_index;
  uint32_t reference_count;
  size_t block_bytes;         /* shared by proxies, behind the FIFO; 0: no PXN proxy */
  bool invited;               /* EXPORTED: the sender's process has been told where it lies */
  struct emu_conn *next_kept; /* EXPORTED: see conn_kept.c */
  uint64_t kept_until_ns;
  bool net;                         /* one end alone: the other lies behind a network, and a proxy plays it */
  bool pooled;                      /* net: its slots are sets of the rank's */
  struct device_net_direct *direct; /* where net, and lanes may send without a copy */
  uint64_t comm_id;
  struct emu_lane *send_lane, *recv_lane; /* the lanes at the ends, while a kernel uses the connection */
  struct emu_shadow shadow;
};

static inline bool emu_conn_is_remote(const struct emu_conn *conn) { return conn->place != EMU_CONN_WITHIN; }

/* A rank of another process, as conn_share.c knows it. */
struct emu_peer {
  struct share_ticket ticket;
  void *memory; /* its arena */
};

/* Memory for steps of lists; the newest block of a rank is the largest. */
struct emu_scratch {
  struct emu_scratch *next;
  void *memory;
  size_t bytes;
};

#define COMM_LAUNCHES_KEPT 16

struct device_comm {
  struct device_comm_config config;
  struct recorder_live live; /* where kernels, and lanes that wait, are noted */
  char name[64];
  struct emu_owner *owner;
  int abort_flag;               /* atomic; read by lanes */
  bool closed;                  /* the user's handle is gone; kernels held by graphs remain */
  uint32_t cores;               /* that the process may use */
  ncclResult_t error;           /* atomic */
  uint64_t launches, turn;      /* kernels enqueued and ended: they run in this order; turn: atomic */
  uint64_t ended;               /* of those that ended, gone from their streams too */
  uint32_t kernel_count;        /* kernels that exist: queued, running, or held by a graph */
  enum pointer_kind net_memory; /* of slots of connections over networks */
  uint64_t memory_bytes;
  bool reaches_out; /* has connections that may lead out of the process */
  bool has_remote;  /* has connections that it shares with other processes */
  uint64_t asked;   /* atomic; how often its blocks were asked what they wait for (stall.c) */
  struct map conns; /* its ends of connections, by backend_conn_key() */
  struct map peers; /* struct emu_peer, by number of the block that they share */
  struct map slots; /* sets of slots of pooled connections, by backend_slots_key() */
  bool pinned;      /* others may map the arena, under ... */
  struct share_ticket ticket;
  uint64_t arena_base;
  struct emu_scratch *scratch;
  struct emu_launch *kept[COMM_LAUNCHES_KEPT]; /* of plans that come again */
  uint32_t kept_next;                          /* whose place the next one takes */
  struct device_comm *next;
};

static inline bool emu_comm_is_crowded(const struct device_comm *comm) {
  return comm->config.rank_count > comm->cores;
}

struct emu_lane {
  struct emu_actor actor;
  uint32_t actions;        /* of lane_enabled(), until one is taken */
  uint8_t lane_index, lag; /* lag: percent of slices that are moved late */
  uint64_t trace_key;
  uint64_t since; /* its last event: number of the event (guarded), monotonic ns (threads) */
  struct emu_block *block;
  struct prim prim;
  bool frozen;             /* guarded mode: it makes no progress any more (fault_injection.h) */
  bool bound;              /* guarded mode: has its connections, and has not ended */
  bool remote;             /* is linked to another process: nobody here knows when it can go on */
  struct device_wait said; /* threads mode: what it waited for when the block was asked; locked */
  bool waited;             /* for somebody, then */
  bool keeps_step; /* threads mode, LL: the next run of the same work begins with the step of this one */
  struct emu_conn *recv_conn[STEP_LINKS_MAX], *send_conn[STEP_LINKS_MAX];
  struct lane lane;
};

/* One rank on one channel. A rank's launches run one after another, so one launch needs its blocks once. */
struct emu_block {
  struct emu_kernel_run *run;                   /* that has them now */
  uint32_t first_batch, batch_index, batch_end; /* in the plan; batch_index: atomic in threads mode */
  uint32_t lane_count, lanes_live;
  uint64_t progress; /* atomic; threads mode */
  struct emu_lane *lanes;
  /* threads mode */
  uint32_t bound_batch;             /* + 1: whose connections the lanes hold; 0: none */
  bool given, done;                 /* to a thread of its own; has ended */
  bool shown;                       /* the recorder has where its lanes wait */
  uint32_t idle_looks;              /* that found nothing to do, since the last event */
  uint64_t reported, reported_turn; /* the last asking that its lanes have answered, in this run ... */
  uint32_t reported_batch;          /* ... and this batch; locked, but for its own thread's reads */
};

/* Everything behind the struct lies in the same allocation. */
struct emu_launch {
  struct emu_kernel kernel;
  struct device_comm *comm;
  struct plan plan;        /* a copy; its buffers are those of the next run */
  uint64_t first_sequence; /* of the next run: plan.works count from it */
  struct launch_hook hook; /* of the next run where the launch is kept, else of all; all 0: none */
  uint32_t block_count;
  bool shares;   /* threads mode: so much work that blocks are worth threads of their own */
  bool brief;    /* threads mode: so little work that it is done with the lock held */
  bool whole;    /* brief, and in one batch */
  bool kept;     /* to be launched again */
  bool captured; /* graphs launch it */
  struct emu_block *blocks;
  struct emu_kernel_run *idle; /* runs that are over, to be used again */
};

struct emu_kernel_run {
  struct emu_launch *launch;
  uint64_t turn; /* among the rank's launches */
  uint64_t first_sequence;
  struct plan_buffers *buffers; /* by work */
  struct launch_hook hook;      /* the run's own where the launch is kept */
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
                           uint32_t conn_index, uint8_t proto);
/* The connection of an end whose other end is no rank of this process; NULL with the error in *result. */
ncclResult_t emu_conn_open_net(struct device_comm *comm, const struct device_conn_name *name,
                               struct emu_conn **made);
void emu_conn_close_all(struct device_comm *comm);
struct emu_conn *emu_conn_new(const struct plan_limits *limits, uint32_t sender_rank, uint32_t receiver_rank,
                              uint32_t channel_index, uint32_t conn_index);
size_t emu_conn_buffer_bytes(const struct emu_conn *conn, uint8_t proto);
size_t emu_conn_buffer_shift(const struct emu_conn *conn, uint8_t proto);
ncclResult_t emu_conn_no_memory(const struct device_comm *receiver, size_t bytes);

/* conn_share.c: the members of struct device_ops for ranks of other processes. */
ncclResult_t emu_comm_handle(struct device_comm *comm, struct device_comm_handle *handle);
ncclResult_t emu_comm_reach(struct device_comm *comm, uint32_t peer, const struct device_comm_handle *handle,
                            bool *reach);
bool emu_conn_both_ends(void);
ncclResult_t emu_conn_export(struct device_comm *receiver, const struct device_conn_name *name,
                             struct device_conn_handle *handle);
ncclResult_t emu_conn_import(struct device_comm *sender, const struct device_conn_name *name,
                             const struct device_conn_handle *handle);
ncclResult_t emu_pxn_make(struct device_comm *comm, uint32_t sender, const struct device_conn_name *name,
                          size_t block_bytes, struct device_pxn *pxn, struct device_conn_handle *handle);
void emu_pxn_drop(struct device_net_conn *conn);
ncclResult_t emu_pxn_end(struct device_comm *sender, const struct device_conn_name *name, size_t block_bytes,
                         struct device_pxn *pxn);
/* Closes this rank's end of one of these connections, and frees it now or later. `failed`: nothing will be
 * transferred any more, whatever the sender thinks. */
void emu_conn_unshare(struct emu_conn *conn, bool failed);
/* The rank maps nothing of others any more, and need not be mapped. */
void emu_comm_unshare(struct device_comm *comm);

/* conn_kept.c: takes over a connection whose memory a sender of another process may still use. */
void emu_conn_keep(struct emu_conn *conn, bool failed);
/* The connection's memory and itself. */
void emu_conn_free_exported(struct emu_conn *conn);

/* net_end.c */
bool emu_net_may_zero_copy(void);
bool emu_lane_is_direct(const struct emu_lane *emu, const struct plan *plan, const struct work *work);
/* Some of what the lane sends without a copy is still being read. */
bool emu_lane_is_held(const struct emu_lane *emu);
ncclResult_t emu_conn_net(struct device_comm *comm, const struct device_conn_name *name,
                          struct device_net_end *end);
uint64_t emu_net_load(struct device_net_conn *conn, const uint64_t *counter);
void emu_net_store(struct device_net_conn *conn, uint64_t *counter, uint64_t value);
void emu_net_announce(struct device_net_conn *conn, uint32_t slot, uint32_t tag, uint64_t bytes);
bool emu_net_ll(bool pxn);
bool emu_net_take(struct device_net_conn *conn, const struct device_net_step *step, void *data);
void emu_net_put(struct device_net_conn *conn, const struct device_net_step *step, const void *data);
bool emu_net_memory(struct device_comm *comm, enum pointer_kind kind);
ncclResult_t emu_memory_dmabuf(void *memory, size_t bytes, int *descriptor, uint64_t *offset);
ncclResult_t emu_net_slots(struct device_comm *comm, uint32_t channel_index, uint32_t place, bool sends,
                           uint8_t **buffer);
void emu_net_slots_free(struct device_comm *comm);

/* service.c */
ncclResult_t emu_service_add(const struct device_service *service, void **handle);
void emu_service_wake(void *handle);
void emu_service_remove(void *handle);
/* Kernels have changed something that services look at. Locked. */
void emu_services_poke(void);
/* What they wait for, one after the other. Locked. */
void emu_services_report(char *out, size_t out_bytes);

/* report.c */
const char *emu_func_name(uint8_t func);
/* One sentence: rank or switch, channel, operation, step, and what the lane waits for, from whom, since when.
 */
void emu_report_lane(char *out, size_t out_bytes, struct emu_lane *lane);
/* A connection's end: a rank's number, or the switch that the rank hosts, in words. Returns `out`. */
#define EMU_END_BYTES 64
const char *emu_report_end(char out[EMU_END_BYTES], const struct emu_conn *conn, bool sends);
/* Logs what every waiting lane waits for and how to run this again. threads mode: starts the report that
 * emu_report_stopped() completes as each lane is stopped by its own thread. */
void emu_report_stuck(void);
void emu_report_stopped(struct emu_lane *lane);
void emu_report_flush(void);
/* "reproduce: TUTTI_SEED=... TUTTI_EMU=... program arguments" */
void emu_report_reproduce(char *out, size_t out_bytes);

/* ll.c: lane_open() and lane_advance() of lanes whose work speaks LL. */
void emu_ll_open(struct emu_lane *emu, const struct work *work, const struct plan_buffers *buffers);
bool emu_ll_advance(struct emu_lane *emu);
/* simple.c: lane_advance() of lanes whose work speaks Simple. */
bool emu_simple_advance(struct emu_lane *emu, uint64_t slices);

/* block.c */
extern struct device_comm *emu_comms; /* every open rank */
/* Every started launch; in threads mode, those of them that had to wait. */
extern struct emu_kernel_run *emu_runs;
struct emu_kernel *emu_launch_create(struct device_comm *comm, const struct plan *plan, bool captured);
/* The same, but a plan that comes again (plan.serial) is taken from where it was kept. Its next run has these
 * buffers. */
struct emu_kernel *emu_launch_find(struct device_comm *comm, const struct plan *plan);
/* One that is still kept, else NULL; no reference comes with it. */
struct emu_kernel *emu_launch_find_cached(struct device_comm *comm,
                                          const struct device_cached_launch *cached);
void emu_launch_drop_kept(struct device_comm *comm);
/* Ends the whole communicator: every rank of it in this process gets the error, every waiting lane ends.
 * Locked. */
void emu_comm_fail(uint64_t comm_id, ncclResult_t error);
/* Ends the kernels of one rank where they stand. Locked. */
void emu_comm_abort_rank(struct device_comm *comm);
/* Stores of this lane have become visible: wakes its peers, and tells what was found broken by them. Locked.
 */
void emu_lane_stores_seen(struct emu_lane *lane);
/* The first thing that the lane waits for (lane_wait_first). */
void emu_lane_wait(struct emu_lane *lane, struct lane_wait *wait);
/* Number of the operation that the lane's current step is of. */
uint64_t emu_lane_sequence(const struct emu_lane *lane);

/* stall.c */
void emu_comm_stall(struct device_comm *comm, bool asks, struct device_stall *stall);
/* On the thread that advances the block: notes what its lanes wait for. */
void emu_block_report(struct emu_block *block);
/* Somebody has asked since the block last told. */
static inline bool emu_block_is_asked(const struct emu_block *block, const struct device_comm *comm) {
  return block->reported != __atomic_load_n(&comm->asked, __ATOMIC_RELAXED);
}

/* pool.c: a thread for every block that must run beside others (threads mode). False when none could be
 * started. */
bool emu_pool_run(void (*function)(void *argument), void *argument);
/* In the child of a fork: it has none of the threads. */

/* options.c */
struct emu_meter {
  uint64_t trace_hash, steps_done; /* of the world since it started */
  bool tracing;                    /* a trace file is open */
};
extern struct emu_meter emu_meter;
/* "mode=guarded,slots=2": the value of TUTTI_EMU that gives the settings of now. */
void emu_options_text(char *out, size_t out_bytes);
void emu_trace_write(uint8_t kind, uint8_t action, const struct device_comm *comm, uint32_t channel,
                     uint32_t lane, uint32_t chunk, uint64_t value);

/* What of a record stays the same for all events of one actor, as one number. */
static inline uint64_t emu_trace_key(uint8_t kind, const struct device_comm *comm, uint32_t channel,
                                     uint32_t lane) {
  return ((uint64_t)kind << 56 | (uint64_t)(channel & 0xff) << 40 | (uint64_t)(lane & 0xff) << 32 |
          comm->config.rank) ^
         comm->config.comm_id * UINT64_C(0x9e3779b97f4a7c15);
}

/* Every event enters the hash, whether a trace is written or not. guarded mode only. */
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
