/* device.h: what the host half's files share about ranks, connections and the memory of launches. */
#ifndef TUTTI_BACKENDS_CUDA_DEVICE_H
#define TUTTI_BACKENDS_CUDA_DEVICE_H

#include <cuda_runtime_api.h>

#include "backends/backend.h"
#include "backends/cuda/arena.h"
#include "kernels/launch.h"
#include "backends/cuda/region.h"
#include "backends/cuda/side.h"
#include "base/map.h"
#include "base/os.h"
#include "trace/recorder.h"

struct cuda_conn_remote;
struct cuda_lane_seen;

/* One connection of two ranks; shared by both ends, freed by the second that closes. */
struct cuda_conn {
  void *sender, *receiver; /* addresses that both ends' devices can use */
  uint8_t *buffer[PROTO_COUNT];
  struct arena_block sender_block, receiver_block, buffer_block[PROTO_COUNT]; /* what is this process's */
  struct cuda_conn_remote *remote; /* conn_remote.c: the other end is another process's; NULL: it is not */
  bool on_host;                    /* the devices do not reach each other: all of it is memory of the host */
  bool pooled;                     /* a message's, over a network: its slots are sets of the rank's */
  uint32_t slots, ll_bytes;        /* over a network: of LL, whose slots lie so far apart */
  uint32_t reference_count;
};

/* Memory of the host that carries one large plan to a kernel, on whichever device. Its owner is the pool, a
 * rank while a kernel reads it, or a graph. */
struct cuda_slab {
  uint8_t *data;
  size_t bytes;
  cudaEvent_t read; /* the rank's: recorded behind the kernel; NULL: when that ends is not known */
  struct cuda_slab *next;
};

/* What orders a rank's kernels (launch_order.c). */
struct cuda_order {
  struct launch_counts *counts; /* memory of the device */
  struct arena_block counts_block;
  uint64_t blocks_launched; /* plain ones: what counts->plain_ended will come to */
  uint64_t stream_key;      /* of the stream of the last plain launch */
  bool by_events;           /* `serial` is recorded behind every plain launch */
  bool captured_ever;       /* graphs may hold kernels of this rank */
  cudaEvent_t serial;       /* end of the rank's last launch, once there are graphs */
  cudaEvent_t captured;     /* end of the last launch within the capture `graph_id` */
  cudaEvent_t join;
  unsigned long long graph_id;
  uint64_t captured_key;                /* of the stream of that launch */
  cudaGraphNode_t record, record_after; /* in that graph: the node that records `serial`, and behind which */
  cudaStream_t stream;                  /* ours; made when the first graph is captured */
};

/* A stream's capture; id 0: it is in none. */
struct cuda_capture {
  unsigned long long id;
  cudaGraph_t graph;
};

/* What the ranks of one communicator share in this process. */
struct cuda_world {
  uint64_t comm_id;
  uint32_t rank_count; /* that are open */
  int *failed;         /* memory of the host that all devices see */
  struct arena_block failed_block;
  struct cuda_world *next;
};

/* A channel's ring in memory of the device. Channels whose rings are the same share one. */
struct cuda_ring {
  const uint32_t *host; /* of which it is a copy; the plan's, which stays as it is */
  uint32_t *ranks;
  struct arena_block block; /* its own; without address: another channel's, or none yet */
};

