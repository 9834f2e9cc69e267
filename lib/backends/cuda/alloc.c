/* alloc.c: memory of ncclMemAlloc. Where the device can, it is memory of cuMemCreate, of which descriptors
 * (and fabric handles) can be made, and all devices of the process that reach it have access. The mapping
 * alone keeps it: no handle does. Elsewhere, and with NCCL_CUMEM_ENABLE=0, it is of cudaMalloc. Its lock is
 * its own. */
#include <string.h>

#include "backends/cuda/vmm.h"
#include "base/log.h"
#include "base/param.h"

struct own_memory {
  struct vmm_memory memory;
  uint64_t mapped_bytes; /* whole pieces; 0: it is of cudaMalloc */
  uint32_t device_index;
  bool shared; /* devices that reach this one have access */
  struct own_memory *next;
};

static os_mutex lock = OS_MUTEX_INITIALIZER;
static struct own_memory *memories;

/* ---- what the device can ---- */

static bool device_maps(uint32_t device_index) {
  return param_int(PARAM_CUMEM_ENABLE) != 0 && vmm_driver() != NULL &&
         cuda_device_ask(device_index, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) &&
         cuda_device_ask(device_index, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
}

/* ---- allocating ---- */

static ncclResult_t alloc_failed(const char *call, CUresult error, uint32_t device_index, uint64_t bytes) {
  size_t free_bytes = 0, total = 0;
  if (error != CUDA_ERROR_OUT_OF_MEMORY)
    return log_fail(ncclUnhandledCudaError,
                    "ncclMemAlloc: %llu bytes on device %u: %s failed with CUDA error %d",
                    (unsigned long long)bytes, device_index, call, (int)error);
  if (cudaMemGetInfo(&free_bytes, &total) != cudaSuccess) cudaGetLastError();
  return log_fail(ncclUnhandledCudaError,
                  "ncclMemAlloc: device %u has no %llu bytes of memory: %zu of %zu are free; free what the "
                  "program does not need first",
                  device_index, (unsigned long long)bytes, free_bytes, total);
}

/* Fabric handles need a service (IMEX) that not every system runs. */
static CUresult physical_create(CUmemAllocationProp *properties, uint64_t bytes,
                                CUmemGenericAllocationHandle *handle) {
  const int descriptor = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  if (cuda_device_ask((uint32_t)properties->location.id, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED)) {
    properties->requestedHandleTypes = (CUmemAllocationHandleType)(descriptor | CU_MEM_HANDLE_TYPE_FABRIC);
    const CUresult error = vmm_driver()->create(handle, bytes, properties, 0);
    if (error == CUDA_SUCCESS || error == CUDA_ERROR_OUT_OF_MEMORY) return error;
  }
  properties->requestedHandleTypes = (CUmemAllocationHandleType)descriptor;
  return vmm_driver()->create(handle, bytes, properties, 0);
}

/* The size of pieces in which the driver allocates such memory; 0: unknown. */
static uint64_t properties_fill(uint32_t device_index, CUmemAllocationProp *properties) {
  size_t grain = 0;
  memset(properties, 0, sizeof *properties);
  properties->type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties->location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties->location.id = (int)device_index;
  properties->requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties->allocFlags.gpuDirectRDMACapable =
      cuda_device_ask(device_index, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED) != 0;
  const CUresult error = vmm_driver()->granularity(&grain, properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
  return error == CUDA_SUCCESS ? grain : 0;
}

/* True if all devices of the process that can access the memory's device were given access. */
static bool access_give_peers(uint32_t device_index, uint64_t base, uint64_t bytes) {
  int count = 0, possible = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) return false;
  for (int other = 0; other < count; other++) {
    if (other == (int)device_index) continue;
    if (cudaDeviceCanAccessPeer(&possible, other, (int)device_index) != cudaSuccess) return false;
    const CUmemAccessDesc access = vmm_access((uint32_t)other);
    if (possible && vmm_driver()->set_access((CUdeviceptr)base, bytes, &access, 1) != CUDA_SUCCESS)
      return false;
  }
  return true;
}

static ncclResult_t map_at(struct own_memory *own, CUmemGenericAllocationHandle handle) {
  const CUdeviceptr base = (CUdeviceptr)own->memory.base;
  const CUmemAccessDesc access = vmm_access(own->device_index);
  CUresult error = vmm_driver()->map(base, own->mapped_bytes, 0, handle, 0);
  if (error != CUDA_SUCCESS) return alloc_failed("cuMemMap", error, own->device_index, own->memory.bytes);
  error = vmm_driver()->set_access(base, own->mapped_bytes, &access, 1);
  if (error == CUDA_SUCCESS) {
    own->shared = access_give_peers(own->device_index, own->memory.base, own->mapped_bytes);
    return ncclSuccess;
  }
  vmm_driver()->unmap(base, own->mapped_bytes);
  return alloc_failed("cuMemSetAccess", error, own->device_index, own->memory.bytes);
}

static ncclResult_t alloc_mapped(struct own_memory *own) {
  CUmemAllocationProp properties;
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr base = 0;
  const uint64_t bytes = own->memory.bytes, grain = properties_fill(own->device_index, &properties);
  if (grain == 0 || bytes > UINT64_MAX - grain)
    return alloc_failed("cuMemGetAllocationGranularity", CUDA_ERROR_INVALID_VALUE, own->device_index, bytes);
  own->mapped_bytes = (bytes + grain - 1) / grain * grain;
  CUresult error = physical_create(&properties, own->mapped_bytes, &handle);
  if (error != CUDA_SUCCESS) return alloc_failed("cuMemCreate", error, own->device_index, bytes);
  error = vmm_driver()->reserve(&base, own->mapped_bytes, grain, 0, 0);
  ncclResult_t result = ncclSuccess;
  if (error != CUDA_SUCCESS) result = alloc_failed("cuMemAddressReserve", error, own->device_index, bytes);
  own->memory.base = base;
  if (result == ncclSuccess) result = map_at(own, handle);
  if (result != ncclSuccess && base != 0) vmm_driver()->unreserve(base, own->mapped_bytes);
  vmm_driver()->release(handle);
  return result;
}

static ncclResult_t alloc_plain(struct own_memory *own) {
  void *pointer = NULL;
  const cudaError_t error = cudaMalloc(&pointer, own->memory.bytes);
  own->memory.base = (uint64_t)(uintptr_t)pointer;
  if (error == cudaSuccess) return ncclSuccess;
  cudaGetLastError();
  return alloc_failed("cudaMalloc",
                      error == cudaErrorMemoryAllocation ? CUDA_ERROR_OUT_OF_MEMORY : (CUresult)error,
                      own->device_index, own->memory.bytes);
}

ncclResult_t cuda_memory_alloc(uint32_t device_index, size_t bytes, void **pointer) {
  static uint64_t last_id;
  struct own_memory *own = (struct own_memory *)os_alloc(sizeof *own);
  if (own == NULL) return log_no_memory("ncclMemAlloc: noting %zu bytes", bytes);
  own->memory.bytes = bytes;
  own->device_index = device_index;
  const struct cuda_scope scope = cuda_scope_enter(device_index);
  const ncclResult_t result = device_maps(device_index) ? alloc_mapped(own) : alloc_plain(own);
  cuda_scope_leave(&scope);
  if (result != ncclSuccess) {
    os_free(own);
    return result;
  }
  *pointer = (void *)(uintptr_t)own->memory.base;
  os_mutex_lock(&lock);
  own->memory.id = ++last_id;
  own->next = memories;
  memories = own;
  os_mutex_unlock(&lock);
  return ncclSuccess;
}

/* ---- finding and freeing ---- */

/* The place in the list of the allocation that contains the address; of NULL: none does. */
static struct own_memory **own_place(const void *pointer) {
  const uint64_t address = (uint64_t)(uintptr_t)pointer;
  struct own_memory **place = &memories;
  while (*place != NULL && address - (*place)->memory.base >= (*place)->memory.bytes) place = &(*place)->next;
  return place;
}

bool cuda_memory_find_own(const void *pointer, struct vmm_memory *memory) {
  os_mutex_lock(&lock);
  const struct own_memory *own = *own_place(pointer);
  const bool found = own != NULL && own->shared;
  if (found) *memory = own->memory;
  os_mutex_unlock(&lock);
  return found;
}

static ncclResult_t free_mapped(const struct own_memory *own) {
  const CUdeviceptr base = (CUdeviceptr)own->memory.base;
  const struct cuda_scope scope = cuda_scope_enter(own->device_index);
  if (cudaDeviceSynchronize() != cudaSuccess) cudaGetLastError(); /* as cudaFree does */
  CUresult error = vmm_driver()->unmap(base, own->mapped_bytes);
  if (error == CUDA_SUCCESS) error = vmm_driver()->unreserve(base, own->mapped_bytes);
  cuda_scope_leave(&scope);
  if (error == CUDA_SUCCESS) return ncclSuccess;
  return log_fail(ncclUnhandledCudaError,
                  "ncclMemFree: unmapping %llu bytes of device %u failed with CUDA error %d",
                  (unsigned long long)own->memory.bytes, own->device_index, (int)error);
}

ncclResult_t cuda_memory_free(void *pointer) {
  struct vmm_memory found = {0, 0, 0};
  os_mutex_lock(&lock);
  struct own_memory **place = own_place(pointer), *own = *place;
  if (own != NULL) found = own->memory;
  const bool begins = own != NULL && found.base == (uint64_t)(uintptr_t)pointer;
  if (begins) *place = own->next;
  os_mutex_unlock(&lock);
  if (own == NULL)
    return log_fail(
        ncclInvalidArgument,
        "ncclMemFree of %p, which ncclMemAlloc did not allocate or which is freed already; memory of "
        "cudaMalloc belongs to cudaFree",
        pointer);
  if (!begins)
    return log_fail(
        ncclInvalidArgument,
        "ncclMemFree of %p, which is not where an allocation begins; pass 0x%llx, which ncclMemAlloc "
        "returned",
        pointer, (unsigned long long)found.base);
  const ncclResult_t result = own->mapped_bytes > 0
                                  ? free_mapped(own)
                                  : cuda_result(cudaFree(pointer), "ncclMemFree: freeing device memory");
  os_free(own);
  return result;
}
