/* dmabuf.c: slots of network connections in the device's own memory, and what a network needs to reach them:
 * a DMA-BUF of the memory. It has run with emulated devices only. */
#include <cuda.h>
#include <unistd.h>

#include "backends/cuda/device.h"
#include "base/log.h"

typedef CUresult (*range_handle)(void *handle, CUdeviceptr address, size_t bytes, CUmemRangeHandleType type,
                                 unsigned long long flags);

uint32_t cuda_net_rdma(struct device_comm *comm) {
  const uint32_t device_index = comm->config.device_index;
  uint32_t able = 0;
  if (cuda_device_ask(device_index, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED) != 0 &&
      cuda_driver_function("cuMemGetHandleForAddressRange") != NULL)
    able |= DEVICE_RDMA_DMABUF;
  if (cuda_device_ask(device_index, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED) != 0)
    able |= DEVICE_RDMA_ADDRESS;
  if (cuda_device_ask(device_index, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING) >=
      CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER)
    able |= DEVICE_RDMA_ORDERED;
  return able;
}

void cuda_net_memory(struct device_comm *comm, enum pointer_kind receives, enum pointer_kind sends) {
  comm->net_memory[false] = receives;
  comm->net_memory[true] = sends;
}

ncclResult_t cuda_memory_dmabuf(void *memory, size_t bytes, int *descriptor, uint64_t *offset) {
  const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE); /* 4 or 64 KiB on ARM */
  const uint64_t address = (uint64_t)(uintptr_t)memory, begin = address & ~(page - 1);
  const uint64_t end = (address + bytes + page - 1) & ~(page - 1);
  range_handle ask = NULL;
  *(void **)&ask = cuda_driver_function("cuMemGetHandleForAddressRange");
  if (ask == NULL)
    return log_fail(ncclSystemError,
                    "this driver gives no DMA-BUF of a device's memory (cuMemGetHandleForAddressRange): set "
                    "TUTTI_NET_DEVICE_SLOTS=0");
  const CUresult result =
      ask(descriptor, (CUdeviceptr)begin, end - begin, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
  if (result != CUDA_SUCCESS)
    return log_fail(
        ncclSystemError,
        "no DMA-BUF of %zu bytes of device memory can be had (cuMemGetHandleForAddressRange: %d): "
        "the kernel's driver must be the open one, and Linux 5.12 or later; else set "
        "TUTTI_NET_DEVICE_SLOTS=0",
        bytes, (int)result);
  *offset = address - begin;
  return ncclSuccess;
}
