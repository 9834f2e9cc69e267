/* runtime_memory.c: the emulated runtime's memory functions. Promises: a copy or a fill that would leave
 * the allocation it starts in, a direction that contradicts the pointers, and a wrong or second free are
 * errors with a warning that says what is wrong; as on a device, synchronous calls are ordered with the
 * legacy default stream, an asynchronous copy from pageable memory has read it when the call returns, and
 * one to pageable memory has ended then. */
#include "backends/emu/cudart/runtime.h"

#include <string.h>

#include "base/log.h"

enum { PITCH_BYTES = 512 };

/* ---- allocation ---- */

static int unsafe_call(void) {
  emu_lock();
  int error = emu_capture_unsafe_call();
  emu_unlock();
  return error;
}

static cudaError_t allocate(void **pointer, size_t bytes, enum emu_memory_kind kind, unsigned flags) {
  if (pointer == NULL) return runtime_result(cudaErrorInvalidValue);
  int error = runtime_fork_check();
  if (error == 0) error = unsafe_call();
  enum emu_memory_origin origin = kind == EMU_MEMORY_HOST ? EMU_ORIGIN_HOST : EMU_ORIGIN_DEVICE;
  if (error == 0) error = emu_memory_create(emu_device_current(), bytes, kind, origin, flags, pointer);
  return runtime_result(error);
}

cudaError_t tutti_cudart_Malloc(void **pointer, size_t bytes) {
  RACE_CALL("cudaMalloc");
  return allocate(pointer, bytes, EMU_MEMORY_DEVICE, 0);
}

cudaError_t tutti_cudart_MallocPitch(void **pointer, size_t *pitch, size_t width, size_t height) {
  RACE_CALL("cudaMallocPitch");
  if (pitch == NULL || width > SIZE_MAX / 2) return runtime_result(cudaErrorInvalidValue);
  size_t row_bytes = (width + PITCH_BYTES - 1) / PITCH_BYTES * PITCH_BYTES;
  if (height != 0 && row_bytes > SIZE_MAX / height) return runtime_result(cudaErrorMemoryAllocation);
  cudaError_t error = allocate(pointer, row_bytes * height, EMU_MEMORY_DEVICE, 0);
  if (error == cudaSuccess) *pitch = row_bytes;
  return error;
}

cudaError_t tutti_cudart_MallocManaged(void **pointer, size_t bytes, unsigned flags) {
  RACE_CALL("cudaMallocManaged");
  if (flags != cudaMemAttachGlobal && flags != cudaMemAttachHost)
    return runtime_result(cudaErrorInvalidValue);
  return allocate(pointer, bytes, EMU_MEMORY_MANAGED, 0);
}

cudaError_t tutti_cudart_MallocHost(void **pointer, size_t bytes) {
  RACE_CALL("cudaMallocHost");
  return allocate(pointer, bytes, EMU_MEMORY_HOST, cudaHostAllocMapped);
}

cudaError_t tutti_cudart_HostAlloc(void **pointer, size_t bytes, unsigned flags) {
  RACE_CALL("cudaHostAlloc");
  if (flags > (cudaHostAllocPortable | cudaHostAllocMapped | cudaHostAllocWriteCombined)) {
    return runtime_result(cudaErrorInvalidValue);
  }
  return allocate(pointer, bytes, EMU_MEMORY_HOST, flags | cudaHostAllocMapped);
}

static void allocated_on(cudaStream_t handle, const void *pointer) {
  emu_lock();
  struct emu_stream *stream = emu_stream_find(handle);
  if (stream != NULL) emu_race_allocated(stream, pointer);
  emu_unlock();
}

