/* registered.cc (simt): memory of the host that devices access (cudaHostRegister). Pages that processes share
 * get a second address, which is the device's, and the host's is blocked until they are unregistered. So a
 * kernel that has the host's address, or uses pages after their end, faults, as on a GPU. Other memory stays
 * the emulated runtime's. */
#include <cuda_runtime.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "memory.h"

extern "C" {
cudaError_t tutti_cudart_HostRegister(void *pointer, size_t bytes, unsigned flags);
cudaError_t tutti_cudart_HostUnregister(void *pointer);
cudaError_t tutti_cudart_HostGetDevicePointer(void **device, void *host, unsigned flags);
cudaError_t tutti_cudart_DeviceSynchronize(void);
}

struct registration {
  void *pointer; /* as it was registered */
  uint8_t *host, *device;
  size_t bytes;
  int maker; /* the device that was current */
  struct registration *next;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct registration *registrations;
static unsigned long made;

static const uintptr_t PAGE = 4096;

/* All pages that contain a byte of the memory. */
static uint8_t *first_page(void *pointer) { return (uint8_t *)((uintptr_t)pointer & ~(PAGE - 1)); }

static size_t page_bytes(void *pointer, size_t bytes) {
  return ((uintptr_t)pointer + bytes + PAGE - 1) / PAGE * PAGE - (uintptr_t)first_page(pointer);
}

static bool overlaps(const struct registration *each, const uint8_t *host, size_t bytes) {
  return host < each->host + each->bytes && each->host < host + bytes;
}

/* cudaSuccess, with device NULL, for memory that processes do not share. */
static cudaError_t register_locked(void *pointer, size_t bytes, void **device) {
  uint8_t *host = first_page(pointer);
  const size_t whole = page_bytes(pointer, bytes);
  for (const struct registration *each = registrations; each != NULL; each = each->next)
    if (overlaps(each, host, whole)) return cudaErrorHostMemoryAlreadyRegistered;
  void *const second = mremap(host, 0, whole, MREMAP_MAYMOVE);
  *device = NULL;
  if (second == MAP_FAILED) return cudaSuccess;
  struct registration *fresh = (struct registration *)malloc(sizeof *fresh);
  if (fresh == NULL || mprotect(host, whole, PROT_NONE) != 0) abort();
  *fresh = {pointer, host, (uint8_t *)second, whole, 0, registrations};
  if (cudaGetDevice(&fresh->maker) != cudaSuccess) abort();
  registrations = fresh;
  made += 1;
  *device = second;
  return cudaSuccess;
}

/* SIMT_NO_REGISTER=1: the driver refuses, as in some sandboxes. */
cudaError_t cudaHostRegister(void *pointer, size_t bytes, unsigned int flags) {
  void *device = NULL;
  if (getenv("SIMT_NO_REGISTER") != NULL) return cudaErrorNotSupported;
  if (pointer == NULL || bytes == 0) return cudaErrorInvalidValue;
  pthread_mutex_lock(&mutex);
  const cudaError_t error = register_locked(pointer, bytes, &device);
  pthread_mutex_unlock(&mutex);
  if (error != cudaSuccess) return error;
  if (device == NULL) return tutti_cudart_HostRegister(pointer, bytes, flags);
  simt_memory_add(device, page_bytes(pointer, bytes));
  return cudaSuccess;
}

static void registration_end(struct registration *taken) {
  simt_memory_drop(taken->device);
  munmap(taken->device, taken->bytes);
  mprotect(taken->host, taken->bytes, PROT_READ | PROT_WRITE);
  free(taken);
}

static struct registration *registration_take(const void *pointer) {
  struct registration *taken = NULL;
  pthread_mutex_lock(&mutex);
  for (struct registration **place = &registrations; *place != NULL && taken == NULL;
       place = &(*place)->next) {
    if ((*place)->pointer != pointer) continue;
    taken = *place;
    *place = taken->next;
    break;
  }
  pthread_mutex_unlock(&mutex);
  return taken;
}

/* Waits for the device's kernels, as a driver does. */
cudaError_t cudaHostUnregister(void *pointer) {
  struct registration *taken = registration_take(pointer);
  if (taken == NULL) {
    const cudaError_t error = tutti_cudart_HostUnregister(pointer);
    return error == cudaSuccess ? error : cudaErrorHostMemoryNotRegistered;
  }
  tutti_cudart_DeviceSynchronize();
  registration_end(taken);
  return cudaSuccess;
}

/* Registrations end with the context in which they were made. */
void simt_registered_reset(int device) {
  pthread_mutex_lock(&mutex);
  for (struct registration **place = &registrations; *place != NULL;) {
    struct registration *each = *place;
    if (each->maker != device) {
      place = &each->next;
      continue;
    }
    *place = each->next;
    registration_end(each);
  }
  pthread_mutex_unlock(&mutex);
}

cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned int flags) {
  const uint8_t *at = (const uint8_t *)host;
  void *found = NULL;
  pthread_mutex_lock(&mutex);
  for (const struct registration *each = registrations; each != NULL && found == NULL; each = each->next)
    if (at >= each->host && at < each->host + each->bytes) found = each->device + (at - each->host);
  pthread_mutex_unlock(&mutex);
  if (found == NULL) return tutti_cudart_HostGetDevicePointer(device, host, flags);
  *device = found;
  return cudaSuccess;
}

/* SIMT_REGISTERED=FILE: appends how many registrations a process made, and how many it has left, when it
 * ends. */
__attribute__((destructor)) static void registrations_report(void) {
  const char *path = getenv("SIMT_REGISTERED");
  unsigned left = 0;
  FILE *file = path != NULL ? fopen(path, "a") : NULL;
  if (file == NULL) return;
  for (const struct registration *each = registrations; each != NULL; each = each->next) left += 1;
  fprintf(file, "registered %lu, left %u\n", made, left);
  fclose(file);
}
