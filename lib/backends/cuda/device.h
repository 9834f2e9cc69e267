/* device.h: declarations that the host files share: ranks, connections and the memory of launches. */
#ifndef TUTTI_BACKENDS_CUDA_DEVICE_H
#define TUTTI_BACKENDS_CUDA_DEVICE_H

#include <cuda_runtime_api.h>

#include "backends/backend.h"
#include "backends/cuda/arena.h"
#include "kernels/launch.h"
#include "backends/cuda/region.h"
#include "backends/cuda/rma.h"
#include "backends/cuda/side.h"
#include "base/map.h"
#include "base/os.h"
#include "trace/recorder.h"

struct cuda_conn_remote;
struct cuda_graph_uses;
struct cuda_lane_seen;
struct cuda_launched;

/* A connection of two ranks; both ends share it, and the second that closes frees it. */
struct cuda_conn {
  void *sender, *receiver;      /* addresses that both ends' devices can use */
  uint8_t *buffer[SLOTS_COUNT]; /* by enum work_slots */
  struct arena_block sender_block, receiver_block,
      buffer_block[SLOTS_COUNT];   /* blocks that this process owns */
  struct cuda_conn_remote *remote; /* conn_remote.c: set if the other end is another process's */
  uint32_t devices[2];             /* of the receiver and the sender, if both are this process's */
  bool on_host;                    /* the devices do not reach each other: everything is in host memory */
  bool net;                        /* the other end is behind a network */
  bool pooled;                     /* of messages over a network: it uses the rank's slot pools */
  uint32_t slots, ll_bytes;        /* over a network, for LL: number of slots, and bytes from slot to slot */
  uint32_t reference_count;
};

/* host_memory.c: zeroed. */
ncclResult_t cuda_host_take(size_t bytes, struct cuda_host_memory *memory);
/* `lost`: it is registered no more, since the device that was current at the take was reset. */
void cuda_host_give(struct cuda_host_memory *memory, bool lost);

/* Host memory that passes one large plan to a kernel, on any device. It is owned by the pool, by a rank while
 * a kernel reads it, or by a graph. */
struct cuda_slab {
  struct cuda_host_memory memory;
  uint32_t device_index, life; /* the device that was current when it was made; see cuda_life() */
  cudaEvent_t read;            /* the rank's: recorded after the kernel; NULL: its end is unknown */
  struct cuda_slab *next;
};

/* Keeps a rank's kernels in order (launch_order.c). */
struct cuda_order {
  struct launch_counts *counts; /* device memory */
  struct arena_block counts_block;
  uint64_t blocks_launched; /* outside graphs: the value that counts->plain_ended will reach */
  uint64_t stream_key;      /* of the stream of the last plain launch */
  bool by_events;           /* `serial` is recorded after every launch outside graphs */
  bool captured_ever;       /* graphs may contain kernels of this rank */
  cudaEvent_t serial;       /* end of the rank's last launch, after the first capture */
  cudaEvent_t captured;     /* end of the last launch within the capture `graph_id` */
  cudaEvent_t join;
  unsigned long long graph_id;
  uint64_t captured_key; /* of the stream of that launch */
  cudaGraphNode_t record,
      record_after;    /* in that graph: the node that records `serial`, and its predecessor */
  cudaStream_t stream; /* the library's; created at the first capture */
};

/* A stream's capture; id 0: not captured. */
struct cuda_capture {
  unsigned long long id;
  cudaGraph_t graph;
};

/* The launch of an operation by a rank that shares its device. */
#define WORLD_LAUNCHES 64u
struct world_launch {
  uint64_t stream, sequence; /* stream: a key that never repeats; sequence: of the operation */
  uint32_t rank;
};

/* State that the ranks of one communicator share in this process. */
struct cuda_world {
  uint64_t comm_id, serial; /* serial: never reused in this process */
  uint32_t rank_count;      /* open ranks */
  int *failed;              /* host memory that all devices can access */
  struct arena_block failed_block;
  os_mutex launches_mutex;
  struct cuda_signals *signals;                 /* by rank: for it; NULL before the first (rma.c) */
  struct world_launch launches[WORLD_LAUNCHES]; /* the latest of ranks that share devices */
  uint32_t launch_count;
  struct cuda_world *next;
};

