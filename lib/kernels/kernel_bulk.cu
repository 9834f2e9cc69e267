/* kernel_bulk.cu: the kernel of launches of long copies, all of Simple: copy engines carry what they move
 * (compute capability 9.0 and later; elsewhere it does as kernel_simple.cu does). */
#include <cuda_runtime.h>

#define PRIM_WORDS 1
/* Few: for edges, for what does not lie alike, and for sums, which other kernels do. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000 /* whose code takes more registers beside */
#define PRIM_VECTORS 1
#else
#define PRIM_VECTORS 2
#endif
#define PRIM_SUM_VECTORS 4
#define PRIM_COPY_VECTORS 4
#define BLOCK_LANES_SHARED
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define PRIM_BULK
#define WARP_GROUP_APART 3 /* one warp moves enough; a slice's end may not hold up the next one */
#endif
#define PRIM_PROTO PROTO_SIMPLE

#include "kernels/block.h"

extern "C" __global__ void __launch_bounds__(PRIM_THREADS, 1)
    tutti_kernel_bulk(const __grid_constant__ struct launch launch) {
  launch_run(&launch);
}
