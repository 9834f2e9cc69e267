/* memory.cc (simt): device memory that other processes can map. A large allocation is one of the emulated
 * runtime's, with an anonymous file mapped over its pages; its handle identifies the file. As on a GPU, a
 * file lives for as long as a process has it mapped, a new allocation may get the address of a freed one, and
 * cudaFree and cudaIpcCloseMemHandle wait for the device, and let no kernel be launched meanwhile.
 * memory_limit.cc counts the memory. */
#include <cuda_runtime.h>

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <initializer_list>

#include "memory.h"
#include "memory_limit.h"
#include "order.h"
#include "reset.h"

extern "C" {
cudaError_t tutti_cudart_Malloc(void **pointer, size_t bytes);
cudaError_t tutti_cudart_Free(void *pointer);
cudaError_t tutti_cudart_DeviceSynchronize(void);
cudaError_t tutti_cudart_PointerGetAttributes(struct cudaPointerAttributes *attributes, const void *pointer);
cudaError_t tutti_cudart_Memset(void *pointer, int value, size_t bytes);
cudaError_t tutti_cudart_Memcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind);
cudaError_t tutti_cudart_MemsetAsync(void *pointer, int value, size_t bytes, cudaStream_t stream);
cudaError_t tutti_cudart_MemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                                     cudaStream_t stream);
}

/* Drivers divide memory into pieces of this size; larger allocations get whole pieces. */
enum { GRAIN = 2 << 20, FREED_MOST = 64 };

struct allocation {
  uint8_t *base;
  size_t bytes;
  void *raw;        /* the runtime's allocation; NULL: another process's */
  size_t raw_bytes; /* usable from `base` on */
  int file, device;
  uint64_t id;
  uint64_t pages;            /* in memory_limit.cc: of the file */
  bool mapped;               /* by cuMemMap (driver_memory.cc) ... */
  uint64_t readers, writers; /* ... for these devices, one bit each */
  struct allocation *next;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct allocation *allocations;
static struct allocation *freed; /* large ones, the newest first: their addresses are used again */
static uint64_t last_id;

/* The content of a handle. */
struct shared_file {
  int pid, file;
  size_t bytes;
  uint64_t pages;
  int ipc_namespace;
};
static_assert(sizeof(struct shared_file) <= sizeof(cudaIpcMemHandle_t), "a handle has space for it");

static void allocation_add(const struct allocation *content) {
  struct allocation *fresh = (struct allocation *)malloc(sizeof *fresh);
  if (fresh == NULL) abort();
  *fresh = *content;
  if (!fresh->mapped && cudaGetDevice(&fresh->device) != cudaSuccess) abort();
  pthread_mutex_lock(&mutex);
  fresh->id = ++last_id;
  fresh->next = allocations;
  allocations = fresh;
  pthread_mutex_unlock(&mutex);
}

/* Removes the allocation that begins at `base` from the list. */
static bool allocation_take(const void *base, struct allocation *taken) {
  bool found = false;
  pthread_mutex_lock(&mutex);
  for (struct allocation **place = &allocations; *place != NULL && !found; place = &(*place)->next) {
    struct allocation *allocation = *place;
    if (allocation->base != base) continue;
    found = true;
    *taken = *allocation;
    *place = allocation->next;
    free(allocation);
    break;
  }
  pthread_mutex_unlock(&mutex);
  return found;
}

static bool allocation_copy(const void *address, struct allocation *copy) {
  const uint8_t *at = (const uint8_t *)address;
  bool found = false;
  pthread_mutex_lock(&mutex);
  for (const struct allocation *each = allocations; each != NULL && !found; each = each->next) {
    found = at >= each->base && at < each->base + each->bytes;
    if (found) *copy = *each;
  }
  pthread_mutex_unlock(&mutex);
  return found;
}

bool simt_memory_find(uint64_t address, uint64_t *base, size_t *bytes, uint64_t *id, bool *is_shared) {
  struct allocation found;
  if (!allocation_copy((const void *)(uintptr_t)address, &found)) return false;
  *base = (uint64_t)(uintptr_t)found.base;
  *bytes = found.bytes;
  *id = found.id;
  *is_shared = found.file >= 0 || (order_is_on && found.raw != NULL); /* then there is one process */
  return true;
}

static size_t whole_pages(size_t bytes) { return (bytes + 4095) & ~(size_t)4095; }

bool simt_memory_file(uint64_t address, size_t bytes, uint64_t *base, int *file) {
  struct allocation found;
  if (!allocation_copy((const void *)(uintptr_t)address, &found) || found.file < 0) return false;
  *base = (uint64_t)(uintptr_t)found.base;
  *file = found.file;
  return address + bytes <= *base + whole_pages(found.bytes);
}

/* -1: the pages stay the runtime's. */
static int file_over(uint8_t *base, size_t bytes) {
  const int file = memfd_create("simt", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, (off_t)bytes) != 0 ||
      mmap(base, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED)
    abort();
  return file;
}

/* Takes the addresses of an allocation that was freed, as a driver does, if they fit. */
static bool freed_take(int device, size_t bytes, struct allocation *taken) {
  bool found = false;
  pthread_mutex_lock(&mutex);
  for (struct allocation **place = &freed; *place != NULL && !found; place = &(*place)->next) {
    struct allocation *allocation = *place;
    if (allocation->device != device) continue;
    if (allocation->raw_bytes < bytes || allocation->raw_bytes / 4 > bytes) continue;
    found = true;
    *taken = *allocation;
    *place = allocation->next;
    free(allocation);
    break;
  }
  pthread_mutex_unlock(&mutex);
  return found;
}

/* Keeps the addresses of an allocation; returns the runtime's allocation that is no longer kept, or NULL. */
static void *freed_keep(const struct allocation *taken) {
  struct allocation *kept = (struct allocation *)malloc(sizeof *kept);
  void *raw = NULL;
  if (kept == NULL) abort();
  *kept = *taken;
  pthread_mutex_lock(&mutex);
  kept->next = freed;
  freed = kept;
  struct allocation **last = &freed;
  for (int count = 0; count < FREED_MOST && *last != NULL; count++) last = &(*last)->next;
  if (*last != NULL) {
    raw = (*last)->raw;
    free(*last);
    *last = NULL;
  }
  pthread_mutex_unlock(&mutex);
  return raw;
}

static cudaError_t large_create(size_t bytes, struct allocation *fresh) {
  uint64_t pages = 0;
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess) abort();
  if (!memory_limit_add(device, bytes, &pages)) return cudaErrorMemoryAllocation;
  if (!freed_take(device, bytes, fresh)) {
    const cudaError_t error = tutti_cudart_Malloc(&fresh->raw, bytes + 2 * (size_t)GRAIN);
    if (error != cudaSuccess) {
      memory_limit_drop(pages);
      return error;
    }
    fresh->base = (uint8_t *)(((uintptr_t)fresh->raw + GRAIN - 1) & ~(uintptr_t)(GRAIN - 1));
    fresh->raw_bytes = bytes;
  }
  fresh->bytes = bytes;
  fresh->pages = pages;
  fresh->file = file_over(fresh->base, whole_pages(bytes));
  return cudaSuccess;
}

