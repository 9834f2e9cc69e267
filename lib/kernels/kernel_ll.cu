/* kernel_ll.cu: the kernel of launches whose works all use LL. */
#include <cuda_runtime.h>

#define PRIM_WORDS 2
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900 /* its arithmetic needs more registers */
#define BLOCK_LANES_SHARED
#endif
#define PRIM_PROTO PROTO_LL

#include "kernels/block.h"

extern "C" __global__ void __launch_bounds__(PRIM_THREADS, 1)
    tutti_kernel_ll(const __grid_constant__ struct launch launch) {
  launch_run(&launch);
}
