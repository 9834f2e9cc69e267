/* backend.h: the host seam to devices (net.h is the one to networks). A backend is a table of functions;
 * core/ calls nothing else of a device. The table's size comes first, so that a core can use an older
 * backend: members beyond its size are taken from backend_fill()'s stubs, which return ncclInvalidUsage and
 * name the member. Call sites never test for NULL. Tracing and faults are decorators around a table. */
#ifndef TUTTI_BACKENDS_BACKEND_H
#define TUTTI_BACKENDS_BACKEND_H

#include "base/err.h"
#include "schedule/plan.h"

/* A stream as the caller's runtime names it: cudaStream_t. NULL, 1 and 2 are the default, legacy and
 * per-thread streams. */
typedef void *device_stream;

struct device_cached_launch;
struct recorder_live;
struct device_comm; /* one rank's device-side communicator: connections, abort flag, order of launches; owned
                       by the backend */

enum pointer_kind { POINTER_UNKNOWN, POINTER_HOST, POINTER_DEVICE, POINTER_MANAGED };

struct pointer_info {
  enum pointer_kind kind;
  uint32_t device_index; /* of DEVICE pointers */
  void *base;            /* start of the allocation, NULL when unknown */
  size_t bytes;          /* of the allocation, 0 when unknown */
};

struct device_info {
  char name[64];
  char bus_id[16];     /* "0000:18:00.0" */
  uint32_t capability; /* compute capability times ten: 90 */
  uint64_t memory_bytes;
};

/* What lies between two devices, the shortest first, by the names that the field has for it. */
enum device_path_type {
  PATH_LOC, /* the same device */
  PATH_NVL, /* NVLink, directly or through its switches */
  PATH_PIX, /* one PCIe switch */
  PATH_PXB, /* several PCIe switches, no host bridge */
  PATH_PHB, /* a host bridge, or two of one NUMA node */
  PATH_SYS  /* the link between NUMA nodes, or nothing known */
};

struct device_path_info {
  enum device_path_type type;
  const char *name;    /* "NVL"; lives for ever */
  uint32_t link_count; /* NVLinks in use between the two, 0 where they are not NVL or nobody tells */
  double gbps;         /* GB/s on the wire in one direction, 0 when unknown */
  bool peer_access;    /* device_reach() of the pair */
  bool ll128;          /* a warp's aligned store of 128 bytes arrives whole: LL128 may be used */
};

struct device_comm_config {
  uint64_t
      comm_id; /* equal on all ranks, differs between live communicators of the process, same on every run */
  uint32_t rank, rank_count, device_index;
  struct plan_limits limits;
  const char *name; /* for reports; copied */
  /* Where the backend notes what its kernels do (trace/recorder.h); copied. NULL: nobody asks. */
  const struct recorder_live *live;
};

/* ---- several processes ---- */

/* What a rank tells ranks of other processes about its memory: opaque; travels in the communicator's peer
 * info.
 */
#define DEVICE_COMM_HANDLE_BYTES 256
struct device_comm_handle {
  uint8_t bytes[DEVICE_COMM_HANDLE_BYTES];
};

/* One connection, as one of its ends names it. */
struct device_conn_name {
  uint32_t peer; /* rank at the other end */
  uint32_t channel_index, conn_index;
  uint8_t proto;
  bool sends; /* the end that names it is the sender */
};

/* How a sender of another process of this host maps a connection that its receiver has made: opaque. */
#define DEVICE_CONN_HANDLE_BYTES 256
struct device_conn_handle {
  uint8_t bytes[DEVICE_CONN_HANDLE_BYTES];
};

/* Users' memory that a rank shows to ranks of other processes of its host, as the owner names it: opaque. */
#define DEVICE_MEMORY_HANDLE_BYTES 128
struct device_memory_handle {
  uint8_t bytes[DEVICE_MEMORY_HANDLE_BYTES];
};

/* Where kernels run on the process's own threads, user memory is in a proxy's reach, and data need not pass
 * through the slots: a sender's lane may leave it where it lies (zero copy) instead of writing it to its
 * slot, and what a receiver's proxy has brought to where it belongs already, its lane need not copy. Slots
 * and counters go on as ever; what is said of a slot here is said before the tail that passes it. */