cudaError_t cudaMalloc(void **pointer, size_t bytes) {
  struct allocation fresh = {};
  fresh.file = -1;
  const bool large = bytes >= GRAIN;
  reset_use();
  const cudaError_t error = large ? large_create(bytes, &fresh) : tutti_cudart_Malloc(&fresh.raw, bytes);
  if (error != cudaSuccess) return error;
  if (!large) fresh.base = (uint8_t *)fresh.raw;
  fresh.bytes = bytes;
  allocation_add(&fresh);
  *pointer = fresh.base;
  return cudaSuccess;
}

static pthread_mutex_t waiting = PTHREAD_MUTEX_INITIALIZER;

void simt_memory_settle(void) {
  pthread_mutex_lock(&waiting);
  pthread_mutex_unlock(&waiting);
}

static void device_wait(int device) {
  int before = 0;
  if (cudaGetDevice(&before) != cudaSuccess || cudaSetDevice(device) != cudaSuccess) abort();
  pthread_mutex_lock(&waiting);
  tutti_cudart_DeviceSynchronize();
  pthread_mutex_unlock(&waiting);
  cudaSetDevice(before);
}

/* ---- what cuMemMap maps ---- */

void simt_memory_map(void *base, size_t bytes, int device) {
  struct allocation mapped = {};
  mapped.base = (uint8_t *)base;
  mapped.bytes = bytes;
  mapped.file = -1;
  mapped.device = device;
  mapped.mapped = true;
  allocation_add(&mapped);
}

void simt_memory_unmap(void *base) {
  struct allocation taken;
  if (!allocation_copy(base, &taken)) abort();
  device_wait(taken.device);
  if (!allocation_take(base, &taken)) abort();
  order_forget(taken.base, taken.bytes);
}

