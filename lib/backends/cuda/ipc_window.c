/* ipc_window.c: memory of cuMemCreate, which programs map piece by piece in ranges of addresses, and map
 * elsewhere or anew while the range stays. A process that accesses such memory of another one has a window
 * for each of its ranges: as many addresses, in which the pieces are mapped at the same offsets, so that one
 * shift leads from a buffer over several pieces to all of them. Keeps no handle and no descriptor: either
 * would keep the memory in use. Its lock is its own, so that unmapping, which may wait for kernels, holds no
 * other. */
#include <stdio.h>
#include <string.h>

#include "backends/cuda/ipc.h"
#include "backends/cuda/vmm.h"
#include "base/hash.h"
#include "base/log.h"

static os_mutex lock = OS_MUTEX_INITIALIZER;

/* ---- the owner ---- */

/* The driver numbers buffers and physical allocations. Which of them changes when other memory is mapped at
 * an address is not documented for all of its versions, so both count; and one allocation may be mapped
 * twice. */
uint64_t cuda_mapped_id(uint64_t address, uint64_t base) {
  unsigned long long block = 0;
  int mapped = 0;
  if (!cuda_pointer_ask(CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, address, &block)) block = 0;
  if (block == 0 && (!cuda_pointer_ask(CU_POINTER_ATTRIBUTE_MAPPED, address, &mapped) || !mapped)) return 0;
  return hash_mix(hash_mix(hash_mix(HASH_SEED, cuda_memory_id(address)), block), base) | 1;
}

bool cuda_mapped_find(uint64_t address, struct mapped_memory *memory) {
  CUdeviceptr range = 0;
  size_t range_bytes = 0;
  void *pool = NULL;
  memset(memory, 0, sizeof *memory);
  if (vmm_driver() == NULL || cuda_memory_is_plain((const void *)(uintptr_t)address) ||
      !cuda_pointer_ask(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, address, &range) ||
      !cuda_pointer_ask(CU_POINTER_ATTRIBUTE_RANGE_SIZE, address, &range_bytes) ||
      !cuda_memory_range(address, &memory->base, &memory->bytes))
    return false;
  if (cuda_pointer_ask(CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, address, &pool) && pool != NULL) return false;
  memory->id = cuda_mapped_id(address, memory->base);
  if (!cuda_pointer_ask(CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, address, &memory->handle_types))
    memory->handle_types = 0;
  memory->range.base = range;
  memory->range.bytes = range_bytes;
  memory->range.offset = memory->base - range;
  return memory->id != 0 && memory->base >= range && memory->bytes <= range_bytes &&
         memory->range.offset <= range_bytes - memory->bytes;
}

