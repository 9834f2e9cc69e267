/* device.h: what the host half's files share about ranks, connections and the memory of launches. */
#ifndef TUTTI_BACKENDS_CUDA_DEVICE_H
#define TUTTI_BACKENDS_CUDA_DEVICE_H

#include <cuda_runtime_api.h>

#include "backends/backend.h"
#include "base/map.h"
#include "backends/cuda/launch.h"
#include "base/os.h"

/* One connection of two ranks; shared by both ends, freed by the second that closes. */
struct cuda_conn {
  void *fifo; /* addresses that both ends' devices can use */
  uint8_t *buffer[PROTO_COUNT];
  bool on_host; /* the devices do not reach each other: all of it is memory of the host */
  uint32_t reference_count;
};

/* Memory of the host that carries one plan to the kernel. */
struct cuda_slab {
  uint8_t *data;
  size_t bytes;
  uint64_t number; /* the launch that reads it; UINT64_MAX: a graph does, until the rank is closed */
  bool owns_data;  /* else a part of the rank's arena */
  struct cuda_slab *next;
};

/* What the ranks of one communicator share in this process. */
struct cuda_world {
  uint64_t comm_id;
  uint32_t rank_count; /* that are open */
  int *failed;         /* memory of the host that all devices see */
  struct cuda_world *next;
};

struct device_comm {
  struct device_comm_config config;
  char name[64];
  struct cuda_world *world;
  struct rank_cells *cells; /* memory of the host */
  uint32_t *blocks_ended;   /* memory of the device */
  ncclResult_t error;
  uint64_t launches; /* that were counted: those of graphs are not */
  uint64_t memory_bytes;
  uint32_t device_looks; /* times that somebody asked whether the device still works */
  cudaEvent_t serial;    /* end of the rank's last launch, graphs included */
  cudaEvent_t captured;  /* end of the last launch within the graph `graph_id` */
  cudaEvent_t join;
  unsigned long long graph_id;
  uint32_t *ring_ranks; /* the ring's order, memory of the host */
  uint8_t *arena;
  struct cuda_slab *slabs;
  struct map conns; /* its ends of connections, by backend_conn_key() */
  struct device_comm *next;
};

/* Guards the list of ranks and their tables of connections. Never held while core's lock is asked for. */
extern os_mutex cuda_mutex;

/* For the length of a call: the rank's device, and leave to allocate while a stream of this thread is
 * captured. */
struct cuda_scope {
  int device_before;
  enum cudaStreamCaptureMode mode;
};
struct cuda_scope cuda_scope_enter(uint32_t device_index);
void cuda_scope_leave(const struct cuda_scope *scope);

/* ncclSuccess, or the log's sentence about what failed. */
ncclResult_t cuda_result(int error, const char *what);
/* Zeroed memory; to be called within a scope. */
ncclResult_t cuda_zeroed_device(size_t bytes, void **pointer);
ncclResult_t cuda_zeroed_host(size_t bytes, void **pointer);
/* Devices whose kernels may store into each other's memory; enabled at the first question. */
bool cuda_reach(uint32_t from, uint32_t to);

/* False where only the device itself can be counted on to map an address: pools, mapped ranges, managed
 * memory. */
bool cuda_memory_is_plain(const void *pointer);
/* *graph_id tells captures apart; 0 when the stream is in none. */
int cuda_capture_info(cudaStream_t stream, unsigned long long *graph_id);

/* conn.c. Locked. */
struct cuda_conn *cuda_conn_find(struct device_comm *comm, uint32_t peer, uint32_t channel_index,
                                 uint32_t conn_index, bool sends);
ncclResult_t cuda_conn_open(struct device_comm *sender, struct device_comm *receiver, uint32_t channel_index,
                            uint32_t conn_index, uint8_t proto);
void cuda_conn_close_all(struct device_comm *comm);

/* launch.c */
ncclResult_t cuda_arena_open(struct device_comm *comm);
void cuda_arena_close(struct device_comm *comm);
ncclResult_t cuda_launch(struct device_comm *comm, const struct plan *plan, const device_stream *streams,
                         uint32_t stream_count);

/* log.c: where the lines of log.h go in this library. */
void cuda_log_open(const struct backend_services *services);

/* The library's one exported function: its table, or NULL and a sentence why there is none. */
const struct device_ops *tutti_cuda_ops(const struct backend_services *services, char *reason,
                                        size_t reason_bytes);

#endif