#define DEVICE_NET_SLOTS_MAX 8
#define DEVICE_NET_DIRECT_BYTES_MIN 8192u /* smaller slices always lie in their slots */
struct device_net_zero_copy {
  const void *data; /* NULL: it lies in the slot. Atomic, where the proxy holds it */
  size_t bytes;
};
struct device_net_direct {
  uint32_t zero_copy_send; /* atomic: the sender's proxy takes data without a copy. Until the kernel ends: see
                              launch_hook */
  uint32_t holds; /* atomic: a NIC reads it, so the lane does not end before all has been given back (NULL) */
  struct device_net_zero_copy zero_copy_sends[DEVICE_NET_SLOTS_MAX];
  void *zero_copy_receives[DEVICE_NET_SLOTS_MAX]; /* NULL: it lies in the slot */
};

/* The host's half of a connection over a network: kernels of this process at one end, a proxy at the other.
 * All of it can be read and written by the host. A proxy at the sender's side reads tail and slots and
 * writes head; one at the receiver's side writes announced, slots and tail and reads head. */
struct device_net_end {
  struct device_net_conn *conn; /* the backend's */
  uint64_t *head, *tail;
  uint8_t *buffer; /* slots * step_bytes */
  uint32_t slots, step_bytes;
  enum pointer_kind
      memory; /* where the slots lie: HOST, or DEVICE for a network that takes device pointers */
  struct device_net_direct *direct; /* NULL: everything passes through the slots */
  /* A message's connection has no slots of its own (`buffer` NULL): each of its operations has a set of the
   * rank's (net_slots). Its steps begin with number `slots`, and head is a sender's leave to fill what lies
   * before head + slots: the proxy gives it slice by slice, once the set is the operation's. */
  bool pooled;
};

/* A step of LL on a connection over a network: between a kernel and its proxy go lines, whose flags say what
 * tail would; the network carries data. So nothing of the other end shows in a line, and none can be torn by
 * the way. */
struct device_net_step {
  uint64_t step;         /* of the connection: the first of an operation tags its size */
  uint64_t line;         /* the same among its steps of LL: says slot and flag (protocol/ll.h) */
  size_t bytes;          /* of data; half of the lines' */
  uint64_t agreed_bytes; /* where it announces */
  bool announces;        /* the operation's size goes with it */
  uint8_t flag_bits;
};

/* A connection whose slots lie in another process than its sender's kernels, and whose other end is a proxy
 * of that process: what either process sees of it. `block` is memory of both, zeroed, for what their proxies
 * tell each other. */
struct device_pxn {
  struct device_net_end end; /* not pooled, ... */
  uint64_t first_step;       /* ... but its steps begin with the same number as the receiver's */
  void *block;
};

/* A duty of the host that goes on beside its threads: a proxy, an emulated network. Both functions are called
 * by one thread at a time, also with the backend's lock held; they must not block, nor call what waits. */
struct device_service {
  const char *name;
  uint64_t key;                    /* orders the services of a deterministic world; equal on every run */
  bool (*ready)(void *argument);   /* a turn could do something; without side effects */
  void (*turn)(void *argument);    /* does one thing that is possible */
  bool (*outside)(void *argument); /* waits for something beyond the world: a real network, another process */
  void *argument;
  bool (*moved)(void *argument); /* optional: the last turn changed something; NULL: every turn does */
  /* Optional: what the service waits for, lines that each begin with "\n  ", for the report of a deadlock. */
  void (*report)(void *argument, char *out, size_t out_bytes);
};

/* What a rank's kernels stand at, for whoever asks why nothing moves. */
#define DEVICE_WAITS_MOST 64
struct device_wait {
  uint32_t peer;
  bool sends;         /* space at the peer is missing; else what it should have sent */
  uint8_t func;       /* enum work_func */
  uint64_t operation; /* its number on the communicator */
};
struct device_stall {
  bool known;     /* the backend can tell; all below is 0 where it cannot */
  bool busy;      /* kernels are launched that have not ended */
  uint64_t moves; /* changes whenever kernels of the rank move */
  uint32_t wait_count;
  struct device_wait waits[DEVICE_WAITS_MOST];
};