/* A channel's ring in device memory. Channels with the same ring share one. */
struct cuda_ring {
  const uint32_t *host; /* the plan's array of which this is a copy; it does not change */
  uint32_t *ranks;
  struct arena_block block; /* the channel's own block; without address: shared, or none yet */
};

/* What a rank takes of its device's multiprocessors (launch_budget.c). */
struct cuda_budget {
  uint64_t target, ticket; /* of the last launch: the count at its end, and its place in the device's order */
  uint64_t turn;
  uint32_t blocks;  /* most of the launches under way */
  uint32_t cluster; /* blocks of a cluster, if clusters are used; 1: they are not */
  struct device_comm *next;
};

struct device_comm {
  struct device_comm_config config;
  char name[64];
  struct cuda_world *world;
  struct rank_control *control; /* host memory */
  struct arena_block control_block;
  struct cuda_order order;
  struct cuda_budget budget;
  struct cuda_side side;
  struct cuda_rma rma;
  bool hosted; /* it has a network connection, in host memory */
  /* ... except for its slots: of receivers, of senders. */
  enum pointer_kind net_memory[2];
  bool shm;                             /* it has a connection to another process in memory of the host */
  bool overlaps;                        /* a kernel may start on the device while the previous one ends */
  bool hidden_said;                     /* the log says why mapped memory stays hidden */
  bool access_refused;                  /* other devices of the process get no access to mapped memory */
  uint32_t life;                        /* of the device, when the rank was opened; see cuda_life() */
  ncclResult_t error;                   /* read atomically, written under cuda_mutex */
  uint64_t memory_bytes, lasting_bytes; /* lasting: those that the rank was opened with */
  struct cuda_graph_uses *graph_uses;   /* graphs that have kernels of it; NULL: none had so far */
  unsigned long long graph_used;        /* the last of their captures */
  uint64_t looked_ns;                   /* time of the last check whether the device still works */
  struct cuda_ring rings[PLAN_CHANNELS_MAX]; /* by channel */
  struct cuda_slab *slabs_read, **last_slab; /* slabs that kernels may still read, oldest first */
  os_mutex conns_mutex;   /* guards the next members: a peer adds to them while this rank launches */
  struct map conns;       /* its ends of connections, keyed by backend_conn_key() */
  struct map slots;       /* slot pools, keyed by backend_slots_key(): blocks of memory */
  struct regions regions; /* the program's memory exported to other processes; under conns_mutex */
  uint32_t launching;     /* launches in progress: what they bind is not in a kernel yet */
  struct cuda_guest_region *guests;  /* of other processes' programs, mapped here; under cuda_mutex */
  struct recorder_live live;         /* recorders' view of this rank; comm NULL: no recorder */
  struct cuda_kept_set *kept;        /* launches to repeat; NULL before the first */
  struct cuda_launched *launches;    /* by number modulo RECORD_LAUNCHES: for records */
  struct cuda_lane_seen *lanes_seen; /* by index of rank_control.waits: lanes that reported a wait */
  struct device_comm *next;
};

/* cuda_mutex guards the list of ranks, and the creation and freeing of connections. Taken before a rank's
 * conns_mutex, never by a thread that has one (asserted: two threads would wait for each other some day).
 * Never held while core's lock is taken, nor by a launch. */
void cuda_lock(void);
bool cuda_try_lock(void);
void cuda_unlock(void);
void cuda_conns_lock(struct device_comm *comm);
bool cuda_conns_try_lock(struct device_comm *comm);
void cuda_conns_unlock(struct device_comm *comm);

/* For the duration of a call: selects the rank's device and allows allocation while this thread captures a
 * stream. Calls within must not change the thread's device permanently. */
struct cuda_scope {
  bool entered;
  enum cudaStreamCaptureMode mode;
};
/* Selects the device only, until left; false if that fails. Restores the thread's device. A thread without a
 * device, which counts as the first, must not create a context there (half a gigabyte), as cudaSetDevice
 * would. */
