/* kernel_direct_ll.cu: the kernel of launches whose works are all direct collectives over LL. */
#include <cuda_runtime.h>

#include "kernels/link_count.h"

#define PRIM_WORDS 1
#define PRIM_LINKS LAUNCH_LINKS
#define PRIM_ALGOS 1
#define PRIM_PROTO PROTO_LL

#include "kernels/direct_ll.h"

extern "C" __global__ void __launch_bounds__(LAUNCH_DIRECT_WARPS *PRIM_WARP, 1)
    tutti_kernel_direct_ll(const __grid_constant__ struct launch launch) {
  direct_launch<direct_run_phases>(&launch.arguments, launch.plan);
}