struct device_ops {
  size_t size;      /* sizeof the table that the backend was built with */
  const char *name; /* "emu", "cuda" */

  /* Devices. Any thread, never block. */
  ncclResult_t (*device_count)(uint32_t *count);
  ncclResult_t (*device_current)(uint32_t *device_index); /* of the calling thread */
  ncclResult_t (*device_select)(uint32_t device_index);   /* for the calling thread */
  ncclResult_t (*device_info)(uint32_t device_index, struct device_info *info);
  /* True when kernels on `from` may store into memory of `to`. */
  ncclResult_t (*device_reach)(uint32_t from, uint32_t to, bool *reach);
  /* The backend's preferred sizes; core applies the user's parameters on top. */
  ncclResult_t (*device_limits)(struct plan_limits *limits);

  /* Memory of a device. May block. On failure *pointer is untouched. */
  ncclResult_t (*memory_alloc)(uint32_t device_index, size_t bytes, void **pointer);
  ncclResult_t (*memory_free)(void *pointer);
  ncclResult_t (*memory_query)(const void *pointer, struct pointer_info *info);
  /* Copies to the host at once; for scalars that live on the device. */
  ncclResult_t (*memory_read)(void *host, const void *device, size_t bytes);

  /* One rank of a communicator. Opened before the first launch, closed when nothing of it runs. The calling
   * thread becomes the rank's owner (see comm_own). */
  ncclResult_t (*comm_open)(const struct device_comm_config *config, struct device_comm **comm);
  void (*comm_close)(struct device_comm *comm); /* waits until its kernels have ended; NULL is allowed */
  /* The calling thread now drives this rank: a deterministic world does not move while an owner is outside of
   * a waiting call. */
  void (*comm_own)(struct device_comm *comm);
  /* Nobody drives this rank any more. Any thread. */
  void (*comm_disown)(struct device_comm *comm);
  /* Makes the connection sender -> receiver usable for a protocol; both ends live in this process.
   * Idempotent. Allocates. */
  ncclResult_t (*comm_connect)(struct device_comm *sender, struct device_comm *receiver,
                               uint32_t channel_index, uint32_t conn_index, uint8_t proto);
  /* Device and host bytes held for this rank, FIFOs included. */
  ncclResult_t (*comm_memory)(struct device_comm *comm, uint64_t *bytes);
  /* Frees everything that waits on this rank, from any thread, at once. Later launches end empty. */
  void (*comm_abort)(struct device_comm *comm);
  /* First error seen by this rank's kernels (a deadlock, a mismatch, corrupted memory); ncclSuccess while
   * there is none. */
  ncclResult_t (*comm_error)(struct device_comm *comm);
  /* True when no launched kernel of this rank is unfinished. */
  bool (*comm_idle)(struct device_comm *comm);

  /* Launching. The backend copies the plan. A kernel may be launched on a capturing stream: it then belongs
   * to the graph and is freed with it. Kernels of one rank start in launch order, whatever their streams.
   * Streams of one call are joined: the kernel runs on the first after all work already on every one of them,
   * and the others continue after it. */
  ncclResult_t (*launch)(struct device_comm *comm, const struct plan *plan, const device_stream *streams,
                         uint32_t stream_count);
  /* The plan of this serial, one of those launched before, which the backend may have kept: with this memory,
   * on this stream. False: it is not, or this is no time for it; nothing has happened, and launch() is to be
   * called. */
  bool (*launch_cached)(struct device_comm *comm, const struct device_cached_launch *cached,
                        ncclResult_t *result);
  /* Capture state of a stream: *graph_id is 0 when it is not capturing, else unique for the capture. */
  ncclResult_t (*stream_capture)(device_stream stream, uint64_t *graph_id);

  /* Host waiting. Blocks until done(argument) is true (evaluated under the backend's lock, must not block or
   * call in), while the backend makes progress. deadline_ms 0 = none. ncclInProgress when the deadline
   * passed; the backend's error (as comm_error) when nothing can move any more. */
  ncclResult_t (*wait_until)(bool (*done)(void *argument), void *argument, uint64_t deadline_ms);
  /* For polling loops: lets the backend make a bounded amount of progress when it has no threads of its own.
   */
  void (*progress)(void);
  /* Serialises the caller against done() of wait_until: whatever changes a waited-for condition does so
   * between these. */
  void (*lock)(void);
  void (*unlock)(void);

