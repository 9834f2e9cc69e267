/* kernel_direct_ll.cu: the kernel of launches whose works are all direct collectives over LL, with few
 * links per side. */
#include "kernels/direct_ll.h"

/* Lines per link that a thread has in flight; limited by registers. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
#define FEW_LINES 2
#else
#define FEW_LINES 1
#endif

PRIM_FN void direct_move_any(struct direct_run *it, bool awaits) {
  if (direct_moves_plain()) direct_move<LAUNCH_ONCE_LINKS, FEW_LINES, true>(it, awaits);
  else direct_move<LAUNCH_ONCE_LINKS, 1, false>(it, awaits);
}

extern "C" __global__ void __launch_bounds__(LAUNCH_DIRECT_WARPS *PRIM_WARP, 1)
    tutti_kernel_direct_ll(const __grid_constant__ struct launch launch) {
  direct_launch<direct_run_ll<direct_move_any>>(&launch.arguments, launch.plan);
}
