/* kernel_exchange_ll.cu: the kernel of launches whose works are all direct exchanges in LL. */
#include <cuda_runtime.h>

#include "backends/cuda/link_count.h"

#define PRIM_WORDS 1
#define PRIM_LINKS LAUNCH_LINKS
#define PRIM_ALGOS 1
#define PRIM_PROTO PROTO_LL

#include "kernels/exchange.h"

extern "C" __global__ void __launch_bounds__(LAUNCH_EXCHANGE_WARPS *PRIM_WARP, 1)
    tutti_kernel_exchange_ll(const __grid_constant__ struct launch launch) {
  exchange_launch<exchange_run_lines<exchange_work_lines>, true>(&launch.arguments, launch.plan);
}
