/* backend.h: the host seam to devices (net.h is the one to networks). A backend is four tables of functions;
 * core/ calls nothing else of a device. A table's size comes first, so that a core can use an older backend:
 * members beyond its size are taken from backend_fill()'s stubs, most of which return ncclInvalidUsage and
 * name the member. Call sites never test for NULL. */
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

enum stream_place { STREAM_DEFAULT, STREAM_ON, STREAM_GONE };

enum pointer_kind { POINTER_UNKNOWN, POINTER_HOST, POINTER_DEVICE, POINTER_MANAGED };

struct pointer_info {
  enum pointer_kind kind;
  uint32_t device_index; /* of DEVICE pointers */
  void *base;            /* start of the allocation, NULL when unknown */
  size_t bytes;          /* of the allocation, 0 when unknown */
  bool freed;            /* UNKNOWN memory that was a device's */
  uint64_t id;           /* tells the allocation from later ones at its address; 0: unknown */
};

struct device_info {
  char name[64];
  char bus_id[16];     /* "0000:18:00.0" */
  uint8_t uuid[16];    /* of the device, or of the slice of it (MIG) that this is; all 0: unknown */
  uint32_t capability; /* compute capability times ten: 90 */
  uint64_t memory_bytes;
  uint32_t blocks; /* blocks of kernels that run at once, one a channel; 0: any number */
};

/* Blocks of a device that ranks of this process's communicators may keep busy. Those of ranks that share the
 * device in their communicator run at once, whatever else does; of the others, one rank's at least. */
struct device_use {
  uint32_t rank_count, shared_blocks, single_blocks;
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
  uint8_t proto; /* whose slots are meant: an enum work_proto or, within a host, SLOTS_AT_SENDER */
  bool sends;    /* the end that names it is the sender */
  bool on_host;  /* between processes whose devices do not reach each other: in memory of the host */
};

/* How a sender of another process of this host maps a connection that its receiver has made: opaque. */
#define DEVICE_CONN_HANDLE_BYTES 256
struct device_conn_handle {
  uint8_t bytes[DEVICE_CONN_HANDLE_BYTES];
};

/* Users' memory that a rank shows to ranks of other processes of its host, as the owner names it: opaque. */
#define DEVICE_MEMORY_HANDLE_BYTES 192
struct device_memory_handle {
  uint8_t bytes[DEVICE_MEMORY_HANDLE_BYTES];
};
/* In place of the address at which it is mapped: not yet, since what was there before is still mapped. */
#define DEVICE_REGION_LATER 1u

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
   * rank's (net_slots). Its steps begin with a number for which no slots are free, and head is a sender's
   * leave to fill what lies before head + slots: the proxy gives it slice by slice, once the set is the
   * operation's. */
  bool pooled;
  uint64_t first_step, first_line; /* number of its first step, and of the first one of LL */
};

/* What networks' devices can do with memory of a device: access it by a DMA-BUF, or by its address if the
 * kernel has nvidia_peermem; and whether the device sees what they write there before what they write to the
 * host's memory afterwards, so that received data needs no flush. */
enum { DEVICE_RDMA_DMABUF = 1, DEVICE_RDMA_ADDRESS = 2, DEVICE_RDMA_ORDERED = 4 };

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
  struct device_net_end end; /* not pooled, but its steps begin with the same number as the receiver's */
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

/* One-sided calls. A rank has a counter for each rank of the communicator, which only that one writes: how
 * many of its signals have come. There are two sets of counters, so that the program's calls and collectives
 * made of such calls (core/copies_note.h) never take each other's signals. */
enum signal_set { SIGNALS_PROGRAM, SIGNALS_COLLECTIVE, SIGNAL_SETS };
/* Where the counter of a set and a peer is among a rank's. */
static inline uint64_t signal_place(uint64_t rank_count, uint32_t set, uint32_t peer) {
  return set * rank_count + peer;
}
struct device_put {
  struct plan_call
      call; /* `out`: where the peer has the memory; in_bytes and out_bytes are 0: a signal alone */
  struct device_comm *target; /* the peer's; NULL: another process's (process_ops.def) */
  uint64_t number;            /* of the signal among those of this rank for the peer in its set, from 1 */
  uint32_t set;               /* enum signal_set */
};
struct device_await {
  uint32_t peer;
  uint32_t set;    /* enum signal_set */
  uint32_t count;  /* signals that this wait takes */
  uint64_t number; /* of the last of them */
};

/* Four tables: what core calls of devices, of their memory, of other processes of the host, and of networks.
 * Each member is a row of a list (device_ops.def and its like), which says who calls it, on which thread,
 * whether it may block, and what a backend without it does. */
#define OP(type, name, parameters, ...) type(*name) parameters;
struct device_ops {
  size_t size; /* sizeof the table that the backend was built with */
#include "backends/device_ops.def"
};
struct memory_ops {
  size_t size;
#include "backends/memory_ops.def"
};
struct process_ops {
  size_t size;
#include "backends/process_ops.def"
};
struct network_ops {
  size_t size;
#include "backends/network_ops.def"
};
#undef OP

struct backend {
  size_t size;
  const char *name; /* "emu", "cuda" */
  const struct device_ops *device;
  const struct memory_ops *memory;
  const struct process_ops *process; /* NULL, as for the next: none of its members */
  const struct network_ops *network;
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
const struct backend *backend_ops(void);

/* A backend whose tables have every member. */
struct backend_tables {
  struct backend backend; /* points to what follows */
  struct device_ops device;
  struct memory_ops memory;
  struct process_ops process;
  struct network_ops network;
};
/* Copies what `given` has over the stubs. */
void backend_fill(struct backend_tables *result, const struct backend *given);

/* A launch of a plan that was launched before. */
struct device_cached_launch {
  uint64_t serial;                    /* plan.serial */
  uint64_t first_sequence;            /* as plan.first_sequence, now */
  const struct plan_buffers *buffers; /* by work */
  device_stream stream;
  const struct plan_call *calls; /* as plan.calls */
  uint32_t call_count;
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
const struct backend *emu_backend(void);
/* True when the process has asked for the emulator by other means than TUTTI_BACKEND: *how says which. */
bool emu_is_wanted(const char **how);
/* The emulator reads its settings, unless it has. An error if they are wrong (TUTTI_EMU, an unwritable
 * TUTTI_EVENTS) or if param_check refuses others; its sentence goes to stderr once. */
ncclResult_t emu_settings_read(void);

/* load.c: the CUDA backend's table out of libtutti-cuda.so, which lies beside this library. NULL, and one
 * sentence of a reason, where it is not there or of no use. */
const struct backend *backend_load_cuda(char *reason, size_t reason_bytes);

#endif