void simt_memory_allow(void *base, uint64_t readers, uint64_t writers) {
  pthread_mutex_lock(&mutex);
  for (struct allocation *each = allocations; each != NULL; each = each->next) {
    if (each->base != base) continue;
    each->readers = readers;
    each->writers = writers;
  }
  pthread_mutex_unlock(&mutex);
}

static uint64_t foreign_count;

static void foreign_report(void) {
  FILE *file = fopen(getenv("SIMT_ACCESS"), "a");
  if (file == NULL) abort();
  fprintf(file, "%llu\n", (unsigned long long)foreign_count);
  fclose(file);
}

void simt_memory_check(int device, const void *address, bool writes) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  struct allocation found;
  if (!allocation_copy(address, &found) || !found.mapped) return;
  if (((writes ? found.writers : found.readers) >> device & 1) == 0) {
    fprintf(stderr, "simt: device %d %s address %p, memory of device %d to which it has no access\n", device,
            writes ? "writes" : "reads", address, found.device);
    abort();
  }
  if (found.device == device) return;
  pthread_once(&once, [] { atexit(foreign_report); });
  __atomic_add_fetch(&foreign_count, 1, __ATOMIC_RELAXED);
}

/* ---- what cudaMalloc allocates ---- */

static bool large_begins(const void *pointer, struct allocation *found) {
  return allocation_copy(pointer, found) && found->base == pointer && found->file >= 0;
}

cudaError_t cudaFree(void *pointer) {
  struct allocation taken;
  if (pointer != NULL && allocation_copy(pointer, &taken) && taken.mapped) return cudaErrorInvalidValue;
  if (pointer != NULL && large_begins(pointer, &taken)) device_wait(taken.device);
  if (pointer == NULL || !allocation_take(pointer, &taken)) return tutti_cudart_Free(pointer);
  order_forget(taken.base, taken.bytes);
  if (taken.file < 0) return tutti_cudart_Free(taken.raw);
  if (mmap(taken.base, whole_pages(taken.bytes), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) ==
      MAP_FAILED)
    abort();
  close(taken.file);
  memory_limit_drop(taken.pages);
  void *const raw = freed_keep(&taken);
  return raw != NULL ? tutti_cudart_Free(raw) : cudaSuccess;
}

/* The runtime takes kept addresses for an allocation of its own. */
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *pointer) {
  const uint8_t *at = (const uint8_t *)pointer;
  struct allocation found;
  bool is_freed = false;
  if (allocation_copy(pointer, &found) && found.mapped) {
    *attributes = {};
    attributes->type = cudaMemoryTypeDevice;
    attributes->device = found.device;
    attributes->devicePointer = (void *)(uintptr_t)pointer;
    return cudaSuccess;
  }
  pthread_mutex_lock(&mutex);
  for (const struct allocation *each = freed; each != NULL && !is_freed; each = each->next)
    is_freed = at >= each->base && at < each->base + each->raw_bytes;
  pthread_mutex_unlock(&mutex);
  return tutti_cudart_PointerGetAttributes(attributes, is_freed ? NULL : pointer);
}

/* The emulated runtime frees its own; addresses that were kept of freed memory are its, too. What cuMemMap
 * has mapped belongs to no context. */
void simt_memory_reset(int device) {
  pthread_mutex_lock(&mutex);
  for (struct allocation **list : {&allocations, &freed})
    for (struct allocation **place = list; *place != NULL;) {
      struct allocation *each = *place;
      if (each->device != device || each->mapped) {
        place = &each->next;
        continue;
      }
      *place = each->next;
      order_forget(each->base, each->bytes);
      if (list == &allocations && each->file >= 0) close(each->file);
      if (list == &allocations && each->pages != 0) memory_limit_drop(each->pages);
      if (each->raw == NULL) munmap(each->base, whole_pages(each->bytes));
      if (list == &freed && mprotect(each->base, whole_pages(each->raw_bytes), PROT_READ | PROT_WRITE) != 0)
        abort();
      free(each);
    }
  pthread_mutex_unlock(&mutex);
}

void simt_memory_add(void *base, size_t bytes) {
  struct allocation mapped = {};
  mapped.base = (uint8_t *)base;
  mapped.bytes = bytes;
  mapped.file = -1;
  allocation_add(&mapped);
}

void simt_memory_drop(void *base) {
  struct allocation taken;
  if (!allocation_take(base, &taken)) abort();
}