  /* The path that stores of `from` into memory of `to` take. Any thread, also under lock(). May take
   * milliseconds the first time for a pair, which is then tried out; answers the same from then on. Without
   * this member all devices are as one. */
  ncclResult_t (*device_path)(uint32_t from, uint32_t to, struct device_path_info *info);

  /* Nodes that the process's devices lie on: as many on each, in order; 0 where the backend does not place
   * them, as without this member. Any thread, never blocks. */
  ncclResult_t (*device_nodes)(uint32_t *node_count);

  /* Memory of the rank's device for steps of lists, at least `bytes` and zeroed once. The same block for
   * every request that fits into it; a larger request gets another, and the old one stays for the graphs that
   * hold it. All are freed with the rank. */
  ncclResult_t (*comm_scratch)(struct device_comm *comm, size_t bytes, void **scratch);

  /* The node that a device lies on, where nodes of this process are joined by a network alone; 0 where they
   * are not. Never blocks. */
  ncclResult_t (*device_node)(uint32_t device_index, uint32_t *node);
  /* Sizes that were agreed on after comm_open: before the first connection. */
  void (*comm_settle)(struct device_comm *comm, const struct plan_limits *limits);
  /* As comm_abort, and streams and comm_error say so: something outside has failed. Any thread, also under
   * lock(). */
  void (*comm_fail)(struct device_comm *comm, ncclResult_t error);

  /* Several processes. What this rank tells the others; and whether memory of the rank that said `handle` can
   * be mapped here, so that conn_import and direct stores work: a question of host, user and settings, with
   * the same answer at both ends, and of descriptors and addresses that are left here. What was mapped stays
   * until comm_close; where that failed, log_own_error() says why. `comm` NULL: tried, and not kept. May
   * block for seconds. */
  ncclResult_t (*comm_handle)(struct device_comm *comm, struct device_comm_handle *handle);
  ncclResult_t (*comm_reach)(struct device_comm *comm, uint32_t peer, const struct device_comm_handle *handle,
                             bool *reach);
  /* The receiver's end of a connection from another process of this host, whose memory it owns: made, and
   * described for the sender (handle may be NULL). Idempotent. Any thread. */
  ncclResult_t (*conn_export)(struct device_comm *receiver, const struct device_conn_name *name,
                              struct device_conn_handle *handle);
  /* The sender's end of it. Idempotent. (Where conn_both_ends() says so, also the other way round.) */
  ncclResult_t (*conn_import)(struct device_comm *sender, const struct device_conn_name *name,
                              const struct device_conn_handle *handle);

  /* One end, whose other end lies behind a network, with slots for the protocol of the name: the buffer is
   * its. Idempotent: the same end again. Any thread. */
  ncclResult_t (*conn_net)(struct device_comm *comm, const struct device_conn_name *name,
                           struct device_net_end *end);
  /* How a proxy reads a counter that kernels write (an acquire), and writes one that kernels read (a release,
   * which wakes who waits for it); and says how many bytes the operation has that begins in `slot`. */
  uint64_t (*net_load)(struct device_net_conn *conn, const uint64_t *counter);
  void (*net_store)(struct device_net_conn *conn, uint64_t *counter, uint64_t value);
  void (*net_announce)(struct device_net_conn *conn, uint32_t slot, uint32_t tag, uint64_t bytes);

  /* A deterministic world runs services as actors of its own. *handle stays NULL where it does not: the
   * caller then needs a thread. A service is asked after what kernels do to connections with a net end, after
   * another service has moved, and after a wake: something that `ready` depends on has changed. wake and
   * remove: any thread, also from within a turn. */
  ncclResult_t (*service_add)(const struct device_service *service, void **handle);
  void (*service_wake)(void *handle);
  void (*service_remove)(void *handle); /* no call of its functions is under way when it returns */

  /* One wait more (or, with -1, one less) of the host for something that other processes may bring, at their
   * leisure: while there is any, kernels that make no progress are not declared stuck. Under lock(). */
  void (*outside_wait)(int more);