/* Allocates at once, which a program that respects the order of the stream cannot notice. */
cudaError_t tutti_cudart_MallocAsync(void **pointer, size_t bytes, cudaStream_t handle) {
  RACE_CALL("cudaMallocAsync");
  if (pointer == NULL) return runtime_result(cudaErrorInvalidValue);
  emu_lock();
  struct emu_stream *stream = emu_stream_find(handle);
  int error = stream == NULL ? cudaErrorInvalidResourceHandle : 0;
  uint32_t device_index = stream == NULL ? 0 : stream->device_index;
  if (error == 0) error = emu_capture_spoil(stream, cudaErrorStreamCaptureUnsupported);
  emu_unlock();
  if (error == 0)
    error = emu_memory_create(device_index, bytes, EMU_MEMORY_DEVICE, EMU_ORIGIN_DEVICE, 0, pointer);
  if (error == 0) allocated_on(handle, *pointer);
  return runtime_result(error);
}

/* As in CUDA, a free waits for the device. After a deadlock the memory is freed only if the device is idle.
 */
static cudaError_t release(void *pointer, enum emu_memory_origin origin) {
  struct emu_allocation allocation;
  int error = emu_memory_check(pointer, origin);
  if (error != 0 || !emu_memory_find(pointer, &allocation)) return runtime_result(error);
  emu_lock();
  error = emu_capture_unsafe_call();
  if (error == 0) error = emu_race_free(pointer);
  bool permitted = error == 0;
  if (permitted) error = emu_device_synchronize(allocation.device_index);
  bool idle = permitted && emu_device_idle(allocation.device_index);
  emu_unlock();
  int released = 0;
  if (permitted && (error == 0 || idle)) released = emu_memory_release(pointer, origin);
  return runtime_result(error != 0 ? error : released);
}

cudaError_t tutti_cudart_Free(void *pointer) {
  RACE_CALL("cudaFree");
  return pointer == NULL ? cudaSuccess : release(pointer, EMU_ORIGIN_DEVICE);
}

cudaError_t tutti_cudart_FreeHost(void *pointer) {
  RACE_CALL("cudaFreeHost");
  return pointer == NULL ? cudaSuccess : release(pointer, EMU_ORIGIN_HOST);
}

cudaError_t tutti_cudart_HostUnregister(void *pointer) {
  RACE_CALL("cudaHostUnregister");
  return release(pointer, EMU_ORIGIN_REGISTERED);
}

cudaError_t tutti_cudart_HostRegister(void *pointer, size_t bytes, unsigned flags) {
  RACE_CALL("cudaHostRegister");
  int error = unsafe_call();
  if (error == 0)
    error = emu_memory_register(pointer, bytes, emu_device_current(), flags | cudaHostRegisterMapped);
  return runtime_result(error);
}

/* ---- queries ---- */

cudaError_t tutti_cudart_HostGetDevicePointer(void **device, void *host, unsigned flags) {
  struct emu_allocation allocation;
  bool known = emu_memory_find(host, &allocation) && allocation.kind == EMU_MEMORY_HOST;
  if (device == NULL || flags != 0 || !known) return runtime_result(cudaErrorInvalidValue);
  *device = host;
  return cudaSuccess;
}

cudaError_t tutti_cudart_HostGetFlags(unsigned *flags, void *host) {
  return runtime_result(flags == NULL ? cudaErrorInvalidValue : emu_memory_flags(host, flags));
}

cudaError_t tutti_cudart_MemGetInfo(size_t *free_bytes, size_t *total_bytes) {
  if (free_bytes == NULL || total_bytes == NULL) return runtime_result(cudaErrorInvalidValue);
  *total_bytes = EMU_DEVICE_MEMORY_BYTES;
  *free_bytes = EMU_DEVICE_MEMORY_BYTES - emu_memory_used(emu_device_current());
  return cudaSuccess;
}