bool cuda_device_enter(uint32_t device_index);
void cuda_device_leave(void);
struct cuda_scope cuda_scope_enter(uint32_t device_index);
void cuda_scope_leave(const struct cuda_scope *scope);

/* ncclSuccess, or logs what failed. */
ncclResult_t cuda_result(int error, const char *what);
/* Allocates zeroed memory; called within a scope. */
ncclResult_t cuda_zeroed_device(size_t bytes, void **pointer);
/* Zeroes memory of the current device and waits for it; within a scope. */
ncclResult_t cuda_zero(void *pointer, size_t bytes);
/* The library's own stream of a device, which never waits for a kernel. */
cudaStream_t cuda_own_stream(uint32_t device_index);
/* Waits for the current device's own stream. */
void cuda_settle(void);
/* A device with a rank of this process, or else the thread's device. The thread may be the library's own,
 * whose device counts as the first; using that would create a context there. With cuda_mutex held. */
uint32_t cuda_device_in_use(void);
/* True if no rank on the device has an unfinished kernel; with cuda_mutex held. */
bool cuda_device_idle(uint32_t device_index);
/* The same for one rank. */
bool cuda_comm_idle(struct device_comm *comm);
/* Reads device memory over the same stream, within a scope. */
ncclResult_t cuda_memory_fetch(void *host, const void *device, size_t bytes);
/* Writes device memory and waits for it; called within a scope. */
ncclResult_t cuda_memory_write(void *device, const void *host, size_t bytes);
/* True if kernels on `from` can store into memory of `to`: CUDA supports it, the settings allow it, and the
 * link has passed its self-test. Determined, and enabled, at the first call. Called with cuda_mutex held. */
bool cuda_reach(uint32_t from, uint32_t to);

/* False for memory that only its own device is sure to map: pools, mapped ranges, managed memory. */
bool cuda_memory_is_plain(const void *pointer);
/* The driver's number of the allocation, which no later one gets; 0: not memory of the driver. */
uint64_t cuda_memory_id(uint64_t address);
bool cuda_memory_range(uint64_t address, uint64_t *base, uint64_t *bytes); /* of the allocation */
/* What the driver says of an address, an attribute CU_POINTER_ATTRIBUTE_*; false: nothing. */
bool cuda_pointer_ask(int attribute, uint64_t address, void *data);
/* A device's attribute CU_DEVICE_ATTRIBUTE_*; 0 if the driver does not know it. */
int cuda_device_ask(uint32_t device_index, int attribute);
/* A function of the driver; NULL if this driver does not have it. */
void *cuda_driver_function(const char *name);

/* guest.c: under MPS, the multiprocessors that this process gets; the log names such devices, and vGPUs. */
void cuda_guest_fill(uint32_t device_index, struct device_info *info);

/* access.c: kernels on that device of the process can access the buffer, in memory of cuMemCreate. They are
 * given access if it is memory of the rank's device. With the rank's conns_mutex held. */
bool cuda_access_reaches(struct device_comm *comm, const void *memory, size_t bytes, uint32_t device_index);

/* reset.c: the number of a device's life, which ends when the program resets the device. */
uint32_t cuda_life(uint32_t device_index);
/* The life that is under way has ended: the driver is asked. Any thread. */
bool cuda_device_was_reset(uint32_t device_index);
/* The rank's device was reset: none of its memory, streams and events exists any more. */
bool cuda_comm_lost(const struct device_comm *comm);
/* From now on resets of the device are noticed; within a scope, with cuda_mutex held, as the next one. */
ncclResult_t cuda_life_begin(uint32_t device_index);
/* If the device was reset: forgets what the library had there, and fails its ranks, with a sentence. */
void cuda_device_renew(uint32_t device_index);
/* Parts of that: device_ops.c, link_test.c. */
void cuda_device_forget(uint32_t device_index);
void cuda_comm_fail(struct device_comm *comm, ncclResult_t error);
void cuda_link_forget(uint32_t device_index);

/* first_step.c: what new ends and new slots hold if TUTTI_FIRST_STEP is set; within a scope. */
ncclResult_t cuda_first_end(const struct plan_limits *limits, bool sends, void *end);
ncclResult_t cuda_first_slots(const struct plan_limits *limits, uint8_t proto, uint32_t slot_bytes,
                              void *buffer);