  /* A world that moves only while host threads wait is moved as far as it goes, for threads that are away:
   * other processes may wait for what it would bring. Returns after how many milliseconds to call it again;
   * UINT32_MAX: never, as it moves by itself. One thread, without locks. */
  uint32_t (*drive_idle)(void);

  /* What the rank's kernels wait for that other ranks must bring, in any order, ranks of this process
   * included. `asks`: has them look; what they see is in the answer of a later call, while they do not move.
   * Kernels that wait for nobody, or for something else first, are not among it. Any thread, also when the
   * rank is aborted; does not wait for kernels. Without this member nothing is known: then the host sees what
   * its networks owe, and no more. */
  void (*comm_stall)(struct device_comm *comm, bool asks, struct device_stall *stall);

  /* A connection that rank `sender`, of another process of this host, has with name->peer, who lies behind a
   * network: slots, counters and `block_bytes` more, in memory of this process, for a proxy of this process
   * to empty. The sender takes it by conn_import, under the same name, and finds what its own proxy needs by
   * pxn_end. Lives on when `comm` is closed, until pxn_drop, which waits for nobody: the memory goes
   * when the sender has closed its end too. Any thread. Without these members no process sends for another.
   */
  ncclResult_t (*pxn_make)(struct device_comm *comm, uint32_t sender, const struct device_conn_name *name,
                           size_t block_bytes, struct device_pxn *pxn, struct device_conn_handle *handle);
  void (*pxn_drop)(struct device_net_conn *conn);
  ncclResult_t (*pxn_end)(struct device_comm *sender, const struct device_conn_name *name, size_t block_bytes,
                          struct device_pxn *pxn);

  /* The slots of pooled connections: the set that the work number `place` of each batch of a channel sends
   * from, or receives into; plan_pool_step_bytes() apart, as many as a connection has. Made when first asked
   * for, before the launch that uses it; freed with the rank. So they do not grow with the number of peers.
   */
  ncclResult_t (*net_slots)(struct device_comm *comm, uint32_t channel_index, uint32_t place, bool sends,
                            uint8_t **buffer);

  /* Asks for slots of the rank's connections over networks in this kind of memory, before the first of them;
   * counters stay the host's. False where they stay the host's too, as without this member. */
  bool (*net_memory)(struct device_comm *comm, enum pointer_kind kind);
  /* A DMA-BUF of the pages that device memory lies in, and where in it that begins. The caller closes the
   * descriptor. */
  ncclResult_t (*memory_dmabuf)(void *memory, size_t bytes, int *descriptor, uint64_t *offset);

  /* Each end of a connection between processes is memory of its own rank, the sender's too: conn_export and
   * conn_import are then called for both, each end importing what the other one has exported. */
  bool (*conn_both_ends)(void);

  /* The longest path from a device to others of its host, also to those that this process does not see,
   * without touching any: peer_access says whether users' memory can be mapped between processes. `name`
   * NULL, as without this member: nobody knows more than device_path tells. Any thread. */
  ncclResult_t (*device_farthest_path)(uint32_t device_index, struct device_path_info *info);

  /* Outputs that kernels of other processes store into. region_ask: before a launch, for each output that is
   * offered to `peer`: true where that rank's process is to map the memory that the output lies in, by
   * *handle. What its region_map says, an address of its own, goes to region_answered; 0: it cannot be
   * mapped. Until then the output is not shown. Memory that is seen for the first time is not asked for,
   * unless the launch `lasts` because it is of a graph. The memory may be freed whenever the program likes:
   * region_gone says which is to be unmapped by whom; asked for until it says false, about once a second.
   * region_sweep, as often, ends what was unmapped; it may wait for kernels, so no lock is held. Without
   * these members no output is shown. */
  bool (*region_ask)(struct device_comm *comm, const void *output, uint32_t peer, bool lasts,
                     struct device_memory_handle *handle);
  void (*region_answered)(struct device_comm *comm, uint32_t peer, const struct device_memory_handle *handle,
                          uint64_t address);
  ncclResult_t (*region_map)(struct device_comm *comm, uint32_t peer,
                             const struct device_memory_handle *handle, uint64_t *address);
  void (*region_unmap)(struct device_comm *comm, uint32_t peer, const struct device_memory_handle *handle);
  bool (*region_gone)(struct device_comm *comm, uint32_t *peer, struct device_memory_handle *handle);
  void (*region_sweep)(void);

