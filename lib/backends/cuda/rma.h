/* rma.h: one-sided calls (rma.c). */
#ifndef TUTTI_BACKENDS_CUDA_RMA_H
#define TUTTI_BACKENDS_CUDA_RMA_H

#include <cuda_runtime_api.h>

#include "backends/backend.h"

/* The end of a rank's last put for a peer, or of its last wait on a stream. */
struct cuda_rma_end {
  cudaEvent_t event; /* atomic; NULL: none */
  uint64_t stream_key;
  struct cuda_rma_end *next; /* of waits */
};

struct cuda_rma_there; /* rma_remote.c */

/* What the rank's waits need of a peer. */
struct cuda_rma_need {
  uint64_t number, operation; /* atomic: the last signal, and the call that waits for it */
  uint8_t func;               /* atomic: of that call */
};

/* A rank's. Written by the thread that uses the communicator; others look whether the ends have passed, so
 * nothing is freed or moved before the close. */
struct cuda_rma {
  struct cuda_rma_end *puts;    /* atomic; by peer; NULL before the first */
  struct cuda_rma_end *waits;   /* atomic; as many as streams have waited at a time */
  struct cuda_rma_need *needs;  /* atomic; by signal_place(); NULL before the first wait */
  struct cuda_rma_there *there; /* by rank: counters in other processes; NULL before the first */
  uint32_t putting;             /* atomic: a put into another process's memory is being enqueued */
  bool moves_own;               /* a copy beside the stream, up to its next wait */
};

/* For struct device_ops. */
bool cuda_comm_reaches(struct device_comm *comm, struct device_comm *target, const void *memory,
                       size_t bytes);
ncclResult_t cuda_put(struct device_comm *comm, const struct device_put *put, device_stream stream);
ncclResult_t cuda_await(struct device_comm *comm, const struct plan_call *call,
                        const struct device_await *awaits, uint32_t await_count, device_stream stream);

/* Of a rank: its counters of signals, by the rank that sends them, where devices access them. Those that
 * other processes may map are in shared memory. With cuda_mutex held, within a scope. */
struct arena_block;
ncclResult_t cuda_rma_signals(const struct device_comm *comm, const struct arena_block **block);
/* The world ends. Counters that other processes may still store to are kept until no rank is open, when
 * cuda_rma_kept_drop() frees them. With cuda_mutex held. */
struct cuda_world;
void cuda_rma_signals_close(struct cuda_world *world, uint32_t rank_count);
void cuda_rma_kept_drop(void);

/* rma_remote.c: ranks of other processes of the host. */
bool cuda_puts_between(void);
ncclResult_t cuda_signals_export(struct device_comm *comm, struct device_conn_handle *handle);
ncclResult_t cuda_signals_import(struct device_comm *comm, uint32_t peer,
                                 const struct device_conn_handle *handle);
void cuda_put_window_map(struct device_comm *comm, uint32_t peer, uint64_t address, size_t bytes,
                         void **mapped);
/* *signal: this rank's counter at the peer. What the put stores to stays mapped until cuda_rma_put_end(). */
ncclResult_t cuda_rma_put_begin(struct device_comm *comm, const struct device_put *put, uint64_t **signal);
void cuda_rma_put_end(struct device_comm *comm);
/* With cuda_mutex held. */
void cuda_rma_there_close(struct device_comm *comm);

/* Signals that waits of the rank lack. Asks no driver, which might wait. */
void cuda_rma_stall(const struct device_comm *comm, struct device_stall *stall);
/* All that the rank has called has ended; within a scope. */
bool cuda_rma_idle(struct device_comm *comm);
/* The rank is aborted: its waits end. Any thread. */
void cuda_rma_abort(struct device_comm *comm);
/* `lost`: with the device, which was reset. */
void cuda_rma_close(struct device_comm *comm, bool lost);

#endif