cudaError_t tutti_cudart_PointerGetAttributes(struct cudaPointerAttributes *attributes, const void *pointer) {
  if (attributes == NULL) return runtime_result(cudaErrorInvalidValue);
  memset(attributes, 0, sizeof *attributes);
  void *address;
  memcpy(&address, &pointer, sizeof address);
  struct emu_allocation allocation;
  if (!emu_memory_find(pointer, &allocation)) {
    attributes->type = cudaMemoryTypeUnregistered;
    attributes->device = cudaInvalidDeviceId;
    attributes->hostPointer = address;
    return cudaSuccess;
  }
  attributes->type = (enum cudaMemoryType)allocation.kind; /* the same numbers */
  attributes->device = (int)allocation.device_index;
  attributes->devicePointer = address;
  if (allocation.kind != EMU_MEMORY_DEVICE) attributes->hostPointer = address;
  return cudaSuccess;
}

cudaError_t tutti_cudart_IpcGetMemHandle(cudaIpcMemHandle_t *handle, void *pointer) {
  (void)handle;
  (void)pointer;
  return runtime_result(cudaErrorNotSupported);
}

cudaError_t tutti_cudart_IpcOpenMemHandle(void **pointer, cudaIpcMemHandle_t handle, unsigned flags) {
  (void)pointer;
  (void)handle;
  (void)flags;
  return runtime_result(cudaErrorNotSupported);
}

cudaError_t tutti_cudart_IpcCloseMemHandle(void *pointer) {
  (void)pointer;
  return runtime_result(cudaErrorNotSupported);
}

/* ---- executing work ---- */

/* The stream is empty and its next operation need not wait. */
static bool stream_clear(const struct emu_stream *stream) {
  if (stream->head != NULL) return false;
  for (const struct emu_stream *other = emu_device_streams(stream->device_index);
       stream->legacy && other != NULL; other = other->next_on_device) {
    if (other->blocking && other->head != NULL) return false;
  }
  return true;
}

static bool is_device_memory(const void *pointer) {
  struct emu_allocation allocation;
  return emu_memory_find(pointer, &allocation) && allocation.kind == EMU_MEMORY_DEVICE;
}

/* CUDA's calls do not wait for fills of device memory, nor for copies within it. Here they have ended, but a
 * program must not rely on that. */
static bool work_waits(const struct emu_work *work) {
  if (work->kind == WORK_FILL) return !is_device_memory(work->as.fill.to);
  return !is_device_memory(work->as.copy.to) || !is_device_memory(work->as.copy.from);
}

/* Executes checked work on the legacy stream and waits for its end. If no operation is before it, the calling
 * thread executes it, also in guarded mode, so that a host which fills its buffers need not wait until every
 * other thread waits. */
static int legacy_now(struct emu_stream *stream, const struct emu_work *work) {
  if (!stream_clear(stream)) {
    int error = emu_stream_enqueue(stream, work);
    return error != 0 ? error : emu_stream_wait_end(stream);
  }
  emu_work_perform(work);
  return 0;
}

static int work_now(const struct emu_work *work) {
  struct emu_stream *stream = emu_stream_find(NULL);
  if (stream == NULL) return cudaErrorMemoryAllocation;
  int error = emu_capture_legacy_use(stream->device_index);
  if (error != 0) return error;
  if (emu_in_host_function()) return cudaErrorNotPermitted;
  error = emu_race_work(stream, work);
  if (error != 0) return error;
  struct race_point mark = emu_race_mark(stream);
  error = legacy_now(stream, work);
  if (work_waits(work) || error != 0) emu_race_host_knows(&mark);
  emu_race_point_drop(&mark);
  emu_race_tidy(stream->device);
  return error;
}

static cudaError_t carry_out_now(const struct emu_work *work) {
  emu_lock();
  int error = work_now(work);
  emu_unlock();
  return runtime_result(error);
}

static cudaError_t carry_out_on(const struct emu_work *work, cudaStream_t handle) {
  emu_lock();
  struct emu_stream *stream = emu_stream_find(handle);
  int error = stream == NULL ? cudaErrorInvalidResourceHandle : emu_stream_work(stream, work);
  emu_unlock();
  return runtime_result(error);
}