  /* Brings what recorders hold of all ranks' kernels (config.live) up to date: which have ended, which lanes
   * wait, the counters of their links. For devices that keep that in memory of their own: without this
   * member it is always true. Any thread, without the lock; some microseconds, milliseconds where lanes wait.
   */
  void (*records_look)(void);
  /* Kernels move as time passes, so that one which stands for long is stuck; false in a world that moves only
   * while host threads wait. */
  bool (*keeps_time)(void);

  /* Lines of connections over networks, once conn_net has made the end for LL; their slots are the host's.
   * net_take: true when the sender's kernel has stored all lines of the step, whose data is then copied to
   * `data`; with `data` NULL it only looks. The slot stays the step's until head has passed it. net_put:
   * stores what has come as lines of the step, in a free slot, and wakes who waits for them. */
  bool (*net_take)(struct device_net_conn *conn, const struct device_net_step *step, void *data);
  void (*net_put)(struct device_net_conn *conn, const struct device_net_step *step, const void *data);
  /* Whether there are net_take and net_put, also where a process sends for another (`pxn`), if any does.
   * Without this member there are not. */
  bool (*net_ll)(bool pxn);
};

/* The key under which a backend keeps one end of a connection of a rank in a struct map; never 0. */
static inline uint64_t backend_conn_key(uint32_t peer, uint32_t channel_index, uint32_t conn_index,
                                        bool sends) {
  return 1 + ((uint64_t)peer << 16 | (uint64_t)channel_index << 8 | conn_index << 1 | (sends ? 1u : 0u));
}

/* The same for its sets of slots. */
static inline uint64_t backend_slots_key(uint32_t channel_index, uint32_t place, bool sends) {
  return backend_conn_key(place, channel_index, 0, sends);
}

/* What a backend in a library of its own is given: the one log (`text` is a whole line without its end) and
 * the one table of settings (an id is an enum param_id of base/param.h). */
struct backend_services {
  size_t size;
  void (*warn)(const char *file, int line, bool urgent, const char *text);
  void (*info)(unsigned subsystem, const char *text);
  int64_t (*setting_number)(int id);
  const char *(*setting_text)(int id);
  const char *(*last_error)(void); /* ncclGetLastError's */
};

/* The backend that this process uses (TUTTI_BACKEND, or what the machine has), chosen at the first call; the
 * log says which and why. NULL with a last error when the requested one does not exist. */
const struct device_ops *backend_device_ops(void);

/* Copies `table` over the stubs. `result` may not be `table`. */
void backend_fill(struct device_ops *result, const struct device_ops *table);

/* A launch of a plan that was launched before. */
struct device_cached_launch {
  uint64_t serial;                    /* plan.serial */
  uint64_t first_sequence;            /* as plan.first_sequence, now */
  const struct plan_buffers *buffers; /* by work */
  device_stream stream;
};

/* What the backend calls at every start of a kernel, also of one that a graph launches again; from any
 * thread, also with the backend's lock held, must not block. Copied by launch(). `drop` once, when the kernel
 * exists no more or its launch has failed. */
struct launch_hook {
  void (*start)(void *argument);
  void (*drop)(void *argument);
  void *argument;
  /* Optional. Does some of what start() has begun, and tells whether anything moved: a backend whose kernels
   * run on the process's own threads may call it between two looks, and then calls it once more, with `last`,
   * behind the kernel's end, also of one that was aborted: from then on nobody reads what it sends without a
   * copy, nor writes to its outputs. Must not block. */
  bool (*turn)(void *argument, bool last);
};

/* The emulator's table; always linked in. */
const struct device_ops *emu_device_ops(void);
/* True when the process has asked for the emulator by other means than TUTTI_BACKEND: *how says which. */
bool emu_is_wanted(const char **how);

/* load.c: the CUDA backend's table out of libtutti-cuda.so, which lies beside this library. NULL, and one
 * sentence of a reason, where it is not there or of no use. */
const struct device_ops *backend_load_cuda(char *reason, size_t reason_bytes);

#endif
