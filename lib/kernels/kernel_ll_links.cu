/* kernel_ll_links.cu: the kernel of launches whose works all speak LL, and some of which have more than one
 * link a side: trees and direct collectives of what is small. */
#include <cuda_runtime.h>

#define PRIM_WORDS 1
#define PRIM_LINKS LAUNCH_LINKS
#define PRIM_ALGOS 1
#define PRIM_PROTO PROTO_LL
#define BLOCK_LANES_SHARED
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900 /* arithmetic that takes more registers */
#define PRIM_OUTLINE static __device__ __noinline__
#define PRIM_UNROLL _Pragma("unroll 1")
#endif

#include "kernels/link_count.h"
#include "kernels/block.h"

extern "C" __global__ void __launch_bounds__(PRIM_THREADS, 1)
    tutti_kernel_ll_links(const __grid_constant__ struct launch launch) {
  launch_run(&launch);
}
