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

/* A rank's. Written by the thread that uses the communicator; others look whether the ends have passed, so
 * nothing is freed or moved before the close. */
struct cuda_rma {
  struct cuda_rma_end *puts;  /* atomic; by peer; NULL before the first */
  struct cuda_rma_end *waits; /* atomic; as many as streams have waited at a time */
};

/* For struct device_ops. */
ncclResult_t cuda_put(struct device_comm *comm, const struct device_put *put, device_stream stream);
ncclResult_t cuda_await(struct device_comm *comm, const struct plan_call *call,
                        const struct device_await *awaits, uint32_t await_count, device_stream stream);

/* All that the rank has called has ended; within a scope. */
bool cuda_rma_idle(struct device_comm *comm);
/* The rank is aborted: its waits end. Any thread. */
void cuda_rma_abort(struct device_comm *comm);
/* `lost`: with the device, which was reset. */
void cuda_rma_close(struct device_comm *comm, bool lost);

#endif