bool cuda_mapped_export(uint64_t base, uint32_t kind, int *descriptor, uint8_t handle[IPC_HANDLE_BYTES]) {
  CUmemGenericAllocationHandle memory = 0;
  CUmemFabricHandle fabric;
  static_assert(sizeof fabric == IPC_HANDLE_BYTES, "as long as CUDA's handle");
  if (vmm_driver()->retain(&memory, (void *)(uintptr_t)base) != CUDA_SUCCESS) return false;
  const CUresult result =
      kind == IPC_FABRIC
          ? vmm_driver()->export_handle(&fabric, memory, CU_MEM_HANDLE_TYPE_FABRIC, 0)
          : vmm_driver()->export_handle(descriptor, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
  vmm_driver()->release(memory);
  if (result == CUDA_SUCCESS && kind == IPC_FABRIC) memcpy(handle, &fabric, sizeof fabric);
  return result == CUDA_SUCCESS;
}

/* ---- windows ---- */

/* Where a piece is mapped, or is being mapped or unmapped. */
struct place {
  uint64_t offset, bytes;
  struct place *next;
};

struct ipc_window {
  uint32_t device_index;
  uint64_t owner, range_base, bytes;
  uint8_t *base;
  struct place *places;
  struct ipc_window *next;
};

static struct ipc_window *windows; /* under `lock`, as their places are */

static ncclResult_t window_failed(const char *call, CUresult error, uint32_t device_index,
                                  const char *whose) {
  return log_fail(ncclUnhandledCudaError,
                  "device %u cannot map memory of cuMemCreate of %s: %s failed with CUDA error %d; data goes "
                  "through slots",
                  device_index, whose, call, (int)error);
}

static struct ipc_window *window_find(uint32_t device_index, uint64_t owner, const struct ipc_range *range) {
  struct ipc_window *window = windows;
  while (window != NULL && (window->device_index != device_index || window->owner != owner ||
                            window->range_base != range->base || window->bytes != range->bytes))
    window = window->next;
  return window;
}

static ncclResult_t window_open(uint32_t device_index, uint64_t owner, const struct ipc_range *range,
                                const char *whose, struct ipc_window **window) {
  CUdeviceptr base = 0;
  *window = window_find(device_index, owner, range);
  if (*window != NULL) return ncclSuccess;
  struct ipc_window *fresh = (struct ipc_window *)os_alloc(sizeof *fresh);
  if (fresh == NULL) return log_no_memory("noting a range of addresses of %s", whose);
  const CUresult error = vmm_driver()->reserve(&base, range->bytes, 0, 0, 0);
  if (error != CUDA_SUCCESS) {
    os_free(fresh);
    return window_failed("cuMemAddressReserve", error, device_index, whose);
  }
  fresh->device_index = device_index;
  fresh->owner = owner;
  fresh->range_base = range->base;
  fresh->bytes = range->bytes;
  fresh->base = (uint8_t *)(uintptr_t)base;
  fresh->next = windows;
  windows = fresh;
  *window = fresh;
  return ncclSuccess;
}

static void window_close_unused(struct ipc_window *window) {
  struct ipc_window **link = &windows;
  if (window->places != NULL) return;
  while (*link != window) link = &(*link)->next;
  *link = window->next;
  vmm_driver()->unreserve((CUdeviceptr)(uintptr_t)window->base, window->bytes);
  os_free(window);
}

static ncclResult_t place_take(struct ipc_window *window, uint64_t offset, uint64_t bytes) {
  for (const struct place *each = window->places; each != NULL; each = each->next)
    if (offset < each->offset + each->bytes && each->offset < offset + bytes) return ncclInProgress;
  struct place *fresh = (struct place *)os_alloc(sizeof *fresh);
  if (fresh == NULL) return log_no_memory("noting a mapping of another process's memory");
  fresh->offset = offset;
  fresh->bytes = bytes;
  fresh->next = window->places;
  window->places = fresh;
  return ncclSuccess;
}

static void place_give(struct ipc_window *window, uint64_t offset) {
  struct place **link = &window->places;
  while (*link != NULL && (*link)->offset != offset) link = &(*link)->next;
  struct place *place = *link;
  if (place == NULL) return;
  *link = place->next;
  os_free(place);
}

static CUresult piece_import(const struct ipc_piece *piece, uint32_t kind, int descriptor,
                             CUmemGenericAllocationHandle *memory) {
  CUmemFabricHandle fabric;
  if (kind == IPC_DESCRIPTOR)
    return vmm_driver()->import_handle(memory, (void *)(intptr_t)descriptor,
                                       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  memcpy(&fabric, piece->handle, sizeof fabric);
  return vmm_driver()->import_handle(memory, &fabric, CU_MEM_HANDLE_TYPE_FABRIC);
}

/* The mapping alone keeps the memory from then on. */
static ncclResult_t piece_map(uint32_t device_index, const struct ipc_piece *piece, uint32_t kind,
                              int descriptor, const char *whose, CUdeviceptr address) {
  CUmemGenericAllocationHandle memory = 0;
  const CUmemAccessDesc access = vmm_access(device_index);
  CUresult error = piece_import(piece, kind, descriptor, &memory);
  if (error != CUDA_SUCCESS)
    return window_failed("cuMemImportFromShareableHandle", error, device_index, whose);
  error = vmm_driver()->map(address, piece->bytes, 0, memory, 0);
  vmm_driver()->release(memory);
  if (error != CUDA_SUCCESS) return window_failed("cuMemMap", error, device_index, whose);
  error = vmm_driver()->set_access(address, piece->bytes, &access, 1);
  if (error == CUDA_SUCCESS) return ncclSuccess;
  vmm_driver()->unmap(address, piece->bytes);
  return window_failed("cuMemSetAccess", error, device_index, whose);
}

ncclResult_t cuda_window_map(uint32_t device_index, const struct ipc_piece *piece,
                             const struct ipc_range *range, int descriptor, const char *whose,
                             struct ipc_window **window, uint8_t **base) {
  struct ipc_window *found = NULL;
  if (vmm_driver() == NULL) return window_failed("the driver", CUDA_ERROR_NOT_SUPPORTED, device_index, whose);
  os_mutex_lock(&lock);
  ncclResult_t result = window_open(device_index, piece->owner, range, whose, &found);
  if (result == ncclSuccess) result = place_take(found, range->offset, piece->bytes);
  if (result == ncclSuccess) {
    uint8_t *address = found->base + range->offset;
    result = piece_map(device_index, piece, range->kind, descriptor, whose, (CUdeviceptr)(uintptr_t)address);
    if (result != ncclSuccess) place_give(found, range->offset);
    *window = found;
    *base = address;
  }
  if (result != ncclSuccess && found != NULL) window_close_unused(found);
  os_mutex_unlock(&lock);
  return result;
}

void cuda_window_unmap(struct ipc_window *window, uint8_t *base, uint64_t bytes) {
  vmm_driver()->unmap((CUdeviceptr)(uintptr_t)base, bytes);
  os_mutex_lock(&lock);
  place_give(window, (uint64_t)(base - window->base));
  window_close_unused(window);
  os_mutex_unlock(&lock);
}
