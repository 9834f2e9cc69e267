/* kernel_bulk.cu: the kernel of launches of long copies over Simple: copy engines move their data (compute
 * capability 9.0 and later; elsewhere it does the same as kernel_simple.cu). */
#include <cuda_runtime.h>

#define PRIM_WORDS 1
/* Few, because only edges, differently aligned spans and rare sums use them. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000 /* its code needs more registers */
#define PRIM_VECTORS 1
#else
#define PRIM_VECTORS 2
#endif
#define PRIM_SUM_VECTORS 4
#define PRIM_COPY_VECTORS 4
#define BLOCK_LANES_SHARED
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900 /* on CPUs, too: tests/simt has the instructions */
#define PRIM_BULK
#define WARP_GROUP_APART 3 /* one warp moves enough; a slice's end must not delay the next */
#endif
#define PRIM_PROTO PROTO_SIMPLE

#include "kernels/block.h"

extern "C" __global__ void __launch_bounds__(PRIM_THREADS, 1)
    tutti_kernel_bulk(const __grid_constant__ struct launch launch) {
  launch_run(&launch);
}
