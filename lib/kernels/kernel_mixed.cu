/* kernel_mixed.cu: the kernel of launches whose works use several protocols, and the loading and launching of
 * all kernels. */
#include <cuda_runtime.h>

#define PRIM_WORDS 2
/* Few, because the rest of the kernel needs registers. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define PRIM_VECTORS 1
#define PRIM_SUM_VECTORS 1
#define PRIM_COPY_VECTORS 2
#else
#define PRIM_VECTORS 2
#define PRIM_SUM_VECTORS 2
#define PRIM_COPY_VECTORS 4
#endif
#define BLOCK_LANES_SHARED

#include "kernels/block.h"

extern "C" __global__ void __launch_bounds__(PRIM_THREADS, 1)
    tutti_kernel_mixed(const __grid_constant__ struct launch launch) {
  launch_run(&launch);
}

extern "C" {
__global__ void tutti_kernel_ll(const __grid_constant__ struct launch launch);
__global__ void tutti_kernel_ll128(const __grid_constant__ struct launch launch);
__global__ void tutti_kernel_simple(const __grid_constant__ struct launch launch);
__global__ void tutti_kernel_ll_links(const __grid_constant__ struct launch launch);
__global__ void tutti_kernel_links(const __grid_constant__ struct launch launch);
__global__ void tutti_kernel_direct_ll(const __grid_constant__ struct launch launch);
__global__ void tutti_kernel_direct_links(const __grid_constant__ struct launch launch);
__global__ void tutti_kernel_direct_once(const __grid_constant__ struct launch launch);
__global__ void tutti_kernel_direct_once_lines(const __grid_constant__ struct launch launch);
__global__ void tutti_kernel_direct_once_links(const __grid_constant__ struct launch launch);
__global__ void tutti_kernel_bulk(const __grid_constant__ struct launch launch);
__global__ void tutti_kernel_direct_simple(const __grid_constant__ struct launch_long launch);
__global__ void tutti_kernel_direct_pair(const __grid_constant__ struct launch_long launch);
}

/* Indexed by enum work_proto, then by the numbers in launch.h. */
static const void *const kernels[LAUNCH_KERNELS] = {
    (const void *)tutti_kernel_ll,
    (const void *)tutti_kernel_ll128,
    (const void *)tutti_kernel_simple,
    (const void *)tutti_kernel_mixed,
    (const void *)tutti_kernel_ll_links,
    (const void *)tutti_kernel_links,
    (const void *)tutti_kernel_direct_ll,
    (const void *)tutti_kernel_bulk,
    (const void *)tutti_kernel_direct_once,
    (const void *)tutti_kernel_direct_once_lines,
    (const void *)tutti_kernel_direct_once_links,
    (const void *)tutti_kernel_direct_simple,
    (const void *)tutti_kernel_direct_links,
    (const void *)tutti_kernel_direct_pair,
};

/* Shared memory that a launch requests besides what its kernel declares, for the stages of bulk copies: the
 * minimum over all devices seen so far. */
static int stages_bytes = -1;

static cudaError_t stages_ask(void) {
  struct cudaFuncAttributes attributes;
  int device_index = 0, major = 0, most = 0;
  cudaError_t error = cudaGetDevice(&device_index);
  if (error == cudaSuccess)
    error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device_index);
  if (error != cudaSuccess || major < 9) return error;
  error = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device_index);
  if (error == cudaSuccess) error = cudaFuncGetAttributes(&attributes, kernels[LAUNCH_KERNEL_BULK]);
  if (error != cudaSuccess) return error;
  most = (most - (int)attributes.sharedSizeBytes) / 1024 * 1024;
  if (stages_bytes < 0 || most < stages_bytes) stages_bytes = most;
  return cudaFuncSetAttribute(kernels[LAUNCH_KERNEL_BULK], cudaFuncAttributeMaxDynamicSharedMemorySize, most);
}

extern "C" int step_kernel_launch(uint32_t kernel, const union launch_any *launch, uint32_t block_count,
                                  uint32_t warp_count, uint32_t cluster, bool overlaps, void *stream) {
  void *parameters[] = {(void *)launch};
  cudaLaunchAttribute attributes[2];
  cudaLaunchConfig_t config = {};
  config.attrs = attributes;
  if (overlaps) {
    attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (cluster > 1) {
    attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
    attributes[config.numAttrs].val.clusterDim.x = cluster;
    attributes[config.numAttrs].val.clusterDim.y = 1;
    attributes[config.numAttrs++].val.clusterDim.z = 1;
  }
  config.gridDim = dim3(block_count);
  config.blockDim = dim3(warp_count * PRIM_WARP);
  if (kernel == LAUNCH_KERNEL_BULK && stages_bytes > 0) config.dynamicSmemBytes = (size_t)stages_bytes;
  config.stream = (cudaStream_t)stream;
  return cudaLaunchKernelExC(&config, kernels[kernel], parameters);
}

extern "C" int step_kernel_load(void) {
  struct cudaFuncAttributes attributes;
  cudaError_t error = cudaSuccess;
  for (uint32_t i = 0; i < LAUNCH_KERNELS && error == cudaSuccess; i++)
    error = cudaFuncGetAttributes(&attributes, kernels[i]);
  return error == cudaSuccess ? stages_ask() : error;
}