/* ---- copies ---- */

/* Is memory of this kind right for this end of the copy? */
static bool end_fits(int memory_kind, bool on_device) {
  if (memory_kind == EMU_MEMORY_MANAGED) return true;
  return on_device ? memory_kind == EMU_MEMORY_DEVICE || memory_kind == EMU_MEMORY_HOST
                   : memory_kind != EMU_MEMORY_DEVICE;
}

static int memory_kind(const void *pointer) {
  struct emu_allocation allocation;
  return emu_memory_find(pointer, &allocation) ? allocation.kind : EMU_MEMORY_NONE;
}

static int direction_check(const void *to, const void *from, enum cudaMemcpyKind kind) {
  if ((int)kind < cudaMemcpyHostToHost || (int)kind > cudaMemcpyDefault)
    return cudaErrorInvalidMemcpyDirection;
  if (kind == cudaMemcpyDefault) return 0;
  bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  const void *wrong = !end_fits(memory_kind(to), to_device)       ? to
                      : !end_fits(memory_kind(from), from_device) ? from
                                                                  : NULL;
  if (wrong == NULL) return 0;
  log_warn(
      "copy from %p to %p: the direction %d says that %p is %s memory, which it is not; use the right "
      "cudaMemcpyKind or cudaMemcpyDefault",
      from, to, (int)kind, wrong, (wrong == to ? to_device : from_device) ? "device" : "host");
  return cudaErrorInvalidValue;
}

static size_t span_bytes(size_t pitch, size_t width, size_t height) {
  return height == 0 || width == 0 ? 0 : pitch * (height - 1) + width;
}

/* Fills `work`; 0 or the error that the copy must end with. A copy of nothing is empty work. */
static int copy_prepare(struct emu_work *work, void *to, size_t to_pitch, const void *from, size_t from_pitch,
                        size_t width, size_t height, enum cudaMemcpyKind kind) {
  memset(work, 0, sizeof *work);
  work->kind = WORK_EMPTY;
  work->call = emu_race_call;
  if (width == 0 || height == 0) return 0;
  if (to == NULL || from == NULL) return cudaErrorInvalidValue;
  if (height > 1 && (to_pitch < width || from_pitch < width)) return cudaErrorInvalidPitchValue;
  int error = runtime_fork_check();
  if (error == 0) error = direction_check(to, from, kind);
  if (error == 0) error = emu_memory_bounds(to, span_bytes(to_pitch, width, height), "copy to");
  if (error == 0) error = emu_memory_bounds(from, span_bytes(from_pitch, width, height), "copy from");
  if (error != 0) return error;
  work->kind = WORK_COPY;
  work->as.copy.to = to;
  work->as.copy.from = from;
  work->as.copy.to_pitch = to_pitch;
  work->as.copy.from_pitch = from_pitch;
  work->as.copy.width = width;
  work->as.copy.height = height;
  return 0;
}

/* Reads pageable memory now. */
static int copy_stage(struct emu_work *work) {
  size_t width = work->as.copy.width, height = work->as.copy.height;
  uint8_t *staging = (uint8_t *)os_alloc(width * height);
  if (staging == NULL) return cudaErrorMemoryAllocation;
  for (size_t row = 0; row < height; row++) {
    memcpy(staging + row * width, (const uint8_t *)work->as.copy.from + row * work->as.copy.from_pitch,
           width);
  }
  work->as.copy.staging = staging;
  work->as.copy.from = staging;
  work->as.copy.from_pitch = width;
  return 0;
}

