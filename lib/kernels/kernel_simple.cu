/* kernel_simple.cu: the kernel of launches whose works all use Simple. */
#include <cuda_runtime.h>

#define BLOCK_LANES_SHARED
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 1000
#define PRIM_OUTLINE static __device__ __noinline__ /* opening a lane: inlined, it spills a few registers */
#endif
#define PRIM_PROTO PROTO_SIMPLE

#include "kernels/block.h"

extern "C" __global__ void __launch_bounds__(PRIM_THREADS, 1)
    tutti_kernel_simple(const __grid_constant__ struct launch launch) {
  launch_run(&launch);
}
