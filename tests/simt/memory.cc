/* memory.cc (simt): device memory that other processes can map. A large allocation is one of the emulated
 * runtime's, with an anonymous file mapped over its pages; its handle identifies the file. */
#include <cuda_runtime.h>

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "memory.h"
#include "order.h"

extern "C" {
cudaError_t tutti_cudart_Malloc(void **pointer, size_t bytes);
cudaError_t tutti_cudart_Free(void *pointer);
cudaError_t tutti_cudart_Memset(void *pointer, int value, size_t bytes);
cudaError_t tutti_cudart_Memcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind);
cudaError_t tutti_cudart_MemsetAsync(void *pointer, int value, size_t bytes, cudaStream_t stream);
cudaError_t tutti_cudart_MemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                                     cudaStream_t stream);
}

/* Drivers divide memory into pieces of this size; larger allocations get whole pieces. */
enum { GRAIN = 2 << 20 };

struct allocation {
  uint8_t *base;
  size_t bytes;
  void *raw; /* the runtime's allocation; NULL: another process's */
  int file, device;
  uint64_t id;
  struct allocation *next;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct allocation *allocations;
static uint64_t last_id;

/* The content of a handle. */
struct shared_file {
  int pid, file;
  size_t bytes;
};
static_assert(sizeof(struct shared_file) <= sizeof(cudaIpcMemHandle_t), "a handle has space for it");

static void allocation_add(uint8_t *base, size_t bytes, void *raw, int file) {
  struct allocation *fresh = (struct allocation *)malloc(sizeof *fresh);
  int device = 0;
  if (fresh == NULL || cudaGetDevice(&device) != cudaSuccess) abort();
  pthread_mutex_lock(&mutex);
  *fresh = {base, bytes, raw, file, device, ++last_id, allocations};
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

/* -1: the pages stay the runtime's. */
static int file_over(uint8_t *base, size_t bytes) {
  const int file = memfd_create("simt", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, (off_t)bytes) != 0 ||
      mmap(base, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, file, 0) == MAP_FAILED)
    abort();
  return file;
}

cudaError_t cudaMalloc(void **pointer, size_t bytes) {
  void *raw = NULL;
  const bool large = bytes >= GRAIN;
  const cudaError_t error = tutti_cudart_Malloc(&raw, large ? bytes + 2 * (size_t)GRAIN : bytes);
  if (error != cudaSuccess) return error;
  uint8_t *base = (uint8_t *)raw;
  if (large) base = (uint8_t *)(((uintptr_t)raw + GRAIN - 1) & ~(uintptr_t)(GRAIN - 1));
  allocation_add(base, bytes, raw, large ? file_over(base, whole_pages(bytes)) : -1);
  *pointer = base;
  return cudaSuccess;
}

cudaError_t cudaFree(void *pointer) {
  struct allocation taken;
  if (pointer == NULL || !allocation_take(pointer, &taken)) return tutti_cudart_Free(pointer);
  order_forget(taken.base, taken.bytes);
  if (taken.file >= 0) {
    if (mmap(taken.base, whole_pages(taken.bytes), PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED)
      abort();
    close(taken.file);
  }
  return tutti_cudart_Free(taken.raw);
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *handle, void *pointer) {
  struct allocation found;
  if (!allocation_copy(pointer, &found) || found.file < 0) return cudaErrorInvalidValue;
  const struct shared_file shared = {getpid(), found.file, found.bytes};
  memset(handle, 0, sizeof *handle);
  memcpy(handle, &shared, sizeof shared);
  return cudaSuccess;
}

cudaError_t cudaIpcOpenMemHandle(void **pointer, cudaIpcMemHandle_t handle, unsigned int flags) {
  struct shared_file shared;
  char path[64];
  (void)flags;
  memcpy(&shared, &handle, sizeof shared);
  snprintf(path, sizeof path, "/proc/%d/fd/%d", shared.pid, shared.file);
  const int file = open(path, O_RDWR | O_CLOEXEC);
  if (file < 0) return cudaErrorInvalidValue;
  void *base = mmap(NULL, whole_pages(shared.bytes), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (base == MAP_FAILED) return cudaErrorInvalidValue;
  allocation_add((uint8_t *)base, shared.bytes, NULL, -1);
  *pointer = base;
  return cudaSuccess;
}

cudaError_t cudaIpcCloseMemHandle(void *pointer) {
  struct allocation taken;
  if (!allocation_take(pointer, &taken)) return cudaErrorInvalidValue;
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

/* ---- stream operations on another process's memory, which the emulated runtime does not know ---- */

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