/* conn.c; called with the lock held. */
struct cuda_conn *cuda_conn_find(struct device_comm *comm, uint32_t peer, uint32_t channel_index,
                                 uint32_t conn_index, bool sends);
ncclResult_t cuda_conn_open(struct device_comm *sender, struct device_comm *receiver, uint32_t channel_index,
                            uint32_t conn_index, uint8_t slots);
/* An end whose other end is a proxy: host memory, except possibly its slots (dmabuf.c). */
ncclResult_t cuda_conn_net(struct device_comm *comm, const struct device_conn_name *name,
                           struct device_net_end *end);
ncclResult_t cuda_net_slots(struct device_comm *comm, uint32_t channel_index, uint32_t place, bool sends,
                            uint8_t **buffer);
ncclResult_t cuda_net_sample(struct device_comm *comm, size_t *bytes, uint8_t **sample);
bool cuda_net_ll(bool pxn);
bool cuda_net_take(struct device_net_conn *conn, const struct device_net_step *step, void *data);
void cuda_net_put(struct device_net_conn *conn, const struct device_net_step *step, const void *data);
void cuda_net_announce(struct device_net_conn *conn, uint32_t slot, uint32_t tag, uint64_t bytes);
/* `lost`: with the device, which was reset. */
void cuda_conn_close_all(struct device_comm *comm, bool lost);

/* dmabuf.c */
uint32_t cuda_net_rdma(struct device_comm *comm);
void cuda_net_memory(struct device_comm *comm, enum pointer_kind receives, enum pointer_kind sends);
ncclResult_t cuda_memory_dmabuf(void *memory, size_t bytes, int *descriptor, uint64_t *offset);

/* launch_order.c: the order of a rank's kernels on any streams. Called with the rank's device selected. All
 * but open and close return a cudaError. */
ncclResult_t cuda_order_open(struct cuda_order *order, uint32_t device_index);
void cuda_order_close(struct cuda_order *order, bool lost); /* lost: with the device, which was reset */
int cuda_order_capture(cudaStream_t stream, struct cuda_capture *capture);
/* Called before and after the launch of a kernel of the rank on the first stream: it runs after all earlier
 * work on all streams and after the rank's earlier launches, and the other streams continue after it. */
int cuda_order_before(struct cuda_order *order, const device_stream *streams, uint32_t stream_count,
                      const struct cuda_capture *capture);
int cuda_order_after(struct cuda_order *order, const device_stream *streams, uint32_t stream_count,
                     const struct cuda_capture *capture, uint32_t block_count);
/* A key that never repeats for a different stream, in *key; returns a cudaError. */
int cuda_order_stream_key(cudaStream_t stream, uint64_t *key);
/* *ended: all blocks of the rank that the host launched or a graph has begun have ended. `seen` is host
 * memory that the device can write. */
int cuda_order_ended(const struct cuda_order *order, cudaStream_t stream, struct launch_counts *seen,
                     bool *ended);

/* The stream waits until the count of a rank's ended blocks has reached the target. A cudaError. */
int cuda_order_await(const struct launch_counts *counts, uint64_t target, cudaStream_t stream);

/* launch_budget.c: communicators that share a device's multiprocessors. */
/* From when its limits are settled, and so before its first launch. */
void cuda_budget_join(struct device_comm *comm, const struct device_info *info);
/* Blocks of a cluster, if a launch may use clusters; else 1. */
uint32_t cuda_budget_cluster(const struct device_comm *comm, uint32_t block_count, bool captured);
void cuda_budget_leave(struct device_comm *comm); /* before its counts are freed; they may be kept */
/* Before a kernel is launched outside captures: the stream waits until its blocks surely fit. A cudaError. */
int cuda_budget_before(struct device_comm *comm, uint32_t block_count, cudaStream_t stream,
                       const struct cuda_capture *capture);
void cuda_budget_withdraw(struct device_comm *comm); /* the launch has failed */
/* For struct device_ops. */
ncclResult_t cuda_device_use(uint32_t device_index, struct device_use *use);

