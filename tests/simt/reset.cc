/* reset.cc (simt): contexts of devices. A reset (cudaDeviceReset) ends the device's kernels, destroys its
 * streams and events, frees its memory, also that of the host, and takes some milliseconds. Handles are then
 * as unknown as if they had been destroyed. The context is inactive until the runtime is used on the device
 * again, and cannot be pushed meanwhile. */
#include "reset.h"

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "kernels.h"
#include "memory.h"

extern "C" {
cudaError_t tutti_cudart_DeviceReset(void);
cudaError_t tutti_cudart_DeviceSynchronize(void);
cudaError_t tutti_cudart_StreamCreate(cudaStream_t *stream);
cudaError_t tutti_cudart_StreamCreateWithFlags(cudaStream_t *stream, unsigned flags);
cudaError_t tutti_cudart_StreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority);
cudaError_t tutti_cudart_StreamDestroy(cudaStream_t stream);
cudaError_t tutti_cudart_EventCreate(cudaEvent_t *event);
cudaError_t tutti_cudart_EventCreateWithFlags(cudaEvent_t *event, unsigned flags);
cudaError_t tutti_cudart_EventDestroy(cudaEvent_t event);
}

enum { RESET_US = 3000 };

struct handle {
  void *value;
  bool is_event;
  int device;
  struct handle *next;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct handle *handles;
static bool inactive[SIMT_DEVICES], killed[SIMT_DEVICES];

bool reset_is_active(int device) { return !__atomic_load_n(&inactive[device], __ATOMIC_ACQUIRE); }
void reset_use_device(int device) { __atomic_store_n(&inactive[device], false, __ATOMIC_RELEASE); }
const bool *reset_kills(int device) { return &killed[device]; }

static int device_now(void) {
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess || device >= SIMT_DEVICES) abort();
  return device;
}

void reset_use(void) { reset_use_device(device_now()); }

cudaError_t cudaSetDevice(int device) {
  const cudaError_t error = tutti_cudart_SetDevice(device);
  if (error == cudaSuccess) reset_use_device(device);
  return error;
}

/* ---- handles ---- */

static cudaError_t handle_add(void *value, bool is_event) {
  struct handle *fresh = (struct handle *)malloc(sizeof *fresh);
  if (fresh == NULL) abort();
  reset_use();
  pthread_mutex_lock(&mutex);
  *fresh = {value, is_event, device_now(), handles};
  handles = fresh;
  pthread_mutex_unlock(&mutex);
  return cudaSuccess;
}

static void handle_remove(const void *value, bool is_event) {
  pthread_mutex_lock(&mutex);
  for (struct handle **place = &handles; *place != NULL; place = &(*place)->next) {
    struct handle *handle = *place;
    if (handle->value != value || handle->is_event != is_event) continue;
    *place = handle->next;
    free(handle);
    break;
  }
  pthread_mutex_unlock(&mutex);
}

static void handles_destroy(int device) {
  pthread_mutex_lock(&mutex);
  for (struct handle **place = &handles; *place != NULL;) {
    struct handle *handle = *place;
    if (handle->device != device) {
      place = &handle->next;
      continue;
    }
    if (handle->is_event) tutti_cudart_EventDestroy((cudaEvent_t)handle->value);
    else tutti_cudart_StreamDestroy((cudaStream_t)handle->value);
    *place = handle->next;
    free(handle);
  }
  pthread_mutex_unlock(&mutex);
}

cudaError_t cudaStreamCreate(cudaStream_t *stream) {
  const cudaError_t error = tutti_cudart_StreamCreate(stream);
  return error == cudaSuccess ? handle_add(*stream, false) : error;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags) {
  const cudaError_t error = tutti_cudart_StreamCreateWithFlags(stream, flags);
  return error == cudaSuccess ? handle_add(*stream, false) : error;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned int flags, int priority) {
  const cudaError_t error = tutti_cudart_StreamCreateWithPriority(stream, flags, priority);
  return error == cudaSuccess ? handle_add(*stream, false) : error;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  handle_remove(stream, false);
  return tutti_cudart_StreamDestroy(stream);
}

cudaError_t cudaEventCreate(cudaEvent_t *event) {
  const cudaError_t error = tutti_cudart_EventCreate(event);
  return error == cudaSuccess ? handle_add(*event, true) : error;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags) {
  const cudaError_t error = tutti_cudart_EventCreateWithFlags(event, flags);
  return error == cudaSuccess ? handle_add(*event, true) : error;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  handle_remove(event, true);
  return tutti_cudart_EventDestroy(event);
}

/* ---- a reset ---- */

cudaError_t reset_device(int device) {
  const int before = device_now();
  cudaError_t error = tutti_cudart_SetDevice(device);
  if (error != cudaSuccess) return error;
  __atomic_store_n(&inactive[device], true, __ATOMIC_RELEASE);
  __atomic_store_n(&killed[device], true, __ATOMIC_RELEASE);
  tutti_cudart_DeviceSynchronize();
  handles_destroy(device);
  simt_registered_reset(device);
  simt_memory_reset(device);
  simt_kernels_unload(device);
  error = tutti_cudart_DeviceReset();
  __atomic_store_n(&killed[device], false, __ATOMIC_RELEASE);
  usleep(RESET_US);
  tutti_cudart_SetDevice(before);
  return error;
}

cudaError_t cudaDeviceReset(void) { return reset_device(device_now()); }