struct device_comm {
  struct device_comm_config config;
  char name[64];
  struct cuda_world *world;
  struct rank_control *control; /* memory of the host */
  struct arena_block control_block;
  struct cuda_order order;
  struct cuda_side side;
  bool hosted;        /* a connection of it lies behind a network, in memory of the host */
  bool net_on_device; /* ... but for its slots */
  bool overlaps;      /* a kernel may come onto the device while the one before it ends */
  ncclResult_t error; /* read atomically, written under cuda_mutex */
  uint64_t memory_bytes;
  uint64_t looked_ns;                        /* when somebody last asked whether the device still works */
  struct cuda_ring rings[PLAN_CHANNELS_MAX]; /* by channel */
  struct cuda_slab *slabs_read, **last_slab; /* that kernels may still read, oldest first */
  os_mutex conns_mutex;                      /* guards the next: a peer adds to it while this rank launches */
  struct map conns;                          /* its ends of connections, by backend_conn_key() */
  struct map slots;                 /* sets of pooled connections, by backend_slots_key(): blocks of memory */
  struct regions regions;           /* of the program, shown to other processes: under conns_mutex */
  uint32_t launching;               /* launches that are being made: what they bind is not in a kernel yet */
  struct cuda_guest_region *guests; /* of other processes' programs; under cuda_mutex */
  struct recorder_live live;        /* what recorders know of this rank; comm NULL: nobody records */
  uint64_t *blocks_after;           /* by launch modulo RECORD_LAUNCHES: blocks launched up to its end */
  struct cuda_lane_seen *lanes_seen; /* by place in the tagged words: who has said that it waits */
  struct device_comm *next;
};

/* Guards the list of ranks and whatever makes or frees connections. Comes before a rank's conns_mutex; never
 * held while core's lock is asked for, nor by a launch. */
extern os_mutex cuda_mutex;

/* For the length of a call: the rank's device, and leave to allocate while a stream of this thread is
 * captured. What is called within may not change the thread's device for good. */
struct cuda_scope {
  bool entered;
  enum cudaStreamCaptureMode mode;
};
/* The device alone, until left; false where that is not possible. The thread's own is put back as it was: a
 * thread that had none, whose device counts as the first, must not begin a context there, of half a gigabyte,
 * as by cudaSetDevice. */
bool cuda_device_enter(uint32_t device_index);
void cuda_device_leave(void);
struct cuda_scope cuda_scope_enter(uint32_t device_index);
void cuda_scope_leave(const struct cuda_scope *scope);

/* ncclSuccess, or the log's sentence about what failed. */
ncclResult_t cuda_result(int error, const char *what);
/* Zeroed memory; to be called within a scope. */
ncclResult_t cuda_zeroed_device(size_t bytes, void **pointer);
ncclResult_t cuda_zeroed_host(size_t bytes, void **pointer);
/* Zeroes memory of the current device, and waits until it is done; within a scope. */
ncclResult_t cuda_zero(void *pointer, size_t bytes);
/* The library's own stream of a device, which waits for no kernel of anybody's. */
cudaStream_t cuda_own_stream(uint32_t device_index);
/* Waits for what was put on the current device's. */
void cuda_settle(void);
/* A device that has a rank of this process, or else the thread's: the thread may be the library's own, whose
 * device counts as the first, and a try there would begin a context. With cuda_mutex held. */
uint32_t cuda_device_in_use(void);
/* No rank of the process has a kernel that is not over; with cuda_mutex held. */
bool cuda_all_idle(void);
/* The same of one rank. */
bool cuda_comm_idle(struct device_comm *comm);
/* Reads device memory over the same stream, within a scope. */
ncclResult_t cuda_memory_fetch(void *host, const void *device, size_t bytes);
/* Waits until the bytes are there; to be called within a scope. */
ncclResult_t cuda_memory_write(void *device, const void *host, size_t bytes);
/* True when kernels on `from` may store into memory of `to`: CUDA can, the settings allow it, and the link
 * has passed its self-test. Found out, and enabled, at the first question. Called with cuda_mutex held. */
bool cuda_reach(uint32_t from, uint32_t to);

/* False where only the device itself can be counted on to map an address: pools, mapped ranges, managed
 * memory. */
bool cuda_memory_is_plain(const void *pointer);
/* A function of the driver, NULL where this driver has none of that name. */
void *cuda_driver_function(const char *name);

/* conn.c. Locked. */
struct cuda_conn *cuda_conn_find(struct device_comm *comm, uint32_t peer, uint32_t channel_index,
                                 uint32_t conn_index, bool sends);
ncclResult_t cuda_conn_open(struct device_comm *sender, struct device_comm *receiver, uint32_t channel_index,
                            uint32_t conn_index, uint8_t proto);
