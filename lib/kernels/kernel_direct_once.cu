/* kernel_direct_once.cu: the kernel of launches whose works are all direct collectives over LL in a single
 * pass, with few links per side. */
#define DIRECT_ONCE

#include "kernels/direct_ll.h"

extern "C" __global__ void __launch_bounds__(LAUNCH_ONCE_WARPS *PRIM_WARP, 1)
    tutti_kernel_direct_once(const __grid_constant__ struct launch launch) {
  direct_launch<direct_run_ll<direct_move<LAUNCH_ONCE_LINKS, 1, true>>>(&launch.arguments, launch.plan);
}