static int copy_on(struct emu_work *work, cudaStream_t handle) {
  struct emu_stream *stream = emu_stream_find(handle);
  if (stream == NULL) return cudaErrorInvalidResourceHandle;
  bool copies = work->kind == WORK_COPY && stream->capture == NULL;
  bool from_pageable = copies && memory_kind(work->as.copy.from) == EMU_MEMORY_NONE;
  bool to_pageable = copies && memory_kind(work->as.copy.to) == EMU_MEMORY_NONE;
  int error = from_pageable && !to_pageable ? copy_stage(work) : 0;
  if (error == 0) error = emu_stream_work(stream, work);
  else return error;
  if (error != 0) os_free(copies ? work->as.copy.staging : NULL);
  return error == 0 && to_pageable ? emu_stream_synchronize(stream) : error;
}

static cudaError_t copy_async(struct emu_work *work, int prepared, cudaStream_t handle) {
  if (prepared != 0) return runtime_result(prepared);
  emu_lock();
  int error = copy_on(work, handle);
  emu_unlock();
  return runtime_result(error);
}

static cudaError_t copy_sync(const struct emu_work *work, int prepared) {
  if (prepared != 0 || work->kind == WORK_EMPTY) return runtime_result(prepared);
  return carry_out_now(work);
}

cudaError_t tutti_cudart_Memcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
  RACE_CALL("cudaMemcpy");
  struct emu_work work;
  return copy_sync(&work, copy_prepare(&work, to, bytes, from, bytes, bytes, 1, kind));
}

cudaError_t tutti_cudart_MemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                                     cudaStream_t stream) {
  RACE_CALL("cudaMemcpyAsync");
  struct emu_work work;
  return copy_async(&work, copy_prepare(&work, to, bytes, from, bytes, bytes, 1, kind), stream);
}

static int peer_check(const void *pointer, int device) {
  struct emu_allocation allocation;
  if (device < 0 || (uint32_t)device >= emu_options()->device_count) return cudaErrorInvalidDevice;
  bool device_memory = emu_memory_find(pointer, &allocation) && allocation.kind == EMU_MEMORY_DEVICE;
  if (!device_memory || allocation.device_index == (uint32_t)device) return 0;
  log_warn("peer copy: %p lives on device %u, not on device %d", pointer, allocation.device_index, device);
  return cudaErrorInvalidValue;
}

static int peer_copy_prepare(struct emu_work *work, void *to, int to_device, const void *from,
                             int from_device, size_t bytes) {
  int error = peer_check(to, to_device);
  if (error == 0) error = peer_check(from, from_device);
  return error != 0 ? error : copy_prepare(work, to, bytes, from, bytes, bytes, 1, cudaMemcpyDefault);
}

cudaError_t tutti_cudart_MemcpyPeer(void *to, int to_device, const void *from, int from_device,
                                    size_t bytes) {
  RACE_CALL("cudaMemcpyPeer");
  struct emu_work work;
  return copy_sync(&work, peer_copy_prepare(&work, to, to_device, from, from_device, bytes));
}

cudaError_t tutti_cudart_MemcpyPeerAsync(void *to, int to_device, const void *from, int from_device,
                                         size_t bytes, cudaStream_t stream) {
  RACE_CALL("cudaMemcpyPeerAsync");
  struct emu_work work;
  return copy_async(&work, peer_copy_prepare(&work, to, to_device, from, from_device, bytes), stream);
}

cudaError_t tutti_cudart_Memcpy2D(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                                  size_t width, size_t height, enum cudaMemcpyKind kind) {
  RACE_CALL("cudaMemcpy2D");
  struct emu_work work;
  return copy_sync(&work, copy_prepare(&work, to, to_pitch, from, from_pitch, width, height, kind));
}

cudaError_t tutti_cudart_Memcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                                       size_t width, size_t height, enum cudaMemcpyKind kind,
                                       cudaStream_t stream) {
  RACE_CALL("cudaMemcpy2DAsync");
  struct emu_work work;
  return copy_async(&work, copy_prepare(&work, to, to_pitch, from, from_pitch, width, height, kind), stream);
}

/* ---- fills ---- */

