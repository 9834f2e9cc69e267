/* dmabuf.c: slots of network connections in the device's own memory, and what a network needs to reach them:
 * a DMA-BUF of the memory. Used only with TUTTI_NET_DEVICE_SLOTS, because it has not run on hardware yet. */
#include <cuda.h>
#include <unistd.h>

#include "backends/cuda/device.h"
#include "base/log.h"

typedef CUresult (*range_handle)(void *handle, CUdeviceptr address, size_t bytes, CUmemRangeHandleType type,
                                 unsigned long long flags);

bool cuda_net_memory(struct device_comm *comm, enum pointer_kind kind) {
  comm->net_on_device =
      kind == POINTER_DEVICE &&
      cuda_device_ask(comm->config.device_index, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED) != 0;
  return comm->net_on_device;
}

ncclResult_t cuda_memory_dmabuf(void *memory, size_t bytes, int *descriptor, uint64_t *offset) {
  const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE); /* 4 or 64 KiB on ARM */
  const uint64_t address = (uint64_t)(uintptr_t)memory, begin = address & ~(page - 1);
  const uint64_t end = (address + bytes + page - 1) & ~(page - 1);
  range_handle ask = NULL;
  *(void **)&ask = cuda_driver_function("cuMemGetHandleForAddressRange");
  if (ask == NULL)
    return log_fail(
        ncclSystemError,
        "this driver gives no DMA-BUF of a device's memory (cuMemGetHandleForAddressRange): unset "
        "TUTTI_NET_DEVICE_SLOTS");
  const CUresult result =
      ask(descriptor, (CUdeviceptr)begin, end - begin, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
  if (result != CUDA_SUCCESS)
    return log_fail(
        ncclSystemError,
        "no DMA-BUF of %zu bytes of device memory can be had (cuMemGetHandleForAddressRange: %d): "
        "the kernel's driver must be the open one, and Linux 5.12 or later; unset "
        "TUTTI_NET_DEVICE_SLOTS",
        bytes, (int)result);
  *offset = address - begin;
  return ncclSuccess;
}
