/* side.h: a rank's stream for copies beside its kernels (side.c). */
#ifndef TUTTI_BACKENDS_CUDA_SIDE_H
#define TUTTI_BACKENDS_CUDA_SIDE_H

#include <cuda_runtime_api.h>

#include "backends/cuda/own_copy.h"

/* The stream, and the event that joins it with others; made when the first copy is. */
struct cuda_side {
  cudaStream_t stream;
  cudaEvent_t turn;
};

/* A copy behind what is on the stream so far, beside what follows; a cudaError. */
int cuda_side_begin(struct cuda_side *side, const struct own_copy *copy, cudaStream_t stream);
/* What is put on the stream from here on waits for the copy. */
int cuda_side_end(const struct cuda_side *side, cudaStream_t stream);
void cuda_side_close(struct cuda_side *side);

#endif
