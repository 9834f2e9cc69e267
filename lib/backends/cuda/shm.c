/* shm.c: see shm.h. With unified addressing a registered page has one address for all devices, which need not
 * be the host's. So after registration only devices access the pages. */
#include "backends/cuda/shm.h"

#include <cuda_runtime_api.h>

#include "base/log.h"

static const char *cure_of(cudaError_t error) {
  if (error == cudaErrorMemoryAllocation) return "raise the memory limit of the container, or `ulimit -l`";
  return "the driver, or the sandbox that this process runs in, does not allow it";
}

static ncclResult_t register_failed(const struct shm_pages *pages, const char *whose, const char *call,
                                    cudaError_t error) {
  cudaGetLastError();
  return log_fail(ncclUnhandledCudaError,
                  "%.0f KiB of shared memory of %s cannot be used by the GPU: %s failed with CUDA error %d "
                  "(%s): %s; NCCL_SHM_DISABLE=1 avoids the attempt",
                  (double)pages->bytes / 1024, whose, call, (int)error, cudaGetErrorString(error),
                  cure_of(error));
}

ncclResult_t cuda_shm_register(struct shm_pages *pages, const char *whose) {
  void *device = NULL;
  if (pages->device != NULL) return ncclSuccess;
  cudaError_t error =
      cudaHostRegister(pages->host, pages->bytes, cudaHostRegisterPortable | cudaHostRegisterMapped);
  if (error != cudaSuccess) return register_failed(pages, whose, "cudaHostRegister", error);
  error = cudaHostGetDevicePointer(&device, pages->host, 0);
  if (error == cudaSuccess) {
    pages->device = (uint8_t *)device;
    return ncclSuccess;
  }
  cudaHostUnregister(pages->host);
  return register_failed(pages, whose, "cudaHostGetDevicePointer", error);
}

void cuda_shm_unregister(struct shm_pages *pages) {
  if (pages->device != NULL && cudaHostUnregister(pages->host) != cudaSuccess) cudaGetLastError();
  pages->device = NULL;
}

/* The pages are taken first: a registration beyond a limit would end the process. */
ncclResult_t cuda_shm_make(uint64_t bytes, struct shm_pages *pages, struct share_ticket *ticket) {
  struct shm_pages fresh = {NULL, NULL, bytes, bytes};
  TRY(share_alloc(bytes, &fresh.host, ticket));
  ncclResult_t result = share_reserve(fresh.host, 0, bytes);
  if (result == ncclSuccess) result = cuda_shm_register(&fresh, "this process");
  if (result == ncclSuccess) *pages = fresh;
  else cuda_shm_free(&fresh);
  return result;
}

void cuda_shm_free(struct shm_pages *pages) {
  if (pages->host == NULL) return;
  cuda_shm_unregister(pages);
  share_free(pages->host);
  pages->host = NULL;
}

ncclResult_t cuda_shm_map(const struct share_ticket *ticket, uint64_t bytes, const char *whose,
                          struct shm_pages *pages) {
  struct shm_pages mapped = {NULL, NULL, bytes, ticket->bytes};
  TRY(share_map(ticket, &mapped.host));
  const ncclResult_t result = cuda_shm_register(&mapped, whose);
  if (result == ncclSuccess) *pages = mapped;
  else cuda_shm_unmap(&mapped);
  return result;
}

void cuda_shm_unmap(struct shm_pages *pages) {
  if (pages->host == NULL) return;
  cuda_shm_unregister(pages);
  share_unmap(pages->host, pages->mapped_bytes);
  pages->host = NULL;
}