int runtime_fill_prepare(struct emu_work *work, void *to, size_t pitch, uint32_t value,
                         uint32_t element_bytes, size_t width, size_t height) {
  memset(work, 0, sizeof *work);
  work->kind = WORK_EMPTY;
  work->call = emu_race_call;
  if (width == 0 || height == 0) return 0;
  if (element_bytes != 1 && element_bytes != 2 && element_bytes != 4) return cudaErrorInvalidValue;
  if (height > 1 && pitch < width * element_bytes) return cudaErrorInvalidPitchValue;
  if (memory_kind(to) == EMU_MEMORY_NONE) {
    log_warn("fill of %zu bytes at %p, which is no device memory; use memset for host memory", width * height,
             to);
    return cudaErrorInvalidValue;
  }
  int error = runtime_fork_check();
  if (error == 0) error = emu_memory_bounds(to, span_bytes(pitch, width * element_bytes, height), "fill");
  if (error != 0) return error;
  work->kind = WORK_FILL;
  work->as.fill.to = to;
  work->as.fill.pitch = pitch;
  work->as.fill.width = width;
  work->as.fill.height = height;
  work->as.fill.value = value;
  work->as.fill.element_bytes = element_bytes;
  return 0;
}

int runtime_copy_prepare(struct emu_work *work, void *to, const void *from, size_t bytes,
                         enum cudaMemcpyKind kind) {
  return copy_prepare(work, to, bytes, from, bytes, bytes, 1, kind);
}

static cudaError_t fill_now(void *to, size_t pitch, int value, size_t width, size_t height) {
  struct emu_work work;
  int error = runtime_fill_prepare(&work, to, pitch, (uint32_t)value, 1, width, height);
  return error != 0 || work.kind == WORK_EMPTY ? runtime_result(error) : carry_out_now(&work);
}

static cudaError_t fill_on(void *to, size_t pitch, int value, size_t width, size_t height,
                           cudaStream_t stream) {
  struct emu_work work;
  int error = runtime_fill_prepare(&work, to, pitch, (uint32_t)value, 1, width, height);
  return error != 0 ? runtime_result(error) : carry_out_on(&work, stream);
}

cudaError_t tutti_cudart_Memset2D(void *to, size_t pitch, int value, size_t width, size_t height) {
  RACE_CALL("cudaMemset2D");
  return fill_now(to, pitch, value, width, height);
}

cudaError_t tutti_cudart_Memset(void *to, int value, size_t bytes) {
  RACE_CALL("cudaMemset");
  return fill_now(to, bytes, value, bytes, 1);
}

cudaError_t tutti_cudart_Memset2DAsync(void *to, size_t pitch, int value, size_t width, size_t height,
                                       cudaStream_t stream) {
  RACE_CALL("cudaMemset2DAsync");
  return fill_on(to, pitch, value, width, height, stream);
}

cudaError_t tutti_cudart_MemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) {
  RACE_CALL("cudaMemsetAsync");
  return fill_on(to, bytes, value, bytes, 1, stream);
}

cudaError_t tutti_cudart_FreeAsync(void *pointer, cudaStream_t stream) {
  RACE_CALL("cudaFreeAsync");
  if (pointer == NULL) return cudaSuccess;
  int error = emu_memory_check(pointer, EMU_ORIGIN_DEVICE);
  if (error != 0) return runtime_result(error);
  struct emu_work work;
  memset(&work, 0, sizeof work);
  work.kind = WORK_FREE;
  work.call = emu_race_call;
  work.as.release.pointer = pointer;
  emu_lock();
  struct emu_stream *target = emu_stream_find(stream);
  error = target == NULL ? cudaErrorInvalidResourceHandle : 0;
  if (error == 0) error = emu_capture_spoil(target, cudaErrorStreamCaptureUnsupported);
  if (error == 0) error = emu_stream_work(target, &work);
  emu_unlock();
  return runtime_result(error);
}
