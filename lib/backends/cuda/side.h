/* side.h: a rank's stream for copies beside its kernels (side.c). */
#ifndef TUTTI_BACKENDS_CUDA_SIDE_H
#define TUTTI_BACKENDS_CUDA_SIDE_H

#include <cuda_runtime_api.h>

#include "backends/cuda/own_copy.h"

/* The stream, and the event that joins it with others; created at the first copy. */
struct cuda_side {
  cudaStream_t stream;
  cudaEvent_t turn;
};

/* Starts a copy after the work on the stream so far, concurrent with later work; returns a cudaError. */
int cuda_side_begin(struct cuda_side *side, const struct own_copy *copy, cudaStream_t stream);
/* Makes later work on the stream wait for the copy. */
int cuda_side_end(const struct cuda_side *side, cudaStream_t stream);
void cuda_side_close(struct cuda_side *side);

#endif