/* suspend.c. Notes that a graph has kernels of the rank, until it is destroyed. */
ncclResult_t cuda_graph_use(struct device_comm *comm, const struct cuda_capture *capture);
void cuda_graph_uses_close(struct device_comm *comm);
/* For struct device_ops. */
uint64_t cuda_comm_releasable(struct device_comm *comm);
ncclResult_t cuda_comm_release_check(struct device_comm *comm);
void cuda_comm_release(struct device_comm *comm);
void cuda_comm_release_end(struct device_comm *comm);

/* slab.c: memory for large plans. */
ncclResult_t cuda_slabs_open(struct device_comm *comm);
void cuda_slabs_close(struct device_comm *comm); /* requires that no kernel of the rank runs */
/* A slab of at least `bytes`, now owned by the caller; within a scope. */
ncclResult_t cuda_slab_take(struct device_comm *comm, size_t bytes, struct cuda_slab **result);
/* Returns a slab that no kernel has used to the pool. */
void cuda_slab_put(struct cuda_slab *slab);
/* Passes it to the rank, until the kernel just launched on the stream has ended. */
void cuda_slab_hold(struct device_comm *comm, struct cuda_slab *slab, cudaStream_t stream);
/* Passes it to the graph, until the graph and everything instantiated from it are destroyed. */
ncclResult_t cuda_slab_leave(struct cuda_slab *slab, cudaGraph_t graph);

/* launch.c */
struct cuda_kernel {
  uint32_t kernel, block_count, warp_count; /* kernel: LAUNCH_KERNELS */
  uint32_t cluster;                         /* blocks of a cluster; 1: each block begins alone */
  bool overlaps;                            /* it may start while the kernel before it ends */
};
ncclResult_t cuda_launch(struct device_comm *comm, const struct plan *plan, const device_stream *streams,
                         uint32_t stream_count);
/* In the order of the rank's kernels; without a lock: if a stream's queue is full it waits for kernels, which
 * may wait for another thread's launch. */
ncclResult_t cuda_kernel_enqueue(struct device_comm *comm, const struct cuda_kernel *kernel,
                                 const union launch_any *launch, device_stream stream,
                                 const struct cuda_capture *capture);

/* launch_kept.c */
/* Keeps a launch whose plan, of `plan_bytes`, is in the kernel's arguments, if it can be repeated. */
void cuda_launch_keep(struct device_comm *comm, const struct plan *plan, const struct cuda_kernel *kernel,
                      const union launch_any *launch, size_t plan_bytes);
/* Launches a plan by a kept launch, also of other buffers, if they make no difference; false: there is none.
 */
bool cuda_launch_rebound(struct device_comm *comm, const struct plan *plan, device_stream stream,
                         const struct cuda_capture *capture, ncclResult_t *result);
/* For struct device_ops. */
bool cuda_launch_cached(struct device_comm *comm, const struct device_cached_launch *cached,
                        ncclResult_t *result);
void cuda_kept_close(struct device_comm *comm);

/* record.c: what recorders read about kernels. */
#define RECORD_LAUNCHES 1024u
void cuda_record_open(struct device_comm *comm, const struct recorder_live *live);
void cuda_record_close(struct device_comm *comm);
/* A kernel was launched, or captured. */
void cuda_record_launch(struct device_comm *comm, uint64_t first_sequence);
/* Updates which of them have ended, from counts_seen. */
void cuda_record_ended(struct device_comm *comm);
/* For struct device_ops. */
void cuda_records_look(void);
/* All ranks of the process; with cuda_mutex held. */
struct device_comm *cuda_comms(void);

/* process_end.c. Around what the library's own threads do with devices; false once the process ends: the
 * runtime may be gone then, and nothing may be asked of it. */
bool cuda_look_begin(void);
void cuda_look_end(void);
/* From now on kernels that wait for other ranks are given up when the process ends. */
void cuda_end_watch(void);

/* log.c: forwards the lines of log.h to the library that loaded this one. */
void cuda_log_open(const struct backend_services *services);

/* The library's only exported function: its table, or NULL and the reason. */
const struct backend *tutti_cuda_ops(const struct backend_services *services, char *reason,
                                     size_t reason_bytes);

#endif
