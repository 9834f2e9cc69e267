/* kernel_links.cu: the kernel of launches in which works have more than one link a side, in LL and Simple. */
#include <cuda_runtime.h>

#define PRIM_WORDS 1
#define PRIM_VECTORS 4
#define PRIM_SUM_VECTORS 4
#define PRIM_COPY_VECTORS 8
#define PRIM_LINKS LAUNCH_LINKS
#define PRIM_ALGOS 1
/* A lane's begin takes more registers than are left beside the rest, and is rare where messages are long. */
#define PRIM_OUTLINE static __device__ __noinline__
#define PRIM_UNROLL _Pragma("unroll 1")
#define BLOCK_LANES_SHARED

#include "kernels/link_count.h"
#include "kernels/block.h"

extern "C" __global__ void __launch_bounds__(PRIM_THREADS, 1)
    tutti_kernel_links(const __grid_constant__ struct launch launch) {
  launch_run(&launch);
}
