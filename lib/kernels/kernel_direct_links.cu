/* kernel_direct_links.cu: the kernel of launches whose works are all direct collectives over LL, with
 * many links per side. */
#include "kernels/direct_ll.h"

PRIM_FN void direct_move_any(struct direct_run *it, bool awaits) {
  if (direct_moves_plain()) direct_move<LAUNCH_LINKS, 1, true>(it, awaits);
  else direct_move<LAUNCH_LINKS, 1, false>(it, awaits);
}

extern "C" __global__ void __launch_bounds__(LAUNCH_DIRECT_LINKS_WARPS *PRIM_WARP, 1)
    tutti_kernel_direct_links(const __grid_constant__ struct launch launch) {
  direct_launch<direct_run_ll<direct_move_any>>(&launch.arguments, launch.plan);
}
