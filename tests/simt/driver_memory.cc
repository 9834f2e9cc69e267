/* driver_memory.cc (simt): cuMemCreate and its neighbours in libcuda.so.1. Physical memory is an anonymous
 * file; its descriptor is the shareable handle, and a fabric handle says where the descriptor is. A range of
 * addresses cannot be accessed except where memory is mapped and a device has access. As in CUDA, memory
 * lives for as long as a handle or a mapping of any process refers to it. */
#include "driver_memory.h"

#include <cuda_runtime.h>

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "memory.h"
#include "memory_limit.h"

enum { GRAIN = 2 << 20, NAME_BYTES = 96, DEVICES_MOST = 64 };

struct physical {
  size_t bytes;
  int file, device;
  bool imported;      /* `device` is another process's number */
  unsigned int types; /* of handles that may be made of it */
  uint64_t pages;     /* in memory_limit.cc */
  uint64_t id;
  int handle_count, mapping_count;
  struct physical *next;
};

struct mapping {
  uint64_t base;
  size_t bytes;
  struct physical *physical;
  uint64_t readers, writers; /* devices, one bit each */
  struct mapping *next;
};

struct range {
  uint64_t base, id;
  size_t bytes;
  struct mapping *mappings;
  struct range *next;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct physical *physicals;
static struct range *ranges;
static uint64_t last_id;

/* For the length of a call. */
struct locked {
  locked() { pthread_mutex_lock(&mutex); }
  ~locked() { pthread_mutex_unlock(&mutex); }
};

/* ---- physical memory ---- */

static struct physical *physical_of(CUmemGenericAllocationHandle handle) {
  for (struct physical *each = physicals; each != NULL; each = each->next)
    if ((uintptr_t)each == handle && each->handle_count > 0) return each;
  return NULL;
}

static struct physical *physical_add(const struct physical *content) {
  struct physical *fresh = (struct physical *)malloc(sizeof *fresh);
  if (fresh == NULL) abort();
  *fresh = *content;
  fresh->id = ++last_id;
  fresh->handle_count = 1;
  fresh->next = physicals;
  physicals = fresh;
  return fresh;
}

static void physical_drop_unused(struct physical *physical) {
  struct physical **place = &physicals;
  if (physical->handle_count > 0 || physical->mapping_count > 0) return;
  while (*place != physical) place = &(*place)->next;
  *place = physical->next;
  close(physical->file);
  memory_limit_drop(physical->pages);
  free(physical);
}

/* What other processes need to know of a file is in its name. */
static void file_name(const struct physical *physical, char *name) {
  snprintf(name, NAME_BYTES, "simt-%d-%u-%llu", physical->device, physical->types,
           (unsigned long long)physical->pages);
}

static bool file_read(int file, struct physical *physical) {
  char path[64], name[256];
  struct stat status;
  unsigned long long pages = 0;
  snprintf(path, sizeof path, "/proc/self/fd/%d", file);
  const ssize_t length = readlink(path, name, sizeof name - 1);
  if (length < 0 || fstat(file, &status) != 0) return false;
  name[length] = '\0';
  if (sscanf(name, "/memfd:simt-%d-%u-%llu", &physical->device, &physical->types, &pages) != 3) return false;
  physical->pages = pages;
  physical->bytes = (size_t)status.st_size;
  return true;
}

static bool fabric_works(void) { return getenv("SIMT_FABRIC") != NULL; }

static CUresult properties_check(const CUmemAllocationProp *prop) {
  int device_count = 0;
  const unsigned int types = prop != NULL ? (unsigned int)prop->requestedHandleTypes : 0;
  if (prop == NULL || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
      prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
      (types & ~(unsigned int)(CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | CU_MEM_HANDLE_TYPE_FABRIC)) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (cudaGetDeviceCount(&device_count) != cudaSuccess || prop->location.id < 0 ||
      prop->location.id >= device_count)
    return CUDA_ERROR_INVALID_DEVICE;
  if ((types & CU_MEM_HANDLE_TYPE_FABRIC) != 0 && !fabric_works()) return CUDA_ERROR_NOT_PERMITTED;
  return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop,
                                       CUmemAllocationGranularity_flags option) {
  (void)option;
  const CUresult checked = properties_check(prop);
  if (granularity == NULL) return CUDA_ERROR_INVALID_VALUE;
  *granularity = GRAIN;
  return checked;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
                     unsigned long long flags) {
  struct physical fresh = {};
  char name[NAME_BYTES];
  const CUresult checked = properties_check(prop);
  if (checked != CUDA_SUCCESS) return checked;
  if (handle == NULL || size == 0 || size % GRAIN != 0 || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  fresh.bytes = size;
  fresh.device = prop->location.id;
  fresh.types = (unsigned int)prop->requestedHandleTypes;
  if (!memory_limit_add(fresh.device, size, &fresh.pages)) return CUDA_ERROR_OUT_OF_MEMORY;
  file_name(&fresh, name);
  fresh.file = memfd_create(name, MFD_CLOEXEC);
  if (fresh.file < 0 || ftruncate(fresh.file, (off_t)size) != 0) abort();
  locked lock;
  *handle = (uintptr_t)physical_add(&fresh);
  return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  locked lock;
  struct physical *physical = physical_of(handle);
  if (physical == NULL) return CUDA_ERROR_INVALID_VALUE;
  physical->handle_count -= 1;
  physical_drop_unused(physical);
  return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop,
                                                CUmemGenericAllocationHandle handle) {
  locked lock;
  const struct physical *physical = physical_of(handle);
  if (physical == NULL || prop == NULL) return CUDA_ERROR_INVALID_VALUE;
  memset(prop, 0, sizeof *prop);
  prop->type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop->requestedHandleTypes = (CUmemAllocationHandleType)physical->types;
  prop->location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  prop->location.id = physical->device;
  return CUDA_SUCCESS;
}

/* ---- shareable handles ---- */

struct fabric_content {
  int pid, file;
  uint64_t inode;
};
static_assert(sizeof(struct fabric_content) <= sizeof(CUmemFabricHandle), "a handle has space for it");

CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags) {
  locked lock;
  const struct physical *physical = physical_of(handle);
  struct stat status;
  if (physical == NULL || shareable == NULL || flags != 0 || (physical->types & (unsigned int)type) == 0 ||
      fstat(physical->file, &status) != 0)
    return CUDA_ERROR_INVALID_VALUE;
  if (type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    const int file = fcntl(physical->file, F_DUPFD_CLOEXEC, 0);
    if (file < 0) return CUDA_ERROR_OUT_OF_MEMORY;
    *(int *)shareable = file;
    return CUDA_SUCCESS;
  }
  const struct fabric_content content = {getpid(), physical->file, (uint64_t)status.st_ino};
  memset(shareable, 0, sizeof(CUmemFabricHandle));
  memcpy(shareable, &content, sizeof content);
  return CUDA_SUCCESS;
}

/* A descriptor of the memory, new, or -1. */
static int shareable_open(void *shareable, CUmemAllocationHandleType type) {
  struct fabric_content content;
  struct stat status;
  char path[64];
  if (type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
    return fcntl((int)(intptr_t)shareable, F_DUPFD_CLOEXEC, 0);
  memcpy(&content, shareable, sizeof content);
  snprintf(path, sizeof path, "/proc/%d/fd/%d", content.pid, content.file);
  const int file = open(path, O_RDWR | O_CLOEXEC);
  if (file < 0 || (fstat(file, &status) == 0 && (uint64_t)status.st_ino == content.inode)) return file;
  close(file);
  return -1;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable,
                                        CUmemAllocationHandleType type) {
  struct physical found = {};
  if (handle == NULL ||
      (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && type != CU_MEM_HANDLE_TYPE_FABRIC))
    return CUDA_ERROR_INVALID_VALUE;
  if (type == CU_MEM_HANDLE_TYPE_FABRIC && !fabric_works()) return CUDA_ERROR_NOT_PERMITTED;
  found.file = shareable_open(shareable, type);
  if (found.file < 0) return CUDA_ERROR_INVALID_VALUE;
  if (!file_read(found.file, &found) || (found.types & (unsigned int)type) == 0) {
    close(found.file);
    return CUDA_ERROR_INVALID_VALUE;
  }
  found.imported = true;
  memory_limit_hold(found.pages);
  locked lock;
  *handle = (uintptr_t)physical_add(&found);
  return CUDA_SUCCESS;
}

/* ---- ranges of addresses ---- */

/* The range that contains all of these addresses. */
static struct range *range_of(uint64_t pointer, size_t size) {
  for (struct range *each = ranges; each != NULL; each = each->next)
    if (pointer >= each->base && size <= each->bytes && pointer - each->base <= each->bytes - size)
      return each;
  return NULL;
}

/* Exactly these addresses: no access. */
static void addresses_close(uint64_t base, size_t bytes) {
  if (mmap((void *)(uintptr_t)base, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED,
           -1, 0) == MAP_FAILED)
    abort();
}

CUresult cuMemAddressReserve(CUdeviceptr *pointer, size_t size, size_t alignment, CUdeviceptr address,
                             unsigned long long flags) {
  const size_t grain = alignment > GRAIN ? alignment : (size_t)GRAIN;
  if (pointer == NULL || size == 0 || size % GRAIN != 0 || (alignment & (alignment - 1)) != 0 || flags != 0)
    return CUDA_ERROR_INVALID_VALUE;
  void *raw = mmap((void *)(uintptr_t)address, size + grain, PROT_NONE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  struct range *fresh = (struct range *)calloc(1, sizeof *fresh);
  if (raw == MAP_FAILED || fresh == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
  fresh->base = ((uintptr_t)raw + grain - 1) & ~(uint64_t)(grain - 1);
  fresh->bytes = size;
  const size_t before = (size_t)(fresh->base - (uintptr_t)raw);
  if (before > 0) munmap(raw, before);
  if (grain > before) munmap((void *)(uintptr_t)(fresh->base + size), grain - before);
  locked lock;
  fresh->id = ++last_id;
  fresh->next = ranges;
  ranges = fresh;
  *pointer = fresh->base;
  return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr pointer, size_t size) {
  locked lock;
  for (struct range **place = &ranges, *range; (range = *place) != NULL; place = &range->next) {
    if (range->base != pointer) continue;
    if (range->bytes != size || range->mappings != NULL) return CUDA_ERROR_INVALID_VALUE;
    *place = range->next;
    munmap((void *)(uintptr_t)pointer, size);
    free(range);
    return CUDA_SUCCESS;
  }
  return CUDA_ERROR_INVALID_VALUE;
}

static bool overlaps(const struct mapping *mapping, uint64_t pointer, size_t size) {
  return pointer < mapping->base + mapping->bytes && mapping->base < pointer + size;
}

static struct mapping *mapping_at(struct range *range, uint64_t address) {
  struct mapping *mapping = range->mappings;
  while (mapping != NULL && !overlaps(mapping, address, 1)) mapping = mapping->next;
  return mapping;
}

CUresult cuMemMap(CUdeviceptr pointer, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags) {
  locked lock;
  struct range *range = range_of(pointer, size);
  struct physical *physical = physical_of(handle);
  if (range == NULL || physical == NULL || size == 0 || size % GRAIN != 0 || pointer % GRAIN != 0 ||
      size > physical->bytes || offset != 0 || flags != 0)
    return CUDA_ERROR_INVALID_VALUE;
  for (const struct mapping *each = range->mappings; each != NULL; each = each->next)
    if (overlaps(each, pointer, size)) return CUDA_ERROR_INVALID_VALUE;
  if (mmap((void *)(uintptr_t)pointer, size, PROT_NONE, MAP_SHARED | MAP_FIXED, physical->file, 0) ==
      MAP_FAILED)
    return CUDA_ERROR_OUT_OF_MEMORY;
  struct mapping *fresh = (struct mapping *)malloc(sizeof *fresh);
  if (fresh == NULL) abort();
  *fresh = {pointer, size, physical, 0, 0, range->mappings};
  range->mappings = fresh;
  physical->mapping_count += 1;
  int device = physical->device;
  if (physical->imported && cudaGetDevice(&device) != cudaSuccess) abort();
  simt_memory_map((void *)(uintptr_t)pointer, size, device);
  return CUDA_SUCCESS;
}

/* Bytes of the mappings that lie within these addresses; 0 if one of them lies there in part only. */
static size_t whole_bytes(const struct range *range, uint64_t pointer, size_t size) {
  size_t bytes = 0;
  for (const struct mapping *each = range->mappings; each != NULL; each = each->next) {
    if (!overlaps(each, pointer, size)) continue;
    if (each->base < pointer || each->base + each->bytes > pointer + size) return 0;
    bytes += each->bytes;
  }
  return bytes;
}

/* The host knows no devices: what one of them may access, it may. */
static void access_set(struct mapping *mapping, const CUmemAccessDesc *desc) {
  const uint64_t device = UINT64_C(1) << desc->location.id;
  mapping->readers &= ~device;
  mapping->writers &= ~device;
  if (desc->flags != CU_MEM_ACCESS_FLAGS_PROT_NONE) mapping->readers |= device;
  if (desc->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE) mapping->writers |= device;
  const int protection = (mapping->readers != 0 ? PROT_READ : 0) | (mapping->writers != 0 ? PROT_WRITE : 0);
  if (mprotect((void *)(uintptr_t)mapping->base, mapping->bytes, protection) != 0) abort();
  simt_memory_allow((void *)(uintptr_t)mapping->base, mapping->readers, mapping->writers);
}

/* SIMT_NO_ACCESS=1: no device but the memory's own is given access. */
static bool access_is_possible(const CUmemLocation *location, const struct range *range, uint64_t pointer,
                               size_t size) {
  if (location->type != CU_MEM_LOCATION_TYPE_DEVICE || location->id < 0 || location->id >= DEVICES_MOST)
    return false;
  for (const struct mapping *each = range->mappings; each != NULL; each = each->next)
    if (overlaps(each, pointer, size) && !each->physical->imported &&
        each->physical->device != location->id && getenv("SIMT_NO_ACCESS") != NULL)
      return false;
  return true;
}

CUresult cuMemSetAccess(CUdeviceptr pointer, size_t size, const CUmemAccessDesc *desc, size_t count) {
  locked lock;
  const struct range *range = range_of(pointer, size);
  if (range == NULL || size == 0 || count == 0 || desc == NULL || whole_bytes(range, pointer, size) != size)
    return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; i++)
    if (!access_is_possible(&desc[i].location, range, pointer, size)) return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; i < count; i++)
    for (struct mapping *each = range->mappings; each != NULL; each = each->next)
      if (overlaps(each, pointer, size)) access_set(each, &desc[i]);
  return CUDA_SUCCESS;
}

CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr pointer) {
  locked lock;
  struct range *range = range_of(pointer, 1);
  const struct mapping *mapping = range != NULL ? mapping_at(range, pointer) : NULL;
  if (mapping == NULL || flags == NULL || location->type != CU_MEM_LOCATION_TYPE_DEVICE || location->id < 0 ||
      location->id >= DEVICES_MOST)
    return CUDA_ERROR_INVALID_VALUE;
  *flags = (mapping->readers >> location->id & 1 ? CU_MEM_ACCESS_FLAGS_PROT_READ : 0u) |
           (mapping->writers >> location->id & 1 ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : 0u);
  return CUDA_SUCCESS;
}

/* Takes a mapping that begins there, before which the device is waited for. */
static bool mapping_take(struct range *range, uint64_t pointer, size_t size, struct mapping *taken) {
  for (struct mapping **place = &range->mappings, *each; (each = *place) != NULL; place = &each->next) {
    if (!overlaps(each, pointer, size)) continue;
    *taken = *each;
    *place = each->next;
    free(each);
    return true;
  }
  return false;
}

static void mapping_end(const struct mapping *mapping) {
  simt_memory_unmap((void *)(uintptr_t)mapping->base);
  addresses_close(mapping->base, mapping->bytes);
  locked lock;
  mapping->physical->mapping_count -= 1;
  physical_drop_unused(mapping->physical);
}

CUresult cuMemUnmap(CUdeviceptr pointer, size_t size) {
  struct mapping taken;
  pthread_mutex_lock(&mutex);
  struct range *range = range_of(pointer, size);
  bool more = range != NULL && size > 0 && whole_bytes(range, pointer, size) == size;
  const CUresult result = more ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  while (more) {
    more = mapping_take(range, pointer, size, &taken);
    pthread_mutex_unlock(&mutex);
    if (more) mapping_end(&taken);
    pthread_mutex_lock(&mutex);
  }
  pthread_mutex_unlock(&mutex);
  return result;
}

/* ---- questions ---- */

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address) {
  locked lock;
  struct range *range = range_of((uintptr_t)address, 1);
  const struct mapping *mapping = range != NULL ? mapping_at(range, (uintptr_t)address) : NULL;
  if (mapping == NULL || handle == NULL) return CUDA_ERROR_INVALID_VALUE;
  mapping->physical->handle_count += 1;
  *handle = (uintptr_t)mapping->physical;
  return CUDA_SUCCESS;
}

bool driver_memory_file(uint64_t address, size_t bytes, uint64_t *base, int *file) {
  locked lock;
  struct range *range = range_of(address, 1);
  const struct mapping *mapping = range != NULL ? mapping_at(range, address) : NULL;
  if (mapping == NULL || address + bytes > mapping->base + mapping->bytes) return false;
  *base = mapping->base;
  *file = mapping->physical->file;
  return true;
}

bool driver_memory_find(uint64_t address, struct driver_memory *found) {
  locked lock;
  struct range *range = range_of(address, 1);
  if (range == NULL) return false;
  const struct mapping *mapping = mapping_at(range, address);
  *found = {range->base, range->bytes, range->id, 0, 0, 0, 0};
  if (mapping == NULL) return true;
  found->base = mapping->base;
  found->bytes = mapping->bytes;
  found->block_id = mapping->physical->id;
  found->types = mapping->physical->types;
  return true;
}
