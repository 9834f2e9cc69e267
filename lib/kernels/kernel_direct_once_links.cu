/* kernel_direct_once_links.cu: the same for many links per side. */
#include <cuda_runtime.h>

#include "kernels/link_count.h"

#define PRIM_WORDS 1
#define PRIM_LINKS LAUNCH_LINKS
#define PRIM_ALGOS 1
#define PRIM_PROTO PROTO_LL
#define DIRECT_ONCE_LINKS LAUNCH_LINKS

#include "kernels/direct_once.h"

extern "C" __global__ void __launch_bounds__(LAUNCH_ONCE_LINKS_WARPS *PRIM_WARP, 1)
    tutti_kernel_direct_once_links(const __grid_constant__ struct launch launch) {
  direct_launch<direct_run_once>(&launch.arguments, launch.plan);
}