/* One end, whose other end a proxy plays: memory of the host, but perhaps for its slots (dmabuf.c). */
ncclResult_t cuda_conn_net(struct device_comm *comm, const struct device_conn_name *name,
                           struct device_net_end *end);
ncclResult_t cuda_net_slots(struct device_comm *comm, uint32_t channel_index, uint32_t place, bool sends,
                            uint8_t **buffer);
bool cuda_net_ll(bool pxn);
bool cuda_net_take(struct device_net_conn *conn, const struct device_net_step *step, void *data);
void cuda_net_put(struct device_net_conn *conn, const struct device_net_step *step, const void *data);
void cuda_net_announce(struct device_net_conn *conn, uint32_t slot, uint32_t tag, uint64_t bytes);
void cuda_conn_close_all(struct device_comm *comm);

/* dmabuf.c */
bool cuda_net_memory(struct device_comm *comm, enum pointer_kind kind);
ncclResult_t cuda_memory_dmabuf(void *memory, size_t bytes, int *descriptor, uint64_t *offset);

/* launch_order.c: the order of a rank's kernels, whatever their streams. Within the rank's device. All but
 * open and close return a cudaError. */
ncclResult_t cuda_order_open(struct cuda_order *order, uint32_t device_index);
void cuda_order_close(struct cuda_order *order);
int cuda_order_capture(cudaStream_t stream, struct cuda_capture *capture);
/* Around the launch of a kernel of the rank on the first stream: it runs after all that came before on all
 * streams and after the rank's launches so far, and the other streams go on behind it. */
int cuda_order_before(struct cuda_order *order, const device_stream *streams, uint32_t stream_count,
                      const struct cuda_capture *capture);
int cuda_order_after(struct cuda_order *order, const device_stream *streams, uint32_t stream_count,
                     const struct cuda_capture *capture, uint32_t block_count);
/* *ended: no block of the rank is unfinished that the host launched or that a graph has begun. `seen` is
 * memory of the host that the device can write. */
int cuda_order_ended(const struct cuda_order *order, cudaStream_t stream, struct launch_counts *seen,
                     bool *ended);

/* slab.c: memory for large plans. */
ncclResult_t cuda_slabs_open(struct device_comm *comm);
void cuda_slabs_close(struct device_comm *comm); /* no kernel of the rank runs any more */
/* At least so large, from now on the caller's; within a scope. */
ncclResult_t cuda_slab_take(struct device_comm *comm, size_t bytes, struct cuda_slab **result);
/* Back to the pool: no kernel has seen it. */
void cuda_slab_put(struct cuda_slab *slab);
/* To the rank, until the kernel just launched on the stream has ended. */
void cuda_slab_hold(struct device_comm *comm, struct cuda_slab *slab, cudaStream_t stream);
/* To the graph, until it and all that was made of it are destroyed. */
ncclResult_t cuda_slab_leave(struct cuda_slab *slab, cudaGraph_t graph);

/* launch.c */
ncclResult_t cuda_launch(struct device_comm *comm, const struct plan *plan, const device_stream *streams,
                         uint32_t stream_count);

/* record.c: what recorders are told of kernels. */
#define RECORD_LAUNCHES 1024u
void cuda_record_open(struct device_comm *comm, const struct recorder_live *live);
void cuda_record_close(struct device_comm *comm);
/* A kernel was launched, or captured. */
void cuda_record_launch(struct device_comm *comm);
/* Which of them have ended is in counts_seen. */
void cuda_record_ended(struct device_comm *comm);
/* The seam's. */
void cuda_records_look(void);
/* All ranks of the process; with cuda_mutex held. */
struct device_comm *cuda_comms(void);

/* log.c: where the lines of log.h go in this library. */
void cuda_log_open(const struct backend_services *services);

/* The library's one exported function: its table, or NULL and a sentence why there is none. */
const struct backend *tutti_cuda_ops(const struct backend_services *services, char *reason,
                                     size_t reason_bytes);

#endif
