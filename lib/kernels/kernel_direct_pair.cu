/* kernel_direct_pair.cu: the kernel of launches whose works are all direct collectives over Simple of two
 * ranks, some of which add. */
#include <cuda_runtime.h>

#include "kernels/link_count.h"

#define PRIM_WORDS 1
#define PRIM_LINKS LAUNCH_LINKS
#define PRIM_ALGOS 1
#define PRIM_PROTO PROTO_SIMPLE
#define PRIM_VECTORS 2
#define PRIM_SUM_VECTORS 2
#define PRIM_COPY_VECTORS 4

#define DIRECT_PAIR 1

#include "kernels/direct_simple.h"

extern "C" __global__ void __launch_bounds__(LAUNCH_DIRECT_SIMPLE_WARPS *PRIM_WARP, 1)
    tutti_kernel_direct_pair(const __grid_constant__ struct launch_long launch) {
  direct_launch<direct_run_phases>(&launch.arguments, launch.plan);
}
