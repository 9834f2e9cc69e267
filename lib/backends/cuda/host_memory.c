/* host_memory.c: memory of the host that all devices access. The pages are the library's own, and registered
 * with CUDA: those that CUDA allocates are unmapped when the program resets the device, under threads of the
 * library that read them. */
#include <cuda_runtime_api.h>
#include <string.h>
#include <sys/mman.h>

#include "backends/cuda/device.h"

/* False, and nothing is kept, where devices cannot use the host's address, or registering is refused. */
static bool own_pages_take(size_t bytes, struct cuda_host_memory *memory) {
  void *device = NULL;
  void *const pages = os_pages_map(bytes);
  if (pages == NULL) return false;
  madvise(pages, bytes, MADV_DONTFORK); /* a write after a fork would copy the pages that devices use */
  memset(pages, 0, bytes);
  if (cudaHostRegister(pages, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped) == cudaSuccess) {
    if (cudaHostGetDevicePointer(&device, pages, 0) == cudaSuccess && device == pages) {
      *memory = (struct cuda_host_memory){(uint8_t *)pages, bytes, true};
      return true;
    }
    cudaHostUnregister(pages);
  }
  cudaGetLastError();
  os_pages_unmap(pages, bytes);
  return false;
}

ncclResult_t cuda_host_take(size_t bytes, struct cuda_host_memory *memory) {
  void *fresh = NULL;
  if (own_pages_take(bytes, memory)) return ncclSuccess;
  TRY(cuda_result(cudaHostAlloc(&fresh, bytes, cudaHostAllocPortable | cudaHostAllocMapped),
                  "allocating memory of the host that devices see"));
  memset(fresh, 0, bytes);
  *memory = (struct cuda_host_memory){(uint8_t *)fresh, bytes, false};
  return ncclSuccess;
}

void cuda_host_give(struct cuda_host_memory *memory, bool lost) {
  cudaError_t error = cudaSuccess;
  if (memory->data == NULL) return;
  if (!lost) error = memory->own_pages ? cudaHostUnregister(memory->data) : cudaFreeHost(memory->data);
  if (error != cudaSuccess) cudaGetLastError();
  if (memory->own_pages) os_pages_unmap(memory->data, memory->bytes);
  memory->data = NULL;
}
