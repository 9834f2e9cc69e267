/* access.c: memory of cuMemCreate that kernels of the process's other devices access. The program says which
 * devices may access what it maps; other devices of its ranks are given access here. Nothing is kept: access
 * ends with a mapping, whatever is mapped there next, so the driver is asked at each launch. */
#include "backends/cuda/ipc.h"
#include "backends/cuda/vmm.h"
#include "base/log.h"

#define PIECES_MOST 2048u /* of a buffer: each costs questions at each launch */

static bool has_access(uint64_t address, uint32_t device_index) {
  const CUmemLocation location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = (int)device_index};
  unsigned long long flags = 0;
  return vmm_driver()->get_access(&flags, &location, (CUdeviceptr)address) == CUDA_SUCCESS &&
         flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
}

/* The mappings in which a buffer lies. */
struct pieces {
  uint64_t base, end;
  bool accessible, own; /* all of them: by the device in question; memory of the rank's device */
};

static bool is_of_device(uint64_t address, uint32_t device_index) {
  struct cudaPointerAttributes attributes;
  if (cudaPointerGetAttributes(&attributes, (const void *)(uintptr_t)address) != cudaSuccess) {
    cudaGetLastError();
    return false;
  }
  return attributes.type == cudaMemoryTypeDevice && attributes.device == (int)device_index;
}

/* False: parts of the buffer are not mapped, or it has too many. */
static bool pieces_find(uint64_t address, uint64_t end, uint32_t own, uint32_t device_index,
                        struct pieces *pieces) {
  uint64_t base = 0, bytes = 0;
  *pieces = (struct pieces){0, address, true, true};
  for (uint32_t count = 0; pieces->end < end; count++) {
    if (count == PIECES_MOST || !cuda_memory_range(pieces->end, &base, &bytes)) return false;
    if (count == 0) pieces->base = base;
    pieces->accessible = pieces->accessible && has_access(base, device_index);
    if (!pieces->accessible) pieces->own = pieces->own && is_of_device(base, own);
    pieces->end = base + bytes;
  }
  return true;
}

static bool access_give(struct device_comm *comm, const struct pieces *pieces, uint32_t device_index) {
  const CUmemAccessDesc access = vmm_access(device_index);
  const struct cuda_scope scope = cuda_scope_enter(comm->config.device_index);
  const CUresult error =
      vmm_driver()->set_access((CUdeviceptr)pieces->base, pieces->end - pieces->base, &access, 1);
  cuda_scope_leave(&scope);
  if (error == CUDA_SUCCESS) return true;
  comm->access_refused = true;
  log_info(LOG_REG,
           "comm %s: rank %u: device %u gets no access to the memory of cuMemCreate at 0x%llx, and data of "
           "such memory goes through slots: cuMemSetAccess failed with CUDA error %d",
           comm->name, comm->config.rank, device_index, (unsigned long long)pieces->base, (int)error);
  return false;
}

bool cuda_access_reaches(struct device_comm *comm, const void *memory, size_t bytes, uint32_t device_index) {
  const uint64_t address = (uint64_t)(uintptr_t)memory;
  struct mapped_memory first;
  struct pieces pieces;
  if (!cuda_mapped_find(address, &first) ||
      !pieces_find(address, address + bytes, comm->config.device_index, device_index, &pieces))
    return false;
  return pieces.accessible ||
         (pieces.own && !comm->access_refused && access_give(comm, &pieces, device_index));
}