/* SIMT_IPC_NAMESPACE=N: only processes with the same number map each other's memory, like containers. */
static int ipc_namespace(void) {
  const char *text = getenv("SIMT_IPC_NAMESPACE");
  return text != NULL ? atoi(text) : 0;
}

bool simt_is_virtual(void) { return getenv("SIMT_VGPU") != NULL; }

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *pointer) {
  struct allocation found;
  if (simt_is_virtual()) return cudaErrorNotSupported;
  if (!allocation_copy(pointer, &found) || found.file < 0) return cudaErrorInvalidValue;
  const struct shared_file shared = {getpid(), found.file, found.bytes, found.pages, ipc_namespace()};
  memset(handle, 0, sizeof *handle);
  memcpy(handle, &shared, sizeof shared);
  return cudaSuccess;
}

cudaError_t cudaIpcOpenMemHandle(void **pointer, cudaIpcMemHandle_t handle, unsigned int flags) {
  struct shared_file shared;
  char path[64];
  (void)flags;
  memcpy(&shared, &handle, sizeof shared);
  if (shared.ipc_namespace != ipc_namespace()) return cudaErrorInvalidValue;
  snprintf(path, sizeof path, "/proc/%d/fd/%d", shared.pid, shared.file);
  const int file = open(path, O_RDWR | O_CLOEXEC);
  if (file < 0) return cudaErrorInvalidValue;
  void *base = mmap(NULL, whole_pages(shared.bytes), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (base == MAP_FAILED) return cudaErrorInvalidValue;
  memory_limit_hold(shared.pages);
  struct allocation mapped = {};
  mapped.base = (uint8_t *)base;
  mapped.bytes = shared.bytes;
  mapped.file = -1;
  mapped.pages = shared.pages;
  allocation_add(&mapped);
  *pointer = base;
  return cudaSuccess;
}

cudaError_t cudaIpcCloseMemHandle(void *pointer) {
  struct allocation taken;
  if (!allocation_copy(pointer, &taken) || taken.raw != NULL || taken.mapped) return cudaErrorInvalidValue;
  device_wait(taken.device);
  if (!allocation_take(pointer, &taken)) return cudaErrorInvalidValue;
  memory_limit_drop(taken.pages); /* first: who sees that it is unmapped may allocate */
  munmap(taken.base, whole_pages(taken.bytes));
  return cudaSuccess;
}

/* ---- copies by the host, which waits for the device first ---- */

static void copy_note(const void *memory, size_t bytes, bool writes) {
  struct allocation found;
  if (order_is_on && allocation_copy(memory, &found)) order_copy(found.device, memory, bytes, writes);
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
  const cudaError_t error = tutti_cudart_Memcpy(to, from, bytes, kind);
  copy_note(from, bytes, false);
  copy_note(to, bytes, true);
  return error;
}

cudaError_t cudaMemset(void *pointer, int value, size_t bytes) {
  const cudaError_t error = tutti_cudart_Memset(pointer, value, bytes);
  copy_note(pointer, bytes, true);
  return error;
}

/* ---- stream operations on mapped memory and on another process's, which the emulated runtime does not know
 * ---- */

struct errand {
  void *to;
  const void *from; /* NULL: fill with `value` */
  int value;
  size_t bytes;
};

static void errand_run(void *argument) {
  struct errand *errand = (struct errand *)argument;
  if (errand->from != NULL) memcpy(errand->to, errand->from, errand->bytes);
  else memset(errand->to, errand->value, errand->bytes);
  free(errand);
}

static cudaError_t errand_send(void *to, const void *from, int value, size_t bytes, cudaStream_t stream) {
  struct errand *errand = (struct errand *)malloc(sizeof *errand);
  if (errand == NULL) return cudaErrorMemoryAllocation;
  *errand = {to, from, value, bytes};
  return cudaLaunchHostFunc(stream, errand_run, errand);
}

static bool is_foreign(const void *address) {
  struct allocation found;
  return allocation_copy(address, &found) && found.raw == NULL;
}

cudaError_t cudaMemsetAsync(void *pointer, int value, size_t bytes, cudaStream_t stream) {
  if (!is_foreign(pointer)) return tutti_cudart_MemsetAsync(pointer, value, bytes, stream);
  return errand_send(pointer, NULL, value, bytes, stream);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream) {
  if (!is_foreign(to) && !is_foreign(from)) return tutti_cudart_MemcpyAsync(to, from, bytes, kind, stream);
  return errand_send(to, from, 0, bytes, stream);
}
