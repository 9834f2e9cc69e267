/* kernel_ll128.cu: the kernel of launches whose works all use LL128. */
#include <cuda_runtime.h>

#define BLOCK_LANES_SHARED
#define PRIM_PROTO PROTO_LL128

#include "kernels/block.h"

extern "C" __global__ void __launch_bounds__(PRIM_THREADS, 1)
    tutti_kernel_ll128(const __grid_constant__ struct launch launch) {
  launch_run(&launch);
}
