/* vmm.h: the driver's functions for memory of cuMemCreate, and memory that ncclMemAlloc allocates by them. */
#ifndef TUTTI_BACKENDS_CUDA_VMM_H
#define TUTTI_BACKENDS_CUDA_VMM_H

#include <cuda.h>

#include "backends/cuda/device.h"

struct vmm_driver {
  __typeof__(cuMemGetAllocationGranularity) *granularity;
  __typeof__(cuMemCreate) *create;
  __typeof__(cuMemRetainAllocationHandle) *retain;
  __typeof__(cuMemExportToShareableHandle) *export_handle;
  __typeof__(cuMemImportFromShareableHandle) *import_handle;
  __typeof__(cuMemAddressReserve) *reserve;
  __typeof__(cuMemAddressFree) *unreserve;
  __typeof__(cuMemMap) *map;
  __typeof__(cuMemSetAccess) *set_access;
  __typeof__(cuMemGetAccess) *get_access;
  __typeof__(cuMemUnmap) *unmap;
  __typeof__(cuMemRelease) *release;
};

/* NULL: this driver does not have all of them. */
const struct vmm_driver *vmm_driver(void);
/* What a device needs to read and write a mapping. */
CUmemAccessDesc vmm_access(uint32_t device_index);

/* alloc.c: for ncclMemAlloc and ncclMemFree. */
ncclResult_t cuda_memory_alloc(uint32_t device_index, size_t bytes, void **pointer);
ncclResult_t cuda_memory_free(void *pointer);
/* The allocation of ncclMemAlloc that contains an address; false: none does, or not all of the process's
 * devices that reach its device have access to it. `id` is never reused. */
struct vmm_memory {
  uint64_t base, bytes, id;
};
bool cuda_memory_find_own(const void *pointer, struct vmm_memory *memory);

#endif
